/* plugin/memory.c - the memory of an instance (contract in memory.h). */
#include "memory.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "error.h"

static uint64_t max_channels(const zfi_plan_t *plan) {
    uint64_t most = 1;
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        if (plan->matrices[i].n_channels > most)
            most = plan->matrices[i].n_channels;
    return most;
}

static uint64_t n_counts(const zf_instance_t *inst, uint64_t per_channel) {
    return zfi_is_mean(inst) ? per_channel : inst->plan.n_matrices;
}

/* Moment `which` (1: m, 2: v) of n elements, or NULL where the rule has none. */
static void *take_moment(const zf_instance_t *inst, zfi_arena_t *arena, uint32_t which, uint64_t n, size_t nbytes) {
    return which <= zfi_n_moments(inst) ? zfi_arena_take(arena, n, nbytes) : NULL;
}

static void lay_out_rows(zf_instance_t *inst, zfi_arena_t *arena) {
    uint32_t n_cohorts = inst->plan.n_cohorts;
    inst->n_rows = inst->config.update_interval + inst->config.max_steps_ahead + 16;
    inst->rows = zfi_arena_take(arena, inst->n_rows, sizeof *inst->rows);
    for (uint32_t i = 0; i < inst->n_rows; i++) {
        zfi_step_row_t scratch, *row = inst->rows ? &inst->rows[i] : &scratch;
        row->present = zfi_arena_take(arena, inst->n_params, 1);
        row->hyper = zfi_arena_take(arena, inst->n_groups, sizeof *row->hyper);
        row->cohort_slot = zfi_arena_take(arena, n_cohorts, sizeof *row->cohort_slot);
        row->cohort_table = zfi_arena_take(arena, n_cohorts, sizeof *row->cohort_table);
        row->cohort_first = zfi_arena_take(arena, n_cohorts, sizeof *row->cohort_first);
        row->cohort_sums = zfi_arena_take(arena, n_cohorts, sizeof *row->cohort_sums);
        row->chooses = zfi_arena_take(arena, n_cohorts, 1);
        row->closes = zfi_arena_take(arena, n_cohorts, 1);
    }
}

static void lay_out_selection(zf_instance_t *inst, zfi_arena_t *arena) {
    const zfi_plan_t *plan = &inst->plan;
    zfi_selection_t *sel = &inst->sel;
    for (int i = 0; i < ZFI_RECORD_DEPTH; i++)
        sel->records[i] = zfi_arena_take(arena, plan->n_sums, sizeof(double));
    sel->importance = zfi_arena_take(arena, plan->n_sums, sizeof(double));
    sel->index = zfi_arena_take(arena, plan->n_index, sizeof *sel->index);
    sel->mask = zfi_arena_take(arena, plan->n_channels, 1);
    sel->enter_pos = zfi_arena_take(arena, plan->n_index, sizeof *sel->enter_pos);
    sel->enter_channel = zfi_arena_take(arena, plan->n_index, sizeof *sel->enter_channel);
    sel->enter_n = zfi_arena_take(arena, zfi_is_mean(inst) ? plan->n_index : 0, sizeof *sel->enter_n);
    sel->n_enter = zfi_arena_take(arena, plan->n_matrices, sizeof *sel->n_enter);
    sel->order = zfi_arena_take(arena, max_channels(plan), 3 * sizeof *sel->order);
    if (inst->config.is_interval_auto) {
        sel->deferred = zfi_arena_take(arena, plan->n_matrices, sizeof *sel->deferred);
        sel->selected = zfi_arena_take(arena, plan->n_matrices, sizeof *sel->selected);
        sel->choice_step = zfi_arena_take(arena, plan->n_cohorts, sizeof *sel->choice_step);
        for (int i = 0; i < ZFI_READY_DEPTH; i++)
            sel->ready[i] = zfi_arena_take(arena, plan->n_cohorts, 1);
    }
    sel->staging = zfi_arena_take(arena, ZFI_ENTER_BLOCKS * zfi_enter_arrays(inst) * ZFI_ENTER_ELEMS, sizeof(float));
}

