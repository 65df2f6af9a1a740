/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_plugin.c - the true plugin with one wrong habit, for the question what the suite would miss.
 *
 * Model: the library loads the plugin that ZF_WRONG_OF names, hands out a copy of its tables and forwards every call.
 * The habit that ZF_WRONG names (wrong.def) changes what goes in or what comes out of one slot. Only what the true
 * plugin does is judged beside it, so nothing here is a second engine. One instance at a time has habits that count
 * steps. */
#define _GNU_SOURCE /* RTLD_NODELETE, sched_setaffinity */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "zf/ext/config.h"
#include "zf/ext/state.h"
#include "zf/ext/stats.h"
#include "zf/plugin.h"

enum {
#define WRONG(name, kind, part, what) WRONG_##name,
#include "wrong.def"
#undef WRONG
    N_WRONG
};
static const char *const names[N_WRONG] = {
#define WRONG(name, kind, part, what) #name,
#include "wrong.def"
#undef WRONG
};

enum { MAX_GROUPS = 64, MAX_PARAMS = 512, MAX_OVERRIDES = 32, LARGE = 1 << 20 };

static const zf_plugin_t *real; /* written once, before a table is handed out */
static zf_plugin_t table;
static zf_state_ext_t state;
static zf_stats_ext_t stats;
static zf_config_ext_t config;
static int habit;
static uint64_t n_steps; /* of the newest instance; the host's thread only */
static zf_host_t host;   /* the host's, and what replaces it */

#define IS(name) (habit == WRONG_##name)

static void pause_ms(long ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL); }

/* ---- create ------------------------------------------------------------------------------------------------------ */

static void *spin(void *arg) {
    volatile unsigned *n = arg;
    for (;;)
        ++*n;
    return NULL;
}

