/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/plan.c - SCHEDULE.md, "Parameters, matrices, channels, cohorts" and "Start": what is there before step 1. */
#include "state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *zo_zeros(uint64_t n, size_t size) {
    void *p = calloc(n ? (size_t)n : 1, size);
    if (!p) {
        fprintf(stderr, "oracle: out of memory for %llu bytes\n", (unsigned long long)n * size);
        exit(2);
    }
    return p;
}

static uint64_t product(const int64_t *shape, uint32_t from, uint32_t to) {
    uint64_t n = 1;
    for (uint32_t i = from; i < to; i++)
        n *= (uint64_t)shape[i];
    return n;
}

/* Reading: where no axis is left after the batch axes, rows = 1. */
static uint64_t rows_of(const zo_decl_t *d) {
    return d->n_batch_axes < d->ndim ? (uint64_t)d->shape[d->n_batch_axes] : 1;
}

static uint64_t k_of(const zo_config_t *config, const zo_decl_t *d, uint64_t channels) {
    double wanted = floor(config->topk_ratio * (double)channels + 0.5);
    uint64_t k = wanted < 1.0 ? 1 : (uint64_t)wanted;
    if (d->is_never_selected || config->topk_ratio == 0.0)
        return 0;
    if (d->ndim - d->n_batch_axes <= 1 || k > channels)
        return channels;
    return k;
}

static void add_matrix(zo_t *o, uint32_t id, uint64_t first, uint64_t rows, uint64_t cols) {
    const zo_decl_t *d = &o->params[id].decl;
    if ((o->n_matrices & (o->n_matrices - 1)) == 0) { /* full: 0, 1, 2, 4, ... */
        zo_matrix_t *grown = zo_zeros(o->n_matrices ? 2ull * o->n_matrices : 1, sizeof *grown);

        if (o->n_matrices)
            memcpy(grown, o->matrices, o->n_matrices * sizeof *grown);
        free(o->matrices);
        o->matrices = grown;
    }
    zo_matrix_t *x = &o->matrices[o->n_matrices++];
    memset(x, 0, sizeof *x);
    x->param = id;
    x->first = first;
    x->rows = rows;
    x->cols = cols;
    x->channels_are_rows = d->channels_are_rows;
    uint64_t n = x->channels = d->channels_are_rows ? rows : cols;
    x->k = k_of(&o->config, d, n);
    x->is_selected = zo_zeros(n, 1);
    x->is_entering = zo_zeros(n, 1);
    x->was_selected = zo_zeros(n, 1);
    x->n = zo_zeros(n, sizeof *x->n);
    x->device_n = zo_zeros(n, sizeof *x->device_n);
    x->importance = zo_zeros(n, sizeof *x->importance);
    x->record = zo_zeros(n, sizeof *x->record);
    x->slots = zo_zeros(o->config.update_interval, sizeof *x->slots);
}

/* Row blocks of a matrix; most is L. */
static uint64_t n_blocks(uint64_t rows, uint64_t cols, uint64_t most) {
    uint64_t rows_at_most = most / cols > 1 ? most / cols : 1;
    return rows * cols > most ? (rows + rows_at_most - 1) / rows_at_most : 1;
}

static void cut_param(zo_t *o, uint32_t id, uint64_t total) {
    const zo_decl_t *d = &o->params[id].decl;
    uint64_t batches = product(d->shape, 0, d->n_batch_axes);
    uint64_t rows = rows_of(d), cols = o->params[id].n_elems / (batches * rows);
    uint64_t least = o->config.block_elems ? o->config.block_elems : 65536;
    uint64_t share = (d->is_shared ? o->params[id].n_elems : total) / 1024;
    uint64_t nb = n_blocks(rows, cols, share > least ? share : least);
    for (uint64_t b = 0; b < batches; b++)
        for (uint64_t i = 0; i < nb; i++) {
            uint64_t begin = i * rows / nb, end = (i + 1) * rows / nb;
            add_matrix(o, id, (b * rows + begin) * cols, end - begin, cols);
        }
}

