/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/math.c - the arithmetic of the oracle: conversions, the update rule, and the sums that decide in their stated
 * order (kernels/kernels.h). Written from that page alone. */
#include "state.h"

#include <math.h>
#include <string.h>

uint64_t zo_dtype_nbytes(zo_dtype_t dtype) { return dtype == ZO_F32 ? 4 : 2; }

/* ---- data types -------------------------------------------------------------------------------------------------- */

/* 2^e, of a normal double. The C library's ldexp and ilogb took a fifth of a run's time. */
static double power_of_two(int e) {
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int exponent_of(double normal) {
    uint64_t bits;
    memcpy(&bits, &normal, sizeof bits);
    return (int)(bits >> 52 & 0x7FF) - 1023;
}

/* IEEE half: 1 sign, 5 exponent, 10 fraction bits. */
static float widen_half(uint16_t bits) {
    int exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;
    float x;
    if (exponent == 0x1F)
        x = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        x = (float)fraction * 0x1p-24f;
    else
        x = (float)((0x400 + fraction) * power_of_two(exponent - 25));
    return bits & 0x8000 ? -x : x;
}

static uint16_t narrow_half(float x) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs((double)x);
    int e = exponent_of(a);
    if (isnan(x))
        return sign | 0x7E00;
    if (a >= 65520.0) /* from half way beyond the largest on */
        return sign | 0x7C00;
    if (a < 0x1p-14) /* a denormal; 1024 of its units are the smallest normal number, and so are its bits */
        return sign | (uint16_t)nearbyint(a * 0x1p24);
    return (uint16_t)(sign + ((e + 15) << 10) + (int)nearbyint(a * power_of_two(10 - e)) - 0x400);
}

