/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/muon.h - Muon in C: momentum, then the update made orthogonal by Newton-Schulz iterations (Jordan et al. 2024,
 * https://kellerjordan.github.io/posts/muon; scale of Liu et al., arXiv 2502.16982). It is what a host's function of
 * whole matrices computes (zf/ext/draft/matrix.h), in float32 with one order of sums: by rising inner index. */
#pragma once

#include <stdint.h>

typedef struct zo_muon {
    double lr, momentum, weight_decay;
    double a, b, c; /* coefficients of an iteration: x := a x + b x^3 + c x^5 of each singular value */
    double eps;     /* the norm that the update is divided by is at least this */
    int n_steps, nesterov;
    int match_rms; /* the rate times 0.2 sqrt(max(rows, cols)), else times sqrt(max(1, rows / cols)) */
} zo_muon_t;

/* One update of a matrix w [rows][cols] with momentum m and gradient g, unscaled and clipped. */
void zo_muon_update(const zo_muon_t *muon, uint64_t rows, uint64_t cols, float *w, float *m, const float *g);