/* The end of the lot that begins with matrix `first`. */
static uint32_t lot_end(const zo_t *o, uint32_t first, uint64_t total) {
    const zo_decl_t *d = &o->params[o->matrices[first].param].decl;
    uint64_t n = o->matrices[first].rows * o->matrices[first].cols;
    uint64_t most = total / 256;
    uint32_t end = first + 1;
    if (most > 32768)
        most = 32768;
    if (most < total / 1024)
        most = total / 1024;
    for (; end < o->n_matrices; end++) {
        const zo_matrix_t *x = &o->matrices[end];
        const zo_decl_t *next = &o->params[x->param].decl;
        n += x->rows * x->cols;
        if (x->is_resident || n > most || next->dtype != d->dtype || next->grad_dtype != d->grad_dtype ||
            x->is_in_runs != o->matrices[first].is_in_runs)
            break;
    }
    return end;
}

/* ---- "Resident blocks" ------------------------------------------------------------------------------------------- */

static uint64_t n_moments(const zo_t *o) {
    static const uint64_t moments[ZO_N_RULES] = {2, 2, 1, 1, 1, 0};
    uint64_t most = 0;
    for (uint32_t i = 0; i < o->n_params; i++) {
        const zo_group_t *group = &o->config.groups[o->params[i].decl.group];
        uint64_t n = group->rule == ZO_CALLBACK ? group->n_moments : moments[group->rule];
        if (o->params[i].is_trainable && n > most)
            most = n;
    }
    return most;
}

/* 1: declared, 2: vectors, 3: others; 0: not by block. */
static int turn_of(const zo_decl_t *d) {
    if (d->is_always_selected)
        return 1;
    if (d->is_never_selected)
        return 0;
    return d->ndim <= d->n_batch_axes + 1 ? 2 : 3;
}

/* The most that a rank may have of a matrix: of its rows, as many together as have 16 elements, each rank has its part,
 * rounded up. One that lives as shards and whose channels are rows is not divided. */
static uint64_t n_most(const zo_t *o, const zo_matrix_t *x) {
    const zo_decl_t *d = &o->params[x->param].decl;
    uint64_t owners = d->n_owners ? d->n_owners : o->config.n_owners, rows;
    if (owners < 2 || (d->is_sharded && d->channels_are_rows))
        return x->rows * x->cols;
    for (rows = 1; rows * x->cols < 16; rows++)
        ;
    rows *= (x->rows + rows * owners - 1) / (rows * owners);
    return (rows < x->rows ? rows : x->rows) * x->cols;
}

static void place_blocks(zo_t *o) {
    int is_half = o->config.moments == ZO_MOMENTS_BF16 || o->config.moments == ZO_MOMENTS_STOCHASTIC;
    uint64_t of_moment = is_half ? 2 : 4, used = 0;
    int goes_on = 1;
    for (uint32_t id = 0; id < o->n_params; id++)
        o->params[id].sees_edits = o->config.sees_edits && !o->params[id].decl.is_never_selected;
    for (int turn = 1; turn <= 3; turn++)
        for (uint32_t i = 0; i < o->n_matrices && goes_on; i++) {
            zo_matrix_t *x = &o->matrices[i];
            if (turn_of(&o->params[x->param].decl) != turn || o->params[x->param].sees_edits)
                continue;
            used += (n_most(o, x) + 15) / 16 * 16 * (4 + n_moments(o) * of_moment);
            goes_on = turn == 1 || used <= o->config.resident_nbytes;
            x->is_resident = goes_on;
        }
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];
        x->is_resident |= o->config.resident_nbytes == ZO_ALL_RESIDENT || o->params[x->param].sees_edits;
        if (x->is_resident)
            x->k = 0;
    }
}

/* "Moments" */
static void find_runs(zo_t *o) {
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];
        const zo_param_t *p = &o->params[x->param];
        x->is_in_runs = o->config.moments >= ZO_MOMENTS_INT8 && p->n_elems >= 4096 && x->cols % 128 == 0 &&
                        o->config.groups[p->decl.group].rule != ZO_CALLBACK && (!x->is_resident || p->sees_edits);
    }
}

