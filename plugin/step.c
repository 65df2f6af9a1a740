/* plugin/step.c - the step and poll hooks: one pass over SCHEDULE.md on the host's thread, which only pushes work.
 *
 * Order of what is pushed on the device stream: the rest of the gradients, finish, sums, entering channels, run-ahead,
 * publishes due, closes (published at once where publish_lag = 0), done. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "deliver.h"
#include "device/device.h"
#include "error.h"
#include "hooks.h"
#include "instance.h"
#include "interval.h"
#include "offload/transfer.h"
#include "offload/workers.h"
#include "select.h"
#include "step.h"
#include "stream.h"
#include "struct.h"
#include "window.h"

enum { RUN_AHEAD_ELEMS = 1 << 18 }; /* selected elements per command: the grain of param_fetch */

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static zf_status_t check_numbers(const zf_step_args_t *args, zf_error_t *err) {
    uint32_t known = ZF_STEP_WAIT | ZF_STEP_DISCARD | ZF_STEP_EPOCH_END;
    if (args->flags & ~known)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "step", "unknown flags 0x%x", args->flags);
    if (!isfinite(args->unscale) || args->unscale < 0)
        return zfi_error(err, ZF_ERR_ARGUMENT, "step", "unscale = %g; allowed: finite, > 0, or 0 for 1", args->unscale);
    if (!isfinite(args->clip_norm) || args->clip_norm < 0)
        return zfi_error(err, ZF_ERR_ARGUMENT, "step", "clip_norm = %g; allowed: finite, > 0, or 0 for off",
                         args->clip_norm);
    return ZF_OK;
}

static zf_status_t check_groups(const zf_instance_t *inst, const zf_step_args_t *args, zf_error_t *err) {
    zf_status_t st = zfi_array_check(args->groups, args->n_groups, inst->n_groups, args->elem_size,
                                     sizeof(zf_group_hyper_t), "groups", err);
    for (uint32_t i = 0; i < inst->n_groups && !st; i++) {
        zf_group_hyper_t hyper;
        st = zfi_struct_read_item(&hyper, args->groups, i, args->elem_size, sizeof hyper, sizeof hyper,
                                  "zf_group_hyper_t", err);
        if (!st)
            st = zfi_rule_check(&hyper, i, err);
    }
    return st;
}

static zf_status_t check_overwritten(zf_instance_t *inst, zf_error_t *err) {
    uint32_t id = 0;
    if (atomic_load(&inst->n_overwritten) == 0)
        return ZF_OK;
    while (id + 1 < inst->n_params && !atomic_load(&inst->overwritten[id]))
        id++;
    return zfi_error_scoped(err, ZF_ERR_OVERWRITTEN, ZF_SCOPE_PARAM, 0, "step",
                            "the host changed \"%s\" (id %u) without "
                            "params_changed: its fp32 master would still hold the old weights; call params_changed for "
                            "every parameter you wrote, then step again",
                            inst->params[id].name, id);
}

static zf_status_t check(zf_instance_t *inst, const zf_step_args_t *args, zf_error_t *err) {
    zf_status_t st = check_numbers(args, err);
    if (!st && (args->flags & ZF_STEP_DISCARD))
        return ZF_OK;
    if (!st)
        st = check_groups(inst, args, err);
    return st ? st : check_overwritten(inst, err);
}

/* ---- pushing a step ---------------------------------------------------------------------------------------------- */

static void fill_row(zf_instance_t *inst, const zf_step_args_t *args, int is_host_thread) {
    zfi_step_row_t *row = zfi_row(inst, inst->t + 1);
    row->unscale = args->unscale != 0 ? args->unscale : 1.0;
    row->clip_norm = args->clip_norm;
    row->host_norm = args->host_norm;
    if (args->host_norm && is_host_thread) {
        row->host_norm_now = *args->host_norm; /* a host that computes here may reuse its memory when we return */
        row->host_norm = &row->host_norm_now;
    }
    for (uint32_t i = 0; i < inst->n_groups; i++) {
        const zf_group_hyper_t *hyper = (const void *)((const char *)args->groups + (size_t)i * args->elem_size);
        row->hyper[i] = (zfi_hyper_t){hyper->lr, hyper->beta1, hyper->beta2, hyper->eps, hyper->weight_decay};
    }
}

