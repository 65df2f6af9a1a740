/* SPDX-License-Identifier: Apache-2.0 */
/* test_scalars.c - what a step makes of the ranks' parts of the norm: in the order of ranks, so that all ranks have the
 * same bits, which comparisons whose sums are exact cannot see. */
#include <launch.h>

#include <math.h>
#include <string.h>

#include "suite.h"

typedef struct scalars_case {
    zfi_norm_part_t parts[3];
    double unscale, clip_norm, host_norm;
    double norm, clip_factor;
    int has_host_norm, applied;
    int64_t nonfinite_param;
} scalars_case_t;

#define FINE ZFI_NO_PARAM
#define PARTS(a, b, c) .parts = {{a, FINE}, {b, FINE}, {c, FINE}}

static const scalars_case_t cases[] = {
    {PARTS(9, 4, 3), .unscale = 0.5, .norm = 2, .clip_factor = 1, .applied = 1, .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 1, .clip_norm = 2, .norm = 4, .clip_factor = 2 / (4 + 1e-6), .applied = 1,
     .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 1, .clip_norm = 8, .norm = 4, .clip_factor = 1, .applied = 1, .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 0.25, .clip_norm = 1, .host_norm = 3, .has_host_norm = 1, .norm = 3,
     .clip_factor = 1 / (3 + 1e-6), .applied = 1, .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 1, .host_norm = -1, .has_host_norm = 1, .norm = -1, .clip_factor = 1,
     .nonfinite_param = FINE},
    {PARTS(9, 4, 3), .unscale = 1, .clip_norm = 1, .host_norm = NAN, .has_host_norm = 1, .norm = NAN, .clip_factor = 1,
     .nonfinite_param = FINE},
    {PARTS(9, INFINITY, 3), .unscale = 1, .clip_norm = 1, .norm = INFINITY, .clip_factor = 0, .nonfinite_param = FINE},
    {PARTS(0, 0, 0), .unscale = 1e300, .clip_norm = 1, .norm = 0, .clip_factor = 1, .nonfinite_param = FINE},
    {PARTS(0, 0, 0), .unscale = 1, .clip_norm = 1, .norm = 0, .clip_factor = 1, .applied = 1, .nonfinite_param = FINE},
    {.parts = {{9, FINE}, {4, 7}, {3, 2}}, .unscale = 1, .norm = 4, .clip_factor = 1, .nonfinite_param = 2},
    {.parts = {{9, 0}, {4, 7}, {3, FINE}}, .unscale = 1, .norm = 4, .clip_factor = 1, .nonfinite_param = 0},
    {.parts = {{9, FINE}, {4, FINE}, {3, 5}},
     .unscale = 1,
     .host_norm = 4,
     .has_host_norm = 1,
     .norm = 4,
     .clip_factor = 1,
     .nonfinite_param = 5},
};

static int same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

ZT_TEST(step_scalars) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const scalars_case_t *c = &cases[i];
        zfi_step_scalars_t out;
        zfi_scalars_args_t args = {c->parts, 3, c->unscale, c->clip_norm, c->has_host_norm ? &c->host_norm : NULL,
                                   &out};
        memset(&out, 0x55, sizeof out);
        zfi_launch_cpu[ZFI_KERNEL_SCALARS](NULL, &args);
        ck_assert_msg(same(out.norm, c->norm) && out.clip_factor == c->clip_factor &&
                          out.s_exact == c->unscale * c->clip_factor && out.s == (float)out.s_exact &&
                          out.applied == c->applied && out.nonfinite_param == c->nonfinite_param,
                      "case %zu: norm %g, factor %g, s %g, applied %d, parameter %d", i, out.norm, out.clip_factor,
                      out.s_exact, out.applied, (int)out.nonfinite_param);
    }
}

ZT_TEST(parts_are_added_by_rank) { /* 1 + 1 + 2^53 and 2^53 + 1 + 1 differ */
    zfi_norm_part_t rising[] = {{1, FINE}, {1, FINE}, {0x1p53, FINE}},
                    falling[] = {{0x1p53, FINE}, {1, FINE}, {1, FINE}};
    zfi_step_scalars_t up, down, one;
    zfi_scalars_args_t args = {rising, 3, 1.0, 0.0, NULL, &up};
    zfi_launch_cpu[ZFI_KERNEL_SCALARS](NULL, &args);
    args.parts = falling;
    args.out = &down;
    zfi_launch_cpu[ZFI_KERNEL_SCALARS](NULL, &args);
    ck_assert(up.norm == sqrt(0x1p53 + 2) && down.norm == sqrt(0x1p53));
    args.n_parts = 1;
    args.parts = rising;
    args.out = &one;
    zfi_launch_cpu[ZFI_KERNEL_SCALARS](NULL, &args);
    ck_assert(one.norm == 1.0);
}

ZT_SUITE("scalars")
