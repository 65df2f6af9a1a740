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
 * delivery and rounded once to the parameter's type. Rule and orders are those that libzfplugin states for itself, so
 * that a plugin without approximation gives the same bits. */
#include "adamw.h"

#include "bfloat16.h"
#include "safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_ELEMS = 4096, N_LANES = 32 };

/* State of one parameter. In fp32 the master is the value itself. */
typedef struct moments {
    float *master, *m, *v; /* [n_elems] */
    float *sum;            /* [n_elems] fp32 sum of delivered parts; NULL until a PART comes */
    uint64_t n_updates;
    int is_present; /* a gradient was delivered in this step */
    int is_summed;  /* it stands in sum, not in param->grad */
} moments_t;

typedef struct adamw {
    host_optimizer_t base;
    moments_t *list; /* [base.params->n] */
    double sum_norm;
    uint64_t n_steps, n_skipped, n_clipped;
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

typedef void update_function_t(const scalars_t *c, size_t n, const float *g, float *w, float *m, float *v);

#if defined(__GNUC__)
#define ALWAYS_INLINE __attribute__((always_inline)) inline
#else
#define ALWAYS_INLINE inline
#endif

static ALWAYS_INLINE void update_elements(const scalars_t *c, size_t n, const float *restrict g, float *restrict w,
                                          float *restrict m, float *restrict v) {
    const scalars_t k = *c;

    for (size_t i = 0; i < n; i++) {
        float scaled = g[i] * k.s;
        float denominator;

        m[i] = fmaf(k.b1, m[i], k.one_minus_b1 * scaled);
        v[i] = fmaf(k.b2, v[i], k.one_minus_b2 * scaled * scaled);
        denominator = fmaf(sqrtf(v[i]), k.inverse_root, k.eps);
        w[i] = fmaf(k.minus_rate, m[i] / denominator, w[i] * k.decay);
    }
}

static void update_generic(const scalars_t *c, size_t n, const float *g, float *w, float *m, float *v) {
    update_elements(c, n, g, w, m, v);
}

/* The same loop where fma is an instruction: an order of magnitude faster than the library's fmaf. */
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"))) static void update_avx2(const scalars_t *c, size_t n, const float *g, float *w,
                                                            float *m, float *v) {
    update_elements(c, n, g, w, m, v);
}
#endif

static update_function_t *choose_update(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return update_avx2;
#endif
    return update_generic;
}

