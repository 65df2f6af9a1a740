/* SPDX-License-Identifier: Apache-2.0 */
/* adamw.c - the host's own AdamW (adamw.h).
 *
 * Per element, s being the clip factor and n the updates of the parameter, this one included:
 *   g' = g*s;  m = fma(b1, m, (1-b1)*g');  v = fma(b2, v, ((1-b2)*g')*g');  d = fma(sqrt(v), 1/sqrt(1-b2^n), eps)
 *   w = fma(-lr/(1-b1^n), m/d, w*(1-lr*wd));  value = w rounded to the parameter's type
 * in fp32 with explicit fma; scalars are computed in double and rounded once; b^n by repeated squaring. The arithmetic
 * is correctly rounded element by element, so every instruction set gives the same bits.
 * The norm is summed in double in a fixed order: per parameter blocks of CHUNK_ELEMS, in each N_LANES partial sums that
 * a binary tree joins, blocks by index, parameters by index. Parts of a gradient are summed in fp32 in order of
 * delivery and rounded once to the parameter's type. The rule is the one that libzfplugin states for itself. As
 * documented, the norm's order is plugin/SCHEDULE.md's, too, by the oracle's cut and sums: then a plugin without
 * approximation gives the same bits to the last step, and else losses that agree to some 1e-8.
 *
 * Of parameters on a device it has copies: gradients come down, values go up, and nothing of it is meant to be fast. */
#include "adamw.h"

#include "bfloat16.h"
#include "oracle/state.h"
#include "real.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_ELEMS = 4096, N_LANES = 32 };

/* State of one parameter. In fp32 the master is the value itself. */
typedef struct moments {
    void *value, *grad;    /* the parameter's, or copies of what lies on a device */
    float *master, *m, *v; /* [n_elems] */
    float *sum;            /* [n_elems] fp32 sum of delivered parts; NULL until a PART comes */
    uint64_t n_updates;
    int is_present; /* a gradient was delivered in this step */
    int is_summed;  /* it stands in sum, not in param->grad */
} moments_t;

typedef struct adamw {
    host_optimizer_t base;
    moments_t *list; /* [base.params->n] */
    zo_t *cut;       /* of the gradients, for the norm; NULL: the host's own order */
    float *whole;    /* [elements of the largest parameter] a gradient as fp32, with a cut */
    uint64_t n_steps, n_skipped;
} adamw_t;

/* The scalars of one update, rounded to fp32. */
typedef struct scalars {
    float s, b1, one_minus_b1, b2, one_minus_b2, inverse_root, eps, minus_rate, decay;
} scalars_t;

static double power(double base, uint64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1)
            result *= base;
        base *= base;
    }
    return result;
}

static scalars_t make_scalars(const host_hyper_t *h, double clip_factor, uint64_t n) {
    return (scalars_t){.s = (float)clip_factor,
                       .b1 = (float)h->beta1,
                       .one_minus_b1 = (float)(1.0 - h->beta1),
                       .b2 = (float)h->beta2,
                       .one_minus_b2 = (float)(1.0 - h->beta2),
                       .inverse_root = (float)(1.0 / sqrt(1.0 - power(h->beta2, n))),
                       .eps = (float)h->eps,
                       .minus_rate = (float)(-h->lr / (1.0 - power(h->beta1, n))),
                       .decay = (float)(1.0 - h->lr * h->weight_decay)};
}

HOST_CLONES_FMA static void update(const scalars_t *c, size_t n, const float *restrict g, float *restrict w,
                                   float *restrict m, float *restrict v) {
    const scalars_t k = *c;
    for (size_t i = 0; i < n; i++) {
        float scaled = g[i] * k.s;
        m[i] = fmaf(k.b1, m[i], k.one_minus_b1 * scaled);
        v[i] = fmaf(k.b2, v[i], k.one_minus_b2 * scaled * scaled);
        float denominator = fmaf(sqrtf(v[i]), k.inverse_root, k.eps);
        w[i] = fmaf(k.minus_rate, m[i] / denominator, w[i] * k.decay);
    }
}

