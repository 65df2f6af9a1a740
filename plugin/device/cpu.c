/* plugin/device/cpu.c - the device's programs on the CPU backend: commands on a queue's thread (contract in device.h).
 *
 * "Device" arrays are separate from the host's even though both are plain memory: every transfer is an explicit copy
 * made by the down, up or control stream, so that an ordering bug shows here as it would on a GPU. */
#include "device/cpu.h"

#include <math.h>
#include <string.h>

#include "callback.h"
#include "error.h"
#include "fault.h"
#include "memory.h"
#include "select.h"
#include "tensor.h"

typedef struct step_args {
    zf_instance_t *inst;
    uint64_t t, choice_step;
    uint32_t first, end;
} step_args_t;

typedef struct close_args {
    zf_instance_t *inst;
    zfi_close_t close;
} close_args_t;

typedef struct order_args {
    zf_instance_t *inst;
    zfi_queue_t *from;
    uint64_t seq;
} order_args_t;

/* The queue may be the host's, who may have blocked it: a full one is given as long as every other wait. */
static zf_status_t push_to(zf_instance_t *inst, zfi_queue_t *queue, zfi_queue_fn fn, const void *args, size_t nbytes) {
    zf_status_t st = zfi_queue_push_within(queue, inst->timeout_ns, fn, args, nbytes, NULL);
    zf_error_t error = {.struct_size = sizeof error};
    if (st != ZF_ERR_TIMEOUT)
        return st;
    zfi_error_scoped(&error, st, ZF_SCOPE_INSTANCE, 0, "device",
                     "the stream took no command for %u ms ([host] deadline_ms): "
                     "%u are waiting in it",
                     inst->config.deadline_ms, ZFI_QUEUE_LENGTH);
    zfi_poison(inst, &error);
    return st;
}

static zf_status_t push(zf_instance_t *inst, zfi_queue_fn fn, const void *args, size_t nbytes) {
    return push_to(inst, inst->stream, fn, args, nbytes);
}

zf_status_t zfi_cpu_push(zf_instance_t *inst, zfi_queue_fn fn, const void *args, size_t nbytes) {
    return push(inst, fn, args, nbytes);
}

/* ---- begin: maps of channels chosen at the step before ------------------------------------------------------------
 */

static void apply_maps(zf_instance_t *inst, uint32_t number) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    const zfi_selection_t *sel = &inst->sel;
    uint8_t *mask = inst->dev.mask + matrix->channel_base;
    uint32_t *index = inst->dev.index + matrix->index_base;
    uint32_t n = sel->n_enter[number];
    int is_first = inst->dev.enter_block == 0;
    for (uint32_t e = 0; e < n; e++) {
        uint32_t pos = sel->enter_pos[matrix->index_base + e];
        if (!is_first && !ZFI_FAULT_LEAVING_KEEPS_STALE)
            mask[index[pos]] = 0;
        index[pos] = sel->enter_channel[matrix->index_base + e];
    }
    for (uint32_t e = 0; e < n; e++)
        mask[sel->enter_channel[matrix->index_base + e]] = 1;
    atomic_fetch_add(&inst->count.up_enter_nbytes, n * 2u * sizeof(uint32_t));
}

static void run_begin(void *raw) {
    const step_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_step_row_t *row = zfi_row(inst, args->choice_step);
    if (args->t > 2 && zfi_wait(inst, &inst->down, args->t - 2, &inst->count.stall_pool_ns))
        return;
    if (!args->choice_step || zfi_wait(inst, &inst->chosen, args->choice_step, &inst->count.stall_select_ns))
        return;
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++)
        if (row->chooses[inst->plan.matrices[i].cohort])
            apply_maps(inst, i);
}

static zf_status_t cpu_begin(zf_instance_t *inst, uint64_t t, uint64_t choice_step) {
    step_args_t args = {.inst = inst, .t = t, .choice_step = choice_step};
    return push(inst, run_begin, &args, sizeof args);
}

/* ---- ship: statistics of delivered gradients ----------------------------------------------------------------------
 */

