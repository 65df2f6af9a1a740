/* SPDX-License-Identifier: Apache-2.0 */
/* exact_change.c - see exact_change.h. */
#include "exact_change.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exact_carried.h"
#include "exact_device.h"

enum { MOST_REBINDS = 3, MOST_NEW = 2 };

/* ---- one parameter ----------------------------------------------------------------------------------------------- */

int zx_are_finite(const void *values, zo_dtype_t dtype, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(zo_widen(values, dtype, i)))
            return 0;
    return 1;
}

/* bind_params refuses weights that are not finite. */
static int may_be_bound(const zx_run_t *run) {
    for (uint32_t i = 0; i < run->c->n_params; i++)
        if (!zx_are_finite(zo_visible(run->oracle, i), run->c->params[i].decl.dtype, zx_n_elems(&run->c->params[i])))
            return 0;
    return 1;
}

static void *convert(const void *values, zo_dtype_t from, zo_dtype_t to, uint64_t n) {
    void *out = zx_alloc(n * zo_dtype_nbytes(to));
    for (uint64_t i = 0; i < n; i++)
        zo_narrow(out, to, i, zo_widen(values, from, i));
    return out;
}

/* [elements] of its data type, owned: what the host holds of p becomes `values`, in its memory, or in other. */
static void hold(zx_run_t *run, zx_param_t *p, void *values, int is_elsewhere) {
    zx_rng_t *r = &run->c->rng;
    free(p->initial);
    p->initial = values;
    p->decl.visible = values;
    if (!is_elsewhere && (run->is_dry || run->is_kept_open)) /* nobody has written what it shows */
        zx_host_write(&run->host, p->array, values);
    if (!is_elsewhere)
        return;
    run->left[run->n_left++] = p->array;
    p->array = zx_alloc(sizeof *p->array);
    zx_array_init(p->array, r, &p->decl, p->decl.dtype, zx_chance(r, 40) && !zx_case_is_contiguous(run->c, p));
    if (p->away == ZX_IN_PLACE) {
        zx_array_write(p->array, values);
        return;
    }
    void *any = zx_case_values(run->c, p); /* a fetch brings the values to the other memory */
    zx_array_write(p->array, any);
    free(any);
}

static void set_flags(zx_param_t *p, uint32_t flags) {
    p->flags = flags;
    p->decl.is_stateless = (flags & (ZF_PARAM_FROZEN | ZF_PARAM_TIED)) != 0;
    p->decl.is_not_in_norm = (flags & ZF_PARAM_NOT_IN_NORM) != 0;
}

/* Another home, or its place in the norm. */
static void vary_one(zx_param_t *p, uint32_t which) {
    int32_t home = which ? ZF_HOME_HOST : ZF_HOME_RESIDENT;
    if (which < 2)
        zx_case_set_home(p, p->home == home ? ZF_HOME_PLUGIN : home);
    else
        set_flags(p, p->flags ^ ZF_PARAM_NOT_IN_NORM);
}

/* Declares it otherwise, but for name and shape. */
static void vary(zx_run_t *run, zx_param_t *p, int may_freeze) {
    zx_rng_t *r = &run->c->rng;
    uint32_t group;
    if (zx_chance(r, 30))
        vary_one(p, zx_below(r, 3));
    if (may_freeze && zx_chance(r, 25))
        set_flags(p, p->flags ^ ZF_PARAM_FROZEN);
    if (zx_chance(r, 20) && zx_is_rule_alike(run->c, p->decl.group, group = zx_below(r, run->c->n_groups)))
        p->decl.group = group;
    if (zx_chance(r, 20))
        p->decl.channels_are_rows = !p->decl.channels_are_rows;
    if (zx_chance(r, 20) && p->decl.ndim > 1)
        p->decl.n_batch_axes = zx_below(r, p->decl.ndim);
    if (zx_chance(r, 20))
        p->decl.grad_dtype = zx_case_dtype(r);
}

/* In one member, perhaps: a comparison that forgets it takes the set for the same. */
static void vary_member(zx_run_t *run, zx_param_t *p) {
    zx_rng_t *r = &run->c->rng;
    uint32_t group = zx_below(r, run->c->n_groups), which = zx_below(r, 6);
    if (which < 3 && zx_is_rule_alike(run->c, p->decl.group, group))
        p->decl.group = group;
    else if (which < 5)
        vary_one(p, zx_below(r, 3));
    else
        p->decl.grad_dtype = zx_case_dtype(r);
    zx_case_settle_param(run->c, p);
}