/* Elements first .. first+n-1 of a step's gradient as fp32: in place or widened into scratch. */
static const float *gradient_chunk(const host_param_t *p, const moments_t *s, size_t first, size_t n, float *scratch) {
    const uint16_t *narrow = s->grad;
    if (s->is_summed)
        return s->sum + first;
    if (p->dtype == HOST_FLOAT32)
        return (const float *)s->grad + first;
    for (size_t i = 0; i < n; i++)
        scratch[i] = host_float_from_bfloat16(narrow[first + i]);
    return scratch;
}

static size_t chunk_n(const host_param_t *p, size_t first) {
    return p->n_elems - first < CHUNK_ELEMS ? p->n_elems - first : CHUNK_ELEMS;
}

/* Lane l adds the squares of elements l, l + N_LANES, ...; lanes are joined by a binary tree. */
static double sum_of_squares_chunk(const float *g, size_t n) {
    double lanes[N_LANES] = {0.0};
    size_t i = 0;
    for (; i + N_LANES <= n; i += N_LANES)
        for (size_t lane = 0; lane < N_LANES; lane++)
            lanes[lane] += (double)g[i + lane] * (double)g[i + lane];
    for (size_t lane = 0; i + lane < n; lane++)
        lanes[lane] += (double)g[i + lane] * (double)g[i + lane];
    for (size_t half = N_LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

static double sum_of_squares(const host_param_t *p, const moments_t *s) {
    float scratch[CHUNK_ELEMS];
    double sum = 0.0;
    for (size_t first = 0; first < p->n_elems; first += CHUNK_ELEMS) {
        size_t n = chunk_n(p, first);
        sum += sum_of_squares_chunk(gradient_chunk(p, s, first, n, scratch), n);
    }
    return sum;
}

static void update_param(const host_param_t *p, moments_t *s, const scalars_t *c) {
    float scratch[CHUNK_ELEMS];
    for (size_t first = 0; first < p->n_elems; first += CHUNK_ELEMS) {
        size_t n = chunk_n(p, first);
        const float *g = gradient_chunk(p, s, first, n, scratch);
        update(c, n, g, s->master + first, s->m + first, s->v + first);
        if (p->dtype == HOST_BFLOAT16)
            for (size_t i = 0; i < n; i++)
                ((uint16_t *)s->value)[first + i] = host_bfloat16_from_float(s->master[first + i]);
    }
}

static int add_part(const host_param_t *p, moments_t *s, glue_error_t *err) {
    float scratch[CHUNK_ELEMS];
    if (s->sum == NULL)
        s->sum = malloc((p->n_elems > 0 ? p->n_elems : 1) * sizeof *s->sum);
    if (s->sum == NULL)
        return glue_fail(err, "adamw: out of memory for the gradient sum of %s", p->name);
    s->is_summed = 0; /* so that gradient_chunk reads what was delivered */
    for (size_t first = 0; first < p->n_elems; first += CHUNK_ELEMS) {
        size_t n = chunk_n(p, first);
        const float *g = gradient_chunk(p, s, first, n, scratch);
        for (size_t i = 0; i < n; i++)
            s->sum[first + i] = s->is_present ? s->sum[first + i] + g[i] : g[i];
    }
    s->is_summed = 1;
    return 0;
}

static int is_on_device(const host_param_t *p) { return p->compute != host_compute_processor(); }

static size_t nbytes_of(const host_param_t *p) { return p->n_elems * host_dtype_nbytes(p->dtype); }

static int adamw_grads_ready(host_optimizer_t *base, size_t param, unsigned flags, glue_error_t *err) {
    adamw_t *self = (adamw_t *)base;
    moments_t *s = &self->list[param];
    const host_param_t *p = &base->params->list[param];
    if (is_on_device(p))
        p->compute->ops->copy_out(p->compute, s->grad, p->grad, nbytes_of(p));
    if (host_compute_check(p->compute, err) != 0 || ((flags & HOST_GRAD_PART) != 0 && add_part(p, s, err) != 0))
        return -1;
    if ((flags & HOST_GRAD_TOTAL) != 0)
        s->is_summed = 0;
    s->is_present = 1;
    return 0;
}

/* A finished sum of parts, rounded to the gradient's declared type. */
static void round_sum(const host_param_t *p, moments_t *s) {
    if (!s->is_summed || p->dtype == HOST_FLOAT32)
        return;
    for (size_t i = 0; i < p->n_elems; i++)
        s->sum[i] = host_float_from_bfloat16(host_bfloat16_from_float(s->sum[i]));
}

/* "Sums that decide" of plugin/SCHEDULE.md. */
static double documented_squares(const adamw_t *self, size_t param) {
    const host_param_t *p = &self->base.params->list[param];
    double lanes[32] = {0.0};
    uint64_t n_units = 0;
    for (size_t first = 0; first < p->n_elems; first += CHUNK_ELEMS) {
        size_t n = chunk_n(p, first);
        float scratch[CHUNK_ELEMS];
        memcpy(self->whole + first, gradient_chunk(p, &self->list[param], first, n, scratch), n * sizeof(float));
    }
    for (uint32_t i = 0; i < zo_n_matrices(self->cut); i++) {
        zo_matrix_info_t x;
        zo_matrix_info(self->cut, i, &x);
        if (x.param == param)
            zo_take_squares(lanes, &n_units, self->whole + x.first, x.rows, x.cols, 0);
    }
    return zo_lanes_sum(lanes);
}

static double global_norm(const adamw_t *self) {
    double sum = 0.0;
    for (size_t i = 0; i < self->base.params->n; i++)
        if (self->list[i].is_present)
            sum += self->cut != NULL ? documented_squares(self, i)
                                     : sum_of_squares(&self->base.params->list[i], &self->list[i]);
    return sqrt(sum);
}

static void update_all(adamw_t *self, const host_step_args_t *args, double clip_factor) {
    for (size_t i = 0; i < self->base.params->n; i++) {
        host_param_t *p = &self->base.params->list[i];
        moments_t *s = &self->list[i];
        if (!s->is_present)
            continue;
        s->n_updates++;
        scalars_t c = make_scalars(&args->groups[p->group], clip_factor, s->n_updates);
        update_param(p, s, &c);
        if (is_on_device(p))
            p->compute->ops->copy_in(p->compute, p->value, s->value, nbytes_of(p));
    }
}

static int adamw_step(host_optimizer_t *base, const host_step_args_t *args, glue_error_t *err) {
    adamw_t *self = (adamw_t *)base;
    for (size_t i = 0; i < base->params->n; i++)
        round_sum(&base->params->list[i], &self->list[i]);
    double norm = global_norm(self);
    double clip_factor = args->clip_norm > 0.0 ? args->clip_norm / (norm + 1e-6) : 1.0;
    clip_factor = clip_factor < 1.0 ? clip_factor : 1.0;
    self->n_steps++;
    if (isfinite(norm))
        update_all(self, args, clip_factor);
    else
        self->n_skipped++;
    for (size_t i = 0; i < base->params->n; i++)
        self->list[i].is_present = self->list[i].is_summed = 0;
    return host_compute_check(base->params->list[0].compute, err);
}

static size_t adamw_counters(host_optimizer_t *base, host_counter_t out[HOST_MAX_COUNTERS]) {
    const adamw_t *self = (const adamw_t *)base;
    out[0] = (host_counter_t){"steps", (double)self->n_steps};
    out[1] = (host_counter_t){"skipped_steps", (double)self->n_skipped};
    return 2;
}

static void adamw_destroy(host_optimizer_t *base) {
    adamw_t *self = (adamw_t *)base;
    for (size_t i = 0; self->list != NULL && i < base->params->n; i++) {
        moments_t *s = &self->list[i];
        if (base->params->list[i].dtype != HOST_FLOAT32)
            free(s->master);
        if (is_on_device(&base->params->list[i])) {
            free(s->value);
            free(s->grad);
        }
        free(s->m);
        free(s->v);
        free(s->sum);
    }
    if (self->cut != NULL)
        zo_destroy(self->cut);
    free(self->whole);
    free(self->list);
    free(self);
}

static const host_optimizer_ops_t adamw_ops = {.name = "adamw",
                                               .grads_ready = adamw_grads_ready,
                                               .step = adamw_step,
                                               .counters = adamw_counters,
                                               .destroy = adamw_destroy};

static int init_moments(const host_param_t *p, moments_t *s) {
    size_t n = p->n_elems > 0 ? p->n_elems : 1;
    s->value = is_on_device(p) ? calloc(n, host_dtype_nbytes(p->dtype)) : p->value;
    s->grad = is_on_device(p) ? calloc(n, host_dtype_nbytes(p->dtype)) : p->grad;
    s->m = calloc(n, sizeof *s->m);
    s->v = calloc(n, sizeof *s->v);
    s->master = p->dtype == HOST_FLOAT32 ? s->value : calloc(n, sizeof *s->master);
    if (s->value == NULL || s->grad == NULL || s->m == NULL || s->v == NULL || s->master == NULL)
        return -1;
    if (is_on_device(p))
        p->compute->ops->copy_out(p->compute, s->value, p->value, nbytes_of(p));
    for (size_t i = 0; p->dtype == HOST_BFLOAT16 && i < p->n_elems; i++)
        s->master[i] = host_float_from_bfloat16(((const uint16_t *)s->value)[i]);
    return 0;
}

/* The cut of the parameters as the plugin is told of them. */
static int make_cut(adamw_t *self) {
    const host_params_t *params = self->base.params;
    zo_decl_t *decls = calloc(params->n, sizeof *decls);
    const zo_config_t config = {.is_exact = 1, .update_interval = 1};
    size_t largest = 1;
    for (size_t i = 0; decls != NULL && i < params->n; i++) {
        const host_param_t *p = &params->list[i];
        decls[i] = (zo_decl_t){.ndim = (uint32_t)p->n_dims,
                               .shape = {p->shape[0], p->shape[1]},
                               .dtype = p->dtype == HOST_FLOAT32 ? ZO_F32 : ZO_BF16,
                               .grad_dtype = p->dtype == HOST_FLOAT32 ? ZO_F32 : ZO_BF16,
                               .visible = self->list[i].value};
        largest = p->n_elems > largest ? p->n_elems : largest;
    }
    self->whole = malloc(largest * sizeof *self->whole);
    self->cut = decls != NULL ? zo_create(&config, decls, (uint32_t)params->n) : NULL;
    free(decls);
    return self->whole != NULL && self->cut != NULL ? 0 : -1;
}

int host_adamw_create(host_params_t *params, int is_documented, host_optimizer_t **out, glue_error_t *err) {
    adamw_t *self = calloc(1, sizeof *self);
    if (self == NULL)
        return glue_fail(err, "adamw: out of memory");
    self->base = (host_optimizer_t){.ops = &adamw_ops, .params = params};
    self->list = calloc(params->n, sizeof *self->list);
    for (size_t i = 0; i < params->n; i++)
        if (self->list == NULL || init_moments(&params->list[i], &self->list[i]) != 0) {
            adamw_destroy(&self->base);
            return glue_fail(err, "adamw: out of memory for the state of %s", params->list[i].name);
        }
    if (is_documented && make_cut(self) != 0) {
        adamw_destroy(&self->base);
        return glue_fail(err, "adamw: out of memory for the gradients' cut");
    }
    *out = &self->base;
    return 0;
}
