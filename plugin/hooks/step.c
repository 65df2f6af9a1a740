/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/step.c - the step and poll hooks: one pass over SCHEDULE.md on the host's thread, which only pushes
 * work (step/program.c). */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/struct.h"
#include "hooks/audit.h"
#include "hooks/batch.h"
#include "hooks/changed.h"
#include "hooks/deliver.h"
#include "hooks/hooks.h"
#include "hooks/reduce.h"
#include "hooks/step_record.h"
#include "hooks/stream.h"
#include "hooks/trace.h"
#include "instance/instance.h"
#include "replay/early.h"
#include "schedule/interval.h"
#include "schedule/window.h"
#include "step/program.h"
#include "step/resident.h"

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static zf_status_t check_numbers(const zf_step_args_t *args, const char *origin, zf_error_t *err) {
    uint32_t known = ZF_STEP_WAIT | ZF_STEP_DISCARD | ZF_STEP_EPOCH_END | ZF_STEP_NORM_OF_ALL;
    if (args->flags & ~known)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, origin, "unknown flags 0x%x", args->flags);
    if ((args->flags & ZF_STEP_NORM_OF_ALL) && !args->host_norm)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "ZF_STEP_NORM_OF_ALL speaks of host_norm, which is NULL");
    if (!isfinite(args->unscale) || args->unscale < 0)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "unscale = %g; allowed: finite, > 0, or 0 for 1", args->unscale);
    if (!isfinite(args->clip_norm) || args->clip_norm < 0)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "clip_norm = %g; allowed: finite, > 0, or 0 for off",
                         args->clip_norm);
    return ZF_OK;
}

static zf_status_t check_groups(const zf_instance_t *inst, const zf_step_args_t *args, const char *origin,
                                zf_error_t *err) {
    zf_status_t st = ZFI_CHECK_ARRAY(args->groups, args->n_groups, inst->run->n_groups, args->elem_size,
                                     zf_group_hyper_t, "groups", err);
    for (uint32_t i = 0; i < inst->run->n_groups && !st; i++) {
        zf_group_hyper_t hyper;
        st = ZFI_READ_ITEM(&hyper, args->groups, i, args->elem_size, zf_group_hyper_t, err);
        if (!st)
            st = zfi_reserved_check(hyper.reserved0, "zf_group_hyper_t", err);
        if (!st)
            st = zfi_rule_check(&hyper, i, origin, err);
    }
    return st;
}

/* Says what the device has found in the weights that it wrote. */
static zf_status_t check_finite(zf_instance_t *inst, const char *origin, zf_error_t *err) {
    return zfi_hook_failed(inst, zfi_resident_check(inst->run->engine, inst->run->params), origin,
                           "a weight became Inf or NaN", err);
}

static zf_status_t check(zf_instance_t *inst, const zf_step_args_t *args, zf_error_t *err) {
    zf_status_t st = check_numbers(args, "step", err);
    if (!st && (args->flags & ZF_STEP_DISCARD))
        return ZF_OK;
    if (!st)
        st = check_groups(inst, args, "step", err);
    if (!st)
        st = zfi_deliver_check(inst, err);
    return st ? st : check_finite(inst, "step", err);
}

/* ---- pushing a step ---------------------------------------------------------------------------------------------- */

/* They were checked before. */
static zfi_hyper_t hyper_of(const zf_step_args_t *args, uint32_t group) {
    zf_group_hyper_t hyper = {0};
    (void)ZFI_READ_ITEM(&hyper, args->groups, group, args->elem_size, zf_group_hyper_t, NULL);
    return (zfi_hyper_t){hyper.lr, hyper.beta1, hyper.beta2, hyper.eps, hyper.weight_decay};
}

static double unscale_of(const zf_step_args_t *args) { return args->unscale != 0 ? args->unscale : 1.0; }

