/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/values.c - published values of all ranks (contract in values.h). */
#include "ranks/values.h"

#include "instance/memory.h"
#include "ranks/ranks.h"
#include "ranks/value_pieces.h"

void zfi_values_note(zfi_engine_t *engine, zfi_reduction_t *reduction, uint32_t cohort) {
    if (zfi_is_sharded(engine))
        reduction->published.bits[cohort / 64] |= 1ull << cohort % 64;
}

/* This rank's slices from what the model reads into its part of the bucket's memory, and on their way. */
static void send(zfi_ranks_t *ranks, uint32_t number, uint64_t step) {
    zfi_reduction_t *reduction = ranks->reduction;
    reduction->value_number[number] = 0;
    reduction->value_nbytes[number] = zfi_value_pieces_sent(ranks, number);
    if (!reduction->value_nbytes[number])
        return;
    zfi_place_args_t own = zfi_value_pieces_own(ranks, number, 0);
    zfi_list_add(&ranks->engine->to_device, zfi_op_launch(ZFI_KERNEL_READ_PLACE, &own, sizeof own));
    zf_status_t st = zfi_ranks_share(ranks, &ranks->engine->to_device, number, step, reduction->value_nbytes[number],
                                     &reduction->value_number[number]);
    if (st)
        zfi_list_fail(&ranks->engine->to_device, st);
}

/* Those of the others from there. */
static void show(zfi_ranks_t *ranks, uint32_t number) {
    if (!ranks->reduction->value_number[number])
        return;
    zfi_ranks_await_values(ranks, number);
    zfi_place_args_t others = zfi_value_pieces(ranks, number);
    others.skipped = zfi_own_part(ranks->engine, &ranks->buckets->all[number]);
    zfi_list_add(&ranks->engine->to_device, zfi_op_launch(ZFI_KERNEL_WRITE_PLACE, &others, sizeof others));
}

void zfi_values_free_memory(zfi_engine_t *engine) {
    if (engine->n_taken < engine->n_shared)
        zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.taken, engine->n_shared));
    engine->n_taken = engine->n_shared;
}

int zfi_values_share(zfi_ranks_t *ranks, uint64_t step) {
    uint32_t n = ranks->buckets->n, n_places = ranks->buckets->n_value_places;
    if (!zfi_is_sharded(ranks->engine) || !(ranks->reduction->published.bits[0] | ranks->reduction->published.bits[1]))
        return 0;
    for (uint32_t b = n; b-- > 0;) {
        if (b + n_places < n) /* whose memory it takes */
            show(ranks, b + n_places);
        send(ranks, b, step);
    }
    for (uint32_t b = n_places < n ? n_places : n; b-- > 0;)
        show(ranks, b);
    zfi_values_free_memory(ranks->engine);
    ranks->reduction->published = (zfi_cohorts_t){0};
    return 1;
}
