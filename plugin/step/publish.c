/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/publish.c - published values (contract in publish.h).
 *
 * A bucket is plan.bucket_chunks neighbouring chunks of one close. The device's ring holds plan.ring_chunks chunks, at
 * least two buckets, so that one is copied while the other is merged. */
#include "step/publish.h"

#include "instance/device_memory.h"
#include "ranks/values.h"

typedef struct bucket {
    uint64_t first, end; /* publications */
    uint32_t at, n;      /* chunks of the close */
} bucket_t;

uint32_t zfi_publish_bucket_end(const zfi_plan_t *plan, const zfi_close_t *close, uint32_t at) {
    uint32_t end = (at / plan->bucket_chunks + 1) * plan->bucket_chunks;
    return end < close->n_chunks ? end : close->n_chunks;
}

/* The bucket that begins with chunk `at` of a close. */
static bucket_t bucket_at(const zfi_plan_t *plan, const zfi_close_t *close, uint32_t at) {
    uint32_t n = zfi_publish_bucket_end(plan, close, at) - at;
    return (bucket_t){close->first_job + at, close->first_job + at + n, at, n};
}

/* ---- up ---------------------------------------------------------------------------------------------------------- */

static void copy_bucket(zfi_publishing_t *publishing, const zfi_close_t *close, const bucket_t *bucket) {
    zfi_engine_t *engine = publishing->engine;
    zfi_list_t *up = &engine->to_up;
    const zfi_plan_t *plan = publishing->plan;
    uint64_t room = plan->ring_chunks, piece = plan->publish_piece_nbytes, nbytes = 0;
    uint64_t to = bucket->first % plan->ring_chunks, from = bucket->first % plan->n_value_places;
    if (bucket->end > room) { /* the ring's places are free once their former values are visible */
        zfi_list_add(up, zfi_op_wait_for_host(&engine->lines.publish_due, bucket->end - room));
        zfi_list_add(up, zfi_op_wait(&engine->lines.merged, bucket->end - room, NULL));
    }
    for (uint32_t i = 0; i < bucket->n; i++) {
        const zfi_chunk_t *chunk = &plan->chunks[zfi_cohort_chunk(plan, close->cohort, bucket->at + i)];
        uint64_t n = chunk->n_elems * zfi_dtype_nbytes(chunk->dtype);
        zfi_list_copy(up, ZFI_OP_UP, publishing->dev->ring + to * piece, publishing->host->published + from * piece, n);
        to = to + 1 < plan->ring_chunks ? to + 1 : 0;
        from = from + 1 < plan->n_value_places ? from + 1 : 0;
        nbytes += n;
    }
    atomic_fetch_add(&engine->count.up_publish_nbytes, nbytes);
}

static void upload_bucket(zfi_publishing_t *publishing, const zfi_close_t *close, const bucket_t *bucket) {
    zfi_list_t *up = &publishing->engine->to_up;
    zfi_timelines_t *lines = &publishing->engine->lines;
    zfi_list_add(up, zfi_op_wait(&lines->jobs, close->first_job + bucket->at + bucket->n, NULL));
    if (!publishing->host->shows)
        copy_bucket(publishing, close, bucket);
    zfi_list_add(up, zfi_op_signal(&lines->up, bucket->end));
}

void zfi_publish_upload(zfi_publishing_t *publishing, const zfi_close_t *close) {
    for (uint32_t at = 0; at < close->n_chunks;) {
        bucket_t bucket = bucket_at(publishing->plan, close, at);
        upload_bucket(publishing, close, &bucket);
        at += bucket.n;
    }
}

uint64_t zfi_publish_at_rest(const zfi_publishing_t *publishing) {
    uint64_t room = zfi_timeline_now(&publishing->engine->lines.publish_due) + publishing->plan->ring_chunks;
    for (uint32_t i = 0; i < publishing->clock->n_due; i++) {
        const zfi_close_t *close = &publishing->clock->due[i];
        for (uint32_t at = 0; at < close->n_chunks;) {
            bucket_t bucket = bucket_at(publishing->plan, close, at);
            if (bucket.end > room)
                return bucket.first;
            at += bucket.n;
        }
    }
    return publishing->clock->next_job;
}

/* ---- merge ------------------------------------------------------------------------------------------------------- */