static void be_rude(void) {
    static unsigned counter;
    pthread_t thread;
    cpu_set_t one;
    int fd = -1;
    if (IS(spins) && pthread_create(&thread, NULL, spin, &counter) == 0)
        pthread_detach(thread);
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    if (IS(affinity_changed))
        sched_setaffinity(0, sizeof one, &one);
    if (IS(nice_changed))
        setpriority(PRIO_PROCESS, 0, 7);
    if (IS(file_left))
        fd = open("/tmp/zf-wrong", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (IS(file_in_cwd))
        fd = open("zf-wrong", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    if (IS(leak))
        (void)mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void drop_warning(void *ctx, int32_t level, const char *component, const char *file, int32_t line,
                         const char *msg, uint64_t len) {
    if (level > ZF_LOG_WARN)
        host.log(ctx, level, component, file, line, msg, len);
}

static const char *forced_key(void) {
    return IS(interval_fixed)    ? "zenflow.update_interval=3"
           : IS(predicts_always) ? "zenflow.predict=off"
           : IS(warm_up_longer)  ? "zenflow.full_warm_up_rounds=5"
           : IS(moments_wide)    ? "host.moments_dtype=float32"
                                 : NULL;
}

static zf_status_t create(const zf_create_args_t *args, zf_instance_t **out, zf_error_t *err) {
    zf_create_args_t mine;
    zf_host_t quiet;
    const char *keys[MAX_OVERRIDES];
    if (!args || args->struct_size != sizeof mine || args->n_overrides >= MAX_OVERRIDES - 1 || !args->host)
        return real->create(args, out, err);
    mine = *args;
    be_rude();
    n_steps = 0;
    if (forced_key()) {
        if (mine.n_overrides)
            memcpy(keys, mine.overrides, mine.n_overrides * sizeof *keys);
        keys[mine.n_overrides++] = forced_key();
        mine.overrides = keys;
    }
    if (IS(warning_lost) && mine.host->struct_size == sizeof quiet && mine.host->log) {
        host = quiet = *mine.host;
        quiet.log = drop_warning;
        mine.host = &quiet;
    }
    return real->create(&mine, out, err);
}

/* ---- bind_params ------------------------------------------------------------------------------------------------- */

static void spoil_decl(zf_param_decl_t *d) {
    uint32_t lost = IS(frozen_trained) ? ZF_PARAM_FROZEN : IS(norm_lost) ? ZF_PARAM_NOT_IN_NORM : 0;
    d->flags &= ~lost;
    if ((IS(never_lost) && d->home == ZF_HOME_HOST) || (IS(always_lost) && d->home == ZF_HOME_RESIDENT))
        d->home = ZF_HOME_PLUGIN;
    if (IS(rows_lost))
        d->channels = ZF_CHANNELS_COLUMNS;
    if (IS(batch_lost))
        d->n_batch_axes = 0;
}

static void spoil_layout(zf_layout_t *l) {
    if (IS(layout_elems))
        l->n_elems++;
    if (IS(layout_halved))
        l->host_nbytes /= 2;
}

static zf_status_t bind_params(zf_instance_t *instance, const zf_bind_args_t *args, uint32_t *out_ids,
                               zf_layout_t *out_layout, zf_error_t *err) {
    static zf_param_decl_t decls[MAX_PARAMS];
    zf_bind_args_t mine;
    zf_status_t st;
    if (!args || args->struct_size != sizeof mine || args->decl_size != sizeof *decls || args->n_decls > MAX_PARAMS ||
        !args->decls)
        return real->bind_params(instance, args, out_ids, out_layout, err);
    mine = *args;
    mine.decls = decls;
    memcpy(decls, args->decls, mine.n_decls * sizeof *decls);
    for (uint32_t i = 0; i < mine.n_decls; i++)
        spoil_decl(&decls[i]);
    st = real->bind_params(instance, &mine, out_ids, out_layout, err);
    if (IS(maps_more))
        (void)mmap(NULL, (size_t)64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (st == ZF_OK && out_layout)
        spoil_layout(out_layout);
    return st;
}

static zf_status_t params_changed(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                  uint32_t flags, zf_error_t *err) {
    if (IS(changed_ignored))
        return ZF_OK;
    if (IS(changed_resets))
        flags |= ZF_CHANGED_RESET;
    if (IS(reset_lost))
        flags &= ~ZF_CHANGED_RESET;
    return real->params_changed(instance, items, n, elem_size, flags, err);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static size_t elements(const zf_tensor_t *t) {
    size_t n = 1;
    for (int32_t i = 0; i < t->dl.ndim; i++)
        n *= (size_t)t->dl.shape[i];
    return n;
}

static int is_plain_fp32(const zf_tensor_t *t) {
    return t->dl.dtype.code == ZF_DTYPE_CODE_FLOAT && t->dl.dtype.bits == 32 && !t->dl.strides && elements(t) > 0;
}

/* Writes into the host's gradient: what a host thread delivers is there already. */
static void spoil_values(const zf_tensor_t *t) {
    float *x = (float *)(void *)((char *)t->dl.data + t->dl.byte_offset);
    size_t n = elements(t);
    if (IS(last_of_large) && n > LARGE)
        x[n - 1] = 0.0f;
    if (IS(nan_hidden) && isnan(x[n - 1]))
        x[n - 1] = 0.0f;
    for (size_t i = 0; IS(grad_rounded) && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        bits &= 0xFFFF0000u;
        memcpy(&x[i], &bits, 4);
    }
}

static int is_dropped(const zf_grad_item_t *item) {
    return (IS(params_from_256) && item->id >= 256) || (IS(last_param) && item->id > 0);
}

static void spoil_item(zf_grad_item_t *item, const zf_stream_t *stream) {
    if (IS(replace_lost))
        item->flags &= ~ZF_GRAD_REPLACE;
    if (IS(part_is_total) && item->flags & ZF_GRAD_PART)
        item->flags = (item->flags & ~ZF_GRAD_PART) | ZF_GRAD_TOTAL;
    if (item->tensor && stream->kind == ZF_STREAM_HOST_THREAD && is_plain_fp32(item->tensor))
        spoil_values(item->tensor);
}

static zf_status_t grads_ready(zf_instance_t *instance, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err) {
    static zf_grad_item_t mine[MAX_PARAMS];
    uint32_t kept = 0;
    zf_status_t st;
    if (IS(slow_hooks))
        pause_ms(5);
    if (elem_size != sizeof *mine || n > MAX_PARAMS || !items || !stream)
        return real->grads_ready(instance, items, n, elem_size, stream, out_done, err);
    for (uint32_t i = 0; i < n; i++) {
        mine[kept] = items[i];
        spoil_item(&mine[kept], stream);
        kept += !is_dropped(&items[i]);
    }
    if (kept == 0 && n > 0 && out_done)
        out_done->kind = ZF_FENCE_NONE;
    if (kept == 0 && n > 0)
        return ZF_OK;
    st = real->grads_ready(instance, mine, kept, elem_size, stream, out_done, err);
    if (IS(done_at_once) && st >= 0 && out_done)
        out_done->kind = ZF_FENCE_NONE;
    return st;
}

/* ---- step, reports ----------------------------------------------------------------------------------------------- */

static void spoil_hyper(zf_group_hyper_t *h, const zf_group_hyper_t *first) {
    if (IS(group_0))
        *h = *first;
    if (IS(lr_off))
        h->lr *= 1.0 + 1e-6;
    if (IS(beta1_off))
        h->beta1 = h->beta1 > 0 ? (double)nextafterf((float)h->beta1, 0.0f) : h->beta1;
    if (IS(beta2_off))
        h->beta2 *= 1.0 - 1e-6;
    if (IS(eps_off))
        h->eps *= 2.0;
    if (IS(decay_off))
        h->weight_decay = 0.0;
    if (IS(beta1_late) && n_steps > 500)
        h->beta1 *= 0.99;
    if (IS(lr_late) && n_steps > 1000)
        h->lr *= 1.01;
}

static void spoil_step(zf_step_args_t *a) {
    if (IS(unscale_lost))
        a->unscale = 0.0;
    if (IS(clip_lost))
        a->clip_norm = 0.0;
    if (IS(clip_double))
        a->clip_norm *= 2.0;
    if (IS(host_norm_lost))
        a->host_norm = NULL;
    if (IS(epoch_lost))
        a->flags &= ~ZF_STEP_EPOCH_END;
    if (IS(discard_steps))
        a->flags &= ~ZF_STEP_DISCARD;
}

static void spoil_report(zf_step_report_t *r) {
    if (IS(norm_wrong))
        r->grad_norm *= 0.5;
    if (IS(missing_unsaid)) {
        r->n_missing = 0;
        r->first_missing = ZF_NO_ID;
    }
}

static zf_status_t step(zf_instance_t *instance, const zf_step_args_t *args, zf_step_report_t *out_report,
                        zf_error_t *err) {
    zf_group_hyper_t groups[MAX_GROUPS];
    zf_step_args_t mine;
    zf_status_t st;
    if (IS(slow_step))
        pause_ms(10);
    if (!args || args->struct_size != sizeof mine || !args->groups || args->n_groups > MAX_GROUPS ||
        args->elem_size != sizeof *groups)
        return real->step(instance, args, out_report, err);
    mine = *args;
    n_steps++;
    memcpy(groups, args->groups, args->n_groups * sizeof *groups);
    for (uint32_t i = 0; i < args->n_groups; i++)
        spoil_hyper(&groups[i], &args->groups[0]);
    mine.groups = groups;
    spoil_step(&mine);
    st = real->step(instance, &mine, out_report, err);
    if (st >= 0 && out_report && out_report->struct_size == sizeof *out_report)
        spoil_report(out_report);
    return st;
}

static zf_status_t poll_once(zf_instance_t *instance, zf_step_report_t *out_report, zf_error_t *err) {
    zf_status_t st = real->poll(instance, out_report, err);
    if (IS(slow_hooks))
        pause_ms(5);
    if (st >= 0 && out_report && out_report->struct_size == sizeof *out_report)
        spoil_report(out_report);
    return IS(poll_too_early) && st == ZF_IN_PROGRESS ? ZF_OK : st;
}

/* ---- fetch, quiesce, export -------------------------------------------------------------------------------------- */

static zf_status_t param_fetch(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_ready, zf_error_t *err) {
    if (IS(fetch_nothing)) {
        if (out_ready)
            out_ready->kind = ZF_FENCE_NONE;
        return ZF_OK;
    }
    return real->param_fetch(instance, items, n, elem_size, stream, out_ready, err);
}

static zf_status_t quiesce(zf_instance_t *instance, const zf_quiesce_args_t *args, zf_error_t *err) {
    zf_quiesce_args_t other = {.struct_size = sizeof other};
    if (args && IS(flush_drains) && args->mode == ZF_QUIESCE_FLUSH)
        other.mode = ZF_QUIESCE_DRAIN;
    else if (args && IS(drain_flushes) && args->mode == ZF_QUIESCE_DRAIN)
        other.mode = ZF_QUIESCE_FLUSH;
    return real->quiesce(instance, other.mode ? &other : args, err);
}

static zf_status_t export_params(zf_instance_t *instance, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                 zf_error_t *err) {
    zf_status_t st = real->export_params(instance, items, n, elem_size, err);
    if (IS(export_ulp) && st == ZF_OK && n > 0 && items[0].dst_nbytes)
        items[0].dst[0] = nextafterf(items[0].dst[0], INFINITY);
    return st;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Passed in by hooks that are refused: the record of the slots below is spoiled behind the call. */
static zf_status_t spoil_error(zf_status_t st, zf_error_t *err) {
    if (st < 0 && err && err->struct_size == sizeof *err) {
        if (IS(scope_wrong))
            err->scope = ZF_SCOPE_INSTANCE;
        if (IS(retryable_wrong))
            err->retryable = 1;
    }
    return st;
}

static zf_status_t create_told(const zf_create_args_t *args, zf_instance_t **out, zf_error_t *err) {
    return spoil_error(create(args, out, err), err);
}

/* ---- zf.state/1 -------------------------------------------------------------------------------------------------- */

static const zf_state_ext_t *real_state;

static zf_status_t save(zf_instance_t *instance, const zf_state_args_t *args, zf_state_report_t *out_report,
                        zf_error_t *err) {
    static char cut[70000];
    zf_state_args_t mine;
    if (!args || args->struct_size != sizeof mine)
        return real_state->save(instance, args, out_report, err);
    mine = *args;
    if (IS(note_lost))
        mine.note = NULL;
    if (IS(note_cut) && mine.note && *mine.note && strlen(mine.note) < sizeof cut) {
        strcpy(cut, mine.note);
        cut[strlen(cut) - 1] = '\0';
        mine.note = cut;
    }
    if (IS(save_compact))
        mine.flags |= ZF_STATE_COMPACT;
    if (IS(save_unsynced))
        mine.flags |= ZF_STATE_NO_SYNC;
    return real_state->save(instance, &mine, out_report, err);
}

static zf_status_t load(zf_instance_t *instance, const zf_state_args_t *args, zf_state_report_t *out_report,
                        zf_error_t *err) {
    return IS(load_ignored) ? real_state->verify(args, out_report, err)
                            : real_state->load(instance, args, out_report, err);
}

static zf_status_t verify(const zf_state_args_t *args, zf_state_report_t *out_report, zf_error_t *err) {
    return IS(verify_blind) ? ZF_OK : real_state->verify(args, out_report, err);
}

static zf_status_t weights(const zf_state_args_t *args, const char *param, float *out, uint64_t n_elems,
                           zf_error_t *err) {
    zf_status_t st = real_state->weights(args, param, out, n_elems, err);
    if (IS(weights_ulp) && st == ZF_OK && n_elems)
        out[n_elems - 1] = nextafterf(out[n_elems - 1], INFINITY);
    return st;
}

/* ---- zf.stats/1, zf.config/1 ------------------------------------------------------------------------------------- */

static const zf_stats_ext_t *real_stats;
static const zf_config_ext_t *real_config;

static zf_status_t counter(zf_instance_t *instance, uint32_t i, zf_counter_t *out, zf_error_t *err) {
    static const struct {
        int habit;
        const char *name;
        uint64_t times, by;
    } wrong[] = {{WRONG_down_halved, "down_grad_nbytes", 1, 2}, {WRONG_publish_halved, "up_publish_nbytes", 1, 2},
                 {WRONG_reselects_zero, "reselects", 0, 1},     {WRONG_steps_double, "steps", 2, 1},
                 {WRONG_skipped_zero, "steps_skipped", 0, 1},   {WRONG_closes_zero, "window_closes", 0, 1}};
    zf_status_t st = real_stats->counter(instance, i, out, err);
    for (size_t k = 0; st == ZF_OK && out->struct_size == sizeof *out && k < sizeof wrong / sizeof wrong[0]; k++)
        if (habit == wrong[k].habit && strcmp(out->name, wrong[k].name) == 0)
            out->value = out->value * wrong[k].times / wrong[k].by;
    return st;
}

static zf_status_t lateness(zf_instance_t *instance, uint64_t at, uint32_t group, zf_lateness_t *out, zf_error_t *err) {
    zf_status_t st = real_stats->lateness(instance, at, group, out, err);
    if (IS(lateness_doubled) && st == ZF_OK) {
        out->loss *= 2;
        out->sum *= 2;
    }
    return st;
}

static zf_status_t show_value(zf_instance_t *instance, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = real_config->value(instance, i, buf, nbytes, err);
    if (IS(config_wrong) && st == ZF_OK && nbytes > 1 && buf[0] >= '0' && buf[0] <= '8')
        buf[0]++;
    return st;
}

static const void *get_extension(const char *id) {
    const void *found = real->get_extension(id);
    if (!found || !id)
        return found;
    if (strcmp(id, ZF_EXT_STATE) == 0)
        return &state;
    if (strcmp(id, ZF_EXT_STATS) == 0)
        return &stats;
    return strcmp(id, ZF_EXT_CONFIG) == 0 ? &config : found;
}

/* ---- the entry --------------------------------------------------------------------------------------------------- */

static void wrap(const zf_plugin_t *plugin) {
    real = plugin;
    table = *real;
    table.create = create_told;
    table.bind_params = bind_params;
    table.params_changed = params_changed;
    table.grads_ready = grads_ready;
    table.step = step;
    table.poll = poll_once;
    table.param_fetch = param_fetch;
    table.quiesce = quiesce;
    table.export_params = export_params;
    table.get_extension = get_extension;
    real_state = real->get_extension(ZF_EXT_STATE);
    state = *real_state;
    state.save = save, state.load = load, state.verify = verify, state.weights = weights;
    real_stats = real->get_extension(ZF_EXT_STATS);
    stats = *real_stats;
    stats.counter = counter, stats.lateness = lateness;
    real_config = real->get_extension(ZF_EXT_CONFIG);
    config = *real_config;
    config.value = show_value;
}

__attribute__((visibility("default"))) int32_t zf_plugin_negotiate(zf_bootstrap_t *boot) {
    const char *file = getenv("ZF_WRONG_OF"), *name = getenv("ZF_WRONG");
    void *library = file ? dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
    void *symbol = library ? dlsym(library, ZF_PLUGIN_NEGOTIATE_SYMBOL) : NULL;
    zf_plugin_negotiate_fn entry;
    int32_t st;
    if (!symbol)
        return ZF_ERR_INTERNAL;
    for (habit = 0; habit < N_WRONG && !(name && strcmp(name, names[habit]) == 0);)
        habit++;
    if (habit == N_WRONG)
        return ZF_ERR_INTERNAL;
    memcpy(&entry, &symbol, sizeof entry);
    st = entry(boot);
    if (st == 0) {
        wrap(boot->plugin);
        boot->plugin = &table;
    }
    return st;
}