static void fill_row(zf_instance_t *inst, const zf_step_args_t *args, int is_host_thread) {
    zfi_step_row_t *row = zfi_row(&inst->run->rows, inst->run->clock.t + 1);
    row->unscale = unscale_of(args);
    row->clip_norm = args->clip_norm;
    row->host_norm = args->host_norm;
    if (args->host_norm && is_host_thread) {
        row->host_norm_now = *args->host_norm; /* a host that computes here may reuse its memory when we return */
        row->host_norm = &row->host_norm_now;
    }
    for (uint32_t i = 0; i < inst->run->n_groups; i++) {
        zfi_hyper_t now = hyper_of(args, i);
        if (memcmp(&row->hyper[i], &now, sizeof now) == 0)
            continue;
        zfi_early_drop(inst->run->early); /* early replays read it */
        row->hyper[i] = now;
    }
}

/* The coming step, of which nothing is delivered, is expected to have these arguments. */
static void expect_step(zf_instance_t *inst, const zf_step_args_t *args) {
    zfi_run_t *run = inst->run;
    if (!run->early)
        return;
    for (uint32_t i = 0; i < run->n_groups; i++)
        zfi_row(&run->rows, run->clock.t + 1)->hyper[i] = hyper_of(args, i);
    zfi_early_begin(run->early, run->clock.t + 1, unscale_of(args));
}

/* Whether the hook waits for the step. */
static int waits(const zf_instance_t *inst, const zf_step_args_t *args, int is_host_thread) {
    return (args->flags & ZF_STEP_WAIT) || (is_host_thread && !(inst->engine.flags & ZF_CREATE_CAP_FETCH));
}

/* Weights that the host wrote unannounced. Where the hook waits anyway, it looks at once, before the step is taken;
 * elsewhere the device looks when it comes to the step, and a later hook learns of it. */
static zf_status_t check_overwritten(zf_instance_t *inst, const zf_step_args_t *args, int is_host_thread,
                                     zf_error_t *err) {
    if (args->flags & ZF_STEP_DISCARD)
        return ZF_OK;
    return (waits(inst, args, is_host_thread) ? zfi_overwritten_look : zfi_overwritten_report)(inst, "step", err);
}

