/* SPDX-License-Identifier: Apache-2.0 */
/* zf_trainer.c - see zf_trainer.h. Everything is kept in growing arrays until bind(), which describes them to the
 * plugin; from then on no memory is allocated and no array moves, since descriptors point into them. */
#define _POSIX_C_SOURCE 200809L /* strdup */

#include "zf_trainer.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf/ext/state.h"

#define MAX_GROUPS 64
#define MOST_RANGES 1024                        /* deliveries of a step by ranges before one of them is waited for */
#define FENCE_TIMEOUT_NS UINT64_C(600000000000) /* the plugin's own deadlines are shorter */

typedef struct array {
    char *name;
    float *w, *g;
    int64_t shape[ZF_MAX_NDIM];
    int32_t ndim, n_batch_axes;
    uint32_t group;
    int is_ready; /* handed over in this step, wholly or in part */
} array_t;

struct zf_trainer {
    zf_error_t error;
    zf_status_t status; /* of the first error; 0 = none */
    unsigned flags;
    zf_loader_t *loader;
    const zf_plugin_t *zf;
    zf_instance_t *instance;
    zf_host_t host;
    zf_stream_t stream;
    char *config_path;
    char **settings; /* [n_settings] */
    uint32_t n_settings;
    zf_group_hyper_t groups[MAX_GROUPS];
    uint32_t n_groups, group; /* group of what is added next */
    double clip_norm;
    array_t *arrays; /* [n_arrays] */
    uint32_t n_arrays;
    zf_tensor_t *grads;               /* [n_arrays] */
    zf_grad_item_t *items;            /* [n_arrays] of one delivery */
    zf_fence_t *fences;               /* [n_fences] of this step's deliveries that have not been waited for */
    uint32_t *ids;                    /* [n_arrays] of the plugin */
    uint32_t n_fences, n_most_fences; /* room is kept for one more: what step() delivers */
    pthread_mutex_t lock;             /* guards error, items, fences and is_ready while several threads are inside */
    uint64_t n_steps, n_waits;
    uint64_t n_skipped; /* steps that were seen to be skipped */
    zf_step_report_t report;
    zf_layout_t layout;
};

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Keeps the first error. */
__attribute__((format(printf, 3, 4))) static zf_status_t fail(zf_trainer_t *t, zf_status_t status, const char *format,
                                                              ...) {
    va_list args;
    if (t == NULL)
        return ZF_ERR_MEMORY;
    if (t->status < 0)
        return t->status;
    va_start(args, format);
    vsnprintf(t->error.message, sizeof t->error.message, format, args);
    va_end(args);
    t->status = status;
    return status;
}

/* What the plugin or the loader returned, with the message in t->error. What may succeed later does not stay. */
static zf_status_t take(zf_trainer_t *t, zf_status_t status) {
    if (status < 0 && t->status == ZF_OK && !t->error.retryable)
        t->status = status;
    return status;
}

__attribute__((format(printf, 2, 3))) static void warn(const zf_trainer_t *t, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    t->host.log(t->host.ctx, ZF_LOG_WARN, "trainer", __FILE__, __LINE__, text, strlen(text));
}

/* 0 if the call may go on; the stage is that before or after bind(). */
static zf_status_t check(zf_trainer_t *t, int needs_bound, const char *function) {
    if (t == NULL)
        return ZF_ERR_MEMORY;
    if (t->status < 0)
        return t->status;
    if (needs_bound != (t->instance != NULL))
        return fail(t, ZF_ERR_STATE, "zf_trainer_%s() must come %s zf_trainer_bind()", function,
                    needs_bound ? "after" : "before");
    return ZF_OK;
}

const char *zf_trainer_error(const zf_trainer_t *trainer) {
    return trainer == NULL ? "no memory for a zf_trainer_t" : trainer->error.message;
}

/* ---- before bind ------------------------------------------------------------------------------------------------- */

static void set_group(zf_group_hyper_t *group, double beta1, double beta2, double eps, double weight_decay) {
    *group = (zf_group_hyper_t){
        .struct_size = sizeof *group, .beta1 = beta1, .beta2 = beta2, .eps = eps, .weight_decay = weight_decay};
}