static zfi_submatrix_t selected_part(const zf_instance_t *inst, const zfi_matrix_t *matrix) {
    const uint32_t *index = matrix->is_choosable ? inst->dev.index + matrix->index_base : NULL;
    zfi_submatrix_t sub = {NULL, index, matrix->rows, matrix->k};
    if (matrix->channels_are_rows)
        sub = (zfi_submatrix_t){index, NULL, matrix->k, matrix->cols};
    return sub;
}

static void take_statistics(zf_instance_t *inst, const zfi_param_t *param, uint64_t t, const void *grad) {
    zfi_device_state_t *dev = &inst->dev;
    zfi_stats_matrix_t *list = dev->stats_matrices;
    zfi_stats_t job = {grad, param->grad_dtype, param->channels_are_rows, list, param->n_matrices};
    zfi_stats_result_t result;
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    for (uint32_t i = 0; i < param->n_matrices; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[param->first_matrix + i];
        double *sums = matrix->is_choosable ? dev->sums[t & 1] + matrix->sum_base : NULL;
        list[i] = (zfi_stats_matrix_t){matrix->rows, matrix->cols, sums};
    }
    inst->kernels->stats(&job, &result);
    dev->sum_squares[param->id] = result.sum_squares;
    dev->has_nonfinite[param->id] = result.n_nonfinite != 0;
    if (zfi_is_warm_up(inst, t))
        return;
    for (uint32_t i = 0; i < param->n_matrices; i++) {
        uint32_t number = param->first_matrix + i;
        const zfi_matrix_t *matrix = &inst->plan.matrices[number];
        zfi_submatrix_t sub = selected_part(inst, matrix);
        if (matrix->k)
            inst->kernels->gather(dev->grad + dev->grad_base[number],
                                  (const unsigned char *)grad + matrix->param_offset * elem, matrix->cols, elem, &sub);
    }
}

static zf_status_t ship_entry(zf_instance_t *inst, zfi_delivery_t *entry, uint64_t t) {
    const zfi_param_t *param = &inst->params[entry->param];
    size_t elem = zfi_dtype_nbytes(param->grad_dtype);
    int uses_staging =
        (entry->flags & (ZFI_DELIVER_STRIDED | ZFI_DELIVER_SUM | ZFI_DELIVER_FROM_SUM | ZFI_DELIVER_KEEP)) != 0;
    zf_status_t st =
        uses_staging ? zfi_wait(inst, &inst->batches, entry->staging_batch, &inst->count.stall_pool_ns) : ZF_OK;
    if (st)
        return st;
    entry->grad = entry->source;
    if (entry->flags & ZFI_DELIVER_STRIDED) {
        zfi_tensor_pack(zfi_staging(inst, param->id), entry->source, elem, param->ndim, param->shape, entry->strides);
        entry->grad = zfi_staging(inst, param->id);
    }
    if (entry->flags & ZFI_DELIVER_KEEP) {
        memcpy(zfi_staging(inst, param->id), entry->source, param->n_elems * elem);
        entry->grad = zfi_staging(inst, param->id);
    }
    if (entry->flags & ZFI_DELIVER_SUM)
        inst->kernels->accumulate(zfi_sum(inst, param->id), entry->grad, param->grad_dtype, param->n_elems,
                                  (entry->flags & ZFI_DELIVER_SUM_FIRST) != 0);
    if (!(entry->flags & ZFI_DELIVER_SHIP))
        return ZF_OK;
    if (entry->flags & (ZFI_DELIVER_SUM | ZFI_DELIVER_FROM_SUM)) {
        inst->kernels->narrow(zfi_staging(inst, param->id), param->grad_dtype, zfi_sum(inst, param->id),
                              param->n_elems);
        entry->grad = zfi_staging(inst, param->id);
    }
    if (zfi_sums_on_device(inst))
        inst->dev.held[param->id] = entry->grad;
    take_statistics(inst, param, t, entry->grad);
    return ZF_OK;
}

