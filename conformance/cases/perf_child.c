/* SPDX-License-Identifier: Apache-2.0 */
/* perf_child.c - one configuration measured: bind, warm up, then count a whole number of windows (perf_area.h).
 *
 * Memory is read three ways: what bind_params planned, what the plugin says it has mapped, and what the kernel says
 * this process has grown by (RssAnon of /proc/self/status). Allocations are counted by zf_count_alloc.so, which the
 * parent preloads. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "perf_area.h"

#include "perf_model.h"
#include "zf/ext/draft/plan.h"
#include "zf_loader.h"

#include <dlfcn.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SETS = 80, N_WINDOWS = 8, N_SETTLE = 64 };
static const uint64_t timeout_ns = UINT64_C(60000000000);

typedef struct rig {
    zp_model_t model;
    zf_loader_t *loader;
    const zf_plugin_t *zf;
    zf_host_t host;
    const char *sets[MAX_SETS];
    char interval[64];
    zf_create_args_t args;
    zf_stream_t stream;
    zf_instance_t *instance;
    zf_plan_t plan;
    zf_tensor_t *tensors; /* [2 n] values, gradients */
    zf_fence_t *done;     /* [n] */
    uint32_t *ids;        /* [n] */
    unsigned step;
    zf_error_t error;
} rig_t;

/* Counters of zf.stats/1. */
#define COUNTERS(X)                                                                                                    \
    X(steps)                                                                                                           \
    X(stall_replay_ns)                                                                                                 \
    X(stall_select_ns)                                                                                                 \
    X(stall_pool_ns)                                                                                                   \
    X(down_grad_nbytes)                                                                                                \
    X(down_record_nbytes)                                                                                              \
    X(up_publish_nbytes)                                                                                               \
    X(up_enter_nbytes)                                                                                                 \
    X(host_measured_nbytes)                                                                                            \
    X(device_planned_nbytes)                                                                                           \
    X(device_measured_nbytes)
#define MEMBER(name) uint64_t name;
typedef struct counters {
    COUNTERS(MEMBER)
} counters_t;

typedef struct sample {
    counters_t stats;
    unsigned long started_allocations[2], ended_allocations[2]; /* before and after the sample itself; hooks, others */
    double rss_nbytes, mapped_nbytes, seconds;
} sample_t;

static int fail(rig_t *r, const char *what) {
    (void)fprintf(stderr, "%s: %s\n", what, r->error.message);
    return -1;
}

