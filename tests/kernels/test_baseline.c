/* SPDX-License-Identifier: Apache-2.0 */
/* test_baseline.c - the vectors of the baseline CPU: fma against the C library's, which is exact, where one rounding
 * and two differ; conversions of halves against those by integers. */
#include <fenv.h>
#include <math.h>

#include <cpu/baseline.h>

#include "arrays.h"
#include "suite.h"

static float any_float(void) { return float_of((uint32_t)random_bits()); }

static float any_sign(float x) { return random_bits() & 1 ? -x : x; }

/* Three factors, four lanes of each. */
typedef struct operands {
    vf a, b, c;
} operands_t;

static void check_fma(const operands_t *x) {
    const vf got = vf_fma(x->a, x->b, x->c);
    for (int l = 0; l < VL; l++) {
        const float want = fmaf(x->a[l], x->b[l], x->c[l]);
        if (bits_of(want) != bits_of(got[l]) && !(isnan(want) && isnan(got[l])))
            ck_abort_msg("fma(%a, %a, %a) = %a, should be %a", (double)x->a[l], (double)x->b[l], (double)x->c[l],
                         (double)got[l], (double)want);
    }
}

static void check_many(int n, void (*draw)(float *a, float *b, float *c)) {
    zfi_fp_mode_ieee();
    for (int i = 0; i < n; i++) {
        operands_t x;
        for (int l = 0; l < VL; l++) {
            float a, b, c;
            draw(&a, &b, &c);
            x.a[l] = a;
            x.b[l] = b;
            x.c[l] = c;
        }
        check_fma(&x);
    }
}

static void draw_any(float *a, float *b, float *c) {
    *a = any_float();
    *b = any_float();
    *c = any_float();
}

/* The product within 2^40 of the sum's other part. */
static void draw_near(float *a, float *b, float *c) {
    const int exponent = (int)random_below(120) - 60;
    *a = any_sign(1.0f + (float)random_below(1 << 23) * 0x1p-23f);
    *b = any_sign(ldexpf(1.0f + (float)random_below(1 << 23) * 0x1p-23f, exponent));
    *c = any_sign(ldexpf(1.0f + (float)random_below(1 << 23) * 0x1p-23f, exponent + (int)random_below(80) - 40));
}

/* c of any exponent, and a product of half of its last bit, or of so little more or less that a double does not show
 * it: (1 + i u)(1 - i u) = 1 - (i u)^2, (1 + i u)^2 = 1 + 2 i u + ..., u = 2^-23. */
static void draw_tie(float *a, float *b, float *c) {
    const uint32_t exponent = (uint32_t)random_below(255);
    const int half_unit = (int)(exponent > 0 ? exponent : 1) - 151, share = half_unit / 2;
    const float i = (float)random_below(1u << random_below(12));
    *c = any_sign(float_of(exponent << 23 | (uint32_t)random_below(1 << 23)));
    *a = any_sign(ldexpf(1.0f + i * 0x1p-23f, share));
    *b = any_sign(ldexpf(1.0f + (random_below(4) ? -i : i) * 0x1p-23f, half_unit - share));
}

/* Eight bits each: many sums are exact, many exact ties. */
static void draw_short(float *a, float *b, float *c) {
    *a = any_sign(ldexpf((float)random_below(256), (int)random_below(20) - 10));
    *b = any_sign(ldexpf((float)random_below(256), (int)random_below(20) - 10));
    *c = any_sign(ldexpf((float)random_below(256), (int)random_below(60) - 30));
}

/* Sums among the denormals, or just above; some of them with a product of less than half the smallest. */
static void draw_denormal(float *a, float *b, float *c) {
    *a = any_sign(ldexpf(1.0f + (float)random_below(1 << 23) * 0x1p-23f, -70 - (int)random_below(10)));
    *b = any_sign(ldexpf(1.0f + (float)random_below(1 << 23) * 0x1p-23f, -48 - (int)random_below(36)));
    *c = any_sign(float_of((uint32_t)random_below(1u << random_below(26))));
}

/* Sums about the largest finite number. */
static void draw_overflow(float *a, float *b, float *c) {
    *a = any_sign(ldexpf(1.0f + (float)random_below(1 << 23) * 0x1p-23f, 60));
    *b = any_sign(ldexpf(1.0f + (float)random_below(1 << 23) * 0x1p-23f, 43 + (int)random_below(26)));
    *c = any_sign(float_of(0x7f7fffffu - (uint32_t)random_below(1u << random_below(24))));
}