static void run_ship(void *raw) {
    const step_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    zfi_batch_t *batch = &inst->batch_ring[args->t % ZFI_N_BATCHES];
    if (atomic_load(&inst->is_poisoned))
        return; /* the host's fences are released: its memory may be gone */
    zfi_fp_mode_ieee();
    for (uint32_t i = 0; i < batch->n; i++)
        if (ship_entry(inst, &batch->entries[i], batch->step))
            return;
    zfi_timeline_signal(&inst->shipped, args->t + 1);
}

static zf_status_t cpu_ship(zf_instance_t *inst, uint64_t batch) {
    step_args_t args = {.inst = inst, .t = batch};
    return push(inst, run_ship, &args, sizeof args);
}

/* ---- finish: the scalars of the step ------------------------------------------------------------------------------
 */

static void run_finish(void *raw) {
    const step_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    zfi_step_row_t *row = zfi_row(inst, args->t);
    zfi_step_scalars_t *out = &row->dev;
    double sum = 0.0;
    if (atomic_load(&inst->is_poisoned))
        return;
    zfi_fp_mode_ieee();
    *out = (zfi_step_scalars_t){.applied = 1, .nonfinite_param = ZF_NO_ID, .clip_factor = 1.0};
    for (uint32_t i = 0; i < inst->n_params; i++) {
        if (!row->present[i])
            continue;
        if (inst->dev.has_nonfinite[i] && out->applied) {
            out->applied = 0;
            out->nonfinite_param = i;
        }
        if (!(inst->params[i].flags & ZF_PARAM_NOT_IN_NORM))
            sum += inst->dev.sum_squares[i];
    }
    out->norm = row->host_norm ? *row->host_norm : row->unscale * sqrt(sum);
    if (row->clip_norm > 0) {
        double factor = row->clip_norm / (out->norm + 1e-6);
        out->clip_factor = factor < 1.0 ? factor : 1.0;
    }
    out->s_exact = row->unscale * out->clip_factor;
    out->s = (float)out->s_exact;
    if (!isfinite(out->norm) || out->norm < 0 || !isfinite(out->s))
        out->applied = 0;
    zfi_timeline_signal(&inst->finished, args->t);
}

static zf_status_t cpu_finish(zf_instance_t *inst, uint64_t t) {
    step_args_t args = {.inst = inst, .t = t};
    return push(inst, run_finish, &args, sizeof args);
}

/* ---- run-ahead ----------------------------------------------------------------------------------------------------
 */

/* Scalars per selected channel in mean mode, where update counts differ; counts this update. */
static void scalars_per_channel(zf_instance_t *inst, const zfi_matrix_t *matrix, const zfi_hyper_t *hyper, float s) {
    for (uint32_t i = 0; i < matrix->k; i++) {
        uint32_t n = ++inst->dev.n[matrix->index_base + i];
        inst->dev.scalars[i] = i && n == inst->dev.n[matrix->index_base + i - 1]
                                   ? inst->dev.scalars[i - 1]
                                   : zfi_rule_scalars((zfi_rule_t)inst->rule, hyper, s, n);
    }
}

static void advance(zf_instance_t *inst, uint32_t number, const zfi_step_row_t *row) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    const zfi_param_t *param = &inst->params[matrix->param];
    const zfi_hyper_t *hyper = &row->hyper[param->group];
    zfi_device_state_t *dev = &inst->dev;
    zfi_run_ahead_t job;
    uint64_t n_overwritten;
    uint32_t n = zfi_is_mean(inst) ? 0 : ++dev->n[number];
    if (zfi_is_warm_up(inst, row->t) || !matrix->k) /* in this order: in warm-up k may not be known yet */
        return;
    job = (zfi_run_ahead_t){dev->w + matrix->sel_base,
                            dev->m ? dev->m + matrix->sel_base : NULL,
                            dev->v ? dev->v + matrix->sel_base : NULL,
                            dev->grad + dev->grad_base[number],
                            param->grad_dtype,
                            selected_part(inst, matrix),
                            matrix->place,
                            dev->scalars,
                            0,
                            0};
    if (zfi_is_mean(inst)) {
        scalars_per_channel(inst, matrix, hyper, row->dev.s);
        job.scalars_row_stride = matrix->channels_are_rows ? 1 : 0;
        job.scalars_col_stride = matrix->channels_are_rows ? 0 : 1;
    } else {
        dev->scalars[0] = zfi_rule_scalars((zfi_rule_t)inst->rule, hyper, row->dev.s, n);
    }
    if (inst->rule == ZF_RULE_CALLBACK)
        n_overwritten = zfi_callback_run_ahead(inst, &job, param->group, hyper,
                                               zfi_is_mean(inst) ? dev->n + matrix->index_base : dev->n + number);
    else
        n_overwritten = inst->kernels->run_ahead[inst->rule](&job);
    if (n_overwritten) {
        atomic_fetch_add(&inst->count.overwritten_elems, n_overwritten);
        if (!atomic_exchange(&inst->overwritten[param->id], 1))
            atomic_fetch_add(&inst->n_overwritten, 1);
    }
}

