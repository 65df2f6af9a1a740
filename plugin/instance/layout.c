/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/layout.c - what lies in the two arenas of a run (contract in layout.h). */
#include "instance/layout.h"

#include "instance/tables.h"

enum { LINE_NBYTES = 64 };

static uint64_t max_channels(const zfi_plan_t *plan) {
    uint64_t most = 1;
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        if (plan->matrices[i].n_channels > most)
            most = plan->matrices[i].n_channels;
    return most;
}

static uint64_t largest_matrix(const zfi_plan_t *plan) {
    uint64_t most = 1;
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        if (plan->matrices[i].rows * plan->matrices[i].cols > most)
            most = plan->matrices[i].rows * plan->matrices[i].cols;
    return most;
}

/* Counts of entering channels, where each selected one is counted by itself. */
static uint32_t *take_entering_counts(const zfi_data_t *head, const zfi_plan_t *plan, zfi_arena_t *arena) {
    return head->counts_per_channel ? zfi_arena_take(arena, plan->n_index, sizeof(uint32_t)) : NULL;
}

/* Counts of updates on the device. */
static uint64_t n_counts(const zfi_data_t *head, const zfi_plan_t *plan) {
    return head->counts_per_channel ? plan->n_index : plan->n_matrices;
}

/* The length of arrays that only resident matrices need. */
static uint64_t n_of_resident(const zfi_plan_t *plan, uint64_t n) { return plan->n_resident ? n : 0; }

/* Bytes of a moment, or NULL where the rules have none. */
static void *take_moment(uint32_t n_moments, zfi_arena_t *arena, zfi_moment_t which, uint64_t nbytes) {
    return (uint32_t)which < n_moments ? zfi_arena_take(arena, nbytes, 1) : NULL;
}

/* Bytes of a chunk's moment, which the next one's follows. Chunks begin where a cache line does. */
static uint64_t moment_room(const zfi_chunk_t *chunk, zfi_moment_t which) {
    uint64_t nbytes = zfi_moment_nbytes(chunk->moments, which, chunk->n_elems); /* of runs it has whole ones */
    return (nbytes + LINE_NBYTES - 1) / LINE_NBYTES * LINE_NBYTES;
}

/* Each with room for one of the chunks and its values, at equal distances, so that chunks of every size find theirs. */
static void lay_out_spares(const zfi_plan_t *plan, uint32_t n_moments, zfi_host_state_t *hs, zfi_arena_t *arena) {
    hs->spares = zfi_arena_take(arena, hs->n_spares, sizeof *hs->spares);
    for (uint32_t i = 0; i < hs->n_spares; i++) {
        const zfi_chunk_t *chunk = &plan->chunks[(uint64_t)i * plan->n_chunks / hs->n_spares];
        zfi_chunk_state_t spare = {
            .n_room = chunk->n_elems, .m_room = moment_room(chunk, ZFI_M), .v_room = moment_room(chunk, ZFI_V)};
        spare.visible_room = chunk->n_elems * zfi_dtype_nbytes(chunk->dtype);
        spare.w = zfi_arena_take(arena, spare.n_room, sizeof(float));
        spare.m = take_moment(n_moments, arena, ZFI_M, spare.m_room);
        spare.v = take_moment(n_moments, arena, ZFI_V, spare.v_room);
        spare.visible = zfi_arena_take(arena, spare.visible_room, 1);
        if (hs->spares)
            hs->spares[i] = spare;
    }
}

static uint64_t spares_nbytes(const zfi_plan_t *plan, uint32_t n_moments, uint32_t n) {
    zfi_host_state_t counted = {.n_spares = n};
    zfi_arena_t arena = {0};
    lay_out_spares(plan, n_moments, &counted, &arena);
    return arena.used_nbytes;
}

/* Room for early replays (replay/early.h): of all that closes at a step, within [host] early_mib. Where published
 * values lag, replays have a whole step without. */