static void draw_special(float *a, float *b, float *c) {
    static const float values[] = {0.0f,     1.0f,     0x1p-149f, 0x1p-126f, 0x1.fffffep+127f, 0x1p-75f,
                                   0x1p-24f, INFINITY, NAN,       0x1p+64f,  0x1.000002p+0f,   0x1.fffffep-1f};
    enum { N_VALUES = sizeof values / sizeof values[0] };

    *a = any_sign(values[random_below(N_VALUES)]);
    *b = any_sign(values[random_below(N_VALUES)]);
    *c = any_sign(values[random_below(N_VALUES)]);
}

ZT_TEST(fma_is_rounded_once) {
    enum { N_EACH = 200000 };

    check_many(N_EACH, draw_any);
    check_many(N_EACH, draw_near);
    check_many(N_EACH, draw_tie);
    check_many(N_EACH, draw_short);
    check_many(N_EACH, draw_denormal);
    check_many(N_EACH, draw_overflow);
    check_many(N_EACH, draw_special);
}

/* Where two roundings go wrong: between normal numbers, between denormals, and at half of the smallest number. */
ZT_TEST(fma_at_known_ties) {
    static const struct {
        float a, b, c, want;
    } known[] = {
        {0x1.000002p-12f, 0x1.fffffcp-13f, 0x1p+0f, 0x1p+0f},
        {0x1.000002p-12f, 0x1.fffffcp-13f, 0x1.000002p+0f, 0x1.000002p+0f},
        {0x1.000002p-75f, 0x1.fffffcp-76f, 0x1p-149f, 0x1p-149f},
        {-0x1.000002p-75f, 0x1.fffffcp-76f, 0x1p-149f, 0x1p-149f},
        {0x1.000002p+51f, 0x1.fffffcp+51f, 0x1.fffffep+127f, 0x1.fffffep+127f},
        {0x1p+52f, 0x1p+51f, 0x1.fffffep+127f, INFINITY},
        {0x1p-75f, 0x1p-75f, 0.0f, 0.0f},
        {1.0f, -1.0f, 1.0f, 0.0f},
        {-0.0f, 1.0f, -0.0f, -0.0f},
    };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const vf got = vf_fma(vf_splat(known[i].a), vf_splat(known[i].b), vf_splat(known[i].c));
        for (int l = 0; l < VL; l++)
            ck_assert_msg(bits_of(got[l]) == bits_of(known[i].want), "row %zu: %a", i, (double)got[l]);
    }
}

/* As a host's thread may be when it calls a hook: conversions do not depend on it. */
static void set_hostile_mode(void) {
    ck_assert_int_eq(fesetround(FE_UPWARD), 0);
#if defined(__SSE2__)
    _mm_setcsr(_mm_getcsr() | 0x8040u);
#elif defined(__aarch64__)
    unsigned long mode;

    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode | 1ul << 24));
#endif
}

ZT_TEST(every_half_is_widened) {
    set_hostile_mode();
    for (uint32_t first = 0; first < 0x10000u; first += VL) {
        const uint16_t half[VL] = {(uint16_t)first, (uint16_t)(first + 1), (uint16_t)(first + 2),
                                   (uint16_t)(first + 3)};
        const vf got = vf_load_f16(half);
        for (int l = 0; l < VL; l++)
            if (bits_of(got[l]) != bits_of(zfi_f16_to_f32(half[l])))
                ck_abort_msg("%04x: %a", half[l], (double)got[l]);
    }
}

/* Every sign, exponent and upper bits of a mantissa, with lower bits at, below and above the ties. */
ZT_TEST(floats_are_narrowed) {
    static const uint32_t lower[] = {0, 1, 0x7ff, 0x800, 0x801, 0xfff, 0x1000, 0x1001, 0x1fff};
    set_hostile_mode();
    for (uint32_t upper = 0; upper < 0x80000u; upper += VL)
        for (size_t i = 0; i < sizeof lower / sizeof lower[0]; i++) {
            vf x = {0};
            uint16_t got[VL];
            for (uint32_t l = 0; l < VL; l++)
                x[l] = float_of((upper + l) << 13 | lower[i]);
            vf_store_f16(got, x);
            for (int l = 0; l < VL; l++)
                if (got[l] != zfi_f32_to_f16(x[l]))
                    ck_abort_msg("%a: %04x", (double)x[l], got[l]);
        }
}

ZT_TEST(lower_halves_are_stored) {
    static const uint32_t values[VL] = {0, 0x7fff, 0x8000, 0xffff};
    vu x;
    uint16_t got[VL];
    memcpy(&x, values, sizeof x);
    vu_store_16(got, x);
    for (int l = 0; l < VL; l++)
        ck_assert_uint_eq(got[l], values[l]);
    x = vu_load_16(got);
    ck_assert_mem_eq(&x, values, sizeof x);
}

ZT_SUITE("baseline")
