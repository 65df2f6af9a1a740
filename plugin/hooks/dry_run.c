/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/dry_run.c - zf.plan/0: the memory plan of bind_params without an instance (contract in
 * zf/ext/draft/plan.h).
 *
 * A run is planned and laid out by the functions that bind_params uses, over an engine that was never opened: it has a
 * configuration, the table of its device and a number of ranks, and no device, thread or transport. */
#include <stdlib.h>

#include "base/error.h"
#include "base/struct.h"
#include "hooks/hooks.h"
#include "instance/memory.h"
#include "instance/residency.h"
#include "instance/rules.h"
#include "ranks/buffers.h"
#include "ranks/groups.h"
#include "ranks/ranks.h"
#include "ranks/shards.h"
#include "state/make.h"

/* ---- ranks that are only counted --------------------------------------------------------------------------------- */

struct zfi_comm {
    const zf_host_t *host;
    uint32_t n, numbers[ZFI_MAX_GROUPS]; /* groups, as the host numbers them; the first one is group 0 */
    zfi_member_t places[ZFI_MAX_GROUPS];
};

static zfi_member_t counted_place(const zfi_comm_t *comm, uint32_t index) {
    return comm->places[index < comm->n ? index : 0];
}

static zf_status_t counted_join(zfi_comm_t *comm, uint32_t group, uint32_t *out_index, zf_error_t *err) {
    zf_collectives_ext_t table;
    int is_offered;
    uint32_t i = 0;
    while (i < comm->n && comm->numbers[i] != group)
        i++;
    *out_index = i;
    if (i < comm->n)
        return ZF_OK;
    zf_status_t st = zfi_comm_read_table(comm->host, &table, &is_offered, err);
    if (st)
        return st;
    if (!is_offered || i == ZFI_MAX_GROUPS)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "plan",
                         is_offered ? "process group %u is one more than this version has room for"
                                    : "process group %u: the host offers no " ZF_EXT_COLLECTIVES
                                      ", whose `group` says how many ranks it has",
                         group);
    comm->numbers[comm->n] = group;
    zfi_member_t *place = &comm->places[comm->n++];
    st = table.group(table.ctx, group, &place->rank, &place->n_ranks, err);
    if (!st && place->rank >= place->n_ranks)
        st = zfi_error(err, ZF_ERR_RANKS, "plan", "process group %u: the host says rank %u of %u", group, place->rank,
                       place->n_ranks);
    return st;
}

static const zfi_comm_ops_t counted = {.name = "planned", .join = counted_join, .place = counted_place};

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* Elements of a cohort that this rank has. */
static uint64_t cohort_elems(const zfi_plan_t *plan, uint32_t cohort) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < plan->cohorts[cohort].n_chunks; i++) {
        const zfi_chunk_t *chunk = &plan->chunks[zfi_cohort_chunk(plan, cohort, i)];
        for (uint32_t s = 0; s < chunk->n_segments; s++)
            n += plan->segments[chunk->first_segment + s].n_elems;
    }
    return n;
}

static void fill_closes(const zfi_plan_t *plan, zf_plan_t *out) {
    for (uint32_t c = 0; c < plan->n_cohorts; c++) {
        uint64_t n = cohort_elems(plan, c);
        if (c == 0 || n < out->least_close_elems)
            out->least_close_elems = n;
        if (n > out->most_close_elems)
            out->most_close_elems = n;
    }
}

static void fill(const zfi_run_t *run, const zfi_policy_t *policy, zf_plan_t *out) {
    const zfi_layout_t *layout = &run->mem.layout;
    *out = (zf_plan_t){
        .struct_size = sizeof *out,
        .n_buckets = run->buckets.n,
        .update_interval = policy->interval,
        .publish_lag = policy->lag,
        .host_nbytes = layout->host_nbytes + zfi_memory_mirrors_nbytes(&run->ranks) + run->mem.room_nbytes +
                       zfi_residency_images_nbytes(run->engine, layout->device_nbytes),
        .host_exchange_nbytes = zfi_memory_mirrors_nbytes(&run->ranks) + run->mem.room_nbytes,
        .host_state_nbytes = layout->host_state_nbytes,
        .host_slots_nbytes = layout->host_slots_nbytes,
        .host_publish_nbytes = layout->host_publish_nbytes,
        .device_nbytes = layout->device_nbytes,
        .staging_nbytes = zfi_memory_staging_nbytes(&run->ranks),
        .sums_nbytes = zfi_memory_sums_nbytes(&run->ranks),
        .largest_bucket_nbytes = run->buckets.most_nbytes,
        .n_elems = layout->n_elems,
        .n_matrices = layout->n_matrices,
        .n_channels = layout->n_channels,
        .n_selected_elems = layout->n_selected_elems,
        .slots_peak_milli = layout->slots_peak_milli,
        .slots_mean_milli = layout->slots_mean_milli,
    };
    for (uint32_t i = 0; i < run->plan.n_matrices; i++)
        out->n_owned_elems += run->plan.matrices[i].own.n;
    if (run->plan.n_resident < run->plan.n_matrices)
        fill_closes(&run->plan, out);
}