zf_trainer_t *zf_trainer_new(const char *plugin_path, const char *config_path, unsigned flags) {
    zf_trainer_t *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->error.struct_size = sizeof t->error;
    t->report.struct_size = sizeof t->report;
    t->layout.struct_size = sizeof t->layout;
    t->flags = flags;
    pthread_mutex_init(&t->lock, NULL);
    set_group(&t->groups[0], 0.9, 0.999, 1e-8, 0.0);
    zf_stream_host_thread(&t->stream);
    zf_host_stderr("zf_trainer", "1", ZF_LOG_WARN, &t->host);
    if (flags & ~ZF_TRAINER_OVERLAP)
        fail(t, ZF_ERR_ARGUMENT, "zf_trainer_new: flags are %#x, 0 or ZF_TRAINER_OVERLAP (1) is known", flags);
    if (config_path != NULL && (t->config_path = strdup(config_path)) == NULL)
        fail(t, ZF_ERR_MEMORY, "zf_trainer_new: no memory");
    if (t->status == ZF_OK)
        take(t, zf_loader_open(plugin_path, &t->loader, &t->error));
    if (t->loader != NULL)
        t->zf = zf_loader_plugin(t->loader);
    return t;
}

zf_status_t zf_trainer_set(zf_trainer_t *trainer, const char *key_value) {
    zf_status_t st = check(trainer, 0, "set");
    if (st < 0)
        return st;
    if (key_value == NULL)
        return fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_set: NULL; give \"section.key=value\"");
    char **more = realloc(trainer->settings, (trainer->n_settings + 1) * sizeof *more);
    if (more != NULL)
        trainer->settings = more;
    if (more == NULL || (more[trainer->n_settings] = strdup(key_value)) == NULL)
        return fail(trainer, ZF_ERR_MEMORY, "zf_trainer_set: no memory for \"%.80s\"", key_value);
    trainer->n_settings++;
    return ZF_OK;
}

static int is_same_group(const zf_group_hyper_t *a, const zf_group_hyper_t *b) {
    return memcmp(&a->beta1, &b->beta1, sizeof *a - offsetof(zf_group_hyper_t, beta1)) == 0;
}

zf_status_t zf_trainer_adamw(zf_trainer_t *trainer, double beta1, double beta2, double eps, double weight_decay) {
    zf_group_hyper_t wanted;
    uint32_t i = 0;
    zf_status_t st = check(trainer, 0, "adamw");
    if (st < 0)
        return st;
    set_group(&wanted, beta1, beta2, eps, weight_decay);
    while (i < trainer->n_groups && !is_same_group(&trainer->groups[i], &wanted))
        i++;
    if (i == MAX_GROUPS)
        return fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_adamw: more than %d different settings", MAX_GROUPS);
    trainer->groups[i] = wanted;
    trainer->group = i;
    return ZF_OK;
}

zf_status_t zf_trainer_clip(zf_trainer_t *trainer, double max_norm) {
    if (trainer == NULL)
        return ZF_ERR_MEMORY;
    trainer->clip_norm = max_norm; /* step() checks it */
    return trainer->status;
}

int32_t zf_trainer_add(zf_trainer_t *trainer, const char *name, float *w, float *g, int32_t ndim, const int64_t *shape,
                       int32_t n_batch_axes) {
    zf_status_t st = check(trainer, 0, "add");
    if (st < 0)
        return st;
    if (name == NULL)
        return fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_add: array %u has no name", trainer->n_arrays);
    if (w == NULL || g == NULL)
        return fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_add: %s of \"%.80s\" is NULL; leave out what is not trained",
                    w == NULL ? "w" : "g", name);
    if (ndim < 0 || ndim > ZF_MAX_NDIM || (ndim > 0 && shape == NULL))
        return fail(trainer, ZF_ERR_SHAPE, "zf_trainer_add: \"%.80s\" has %d axes%s, need 0..%d and a shape", name,
                    (int)ndim, shape == NULL ? " and no shape" : "", ZF_MAX_NDIM);
    array_t *more = realloc(trainer->arrays, (trainer->n_arrays + 1) * sizeof *more);
    if (more != NULL)
        trainer->arrays = more;
    char *copy = strdup(name);
    if (more == NULL || copy == NULL) {
        free(copy);
        return fail(trainer, ZF_ERR_MEMORY, "zf_trainer_add: no memory for \"%.80s\"", name);
    }
    array_t *a = &more[trainer->n_arrays];
    *a = (array_t){.name = copy, .w = w, .g = g, .ndim = ndim, .n_batch_axes = n_batch_axes, .group = trainer->group};
    if (ndim > 0)
        memcpy(a->shape, shape, (size_t)ndim * sizeof *shape);
    if (trainer->n_groups <= trainer->group)
        trainer->n_groups = trainer->group + 1;
    return (int32_t)trainer->n_arrays++;
}

