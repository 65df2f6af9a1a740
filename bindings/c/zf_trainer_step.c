/* SPDX-License-Identifier: Apache-2.0 */
/* zf_trainer_step.c - see zf_trainer.h: training, the state, and what is behind it (zf_trainer_parts.h). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf/ext/state.h"
#include "zf_trainer_parts.h"

#define FENCE_TIMEOUT_NS UINT64_C(600000000000) /* the plugin's own deadlines are shorter */
#define MOST_NOTE 65536                         /* bytes, of zf.state/1 */

__attribute__((format(printf, 2, 3))) static void warn(const zf_trainer_t *t, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    t->host.log(t->host.ctx, ZF_LOG_WARN, "trainer", __FILE__, __LINE__, text, strlen(text));
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* Hands over trainer->items[0 .. n). */
static zf_status_t deliver(zf_trainer_t *t, uint32_t n) {
    zf_fence_t *done = &t->fences[t->n_fences];
    *done = (zf_fence_t){.struct_size = sizeof *done};
    zf_status_t st = zf_trainer_take(
        t, t->zf->grads_ready(t->instance, t->items, n, sizeof t->items[0], &t->stream, done, &t->error));
    if (st >= 0)
        t->n_fences++;
    return st;
}

/* A fence that has not come after FENCE_TIMEOUT_NS never does. */
static zf_status_t wait_for(zf_trainer_t *t, const zf_fence_t *fence, zf_error_t *error) {
    zf_status_t st = t->zf->fence_wait(t->instance, fence, FENCE_TIMEOUT_NS, error);
    error->retryable = 0;
    return st;
}

/* Until every gradient of this step has been read. */
static zf_status_t wait_for_gradients(zf_trainer_t *t) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < t->n_fences && st >= 0; ++i)
        st = zf_trainer_take(t, wait_for(t, &t->fences[i], &t->error));
    t->n_fences = 0;
    return st;
}

static void describe_item(const zf_trainer_t *t, uint32_t array, zf_grad_item_t *out) {
    *out = (zf_grad_item_t){.struct_size = sizeof *out};
    out->id = t->ids[array];
    out->flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST | (t->flags & ZF_TRAINER_OVERLAP ? ZF_GRAD_ASYNC_READ : 0);
    out->tensor = &t->grads[array];
}

static zf_status_t check_array(zf_trainer_t *trainer, int32_t array, const char *function) {
    zf_status_t st = zf_trainer_check(trainer, 1, function);
    if (st < 0)
        return st;
    if (array < 0 || (uint32_t)array >= trainer->n_arrays)
        return zf_trainer_fail(trainer, ZF_ERR_PARAM, "zf_trainer_%s: array %d, there are 0..%u", function, (int)array,
                               trainer->n_arrays - 1);
    return ZF_OK;
}

/* Some matrices of one array, or all of it. */
static zf_status_t hand_over(zf_trainer_t *t, int32_t array, int32_t first, int32_t n) {
    zf_status_t st = ZF_OK;
    describe_item(t, (uint32_t)array, &t->items[0]);
    t->items[0].first_batch = (uint32_t)first;
    t->items[0].n_batches = (uint32_t)n;
    if (t->n_fences == t->n_most_fences) /* the next ones come no earlier than this one */
        st = wait_for_gradients(t);
    return st < 0 ? st : deliver(t, 1);
}

/* [lock held] */
static zf_status_t ready(zf_trainer_t *t, int32_t array) {
    zf_status_t st = check_array(t, array, "ready");
    if (st < 0)
        return st;
    array_t *a = &t->arrays[array];
    if (a->is_ready)
        return zf_trainer_fail(
            t, ZF_ERR_STATE,
            "zf_trainer_ready: the gradient of \"%.80s\" was announced twice in one step; announce it in the "
            "last micro-batch",
            a->name);
    st = hand_over(t, array, 0, 0);
    a->is_ready = st >= 0;
    return st;
}

zf_status_t zf_trainer_ready(zf_trainer_t *trainer, int32_t array) {
    if (trainer == NULL)
        return ZF_ERR_MEMORY;
    pthread_mutex_lock(&trainer->lock);
    zf_status_t st = ready(trainer, array);
    pthread_mutex_unlock(&trainer->lock);
    return st;
}