uint32_t zfi_layout_most_spares(zfi_engine_t *engine, const zfi_plan_t *plan, uint32_t n_moments) {
    const zfi_config_t *config = &engine->config;
    uint64_t of = config->update_interval, budget = (uint64_t)config->early_mib << 20, nbytes;
    if (config->deferred != ZFI_DEFERRED_REPLAY || config->is_interval_auto || config->publish_lag != 0)
        return 0;
    uint32_t n = (uint32_t)((plan->n_chunks + of - 1) / of);
    if (config->early_mib == ZFI_EARLY_MIB_AUTO || (nbytes = spares_nbytes(plan, n_moments, n)) <= budget)
        return n;
    n = (uint32_t)((double)n * (double)budget / (double)nbytes);
    while (n && spares_nbytes(plan, n_moments, n) > budget)
        n--;
    return n;
}

/* The state of chunks in their order. */
static void lay_out_chunks(const zfi_plan_t *plan, uint32_t n_moments, zfi_host_state_t *hs, zfi_arena_t *arena) {
    uint64_t m_nbytes = 0, v_nbytes = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        m_nbytes += moment_room(&plan->chunks[i], ZFI_M);
        v_nbytes += moment_room(&plan->chunks[i], ZFI_V);
    }
    float *w = zfi_arena_take(arena, plan->n_state_elems, sizeof(float));
    unsigned char *m = take_moment(n_moments, arena, ZFI_M, m_nbytes);
    unsigned char *v = take_moment(n_moments, arena, ZFI_V, v_nbytes);
    hs->chunks = zfi_arena_take(arena, plan->n_chunks, sizeof *hs->chunks);
    for (uint32_t i = 0; i < plan->n_chunks && hs->chunks; i++) {
        const zfi_chunk_t *chunk = &plan->chunks[i];
        zfi_chunk_state_t state = {.w = w + chunk->state_base,
                                   .m = m,
                                   .v = v,
                                   .n_room = chunk->n_elems,
                                   .m_room = moment_room(chunk, ZFI_M),
                                   .v_room = moment_room(chunk, ZFI_V)};
        m = m ? m + state.m_room : NULL;
        v = v ? v + state.v_room : NULL;
        hs->chunks[i] = state;
    }
}

static void lay_out_rows(zfi_run_t *run, zfi_arena_t *arena) {
    uint32_t n_cohorts = run->plan.n_cohorts;
    run->dev.n_rows = (uint32_t)run->slots.interval + ZFI_MAX_STEPS_AHEAD + 16;
    run->dev.n_groups = run->n_groups;
    run->dev.input_nbytes = run->n_groups * sizeof(zfi_hyper_t) + (run->n_params + 7u) / 8 * 8;
    run->rows.n = run->dev.n_rows;
    run->rows.n_params = run->n_params;
    run->rows.all = zfi_arena_take(arena, run->rows.n, sizeof *run->rows.all);
    for (uint32_t i = 0; i < run->rows.n; i++) {
        zfi_step_row_t scratch, *row = run->rows.all ? &run->rows.all[i] : &scratch;
        row->input = zfi_arena_take(arena, run->dev.input_nbytes, 1);
        row->hyper = (void *)row->input;
        row->present = row->input ? (uint8_t *)(row->hyper + run->n_groups) : NULL;
        row->cohort_slot = zfi_arena_take(arena, n_cohorts, sizeof *row->cohort_slot);
        row->cohort_table = zfi_arena_take(arena, n_cohorts, sizeof *row->cohort_table);
        row->cohort_first = zfi_arena_take(arena, n_cohorts, sizeof *row->cohort_first);
        row->pieces = zfi_arena_take(arena, (uint64_t)n_cohorts * run->plan.n_layers, sizeof *row->pieces);
        row->chooses = zfi_arena_take(arena, n_cohorts, 1);
        row->closes = zfi_arena_take(arena, n_cohorts, 1);
    }
}

/* Bytes of masks. Where no channel is ever chosen there are no masks, and nothing enters. */
static uint64_t n_masked(const zfi_engine_t *engine, const zfi_plan_t *plan) {
    return engine->policy.selects ? plan->n_channels : 0;
}
static uint32_t n_enter_blocks(const zfi_engine_t *engine) { return engine->policy.selects ? ZFI_ENTER_BLOCKS : 0; }