float zo_widen(const void *src, zo_dtype_t dtype, uint64_t i) {
    float x;
    if (dtype == ZO_F32)
        return ((const float *)src)[i];
    if (dtype == ZO_F16)
        return widen_half(((const uint16_t *)src)[i]);
    uint32_t bits = (uint32_t)((const uint16_t *)src)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void zo_narrow(void *dst, zo_dtype_t dtype, uint64_t i, float x) {
    uint32_t bits, upper, lower;
    if (dtype == ZO_F32) {
        ((float *)dst)[i] = x;
        return;
    }
    if (dtype == ZO_F16) {
        ((uint16_t *)dst)[i] = narrow_half(x);
        return;
    }
    memcpy(&bits, &x, sizeof bits);
    upper = bits >> 16;
    lower = bits & 0xFFFFu;
    if (isnan(x))
        upper |= 0x40u; /* quiet */
    else if (lower > 0x8000u || (lower == 0x8000u && (upper & 1u)))
        upper++;
    ((uint16_t *)dst)[i] = (uint16_t)upper;
}

/* ---- "Update rules" ---------------------------------------------------------------------------------------------- */

/* b^(2^k), by k squarings. */
static double squared(double b, unsigned k) {
    double half = k == 0 ? b : squared(b, k - 1);
    return k == 0 ? b : half * half;
}

/* The power of n without its highest bit, times the power of that bit alone. The factors therefore meet from the lowest
 * bit upwards, by recursion from the highest: this shares no line with the engine's loop over the low bits. */
double zo_power(double b, uint32_t n) {
    unsigned k = 0;
    if (n == 0)
        return 1.0;
    while (n >> k > 1)
        k++;
    return zo_power(b, n - (1u << k)) * squared(b, k);
}

static int has_bias_correction(zo_rule_t rule) { return rule == ZO_ADAMW || rule == ZO_ADAM; }

zo_scalars_t zo_scalars_of(const zo_config_t *config, uint32_t group, const zo_hyper_t *h, float s, uint32_t n) {
    zo_rule_t rule = config->groups[group].rule;
    double bc1 = 1.0 - zo_power(h->beta1, n), bc2 = 1.0 - zo_power(h->beta2, n);
    zo_scalars_t k = {.config = config,
                      .group = &config->groups[group],
                      .s = s,
                      .b1 = (float)h->beta1,
                      .one_minus_b1 = (float)(1.0 - h->beta1),
                      .b2 = (float)h->beta2,
                      .one_minus_b2 = (float)(1.0 - h->beta2),
                      .inv_sqrt_bc2 = (float)(1.0 / sqrt(bc2)),
                      .eps = (float)h->eps,
                      .neg_step = (float)(has_bias_correction(rule) ? -h->lr / bc1 : -h->lr),
                      .decay = (float)(1.0 - h->lr * h->weight_decay),
                      .l2 = (float)h->weight_decay,
                      .hyper = *h,
                      .n = n};
    return k;
}

static float denominator(float v, const zo_scalars_t *k) { return fmaf(sqrtf(v), k->inv_sqrt_bc2, k->eps); }

static void update_adam(float *w, float *m, float *v, float g, const zo_scalars_t *k, float decayed) {
    *m = fmaf(k->b1, *m, k->one_minus_b1 * g);
    *v = fmaf(k->b2, *v, (k->one_minus_b2 * g) * g);
    *w = fmaf(k->neg_step, *m / denominator(*v, k), decayed);
}

static void update_lion(float *w, float *m, float g, const zo_scalars_t *k) {
    float c = fmaf(k->b1, *m, k->one_minus_b1 * g);
    if (c > 0.0f)
        c = 1.0f;
    else if (c < 0.0f)
        c = -1.0f;
    *w = fmaf(k->neg_step, c, *w * k->decay);
    *m = fmaf(k->b2, *m, k->one_minus_b2 * g);
}

/* Without momentum the moment rests. */
static void update_sgd(float *w, float *m, float g, const zo_scalars_t *k) {
    float u = g;
    if (k->b1 != 0.0f) {
        *m = fmaf(k->b1, *m, g);
        u = k->group->rule == ZO_SGD ? *m : fmaf(k->b1, *m, g);
    }
    *w = fmaf(k->neg_step, u, *w);
}

void zo_update(uint64_t number, float *w, float *m, float *v, float grad, const zo_scalars_t *k) {
    float g = grad * k->s;
    switch (k->group->rule) {
    case ZO_ADAMW:
        update_adam(w, m, v, g, k, *w * k->decay);
        break;
    case ZO_ADAM:
        update_adam(w, m, v, fmaf(k->l2, *w, g), k, *w);
        break;
    case ZO_SGD:
    case ZO_NESTEROV:
        update_sgd(w, m, fmaf(k->l2, *w, g), k);
        break;
    case ZO_LION:
        update_lion(w, m, g, k);
        break;
    default:
        k->group->element(k->group->element_ctx, number, w, m, v, g, &k->hyper, k->n);
        break;
    }
}

/* ---- "Prediction" ------------------------------------------------------------------------------------------------ */

uint32_t zo_steps_ahead(const zo_config_t *config, const zo_group_t *group) {
    uint32_t late = config->update_interval - 1 + (uint32_t)config->publish_lag;
    if (!config->predicts || config->is_mean || group->rule > ZO_ADAM)
        return 0;
    return late < 4 ? late : 4;
}

float zo_predicted(float w, float m, float v, const zo_scalars_t *last) {
    double b1 = last->hyper.beta1;
    double e = b1 * (1.0 - zo_power(b1, zo_steps_ahead(last->config, last->group))) / (1.0 - b1);
    float c = (float)(e * (-last->hyper.lr / (1.0 - zo_power(b1, last->n))));
    return fmaf(c, m / denominator(v, last), w);
}

/* ---- "Moments" --------------------------------------------------------------------------------------------------- */

static uint32_t mixed(uint32_t h) {
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    return h ^ h >> 16;
}

static uint64_t splitmix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t key_of(uint64_t step) { return splitmix(step * 0x9E3779B97F4A7C15u + 0x7A666D6F6D656E74u); }

void zo_run_randoms(uint64_t step, uint64_t index, uint32_t out[128]) {
    uint64_t z = splitmix(key_of(step) + index * 0x9E3779B97F4A7C15u);
    for (uint64_t e = 0; e < 128; e++)
        out[e] = (uint32_t)(z + e * (z >> 32));
}

uint32_t zo_random32(uint64_t step, uint64_t index) {
    uint64_t z = key_of(step);
    uint32_t h = mixed((uint32_t)index * 0x9E3779B9u ^ (uint32_t)z);
    return mixed(h ^ (uint32_t)(z >> 32) ^ (uint32_t)(index >> 32) * 0x85EBCA6Bu);
}

float zo_round_moment(float x, zo_moments_t moments, uint32_t random16) {
    uint32_t bits, up;
    uint16_t nearest;
    if (moments == ZO_MOMENTS_F32)
        return x;
    memcpy(&bits, &x, sizeof bits);
    if (moments == ZO_MOMENTS_BF16 || !isfinite(x)) {
        zo_narrow(&nearest, ZO_BF16, 0, x);
        return zo_widen(&nearest, ZO_BF16, 0);
    }
    up = (bits + random16) & 0xFFFF0000u;
    if ((up & 0x7F800000u) == 0x7F800000u) /* Inf: not by rounding */
        up = bits & 0xFFFF0000u;
    memcpy(&x, &up, sizeof x);
    return x;
}

/* The bits of |x|. */
static uint32_t size_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits % 0x80000000u;
}

