/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/values.c - published values of all ranks (contract in values.h). */
#include "offload/values.h"

#include <string.h>

#include "instance/memory.h"
#include "offload/ranks.h"

void zfi_values_note(zfi_run_t *run, uint32_t cohort) {
    if (zfi_is_sharded(run->engine))
        run->reduction.is_published[cohort] = 1;
}

/* Elements [first, end) of a parameter that lie in a matrix, to or from where they have their place in the bucket. */
static void move(zfi_run_t *run, zfi_kernel_t kernel, uint32_t number, uint64_t first, uint64_t end) {
    const zfi_matrix_t *matrix = &run->plan.matrices[number];
    uint32_t bucket = run->buckets.of_param[matrix->param];
    uint64_t n = matrix->rows * matrix->cols, from, to;
    zfi_place_args_t args = {run->dev.data, number, 0, 0, NULL};
    zfi_overlap(matrix->param_offset, n, first, end, &from, &to);
    if (from >= to)
        return;
    args.first = from;
    args.n = to - from;
    args.bits = zfi_values(run, bucket) + (run->buckets.offset[matrix->param] + matrix->param_offset + from) *
                                              zfi_dtype_nbytes(matrix->place.dtype);
    zfi_list_add(&run->engine->to_device, zfi_op_launch(kernel, &args, sizeof args));
}

/* Every published matrix of a bucket: what is this rank's goes into its memory, what is others' comes out. Returns how
 * many there are. */
static uint32_t move_bucket(zfi_run_t *run, uint32_t number, int is_packing) {
    const zfi_bucket_t *bucket = &run->buckets.all[number];
    uint32_t n = 0;
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &run->params[run->buckets.params[bucket->first + i]];
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
            if (!run->reduction.is_published[run->plan.matrices[m].cohort])
                continue;
            n++;
            if (is_packing) {
                move(run, ZFI_KERNEL_READ_PLACE, m, param->owned_first, param->owned_end);
            } else {
                move(run, ZFI_KERNEL_WRITE_PLACE, m, 0, param->owned_first);
                move(run, ZFI_KERNEL_WRITE_PLACE, m, param->owned_end, param->n_elems);
            }
        }
    }
    return n;
}

static int has_any(const zfi_run_t *run) {
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        if (run->reduction.is_published[c])
            return 1;
    return 0;
}

int zfi_values_share(zfi_run_t *run, uint64_t step) {
    zfi_engine_t *engine = run->engine;
    uint64_t *numbers = run->reduction.value_number;
    if (!zfi_is_sharded(engine) || !has_any(run))
        return 0;
    for (uint32_t b = run->buckets.n; b-- > 0;) {
        numbers[b] = 0;
        if (move_bucket(run, b, 1)) {
            zf_status_t st = zfi_ranks_share(run, b, step, &numbers[b]);
            if (st)
                zfi_list_fail(&engine->to_device, st);
        }
    }
    for (uint32_t b = run->buckets.n; b-- > 0;) {
        if (!numbers[b])
            continue;
        zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.shared, numbers[b], &engine->count.stall_ranks_ns));
        (void)move_bucket(run, b, 0);
    }
    memset(run->reduction.is_published, 0, run->plan.n_cohorts);
    return 1;
}