/* A choice ranks channels in the memory for exchanges at rest, when no choice is made: a matrix has as many elements as
 * channels at least, and an element has 8 bytes there, a channel needs 5. */
static void lay_out_selection(zfi_run_t *run, zfi_arena_t *arena) {
    const zfi_plan_t *plan = &run->plan;
    zfi_selection_t *sel = &run->sel;
    sel->records = zfi_arena_take(arena, ZFI_RECORD_DEPTH * plan->record_sums, sizeof(double));
    sel->importance = zfi_arena_take(arena, plan->n_sums, sizeof(double));
    sel->index = zfi_arena_take(arena, plan->n_index, sizeof *sel->index);
    sel->n_masked = n_masked(run->engine, &run->plan);
    sel->mask = zfi_arena_take(arena, sel->n_masked, 1);
    sel->enter_pos = zfi_arena_take(arena, plan->n_index, sizeof *sel->enter_pos);
    sel->enter_channel = zfi_arena_take(arena, plan->n_index, sizeof *sel->enter_channel);
    sel->enter_n = take_entering_counts(&run->dev.head, &run->plan, arena);
    sel->n_enter = zfi_arena_take(arena, plan->n_matrices, sizeof *sel->n_enter);
    sel->order = run->dev.exchange ? (uint32_t *)(void *)run->dev.exchange : NULL;
    sel->moves = sel->order ? (uint8_t *)(sel->order + max_channels(plan)) : NULL;
    if (run->engine->config.is_interval_auto) {
        sel->deferred = zfi_arena_take(arena, plan->n_matrices, sizeof *sel->deferred);
        sel->selected = zfi_arena_take(arena, plan->n_matrices, sizeof *sel->selected);
        sel->choice_step = zfi_arena_take(arena, plan->n_cohorts, sizeof *sel->choice_step);
        sel->n_ready = zfi_arena_take(arena, plan->n_cohorts, sizeof *sel->n_ready);
        for (int i = 0; i < ZFI_READY_DEPTH; i++)
            sel->ready[i] = zfi_arena_take(arena, plan->n_cohorts, 1);
    }
    sel->staging = zfi_arena_take(arena, n_enter_blocks(run->engine), run->dev.enter_block_nbytes);
}

static void lay_out_clocks(zfi_run_t *run, zfi_arena_t *arena) {
    uint32_t n_cohorts = run->plan.n_cohorts;
    int at_fetch = run->engine->policy.published == ZFI_PUBLISHED_AT_FETCH;
    int waits = at_fetch || zfi_gathers_behind(run->engine);
    run->clock.window_first = zfi_arena_take(arena, n_cohorts, sizeof *run->clock.window_first);
    run->clock.last_choice = zfi_arena_take(arena, n_cohorts, sizeof *run->clock.last_choice);
    run->clock.window_table = zfi_arena_take(arena, n_cohorts, sizeof *run->clock.window_table);
    run->clock.due = zfi_arena_take(arena, n_cohorts + 1u, sizeof *run->clock.due);
    run->clock.skip_publish_below = zfi_arena_take(arena, run->plan.n_matrices, sizeof *run->clock.skip_publish_below);
    run->unfetched.n_left =
        zfi_arena_take(arena, waits ? run->plan.max_close_chunks : 0, sizeof *run->unfetched.n_left);
    run->unfetched.is_done = waits ? zfi_arena_take(arena, run->plan.n_matrices, 1) : NULL;
    run->incoming.grads = zfi_arena_take(arena, run->n_params, sizeof *run->incoming.grads);
    run->incoming.now = zfi_arena_take(arena, run->n_params, sizeof *run->incoming.now);
    run->incoming.is_shipped = zfi_arena_take(arena, run->n_params, 1);
    run->incoming.is_expected = zfi_arena_take(arena, run->n_params, 1);
    run->writes.run_ahead = zfi_arena_take(arena, run->plan.n_launches, sizeof *run->writes.run_ahead);
    run->writes.publish = zfi_arena_take(arena, n_cohorts, sizeof *run->writes.publish);
    run->writes.fetched = at_fetch ? zfi_arena_take(arena, run->plan.n_matrices, sizeof *run->writes.fetched) : NULL;
    run->dev.overwritten = zfi_arena_take(arena, run->n_params, sizeof *run->dev.overwritten);
    run->mem.param_base = zfi_arena_take(arena, run->n_params, sizeof *run->mem.param_base);
    run->dev.matrices = zfi_arena_take(arena, run->plan.n_matrices, sizeof *run->dev.matrices);
    run->dev.exchange_elems = largest_matrix(&run->plan);
    run->dev.scratch_nbytes = run->dev.exchange_elems * sizeof(float);
    if (run->dev.scratch_nbytes < run->plan.publish_piece_nbytes)
        run->dev.scratch_nbytes = run->plan.publish_piece_nbytes;
    run->dev.exchange = zfi_arena_take(arena, 2 * run->dev.exchange_elems, sizeof(float));
    run->incoming.batch_ring = zfi_arena_take(arena, ZFI_N_BATCHES, sizeof *run->incoming.batch_ring);
}