static zf_status_t push_step(zf_instance_t *inst, uint64_t t, int is_checked) {
    zf_status_t st = zfi_interval_decide(&inst->engine, inst->run->plan.n_cohorts, &inst->run->clock, &inst->run->sel,
                                         zfi_row(&inst->run->rows, t));
    if (!st)
        st = zfi_deliver_finish(inst);
    zfi_early_end(inst->run->early);
    return st ? st : zfi_program_step(inst->run, t, is_checked);
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

/* Ranks exchange it once the device has said that something was not finite. */
static void fill_nonfinite_rank(const zfi_run_t *run, const zfi_step_row_t *row, zf_step_report_t *out) {
    zfi_engine_t *engine = run->engine;
    if (!zfi_has_peers(engine) || row->reported.nonfinite_param == ZFI_NO_PARAM ||
        zfi_wait(engine, &engine->lines.control, row->t, &engine->count.host_wait_ns))
        return;
    out->has_nonfinite_rank = row->nonfinite_rank != ZF_NO_ID;
    out->nonfinite_rank = out->has_nonfinite_rank ? row->nonfinite_rank : 0;
}

/* Fills in what the device has said about a step. */
static void fill_report(const zfi_run_t *run, const zfi_step_row_t *row, zf_step_report_t *out) {
    const zfi_step_scalars_t *scalars = &row->reported;
    out->has_report = 1;
    out->step = row->t + run->clock.steps_before;
    out->applied = scalars->applied;
    out->skip_reason = scalars->applied ? ZF_SKIP_NONE : ZF_SKIP_NONFINITE;
    if (scalars->nonfinite_param != ZFI_NO_PARAM)
        out->nonfinite_param = (uint32_t)scalars->nonfinite_param;
    out->n_present = row->n_present;
    out->grad_norm = scalars->norm;
    out->clip_factor = scalars->clip_factor;
    out->n_missing = row->n_missing;
    if (row->n_missing)
        out->first_missing = row->first_missing;
    fill_nonfinite_rank(run, row, out);
}

/* Rows of steps that the device has finished since a hook last looked are not reused yet. */
void zfi_step_look(zf_instance_t *inst) {
    const zfi_run_t *run = inst->run;
    for (uint64_t t = zfi_timeline_now(&inst->engine.lines.stepped);
         t != 0 && t <= run->clock.t && zfi_step_record_lacks_report(inst, t + run->clock.steps_before); t--) {
        zf_step_report_t report = {0};
        if (zfi_row(&run->rows, t)->t != t)
            return;
        fill_report(run, zfi_row(&run->rows, t), &report);
        zfi_step_record_report(inst, &report);
    }
}

/* The newest finished report; the host's thread alone may reuse its row, so it is stable here. */
static void newest_report(zf_instance_t *inst, zf_step_report_t *out) {
    uint64_t t = zfi_timeline_now(&inst->engine.lines.stepped);
    *out = (zf_step_report_t){.nonfinite_param = ZF_NO_ID, .first_missing = ZF_NO_ID};
    if (t != 0 && t <= inst->run->clock.t && zfi_row(&inst->run->rows, t)->t == t) /* made since a load */
        fill_report(inst->run, zfi_row(&inst->run->rows, t), out);
    zfi_step_look(inst);
    out->struct_size = sizeof *out;
    out->submitted_step = inst->run->clock.t + inst->run->clock.steps_before;
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/* An epoch whose last step was discarded ends with the next one that is submitted. */
static void note_epoch(zf_instance_t *inst, const zf_step_args_t *args) {
    if (args->flags & ZF_STEP_EPOCH_END)
        inst->run->clock.epoch_end = inst->run->clock.t + 1;
}

static zf_status_t discard(zf_instance_t *inst, zf_error_t *err) {
    zfi_step_row_t *row = zfi_row(&inst->run->rows, inst->run->clock.t + 1);
    zf_status_t st = zfi_batch_flush(inst);
    zfi_early_drop(inst->run->early);
    if (!st && inst->run->plan.carries) /* the host's memory again: nothing reads there */
        st = zfi_wait(&inst->engine, &inst->engine.lines.batches, inst->engine.n_batches,
                      &inst->engine.count.host_wait_ns);
    if (!st && zfi_is_reduced(inst->run))
        st = zfi_reduce_discard(inst);
    zfi_deliver_reset(inst);
    memset(row->present, 0, inst->run->n_params);
    row->nonfinite_part = 0;
    return zfi_hook_failed(inst, st, "step", "the device did not take the gradients that are discarded", err);
}

/* A gradient that does not come any more is the most silent mistake of a host: said once, then in reports only. */
static void warn_of_missing(zf_instance_t *inst, uint64_t t) {
    const zfi_step_row_t *row = zfi_row(&inst->run->rows, t);
    uint64_t step = t + inst->run->clock.steps_before;
    if (row->n_present == 0 && inst->run->plan.n_matrices > 0 && !inst->has_warned_empty) {
        inst->has_warned_empty = inst->has_warned_missing = 1;
        zfi_log(&inst->engine, ZF_LOG_WARN, "step",
                "step %" PRIu64 " has no gradient at all: nothing is updated; deliver gradients with grads_ready "
                "before step (reported from here on, not logged)",
                step);
    } else if (row->n_missing && !inst->has_warned_missing) {
        inst->has_warned_missing = 1;
        zfi_log(&inst->engine, ZF_LOG_WARN, "step",
                "step %" PRIu64 " has no gradient of \"%s\", which had one in every step before (%u such parameters): "
                "it is left as it is (reported from here on, not logged)",
                step, inst->run->params[row->first_missing].name, row->n_missing);
    }
}

/* The device has finished a step before the host submits one that is this many later. */
static zf_status_t wait_for_oldest(zf_instance_t *inst, uint64_t t) {
    if (t <= ZFI_MAX_STEPS_AHEAD)
        return ZF_OK;
    return zfi_wait(&inst->engine, &inst->engine.lines.stepped, t - ZFI_MAX_STEPS_AHEAD,
                    &inst->engine.count.host_wait_ns);
}

static zf_status_t submit(zf_instance_t *inst, const zf_step_args_t *args, int is_host_thread, zf_error_t *err) {
    uint64_t t = inst->run->clock.t + 1;
    int is_waited = waits(inst, args, is_host_thread);
    zf_status_t st = wait_for_oldest(inst, t);
    if (!st) {
        fill_row(inst, args, is_host_thread);
        st = push_step(inst, t, is_waited);
    }
    if (!st) {
        warn_of_missing(inst, t);
        inst->run->clock.t = t;
        atomic_store(&inst->engine.count.steps, t + inst->run->clock.steps_before);
        inst->run->clock.has_begun = 0;
        zfi_deliver_reset(inst);
        zfi_window_prepare(&inst->run->windows);
        st = zfi_auditing_step(inst, t + inst->run->clock.steps_before, err);
        expect_step(inst, args);
        atomic_fetch_add(&inst->engine.count.host_waits, (uint64_t)is_waited);
        if (is_waited && !st)
            st = zfi_wait(&inst->engine, &inst->engine.lines.stepped, t, &inst->engine.count.host_wait_ns);
        zfi_hook_traced(inst);
        zfi_tracing_step(&inst->engine, t + inst->run->clock.steps_before + 1);
        zfi_step_record(inst, t + inst->run->clock.steps_before);
    }
    return zfi_hook_failed(inst, st, "step", "the device did not take the step", err);
}

zf_status_t zfi_step(zf_instance_t *inst, const zf_step_args_t *given, zf_step_report_t *out_report, zf_error_t *err) {
    zf_step_args_t args;
    zf_step_report_t report;
    int is_host_thread = 0;
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "step", err);
    if (st)
        return st;
    st = ZFI_READ_CHAINED(&args, given, zf_step_args_t, err);
    if (!st)
        st = zfi_struct_check_out(out_report, "zf_step_report_t", err);
    if (!st)
        st = check(inst, &args, err);
    if (!st && !(args.flags & ZF_STEP_DISCARD))
        st = zfi_fetch_check_released(inst, "step", err);
    if (!st)
        st = zfi_deliver_on(inst, args.stream, &is_host_thread, err);
    if (!st)
        st = check_overwritten(inst, &args, is_host_thread, err);
    if (!st) {
        inst->state = ZFI_STATE_ACTIVE;
        note_epoch(inst, &args);
        st = (args.flags & ZF_STEP_DISCARD) ? discard(inst, err) : submit(inst, &args, is_host_thread, err);
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
    return zfi_hook_end(inst, st, err);
}

zf_status_t zfi_announce(zf_instance_t *inst, const zf_step_args_t *given, zf_error_t *err) {
    zf_step_args_t args;
    zfi_stream_t *stream;
    int is_host_thread;
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "announce", err);
    if (st)
        return st;
    st = ZFI_READ_CHAINED(&args, given, zf_step_args_t, err);
    if (!st)
        st = check_numbers(&args, "announce", err);
    if (!st && !(args.flags & ZF_STEP_DISCARD))
        st = check_groups(inst, &args, "announce", err);
    if (!st)
        st = zfi_stream_resolve(inst, args.stream, "announce", &stream, &is_host_thread, err);
    if (!st && zfi_deliver_has_begun(inst))
        st = zfi_error(err, ZF_ERR_STATE, "announce",
                       "gradients of the coming step were delivered already: announce before the first of them");
    if (!st && !(args.flags & ZF_STEP_DISCARD))
        expect_step(inst, &args);
    return zfi_hook_end(inst, st, err);
}

zf_status_t zfi_poll(zf_instance_t *inst, zf_step_report_t *out_report, zf_error_t *err) {
    zf_step_report_t report;
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_TRAINING, "poll", err);
    if (st)
        return st;
    st = zfi_struct_check_out(out_report, "zf_step_report_t", err);
    if (!st)
        st = check_finite(inst, "poll", err);
    if (!st)
        st = zfi_overwritten_report(inst, "poll", err);
    if (!st) {
        newest_report(inst, &report);
        zfi_struct_write(out_report, &report, sizeof report);
        if (zfi_timeline_now(&inst->engine.lines.stepped) < inst->run->clock.t)
            st = ZF_IN_PROGRESS;
    }
    return zfi_hook_end(inst, st, err);
}
