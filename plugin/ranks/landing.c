/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/landing.c - sums over ranks into slots (contract in landing.h). */
#include "ranks/landing.h"

#include <string.h>

#include "instance/gradient_place.h"
#include "ranks/mirror.h"

enum { MOST_RANGES = 64 };

/* Copies that are collected. */
typedef struct landing {
    zfi_engine_t *engine;
    zf_status_t st;
    uint32_t n;
    zfi_range_t ranges[MOST_RANGES];
} landing_t;

static void copy(landing_t *landing) {
    zfi_op_t op = zfi_op_down(landing->ranges, landing->n);
    if (landing->engine->ranks_stream && !landing->st)
        landing->st = zfi_enqueue(landing->engine, landing->engine->ranks_stream, &op, landing->n != 0);
    for (uint32_t i = 0; i < landing->n && !landing->engine->ranks_stream; i++)
        memcpy(landing->ranges[i].to, landing->ranges[i].from, landing->ranges[i].nbytes);
    landing->n = 0;
}

/* Lands what this rank keeps of a parameter. */
static void land_param(const zfi_ranks_t *ranks, const zfi_param_t *param, const zfi_step_row_t *row,
                       landing_t *landing) {
    const zfi_plan_t *plan = ranks->plan;
    const void *sums = zfi_mirrored(ranks, zfi_gradient_summed(zfi_gradient_place(ranks), param->id));
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    for (uint32_t i = param->first_ref; i < param->first_ref + param->n_refs; i++) {
        const zfi_segment_t *segment = &plan->segments[plan->param_segments[i]];
        if (landing->n == MOST_RANGES)
            copy(landing);
        landing->ranges[landing->n++] = zfi_gradient_to_slot(plan, ranks->slots, row, segment, sums, elem);
        atomic_fetch_add(&ranks->engine->count.down_grad_nbytes, segment->n_elems * elem);
    }
}

/* Slots that an earlier step had may still be read. */
static zf_status_t await_slots(zfi_engine_t *engine, uint64_t needs_job) {
    zfi_op_t op = zfi_op_wait(&engine->lines.jobs, needs_job, NULL);
    if (engine->ranks_stream)
        return zfi_enqueue(engine, engine->ranks_stream, &op, 1);
    return zfi_wait(engine, &engine->lines.jobs, needs_job, NULL);
}

zf_status_t zfi_landing(zfi_ranks_t *ranks, uint32_t bucket, uint64_t step, uint64_t needs_job) {
    const zfi_bucket_t *of = &ranks->buckets->all[bucket];
    landing_t landing = {.engine = ranks->engine};
    landing.st = await_slots(ranks->engine, needs_job);
    for (uint32_t i = 0; i < of->n_params && !landing.st; i++)
        land_param(ranks, &ranks->params[ranks->buckets->params[of->first + i]], zfi_row(ranks->rows, step), &landing);
    copy(&landing);
    return landing.st;
}