static void keep_param(zx_run_t *run, uint32_t old, int is_varied, int may_freeze) {
    zx_case_t *c = run->c;
    zx_param_t *p = &c->params[c->n_params];
    zo_dtype_t dtype, was = run->before[old].decl.dtype;
    uint64_t n = zx_n_elems(&run->before[old]);
    const void *visible = zo_visible(run->oracle, old);
    *p = run->before[old];
    if (is_varied)
        vary(run, p, may_freeze);
    dtype = is_varied && zx_chance(&c->rng, 25) ? zx_case_dtype(&c->rng) : was;
    void *values = convert(visible, was, dtype, n);
    if (!zx_are_finite(values, dtype, n)) {
        free(values);
        dtype = was;
        values = convert(visible, was, was, n);
    }
    p->decl.dtype = dtype;
    zx_case_settle_param(c, p);
    hold(run, p, values, dtype != was || zx_chance(&c->rng, 30));
    run->origins[c->n_params] = zx_is_trainable(p) && zx_is_trainable(&run->before[old]) ? old : ZO_NO_ID;
    c->n_params++;
}

/* A tied parameter follows its owner, or goes with it. */
static void keep_tie(zx_run_t *run, uint32_t old) {
    zx_case_t *c = run->c;
    const char *owner = run->before[run->before[old].tied_to].name;
    for (uint32_t i = 0; i < c->n_params; i++)
        if (strcmp(c->params[i].name, owner) == 0) {
            zx_param_t *p = &c->params[c->n_params];
            *p = run->before[old];
            p->decl = c->params[i].decl;
            p->decl.is_stateless = 1;
            p->decl.is_carried = 0;
            p->array = c->params[i].array;
            p->initial = c->params[i].initial;
            p->tied_to = i;
            run->origins[c->n_params++] = ZO_NO_ID;
            return;
        }
}

/* ---- the set ----------------------------------------------------------------------------------------------------- */

static void set_aside(zx_run_t *run) {
    zx_case_t *c = run->c;
    memcpy(run->before, c->params, sizeof run->before);
    run->n_before = c->n_params;
    c->n_params = 0;
}

static void drop(zx_run_t *run, uint32_t old) {
    run->left[run->n_left++] = run->before[old].array;
    free(run->before[old].initial);
}

/* Trainable parameters that both sets have are in the same order and declared alike. */
static int is_same_to_train(const zx_run_t *run) {
    uint32_t next = 0;
    for (uint32_t i = 0; i < run->c->n_params; i++) {
        const zx_param_t *p = &run->c->params[i], *q;
        if (!zx_is_trainable(p))
            continue;
        while (next < run->n_before && !zx_is_trainable(&run->before[next]))
            next++;
        q = &run->before[next];
        if (run->origins[i] != next++ || p->flags != q->flags || p->home != q->home || p->decl.dtype != q->decl.dtype ||
            p->decl.grad_dtype != q->decl.grad_dtype || p->decl.group != q->decl.group ||
            p->decl.n_batch_axes != q->decl.n_batch_axes || p->decl.channels_are_rows != q->decl.channels_are_rows)
            return 0;
    }
    while (next < run->n_before && !zx_is_trainable(&run->before[next]))
        next++;
    return next == run->n_before;
}

/* Another set, of which at least one parameter goes on. may_differ: others come and go, freeze and thaw. */
static void redeclare(zx_run_t *run, int may_differ) {
    zx_case_t *c = run->c;
    zx_rng_t *r = &c->rng;
    uint32_t order[ZX_MAX_PARAMS], n = 0, keeper = UINT32_MAX, kept = 0;
    int is_one = zx_chance(r, 25), is_other_order = zx_chance(r, 50) && !is_one;
    set_aside(run);
    for (uint32_t i = 0; i < run->n_before; i++)
        if (!(run->before[i].flags & ZF_PARAM_TIED))
            order[n++] = i;
    if (is_other_order)
        zx_shuffle(r, order, n);
    for (uint32_t i = 0; i < n; i++) {
        int is_keeper = keeper == UINT32_MAX && zx_is_trainable(&run->before[order[i]]);
        if (is_keeper) {
            keeper = order[i];
            kept = c->n_params;
        } else if (may_differ && !is_one && zx_chance(r, 15)) {
            drop(run, order[i]);
            continue;
        }
        keep_param(run, order[i], !is_one && zx_chance(r, 40), may_differ && !is_keeper);
    }
    if (is_one)
        vary_member(run, &c->params[kept]);
    for (uint32_t i = 0; i < run->n_before; i++)
        if (run->before[i].flags & ZF_PARAM_TIED)
            keep_tie(run, i);
    for (uint32_t i = 0; may_differ && !is_one && i < MOST_NEW && c->n_params < ZX_MAX_PARAMS && zx_chance(r, 40);
         i++) {
        zx_case_add_param(c);
        run->origins[c->n_params - 1] = ZO_NO_ID;
    }
    if (is_same_to_train(run))
        set_flags(&c->params[kept], c->params[kept].flags ^ ZF_PARAM_NOT_IN_NORM);
}

