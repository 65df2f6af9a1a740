/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/values_behind.c - values of closed windows, of all ranks, behind a step (contract in values_behind.h).
 *
 * The up stream copies chunk by chunk as they are replayed. unfetched.n_left counts the segments of a publication that
 * are not copied; once none is left of all up to one, `up` says so, and workers may use its place of the host's ring
 * again. */
#include "ranks/values_behind.h"

#include "instance/memory.h"
#include "ranks/ranks.h"
#include "ranks/value_pieces.h"
#include "ranks/values.h"

/* ---- sent -------------------------------------------------------------------------------------------------------- */

/* A bucket on its way into the value memory. */
typedef struct copying {
    unsigned char *to; /* on the device: this rank's part, or where it passes through */
    uint64_t end;      /* of that part, so far */
    uint64_t job;      /* that the up stream has waited for */
} copying_t;

static const zfi_close_t *close_of(const zfi_clock_t *clock, uint32_t cohort) {
    const zfi_close_t *close = clock->due;
    while (close->cohort != cohort)
        close++;
    return close;
}

/* Copies a segment of the slice of its matrix, which begins at element `at` of the part. */
static void copy_segment(zfi_publishing_t *publishing, const zfi_segment_t *segment, uint64_t at, copying_t *copying) {
    zfi_engine_t *engine = publishing->engine;
    const zfi_chunk_t *chunk = &publishing->plan->chunks[segment->chunk];
    const zfi_close_t *close = close_of(publishing->clock, chunk->cohort);
    uint64_t place = (close->first_job + chunk->place) % publishing->plan->max_close_chunks;
    uint64_t job = close->first_job + chunk->place + 1;
    uint64_t elem = zfi_dtype_nbytes(chunk->dtype), end;
    if (job > copying->job) {
        zfi_list_add(&engine->to_up, zfi_op_wait(&engine->lines.jobs, job, NULL));
        copying->job = job;
    }
    at += segment->matrix_offset - publishing->plan->matrices[segment->matrix].own.first;
    zfi_list_copy(&engine->to_up, ZFI_OP_UP, copying->to + at * elem,
                  publishing->host->published + place * publishing->plan->publish_piece_nbytes +
                      segment->chunk_offset * elem,
                  segment->n_elems * elem);
    end = (at + segment->n_elems) * elem;
    copying->end = end > copying->end ? end : copying->end;
    publishing->unfetched->n_left[place]--;
    atomic_fetch_add(&engine->count.up_publish_nbytes, segment->n_elems * elem);
}

/* This rank's slices of what was replayed of a bucket. */
static void copy_own(zfi_publishing_t *publishing, uint32_t number, copying_t *copying) {
    const zfi_ranks_t *ranks = publishing->ranks;
    const zfi_bucket_t *bucket = &ranks->buckets->all[number];
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &publishing->side->params[ranks->buckets->params[bucket->first + i]];
        for (uint32_t s = param->first_ref; s < param->first_ref + param->n_refs; s++) {
            const zfi_segment_t *segment = &publishing->plan->segments[publishing->plan->param_segments[s]];
            zfi_place_args_t args = zfi_value_pieces_of(ranks, segment->matrix);
            if (zfi_has_cohort(&ranks->reduction->published, publishing->plan->matrices[segment->matrix].cohort))
                copy_segment(publishing, segment, zfi_placed_at(&args, &args.table[bucket->place.rank]), copying);
        }
    }
}

/* Publications that are copied whole, one after the other. */
static void end_bucket(zfi_publishing_t *publishing) {
    zfi_engine_t *engine = publishing->engine;
    uint64_t before = publishing->unfetched->merged;
    while (publishing->unfetched->merged < publishing->clock->next_job &&
           publishing->unfetched->n_left[publishing->unfetched->merged % publishing->plan->max_close_chunks] == 0)
        publishing->unfetched->merged++;
    if (publishing->unfetched->merged > before)
        zfi_list_add(&engine->to_up, zfi_op_signal(&engine->lines.up, publishing->unfetched->merged));
}

static void send_bucket(zfi_publishing_t *publishing, uint32_t number, uint64_t step, copying_t *copying) {
    zfi_engine_t *engine = publishing->engine;
    const zfi_buckets_t *buckets = publishing->ranks->buckets;
    zfi_reduction_t *reduction = publishing->ranks->reduction;
    reduction->value_number[number] = 0;
    if (!reduction->value_nbytes[number])
        return;
    unsigned char *own = zfi_values(publishing->ranks, number) +
                         zfi_own_part(engine, &buckets->all[number]) * reduction->value_nbytes[number];
    copying->to = buckets->values_wait ? zfi_staged_values(publishing->ranks) : own;
    copying->end = 0;
    copy_own(publishing, number, copying);
    if (buckets->values_wait && copying->end) /* residents lie behind */
        zfi_list_copy(&engine->to_up, ZFI_OP_DOWN, own, copying->to, copying->end);
    end_bucket(publishing);
    zf_status_t st = zfi_ranks_share(publishing->ranks, &engine->to_up, number, step, reduction->value_nbytes[number],
                                     &reduction->value_number[number]);
    if (st)
        zfi_list_fail(&engine->to_device, st);
}