/* The whole host side; returns bytes of its three large parts through *out. */
static void lay_out_host(zfi_run_t *run, zfi_arena_t *arena, zfi_layout_t *out) {
    const zfi_plan_t *plan = &run->plan;
    uint64_t before = arena->used_nbytes;
    lay_out_chunks(plan, run->n_moments, &run->hs, arena);
    run->hs.n = zfi_arena_take(arena, plan->n_counts, sizeof *run->hs.n);
    out->host_state_nbytes = arena->used_nbytes - before;
    before = arena->used_nbytes;
    run->slots.n_tables = ZFI_MAX_STEPS_AHEAD + 3;
    run->slots.n_layers = plan->n_layers;
    run->slots.layers = plan->layers;
    run->slots.pool = zfi_arena_take(arena, plan->pool_nbytes, 1);
    run->slots.free = zfi_arena_take(arena, plan->n_pieces, sizeof *run->slots.free);
    run->slots.n_taken = zfi_arena_take(arena, plan->n_layers, sizeof *run->slots.n_taken);
    run->slots.n_given = zfi_arena_take(arena, plan->n_layers, sizeof *run->slots.n_given);
    run->slots.tables = zfi_arena_take(arena, (uint64_t)plan->n_cohorts * run->slots.interval * plan->n_layers,
                                       run->slots.n_tables * sizeof *run->slots.tables);
    out->host_slots_nbytes = arena->used_nbytes - before;
    before = arena->used_nbytes;
    run->hs.published = zfi_arena_take(arena, plan->n_value_places, plan->publish_piece_nbytes);
    out->host_publish_nbytes = arena->used_nbytes - before;
    run->hs.updates = zfi_arena_take(arena, plan->n_whole, sizeof *run->hs.updates);
    lay_out_clocks(run, arena);
    lay_out_rows(run, arena);
    lay_out_selection(run, arena);
    lay_out_spares(plan, run->n_moments, &run->hs, arena);
}

static void lay_out_tables(zfi_run_t *run, zfi_arena_t *arena) {
    const zfi_plan_t *plan = &run->plan;
    zfi_data_t *head = &run->dev.head;
    run->dev.data = zfi_arena_take(arena, 1, sizeof *run->dev.data);
    head->params = zfi_arena_take(arena, run->n_params, sizeof *head->params);
    head->matrices = zfi_arena_take(arena, plan->n_matrices, sizeof *head->matrices);
    run->dev.own = run->dev.data;
    if (zfi_is_sharded(run->engine)) {
        run->dev.own = zfi_arena_take(arena, 1, sizeof *run->dev.own);
        run->dev.own_matrices = zfi_arena_take(arena, plan->n_matrices, sizeof *run->dev.own_matrices);
        run->dev.own_params = zfi_arena_take(arena, run->n_params, sizeof *run->dev.own_params);
    }
    head->segments =
        zfi_arena_take(arena, (uint64_t)plan->n_segments + plan->n_resident_segments, sizeof *head->segments);
    head->pieces = zfi_arena_take(arena, plan->n_chunks, sizeof *head->pieces);
    head->listed_pieces = zfi_arena_take(arena, plan->n_chunks, sizeof *head->listed_pieces);
    head->listed_matrices = zfi_arena_take(arena, plan->n_matrices, sizeof *head->listed_matrices);
    head->merge_from = zfi_arena_take(arena, plan->n_matrices, sizeof *head->merge_from);
    head->totals = run->engine->totals;
    head->overwritten = run->dev.overwritten;
    head->is_foreign = zfi_arena_take(arena, run->n_params, sizeof *head->is_foreign);
    run->dev.checks_itself = run->engine->config.on_overwrite == ZFI_OVERWRITE_ERROR;
    head->digests = run->engine->config.on_overwrite == ZFI_OVERWRITE_OFF
                        ? NULL
                        : zfi_arena_take(arena, plan->n_matrices, sizeof *head->digests);
}

