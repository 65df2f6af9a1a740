/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/gradient_place.h - where gradients lie on the device between their delivery and the kernels that read
 * them.
 *
 * One rank: in the host's own memory, or in staging, which has 4 bytes per element of each parameter with state and is
 * mapped at first use.
 *
 * Several ranks: in the flat memory of the parameter's bucket, which goes to the other ranks. At stage 0 it is a part
 * of staging, and sums over ranks come back there. From stage 1 on it is the buffer that the bucket has now; this
 * rank's parts of the sums lie in staging, one behind the other.
 *
 * A view, made for one question: staging may be mapped and buffers change hands between two of them. */
#pragma once

#include "instance/run.h"

typedef struct zfi_gradient_place {
    unsigned char *staging;     /* NULL: not mapped */
    const uint64_t *param_base; /* [n_params] one rank: element offset of a parameter in staging */
    const zfi_buckets_t *buckets;
    const zfi_reduction_t *reduction;
} zfi_gradient_place_t;

static inline zfi_gradient_place_t zfi_gradient_place(const zfi_ranks_t *ranks) {
    return (zfi_gradient_place_t){ranks->mem->staging_arena.base, ranks->mem->param_base, ranks->buckets,
                                  ranks->reduction};
}

/* Several ranks: the memory of a bucket's gradients; NULL: it has none now (ranks/buffers.h). */
static inline unsigned char *zfi_gradient_bucket(zfi_gradient_place_t place, uint32_t bucket) {
    const zfi_opened_t *opened = place.reduction->opened;
    if (!opened)
        return place.staging + place.buckets->all[bucket].offset_nbytes;
    return opened[bucket].buffer == ZF_NO_ID ? NULL : place.reduction->buffers[opened[bucket].buffer].arena.base;
}

/* Where the device's copy of what the host delivers lies; NULL: its bucket has no memory now. */
static inline void *zfi_gradient_staged(zfi_gradient_place_t place, uint32_t param) {
    if (place.buckets->n) {
        uint32_t number = place.buckets->of_param[param];
        unsigned char *flat = zfi_gradient_bucket(place, number);
        size_t elem = zfi_dtype_nbytes(place.buckets->all[number].dtype);
        return flat ? flat + place.buckets->offset[param] * elem : NULL;
    }
    return place.staging + place.param_base[param] * 4;
}

/* Several ranks: where the sums over ranks of a parameter begin, all of them or those of this rank's slices. */
static inline void *zfi_gradient_summed(zfi_gradient_place_t place, uint32_t param) {
    const zfi_opened_t *opened = place.reduction->opened;
    uint32_t number = place.buckets->of_param[param];
    size_t elem = zfi_dtype_nbytes(place.buckets->all[number].dtype);
    if (!opened)
        return zfi_gradient_staged(place, param);
    return place.staging + opened[number].kept_at + place.buckets->own_at[param] * elem;
}

/* What of a segment's gradient goes into its slot of a row's step, or into the memory that carries it; gradient: where
 * that of its parameter begins. */
static inline zfi_range_t zfi_gradient_to_slot(const zfi_plan_t *plan, const zfi_slots_t *slots,
                                               const zfi_step_row_t *row, const zfi_segment_t *segment,
                                               const void *gradient, size_t elem) {
    uint64_t from = plan->matrices[segment->matrix].grad_offset + segment->matrix_offset;
    const zfi_matrix_t *matrix = &plan->matrices[segment->matrix];
    unsigned char *to = matrix->carries
                            ? matrix->place.visible + segment->matrix_offset * elem
                            : zfi_row_slot(slots, &plan->chunks[segment->chunk], row) + segment->chunk_offset * elem;
    return (zfi_range_t){to, (const unsigned char *)gradient + from * elem, segment->n_elems * elem};
}

/* Whether a gradient's source is in memory that later deliveries write. */
static inline int zfi_gradient_is_staged(zfi_gradient_place_t place, uint32_t param, const void *source) {
    if (!place.buckets->n && !place.staging)
        return 0;
    return (source && source == zfi_gradient_staged(place, param)) ||
           (place.buckets->n && source == zfi_gradient_summed(place, param));
}