/* The same set in other memory. */
static void move_storage(zx_run_t *run) {
    zx_case_t *c = run->c;
    for (uint32_t i = 0; i < c->n_params; i++) {
        zx_param_t *p = &c->params[i];
        const zx_param_t *owner = p->flags & ZF_PARAM_TIED ? &c->params[p->tied_to] : NULL;
        if (owner) { /* declared before it */
            p->array = owner->array;
            p->initial = owner->initial;
            p->decl.visible = owner->initial;
            continue;
        }
        hold(run, p, convert(zo_visible(run->oracle, i), p->decl.dtype, p->decl.dtype, zx_n_elems(p)),
             zx_chance(&c->rng, 70));
    }
}

/* What is carried over comes from the plugin, whatever lies in the memory that it is told of. */
static void spoil_some(zx_run_t *run) {
    zx_case_t *c = run->c;
    for (uint32_t i = 0; i < c->n_params; i++) {
        int is_new = run->origins[i] != ZO_NO_ID && c->params[i].array != run->before[run->origins[i]].array;
        if (!is_new || zx_chance(&c->rng, 50))
            continue;
        void *values = zx_case_values(c, &c->params[i]);
        zx_array_write(c->params[i].array, values);
        free(values);
    }
}

void zx_run_forget(zx_run_t *run) {
    while (run->n_left > 0) {
        zx_array_t *array = run->left[--run->n_left];
        zx_device_free(array);
        free(array);
    }
}

/* The schedule begins anew: there are steps for it. */
static void add_steps(zx_run_t *run) {
    zx_case_t *c = run->c;
    uint64_t n = 0;
    uint32_t was = c->n_steps;
    for (uint32_t i = 0; i < c->n_params; i++)
        n += zx_n_elems(&c->params[i]);
    c->n_steps += n > 100000 ? 4 : c->config.warm_up + zx_below(&c->rng, 2 * c->config.update_interval + 4);
    run->reports = realloc(run->reports, (c->n_steps + 2) * sizeof *run->reports);
    if (!run->reports)
        abort();
    memset(run->reports + was + 2, 0, (c->n_steps - was) * sizeof *run->reports);
}

static void carry_oracle(zx_run_t *run) {
    zo_decl_t decls[ZX_MAX_PARAMS];
    for (uint32_t i = 0; i < run->c->n_params; i++)
        decls[i] = run->c->params[i].decl;
    run->oracle = zo_carry(run->oracle, &run->c->config, decls, run->c->n_params, run->origins);
}

/* ---- bind_params again ------------------------------------------------------------------------------------------- */

static void rebind_to(zx_run_t *run, int is_other) {
    zx_rng_swap(&run->c->rng, &run->changes);
    if (is_other) {
        redeclare(run, 1);
        spoil_some(run);
        carry_oracle(run);
        add_steps(run);
    } else {
        move_storage(run);
    }
    zx_rng_swap(&run->c->rng, &run->changes);
    zx_count_drawn(run->result, is_other ? ZX_OTHER_SET : ZX_MOVED, 1);
}

/* Tied parameters lie in their owner's memory. */
static void exchange(zx_case_t *c, const zx_array_t *from, zx_array_t *to) {
    for (uint32_t i = 0; i < c->n_params; i++)
        if (c->params[i].array == from)
            c->params[i].array = to;
}

