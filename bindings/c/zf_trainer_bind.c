/* SPDX-License-Identifier: Apache-2.0 */
/* zf_trainer_bind.c - see zf_trainer.h: errors, what is said before bind(), and bind(). */
#define _POSIX_C_SOURCE 200809L /* strdup */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zf_trainer_parts.h"

/* ---- errors ------------------------------------------------------------------------------------------------------ */

zf_status_t zf_trainer_fail(zf_trainer_t *t, zf_status_t status, const char *format, ...) {
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

zf_status_t zf_trainer_take(zf_trainer_t *t, zf_status_t status) {
    if (status < 0 && t->status == ZF_OK && !t->error.retryable)
        t->status = status;
    return status;
}

zf_status_t zf_trainer_check(zf_trainer_t *t, int needs_bound, const char *function) {
    if (t == NULL)
        return ZF_ERR_MEMORY;
    if (t->status < 0)
        return t->status;
    if (needs_bound != (t->instance != NULL))
        return zf_trainer_fail(t, ZF_ERR_STATE, "zf_trainer_%s() must come %s zf_trainer_bind()", function,
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
    t->bind_report.struct_size = sizeof t->bind_report;
    t->flags = flags;
    pthread_mutex_init(&t->lock, NULL);
    set_group(&t->groups[0], 0.9, 0.999, 1e-8, 0.0);
    t->rates[0] = -1;
    t->n_own = 1;
    t->w_dtype = t->g_dtype = zf_dtype_float32();
    zf_stream_host_thread(&t->stream);
    zf_host_stderr("zf_trainer", "1", ZF_LOG_WARN, &t->host);
    if (flags & ~(ZF_TRAINER_OVERLAP | ZF_TRAINER_NO_SYNC))
        zf_trainer_fail(t, ZF_ERR_ARGUMENT,
                        "zf_trainer_new: flags are %#x; known: ZF_TRAINER_OVERLAP (1), ZF_TRAINER_NO_SYNC (2)", flags);
    if (config_path != NULL && (t->config_path = strdup(config_path)) == NULL)
        zf_trainer_fail(t, ZF_ERR_MEMORY, "zf_trainer_new: no memory");
    if (t->status == ZF_OK)
        zf_trainer_take(t, zf_loader_open(plugin_path, &t->loader, &t->error));
    if (t->loader != NULL)
        t->zf = zf_loader_plugin(t->loader);
    return t;
}

zf_status_t zf_trainer_set(zf_trainer_t *trainer, const char *key_value) {
    zf_status_t st = zf_trainer_check(trainer, 0, "set");
    if (st < 0)
        return st;
    if (key_value == NULL)
        return zf_trainer_fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_set: NULL; give \"section.key=value\"");
    char **more = realloc(trainer->settings, (trainer->n_settings + 1) * sizeof *more);
    if (more != NULL)
        trainer->settings = more;
    if (more == NULL || (more[trainer->n_settings] = strdup(key_value)) == NULL)
        return zf_trainer_fail(trainer, ZF_ERR_MEMORY, "zf_trainer_set: no memory for \"%.80s\"", key_value);
    trainer->n_settings++;
    return ZF_OK;
}

static int is_same_group(const zf_group_hyper_t *a, const zf_group_hyper_t *b) {
    return memcmp(&a->beta1, &b->beta1, sizeof *a - offsetof(zf_group_hyper_t, beta1)) == 0;
}

/* The settings of what is added next, in the trainer's own group `of`. */
static zf_status_t choose_group(zf_trainer_t *t, const zf_group_hyper_t *wanted, uint32_t of, const char *function) {
    uint32_t i = 0;
    while (i < t->n_groups && !(t->of[i] == of && is_same_group(&t->groups[i], wanted)))
        i++;
    if (i == MAX_GROUPS)
        return zf_trainer_fail(t, ZF_ERR_ARGUMENT, "zf_trainer_%s: more than %d different settings", function,
                               MAX_GROUPS);
    t->groups[i] = *wanted;
    t->of[i] = of;
    t->group = i;
    return ZF_OK;
}

zf_status_t zf_trainer_adamw(zf_trainer_t *trainer, double beta1, double beta2, double eps, double weight_decay) {
    zf_group_hyper_t wanted;
    zf_status_t st = zf_trainer_check(trainer, 0, "adamw");
    if (st < 0)
        return st;
    set_group(&wanted, beta1, beta2, eps, weight_decay);
    return choose_group(trainer, &wanted, trainer->n_own - 1, "adamw");
}

int32_t zf_trainer_group(zf_trainer_t *trainer) {
    zf_status_t st = zf_trainer_check(trainer, 0, "group");
    if (st >= 0) {
        const zf_group_hyper_t same = trainer->groups[trainer->group];
        st = choose_group(trainer, &same, trainer->n_own, "group");
    }
    if (st < 0)
        return st;
    trainer->rates[trainer->n_own] = -1;
    return (int32_t)trainer->n_own++;
}

zf_status_t zf_trainer_dtypes(zf_trainer_t *trainer, zf_dtype_t weights, zf_dtype_t gradients) {
    zf_status_t st = zf_trainer_check(trainer, 0, "dtypes");
    if (st < 0)
        return st;
    trainer->w_dtype = weights; /* bind() checks them */
    trainer->g_dtype = gradients;
    return ZF_OK;
}

zf_status_t zf_trainer_clip(zf_trainer_t *trainer, double max_norm) {
    if (trainer == NULL)
        return ZF_ERR_MEMORY;
    trainer->clip_norm = max_norm; /* step() checks it */
    return trainer->status;
}

zf_status_t zf_trainer_unscale(zf_trainer_t *trainer, double unscale) {
    if (trainer == NULL)
        return ZF_ERR_MEMORY;
    trainer->unscale = unscale; /* step() checks it */
    return trainer->status;
}

zf_status_t zf_trainer_rate(zf_trainer_t *trainer, int32_t group, double lr) {
    if (trainer == NULL)
        return ZF_ERR_MEMORY;
    if (trainer->status < 0)
        return trainer->status;
    if (group < 0 || (uint32_t)group >= trainer->n_own || !(lr >= 0))
        return zf_trainer_fail(trainer, ZF_ERR_ARGUMENT,
                               "zf_trainer_rate: group %d, lr %g; need a group 0..%u, lr >= 0", (int)group, lr,
                               trainer->n_own - 1);
    trainer->rates[group] = lr;
    return ZF_OK;
}

int32_t zf_trainer_add(zf_trainer_t *trainer, const char *name, void *w, void *g, int32_t ndim, const int64_t *shape,
                       int32_t n_batch_axes) {
    zf_status_t st = zf_trainer_check(trainer, 0, "add");
    if (st < 0)
        return st;
    if (name == NULL)
        return zf_trainer_fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_add: array %u has no name", trainer->n_arrays);
    if (w == NULL || g == NULL)
        return zf_trainer_fail(trainer, ZF_ERR_ARGUMENT,
                               "zf_trainer_add: %s of \"%.80s\" is NULL; leave out what is not trained",
                               w == NULL ? "w" : "g", name);
    if (ndim < 0 || ndim > ZF_MAX_NDIM || (ndim > 0 && shape == NULL))
        return zf_trainer_fail(trainer, ZF_ERR_SHAPE, "zf_trainer_add: \"%.80s\" has %d axes%s, need 0..%d and a shape",
                               name, (int)ndim, shape == NULL ? " and no shape" : "", ZF_MAX_NDIM);
    array_t *more = realloc(trainer->arrays, (trainer->n_arrays + 1) * sizeof *more);
    if (more != NULL)
        trainer->arrays = more;
    char *copy = strdup(name);
    if (more == NULL || copy == NULL) {
        free(copy);
        return zf_trainer_fail(trainer, ZF_ERR_MEMORY, "zf_trainer_add: no memory for \"%.80s\"", name);
    }
    array_t *a = &more[trainer->n_arrays];
    *a = (array_t){.name = copy, .w = w, .g = g, .ndim = ndim, .n_batch_axes = n_batch_axes, .group = trainer->group};
    a->w_dtype = trainer->w_dtype, a->g_dtype = trainer->g_dtype;
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
    return zf_trainer_take(t, t->zf->create(&args, &t->instance, &t->error));
}

static void describe(zf_trainer_t *t, zf_param_decl_t *decls, zf_tensor_t *weights) {
    for (uint32_t i = 0; i < t->n_arrays; ++i) {
        const array_t *a = &t->arrays[i];
        zf_tensor_contiguous(a->w, a->w_dtype, a->ndim, a->shape, &weights[i]);
        zf_tensor_contiguous(a->g, a->g_dtype, a->ndim, a->shape, &t->grads[i]);
        decls[i] = (zf_param_decl_t){.struct_size = sizeof decls[i], .grad_dtype = a->g_dtype};
        decls[i].name = a->name, decls[i].tensor = &weights[i];
        decls[i].group = a->group, decls[i].n_batch_axes = a->n_batch_axes;
    }
}

zf_status_t zf_trainer_bind(zf_trainer_t *trainer) {
    zf_status_t st = zf_trainer_check(trainer, 0, "bind");
    if (st < 0)
        return st;
    size_t n = trainer->n_arrays;
    if (n == 0)
        return zf_trainer_fail(trainer, ZF_ERR_ARGUMENT, "zf_trainer_bind: no array; call zf_trainer_add() for each");
    zf_param_decl_t *decls = calloc(n, sizeof *decls);
    zf_tensor_t *weights = calloc(n, sizeof *weights);
    trainer->grads = calloc(n, sizeof *trainer->grads);
    trainer->items = calloc(n, sizeof *trainer->items);
    trainer->n_most_fences = (uint32_t)n + MOST_RANGES;
    trainer->fences = calloc(trainer->n_most_fences + 1, sizeof *trainer->fences);
    trainer->ids = calloc(n, sizeof *trainer->ids);
    if (decls == NULL || weights == NULL || trainer->grads == NULL || trainer->items == NULL ||
        trainer->fences == NULL || trainer->ids == NULL) {
        st =
            zf_trainer_fail(trainer, ZF_ERR_MEMORY, "zf_trainer_bind: no memory for the descriptions of %zu arrays", n);
    } else {
        describe(trainer, decls, weights);
        st = create(trainer);
    }
    zf_bind_args_t args = {
        .struct_size = sizeof args, .decls = decls, .n_decls = (uint32_t)n, .decl_size = sizeof decls[0]};
    if (st >= 0)
        st = zf_trainer_take(trainer, trainer->zf->bind_params(trainer->instance, &args, trainer->ids,
                                                               &trainer->bind_report, &trainer->error));
    free(decls);
    free(weights);
    return st;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

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
    free(trainer->note);
    free(trainer->grads);
    free(trainer->items);
    free(trainer->fences);
    free(trainer->ids);
    free(trainer);
}