static void run_run_ahead(void *raw) {
    const step_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_step_row_t *row = zfi_row(inst, args->t);
    if (atomic_load(&inst->is_poisoned) || !row->dev.applied)
        return;
    zfi_fp_mode_ieee();
    for (uint32_t i = args->first; i < args->end; i++)
        if (row->present[inst->plan.matrices[i].param])
            advance(inst, i, row);
}

static zf_status_t cpu_run_ahead(zf_instance_t *inst, uint64_t t, uint32_t first, uint32_t end) {
    step_args_t args = {.inst = inst, .t = t, .first = first, .end = end};
    return push(inst, run_run_ahead, &args, sizeof args);
}

/* ---- moments of a closing window ----------------------------------------------------------------------------------
 */

static void round_matrix(zf_instance_t *inst, uint32_t number, uint64_t key) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    zfi_round_moments_t job = {
        .m = inst->dev.m ? inst->dev.m + matrix->sel_base : NULL,
        .v = inst->dev.v ? inst->dev.v + matrix->sel_base : NULL,
        .sub = selected_part(inst, matrix),
        .cols = matrix->cols,
        .state_base = zfi_rounding_base(matrix->param) + matrix->param_offset,
        .moments = (zfi_moments_t)inst->config.moments,
        .key = key,
    };
    if (matrix->k && job.m && !ZFI_FAULT_DEVICE_MOMENTS_UNROUNDED)
        inst->kernels->round_moments(&job);
}

static void run_round_moments(void *raw) {
    const close_args_t *args = raw;
    const zfi_plan_t *plan = &args->inst->plan;
    const zfi_cohort_plan_t *cohort = &plan->cohorts[args->close.cohort];
    uint64_t key = zfi_rounding_key(args->close.step);
    if (atomic_load(&args->inst->is_poisoned))
        return;
    for (uint32_t i = 0; i < cohort->n_matrices; i++)
        round_matrix(args->inst, plan->cohort_matrices[cohort->first_matrix + i], key);
}

static zf_status_t cpu_round_moments(zf_instance_t *inst, const zfi_close_t *close) {
    close_args_t args = {inst, *close};
    if (inst->config.moments == ZFI_MOMENTS_F32 || close->is_warm_up)
        return ZF_OK; /* in warm-up nothing is selected */
    return push(inst, run_round_moments, &args, sizeof args);
}

/* ---- publish ------------------------------------------------------------------------------------------------------
 */

static void publish_segment(zf_instance_t *inst, const zfi_segment_t *segment, const unsigned char *staged,
                            const zfi_close_t *close) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[segment->matrix];
    zfi_publish_t job = {
        .staged = staged + segment->chunk_offset * zfi_dtype_nbytes(matrix->place.dtype),
        .first = segment->matrix_offset,
        .n_elems = segment->n_elems,
        .cols = matrix->cols,
        .channels_are_rows = matrix->channels_are_rows,
        .selected = close->publishes_all ? NULL : inst->dev.mask + matrix->channel_base,
        .place = matrix->place,
    };
    if (!close->publishes_all && !close->is_warm_up && matrix->k == matrix->n_channels)
        return;
    inst->kernels->publish(&job);
}