/* [lock held] */
static zf_status_t ready_range(zf_trainer_t *t, int32_t array, int32_t first, int32_t n) {
    zf_status_t st = check_array(t, array, "ready_range");
    if (st < 0)
        return st;
    if (first < 0 || n < 1)
        return zf_trainer_fail(t, ZF_ERR_ARGUMENT, "zf_trainer_ready_range: matrices %d.. of \"%.80s\", %d of them",
                               (int)first, t->arrays[array].name, (int)n);
    st = hand_over(t, array, first, n);
    t->arrays[array].is_ready = 1;
    return st;
}

zf_status_t zf_trainer_ready_range(zf_trainer_t *trainer, int32_t array, int32_t first, int32_t n) {
    if (trainer == NULL)
        return ZF_ERR_MEMORY;
    pthread_mutex_lock(&trainer->lock);
    zf_status_t st = ready_range(trainer, array, first, n);
    pthread_mutex_unlock(&trainer->lock);
    return st;
}

static zf_status_t deliver_the_rest(zf_trainer_t *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_arrays; ++i) {
        if (!t->arrays[i].is_ready)
            describe_item(t, i, &t->items[n++]);
        t->arrays[i].is_ready = 0;
    }
    return n > 0 ? deliver(t, n) : ZF_OK;
}

/* How many steps were skipped so far. A report may have been followed by another unseen, the counter misses none. */
static uint64_t count_skipped(const zf_trainer_t *t) {
    uint64_t n = t->n_skipped + (t->report.has_report && !t->report.applied);
    zf_counter_value(t->zf, t->instance, "steps_skipped", &n, NULL);
    return n;
}

/* Warns of the first step that was skipped, the second, the fourth ... */
static void warn_of_skip(zf_trainer_t *t) {
    const zf_step_report_t *r = &t->report;
    uint64_t n = count_skipped(t), before = t->n_skipped, power = n;
    char rank[32] = "";
    while (power & (power - 1))
        power &= power - 1;
    t->n_skipped = n;
    if (power <= before)
        return;
    if (r->has_nonfinite_rank)
        snprintf(rank, sizeof rank, " on rank %u", (unsigned)r->nonfinite_rank);
    warn(t, "step %llu%s was skipped: %s%.80s%s not finite%s, so its gradients update nothing (%llu such steps so far)",
         (unsigned long long)r->step, r->applied ? ", or one just before," : "",
         r->nonfinite_param < t->n_arrays ? "the gradient of \"" : "a gradient, or the gradients' norm,",
         r->nonfinite_param < t->n_arrays ? t->arrays[r->nonfinite_param].name : "",
         r->nonfinite_param < t->n_arrays ? "\" is" : " is", rank, (unsigned long long)n);
}

/* A trainer that asked for overlap and reads weights without waiting may read them half written. */
static void warn_of_waits(zf_trainer_t *t) {
    if (t->flags & ZF_TRAINER_OVERLAP && ++t->n_seen == 3 && t->n_waits == 0)
        warn(t, "ZF_TRAINER_OVERLAP was asked for, but neither zf_trainer_wait() nor zf_trainer_wait_for() has been "
                "called in two steps: weights are read while they are being written");
}

/* The arguments of a step with this learning rate. */
static zf_step_args_t step_args(zf_trainer_t *trainer, double lr) {
    zf_step_args_t args = {.struct_size = sizeof args};
    for (uint32_t i = 0; i < trainer->n_groups; ++i)
        trainer->groups[i].lr = trainer->rates[trainer->of[i]] < 0 ? lr : trainer->rates[trainer->of[i]];
    args.groups = trainer->groups, args.n_groups = trainer->n_groups;
    args.elem_size = sizeof trainer->groups[0];
    args.clip_norm = trainer->clip_norm, args.unscale = trainer->unscale;
    args.stream = &trainer->stream;
    return args;
}