static void lay_out_clocks(zf_instance_t *inst, zfi_arena_t *arena) {
    uint32_t n_cohorts = inst->plan.n_cohorts;
    inst->window_first = zfi_arena_take(arena, n_cohorts, sizeof *inst->window_first);
    inst->cohort_sums = zfi_arena_take(arena, n_cohorts, sizeof *inst->cohort_sums);
    inst->last_choice = zfi_arena_take(arena, n_cohorts, sizeof *inst->last_choice);
    inst->window_table = zfi_arena_take(arena, n_cohorts, sizeof *inst->window_table);
    inst->due = zfi_arena_take(arena, n_cohorts, sizeof *inst->due);
    inst->skip_publish_below = zfi_arena_take(arena, inst->plan.n_matrices, sizeof *inst->skip_publish_below);
    inst->grads = zfi_arena_take(arena, inst->n_params, sizeof *inst->grads);
    inst->overwritten = zfi_arena_take(arena, inst->n_params, sizeof *inst->overwritten);
    inst->param_base = zfi_arena_take(arena, inst->n_params, sizeof *inst->param_base);
    inst->dev.grad_base = zfi_arena_take(arena, inst->plan.n_matrices, sizeof *inst->dev.grad_base);
    inst->batch_ring = zfi_arena_take(arena, ZFI_N_BATCHES, sizeof *inst->batch_ring);
}

/* The whole host side; returns bytes of its three large parts through *out. */
static void lay_out_host(zf_instance_t *inst, zfi_arena_t *arena, zf_layout_t *out) {
    const zfi_plan_t *plan = &inst->plan;
    uint64_t before = arena->used_nbytes;
    inst->hs.w = zfi_arena_take(arena, plan->n_state_elems, sizeof(float));
    inst->hs.m = take_moment(inst, arena, 1, plan->n_state_elems, zfi_moment_nbytes(inst));
    inst->hs.v = take_moment(inst, arena, 2, plan->n_state_elems, zfi_moment_nbytes(inst));
    inst->hs.n = zfi_arena_take(arena, n_counts(inst, plan->n_channels), sizeof *inst->hs.n);
    inst->hs.sum1 = zfi_arena_take(arena, zfi_sums_on_host(inst) ? plan->n_state_elems : 0, sizeof(float));
    inst->hs.sum2 = zfi_arena_take(arena, zfi_sums_on_host(inst) ? plan->n_state_elems : 0, sizeof(float));
    out->host_state_nbytes = arena->used_nbytes - before;
    before = arena->used_nbytes;
    inst->slots.n_pieces = plan->n_slot_pieces;
    inst->slots.n_tables = inst->config.max_steps_ahead + 3;
    inst->slots.pieces = zfi_arena_take(arena, plan->n_slot_pieces, plan->piece_stride);
    inst->slots.free = zfi_arena_take(arena, plan->n_slot_pieces, sizeof *inst->slots.free);
    inst->slots.tables = zfi_arena_take(arena, (uint64_t)plan->n_chunks * inst->slots.n_tables,
                                        inst->config.update_interval * sizeof *inst->slots.tables);
    out->host_slots_nbytes = arena->used_nbytes - before;
    before = arena->used_nbytes;
    inst->publish = zfi_arena_take(arena, plan->max_close_chunks, plan->publish_piece_nbytes);
    out->host_publish_nbytes = arena->used_nbytes - before;
    lay_out_clocks(inst, arena);
    lay_out_rows(inst, arena);
    lay_out_selection(inst, arena);
}

