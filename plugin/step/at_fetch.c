/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/at_fetch.c - publishing at fetch (contract in publisher.h; model in unfetched.h).
 *
 * What is left of each publication is counted in segments. Once none is left of all publications up to one, the device
 * stream signals `merged` behind the last of their merges, and the up stream may reuse their places of the ring.
 * Cost: per fetch one launch for each bucket and close that what is fetched has a part in; none where nothing waits. */
#include "step/publish.h"
#include "step/publisher.h"
#include "step/unfetched.h"

/* Part of a close: its chunks [at, at + n), of which segments [first_segment, end_segment) count. */
typedef struct part {
    const zfi_close_t *close;
    uint32_t at, n;
    uint32_t first_segment, end_segment;
} part_t;

static void close_window(zfi_publishing_t *publishing, const zfi_close_t *close) {
    zfi_publish_upload(publishing, close);
    if (close->n_chunks)
        zfi_unfetched_keep(publishing, close);
}

/* ---- what is left ------------------------------------------------------------------------------------------------ */

static uint32_t n_common(const zfi_chunk_t *chunk, const part_t *part) {
    uint32_t first = chunk->first_segment, end = chunk->first_segment + chunk->n_segments;
    first = first > part->first_segment ? first : part->first_segment;
    end = end < part->end_segment ? end : part->end_segment;
    return end > first ? end - first : 0;
}

/* Counts a part as merged. Returns the publication below which all are, if that has risen, else 0. */
static uint64_t count_down(zfi_publishing_t *publishing, const part_t *part) {
    const zfi_plan_t *plan = publishing->plan;
    uint64_t before = publishing->unfetched->merged;
    uint32_t *n_left = publishing->unfetched->n_left;
    for (uint32_t i = part->at; i < part->at + part->n; i++)
        n_left[(part->close->first_job + i) % plan->max_close_chunks] -=
            n_common(&plan->chunks[zfi_cohort_chunk(plan, part->close->cohort, i)], part);
    while (publishing->unfetched->merged < publishing->clock->next_job &&
           n_left[publishing->unfetched->merged % plan->max_close_chunks] == 0)
        publishing->unfetched->merged++;
    return publishing->unfetched->merged > before ? publishing->unfetched->merged : 0;
}

/* What merges a part is collected: counts it, and tells the up stream. */
static void end_part(zfi_publishing_t *publishing, const part_t *part) {
    zfi_engine_t *engine = publishing->engine;
    uint64_t merged = count_down(publishing, part);
    if (!merged)
        return;
    zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.merged, merged));
    zfi_timeline_signal(&engine->lines.publish_due, merged);
}

/* ---- merge ------------------------------------------------------------------------------------------------------- */

static zfi_merge_args_t merge_args(const zfi_publishing_t *publishing, const part_t *part) {
    return (zfi_merge_args_t){.data = publishing->dev->data,
                              .staged = publishing->dev->ring,
                              .place_nbytes = publishing->plan->publish_piece_nbytes,
                              .first_number = part->close->first_job + part->at,
                              .n_places = publishing->plan->ring_chunks,
                              .first = publishing->plan->cohorts[part->close->cohort].first_chunk + part->at,
                              .n = part->n,
                              .takes_all = part->close->publishes_all,
                              .turn = part->close->turn,
                              .first_segment = part->first_segment,
                              .end_segment = part->end_segment};
}

/* From the ring, where the bucket that ends with publication `end` - 1 is or will be without another merge. */
static void merge_from_ring(zfi_publishing_t *publishing, const part_t *part, uint64_t end) {
    zfi_engine_t *engine = publishing->engine;
    zfi_merge_args_t args = merge_args(publishing, part);
    zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.up, end, &engine->count.stall_replay_ns));
    zfi_list_add(&engine->to_device, zfi_op_launch(ZFI_KERNEL_MERGE, &args, sizeof args));
    end_part(publishing, part);
}

