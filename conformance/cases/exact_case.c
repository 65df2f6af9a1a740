/* SPDX-License-Identifier: Apache-2.0 */
/* exact_case.c - draws one case.
 *
 * Small tensors for the most part: a schedule's mistakes show on ten elements as on ten million. Some reach over 64
 * rows and 4096 elements (the blocks of the sums), one case in twelve over 100,000 (several chunks and workers). Most
 * cases cut smaller blocks than users get, and one in eight has a crowd: a large tensor with many tiny neighbours,
 * which share lots. */
#include "exact_case.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exact_device.h"
#include "zf_loader.h"

enum { LONGEST_AUTO = 16 }; /* update_interval = auto */

int zx_is_early(const zx_case_t *c) { return c->index % 16 == 14; }

int zx_is_trainable(const zx_param_t *p) {
    return !(p->flags & (ZF_PARAM_FROZEN | ZF_PARAM_TIED)) && zx_n_elems(p) > 0;
}

uint64_t zx_n_elems(const zx_param_t *p) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < p->decl.ndim; i++)
        n *= (uint64_t)p->decl.shape[i];
    return n;
}

/* ---- configuration ----------------------------------------------------------------------------------------------- */

static int saves(const zx_case_t *c) { return c->law == 3 || c->law == 4; }

static double draw_topk_ratio(zx_rng_t *r) {
    if (zx_chance(r, 15))
        return 1.0;
    return zx_chance(r, 12) ? 0.0 : zx_uniform(r, 0.01, 0.7);
}

/* Drawn apart: the other cases stay what they are. */
static void draw_share(zx_case_t *c) {
    zx_rng_t r = zx_rng(c->seed, (uint64_t)c->law + 100, c->index + (c->n_params ? 1000003 : 0));
    c->resident_share = zx_chance(&r, 12) ? 2.0 : zx_chance(&r, 45) ? zx_uniform(&r, 0.0, 1.1) : 0.0;
    c->is_auto = !zx_is_early(c) && zx_device_is_gpu() && c->resident_share > 0.0 && c->resident_share < 1.5 &&
                 zx_chance(&r, 40);
    c->is_some = c->is_auto && zx_device_is_alone() && zx_chance(&r, 20);
}

static int is_all_resident(const zo_config_t *g) { return g->resident_nbytes == ZO_ALL_RESIDENT; }

/* What the share comes to in bytes of parameters with two fp32 moments. */
void zx_case_settle_share(zx_case_t *c) {
    const uint64_t enough = UINT64_C(1) << 40;
    double n_elems = 0, n_owners = c->config.n_owners ? c->config.n_owners : 1;
    for (uint32_t i = 0; i < c->n_params; i++)
        n_elems += (double)zx_n_elems(&c->params[i]);
    c->config.resident_nbytes = c->resident_share > 1.5   ? ZO_ALL_RESIDENT
                                : c->resident_share > 0.0 ? 1 + (uint64_t)(c->resident_share * n_elems * 12 / n_owners)
                                                          : 0;
    c->is_auto &= c->resident_share > 0.0 && c->resident_share < 1.5;
    c->is_some &= c->is_auto;
    if (c->is_auto)
        c->config.resident_nbytes = c->is_some ? 1 << 20 : c->is_short ? 0 : enough;
    c->room_nbytes = c->is_some ? c->config.resident_nbytes : UINT64_MAX;
}

static void draw_interval(zx_case_t *c) {
    static const uint32_t intervals[] = {1, 2, 2, 3, 4, 4, 4, 5, 7, 8, 16};
    zx_rng_t *r = &c->rng;
    c->config.is_interval_auto = zx_chance(r, 25);
    c->config.update_interval = c->config.is_interval_auto ? LONGEST_AUTO : intervals[zx_below(r, 11)];
}

/* One rule for all groups; or, drawn apart, too, one for each. */
static void draw_rules(zx_case_t *c, zo_rule_t all) {
    zx_rng_t r = zx_rng(c->seed, (uint64_t)c->law + 300, c->index);
    int is_mixed = zx_chance(&r, 40);
    for (uint32_t i = 0; i < ZX_MAX_GROUPS; i++) {
        zo_rule_t own = (zo_rule_t)zx_below(&r, ZO_N_RULES);
        zo_group_t *group = &c->config.groups[i];
        group->rule = is_mixed ? own : all;
        if (zx_device_is_gpu() && group->rule == ZO_CALLBACK) /* a rule of the host's does not run on a GPU */
            group->rule = ZO_ADAMW;
        group->element = zx_rule_element;
        group->element_ctx = &c->rules[i];
    }
}