/* ---- bind -------------------------------------------------------------------------------------------------------- */

static zf_status_t create(zf_trainer_t *t) {
    zf_create_args_t args = {.struct_size = sizeof args};
    args.flags = t->flags & ZF_TRAINER_OVERLAP ? ZF_CREATE_CAP_FETCH : 0;
    args.host = &t->host;
    args.config_path = t->config_path;
    args.overrides = (const char *const *)t->settings;
    args.n_overrides = t->n_settings;
    args.device_type = ZF_DEVICE_CPU;
    return take(t, t->zf->create(&args, &t->instance, &t->error));
}

static void describe(zf_trainer_t *t, zf_param_decl_t *decls, zf_tensor_t *weights) {
    for (uint32_t i = 0; i < t->n_arrays; ++i) {
        const array_t *a = &t->arrays[i];
        zf_tensor_contiguous(a->w, zf_dtype_float32(), a->ndim, a->shape, &weights[i]);
        zf_tensor_contiguous(a->g, zf_dtype_float32(), a->ndim, a->shape, &t->grads[i]);
        decls[i] = (zf_param_decl_t){.struct_size = sizeof decls[i]};
        decls[i].name = a->name, decls[i].tensor = &weights[i];
        decls[i].group = a->group, decls[i].n_batch_axes = a->n_batch_axes;
    }
}

