/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/values_at_fetch.c - values of all ranks, published at fetch (contract in values_at_fetch.h).
 *
 * The up stream copies chunk by chunk as they are replayed. unfetched.n_left counts the segments of a publication that
 * are not copied; once none is left of all up to one, `up` says so, and workers may use its place of the host's ring
 * again. */
#include "ranks/values_at_fetch.h"

#include <string.h>

#include "instance/memory.h"
#include "ranks/ranks.h"
#include "ranks/value_pieces.h"
#include "ranks/values.h"

/* ---- sent -------------------------------------------------------------------------------------------------------- */

/* A bucket on its way into the value memory. */
typedef struct copying {
    unsigned char *to; /* where the next segment goes, in this rank's part */
    uint64_t job;      /* that the up stream has waited for */
} copying_t;

static const zfi_close_t *close_of(const zfi_clock_t *clock, uint32_t cohort) {
    const zfi_close_t *close = clock->due;
    while (close->cohort != cohort)
        close++;
    return close;
}

static void copy_segment(zfi_publishing_t *publishing, const zfi_segment_t *segment, copying_t *copying) {
    zfi_engine_t *engine = publishing->engine;
    const zfi_chunk_t *chunk = &publishing->plan->chunks[segment->chunk];
    const zfi_close_t *close = close_of(publishing->clock, chunk->cohort);
    uint64_t place = (close->first_job + chunk->place) % publishing->plan->max_close_chunks;
    uint64_t job = close->first_job + chunk->place + 1;
    size_t elem = zfi_dtype_nbytes(chunk->dtype);
    if (job > copying->job) {
        zfi_list_add(&engine->to_up, zfi_op_wait(&engine->lines.jobs, job, NULL));
        copying->job = job;
    }
    zfi_list_copy(&engine->to_up, ZFI_OP_UP, copying->to,
                  publishing->host->published + place * publishing->plan->publish_piece_nbytes +
                      segment->chunk_offset * elem,
                  segment->n_elems * elem);
    copying->to += segment->n_elems * elem;
    publishing->unfetched->n_left[place]--;
    atomic_fetch_add(&engine->count.up_publish_nbytes, segment->n_elems * elem);
}

/* This rank's slices of a bucket, which follow each other as its pieces do. */
static void copy_own(zfi_publishing_t *publishing, uint32_t number, copying_t *copying) {
    const zfi_bucket_t *bucket = &publishing->ranks->buckets->all[number];
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &publishing->side->params[publishing->ranks->buckets->params[bucket->first + i]];
        for (uint32_t s = param->first_ref; s < param->first_ref + param->n_refs; s++) {
            const zfi_segment_t *segment = &publishing->plan->segments[publishing->plan->param_segments[s]];
            if (publishing->ranks->reduction->is_published[publishing->plan->matrices[segment->matrix].cohort])
                copy_segment(publishing, segment, copying);
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

/* Where a rank's slice of a matrix lies in what it sends. */
static void note_piece(zfi_ranks_t *ranks, const zfi_value_piece_t *piece, void *arg) {
    (void)arg;
    ranks->reduction->value_at[(uint64_t)piece->matrix * ranks->buckets->most_ranks + piece->rank] = piece->at;
}

static void send_bucket(zfi_publishing_t *publishing, uint32_t number, uint64_t step, copying_t *copying) {
    zfi_engine_t *engine = publishing->engine;
    zfi_reduction_t *reduction = publishing->ranks->reduction;
    uint64_t n = zfi_value_pieces(publishing->ranks, number, note_piece, NULL);
    zf_status_t st;
    reduction->value_number[number] = 0;
    reduction->value_nbytes[number] = n * zfi_dtype_nbytes(publishing->ranks->buckets->all[number].value_dtype);
    if (!n)
        return;
    copying->to = zfi_values(publishing->ranks, number) +
                  publishing->ranks->buckets->all[number].place.rank * reduction->value_nbytes[number];
    copy_own(publishing, number, copying);
    end_bucket(publishing);
    st = zfi_ranks_share(publishing->ranks, &engine->to_up, number, step, reduction->value_nbytes[number],
                         &reduction->value_number[number]);
    if (st)
        zfi_list_fail(&engine->to_device, st);
}

void zfi_values_send(zfi_publishing_t *publishing, uint64_t step) {
    zfi_engine_t *engine = publishing->engine;
    copying_t copying = {0};
    if (!publishing->clock->n_due)
        return;
    for (uint32_t i = 0; i < publishing->clock->n_due; i++)
        publishing->ranks->reduction->is_published[publishing->clock->due[i].cohort] = 1;
    zfi_list_add(&engine->to_up, zfi_op_wait(&engine->lines.taken, engine->n_taken, NULL));
    for (uint32_t b = publishing->ranks->buckets->n; b-- > 0;)
        send_bucket(publishing, b, step, &copying);
}

/* ---- shown ------------------------------------------------------------------------------------------------------- */

/* The pieces of a matrix, of all ranks. */
static void show_matrix(zfi_publishing_t *publishing, uint32_t number, uint32_t bucket) {
    const zfi_matrix_t *matrix = &publishing->plan->matrices[number];
    const zfi_reduction_t *reduction = publishing->ranks->reduction;
    const zfi_buckets_t *buckets = publishing->ranks->buckets;
    size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
    zfi_place_args_t args = {.data = publishing->dev->data, .matrix = number, .keeps_selected = 1};
    args.turn = close_of(publishing->clock, matrix->cohort)->turn;
    for (uint32_t r = 0; r < buckets->all[bucket].place.n_ranks; r++) {
        args.first = matrix->slices[r].first;
        args.n = matrix->slices[r].n;
        args.bits = zfi_values(publishing->ranks, bucket) + r * reduction->value_nbytes[bucket] +
                    reduction->value_at[(uint64_t)number * buckets->most_ranks + r] * elem;
        if (args.n)
            zfi_list_add(&publishing->engine->to_device, zfi_op_launch(ZFI_KERNEL_WRITE_PLACE, &args, sizeof args));
    }
}

void zfi_values_show(zfi_publishing_t *publishing, uint32_t number) {
    zfi_engine_t *engine = publishing->engine;
    const zfi_matrix_t *matrix = &publishing->plan->matrices[number];
    uint32_t bucket = publishing->ranks->buckets->of_param[matrix->param];
    if (bucket == ZF_NO_ID || !publishing->ranks->reduction->value_number[bucket] ||
        !publishing->ranks->reduction->is_published[matrix->cohort])
        return;
    zfi_list_add(&engine->to_device,
                 zfi_op_wait(&engine->lines.packed, publishing->ranks->reduction->value_number[bucket],
                             &engine->count.stall_replay_ns));
    zfi_ranks_await_values(publishing->ranks, bucket);
    show_matrix(publishing, number, bucket);
}

void zfi_values_end(zfi_publishing_t *publishing) {
    zfi_engine_t *engine = publishing->engine;
    if (!publishing->clock->n_due)
        return;
    memset(publishing->ranks->reduction->is_published, 0, publishing->plan->n_cohorts);
    zfi_values_free_memory(publishing->engine);
    if (publishing->clock->next_job > zfi_timeline_now(&engine->lines.publish_due)) {
        zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.merged, publishing->clock->next_job));
        zfi_timeline_signal(&engine->lines.publish_due, publishing->clock->next_job);
    }
}