/* The groups' callbacks differ in their moments, from this many on. */
static void take_callbacks(zx_case_t *c, uint32_t n_moments) {
    for (uint32_t i = 0; i < ZX_MAX_GROUPS; i++)
        zx_rule_init(&c->rules[i], (n_moments + i) % 3, i), c->config.groups[i].n_moments = (n_moments + i) % 3;
    for (uint32_t i = 1; i < ZX_MAX_GROUPS; i += 2)
        c->rules[i].is_wild = c->is_alone && !saves(c) ? 2 : 1;
}

/* Whatever closes does so at its step's end, and is replayed by the host's rule, which may take its time; often at
 * every second step. */
static void be_early(zx_case_t *c) {
    c->config.publish_lag = 0;
    c->config.is_mean = 0;
    c->config.update_interval = c->config.is_interval_auto ? 1 : c->config.update_interval;
    c->config.is_interval_auto = 0;
    if (c->config.update_interval > 3 && zx_chance(&c->rng, 60))
        c->config.update_interval = 2;
    c->resident_share = 0.0;
    c->threads = 2 + c->threads % 3;
    for (uint32_t i = 0; i < ZX_MAX_GROUPS && !zx_device_is_gpu(); i++)
        c->config.groups[i].rule = ZO_CALLBACK;
}

static void draw_config(zx_case_t *c) {
    static const uint32_t select[] = {1, 2, 3, 4, 5, 8, 11, 0};
    zx_rng_t *r = &c->rng;
    c->config = (zo_config_t){.topk_ratio = draw_topk_ratio(r),
                              .strategy = (zo_strategy_t)(zx_chance(r, 50) ? ZO_SELECT_STEP : (int)zx_below(r, 3)),
                              .select_interval = select[zx_below(r, 8)],
                              .warm_up = zx_between(r, 1, 4),
                              .publish_lag = zx_chance(r, 65)};
    draw_rules(c, zx_chance(r, 40) ? ZO_ADAMW : (zo_rule_t)zx_below(r, ZO_N_RULES));
    c->config.moments = zx_chance(r, 55) ? ZO_MOMENTS_F32 : (zo_moments_t)zx_between(r, 1, 2);
    take_callbacks(c, zx_below(r, 3));
    draw_interval(c);
    c->config.predicts = zx_chance(r, 40);
    c->config.is_mean = zx_chance(r, 30);
    draw_share(c);
    c->threads = zx_between(r, 1, 4);
    if (zx_is_early(c))
        be_early(c);
}

static void be_plain(zx_case_t *c) {
    for (uint32_t i = 0; i < ZX_MAX_GROUPS; i++)
        c->config.groups[i].rule = ZO_ADAMW;
    c->config.is_mean = 0;
    c->config.moments = ZO_MOMENTS_F32;
    c->resident_share = 0.0;
}

/* Every window is one step, and is published in it. */
static int is_every_step(const zo_config_t *g) {
    return g->update_interval == 1 && !g->is_interval_auto && !g->publish_lag && !g->is_mean;
}

/* Such a case is of mode = exact, or of windows that are as long: drawn apart. */
static int prefers_exact(const zx_case_t *c) {
    enum { STREAM = 3000 };
    zx_rng_t r = zx_rng(c->seed, (uint64_t)c->law + STREAM, c->index);
    return zx_chance(&r, 70);
}

/* What a checkpoint keeps of epochs, and of windows that close by data, shows where a choice is yet to come. */
static void draw_open(zx_case_t *c, zx_rng_t *r) {
    int is_every_step_late = zx_chance(r, 35);
    if (zx_chance(r, 35))
        c->config.strategy = ZO_SELECT_EPOCH;
    if (zx_is_early(c))
        return;
    if (is_every_step_late) { /* no window is open at a save, and a publish is due */
        c->config.update_interval = 1;
        c->config.publish_lag = 1;
        c->config.is_interval_auto = 0;
    }
    if (is_every_step_late || !zx_chance(r, 35))
        return;
    c->config.is_interval_auto = 1;
    c->config.update_interval = LONGEST_AUTO;
}

