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

/* ---- what a rank sends ------------------------------------------------------------------------------------------- */

/* Calls fn for the elements of every published matrix of a bucket that a rank owns, in the order in which they travel:
 * elements [first, end) of the matrix, behind `at` others. Returns how many elements there are. */
typedef void (*owned_fn)(zfi_run_t *run, uint32_t matrix, uint64_t first, uint64_t end, uint64_t at, void *arg);

static uint64_t for_each_owned(zfi_run_t *run, uint32_t number, uint32_t rank, owned_fn fn, void *arg) {
    const zfi_bucket_t *bucket = &run->buckets.all[number];
    uint64_t at = 0, owned_first, owned_end, first, end;
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &run->params[run->buckets.params[bucket->first + i]];
        zfi_bucket_owned(&run->buckets, param, rank, &owned_first, &owned_end);
        if (param->is_sharded) /* shown where it is fetched */
            continue;
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
            const zfi_matrix_t *matrix = &run->plan.matrices[m];
            if (!run->reduction.is_published[matrix->cohort])
                continue;
            zfi_overlap(matrix->param_offset, matrix->rows * matrix->cols, owned_first, owned_end, &first, &end);
            if (first >= end)
                continue;
            if (fn)
                fn(run, m, first, end, at, arg);
            at += end - first;
        }
    }
    return at;
}

/* Elements of the part that every rank sends: as many as the one that has most. 0: nothing of the bucket is published.
 */
static uint64_t part_of(zfi_run_t *run, uint32_t number) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < run->buckets.n_ranks; r++) {
        uint64_t n = for_each_owned(run, number, r, NULL, NULL);
        most = n > most ? n : most;
    }
    return most;
}

typedef struct moved {
    zfi_kernel_t kernel;
    unsigned char *part; /* of the rank whose elements they are */
} moved_t;

static void move(zfi_run_t *run, uint32_t number, uint64_t first, uint64_t end, uint64_t at, void *arg) {
    const moved_t *moved = arg;
    zfi_place_args_t args = {run->dev.data, number, first, end - first, NULL};
    args.bits = moved->part + at * zfi_dtype_nbytes(run->plan.matrices[number].place.dtype);
    zfi_list_add(&run->engine->to_device, zfi_op_launch(moved->kernel, &args, sizeof args));
}

/* A rank's elements between what the model reads and its part of the bucket's memory. */
static void move_part(zfi_run_t *run, uint32_t number, uint32_t rank, uint64_t part_nbytes, zfi_kernel_t kernel) {
    moved_t moved = {kernel, zfi_values(run, number) + rank * part_nbytes};
    (void)for_each_owned(run, number, rank, move, &moved);
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
        uint64_t nbytes = part_of(run, b) * zfi_dtype_nbytes(run->buckets.all[b].value_dtype);
        zf_status_t st;
        numbers[b] = 0;
        run->reduction.value_nbytes[b] = nbytes;
        if (!nbytes)
            continue;
        move_part(run, b, zfi_rank(engine), nbytes, ZFI_KERNEL_READ_PLACE);
        st = zfi_ranks_share(run, b, step, nbytes, &numbers[b]);
        if (st)
            zfi_list_fail(&engine->to_device, st);
    }
    for (uint32_t b = run->buckets.n; b-- > 0;) {
        if (!numbers[b])
            continue;
        zfi_ranks_await_values(run, b);
        for (uint32_t r = 0; r < zfi_n_ranks(engine); r++)
            if (r != zfi_rank(engine))
                move_part(run, b, r, run->reduction.value_nbytes[b], ZFI_KERNEL_WRITE_PLACE);
    }
    memset(run->reduction.is_published, 0, run->plan.n_cohorts);
    return 1;
}