zf_status_t zf_trainer_announce(zf_trainer_t *trainer, double lr) {
    zf_status_t st = zf_trainer_check(trainer, 1, "announce");
    if (st < 0)
        return st;
    zf_step_args_t args = step_args(trainer, lr);
    return zf_trainer_take(trainer, trainer->zf->announce(trainer->instance, &args, &trainer->error));
}

zf_status_t zf_trainer_step(zf_trainer_t *trainer, double lr) {
    zf_status_t st = zf_trainer_check(trainer, 1, "step"), submitted;
    if (st < 0)
        return st;
    warn_of_waits(trainer);
    st = deliver_the_rest(trainer);
    if (st < 0)
        return st;
    zf_step_args_t args = step_args(trainer, lr);
    submitted =
        zf_trainer_take(trainer, trainer->zf->step(trainer->instance, &args, &trainer->report, &trainer->error));
    for (uint32_t i = 0; i < trainer->n_arrays && submitted == ZF_ERR_OVERWRITTEN; ++i)
        trainer->arrays[i].is_ready = 1; /* the plugin has them still */
    if (submitted >= 0) {
        trainer->n_steps = trainer->report.submitted_step;
        warn_of_skip(trainer);
    }
    st = submitted < 0 ? submitted : wait_for_gradients(trainer);
    return st < 0 ? st : submitted;
}

/* Nothing is announced any more. */
static void forget_announced(zf_trainer_t *t) {
    for (uint32_t i = 0; i < t->n_arrays; ++i)
        t->arrays[i].is_ready = 0;
}

zf_status_t zf_trainer_discard(zf_trainer_t *trainer) {
    zf_step_args_t args = {.struct_size = sizeof args};
    zf_status_t st = zf_trainer_check(trainer, 1, "discard");
    if (st < 0)
        return st;
    args.flags = ZF_STEP_DISCARD;
    args.stream = &trainer->stream;
    st = zf_trainer_take(trainer, trainer->zf->step(trainer->instance, &args, NULL, &trainer->error));
    forget_announced(trainer);
    return st < 0 ? st : wait_for_gradients(trainer);
}

/* items NULL: all arrays. The plugin is called under the lock, the values are waited for outside it. */
static zf_status_t fetch(zf_trainer_t *t, const zf_param_item_t *item) {
    zf_error_t error = {.struct_size = sizeof error};
    zf_fence_t there = {.struct_size = sizeof there};
    zf_status_t st;
    pthread_mutex_lock(&t->lock);
    t->n_waits++;
    st = zf_trainer_take(
        t, t->zf->param_fetch(t->instance, item, item != NULL, sizeof *item, &t->stream, &there, &t->error));
    pthread_mutex_unlock(&t->lock);
    if (st < 0)
        return st;
    st = wait_for(t, &there, &error);
    if (st >= 0)
        return st;
    pthread_mutex_lock(&t->lock);
    t->error = error;
    st = zf_trainer_take(t, st);
    pthread_mutex_unlock(&t->lock);
    return st;
}

zf_status_t zf_trainer_wait(zf_trainer_t *trainer) {
    zf_status_t st = zf_trainer_check(trainer, 1, "wait");
    return st < 0 || !(trainer->flags & ZF_TRAINER_OVERLAP) ? st : fetch(trainer, NULL);
}

zf_status_t zf_trainer_wait_for(zf_trainer_t *trainer, int32_t array, int32_t first, int32_t n) {
    zf_param_item_t item = {.struct_size = sizeof item};
    if (trainer == NULL)
        return ZF_ERR_MEMORY;
    pthread_mutex_lock(&trainer->lock);
    zf_status_t st = check_array(trainer, array, "wait_for");
    if (st >= 0 && (first < 0 || n < 0))
        st = zf_trainer_fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_wait_for: matrices %d.. of \"%.80s\", %d of them",
                             (int)first, trainer->arrays[array].name, (int)n);
    pthread_mutex_unlock(&trainer->lock);
    if (st < 0 || !(trainer->flags & ZF_TRAINER_OVERLAP))
        return st;
    item.id = trainer->ids[array];
    item.first_batch = (uint32_t)first;
    item.n_batches = (uint32_t)n;
    return fetch(trainer, &item);
}