static zf_status_t plan_run(zfi_engine_t *engine, zfi_param_t *params, uint32_t n, zf_plan_t *out, zf_error_t *err) {
    zfi_run_t *run = zfi_run_make(engine, params, n);
    if (!run)
        return zfi_error(err, ZF_ERR_MEMORY, "plan", "no memory for a plan of %u parameters", n);
    zf_status_t st = zfi_ranks_plan(&run->ranks, err);
    if (!st)
        st = zfi_run_plan(&run->ranks, err);
    if (!st) {
        zfi_ranks_plan_room(&run->ranks);
        zfi_memory_plan(run);
        fill(run, &engine->policy, out);
    }
    zfi_groups_free(&run->reduction.groups);
    zfi_buffers_free(&run->reduction);
    zfi_shards_free(&run->ranks);
    zfi_plan_free(&run->plan);
    zfi_buckets_free(&run->buckets);
    free(run);
    return st;
}

static zf_status_t plan_params(zfi_engine_t *engine, const zf_bind_args_t *args, zf_plan_t *out, zf_error_t *err) {
    zfi_param_t *params = NULL;
    zfi_rules_t rules = {0};
    zf_status_t st = zfi_params_build(args->decls, args->n_decls, args->decl_size, engine->device_type, &params, err);
    if (st)
        return st;
    if (zfi_is_grouped(engine))
        st = engine->comm_ops->join(engine->comm, engine->norm_group, &engine->norm_index, err);
    if (!st)
        st = zfi_groups_join(engine, &engine->config, params, args->n_decls, err);
    zfi_shards_mark(engine, engine->config.whole_nbytes, params, args->n_decls);
    if (!st)
        st = zfi_rules_take(engine, &engine->config, args, params, &rules, err);
    if (!st)
        st = plan_run(engine, params, args->n_decls, out, err);
    zfi_params_free(params, args->n_decls);
    zfi_rules_drop(engine, &rules);
    return st;
}

static zf_status_t plan(const zf_plan_args_t *given, zf_plan_t *out, zf_error_t *err) {
    zf_bind_args_t bind;
    zf_plan_args_t args;
    zf_plan_t result;
    zfi_comm_t ranks;
    zf_status_t st = ZFI_READ_CHAINED(&args, given, zf_plan_args_t, err);
    if (!st)
        st = zfi_struct_need_out(out, "zf_plan_t", "plan", err);
    if (!st && args.rank >= (args.n_ranks ? args.n_ranks : 1))
        st = zfi_error(err, ZF_ERR_ARGUMENT, "plan", "rank = %u of %u; need a rank below n_ranks", args.rank,
                       args.n_ranks ? args.n_ranks : 1);
    if (!st)
        st = zfi_reserved_check(args.reserved0, "zf_plan_args_t", err);
    if (!st)
        st = zfi_bind_read(args.bind, &bind, err);
    if (st)
        return st;
    zfi_engine_t *engine = calloc(1, sizeof *engine);
    if (!engine)
        return zfi_error(err, ZF_ERR_MEMORY, "plan", "no memory for a plan");
    ranks = (zfi_comm_t){.host = &engine->host_copy, .n = 1, .places = {{args.rank, args.n_ranks ? args.n_ranks : 1}}};
    engine->comm_ops = &counted;
    engine->comm = &ranks;
    st = zfi_create_configure(args.create, engine, err);
    if (!st)
        st = plan_params(engine, &bind, &result, err);
    if (!st)
        zfi_struct_write(out, &result, sizeof result);
    free(engine);
    return st;
}

const zf_plan_ext_t zfi_plan_ext = {.struct_size = sizeof zfi_plan_ext, .plan = plan};