static void lay_out_device(zf_instance_t *inst, zfi_arena_t *arena) {
    const zfi_plan_t *plan = &inst->plan;
    zfi_device_state_t *dev = &inst->dev;
    uint64_t n_scalars = 1;
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        if (plan->matrices[i].k_most > n_scalars)
            n_scalars = plan->matrices[i].k_most;
    dev->w = zfi_arena_take(arena, plan->n_sel_elems, sizeof(float));
    dev->m = take_moment(inst, arena, 1, plan->n_sel_elems, sizeof(float));
    dev->v = take_moment(inst, arena, 2, plan->n_sel_elems, sizeof(float));
    dev->grad = zfi_arena_take(arena, plan->n_sel_grad_nbytes + 4u * plan->n_matrices, 1);
    dev->index = zfi_arena_take(arena, plan->n_index, sizeof *dev->index);
    dev->mask = zfi_arena_take(arena, plan->n_channels, 1);
    dev->n = zfi_arena_take(arena, n_counts(inst, plan->n_index), sizeof *dev->n);
    dev->sums[0] = zfi_arena_take(arena, plan->n_sums, sizeof(double));
    dev->sums[1] = zfi_arena_take(arena, plan->n_sums, sizeof(double));
    dev->sum_squares = zfi_arena_take(arena, inst->n_params, sizeof(double));
    dev->has_nonfinite = zfi_arena_take(arena, inst->n_params, 1);
    dev->ring = zfi_arena_take(arena, ZFI_RING_CHUNKS, plan->publish_piece_nbytes);
    dev->enter = zfi_arena_take(arena, ZFI_ENTER_BLOCKS * zfi_enter_arrays(inst) * ZFI_ENTER_ELEMS, sizeof(float));
    dev->sum1 = zfi_arena_take(arena, zfi_sums_on_device(inst) ? plan->n_state_elems : 0, sizeof(float));
    dev->sum2 = zfi_arena_take(arena, zfi_sums_on_device(inst) ? plan->n_state_elems : 0, sizeof(float));
    dev->held = zfi_arena_take(arena, zfi_sums_on_device(inst) ? inst->n_params : 0, sizeof *dev->held);
    dev->scalars = zfi_arena_take(arena, n_scalars, sizeof *dev->scalars);
    dev->stats_matrices = zfi_arena_take(arena, plan->n_matrices, sizeof *dev->stats_matrices);
}

static zf_status_t check_room(const zf_instance_t *inst, uint64_t host, uint64_t device, zf_error_t *err) {
    uint64_t limit = inst->config.memory_limit_mib << 20, available = zfi_memory_available();
    uint64_t need = host + (inst->device_type == ZF_DEVICE_CPU ? device : 0);
    int is_configured = limit != 0;
    uint64_t have = is_configured ? limit : available;
    if (need <= have)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_MEMORY, "bind_params",
                     "host memory: need %" PRIu64 " MiB, have %" PRIu64 " MiB (%s): "
                     "state %" PRIu64 ", slots %" PRIu64 ", publish %" PRIu64 ", device side %" PRIu64 " MiB; lower "
                     "[zenflow] update_interval, deliver bf16 gradients, or use a machine with more memory",
                     need >> 20, have >> 20, is_configured ? "[host] memory_limit_mib" : "available to this process",
                     inst->layout.host_state_nbytes >> 20, inst->layout.host_slots_nbytes >> 20,
                     inst->layout.host_publish_nbytes >> 20, device >> 20);
}

static void fill_layout(zf_instance_t *inst, const zfi_arena_t *host, const zfi_arena_t *device) {
    zf_layout_t *layout = &inst->layout;
    layout->struct_size = sizeof *layout;
    layout->n_buckets = inst->plan.n_chunks;
    layout->host_nbytes = zfi_arena_mapped_nbytes(host);
    layout->device_nbytes = zfi_arena_mapped_nbytes(device);
    layout->n_elems = inst->plan.n_elems;
    layout->n_matrices = inst->plan.n_matrices;
    layout->n_channels = inst->plan.n_channels;
    layout->n_selected_elems = inst->plan.n_sel_elems;
    layout->slots_peak_milli = (uint64_t)(inst->plan.slots_peak * 1000 + 0.5);
    layout->slots_mean_milli = (uint64_t)(inst->plan.slots_mean * 1000 + 0.5);
}