zf_status_t zf_trainer_bind(zf_trainer_t *trainer) {
    zf_status_t st = check(trainer, 0, "bind");
    if (st < 0)
        return st;
    size_t n = trainer->n_arrays;
    if (n == 0)
        return fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_bind: no array; call zf_trainer_add() for each");
    zf_param_decl_t *decls = calloc(n, sizeof *decls);
    zf_tensor_t *weights = calloc(n, sizeof *weights);
    trainer->grads = calloc(n, sizeof *trainer->grads);
    trainer->items = calloc(n, sizeof *trainer->items);
    trainer->n_most_fences = (uint32_t)n + MOST_RANGES;
    trainer->fences = calloc(trainer->n_most_fences + 1, sizeof *trainer->fences);
    trainer->ids = calloc(n, sizeof *trainer->ids);
    if (decls == NULL || weights == NULL || trainer->grads == NULL || trainer->items == NULL ||
        trainer->fences == NULL || trainer->ids == NULL) {
        st = fail(trainer, ZF_ERR_MEMORY, "zf_trainer_bind: no memory for the descriptions of %zu arrays", n);
    } else {
        describe(trainer, decls, weights);
        st = create(trainer);
    }
    zf_bind_args_t args = {
        .struct_size = sizeof args, .decls = decls, .n_decls = (uint32_t)n, .decl_size = sizeof decls[0]};
    if (st >= 0)
        st = take(trainer,
                  trainer->zf->bind_params(trainer->instance, &args, trainer->ids, &trainer->layout, &trainer->error));
    free(decls);
    free(weights);
    return st;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* Hands over trainer->items[0 .. n). */
static zf_status_t deliver(zf_trainer_t *t, uint32_t n) {
    zf_fence_t *done = &t->fences[t->n_fences];
    *done = (zf_fence_t){.struct_size = sizeof *done};
    zf_status_t st =
        take(t, t->zf->grads_ready(t->instance, t->items, n, sizeof t->items[0], &t->stream, done, &t->error));
    if (st >= 0)
        t->n_fences++;
    return st;
}

/* What has not come after FENCE_TIMEOUT_NS never does. */
static zf_status_t wait_for(zf_trainer_t *t, const zf_fence_t *fence, zf_error_t *error) {
    zf_status_t st = t->zf->fence_wait(t->instance, fence, FENCE_TIMEOUT_NS, error);
    error->retryable = 0;
    return st;
}

/* Until every gradient of this step has been read. */
static zf_status_t wait_for_gradients(zf_trainer_t *t) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < t->n_fences && st >= 0; ++i)
        st = take(t, wait_for(t, &t->fences[i], &t->error));
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
    zf_status_t st = check(trainer, 1, function);
    if (st < 0)
        return st;
    if (array < 0 || (uint32_t)array >= trainer->n_arrays)
        return fail(trainer, ZF_ERR_PARAM, "zf_trainer_%s: array %d, there are 0..%u", function, (int)array,
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
        return fail(t, ZF_ERR_STATE,
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
        return fail(t, ZF_ERR_ARGUMENT, "zf_trainer_ready_range: matrices %d.. of \"%.80s\", %d of them", (int)first,
                    t->arrays[array].name, (int)n);
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

/* Of the first step that was skipped, the second, the fourth ... */
static void warn_of_skip(zf_trainer_t *t) {
    const zf_step_report_t *r = &t->report;
    uint64_t n = count_skipped(t), before = t->n_skipped, power = n;
    while (power & (power - 1))
        power &= power - 1;
    t->n_skipped = n;
    if (power <= before)
        return;
    warn(t, "step %llu%s was skipped: %s%.80s%s not finite, so its gradients update nothing (%llu such steps so far)",
         (unsigned long long)r->step, r->applied ? ", or one just before," : "",
         r->nonfinite_param < t->n_arrays ? "the gradient of \"" : "a gradient, or the gradients' norm,",
         r->nonfinite_param < t->n_arrays ? t->arrays[r->nonfinite_param].name : "",
         r->nonfinite_param < t->n_arrays ? "\" is" : " is", (unsigned long long)n);
}

/* Whoever asked for overlap and reads weights without waiting may read them half written. */
static void warn_of_waits(zf_trainer_t *t) {
    if (t->flags & ZF_TRAINER_OVERLAP && ++t->n_steps == 3 && t->n_waits == 0)
        warn(t, "ZF_TRAINER_OVERLAP was asked for, but neither zf_trainer_wait() nor zf_trainer_wait_for() has been "
                "called in two steps: weights are read while they are being written");
}

/* Of a step with this learning rate. */
static zf_step_args_t step_args(zf_trainer_t *trainer, double lr) {
    zf_step_args_t args = {.struct_size = sizeof args};
    for (uint32_t i = 0; i < trainer->n_groups; ++i)
        trainer->groups[i].lr = lr;
    args.groups = trainer->groups, args.n_groups = trainer->n_groups;
    args.elem_size = sizeof trainer->groups[0];
    args.clip_norm = trainer->clip_norm;
    args.stream = &trainer->stream;
    return args;
}

zf_status_t zf_trainer_announce(zf_trainer_t *trainer, double lr) {
    zf_status_t st = check(trainer, 1, "announce");
    if (st < 0)
        return st;
    zf_step_args_t args = step_args(trainer, lr);
    return take(trainer, trainer->zf->announce(trainer->instance, &args, &trainer->error));
}

zf_status_t zf_trainer_step(zf_trainer_t *trainer, double lr) {
    zf_status_t st = check(trainer, 1, "step"), submitted;
    if (st < 0)
        return st;
    warn_of_waits(trainer);
    st = deliver_the_rest(trainer);
    if (st < 0)
        return st;
    zf_step_args_t args = step_args(trainer, lr);
    submitted = take(trainer, trainer->zf->step(trainer->instance, &args, &trainer->report, &trainer->error));
    for (uint32_t i = 0; i < trainer->n_arrays && submitted == ZF_ERR_OVERWRITTEN; ++i)
        trainer->arrays[i].is_ready = 1; /* the plugin has them still */
    if (submitted >= 0)
        warn_of_skip(trainer);
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
    zf_status_t st = check(trainer, 1, "discard");
    if (st < 0)
        return st;
    args.flags = ZF_STEP_DISCARD;
    args.stream = &trainer->stream;
    st = take(trainer, trainer->zf->step(trainer->instance, &args, NULL, &trainer->error));
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
    st = take(t, t->zf->param_fetch(t->instance, item, item != NULL, sizeof *item, &t->stream, &there, &t->error));
    pthread_mutex_unlock(&t->lock);
    if (st < 0)
        return st;
    st = wait_for(t, &there, &error);
    if (st >= 0)
        return st;
    pthread_mutex_lock(&t->lock);
    t->error = error;
    st = take(t, st);
    pthread_mutex_unlock(&t->lock);
    return st;
}

zf_status_t zf_trainer_wait(zf_trainer_t *trainer) {
    zf_status_t st = check(trainer, 1, "wait");
    return st < 0 || !(trainer->flags & ZF_TRAINER_OVERLAP) ? st : fetch(trainer, NULL);
}

zf_status_t zf_trainer_wait_for(zf_trainer_t *trainer, int32_t array, int32_t first, int32_t n) {
    zf_param_item_t item = {.struct_size = sizeof item};
    if (trainer == NULL)
        return ZF_ERR_MEMORY;
    pthread_mutex_lock(&trainer->lock);
    zf_status_t st = check_array(trainer, array, "wait_for");
    if (st >= 0 && (first < 0 || n < 0))
        st = fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_wait_for: matrices %d.. of \"%.80s\", %d of them", (int)first,
                  trainer->arrays[array].name, (int)n);
    pthread_mutex_unlock(&trainer->lock);
    if (st < 0 || !(trainer->flags & ZF_TRAINER_OVERLAP))
        return st;
    item.id = trainer->ids[array];
    item.first_batch = (uint32_t)first;
    item.n_batches = (uint32_t)n;
    return fetch(trainer, &item);
}

zf_status_t zf_trainer_params_changed(zf_trainer_t *trainer) {
    zf_status_t st = check(trainer, 1, "params_changed");
    if (st < 0)
        return st;
    return take(trainer,
                trainer->zf->params_changed(trainer->instance, NULL, 0, sizeof(zf_param_item_t), 0, &trainer->error));
}

zf_status_t zf_trainer_flush(zf_trainer_t *trainer) {
    const zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    zf_status_t st = check(trainer, 1, "flush");
    return st < 0 ? st : take(trainer, trainer->zf->quiesce(trainer->instance, &flush, &trainer->error));
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

static zf_status_t save_or_load(zf_trainer_t *t, const char *directory, int is_load) {
    zf_state_args_t args = {.struct_size = sizeof args, .path = directory};
    zf_status_t st = check(t, 1, is_load ? "load" : "save");
    if (st < 0)
        return st;
    const zf_state_ext_t *state = t->zf->get_extension(ZF_EXT_STATE);
    if (state == NULL)
        return fail(t, ZF_ERR_ABI, "%s has no %s: this plugin cannot save", zf_loader_file(t->loader), ZF_EXT_STATE);
    t->error.message[0] = '\0'; /* of a save or load before */
    if (is_load && (st = wait_for_gradients(t)) < 0)
        return st;
    st = (is_load ? state->load : state->save)(t->instance, &args, NULL, &t->error);
    if (is_load && st >= 0) {
        forget_announced(t); /* the plugin has dropped it */
        t->n_skipped = count_skipped(t);
    }
    return st;
}

zf_status_t zf_trainer_save(zf_trainer_t *trainer, const char *directory) {
    return save_or_load(trainer, directory, 0);
}

zf_status_t zf_trainer_load(zf_trainer_t *trainer, const char *directory) {
    return save_or_load(trainer, directory, 1);
}

/* ---- what is behind it ------------------------------------------------------------------------------------------- */

const zf_step_report_t *zf_trainer_report(const zf_trainer_t *trainer) {
    static const zf_step_report_t none;
    return trainer == NULL ? &none : &trainer->report;
}

const zf_layout_t *zf_trainer_layout(const zf_trainer_t *trainer) {
    static const zf_layout_t none;
    return trainer == NULL ? &none : &trainer->layout;
}

const zf_plugin_t *zf_trainer_plugin(const zf_trainer_t *trainer) { return trainer == NULL ? NULL : trainer->zf; }

zf_instance_t *zf_trainer_instance(const zf_trainer_t *trainer) { return trainer == NULL ? NULL : trainer->instance; }

void zf_trainer_free(zf_trainer_t *trainer) {
    if (trainer == NULL)
        return;
    if (trainer->instance != NULL)
        trainer->zf->destroy(trainer->instance, NULL);
    pthread_mutex_destroy(&trainer->lock);
    zf_loader_close(trainer->loader);
    for (uint32_t i = 0; i < trainer->n_arrays; ++i)
        free(trainer->arrays[i].name);
    for (uint32_t i = 0; i < trainer->n_settings; ++i)
        free(trainer->settings[i]);
    free(trainer->arrays);
    free(trainer->settings);
    free(trainer->config_path);
    free(trainer->grads);
    free(trainer->items);
    free(trainer->fences);
    free(trainer->ids);
    free(trainer);
}