/* mode = exact, which is the default, in further cases that no law makes special. Drawn apart. */
static void draw_exact(zx_case_t *c) {
    enum { STREAM = 5000 };
    zx_rng_t r = zx_rng(c->seed, (uint64_t)c->law + STREAM, c->index + (c->n_params ? 1000003 : 0));
    int is_drawn = zx_chance(&r, 35) && c->law != 1 && c->law != 6;
    if (!is_drawn && saves(c))
        draw_open(c, &r);
    if (!is_drawn && !c->has_whole && !c->is_carrying)
        return;
    c->config.update_interval = 1;
    c->config.publish_lag = c->config.is_interval_auto = c->config.is_mean = 0;
    c->is_exact = 1;
}

/* Moments in runs ask for a case without selected channels. Drawn apart. */
static void draw_runs(zx_case_t *c) {
    enum { STREAM = 4000 };
    zx_rng_t r = zx_rng(c->seed, (uint64_t)c->law + STREAM, c->index);
    c->has_runs = c->law != 1 && c->law != 6 && !zx_device_is_plain() && zx_chance(&r, 20);
    if (!c->has_runs)
        return;
    c->config.topk_ratio = 0.0;
    c->config.is_mean = 0;
    c->config.moments = zx_chance(&r, 70) ? ZO_MOMENTS_INT8 : ZO_MOMENTS_INT8_BF16;
    if (saves(c) && zx_chance(&r, 50)) /* they come with a load */
        c->config.moments = (zo_moments_t)zx_below(&r, ZO_MOMENTS_INT8);
}

/* As a configuration that was drawn otherwise may have them. */
static void settle_moments(zx_case_t *c) {
    int may_have_runs = c->config.is_exact || (!c->config.is_mean && c->config.topk_ratio == 0.0);
    if (c->config.moments >= ZO_MOMENTS_INT8 && !may_have_runs)
        c->config.moments = ZO_MOMENTS_F32;
}

static void obey_law(zx_case_t *c) {
    zx_rng_t *r = &c->rng;
    if (zx_device_is_plain())
        be_plain(c);
    if (c->law == 1 && zx_chance(r, 60)) {
        c->config.topk_ratio = 1.0;
    } else if (c->law == 1) {
        c->config.update_interval = 1;
        c->config.publish_lag = 0;
        c->config.is_interval_auto = 0;
    }
    if (c->law == 6)
        c->config.is_mean = 0;
    if (c->law == 1 || c->law == 6)
        c->config.moments = ZO_MOMENTS_F32;
    if (c->law == 1)
        c->config.predicts = 0;
    if (c->law == 1 || c->law == 6)
        c->p_changed = c->p_edit = 0;
    c->is_exact = 0;
    if (c->is_alone)
        draw_exact(c);
    c->config.is_exact = c->is_exact || (is_every_step(&c->config) && prefers_exact(c));
    settle_moments(c);
    c->config.sees_edits = c->config.is_exact && !zx_device_is_gpu() && !zx_device_is_plain() && !c->ranks;
}

/* Drawn apart, too. */
static void draw_changes(zx_case_t *c) {
    enum { STREAM = 2000 };
    zx_rng_t r = zx_rng(c->seed, (uint64_t)c->law + STREAM, c->index);
    c->is_rebound = zx_chance(&r, 30);
    c->is_ask = zx_chance(&r, 20);
    c->is_flushing = zx_chance(&r, 30);
    c->is_releasing = zx_chance(&r, 40);
    c->audit_every = zx_chance(&r, 12) && c->is_alone && !zx_is_early(c) ? zx_between(&r, 1, 5) : 0;
    snprintf(c->audit_path, sizeof c->audit_path, "/tmp/zf-conform-audit-%ld", (long)getpid());
}