/* Residents' slices of all buckets, which the device has just updated, where they travel with these closes. */
static void fill_own(zfi_publishing_t *publishing, uint64_t step) {
    const zfi_ranks_t *ranks = publishing->ranks;
    zfi_list_t *list = &publishing->engine->to_device;
    int has_residents = zfi_has_cohort(&ranks->reduction->published, publishing->plan->n_cohorts);
    for (uint32_t b = ranks->buckets->n; b-- > 0;) {
        ranks->reduction->value_nbytes[b] = zfi_value_pieces_sent(ranks, b);
        zfi_place_args_t own = zfi_value_pieces_own(ranks, b, 1);
        if (has_residents && own.n)
            zfi_list_add(list, zfi_op_launch(ZFI_KERNEL_READ_PLACE, &own, sizeof own));
    }
    if (!has_residents)
        return;
    zfi_list_add(list, zfi_op_signal(&publishing->engine->lines.filled, step));
    zfi_list_add(&publishing->engine->to_up, zfi_op_wait(&publishing->engine->lines.filled, step, NULL));
}

void zfi_values_send(zfi_publishing_t *publishing, uint64_t step) {
    zfi_engine_t *engine = publishing->engine;
    copying_t copying = {0};
    if (!publishing->clock->n_due)
        return;
    for (uint32_t i = 0; i < publishing->clock->n_due; i++)
        zfi_values_note(publishing->engine, publishing->ranks->reduction, publishing->clock->due[i].cohort);
    zfi_list_add(&engine->to_up, zfi_op_wait(&engine->lines.taken, engine->n_taken, NULL));
    fill_own(publishing, step);
    for (uint32_t b = publishing->ranks->buckets->n; b-- > 0;)
        send_bucket(publishing, b, step, &copying);
}

/* ---- shown ------------------------------------------------------------------------------------------------------- */

/* The device stream waits for a bucket's values, of all ranks. */
static void await_values(zfi_publishing_t *publishing, uint32_t bucket) {
    zfi_engine_t *engine = publishing->engine;
    zfi_list_add(&engine->to_device,
                 zfi_op_wait(&engine->lines.packed, publishing->ranks->reduction->value_number[bucket],
                             &engine->count.stall_replay_ns));
    zfi_ranks_await_values(publishing->ranks, bucket);
}

/* The pieces of the matrix, of all ranks; of a resident one those of the others. */
void zfi_values_show(zfi_publishing_t *publishing, uint32_t number) {
    zfi_engine_t *engine = publishing->engine;
    const zfi_matrix_t *matrix = &publishing->plan->matrices[number];
    uint32_t bucket = publishing->ranks->buckets->of_param[matrix->param];
    if (bucket == ZF_NO_ID || !publishing->ranks->reduction->value_number[bucket] ||
        !zfi_has_cohort(&publishing->ranks->reduction->published, zfi_listed_cohort(publishing->plan, matrix)))
        return;
    await_values(publishing, bucket);
    zfi_place_args_t args = zfi_value_pieces_of(publishing->ranks, number);
    const zfi_close_t *close = close_of(publishing->clock, zfi_listed_cohort(publishing->plan, matrix));
    args.keeps_selected = !matrix->is_resident && !close->publishes_all;
    args.turn = close->turn;
    if (matrix->is_resident)
        args.skipped = zfi_own_part(engine, &publishing->ranks->buckets->all[bucket]);
    zfi_list_add(&engine->to_device, zfi_op_launch(ZFI_KERNEL_WRITE_PLACE, &args, sizeof args));
}

/* Those of a bucket that are not dropped, one by one. Returns how many are dropped. */
static uint32_t show_left(zfi_publishing_t *publishing, const zfi_bucket_t *bucket, int is_counted) {
    const uint32_t *params = publishing->ranks->buckets->params + bucket->first;
    uint32_t n = 0;
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &publishing->side->params[params[i]];
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++)
            if (publishing->unfetched->is_done[m])
                n++;
            else if (!is_counted)
                zfi_values_show(publishing, m);
    }
    return n;
}

void zfi_values_show_all(zfi_publishing_t *publishing) {
    zfi_ranks_t *ranks = publishing->ranks;
    for (uint32_t b = ranks->buckets->n; publishing->clock->n_due && b-- > 0;) {
        if (show_left(publishing, &ranks->buckets->all[b], 1)) {
            show_left(publishing, &ranks->buckets->all[b], 0);
        } else if (ranks->reduction->value_number[b]) {
            await_values(publishing, b);
            zfi_place_args_t args = zfi_value_pieces(ranks, b);
            args.keeps_selected = 1;
            args.turn = publishing->clock->due[0].turn;
            zfi_list_add(&publishing->engine->to_device, zfi_op_launch(ZFI_KERNEL_WRITE_PLACE, &args, sizeof args));
        }
    }
}

void zfi_values_end(zfi_publishing_t *publishing) {
    zfi_engine_t *engine = publishing->engine;
    if (!publishing->clock->n_due)
        return;
    publishing->ranks->reduction->published = (zfi_cohorts_t){0};
    zfi_values_free_memory(publishing->engine);
    if (publishing->clock->next_job > zfi_timeline_now(&engine->lines.publish_due)) {
        zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.merged, publishing->clock->next_job));
        zfi_timeline_signal(&engine->lines.publish_due, publishing->clock->next_job);
    }
}