/* The state of resident matrices. */
static void lay_out_resident(zfi_run_t *run, zfi_arena_t *arena) {
    zfi_data_t *head = &run->dev.head;
    uint64_t n = run->plan.n_resident_elems, n_masters = run->plan.n_resident_masters;
    head->all_w = zfi_arena_take(arena, n_masters ? n_masters + ZFI_STATE_ALIGN : 0, sizeof(float));
    head->first_run = run->plan.first_run;
    head->end_run = run->plan.end_run;
    uint64_t before_v = zfi_resident_before(head, ZFI_V, run->plan.first_resident_v);
    uint64_t end_v = run->plan.first_resident_v + run->plan.n_resident_v;
    head->all_m = take_moment(run->n_moments, arena, ZFI_M, zfi_resident_before(head, ZFI_M, n));
    unsigned char *v = take_moment(run->n_moments, arena, ZFI_V, zfi_resident_before(head, ZFI_V, end_v) - before_v);
    head->all_v = v ? v - before_v : NULL;
    head->all_n = zfi_arena_take(arena, n_of_resident(&run->plan, run->plan.n_matrices), sizeof *head->all_n);
    head->held = NULL;
    if (run->plan.n_resident)
        head->held = zfi_arena_take(arena, run->n_params, sizeof *head->held);
}

/* Lays out what kernels keep of the selected channels, and of the sums that decide. */
static void lay_out_kept(zfi_run_t *run, zfi_arena_t *arena) {
    const zfi_plan_t *plan = &run->plan;
    zfi_data_t *head = &run->dev.head;
    head->w = zfi_arena_take(arena, plan->n_sel_elems, sizeof(float));
    head->m = take_moment(run->n_moments, arena, ZFI_M, plan->n_sel_elems * sizeof(float));
    head->v = take_moment(run->n_moments, arena, ZFI_V, plan->n_sel_elems * sizeof(float));
    head->grad = zfi_arena_take(arena, plan->n_sel_grad_nbytes, 1);
    head->index = zfi_arena_take(arena, plan->n_index, sizeof *head->index);
    head->masks[0] = zfi_arena_take(arena, n_masked(run->engine, &run->plan), 1);
    head->masks[1] = zfi_arena_take(arena, n_masked(run->engine, &run->plan), 1);
    head->n = zfi_arena_take(arena, n_counts(&run->dev.head, &run->plan), sizeof *head->n);
    head->sums[0] = zfi_arena_take(arena, plan->n_sums, sizeof(double));
    head->sums[1] = zfi_arena_take(arena, plan->n_sums, sizeof(double));
    head->sum_squares = zfi_arena_take(arena, run->n_params, sizeof(double));
    head->has_nonfinite = zfi_arena_take(arena, run->n_params, 1);
}

/* Scratch of kernels that work on many matrices at once. */
static void lay_out_scratch(zfi_run_t *run, zfi_arena_t *arena) {
    zfi_data_t *head = &run->dev.head;
    uint64_t n_units = 0;
    for (uint32_t i = 0; i < run->plan.n_matrices; i++)
        n_units += zfi_matrix_units(&run->plan.matrices[i]);
    head->unit_squares = zfi_arena_take(arena, n_units, sizeof(double));
    if (!run->engine->ops->is_parallel)
        return;
    head->found = zfi_arena_take(arena, run->plan.n_matrices, sizeof *head->found);
    head->is_bad = zfi_arena_take(arena, n_of_resident(&run->plan, run->plan.n_matrices), sizeof *head->is_bad);
}