/* The newest command on the device stream writes visible values of this matrix: param_fetch waits for it. */
static void note_write(zf_instance_t *inst, uint32_t matrix, uint64_t seq) {
    zfi_grad_state_t *grad = &inst->grads[inst->plan.matrices[matrix].param];
    grad->visible_seq = seq;
    grad->visible_epoch = inst->stream_epoch;
}

zf_status_t zfi_push_enter_state(zf_instance_t *inst) {
    zf_status_t st;
    if (inst->enter_state_pushed)
        return ZF_OK;
    st = inst->device->enter_state(inst, inst->waiting_choice);
    inst->enter_state_pushed = 1;
    zfi_timeline_signal(&inst->enter_due, inst->waiting_choice);
    return st;
}

static zf_status_t push_entering(zf_instance_t *inst) {
    zf_status_t st;
    uint64_t seq;
    if (!inst->waiting_choice)
        return ZF_OK;
    st = zfi_push_enter_state(inst);
    if (!st)
        st = inst->device->enter_visible(inst, inst->waiting_choice);
    inst->waiting_choice = 0;
    inst->enter_state_pushed = 0;
    seq = zfi_queue_newest(inst->stream);
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++)
        note_write(inst, i, seq);
    return st;
}

static zf_status_t push_run_ahead(zf_instance_t *inst, uint64_t t) {
    uint32_t first = 0, n = inst->plan.n_matrices;
    double share =
        zfi_config_is_topk_auto(&inst->config) ? inst->config.max_topk_ratio : 1; /* k may not be known yet */
    zf_status_t st = ZF_OK;
    while (first < n && !st) {
        uint64_t elems = 0, seq;
        uint32_t end = first;
        while (end < n && (end == first || elems < RUN_AHEAD_ELEMS)) {
            elems += (uint64_t)(share * inst->plan.matrices[end].k_most) * zfi_channel_elems(&inst->plan.matrices[end]);
            end++;
        }
        st = inst->device->run_ahead(inst, t, first, end);
        seq = zfi_queue_newest(inst->stream);
        for (; first < end; first++)
            note_write(inst, first, seq);
    }
    return st;
}

zf_status_t zfi_push_publish(zf_instance_t *inst, const zfi_close_t *close) {
    const zfi_cohort_plan_t *cohort = &inst->plan.cohorts[close->cohort];
    zf_status_t st = close->n_chunks ? inst->device->publish(inst, close) : ZF_OK;
    uint64_t seq = zfi_queue_newest(inst->stream);
    for (uint32_t i = 0; i < cohort->n_matrices; i++)
        note_write(inst, inst->plan.cohort_matrices[cohort->first_matrix + i], seq);
    zfi_timeline_signal(&inst->publish_due, close->first_publish + close->n_chunks);
    return st;
}

static zf_status_t push_due(zf_instance_t *inst) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < inst->n_due && !st; i++)
        st = zfi_push_publish(inst, &inst->due[i]);
    inst->n_due = 0;
    return st;
}

zf_status_t zfi_push_work(zf_instance_t *inst, const zfi_close_t *close) {
    zf_status_t st = ZF_OK;
    if (close->n_chunks == 0)
        return ZF_OK;
    if (close->sums)
        st = zfi_transfer_sums(inst, close);
    zfi_workers_push(inst, close);
    if (!st && !close->is_sums_only)
        st = inst->device->round_moments(inst, close);
    return st || close->is_sums_only ? st : zfi_transfer_publish(inst, close);
}