static void deal_cohorts(zo_t *o, uint64_t total) {
    uint64_t load[ZO_MAX_SLOTS] = {0};
    uint32_t end;
    for (uint32_t first = 0; first < o->n_matrices; first = end) {
        uint32_t least = 0;
        if (o->matrices[first].is_resident) {
            o->matrices[first].cohort = o->n_cohorts;
            end = first + 1;
            continue;
        }
        for (uint32_t j = 1; j < o->n_cohorts; j++)
            if (load[j] < load[least])
                least = j;
        end = lot_end(o, first, total);
        for (uint32_t i = first; i < end; i++) {
            zo_matrix_t *x = &o->matrices[i];
            x->cohort = least;
            load[least] += x->rows * x->cols * zo_dtype_nbytes(o->params[x->param].decl.dtype);
        }
    }
}

/* ---- "Start" ----------------------------------------------------------------------------------------------------- */

void zo_start_param(zo_param_t *p, const zo_decl_t *decl) {
    p->decl = *decl;
    p->n_elems = product(decl->shape, 0, decl->ndim);
    p->is_trainable = !decl->is_stateless && p->n_elems > 0;
    uint64_t nbytes = p->n_elems * zo_dtype_nbytes(decl->dtype);
    p->visible = zo_zeros(nbytes, 1);
    if (nbytes)
        memcpy(p->visible, decl->visible, nbytes);
    if (!p->is_trainable)
        return;
    float **arrays[] = {&p->w, &p->m, &p->v, &p->published, &p->device_w, &p->device_m, &p->device_v, &p->grad};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = zo_zeros(p->n_elems, sizeof(float));
    for (uint64_t i = 0; i < p->n_elems; i++)
        p->w[i] = zo_widen(p->visible, decl->dtype, i);
}

zo_t *zo_create(const zo_config_t *config, const zo_decl_t *decls, uint32_t n_decls) {
    zo_t *o = zo_zeros(1, sizeof *o);
    uint64_t total = 0;
    o->config = *config;
    if (config->is_exact) {
        o->config.topk_ratio = 0.0;
        o->config.warm_up = 0;
    }
    o->base = o->config.warm_up;
    o->n_cohorts = config->update_interval;
    o->n_params = n_decls;
    o->params = zo_zeros(n_decls, sizeof *o->params);
    for (uint32_t id = 0; id < n_decls; id++) {
        zo_start_param(&o->params[id], &decls[id]);
        if (o->params[id].is_trainable)
            total += o->params[id].n_elems;
    }
    for (uint32_t id = 0; id < n_decls; id++)
        if (o->params[id].is_trainable)
            cut_param(o, id, total);
    place_blocks(o);
    find_runs(o);
    deal_cohorts(o, total);
    return o;
}

void zo_drop_slots(zo_matrix_t *x) {
    for (uint32_t i = 0; i < x->n_slots; i++)
        free(x->slots[i].grad);
    x->n_slots = 0;
}

void zo_free_param(zo_param_t *p) {
    void *arrays[] = {p->w, p->m, p->v, p->published, p->device_w, p->device_m, p->device_v, p->grad, p->visible};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

void zo_destroy(zo_t *o) {
    if (!o)
        return;
    for (uint32_t i = 0; i < o->n_matrices; i++) {
        zo_matrix_t *x = &o->matrices[i];
        void *arrays[] = {x->is_selected, x->is_entering, x->was_selected, x->n,        x->device_n,
                          x->importance,  x->record,      x->slots,        x->deferred, x->selected};
        zo_drop_slots(x);
        for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++)
            free(arrays[a]);
    }
    for (uint32_t id = 0; id < o->n_params; id++)
        zo_free_param(&o->params[id]);
    free(o->matrices);
    free(o->params);
    free(o);
}

uint64_t zo_depth(const zo_matrix_t *x) { return x->channels_are_rows ? x->cols : x->rows; }

/* Element i of channel c: its index in the matrix. */
uint64_t zo_at(const zo_matrix_t *x, uint64_t c, uint64_t i) {
    return x->channels_are_rows ? c * x->cols + i : i * x->cols + c;
}
