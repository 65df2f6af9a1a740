/* SPDX-License-Identifier: Apache-2.0 */
/* table.inc.h - the table of one instruction set; ISA_NAME and ISA_TABLE are defined by the including file, and all
 * functions: of replay and run_ahead one for all rules, of which there is a copy for each here. */
#define RULE(rule, name)                                                                                               \
    static uint64_t replay_##name(const zfi_replay_t *job) {                                                           \
        return zfi_has_runs(job->moments) ? replay_in_runs(rule, job) : replay_elements(rule, job);                    \
    }                                                                                                                  \
    static uint64_t run_ahead_##name(const zfi_run_ahead_t *job) { return run_ahead(rule, job); }
RULE(ZFI_RULE_ADAMW, adamw)
RULE(ZFI_RULE_ADAM, adam)
RULE(ZFI_RULE_SGD, sgd)
RULE(ZFI_RULE_SGD_NESTEROV, sgd_nesterov)
RULE(ZFI_RULE_LION, lion)
#undef RULE

const zfi_kernels_t ISA_TABLE = {
    .name = ISA_NAME,
    .replay =
        {
            [ZFI_RULE_ADAMW] = replay_adamw,
            [ZFI_RULE_ADAM] = replay_adam,
            [ZFI_RULE_SGD] = replay_sgd,
            [ZFI_RULE_SGD_NESTEROV] = replay_sgd_nesterov,
            [ZFI_RULE_LION] = replay_lion,
        },
    .round_moments = round_moments,
    .mean_grad = mean_grad,
    .stats = stats,
    .run_ahead =
        {
            [ZFI_RULE_ADAMW] = run_ahead_adamw,
            [ZFI_RULE_ADAM] = run_ahead_adam,
            [ZFI_RULE_SGD] = run_ahead_sgd,
            [ZFI_RULE_SGD_NESTEROV] = run_ahead_sgd_nesterov,
            [ZFI_RULE_LION] = run_ahead_lion,
        },
    .scatter = scatter,
    .digest = digest_run,
    .accumulate = accumulate,
    .widen = widen,
    .narrow = narrow,
};