zf_status_t zfi_push_round_sums(zf_instance_t *inst, uint32_t cohort) {
    inst->cohort_sums[cohort] = ++inst->n_sums;
    return inst->device->round_sums(inst, cohort, inst->n_sums);
}

/* Sums on the device: this step's gradients, and what closes now is made ready to travel. */
static zf_status_t push_sums(zf_instance_t *inst, uint64_t t) {
    zf_status_t st;
    if (!zfi_sums_on_device(inst))
        return ZF_OK;
    st = inst->device->sum(inst, t);
    for (uint32_t c = 0; c < inst->plan.n_cohorts && !st && !zfi_is_warm_up(inst, t); c++)
        if (inst->plan.cohorts[c].n_chunks && zfi_row(inst, t)->closes[c])
            st = zfi_push_round_sums(inst, c);
    return st;
}

/* Sums on the host: the cohort's window stays open, its slot of this step is added. */
static zf_status_t push_add(zf_instance_t *inst, uint32_t cohort, uint64_t t) {
    zfi_close_t close;
    if (!zfi_sums_on_host(inst))
        return ZF_OK;
    zfi_window_add(inst, cohort, t, &close);
    return zfi_push_work(inst, &close);
}

static zf_status_t push_close(zf_instance_t *inst, uint32_t cohort, uint64_t t) {
    zfi_step_row_t *row = zfi_row(inst, t);
    zfi_close_t close;
    zf_status_t st;
    zfi_window_close(inst, cohort, t, 0, &close);
    st = zfi_push_work(inst, &close);
    if (!st && (close.is_warm_up || inst->config.publish_lag == 0))
        st = zfi_push_publish(inst, &close);
    else
        inst->due[inst->n_due++] = close;
    if (zfi_window_chooses(inst, cohort, t)) {
        row->chooses[cohort] = 1;
        row->has_choice = 1;
        inst->last_choice[cohort] = t;
        inst->waiting_choice = t;
    }
    return st;
}