/* Whole stretches between two choices bring nothing. Drawn apart, too. */
static void draw_idle(zx_case_t *c) {
    enum { STREAM = 7000 };
    zx_rng_t r = zx_rng(c->seed, (uint64_t)c->law + STREAM, c->index);
    if (!zx_chance(&r, 20) || c->law == 1 || c->config.is_exact || c->has_runs)
        return;
    c->idle = (zx_idle_t)zx_between(&r, ZX_ZEROS, ZX_N_IDLES - 1);
    c->config.topk_ratio = zx_uniform(&r, 0.05, 0.7);
    if (zx_chance(&r, 70))
        c->config.strategy = ZO_SELECT_AUTO;
    c->config.select_interval = zx_between(&r, 1, 5);
    c->config.warm_up = zx_between(&r, 1, 3);
    if (!c->config.is_interval_auto && c->config.update_interval > 1)
        c->config.update_interval = zx_between(&r, 2, 4);
    c->resident_share = 0.0;
    c->idle_span = c->config.select_interval + 2 * (c->config.is_interval_auto ? 4 : c->config.update_interval);
}

/* For who compares runs of one case by `zf audit`: ZF_AUDIT_DIR/law-number. Else some cases audit every N-th step. */
static void write_audit(zx_case_t *c) {
    size_t n = strlen(c->config_text);
    const char *dir = getenv("ZF_AUDIT_DIR");
    if (dir)
        snprintf(c->config_text + n, sizeof c->config_text - n, "[audit]\nfile = %s/%d-%" PRIu64 " every 1\n", dir,
                 c->law, c->index);
    else if (c->audit_every)
        snprintf(c->config_text + n, sizeof c->config_text - n, "[audit]\nfile = %s every %u\n", c->audit_path,
                 c->audit_every);
}

/* A line as somebody else may write it. */
static char *put_line(zx_rng_t *r, char *out, const char *line, size_t nbytes) {
    static const char *const betweens[] = {"", "\n", "; topk_ratio = 7\n", "  \t\r\n", "# [zenflw]\n"},
                             *const signs[] = {"=", " = ", "\t=  "};
    const char *sign = memchr(line, '=', nbytes);
    size_t n = sign ? (size_t)(sign - line - 1) : nbytes;
    out += sprintf(out, "%s%s", zx_chance(r, 30) ? betweens[zx_below(r, 5)] : "", zx_chance(r, 20) ? "  " : "");
    out += sprintf(out, "%.*s", (int)n, line);
    if (sign)
        out += sprintf(out, "%s%.*s", signs[zx_below(r, 3)], (int)(nbytes - n - 3), sign + 2);
    return out + sprintf(out, "%s", zx_chance(r, 20) ? " \r\n" : "\n");
}

/* The same text with blanks, comments and other ends of lines, its sections in another order. Drawn apart. */
static void decorate(zx_case_t *c) {
    enum { STREAM = 8000, MOST_SECTIONS = 8 };
    zx_rng_t r = zx_rng(c->seed, (uint64_t)c->law + STREAM, c->index + (c->n_params ? 1000003 : 0));
    char was[sizeof c->config_text], *out = c->config_text;
    uint32_t starts[MOST_SECTIONS], n = 0;
    if (!c->is_alone || getenv("ZF_AUDIT_DIR") || !zx_chance(&r, 25))
        return;
    memcpy(was, c->config_text, sizeof was);
    for (const char *at = was; at && n < MOST_SECTIONS; at = strstr(at + 1, "\n["))
        starts[n++] = (uint32_t)(at - was) + (at > was);
    zx_shuffle(&r, starts, n);
    for (uint32_t i = 0; i < n; i++) {
        const char *line = was + starts[i], *end;
        do {
            end = strchr(line, '\n');
            out = put_line(&r, out, line, (size_t)(end - line));
            line = end + 1;
        } while (*line && *line != '[');
    }
}

