/* plugin/state_replace.c - the bound parts of an instance exchanged for others (contract in state.h).
 *
 * A twin is a copy of the instance's record whose bound parts are its own: it is filled while the instance stays as it
 * is, and commit exchanges the two ranges of bytes. An instance that has not trained is filled in place instead: undo
 * is to begin again. The instance is drained, so its threads wait in their queues; the only one that may be in the
 * middle of a command is `up`, before values whose publication was still due. Commit lets those go by unseen first. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bound.h"
#include "deliver.h"
#include "device/device.h"
#include "error.h"
#include "interval.h"
#include "memory.h"
#include "offload/transfer.h"
#include "offload/workers.h"
#include "quiesce.h"
#include "state.h"
#include "step.h"
#include "window.h"

/* ---- a twin --------------------------------------------------------------------------------------------------------
 */

enum { BOUND = offsetof(zf_instance_t, params), BOUND_NBYTES = offsetof(zf_instance_t, count) - BOUND };

static void *bound_parts(zf_instance_t *inst) { return (unsigned char *)inst + BOUND; }

static zfi_param_t *copy_params(const zf_instance_t *inst) {
    zfi_param_t *out = calloc(inst->n_params, sizeof *out);
    if (!out)
        return NULL;
    for (uint32_t i = 0; i < inst->n_params; i++) {
        out[i] = inst->params[i];
        out[i].first_matrix = out[i].n_matrices = out[i].first_ref = out[i].n_refs = 0;
        out[i].col_offset = NULL;
    }
    for (uint32_t i = 0; i < inst->n_params; i++) {
        size_t nbytes = out[i].cols * sizeof *out[i].col_offset;
        if (!inst->params[i].col_offset)
            continue;
        out[i].col_offset = malloc(nbytes);
        if (!out[i].col_offset) {
            zfi_params_free(out, inst->n_params);
            return NULL;
        }
        memcpy(out[i].col_offset, inst->params[i].col_offset, nbytes);
    }
    return out;
}

static zf_status_t make_twin(zf_instance_t *inst, zfi_param_t *params, uint32_t n_params, int reads_visible,
                             zf_instance_t **out, zf_error_t *err) {
    zf_instance_t *twin = malloc(sizeof *twin);
    zf_status_t st;
    if (!twin) {
        zfi_params_free(params, n_params);
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a second instance");
    }
    memcpy(twin, inst, sizeof *twin);
    memset(bound_parts(twin), 0, BOUND_NBYTES);
    st = zfi_bound_make(twin, params, n_params, reads_visible, "state", err);
    if (st) {
        free(twin);
        return st;
    }
    *out = twin;
    return ZF_OK;
}

/* ---- begin, cancel -------------------------------------------------------------------------------------------------
 */

static uint64_t largest_gradient(const zf_instance_t *inst) {
    uint64_t most = 1;
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[i];
        uint64_t n = matrix->rows * matrix->cols * zfi_dtype_nbytes(inst->params[matrix->param].grad_dtype);
        if (n > most)
            most = n;
    }
    return most;
}

static void free_scratch(zfi_replacement_t *replacement) {
    for (uint32_t i = 0; replacement->overlay && i < replacement->n_overlay; i++)
        free(replacement->overlay[i]);
    for (uint32_t i = 0; replacement->copies && i < 3 * replacement->n_overlay; i++)
        free(replacement->copies[i]);
    free(replacement->overlay);
    free(replacement->copies);
    free(replacement->grad);
    replacement->overlay = NULL;
    replacement->copies = NULL;
    replacement->grad = NULL;
}

/* Whether beginning again would be no loss: no step, no load, no gradient on its way. */
static int is_fresh(zf_instance_t *inst) {
    const zfi_step_row_t *row = zfi_row(inst, inst->t + 1);
    for (uint32_t i = 0; i < inst->n_params; i++)
        if (row->present[i])
            return 0;
    return inst->t == 0 && !inst->has_loaded;
}

zf_status_t zfi_replace_begin(zf_instance_t *inst, zfi_param_t *params, uint32_t n_params, int reads_visible,
                              zfi_replacement_t *out, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    *out = (zfi_replacement_t){.inst = inst, .into = inst};
    if (params || !is_fresh(inst)) {
        if (!params) {
            n_params = inst->n_params;
            params = copy_params(inst);
        }
        if (!params)
            return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for %u parameter records", n_params);
        st = make_twin(inst, params, n_params, reads_visible, &out->into, err);
        if (st)
            return st;
    }
    out->n_overlay = out->into->plan.n_matrices;
    out->overlay = calloc(out->n_overlay, sizeof *out->overlay);
    out->copies = calloc(3u * (uint64_t)out->n_overlay, sizeof *out->copies);
    out->grad = malloc(largest_gradient(out->into));
    if (out->overlay && out->copies && out->grad)
        return ZF_OK;
    zfi_replace_cancel(out);
    return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the largest gradient of a matrix");
}