/* Memory whose gradient was delivered cannot be exchanged before its step. 1: there is some, and that was tried. */
static int refuse_lent(zx_run_t *run) {
    zx_case_t *c = run->c;
    uint32_t i = 0;
    while (i < c->n_params && c->params[i].away != ZX_LENT)
        i++;
    if (i == c->n_params)
        return 0;
    zx_array_t *own = c->params[i].array, *other = zx_alloc(sizeof *other);
    zx_array_init(other, &run->changes, &c->params[i].decl, c->params[i].decl.dtype, 0);
    zx_array_write(other, zo_visible(run->oracle, i));
    zx_host_sync(&run->host); /* looks that were launched read its own */
    exchange(c, own, other);
    zx_host_refuse_bind(&run->host, i);
    exchange(c, other, own);
    zx_device_free(other);
    free(other);
    return 1;
}

void zx_run_rebind_point(zx_run_t *run, int is_mid_step) {
    const zx_case_t *c = run->c;
    int is_due = c->is_rebound && zx_chance(&run->changes, is_mid_step ? 12 : 20);
    int is_other = zx_chance(&run->changes, 70) && !is_mid_step && !run->adamw;
    if (!is_due || c->ranks || run->n_rebinds == MOST_REBINDS || !may_be_bound(run) || refuse_lent(run))
        return;
    run->n_rebinds += (uint32_t)!is_mid_step;
    zx_run_announce_all(run);
    zx_host_sync(&run->host); /* looks that were launched read the memory that is left */
    if (is_other)
        zx_carried_restore(run, 1);
    if (is_other)
        zo_rest(run->oracle); /* in other memory, what waits to be fetched waits on */
    rebind_to(run, is_other);
    zx_host_bind_again(&run->host, is_other);
    if (is_other)
        zx_carried_brought(run->c);
    zx_run_forget(run);
    run->n_before = 0;
    if (is_other && zx_chance(&run->changes, 50))
        zx_run_look(run, 1);
}

/* ---- a checkpoint loaded into something else --------------------------------------------------------------------- */

int zx_run_is_moving(zx_run_t *run) { return zx_chance(&run->changes, 45) && may_be_bound(run); }

static void load_oracle(zx_run_t *run, zx_change_t *out) {
    zo_decl_t decls[ZX_MAX_PARAMS];
    for (uint32_t i = 0; i < run->c->n_params; i++)
        decls[i] = run->c->params[i].decl;
    run->oracle = zo_load(run->oracle, &run->c->config, decls, run->c->n_params, run->origins, &out->continues);
}

/* Parameters are left as they are. */
static void keep_set(zx_run_t *run) {
    run->n_before = run->c->n_params;
    for (uint32_t i = 0; i < run->c->n_params; i++)
        run->origins[i] = zx_is_trainable(&run->c->params[i]) ? i : ZO_NO_ID;
}

void zx_run_resplit(zx_run_t *run, zx_change_t *out) {
    *out = (zx_change_t){0};
    keep_set(run);
    load_oracle(run, out);
}

static void count_both(const zx_run_t *run, zx_change_t *out) {
    uint32_t n_kept = 0, n_there = 0;
    for (uint32_t i = 0; i < run->c->n_params; i++) {
        n_kept += run->origins[i] != ZO_NO_ID;
        out->n_missing += zx_is_trainable(&run->c->params[i]) && run->origins[i] == ZO_NO_ID;
    }
    for (uint32_t i = 0; i < run->n_before; i++)
        n_there += (uint32_t)zx_is_trainable(&run->before[i]);
    out->n_extra = n_there - n_kept;
}

void zx_run_move(zx_run_t *run, zx_change_t *out) {
    zx_rng_t *r = &run->c->rng;
    uint32_t how; /* cut; configuration; set; configuration and set */
    zx_rng_swap(r, &run->changes);
    how = zx_below(r, 4);
    int is_partial = zx_chance(r, 30);
    *out = (zx_change_t){.is_partial = how >= 2 && is_partial};
    keep_set(run);
    if (how >= 2) {
        redeclare(run, is_partial);
        count_both(run, out);
    }
    if (how == 1 || how == 3)
        zx_case_reconfigure(run->c);
    if (how == 0 || zx_chance(r, 30))
        zx_case_recut(run->c);
    load_oracle(run, out);
    if (!out->continues)
        add_steps(run);
    zx_rng_swap(&run->c->rng, &run->changes);
    zx_count_drawn(run->result, how == 0 ? ZX_OTHER_CUT : how == 1 ? ZX_OTHER_CONFIG : ZX_OTHER_ORDER, 1);
}