static float of_size(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t above(uint32_t bits, uint32_t unit) { return bits / unit + (bits % unit != 0); }

static uint32_t largest_of(const float *x) {
    uint32_t most = 0;
    for (int i = 0; i < 128; i++)
        if (size_of(x[i]) > most)
            most = size_of(x[i]);
    return most;
}

/* No random number counts where hi is near Inf. */
static uint32_t counted(uint32_t r, uint32_t most) { return most >= 0x7F700000u ? 0 : r; }

void zo_round_run_v(float *v, const uint32_t *r) {
    uint32_t most = largest_of(v), least = most, unit, first;
    for (int i = 0; i < 128; i++)
        if (size_of(v[i]) && size_of(v[i]) < least)
            least = size_of(v[i]);
    for (unit = 256; unit < 1u << 20 && above(most, unit) - least / unit > 254;)
        unit *= 2;
    first = least / unit;
    if (above(most, unit) > 254 && above(most, unit) - 254 > first)
        first = above(most, unit) - 254;
    for (int i = 0; i < 128; i++) {
        uint32_t bits = size_of(v[i]), upper = (uint32_t)((uint64_t)counted(r[i], most) * unit >> 32);
        if (bits && bits < first * unit)
            bits = first * unit;
        v[i] = bits ? of_size((bits + upper) / unit * unit) : 0.0f;
    }
}

void zo_round_run_m(float *m, const uint32_t *r) {
    const uint32_t unit = 1u << 20;
    uint32_t most = largest_of(m), end = above(most, unit), first = ((end > 127 ? end : 127) - 126) * unit;
    for (int i = 0; i < 128; i++) {
        uint32_t lower = counted(r[i], most) / 4096, bits = size_of(m[i]);
        float x = fabsf(m[i]), share = (float)lower * (of_size(first) * 0x1p-20f);
        float size = bits >= first ? of_size((bits + lower) / unit * unit) : x > share ? of_size(first) : 0.0f;
        m[i] = size != 0.0f && signbit(m[i]) ? -size : size;
    }
}

/* ---- sums that decide -------------------------------------------------------------------------------------------- */

/* A unit: n lanes, lane l has the elements g[l], g[l + step], ... before g[end]. The tree has n_tree lanes, those
 * beyond n zero; it is single (in fp32) or not. */
typedef struct unit {
    const float *g;
    uint64_t n, n_tree, step, end;
    int has_single_tree;
} unit_t;

/* A double holds products of floats exactly and sums of two of them well enough for one rounding to be right. */
static double rounded(double x, int is_single) { return is_single ? (double)(float)x : x; }

static double lane_sum(const unit_t *u, uint64_t l, int is_square, int is_single) {
    double sum = 0.0;
    for (uint64_t i = l; l < u->n && i < u->end; i += u->step) {
        double x = fabs((double)u->g[i]);
        sum = rounded(sum + rounded(is_square ? x * x : x, is_single), is_single);
    }
    return sum;
}

/* The sum of lanes l, l + apart, l + 2 * apart, ...: the tree seen from its root, which is (0, 1). */
static double tree_sum(const unit_t *u, uint64_t l, uint64_t apart, int is_square, int is_single) {
    if (apart == u->n_tree)
        return lane_sum(u, l, is_square, is_single);
    return rounded(tree_sum(u, l, 2 * apart, is_square, is_single) +
                       tree_sum(u, l + apart, 2 * apart, is_square, is_single),
                   is_single && u->has_single_tree);
}

/* Whether fp32 holds the unit's squares. */
static int is_single(const unit_t *u) {
    double sum = tree_sum(u, 0, 1, 1, 1);
    return isfinite(sum) && sum >= 0x1p-108;
}

/* Up to 1,024 neighbours from g on. */
static unit_t row_unit(const float *g, uint64_t n) {
    return (unit_t){.g = g, .n = 64, .n_tree = 64, .step = 64, .end = n < 1024 ? n : 1024, .has_single_tree = 1};
}

/* Up to 32 rows by 256 columns from (r, c) on. */
static unit_t column_unit(const float *g, uint64_t rows, uint64_t cols, uint64_t r, uint64_t c) {
    uint64_t n = cols - c < 256 ? cols - c : 256, n_rows = rows - r < 32 ? rows - r : 32;
    return (unit_t){.g = g + r * cols + c, .n = n, .n_tree = 256, .step = cols, .end = n_rows * cols - c};
}

/* The squares of unit number *n_units of a gradient. */
static void take_unit(double lanes[32], uint64_t *n_units, const unit_t *u) {
    lanes[(*n_units)++ % 32] += tree_sum(u, 0, 1, 1, is_single(u));
}

void zo_take_squares(double lanes[32], uint64_t *n_units, const float *g, uint64_t rows, uint64_t cols, int by_rows) {
    uint64_t length = cols == 1 ? rows : cols;
    unit_t u;
    if (by_rows || rows == 1 || cols == 1) {
        for (uint64_t first = 0; first < rows * cols; first += length)
            for (uint64_t i = 0; i < length; i += 1024) {
                u = row_unit(g + first + i, length - i);
                take_unit(lanes, n_units, &u);
            }
        return;
    }
    for (uint64_t r = 0; r < rows; r += 32)
        for (uint64_t c = 0; c < cols; c += 256) {
            u = column_unit(g, rows, cols, r, c);
            take_unit(lanes, n_units, &u);
        }
}

double zo_lanes_sum(const double lanes[32]) {
    double half[32];
    memcpy(half, lanes, sizeof half);
    for (unsigned n = 16; n > 0; n /= 2)
        for (unsigned l = 0; l < n; l++)
            half[l] = half[l] + half[n + l];
    return half[0];
}

double zo_row_sum(const float *g, uint64_t n) {
    double sum = 0.0;
    for (uint64_t i = 0; i < n; i += 1024) {
        unit_t u = row_unit(g + i, n - i);
        sum += tree_sum(&u, 0, 1, 0, is_single(&u));
    }
    return sum;
}

void zo_column_sums(double *sums, const float *g, uint64_t rows, uint64_t cols) {
    for (uint64_t c = 0; c < cols; c++)
        sums[c] = rows == 1 ? fabs((double)g[c]) : 0.0;
    if (cols == 1)
        sums[0] = zo_row_sum(g, rows);
    for (uint64_t r = 0; rows > 1 && cols > 1 && r < rows; r += 32)
        for (uint64_t c = 0; c < cols; c += 256) {
            unit_t u = column_unit(g, rows, cols, r, c);
            int is_fit = is_single(&u);
            for (uint64_t l = 0; l < u.n; l++)
                sums[c + l] += lane_sum(&u, l, 0, is_fit);
        }
}