/* An instance filled in place begins again: what bind_params left. */
static void begin_again(zf_instance_t *inst) {
    uint64_t n = zfi_is_mean(inst) ? inst->plan.n_channels : inst->plan.n_matrices;
    if (inst->hs.m)
        memset(inst->hs.m, 0, inst->plan.n_state_elems * zfi_moment_nbytes(inst));
    if (inst->hs.v)
        memset(inst->hs.v, 0, inst->plan.n_state_elems * zfi_moment_nbytes(inst));
    memset(inst->hs.n, 0, n * sizeof *inst->hs.n);
    memset(inst->sel.mask, 0, inst->plan.n_channels);
    memset(inst->sel.importance, 0, inst->plan.n_sums * sizeof(double));
    memset(inst->sel.n_enter, 0, inst->plan.n_matrices * sizeof *inst->sel.n_enter);
    memset(inst->last_choice, 0, inst->plan.n_cohorts * sizeof *inst->last_choice);
    inst->t = inst->steps_before = inst->waiting_choice = inst->epoch_end = 0;
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++) {
        zfi_matrix_t *matrix = &inst->plan.matrices[i];
        if (zfi_plan_is_open(&inst->config, &inst->params[matrix->param], matrix->n_channels))
            matrix->k = 0;
    }
    zfi_memory_place_selected(inst);
    inst->n_due = 0;
    inst->next_job = zfi_timeline_now(&inst->jobs); /* the instance is drained */
    inst->next_publish = zfi_timeline_now(&inst->publish_due);
    memset(inst->skip_publish_below, 0, inst->plan.n_matrices * sizeof *inst->skip_publish_below);
    atomic_store(&inst->count.steps_applied, 0);
    atomic_store(&inst->count.steps_skipped, 0);
    zfi_window_start(inst);
    zfi_bound_read_masters(inst);
}

void zfi_replace_cancel(zfi_replacement_t *replacement) {
    if (replacement->into != replacement->inst) {
        zfi_bound_free(replacement->into);
        free(replacement->into);
    } else {
        begin_again(replacement->inst);
    }
    free_scratch(replacement);
}

/* ---- commit --------------------------------------------------------------------------------------------------------
 */

/* Publishes that are due go through the device without being seen, so that nothing waits for the next step. */
static zf_status_t pass_due(zf_instance_t *inst) {
    zf_status_t st = ZF_OK;
    if (inst->n_due == 0)
        return ZF_OK;
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++)
        inst->skip_publish_below[i] = inst->next_publish;
    for (uint32_t i = 0; i < inst->n_due && !st; i++)
        st = zfi_push_publish(inst, &inst->due[i]);
    inst->n_due = 0;
    if (!st)
        st = zfi_wait(inst, &inst->up, inst->next_publish, NULL);
    return st ? st : zfi_wait(inst, &inst->merged, inst->next_publish, NULL);
}

static void exchange(zf_instance_t *inst, zf_instance_t *twin) {
    unsigned char *mine = bound_parts(inst), *theirs = bound_parts(twin);
    for (size_t i = 0; i < BOUND_NBYTES; i++) {
        unsigned char x = mine[i];
        mine[i] = theirs[i];
        theirs[i] = x;
    }
    atomic_store(&inst->count.steps_applied, atomic_load(&twin->count.steps_applied));
    atomic_store(&inst->count.steps_skipped, atomic_load(&twin->count.steps_skipped));
}