static void merge_bucket(zfi_publishing_t *publishing, const zfi_close_t *close, const bucket_t *bucket) {
    zfi_engine_t *engine = publishing->engine;
    zfi_merge_args_t args = {.data = publishing->dev->data,
                             .staged = publishing->dev->ring,
                             .place_nbytes = publishing->plan->publish_piece_nbytes,
                             .first_number = bucket->first,
                             .n_places = publishing->plan->ring_chunks,
                             .first = publishing->plan->cohorts[close->cohort].first_chunk + bucket->at,
                             .n = bucket->n,
                             .takes_all = close->publishes_all,
                             .all_open = close->is_warm_up,
                             .turn = publishing->clock->n_choices & 1,
                             .end_segment = publishing->plan->n_segments};
    zfi_timeline_signal(&engine->lines.publish_due, bucket->end); /* `up` goes on, which a full list may wait for */
    zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.up, bucket->end, &engine->count.stall_replay_ns));
    if (!publishing->host->shows)
        zfi_list_add(&engine->to_device, zfi_op_launch(ZFI_KERNEL_MERGE, &args, sizeof args));
    zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.merged, bucket->end));
}

/* ---- visible ----------------------------------------------------------------------------------------------------- */

void zfi_publish_note(zfi_engine_t *engine, zfi_writes_t *writes, uint64_t *out_mark) {
    zfi_list_mark(&engine->to_device, out_mark);
    zfi_list_mark(&engine->to_device, &writes->any);
}

void zfi_publish_now(zfi_publishing_t *publishing, const zfi_close_t *close) {
    zfi_values_note(publishing->engine, publishing->ranks->reduction, close->cohort);
    for (uint32_t at = 0; at < close->n_chunks;) {
        bucket_t bucket = bucket_at(publishing->plan, close, at);
        merge_bucket(publishing, close, &bucket);
        at += bucket.n;
    }
    zfi_publish_note(publishing->engine, publishing->writes, &publishing->writes->publish[close->cohort]);
}

void zfi_publish_due(zfi_publishing_t *publishing) {
    for (uint32_t i = 0; i < publishing->clock->n_due; i++)
        zfi_publish_now(publishing, &publishing->clock->due[i]);
    publishing->clock->n_due = 0;
}

void zfi_publish_nothing(zfi_publishing_t *publishing) { (void)publishing; }

void zfi_publish_share(zfi_publishing_t *publishing, uint64_t step) {
    if (publishing->plan->n_resident) /* this rank has new values of its slices */
        zfi_values_note(publishing->engine, publishing->ranks->reduction, publishing->plan->n_cohorts);
    if (!zfi_values_share(publishing->ranks, step))
        return;
    for (uint32_t c = 0; c < publishing->plan->n_cohorts; c++)
        zfi_publish_note(publishing->engine, publishing->writes, &publishing->writes->publish[c]);
}

zf_status_t zfi_publish_share_all(zfi_ranks_t *ranks, uint64_t step) {
    for (uint32_t c = 0; c <= ranks->plan->n_cohorts; c++)
        zfi_values_note(ranks->engine, ranks->reduction, c);
    return zfi_values_share(ranks, step) ? zfi_device_run(ranks->engine, NULL, 0) : ZF_OK;
}

/* ---- dropped ----------------------------------------------------------------------------------------------------- */

/* What is published of matrices [first, first + n) counts from publication `from` on. */
static void set_first(zfi_publishing_t *publishing, uint32_t first, uint32_t n, uint64_t from) {
    uint64_t *host = publishing->clock->skip_publish_below + first;
    for (uint32_t i = 0; i < n; i++)
        host[i] = from;
    zfi_list_end_copy(&publishing->engine->to_device); /* the one before may be of the same matrices */
    if (n)
        zfi_list_copy(&publishing->engine->to_device, ZFI_OP_UP,
                      zfi_device_table(publishing->dev->head.merge_from + first), host, n * sizeof *host);
}

void zfi_publish_drop(zfi_publishing_t *publishing, uint32_t first, uint32_t n) {
    set_first(publishing, first, n, publishing->clock->next_job);
}

void zfi_publish_keep_all(zfi_publishing_t *publishing) { set_first(publishing, 0, publishing->plan->n_matrices, 0); }