static void run_publish(void *raw) {
    const close_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_close_t *close = &args->close;
    uint32_t first_chunk = inst->plan.cohorts[close->cohort].first_chunk;
    int is_lost = ZFI_FAULT_STALE_BY_TEN && !close->is_warm_up && !close->publishes_all &&
                  close->step / inst->config.update_interval % 10 != 0;
    for (uint32_t i = 0; i < close->n_chunks; i++) {
        uint64_t p = close->first_publish + i;
        const zfi_chunk_t *chunk = &inst->plan.chunks[first_chunk + i];
        const unsigned char *staged = inst->dev.ring + p % ZFI_RING_CHUNKS * inst->plan.publish_piece_nbytes;
        if (zfi_wait(inst, &inst->up, p + 1, &inst->count.stall_replay_ns))
            return;
        for (uint32_t s = chunk->first_segment; s < chunk->first_segment + chunk->n_segments && !is_lost; s++)
            if (p >= inst->skip_publish_below[inst->plan.segments[s].matrix])
                publish_segment(inst, &inst->plan.segments[s], staged, close);
        zfi_timeline_signal(&inst->merged, p + 1);
    }
}

static zf_status_t cpu_publish(zf_instance_t *inst, const zfi_close_t *close) {
    close_args_t args = {inst, *close};
    return push(inst, run_publish, &args, sizeof args);
}

/* ---- done: the report of the step ---------------------------------------------------------------------------------
 */

static void run_done(void *raw) {
    const step_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    zfi_step_row_t *row = zfi_row(inst, args->t);
    zf_step_report_t *report = &row->report;
    if (row->waits_for_down && zfi_wait(inst, &inst->down, args->t, &inst->count.stall_pool_ns))
        return;
    if (atomic_load(&inst->is_poisoned))
        return;
    atomic_fetch_add(row->dev.applied ? &inst->count.steps_applied : &inst->count.steps_skipped, 1);
    *report = (zf_step_report_t){
        .struct_size = sizeof *report,
        .has_report = 1,
        .step = args->t + inst->steps_before,
        .applied = row->dev.applied,
        .skip_reason = row->dev.applied ? ZF_SKIP_NONE : ZF_SKIP_NONFINITE,
        .nonfinite_param = row->dev.nonfinite_param,
        .n_present = row->n_present,
        .grad_norm = row->dev.norm,
        .clip_factor = row->dev.clip_factor,
        .n_skipped = atomic_load(&inst->count.steps_skipped),
    };
    zfi_timeline_signal(&inst->stepped, args->t);
}

static zf_status_t cpu_done(zf_instance_t *inst, uint64_t t) {
    step_args_t args = {.inst = inst, .t = t};
    return push(inst, run_done, &args, sizeof args);
}

/* ---- whole parameters, while everything else is idle --------------------------------------------------------------
 */

static void run_read_visible(void *raw) {
    const step_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_param_t *param = &inst->params[args->first];
    for (uint32_t i = param->first_matrix; i < param->first_matrix + param->n_matrices; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[i];
        float *to = inst->hs.w + matrix->state_base;
        for (uint64_t r = 0; r < matrix->rows; r++)
            for (uint64_t c = 0; c < matrix->cols; c++)
                to[r * matrix->cols + c] = zfi_cpu_read_element(&matrix->place, r, c);
    }
}

static zf_status_t cpu_read_visible(zf_instance_t *inst, uint32_t param) {
    step_args_t args = {.inst = inst, .first = param};
    return push(inst, run_read_visible, &args, sizeof args);
}