static double now_seconds(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A "Key:   N kB" line of /proc/self/status, in bytes. */
static double read_status(const char *key) {
    char line[256];
    double kib = 0.0;
    FILE *file = fopen("/proc/self/status", "r");

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtod(line + strlen(key), NULL);
    if (file != NULL)
        (void)fclose(file);
    return 1024.0 * kib;
}

static int create(rig_t *r, const zp_setting_t *s) {
    zf_create_args_t *args = &r->args;
    size_t n = s->n_sets < MAX_SETS - 1 ? s->n_sets : MAX_SETS - 1;

    if (s->n_sets > 0)
        memcpy(r->sets, s->sets, n * sizeof *r->sets);
    (void)snprintf(r->interval, sizeof r->interval, "zenflow.update_interval=%u", s->interval);
    r->sets[n++] = r->interval;
    if (zf_loader_open(s->plugin, &r->loader, &r->error) < 0)
        return fail(r, "open");
    r->zf = zf_loader_plugin(r->loader);
    zf_host_stderr("zf-conform", "0.1", ZF_LOG_WARN, &r->host);
    zf_stream_host_thread(&r->stream);
    memset(args, 0, sizeof *args);
    args->struct_size = sizeof *args;
    args->flags = ZF_CREATE_CAP_FETCH;
    args->host = &r->host;
    args->config_path = s->config;
    args->overrides = r->sets;
    args->n_overrides = (uint32_t)n;
    args->device_type = ZF_DEVICE_CPU;
    return r->zf->create(args, &r->instance, &r->error) < 0 ? fail(r, "create") : 0;
}

/* The parts of the memory plan, which bind_params does not tell. */
static zf_status_t plan(rig_t *r, const zf_bind_args_t *bind) {
    const zf_plan_ext_t *ext = r->zf->get_extension(ZF_EXT_PLAN);
    zf_plan_args_t args;

    if (ext == NULL)
        return fail(r, "the plugin has no extension " ZF_EXT_PLAN);
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.create = &r->args;
    args.bind = bind;
    r->plan.struct_size = sizeof r->plan;
    return ext->plan(&args, &r->plan, &r->error);
}

static int bind_all(rig_t *r) {
    zp_model_t *m = &r->model;
    zf_dtype_t dtype = m->gradient_size == 2 ? zf_dtype_bfloat16() : zf_dtype_float32();
    zf_param_decl_t *decls = calloc(m->n, sizeof *decls);
    zf_bind_args_t bind = {
        .struct_size = sizeof bind, .decls = decls, .n_decls = (uint32_t)m->n, .decl_size = sizeof *decls};
    zf_status_t st;

    if (decls == NULL)
        return fail(r, "out of memory");
    for (size_t i = 0; i < m->n; i++) {
        zp_tensor_t *t = &m->list[i];

        zf_tensor_contiguous(t->value, zf_dtype_bfloat16(), t->n_dims, t->shape, &r->tensors[i]);
        zf_tensor_contiguous(t->grad, dtype, t->n_dims, t->shape, &r->tensors[m->n + i]);
        decls[i].struct_size = sizeof decls[i];
        decls[i].name = t->name;
        decls[i].tensor = &r->tensors[i];
        decls[i].grad_dtype = dtype;
    }
    st = plan(r, &bind);
    if (st >= 0)
        st = r->zf->bind_params(r->instance, &bind, r->ids, NULL, &r->error);
    free(decls);
    return st < 0 ? fail(r, "bind_params") : 0;
}

static int deliver(rig_t *r) {
    for (size_t i = r->model.n; i-- > 0;) { /* as a backward does: last layer first */
        zf_grad_item_t item;

        memset(&item, 0, sizeof item);
        item.struct_size = sizeof item;
        item.id = r->ids[i];
        item.flags = ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_ASYNC_READ;
        item.tensor = &r->tensors[r->model.n + i];
        memset(&r->done[i], 0, sizeof r->done[i]);
        r->done[i].struct_size = sizeof r->done[i];
        if (r->zf->grads_ready(r->instance, &item, 1, sizeof item, &r->stream, &r->done[i], &r->error) < 0)
            return fail(r, "grads_ready");
    }
    return 0;
}

static int step(rig_t *r) {
    zf_group_hyper_t group;
    zf_step_args_t args;

    memset(&group, 0, sizeof group);
    group.struct_size = sizeof group;
    group.lr = 1e-4;
    group.beta1 = 0.9;
    group.beta2 = 0.999;
    group.eps = 1e-8;
    group.weight_decay = 0.01;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.groups = &group;
    args.n_groups = 1;
    args.elem_size = sizeof group;
    args.unscale = 1.0;
    args.clip_norm = 1.0;
    args.stream = &r->stream;
    return r->zf->step(r->instance, &args, NULL, &r->error) < 0 ? fail(r, "step") : 0;
}

/* Waits until all gradients have been read and all parameters are in place. */
static int fetch(rig_t *r) {
    zf_fence_t ready;

    memset(&ready, 0, sizeof ready);
    ready.struct_size = sizeof ready;
    for (size_t i = 0; i < r->model.n; i++)
        if (zf_loader_fence_wait(r->loader, &r->done[i], timeout_ns, &r->error) < 0)
            return fail(r, "waiting for a gradient's fence");
    if (r->zf->param_fetch(r->instance, NULL, 0, 0, &r->stream, &ready, &r->error) < 0 ||
        zf_loader_fence_wait(r->loader, &ready, timeout_ns, &r->error) < 0)
        return fail(r, "param_fetch");
    return 0;
}

static int run_steps(rig_t *r, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        zp_model_fill_gradients(&r->model, ++r->step);
        if (deliver(r) != 0 || step(r) != 0 || fetch(r) != 0)
            return -1;
    }
    return 0;
}

/* Of zf_count_alloc.so: by the thread that calls the hooks, by any other. NULL where it is not preloaded. */
static const unsigned long *allocation_counters(void) { return dlsym(RTLD_DEFAULT, "zfc_allocations"); }

static void count_allocations(unsigned long out[2]) {
    const unsigned long *counters = allocation_counters();

    for (int i = 0; i < 2; i++)
        out[i] = counters != NULL ? __atomic_load_n(&counters[i], __ATOMIC_RELAXED) : 0;
}