zf_status_t zf_trainer_params_changed(zf_trainer_t *trainer) {
    zf_status_t st = zf_trainer_check(trainer, 1, "params_changed");
    if (st < 0)
        return st;
    st = trainer->zf->params_changed(trainer->instance, NULL, 0, sizeof(zf_param_item_t), 0, &trainer->error);
    return st == ZF_ERR_NONFINITE && trainer->error.scope == ZF_SCOPE_PARAM ? st : zf_trainer_take(trainer, st);
}

zf_status_t zf_trainer_flush(zf_trainer_t *trainer) {
    const zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    zf_status_t st = zf_trainer_check(trainer, 1, "flush");
    return st < 0 ? st : zf_trainer_take(trainer, trainer->zf->quiesce(trainer->instance, &flush, &trainer->error));
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

static const zf_state_ext_t *find_state(zf_trainer_t *t, const char *function, zf_status_t *out_st) {
    const zf_state_ext_t *state;
    *out_st = zf_trainer_check(t, 1, function);
    if (*out_st < 0)
        return NULL;
    state = t->zf->get_extension(ZF_EXT_STATE);
    t->error.message[0] = '\0'; /* of a save or load before */
    if (state == NULL)
        *out_st = zf_trainer_fail(t, ZF_ERR_ABI, "%s has no %s: this plugin cannot save", zf_loader_file(t->loader),
                                  ZF_EXT_STATE);
    return state;
}

zf_status_t zf_trainer_save(zf_trainer_t *trainer, const char *directory, const char *note) {
    zf_state_args_t args = {.struct_size = sizeof args, .path = directory, .note = note};
    zf_status_t st;
    const zf_state_ext_t *state = find_state(trainer, "save", &st);
    if (st < 0)
        return st;
    args.flags = trainer->flags & ZF_TRAINER_NO_SYNC ? ZF_STATE_NO_SYNC : 0;
    return state->save(trainer->instance, &args, NULL, &trainer->error);
}

/* The plugin has dropped what was announced. */
static void take_checkpoint(zf_trainer_t *t, const zf_state_report_t *report, char *note) {
    forget_announced(t);
    t->n_skipped = count_skipped(t);
    t->n_steps = report->step;
    free(t->note);
    t->note = note;
}

zf_status_t zf_trainer_load(zf_trainer_t *trainer, const char *directory) {
    const zf_state_args_t args = {.struct_size = sizeof args, .path = directory};
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_status_t st;
    const zf_state_ext_t *state = find_state(trainer, "load", &st);
    if (st < 0 || (st = wait_for_gradients(trainer)) < 0)
        return st;
    char *note = malloc(MOST_NOTE + 1);
    if (note == NULL)
        return zf_trainer_fail(trainer, ZF_ERR_MEMORY, "zf_trainer_load: no memory for a note");
    st = state->note(&args, note, MOST_NOTE + 1, &trainer->error);
    if (st >= 0)
        st = state->load(trainer->instance, &args, &report, &trainer->error);
    if (st >= 0)
        take_checkpoint(trainer, &report, note);
    else
        free(note);
    return st;
}

uint64_t zf_trainer_steps(const zf_trainer_t *trainer) { return trainer == NULL ? 0 : trainer->n_steps; }

const char *zf_trainer_note(const zf_trainer_t *trainer) {
    return trainer == NULL || trainer->note == NULL ? "" : trainer->note;
}

/* ---- what is behind it ------------------------------------------------------------------------------------------- */

const zf_step_report_t *zf_trainer_report(const zf_trainer_t *trainer) {
    static const zf_step_report_t none;
    return trainer == NULL ? &none : &trainer->report;
}

const zf_bind_report_t *zf_trainer_bind_report(const zf_trainer_t *trainer) {
    static const zf_bind_report_t none;
    return trainer == NULL ? &none : &trainer->bind_report;
}

const zf_plugin_t *zf_trainer_plugin(const zf_trainer_t *trainer) { return trainer == NULL ? NULL : trainer->zf; }

zf_instance_t *zf_trainer_instance(const zf_trainer_t *trainer) { return trainer == NULL ? NULL : trainer->instance; }
