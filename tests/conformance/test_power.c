/* SPDX-License-Identifier: Apache-2.0 */
/* test_power.c - b^n of the oracle and b^n of the engine, which are written apart, agree in every bit. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "oracle/state.h" /* zo_power */
#include "plan/rule.h"    /* zfi_power */
#include "suite.h"

static const double betas[] = {0.0,       0.1,    0.5,     0.8,
                               0.9,       0.95,   0.98,    0.99,
                               0.999,     0.9999, 0.99999, 0x1.fffffffffffffp-1,
                               0x1p-1022, 1.0,    1.0 / 3, 0.7071067811865476};

static void compare(double b, uint32_t n) {
    double oracle = zo_power(b, n), engine = zfi_power(b, n);
    ck_assert_msg(memcmp(&oracle, &engine, sizeof oracle) == 0, "%.17g^%u: oracle %a, engine %a", b, n, oracle, engine);
}

/* Every number of bits, and patterns of bits that neighbours do not have. */
ZT_TEST(large_n) {
    for (size_t i = 0; i < sizeof betas / sizeof *betas; i++)
        for (unsigned k = 0; k < 32; k++) {
            compare(betas[i], UINT32_C(1) << k);
            compare(betas[i], (UINT32_C(1) << k) - 1);
            compare(betas[i], UINT32_MAX >> k);
            compare(betas[i], UINT32_C(0x9E3779B9) >> k);
        }
}

ZT_TEST(random_betas) {
    uint64_t x = 1;
    for (int i = 0; i < 200000; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        compare((double)(x >> 11) * 0x1p-53, (uint32_t)(x >> 7) >> (i % 32));
    }
}

/* Both may be wrong alike: a few values that are known without either. */
ZT_TEST(known_values) {
    ck_assert(zo_power(0.5, 10) == 0x1p-10);
    ck_assert(zo_power(0.9, 3) == 0.9 * (0.9 * 0.9));
    ck_assert(zo_power(0.9, 5) == 0.9 * ((0.9 * 0.9) * (0.9 * 0.9)));
    ck_assert(zo_power(0.25, 0) == 1.0);
    for (uint32_t n = 1; n < 3000; n += 7)
        ck_assert_msg(fabs(zo_power(0.999, n) / pow(0.999, n) - 1) < 1e-12, "0.999^%u", n);
}

ZT_SUITE("power")