/* Out of order: chunk by chunk from the host's memory. It stays there until the ring has had it. */
static void merge_from_host(zfi_publishing_t *publishing, const part_t *part) {
    zfi_engine_t *engine = publishing->engine;
    zfi_list_t *list = &engine->to_device;
    const zfi_plan_t *plan = publishing->plan;
    for (uint32_t i = part->at; i < part->at + part->n; i++) {
        const zfi_chunk_t *chunk = &plan->chunks[zfi_cohort_chunk(plan, part->close->cohort, i)];
        uint64_t p = part->close->first_job + i, nbytes = chunk->n_elems * zfi_dtype_nbytes(chunk->dtype);
        uint64_t job = part->close->first_job + i + 1;
        part_t one = {part->close, i, 1, part->first_segment, part->end_segment};
        zfi_merge_args_t args = merge_args(publishing, &one);
        args.staged = publishing->dev->scratch;
        args.n_places = 1;
        args.place_nbytes = 0;
        zfi_list_add(list, zfi_op_wait(&engine->lines.jobs, job, &engine->count.stall_replay_ns));
        zfi_list_copy(list, ZFI_OP_UP, publishing->dev->scratch,
                      publishing->host->published + p % plan->n_value_places * plan->publish_piece_nbytes, nbytes);
        zfi_list_add(list, zfi_op_launch(ZFI_KERNEL_MERGE, &args, sizeof args));
        atomic_fetch_add(&engine->count.up_publish_nbytes, nbytes);
        end_part(publishing, &one);
    }
}

/* Chunks [at, at + n) of a close: where workers show, once they have; else bucket by bucket as they travel. */
static void merge_part(zfi_publishing_t *publishing, const part_t *part) {
    if (publishing->host->shows) {
        zfi_engine_t *engine = publishing->engine;
        uint64_t job = part->close->first_job + part->at + part->n;
        zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.jobs, job, &engine->count.stall_replay_ns));
        end_part(publishing, part);
        return;
    }
    uint32_t end = part->at + part->n;
    for (uint32_t at = part->at, next; at < end; at = next) {
        uint32_t bucket_end = zfi_publish_bucket_end(publishing->plan, part->close, at);
        uint64_t published = part->close->first_job + bucket_end;
        next = bucket_end < end ? bucket_end : end;
        part_t one = {part->close, at, next - at, part->first_segment, part->end_segment};
        if (published <= publishing->unfetched->merged + publishing->plan->ring_chunks)
            merge_from_ring(publishing, &one, published);
        else
            merge_from_host(publishing, &one);
    }
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

/* Matrices [first, end) in one close; n = 0 where they have no part in it. */
static part_t part_of(const zfi_publishing_t *publishing, const zfi_close_t *close, uint32_t first, uint32_t end) {
    const zfi_plan_t *plan = publishing->plan;
    const uint32_t *chunks = plan->cohort_chunks + plan->cohorts[close->cohort].first_chunk;
    part_t part = {.close = close,
                   .first_segment = zfi_first_segment(plan->segments, plan->n_segments, first),
                   .end_segment = zfi_first_segment(plan->segments, plan->n_segments, end)};
    if (part.first_segment == part.end_segment)
        return part;
    part.at = zfi_first_of(chunks, 1, close->n_chunks, plan->segments[part.first_segment].chunk);
    part.n = zfi_first_of(chunks, 1, close->n_chunks, plan->segments[part.end_segment - 1].chunk + 1) - part.at;
    return part;
}

static void show(zfi_publishing_t *publishing, uint32_t first, uint32_t end) {
    for (uint32_t i = 0; i < publishing->clock->n_due; i++) {
        part_t part = part_of(publishing, &publishing->clock->due[i], first, end);
        merge_part(publishing, &part);
    }
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void end(zfi_publishing_t *publishing, uint64_t t) { (void)publishing, (void)t; }

static zf_status_t fetch(zfi_publishing_t *publishing, uint32_t first, uint32_t end) {
    return zfi_unfetched_show(publishing, first, end, 0, show);
}

static zf_status_t rest(zfi_publishing_t *publishing) {
    zf_status_t st = zfi_unfetched_show(publishing, 0, publishing->plan->n_matrices, 1, show);
    publishing->clock->n_due = 0;
    return st;
}

static void drop_matrix(zfi_publishing_t *publishing, uint32_t number) {
    for (uint32_t i = 0; i < publishing->clock->n_due; i++) {
        part_t part = part_of(publishing, &publishing->clock->due[i], number, number + 1);
        end_part(publishing, &part);
    }
    publishing->unfetched->is_done[number] = 1;
}

static zf_status_t drop(zfi_publishing_t *publishing, uint32_t first, uint32_t end) {
    if (!publishing->clock->n_due)
        return ZF_OK;
    for (uint32_t i = first; i < end; i++)
        if (!publishing->unfetched->is_done[i])
            drop_matrix(publishing, i);
    return zfi_send(publishing->engine);
}

const zfi_publisher_t zfi_publisher_at_fetch = {close_window, end, zfi_publish_nothing, fetch, rest, drop};