static void reload_matrix(zf_instance_t *inst, uint32_t number) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    const uint32_t *index = inst->dev.index + matrix->index_base;
    uint64_t per_channel = zfi_channel_elems(matrix);
    if (!zfi_is_mean(inst))
        inst->dev.n[number] = inst->hs.n[number];
    if (inst->dev.enter_block == 0)
        return; /* nothing has entered yet */
    for (uint32_t pos = 0; pos < matrix->k; pos++) {
        if (zfi_is_mean(inst))
            inst->dev.n[matrix->index_base + pos] = inst->hs.n[matrix->channel_base + index[pos]];
        for (uint64_t i = 0; i < per_channel; i++) {
            uint64_t r = matrix->channels_are_rows ? index[pos] : i, c = matrix->channels_are_rows ? i : index[pos];
            uint64_t from = matrix->state_base + r * matrix->cols + c;
            uint64_t to = matrix->sel_base + (matrix->channels_are_rows ? pos * matrix->cols + i : i * matrix->k + pos);
            inst->dev.w[to] = inst->hs.w[from];
            if (inst->dev.m)
                inst->dev.m[to] = zfi_moment(inst, inst->hs.m, from);
            if (inst->dev.v)
                inst->dev.v[to] = zfi_moment(inst, inst->hs.v, from);
        }
    }
    atomic_fetch_add(&inst->count.up_enter_nbytes,
                     matrix->k * per_channel * (1u + zfi_n_moments(inst)) * sizeof(float));
}

static void run_reload_selected(void *raw) {
    const step_args_t *args = raw;
    const zfi_param_t *param = &args->inst->params[args->first];
    for (uint32_t i = 0; i < param->n_matrices; i++)
        reload_matrix(args->inst, param->first_matrix + i);
}

static zf_status_t cpu_reload_selected(zf_instance_t *inst, uint32_t param) {
    step_args_t args = {.inst = inst, .first = param};
    return push(inst, run_reload_selected, &args, sizeof args);
}

typedef struct catch_up_args {
    zf_instance_t *inst;
    uint64_t t;
    uint32_t matrix;
    const void *grad;
} catch_up_args_t;

static void run_catch_up(void *raw) {
    const catch_up_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_matrix_t *matrix = &inst->plan.matrices[args->matrix];
    size_t elem = zfi_dtype_nbytes(inst->params[matrix->param].grad_dtype);
    zfi_submatrix_t sub = selected_part(inst, matrix);
    zfi_fp_mode_ieee();
    if (matrix->k)
        inst->kernels->gather(inst->dev.grad + inst->dev.grad_base[args->matrix], args->grad, matrix->cols, elem, &sub);
    advance(inst, args->matrix, zfi_row(inst, args->t));
}

static zf_status_t cpu_catch_up(zf_instance_t *inst, uint64_t t, uint32_t matrix, const void *grad) {
    catch_up_args_t args = {inst, t, matrix, grad};
    return push(inst, run_catch_up, &args, sizeof args);
}

/* ---- order between streams ----------------------------------------------------------------------------------------
 */

static void run_order(void *raw) {
    const order_args_t *args = raw;
    zfi_wait(args->inst, &args->from->executed, args->seq, NULL);
}

static zf_status_t cpu_order(zf_instance_t *inst, zfi_queue_t *from, zfi_queue_t *to) {
    order_args_t args = {inst, from, zfi_queue_newest(from)};
    return push_to(inst, to, run_order, &args, sizeof args);
}

const zfi_device_ops_t zfi_device_cpu = {
    .name = "cpu",
    .begin = cpu_begin,
    .ship = cpu_ship,
    .finish = cpu_finish,
    .sum = zfi_cpu_sum,
    .round_sums = zfi_cpu_round_sums,
    .read_sums = zfi_cpu_read_sums,
    .enter_state = zfi_cpu_enter_state,
    .enter_visible = zfi_cpu_enter_visible,
    .run_ahead = cpu_run_ahead,
    .round_moments = cpu_round_moments,
    .publish = cpu_publish,
    .done = cpu_done,
    .read_visible = cpu_read_visible,
    .reload_selected = cpu_reload_selected,
    .get_visible = zfi_cpu_get_visible,
    .put_visible = zfi_cpu_put_visible,
    .shows_state = zfi_cpu_shows_state,
    .get_selected = zfi_cpu_get_selected,
    .put_selected = zfi_cpu_put_selected,
    .move_sums = zfi_cpu_move_sums,
    .put_maps = zfi_cpu_put_maps,
    .catch_up = cpu_catch_up,
    .order = cpu_order,
};
