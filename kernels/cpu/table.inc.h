/* SPDX-License-Identifier: Apache-2.0 */
/* table.inc.h - the table of one instruction set; ISA_NAME and ISA_TABLE are defined by the including file. */
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
    .lateness = lateness,
    .stats = stats,
    .gather = zfi_gather,
    .run_ahead =
        {
            [ZFI_RULE_ADAMW] = run_ahead_adamw,
            [ZFI_RULE_ADAM] = run_ahead_adam,
            [ZFI_RULE_SGD] = run_ahead_sgd,
            [ZFI_RULE_SGD_NESTEROV] = run_ahead_sgd_nesterov,
            [ZFI_RULE_LION] = run_ahead_lion,
        },
    .scatter = scatter,
    .publish = zfi_publish,
    .digest = digest_run,
    .accumulate = accumulate,
    .widen = widen,
    .narrow = narrow,
};
