/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h - the CPU's functions behind the kernels of ../launch.h, and what their files share. */
#pragma once

#include "../launch.h"

void zfi_cpu_collect(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_statistics(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_norm_part(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_scalars(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_report(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_run_ahead(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_update_all(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_gather(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_round_moments(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_enter_maps(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_enter_state(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_enter_counts(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_show_entered(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_merge(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_check(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_read_place(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_write_place(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_sum_parts(const zfi_kernels_t *kernels, const void *raw);
void zfi_cpu_move(const zfi_kernels_t *kernels, const void *raw);

/* In how many parts n pieces of work, neighbours in memory, n_elems elements in all, are shared: each thread reads long
 * runs, as memory is fastest so, and there are enough parts that all threads end together. */
static inline uint32_t zfi_n_parts(uint32_t n, uint64_t n_elems) {
    enum { USUAL_PARTS = 32, LEAST_ELEMS = 1 << 15, MOST_ELEMS = 1 << 17 };
    uint64_t elems = n_elems / USUAL_PARTS;
    elems = elems < LEAST_ELEMS ? LEAST_ELEMS : elems > MOST_ELEMS ? MOST_ELEMS : elems;
    return n_elems / elems + 1 < n ? (uint32_t)(n_elems / elems + 1) : n;
}

/* The first of n pieces of work that belongs to a part. */
static inline uint32_t zfi_part_begin(uint32_t n, uint32_t n_parts, uint32_t part) {
    return (uint32_t)((uint64_t)n * part / n_parts);
}

/* Calls fn(arg, i) for every i < n, on several threads where the work of all, on n_elems elements, is worth waking
 * them. */
static inline void zfi_share(const zfi_data_t *data, uint32_t n, uint64_t n_elems, zfi_part_fn fn, void *arg) {
    enum { WORTH_SHARING = 1 << 17 };
    if (data->share && n > 1 && n_elems >= WORTH_SHARING) {
        data->share(data->share_ctx, n, fn, arg);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        fn(arg, i);
}

/* The last of n rising numbers, the first of which is 0, that is not above `most`. */
static inline uint32_t zfi_last_at_most(const uint32_t *rising, uint32_t n, uint32_t most) {
    uint32_t first = 0, end = n;
    while (end - first > 1) {
        uint32_t middle = first + (end - first) / 2;
        if (rising[middle] <= most)
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* The digest of elements [first, first + n) of a matrix as the model reads them. */
uint64_t zfi_visible_digest(const zfi_kernels_t *kernels, const zfi_data_matrix_t *matrix, uint64_t first, uint64_t n);

/* Copies the selected channels of a matrix's gradient to their place in the compact one. */
void zfi_gather_selected(const zfi_data_t *data, uint32_t matrix, const void *grad);