/* Elements first .. first+n-1 of a step's gradient as fp32: in place or widened into scratch. */
static const float *gradient_chunk(const host_param_t *p, const moments_t *s, size_t first, size_t n, float *scratch) {
    const uint16_t *narrow = p->grad;

    if (s->is_summed)
        return s->sum + first;
    if (p->dtype == HOST_FLOAT32)
        return (const float *)p->grad + first;
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

static void update_param(host_param_t *p, moments_t *s, const scalars_t *c, update_function_t *update) {
    float scratch[CHUNK_ELEMS];

    for (size_t first = 0; first < p->n_elems; first += CHUNK_ELEMS) {
        size_t n = chunk_n(p, first);
        const float *g = gradient_chunk(p, s, first, n, scratch);

        update(c, n, g, s->master + first, s->m + first, s->v + first);
        if (p->dtype == HOST_BFLOAT16)
            for (size_t i = 0; i < n; i++)
                ((uint16_t *)p->value)[first + i] = host_bfloat16_from_float(s->master[first + i]);
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

static int adamw_grads_ready(host_optimizer_t *base, size_t param, unsigned flags, glue_error_t *err) {
    adamw_t *self = (adamw_t *)base;
    moments_t *s = &self->list[param];

    if ((flags & HOST_GRAD_PART) != 0 && add_part(&base->params->list[param], s, err) != 0)
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

static double global_norm(const adamw_t *self) {
    double sum = 0.0;

    for (size_t i = 0; i < self->base.params->n; i++)
        if (self->list[i].is_present)
            sum += sum_of_squares(&self->base.params->list[i], &self->list[i]);
    return sqrt(sum);
}

static void update_all(adamw_t *self, const host_step_args_t *args, double clip_factor) {
    update_function_t *update = choose_update();

    for (size_t i = 0; i < self->base.params->n; i++) {
        host_param_t *p = &self->base.params->list[i];
        moments_t *s = &self->list[i];
        scalars_t c;

        if (!s->is_present)
            continue;
        s->n_updates++;
        c = make_scalars(&args->groups[p->group], clip_factor, s->n_updates);
        update_param(p, s, &c, update);
    }
}

static int adamw_step(host_optimizer_t *base, const host_step_args_t *args, glue_error_t *err) {
    adamw_t *self = (adamw_t *)base;
    double norm, clip_factor;

    (void)err;
    for (size_t i = 0; i < base->params->n; i++)
        round_sum(&base->params->list[i], &self->list[i]);
    norm = global_norm(self);
    clip_factor = args->clip_norm > 0.0 ? args->clip_norm / (norm + 1e-6) : 1.0;
    clip_factor = clip_factor < 1.0 ? clip_factor : 1.0;
    self->n_steps++;
    if (isfinite(norm)) {
        update_all(self, args, clip_factor);
        self->sum_norm += norm;
        self->n_clipped += clip_factor < 1.0;
    } else {
        self->n_skipped++;
    }
    for (size_t i = 0; i < base->params->n; i++)
        self->list[i].is_present = self->list[i].is_summed = 0;
    return 0;
}

static size_t adamw_counters(host_optimizer_t *base, host_counter_t out[HOST_MAX_COUNTERS]) {
    const adamw_t *self = (const adamw_t *)base;
    double n_applied = (double)(self->n_steps - self->n_skipped);

    out[0] = (host_counter_t){"steps", (double)self->n_steps};
    out[1] = (host_counter_t){"skipped_steps", (double)self->n_skipped};
    out[2] = (host_counter_t){"clipped_steps", (double)self->n_clipped};
    out[3] = (host_counter_t){"mean_grad_norm", n_applied > 0.0 ? self->sum_norm / n_applied : 0.0};
    return 4;
}

static void adamw_destroy(host_optimizer_t *base) {
    adamw_t *self = (adamw_t *)base;

    for (size_t i = 0; self->list != NULL && i < base->params->n; i++) {
        moments_t *s = &self->list[i];

        if (base->params->list[i].dtype != HOST_FLOAT32)
            free(s->master);
        free(s->m);
        free(s->v);
        free(s->sum);
    }
    free(self->list);
    free(self);
}

/* ---- saved state: adamw.safetensors holds exp_avg.NAME and exp_avg_sq.NAME (m and v), n_updates and the counters.
 * The masters are the weights file. ---- */

#define STATE_FILE "adamw.safetensors"
enum { N_COUNTS = 3, PATH_NBYTES = 4096, TENSOR_NAME_NBYTES = HOST_NAME_NBYTES + 16 };

typedef char tensor_name_t[TENSOR_NAME_NBYTES];

static int state_path(const char *folder, const char *name, char out[PATH_NBYTES], glue_error_t *err) {
    int n = snprintf(out, PATH_NBYTES, "%s/%s", folder, name);

    return n > 0 && n < PATH_NBYTES ? 0 : glue_fail(err, "%.200s: the path is too long", folder);
}

/* Of parameter i: tensors 2i (m) and 2i + 1 (v). After all of them n_updates, counts, sum_norm. */
static void outline_state(const adamw_t *self, host_tensor_t *tensors, tensor_name_t *names) {
    size_t n = self->base.params->n;

    for (size_t i = 0; i < 2 * n; i++) {
        const host_param_t *p = &self->base.params->list[i / 2];

        (void)snprintf(names[i], sizeof names[i], "%s.%s", i % 2 == 0 ? "exp_avg" : "exp_avg_sq", p->name);
        tensors[i] = (host_tensor_t){.name = names[i], .dtype = "F32", .n_dims = p->n_dims};
        for (int k = 0; k < p->n_dims; k++)
            tensors[i].shape[k] = (uint64_t)p->shape[k];
    }
    tensors[2 * n] = (host_tensor_t){.name = "n_updates", .dtype = "I64", .n_dims = 1, .shape = {n}};
    tensors[2 * n + 1] = (host_tensor_t){.name = "counts", .dtype = "I64", .n_dims = 1, .shape = {N_COUNTS}};
    tensors[2 * n + 2] = (host_tensor_t){.name = "sum_norm", .dtype = "F64", .n_dims = 1, .shape = {1}};
}

static int put_state(const adamw_t *self, host_safetensors_writer_t *writer, glue_error_t *err) {
    const uint64_t counts[N_COUNTS] = {self->n_steps, self->n_skipped, self->n_clipped};
    const host_params_t *params = self->base.params;
    uint64_t sum_norm;

    for (size_t i = 0; i < params->n; i++)
        if (host_safetensors_put_floats(writer, self->list[i].m, params->list[i].n_elems, err) != 0 ||
            host_safetensors_put_floats(writer, self->list[i].v, params->list[i].n_elems, err) != 0)
            return -1;
    for (size_t i = 0; i < params->n; i++)
        if (host_safetensors_put_words(writer, &self->list[i].n_updates, 1, err) != 0)
            return -1;
    memcpy(&sum_norm, &self->sum_norm, sizeof sum_norm);
    return host_safetensors_put_words(writer, counts, N_COUNTS, err) == 0
               ? host_safetensors_put_words(writer, &sum_norm, 1, err)
               : -1;
}

static int adamw_save(host_optimizer_t *base, const char *folder, glue_error_t *err) {
    const adamw_t *self = (const adamw_t *)base;
    size_t n = 2 * base->params->n + 3;
    host_tensor_t *tensors = calloc(n, sizeof *tensors);
    tensor_name_t *names = calloc(n, sizeof *names);
    host_safetensors_writer_t *writer = NULL;
    char path[PATH_NBYTES];
    int st = -1;

    if (tensors == NULL || names == NULL) {
        (void)glue_fail(err, "adamw: out of memory for the names of %zu tensors", n);
    } else if (state_path(folder, STATE_FILE, path, err) == 0) {
        outline_state(self, tensors, names);
        st = host_safetensors_create(path, tensors, n, &writer, err);
    }
    free(names);
    free(tensors);
    if (st != 0)
        return -1;
    if (put_state(self, writer, err) == 0)
        return host_safetensors_finish(writer, err);
    host_safetensors_abandon(writer);
    return -1;
}

/* A tensor of the parameter's shape, whole. */
static int read_like(const host_safetensors_t *file, const char *prefix, const host_param_t *p, float *out,
                     glue_error_t *err) {
    const host_tensor_t *t;
    tensor_name_t name;

    (void)snprintf(name, sizeof name, "%s%s", prefix, p->name);
    t = host_safetensors_find(file, name);
    if (t == NULL)
        return glue_fail(err, "%s: has no tensor %s", host_safetensors_path(file), name);
    if (strcmp(t->dtype, "F32") != 0 || t->n_dims != p->n_dims || t->shape[0] != (uint64_t)p->shape[0] ||
        (p->n_dims == 2 && t->shape[1] != (uint64_t)p->shape[1]))
        return glue_fail(err, "%s: tensor %s is %s with %llu elements; F32 in the parameter's shape, %zu, is needed",
                         host_safetensors_path(file), name, t->dtype, (unsigned long long)t->n_elems, p->n_elems);
    return host_safetensors_read(file, t, 0, p->n_elems, out, err);
}

static int read_words(const host_safetensors_t *file, const char *name, size_t n, uint64_t *out, glue_error_t *err) {
    const host_tensor_t *t = host_safetensors_find(file, name);

    if (t == NULL)
        return glue_fail(err, "%s: has no tensor %s", host_safetensors_path(file), name);
    return host_safetensors_read_words(file, t, n, out, err);
}

static int read_masters(adamw_t *self, const char *folder, glue_error_t *err) {
    host_params_t *params = self->base.params;
    host_safetensors_t *file;
    char path[PATH_NBYTES];
    int st = 0;

    if (state_path(folder, HOST_WEIGHTS_FILE, path, err) != 0 || host_safetensors_open(path, &file, err) != 0)
        return -1;
    for (size_t i = 0; st == 0 && i < params->n; i++) {
        host_param_t *p = &params->list[i];

        st = read_like(file, "", p, self->list[i].master, err);
        for (size_t k = 0; st == 0 && p->dtype != HOST_FLOAT32 && k < p->n_elems; k++)
            host_param_set(p, k, self->list[i].master[k]);
    }
    host_safetensors_close(file);
    return st;
}

static int read_counters(adamw_t *self, const host_safetensors_t *file, glue_error_t *err) {
    size_t n = self->base.params->n;
    uint64_t counts[N_COUNTS], sum_norm, *n_updates = calloc(n, sizeof *n_updates);

    if (n_updates == NULL)
        return glue_fail(err, "adamw: out of memory for %zu counts", n);
    if (read_words(file, "n_updates", n, n_updates, err) != 0 ||
        read_words(file, "counts", N_COUNTS, counts, err) != 0 ||
        read_words(file, "sum_norm", 1, &sum_norm, err) != 0) {
        free(n_updates);
        return -1;
    }
    for (size_t i = 0; i < n; i++)
        self->list[i].n_updates = n_updates[i];
    self->n_steps = counts[0];
    self->n_skipped = counts[1];
    self->n_clipped = counts[2];
    memcpy(&self->sum_norm, &sum_norm, sizeof sum_norm);
    free(n_updates);
    return 0;
}

static int adamw_load(host_optimizer_t *base, const char *folder, glue_error_t *err) {
    adamw_t *self = (adamw_t *)base;
    host_params_t *params = base->params;
    host_safetensors_t *file;
    char path[PATH_NBYTES];
    int st;

    if (state_path(folder, STATE_FILE, path, err) != 0 || host_safetensors_open(path, &file, err) != 0)
        return -1;
    st = read_counters(self, file, err);
    for (size_t i = 0; st == 0 && i < params->n; i++)
        if (read_like(file, "exp_avg.", &params->list[i], self->list[i].m, err) != 0 ||
            read_like(file, "exp_avg_sq.", &params->list[i], self->list[i].v, err) != 0)
            st = -1;
    host_safetensors_close(file);
    return st == 0 ? read_masters(self, folder, err) : -1;
}

static int adamw_weights(host_optimizer_t *base, size_t param, float *out, glue_error_t *err) {
    (void)err;
    memcpy(out, ((const adamw_t *)base)->list[param].master, base->params->list[param].n_elems * sizeof *out);
    return 0;
}

static const host_optimizer_ops_t adamw_ops = {.name = "adamw",
                                               .state_file = STATE_FILE,
                                               .save = adamw_save,
                                               .load = adamw_load,
                                               .weights = adamw_weights,
                                               .grads_ready = adamw_grads_ready,
                                               .step = adamw_step,
                                               .counters = adamw_counters,
                                               .destroy = adamw_destroy};

static int init_moments(const host_param_t *p, moments_t *s) {
    size_t n = p->n_elems > 0 ? p->n_elems : 1;

    s->m = calloc(n, sizeof *s->m);
    s->v = calloc(n, sizeof *s->v);
    s->master = p->dtype == HOST_FLOAT32 ? p->value : calloc(n, sizeof *s->master);
    if (s->m == NULL || s->v == NULL || s->master == NULL)
        return -1;
    for (size_t i = 0; i < p->n_elems; i++)
        s->master[i] = host_param_get(p, i);
    return 0;
}

int host_adamw_create(host_params_t *params, host_optimizer_t **out, glue_error_t *err) {
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
    *out = &self->base;
    return 0;
}