static void write_config(zx_case_t *c) {
    static const char *const strategies[] = {"step", "epoch", "auto"};
    const zo_config_t *g = &c->config;
    const char *mode = g->is_mean ? "mode = mean\n" : "mode = windows\n";
    int is_plain_lag0 = g->publish_lag == 0 && zx_chance(&c->rng, 50);
    char interval[16] = "auto", windows[32];
    static const char *const moments[] = {"float32", "bfloat16", "bfloat16_stochastic", "int8", "int8_bfloat16"};
    char threads[32] = "";
    const char *predict = g->predicts ? "predict = auto\n" : "predict = off\n";
    const char *lag = g->publish_lag ? "publish_lag = 1" : "publish_lag = 0";
    const char *on_overwrite = c->is_ask ? "ask" : c->p_edit || c->index % 6 ? "error" : "off";
    (void)zx_chance(&c->rng, 12); /* cases of a seed stay as they were */
    const char *some = c->is_auto ? "auto" : "1";
    const char *state = c->resident_share > 1.5 ? "all" : c->resident_share > 0.0 ? some : "0";
    if (c->threads)
        snprintf(threads, sizeof threads, "threads = %u\n", c->threads);
    if (g->select_interval)
        snprintf(interval, sizeof interval, "%u", g->select_interval);
    snprintf(windows, sizeof windows, "update_interval = %u\n", g->update_interval);
    if (g->is_interval_auto)
        snprintf(windows, sizeof windows, "update_interval = auto\n");
    if (g->predicts && zx_chance(&c->rng, 50))
        predict = ""; /* the default */
    if (!is_plain_lag0 && !g->publish_lag && zx_chance(&c->rng, 50))
        lag = "publish_lag = auto";
    if (g->is_exact)
        mode = "mode = exact\n";
    snprintf(c->config_text, sizeof c->config_text,
             "[zenflow]\ntopk_ratio = %.17g\nselect_strategy = %s\nselect_interval = %s\n%s"
             "full_warm_up_rounds = %u\n%s\non_overwrite = %s\n%s%s[device]\nstate_mib = %s\n"
             "[host]\nmoments_dtype = %s\n%sdeadline_ms = "
             "90000\n",
             g->topk_ratio, strategies[g->strategy], interval, windows, g->warm_up, lag, on_overwrite, mode, predict,
             state, moments[g->moments], threads);
    write_audit(c);
    decorate(c);
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* One of a crowd: a scalar or a vector, of its neighbour's types for the most part. */
static void draw_tiny(zx_case_t *c, zo_decl_t *d) {
    const zo_decl_t *before = &c->params[c->n_params - 1].decl;
    d->ndim = zx_chance(&c->rng, 25) ? 0 : 1;
    d->shape[0] = d->ndim ? zx_between(&c->rng, 1, 6) : 0;
    d->n_batch_axes = 0;
    if (zx_chance(&c->rng, 85)) {
        d->dtype = before->dtype;
        d->grad_dtype = before->grad_dtype;
    }
}

zo_dtype_t zx_case_dtype(zx_rng_t *r) {
    zo_dtype_t drawn = (zo_dtype_t)zx_below(r, ZO_N_DTYPES);
    return zx_device_is_plain() ? ZO_F32 : drawn;
}

void zx_case_set_home(zx_param_t *p, int32_t home) {
    p->home = zx_device_is_plain() && home == ZF_HOME_RESIDENT ? ZF_HOME_PLUGIN : home;
    p->decl.is_always_selected = p->home == ZF_HOME_RESIDENT;
    p->decl.is_never_selected = p->home == ZF_HOME_HOST;
}

static void draw_flags(zx_case_t *c, zx_param_t *p, int is_first) {
    zx_rng_t *r = &c->rng;
    int is_never_allowed = !(c->law == 1 && c->config.topk_ratio >= 1.0 &&
                             !(c->config.update_interval == 1 && c->config.publish_lag == 0));
    if (!is_first && zx_chance(r, 7))
        p->flags |= ZF_PARAM_FROZEN;
    if (zx_chance(r, 8))
        zx_case_set_home(p, ZF_HOME_RESIDENT);
    if (zx_chance(r, 10) && is_never_allowed)
        zx_case_set_home(p, ZF_HOME_HOST);
    if (is_first && c->is_some)
        zx_case_set_home(p, ZF_HOME_PLUGIN);
    if (zx_chance(r, 10))
        p->flags |= ZF_PARAM_NOT_IN_NORM;
    p->decl.is_not_in_norm = (p->flags & ZF_PARAM_NOT_IN_NORM) != 0;
}

/* A view of an earlier parameter: same storage, no state. */
static void tie(zx_case_t *c, zx_param_t *p) {
    uint32_t owner = zx_below(&c->rng, c->n_params);
    const zx_param_t *q = &c->params[owner];
    if (q->flags & ZF_PARAM_TIED)
        return;
    p->decl = q->decl;
    p->flags = ZF_PARAM_TIED;
    p->decl.is_stateless = 1;
    p->decl.is_carried = 0;
    p->tied_to = owner;
    p->array = q->array;
    p->initial = q->initial;
}

static void draw_param(zx_case_t *c, zx_size_t size) {
    zx_rng_t *r = &c->rng;
    uint32_t number = c->n_named++;
    zx_param_t *p = &c->params[c->n_params];
    memset(p, 0, sizeof *p);

    zx_case_name(c, p, number);
    if (number > 0 && size != ZX_BIG && size < ZX_RUNS && zx_chance(r, 6))
        tie(c, p);
    if (!p->array) {
        zx_draw_shape(c, &p->decl, size);
        draw_flags(c, p, number == 0);
        p->decl.dtype = zx_case_dtype(r);
        p->decl.grad_dtype = zx_chance(r, 60) ? p->decl.dtype : zx_case_dtype(r);
        if (size == ZX_TINY)
            draw_tiny(c, &p->decl);
        p->decl.group = size == ZX_STACK ? 0 : zx_below(r, c->n_groups);
        p->decl.is_stateless = (p->flags & ZF_PARAM_FROZEN) != 0;
        zx_case_settle_param(c, p);
        p->array = zx_alloc(sizeof *p->array);
        zx_array_init(p->array, r, &p->decl, p->decl.dtype, zx_chance(r, 25) && !zx_case_is_contiguous(c, p));
        p->initial = zx_case_values(c, p);
        zx_array_write(p->array, p->initial);
        p->decl.visible = p->initial;
    }
    p->is_grad_strided = zx_chance(r, 20);
    p->grad_style = zx_chance(r, 60) ? ZX_PLAIN_GRADS : (zx_style_t)zx_below(r, ZX_N_STYLES);
    p->grad_scale = zx_wide_scale(c, zx_log_uniform(r, 1e-5, 10.0));
    p->mask = zx_chance(r, c->has_runs ? 60 : 10) ? zx_rng_bits(r) : 0;
    c->n_params++;
}

/* ---- the host's manners ------------------------------------------------------------------------------------------ */

static void draw_manners(zx_case_t *c, int has_queue) {
    zx_rng_t *r = &c->rng;
    uint32_t mode = zx_below(r, ZX_N_MODES);
    if (c->law == 5)
        mode = mode % 2 ? ZX_QUEUE_FETCH : (zx_chance(r, 30) ? ZX_QUEUE : ZX_THREAD_FETCH);
    if (zx_device_is_gpu())
        mode = ZX_QUEUE + mode % 2;
    else if (!has_queue && mode >= ZX_QUEUE)
        mode -= ZX_QUEUE;
    c->mode = (zx_mode_t)mode;
    c->is_async_read = zx_chance(r, 50);
    c->p_hole = zx_chance(r, zx_is_long(c) ? 90 : 50) ? zx_below(r, 40) : 0;
    c->p_skip = zx_chance(r, 50) ? zx_below(r, 30) : 0;
    c->p_discard = zx_chance(r, 30) ? 10 : 0;
    c->p_changed = zx_chance(r, 35) ? 12 : 0;
    c->p_edit = zx_chance(r, 30) ? 15 : 0;
    c->p_drain = zx_chance(r, 50) ? 20 : 2;
    c->p_flush = zx_chance(r, 40) ? 10 : 0;
    c->p_export = zx_chance(r, 50) ? 20 : 5;
    c->p_inspect = zx_chance(r, 50) ? 25 : 3;
    c->p_wait = zx_chance(r, 30) ? 50 : 10;
    c->p_look = c->law == 5 || zx_chance(r, 50) ? 100 : zx_between(r, 20, 90);
    c->p_late_done = zx_chance(r, 40) ? 15 : 0;
    c->unscale = zx_chance(r, 40) ? 0.0 : (zx_chance(r, 50) ? 1.0 / 1024.0 : zx_log_uniform(r, 0.01, 4.0));
    c->clip_norm = zx_chance(r, 40) ? 0.0 : zx_log_uniform(r, 1e-3, 100.0);
    c->norm_kind = zx_chance(r, 15);
}

static void draw_groups(zx_case_t *c) {
    static const double beta1[] = {0.0, 0.5, 0.9, 0.9, 0.95}, beta2[] = {0.0, 0.9, 0.95, 0.999, 0.999};
    static const double eps[] = {1e-8, 1e-8, 1e-6, 1e-12}, decay[] = {0.0, 0.0, 0.01, 0.1, 1.5};
    zx_rng_t *r = &c->rng;
    c->n_groups = zx_between(r, 1, ZX_COMMON_GROUPS);
    c->is_beta_changing = zx_chance(r, 25);
    for (uint32_t i = 0; i < c->n_groups; i++)
        c->base[i] = (zo_hyper_t){.lr = zx_log_uniform(r, 1e-4, 0.1),
                                  .beta1 = beta1[zx_below(r, 5)],
                                  .beta2 = beta2[zx_below(r, 5)],
                                  .eps = eps[zx_below(r, 4)],
                                  .weight_decay = decay[zx_below(r, 5)]};
}

/* What a block may always have: as users get it, which cuts the big ones only, or less. */
static uint64_t draw_block_elems(zx_case_t *c, int is_big) {
    if (zx_chance(&c->rng, 35))
        return c->is_some ? 20000 : 0;
    return (uint64_t)zx_log_uniform(&c->rng, is_big ? 500.0 : 1.0, is_big ? 65536.0 : 2000.0);
}

static void draw_params(zx_case_t *c, int is_big) {
    int is_crowd = !is_big && zx_chance(&c->rng, zx_is_long(c) ? 50 : 12);
    uint32_t n = is_big ? 2 : (is_crowd || zx_chance(&c->rng, 15) ? ZX_MAX_PARAMS : zx_between(&c->rng, 1, 6));
    for (uint32_t i = 0; i < n; i++)
        if (i == 0)
            draw_param(c, is_big ? ZX_BIG : (is_crowd ? ZX_MEDIUM : ZX_SMALL));
        else
            draw_param(c, is_crowd ? ZX_TINY : ZX_SMALL);
    if (c->has_whole && c->n_params < ZX_MAX_PARAMS)
        draw_param(c, ZX_STACK);
    for (uint32_t i = 0; i < 2 && c->has_runs && c->n_params < ZX_MAX_PARAMS; i++)
        draw_param(c, ZX_RUNS);
}

void zx_case_make(zx_case_t *c, uint64_t seed, int law, uint64_t index, uint32_t threads, int has) {
    memset(c, 0, sizeof *c);
    c->is_alone = (has & ZX_IS_ALONE) != 0;
    c->seed = seed;
    c->law = law;
    c->index = index;
    c->rng = zx_rng(seed, (uint64_t)law, index);
    int is_big = zx_below(&c->rng, 12) == 0;
    draw_config(c);
    draw_manners(c, has & ZX_HAS_QUEUE);
    c->config.can_fetch = c->mode % 2;
    obey_law(c);
    if (threads)
        c->threads = threads;
    else if (index % 7 == 3) /* 7: each law has its turn; not drawn, so that the cases of a seed stay what they were */
        c->threads = 0;
    draw_changes(c);
    draw_runs(c);
    zx_rule_draw(c, has);
    if (!is_big && !c->is_some)
        zx_wide_config(c);
    draw_idle(c);
    write_config(c);
    is_big |= c->is_some; /* its state is more than the MiB that fits */
    draw_groups(c);
    zx_wide_groups(c);
    c->config.block_elems = draw_block_elems(c, is_big);
    draw_params(c, is_big);
    zx_case_settle_share(c);
    uint32_t steps = c->config.warm_up + 3 + zx_below(&c->rng, 3 * c->config.update_interval + 8);
    c->n_steps = is_big && steps > 12 ? 12 : zx_wide_steps(c, steps);
    if (c->idle && !is_big && c->n_steps < 4 * c->idle_span)
        c->n_steps = 4 * c->idle_span;
}

void zx_case_add_param(zx_case_t *c) { draw_param(c, ZX_SMALL); }

/* ---- another configuration --------------------------------------------------------------------------------------- */

/* select_interval, or what its auto (0) comes to; 0 where epochs end choose. */
static uint32_t steps_between_choices(const zo_config_t *g) {
    if (g->strategy == ZO_SELECT_EPOCH)
        return 0;
    return g->select_interval || g->is_interval_auto ? g->select_interval : 4 * g->update_interval;
}

/* In a key that has an effect in one of the two. Keys that follow from these are left out. */
static int differs(const zo_config_t *a, const zo_config_t *b) {
    if (is_all_resident(a) != is_all_resident(b) || a->moments != b->moments)
        return 1;
    if (!is_all_resident(a) && (a->is_exact || b->is_exact))
        return a->is_exact != b->is_exact;
    return !is_all_resident(a) &&
           (a->is_mean != b->is_mean || a->warm_up != b->warm_up || a->strategy != b->strategy ||
            a->topk_ratio != b->topk_ratio || steps_between_choices(a) != steps_between_choices(b) ||
            a->is_interval_auto != b->is_interval_auto || a->update_interval != b->update_interval ||
            a->publish_lag != b->publish_lag);
}

static void change_one_key(zx_case_t *c) {
    enum { N_KEYS = 8 };
    zo_config_t *g = &c->config;
    uint32_t key = zx_chance(&c->rng, 30) ? N_KEYS - 1 : zx_below(&c->rng, N_KEYS); /* another number of cohorts */

    if (is_all_resident(g) && key != 7)
        key = 0;
    switch (key) {
    case 0:
        g->moments = (zo_moments_t)((g->moments + zx_between(&c->rng, 1, c->has_runs ? 4 : 2)) % ZO_N_MOMENTS);
        break;
    case 1:
    case 2:
        g->warm_up += zx_between(&c->rng, 1, 2);
        break;
    case 3:
        g->select_interval = g->select_interval % 11 + 1;
        break;
    case 4:
        g->strategy = (zo_strategy_t)((g->strategy + 1) % 3);
        break;
    case 5:
        g->topk_ratio = draw_topk_ratio(&c->rng);
        break;
    case 6:
        g->publish_lag = !g->publish_lag;
        break;
    default:
        g->is_interval_auto = 0;
        g->update_interval = zx_between(&c->rng, 1, 8);
        break;
    }
}

static void change_all_keys(zx_case_t *c) {
    zo_config_t was = c->config;
    uint32_t threads = c->threads;
    zx_rule_t rules[ZX_MAX_GROUPS];
    memcpy(rules, c->rules, sizeof rules);

    draw_config(c);
    if (c->config.is_mean && zx_chance(&c->rng, 20))
        c->resident_share = 2.0;
    c->config.n_owners = was.n_owners;
    c->threads = threads;
    memcpy(c->config.groups, was.groups, sizeof was.groups);
    c->config.can_fetch = was.can_fetch;
    c->config.block_elems = was.block_elems;
    memcpy(c->rules, rules, sizeof rules);
}

void zx_case_reconfigure(zx_case_t *c) {
    zo_config_t was = c->config;
    if (c->has_runs && was.moments < ZO_MOMENTS_INT8 && zx_chance(&c->rng, 80))
        c->config.moments = (zo_moments_t)zx_between(&c->rng, ZO_MOMENTS_INT8, ZO_N_MOMENTS - 1);
    else if (c->has_runs && zx_chance(&c->rng, 60))
        c->config.moments = (zo_moments_t)((c->config.moments + zx_between(&c->rng, 1, 4)) % ZO_N_MOMENTS);
    else if (zx_chance(&c->rng, 50))
        change_one_key(c);
    else
        change_all_keys(c);
    obey_law(c);
    zx_case_settle_share(c);
    int is_same = !differs(&was, &c->config);
    if (is_same && !zx_device_is_plain() && (is_all_resident(&c->config) || c->config.is_exact))
        c->config.moments = (zo_moments_t)((c->config.moments + 1) % ZO_MOMENTS_INT8);
    else if (is_same)
        c->config.warm_up++;
    write_config(c);
}

void zx_case_recut(zx_case_t *c) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < c->n_params; i++)
        n += zx_n_elems(&c->params[i]);
    c->config.block_elems = draw_block_elems(c, n > 100000);
}

void zx_case_free(zx_case_t *c) {
    for (uint32_t i = 0; i < c->n_params; i++) {
        zx_param_t *p = &c->params[i];
        if (p->flags & ZF_PARAM_TIED)
            continue;
        zx_device_free(p->array);
        free(p->array);
        free(p->initial);
    }
}