void zfi_memory_place_selected(zf_instance_t *inst) {
    uint64_t base = 0, grad_base = 0;
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++) {
        zfi_matrix_t *matrix = &inst->plan.matrices[i];
        uint64_t n = matrix->k * zfi_channel_elems(matrix);
        matrix->sel_base = base;
        inst->dev.grad_base[i] = grad_base;
        base += n;
        grad_base += (n * zfi_dtype_nbytes(inst->params[matrix->param].grad_dtype) + 3) / 4 * 4;
    }
    assert(base <= inst->plan.n_sel_elems);
}

zf_status_t zfi_memory_bind(zf_instance_t *inst, zf_error_t *err) {
    zfi_arena_t host = {0}, device = {0};
    uint64_t base = 0;
    zf_status_t st;
    lay_out_host(inst, &host, &inst->layout);
    lay_out_device(inst, &device);
    fill_layout(inst, &host, &device);
    st = check_room(inst, inst->layout.host_nbytes, inst->layout.device_nbytes, err);
    if (!st)
        st = zfi_arena_map(&host, "the host's optimizer state", err);
    if (!st)
        st = zfi_arena_map(&device, "the device's side", err);
    if (st) {
        zfi_arena_free(&host);
        return st;
    }
    inst->host_arena = host;
    inst->device_arena = device;
    lay_out_host(inst, &inst->host_arena, &inst->layout);
    lay_out_device(inst, &inst->device_arena);
    for (uint32_t i = 0; i < inst->n_params; i++) {
        inst->param_base[i] = base;
        if (inst->params[i].has_state)
            base += (inst->params[i].n_elems + ZFI_STATE_ALIGN - 1) / ZFI_STATE_ALIGN * ZFI_STATE_ALIGN;
    }
    zfi_memory_place_selected(inst);
    return ZF_OK;
}

void zfi_memory_free(zf_instance_t *inst) {
    zfi_arena_free(&inst->host_arena);
    zfi_arena_free(&inst->device_arena);
    zfi_arena_free(&inst->staging_arena);
    zfi_arena_free(&inst->sum_arena);
}

/* Four bytes per element of every parameter with state. */
static zf_status_t map_per_element(zf_instance_t *inst, zfi_arena_t *arena, const char *what, zf_error_t *err) {
    uint64_t n = 0;
    zf_status_t st;
    if (arena->base)
        return ZF_OK;
    for (uint32_t i = 0; i < inst->n_params; i++)
        if (inst->params[i].has_state)
            n = inst->param_base[i] + inst->params[i].n_elems;
    zfi_arena_take(arena, n, 4);
    st = check_room(
        inst, inst->config.memory_limit_mib ? zfi_memory_host_nbytes(inst) : 0,
        zfi_arena_mapped_nbytes(arena) + (inst->config.memory_limit_mib ? zfi_memory_device_nbytes(inst) : 0), err);
    if (!st)
        st = zfi_arena_map(arena, what, err);
    if (st) {
        memset(arena, 0, sizeof *arena);
        return st;
    }
    atomic_fetch_add(&inst->extra_device_nbytes, zfi_arena_mapped_nbytes(arena));
    return ZF_OK;
}

zf_status_t zfi_memory_need_staging(zf_instance_t *inst, zf_error_t *err) {
    return map_per_element(inst, &inst->staging_arena, "gradient staging", err);
}

zf_status_t zfi_memory_need_sums(zf_instance_t *inst, zf_error_t *err) {
    return map_per_element(inst, &inst->sum_arena, "sums of micro-batch parts", err);
}

uint64_t zfi_memory_host_nbytes(const zf_instance_t *inst) { return inst->host_arena.total_nbytes; }

uint64_t zfi_memory_device_nbytes(const zf_instance_t *inst) {
    return inst->device_arena.total_nbytes + atomic_load(&inst->extra_device_nbytes);
}