static zf_status_t push_step(zf_instance_t *inst, uint64_t t) {
    zfi_step_row_t *row = zfi_row(inst, t);
    zf_status_t st = zfi_interval_decide(inst, row);
    if (!st)
        st = zfi_deliver_finish(inst);
    if (!st)
        st = inst->device->finish(inst, t);
    if (!st)
        st = zfi_transfer_record(inst, t);
    if (!st)
        st = push_sums(inst, t);
    if (!st)
        st = push_entering(inst);
    if (!st)
        st = push_run_ahead(inst, t);
    if (!st)
        st = push_due(inst);
    for (uint32_t c = 0; c < inst->plan.n_cohorts && !st; c++)
        st = row->closes[c] ? push_close(inst, c, t) : push_add(inst, c, t);
    row->end_job = inst->next_job;
    if (!st)
        st = zfi_select_push(inst, t);
    if (!st)
        st = inst->device->done(inst, t);
    return st;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

static uint64_t stall_ns(const zf_instance_t *inst) {
    return atomic_load(&inst->count.stall_replay_ns) + atomic_load(&inst->count.stall_select_ns) +
           atomic_load(&inst->count.stall_pool_ns);
}

/* The newest finished report; the host's thread alone may reuse its row, so it is stable here. */
static void newest_report(zf_instance_t *inst, zf_step_report_t *out) {
    uint64_t t = zfi_timeline_now(&inst->stepped);
    *out = (zf_step_report_t){.nonfinite_param = ZF_NO_ID};
    if (t != 0 && t <= inst->t)
        *out = zfi_row(inst, t)->report;
    out->struct_size = sizeof *out;
    out->submitted_step = inst->t + inst->steps_before;
    out->window_closes = atomic_load(&inst->count.window_closes);
    out->stall_ns = stall_ns(inst);
    out->lost_overlap_nbytes = atomic_load(&inst->count.lost_overlap_nbytes);
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/* An epoch whose last step was discarded ends with the next one that is submitted. */
static void note_epoch(zf_instance_t *inst, const zf_step_args_t *args) {
    if (args->flags & ZF_STEP_EPOCH_END)
        inst->epoch_end = inst->t + 1;
}

static zf_status_t discard(zf_instance_t *inst) {
    zf_status_t st = zfi_deliver_flush(inst);
    zfi_deliver_reset(inst);
    memset(zfi_row(inst, inst->t + 1)->present, 0, inst->n_params);
    return st;
}

static zf_status_t submit(zf_instance_t *inst, const zf_step_args_t *args, int is_host_thread, zf_error_t *err) {
    uint64_t t = inst->t + 1, ahead = inst->config.max_steps_ahead;
    int waits = (args->flags & ZF_STEP_WAIT) || (is_host_thread && !(inst->flags & ZF_CREATE_CAP_FETCH));
    zf_status_t st = t > ahead ? zfi_wait(inst, &inst->stepped, t - ahead, &inst->count.host_wait_ns) : ZF_OK;
    if (!st) {
        fill_row(inst, args, is_host_thread);
        st = push_step(inst, t);
    }
    if (!st) {
        inst->t = t;
        atomic_store(&inst->count.steps, t + inst->steps_before);
        inst->has_begun = 0;
        zfi_deliver_reset(inst);
        zfi_window_prepare(inst);
        if (waits)
            st = zfi_wait(inst, &inst->stepped, t, &inst->count.host_wait_ns);
    }
    if (!st)
        return ZF_OK;
    if (atomic_load(&inst->is_poisoned))
        return zfi_error_copy(err, &inst->poison);
    return zfi_error(err, st, "step", "the device did not take step %" PRIu64, t);
}

zf_status_t zfi_step(zf_instance_t *inst, const zf_step_args_t *given, zf_step_report_t *out_report, zf_error_t *err) {
    unsigned legal = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED;
    zf_step_args_t args;
    zf_step_report_t report;
    int is_host_thread = 0;
    zf_status_t st = zfi_enter(inst, legal, "step", err);
    if (st)
        return st;
    st = zfi_struct_read(&args, given, sizeof args, sizeof args, "zf_step_args_t", err);
    if (!st)
        st = zfi_struct_check_out(out_report, "zf_step_report_t", err);
    if (!st)
        st = check(inst, &args, err);
    if (!st)
        st = zfi_stream_use(inst, args.stream, &is_host_thread, err);
    if (!st) {
        inst->state = ZFI_STATE_ACTIVE;
        note_epoch(inst, &args);
        st = (args.flags & ZF_STEP_DISCARD) ? discard(inst) : submit(inst, &args, is_host_thread, err);
    }
    if (!st) {
        newest_report(inst, &report);
        zfi_struct_write(out_report, &report, sizeof report);
        if (!(args.flags & ZF_STEP_DISCARD)) {
            st = ZF_SUBMITTED;
            if (args.flags & ZF_STEP_WAIT)
                st = report.applied ? ZF_OK : ZF_SKIPPED;
        }
    }
    zfi_leave(inst);
    return st;
}

zf_status_t zfi_poll(zf_instance_t *inst, zf_step_report_t *out_report, zf_error_t *err) {
    unsigned legal = 1u << ZFI_STATE_BOUND | 1u << ZFI_STATE_ACTIVE | 1u << ZFI_STATE_QUIESCED;
    zf_step_report_t report;
    zf_status_t st = zfi_enter(inst, legal, "poll", err);
    if (st)
        return st;
    st = zfi_struct_check_out(out_report, "zf_step_report_t", err);
    if (!st)
        st = check_overwritten(inst, err);
    if (!st) {
        newest_report(inst, &report);
        zfi_struct_write(out_report, &report, sizeof report);
        if (zfi_timeline_now(&inst->stepped) < inst->t)
            st = ZF_IN_PROGRESS;
    }
    zfi_leave(inst);
    return st;
}
