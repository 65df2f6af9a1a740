/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c - the table of the CPU's kernels (contract in ../launch.h). */
#include "launch.h"

const zfi_launch_fn zfi_launch_cpu[ZFI_N_KERNELS] = {
    [ZFI_KERNEL_COLLECT] = zfi_cpu_collect,
    [ZFI_KERNEL_STATISTICS] = zfi_cpu_statistics,
    [ZFI_KERNEL_NORM_PART] = zfi_cpu_norm_part,
    [ZFI_KERNEL_SCALARS] = zfi_cpu_scalars,
    [ZFI_KERNEL_RUN_AHEAD] = zfi_cpu_run_ahead,
    [ZFI_KERNEL_UPDATE_ALL] = zfi_cpu_update_all,
    [ZFI_KERNEL_GATHER] = zfi_cpu_gather,
    [ZFI_KERNEL_ENTER_MAPS] = zfi_cpu_enter_maps,
    [ZFI_KERNEL_ENTER_STATE] = zfi_cpu_enter_state,
    [ZFI_KERNEL_ENTER_COUNTS] = zfi_cpu_enter_counts,
    [ZFI_KERNEL_SHOW_ENTERED] = zfi_cpu_show_entered,
    [ZFI_KERNEL_MERGE] = zfi_cpu_merge,
    [ZFI_KERNEL_CHECK] = zfi_cpu_check,
    [ZFI_KERNEL_ROUND_MOMENTS] = zfi_cpu_round_moments,
    [ZFI_KERNEL_READ_PLACE] = zfi_cpu_read_place,
    [ZFI_KERNEL_WRITE_PLACE] = zfi_cpu_write_place,
    [ZFI_KERNEL_REPORT] = zfi_cpu_report,
    [ZFI_KERNEL_SUM_PARTS] = zfi_cpu_sum_parts,
    [ZFI_KERNEL_MOVE] = zfi_cpu_move,
};
