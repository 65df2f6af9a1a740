/* table.inc.h - the table of one instruction set; ISA_NAME and ISA_TABLE are defined by the including file. */
const zfi_kernels_t ISA_TABLE = {
    .name = ISA_NAME,
    .replay = {[ZFI_RULE_ADAMW] = replay_adamw},
    .mean_grad = mean_grad,
    .stats = stats,
    .gather = zfi_gather,
    .run_ahead = {[ZFI_RULE_ADAMW] = run_ahead_adamw},
    .scatter = scatter,
    .publish = zfi_publish,
    .accumulate = accumulate,
    .widen = widen,
    .narrow = narrow,
};