/* Lays out what steps leave behind, what travels, scratch. */
static void lay_out_passing(zfi_run_t *run, zfi_arena_t *arena) {
    const zfi_plan_t *plan = &run->plan;
    zfi_device_state_t *dev = &run->dev;
    uint64_t n_scalars = 1;
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        if (plan->matrices[i].k > n_scalars)
            n_scalars = plan->matrices[i].k;
    if (run->engine->ops->is_parallel && n_scalars < n_counts(&run->dev.head, &run->plan))
        n_scalars = n_counts(&run->dev.head, &run->plan);
    if (n_scalars < n_of_resident(&run->plan, plan->n_matrices))
        n_scalars = plan->n_matrices;
    dev->head.scalars = zfi_arena_take(arena, n_scalars, sizeof *dev->head.scalars);
    lay_out_scratch(run, arena);
    dev->inputs = zfi_arena_take(arena, run->rows.n, dev->input_nbytes);
    dev->scalars = zfi_arena_take(arena, run->rows.n, sizeof *dev->scalars);
    dev->part = zfi_arena_take(arena, 1, sizeof *dev->part);
    dev->ring = zfi_arena_take(arena, plan->shown_by_workers ? 0 : plan->ring_chunks, plan->publish_piece_nbytes);
    dev->enter_blocks = zfi_arena_take(arena, n_enter_blocks(run->engine), dev->enter_block_nbytes);
    dev->enter_n = zfi_arena_take(arena, plan->n_matrices, sizeof *dev->enter_n);
    dev->enter_position = zfi_arena_take(arena, plan->n_index, sizeof *dev->enter_position);
    dev->enter_channel = zfi_arena_take(arena, plan->n_index, sizeof *dev->enter_channel);
    dev->enter_count = take_entering_counts(&run->dev.head, &run->plan, arena);
    dev->scratch = zfi_arena_take(arena, dev->scratch_nbytes, 1);
}

static void lay_out_device(zfi_run_t *run, zfi_arena_t *arena) {
    lay_out_tables(run, arena);
    lay_out_kept(run, arena);
    lay_out_resident(run, arena);
    lay_out_passing(run, arena);
}

static void fill_layout(const zfi_plan_t *plan, zfi_run_memory_t *mem, const zfi_arena_t *host,
                        const zfi_arena_t *device) {
    zfi_layout_t *layout = &mem->layout;
    layout->host_nbytes = zfi_arena_mapped_nbytes(host);
    layout->device_nbytes = zfi_arena_mapped_nbytes(device);
    layout->n_elems = plan->n_elems;
    layout->n_matrices = plan->n_matrices;
    layout->n_channels = plan->n_channels;
    layout->n_pieces = plan->n_pieces;
    layout->n_selected_elems = plan->n_sel_elems;
    layout->n_resident_elems = 0;
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        if (plan->matrices[i].is_resident)
            layout->n_resident_elems += plan->matrices[i].rows * plan->matrices[i].cols;
    layout->slots_peak_milli = (uint64_t)(plan->slots_peak * 1000 + 0.5);
    layout->slots_mean_milli = (uint64_t)(plan->slots_mean * 1000 + 0.5);
}

void zfi_layout_count(zfi_run_t *run, zfi_arena_t *host, zfi_arena_t *device) {
    lay_out_host(run, host, &run->mem.layout);
    lay_out_device(run, device);
    fill_layout(&run->plan, &run->mem, host, device);
    run->mem.layout.device_nbytes += zfi_tables_columns_nbytes(run->params, run->n_params, 1);
}

void zfi_layout_place(zfi_run_t *run) {
    lay_out_host(run, &run->mem.host_arena, &run->mem.layout);
    lay_out_device(run, &run->mem.device_arena);
}