static zf_status_t read_counters(rig_t *r, counters_t *out) {
    zf_status_t st = ZF_OK;

#define READ(name)                                                                                                     \
    if (st >= 0)                                                                                                       \
        st = zf_counter_value(r->zf, r->instance, #name, &out->name, &r->error);
    COUNTERS(READ)
    return st;
}

static int take_sample(rig_t *r, sample_t *out) {
    const zf_quiesce_args_t drain = {.struct_size = sizeof drain, .mode = ZF_QUIESCE_DRAIN};

    memset(out, 0, sizeof *out);
    out->seconds = now_seconds();
    count_allocations(out->started_allocations);
    if (r->zf->quiesce(r->instance, &drain, &r->error) < 0 || read_counters(r, &out->stats) < 0)
        return fail(r, "reading the counters");
    out->rss_nbytes = read_status("RssAnon:");
    out->mapped_nbytes = read_status("VmSize:");
    count_allocations(out->ended_allocations);
    return 0;
}

static json_t *memory_of(const rig_t *r, const sample_t *before, const sample_t *last) {
    const zf_plan_t *l = &r->plan;
    const counters_t *s = &last->stats;
    double m = (double)l->n_elems;

    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "n_elems", m, "selected_share",
                     (double)l->n_selected_elems / m, "state", (double)l->host_state_nbytes / m, "slots",
                     (double)l->host_slots_nbytes / m, "publish", (double)l->host_publish_nbytes / m, "planned",
                     (double)l->host_nbytes / m, "mapped", (double)s->host_measured_nbytes / m, "device_planned",
                     (double)s->device_planned_nbytes / m, "device_mapped", (double)s->device_measured_nbytes / m,
                     "outside", (last->rss_nbytes - before->rss_nbytes) / m, "slots_mean",
                     (double)l->slots_mean_milli / 1000.0, "slots_peak", (double)l->slots_peak_milli / 1000.0);
}

/* Between two samples; -1 where nothing counts. */
static double allocations(const sample_t *a, const sample_t *b, int i) {
    return allocation_counters() == NULL ? -1.0 : (double)(b->started_allocations[i] - a->ended_allocations[i]);
}

static json_t *counts_of(const rig_t *r, const sample_t *a, const sample_t *b) {
    double n = (double)(b->stats.steps - a->stats.steps), m = (double)r->plan.n_elems;
    uint64_t stall = b->stats.stall_replay_ns + b->stats.stall_select_ns + b->stats.stall_pool_ns -
                     a->stats.stall_replay_ns - a->stats.stall_select_ns - a->stats.stall_pool_ns;

#define PER_STEP(member) ((double)(b->stats.member - a->stats.member) / n / m)
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "steps", n, "down",
                     PER_STEP(down_grad_nbytes), "records", PER_STEP(down_record_nbytes), "up",
                     PER_STEP(up_publish_nbytes), "enter", PER_STEP(up_enter_nbytes), "stall_us",
                     (double)stall / n * 1e-3, "step_us", (b->seconds - a->seconds) / n * 1e6, "hook_allocations",
                     allocations(a, b, 0), "worker_allocations", allocations(a, b, 1), "growth",
                     b->mapped_nbytes - a->mapped_nbytes);
#undef PER_STEP
}

/* One line on standard output; takes the object over. */
static int print_line(json_t *object) {
    int st = object != NULL ? json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) : -1;

    json_decref(object);
    return puts("") < 0 || st != 0 ? -1 : 0;
}

static int measure(rig_t *r, const zp_setting_t *s) {
    sample_t before = {.rss_nbytes = read_status("RssAnon:")}, first, last;
    unsigned n = s->interval * N_WINDOWS > 32 ? s->interval * N_WINDOWS : 32;
    json_t *figures, *counts;

    if (create(r, s) != 0 || bind_all(r) != 0)
        return -1;
    if (run_steps(r, N_SETTLE) != 0 || take_sample(r, &first) != 0)
        return -1;
    if (run_steps(r, n) != 0 || take_sample(r, &last) != 0)
        return -1;
    figures = memory_of(r, &before, &last);
    counts = counts_of(r, &first, &last);
    (void)json_object_update(figures, counts);
    json_decref(counts);
    return print_line(figures);
}

int zp_perf_child(const zp_setting_t *s) {
    static rig_t r;
    int st = -1;

    r.error.struct_size = sizeof r.error;
    if (zp_model_init(&r.model, s->millions, s->gradient_size) == 0) {
        r.tensors = calloc(2 * r.model.n, sizeof *r.tensors);
        r.done = calloc(r.model.n, sizeof *r.done);
        r.ids = calloc(r.model.n, sizeof *r.ids);
        zp_model_fill_gradients(&r.model, 0); /* so that its memory counts before */
        if (r.tensors != NULL && r.done != NULL && r.ids != NULL)
            st = measure(&r, s);
    }
    if (r.instance != NULL)
        r.zf->destroy(r.instance, NULL);
    zf_loader_close(r.loader);
    free(r.ids);
    free(r.done);
    free(r.tensors);
    zp_model_free(&r.model);
    return st == 0 ? 0 : 2;
}