/* Timelines and threads as if the instance had come to step t by itself. */
static void set_clocks(zf_instance_t *inst) {
    uint64_t t = inst->t, first_due = inst->n_due ? inst->due[0].first_publish : inst->next_publish;
    zfi_timeline_t *by_step[] = {&inst->finished, &inst->down,    &inst->chosen,    &inst->host_sel, &inst->entered,
                                 &inst->control,  &inst->stepped, &inst->enter_due, &inst->summed};
    zfi_timeline_t *by_job[] = {&inst->up, &inst->merged, &inst->publish_due};
    for (size_t i = 0; i < sizeof by_step / sizeof *by_step; i++)
        zfi_timeline_set(by_step[i], t);
    for (size_t i = 0; i < sizeof by_job / sizeof *by_job; i++)
        zfi_timeline_set(by_job[i], first_due);
    zfi_timeline_set(&inst->jobs, inst->next_job);
    zfi_timeline_set(&inst->rounded, inst->n_sums);
    zfi_timeline_set(&inst->sums, inst->n_sums);
    zfi_interval_resume(inst);
    zfi_workers_restart(inst->workers, inst, inst->next_job);
    inst->sel.last_choice = 0;
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
        if (inst->last_choice[c] > inst->sel.last_choice)
            inst->sel.last_choice = inst->last_choice[c];
    inst->sel.enter_block = inst->dev.enter_block = inst->sel.last_choice != 0;
    zfi_timeline_set(&inst->enter_up, inst->sel.enter_block);
    zfi_timeline_set(&inst->enter_done, inst->sel.enter_block);
    /* a choice of step t: its maps and state are in place, what is left is to show it */
    inst->has_begun = inst->enter_state_pushed = inst->waiting_choice != 0;
    for (uint32_t c = 0; c < inst->plan.n_cohorts && t; c++)
        zfi_row(inst, t)->chooses[c] = inst->waiting_choice && inst->last_choice[c] == t;
    atomic_store(&inst->count.steps, t + inst->steps_before);
}

static zf_status_t catch_up_step(zf_instance_t *inst, uint64_t t, void *grad) {
    zfi_state_io_t io = {.inst = inst};
    const zfi_state_array_t *slot = zfi_state_array_find("slot", 4);
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < inst->plan.n_matrices && !st; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[i];
        if (!slot->has(&io, i, t))
            continue;
        slot->get(&io, i, t, 0, matrix->rows * matrix->cols, grad);
        st = inst->device->catch_up(inst, t, i, grad);
        if (!st) /* `grad` is used again */
            st = zfi_wait(inst, &inst->stream->executed, zfi_queue_newest(inst->stream), NULL);
    }
    return st;
}

/* The device's copies run ahead once more over the open slots, from the host's state. */
/* Moments mode: nothing can be run ahead again, so the checkpoint holds the copies. */
static void put_copies(zf_instance_t *inst, float *const *copies) {
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[i];
        uint32_t n = inst->hs.n[i];
        for (uint64_t t = inst->window_first[matrix->cohort]; t <= inst->t; t++)
            n += zfi_row(inst, t)->present[matrix->param] && zfi_row(inst, t)->scalars.applied;
        inst->device->put_selected(inst, i, copies + 3 * i, n);
    }
}

static zf_status_t fill_device(zf_instance_t *inst, float *const *copies, void *grad) {
    uint64_t first = inst->t + 1;
    zf_status_t st = ZF_OK;
    inst->device->put_maps(inst);
    for (uint32_t i = 0; i < inst->n_params && !st; i++)
        if (inst->params[i].has_state)
            st = inst->device->reload_selected(inst, i);
    if (!st)
        st = zfi_wait(inst, &inst->stream->executed, zfi_queue_newest(inst->stream), NULL);
    if (!st && zfi_is_moments(inst))
        put_copies(inst, copies);
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++)
        inst->device->put_visible(inst, i, NULL);
    for (uint32_t c = 0; c < inst->plan.n_cohorts; c++)
        if (inst->window_first[c] < first)
            first = inst->window_first[c];
    for (; first <= inst->t && !st; first++)
        if (zfi_row(inst, first)->scalars.applied)
            st = catch_up_step(inst, first, grad);
    return st;
}

static zf_status_t stage_due(zf_instance_t *inst) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < inst->n_due && !st; i++)
        st = zfi_transfer_publish(inst, &inst->due[i]);
    return st;
}

zf_status_t zfi_replace_commit(zfi_replacement_t *replacement, zf_error_t *err) {
    zf_instance_t *inst = replacement->inst, *into = replacement->into;
    zf_status_t st = into != inst ? pass_due(inst) : ZF_OK; /* filled in place: what is due is the new run's */
    if (!st) {
        if (into != inst)
            exchange(inst, into);
        inst->has_loaded = 1;
        set_clocks(inst);
        st = fill_device(inst, replacement->copies, replacement->grad);
    }
    for (uint32_t i = 0; i < inst->plan.n_matrices && !st; i++)
        if (replacement->overlay[i])
            inst->device->put_visible(inst, i, replacement->overlay[i]);
    if (!st)
        st = stage_due(inst);
    if (!st) {
        zfi_deliver_reset(inst);
        zfi_window_prepare(inst);
        inst->visible_floor = zfi_queue_newest(inst->stream);
    }
    if (into != inst) {
        zfi_bound_free(into);
        free(into);
    }
    free_scratch(replacement);
    if (st && atomic_load(&inst->is_poisoned))
        return zfi_error_copy(err, &inst->poison);
    return st ? zfi_error(err, st, "state", "the device did not take the loaded state") : ZF_OK;
}
