/* SPDX-License-Identifier: Apache-2.0 */
/* oracle/muon.c - (contract in muon.h). */
#include "muon.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* out [n][cols] = scale * p [n][k] x [k][cols] + add * x [n][cols], of which the second is left out where add = 0. */
static void multiply(const float *p, const float *x, uint64_t n, uint64_t k, uint64_t cols, float scale, float add,
                     float *out) {
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < cols; j++) {
            float sum = 0;
            for (uint64_t l = 0; l < k; l++)
                sum += p[i * k + l] * x[l * cols + j];
            out[i * cols + j] = scale * sum + (add != 0 ? add * x[i * cols + j] : 0);
        }
}

static void transpose(const float *x, uint64_t rows, uint64_t cols, float *out) {
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < cols; j++)
            out[j * rows + i] = x[i * cols + j];
}

/* x [rows][cols], rows <= cols: x := a x + (b A + c A A) x with A = x x', n_steps times. room: 2 rows cols + 3 rows^2.
 */
static void iterate(const zo_muon_t *muon, uint64_t rows, uint64_t cols, float *x, float *room) {
    float *other = room, *gram = other + 2 * rows * cols, *square = gram + rows * rows, *poly = square + rows * rows;
    for (int s = 0; s < muon->n_steps; s++) {
        transpose(x, rows, cols, other);
        multiply(x, other, rows, cols, rows, 1, 0, gram);
        multiply(gram, gram, rows, rows, rows, 1, 0, square);
        for (uint64_t i = 0; i < rows * rows; i++)
            poly[i] = (float)muon->b * gram[i] + (float)muon->c * square[i];
        multiply(poly, x, rows, rows, cols, 1, (float)muon->a, other);
        memcpy(x, other, rows * cols * sizeof *x);
    }
}

/* x := its orthogonal factor, about. */
static void orthogonalise(const zo_muon_t *muon, uint64_t rows, uint64_t cols, float *x) {
    uint64_t least = rows < cols ? rows : cols, most = rows < cols ? cols : rows, n = rows * cols;
    float *room = calloc(3 * n + 3 * least * least, sizeof *room), *wide = rows > cols ? room : x;
    double squares = 0;
    if (!room)
        abort();
    for (uint64_t i = 0; i < n; i++)
        squares += (double)x[i] * x[i];
    for (uint64_t i = 0; i < n; i++)
        x[i] /= (float)fmax(sqrt(squares), muon->eps);
    if (rows > cols)
        transpose(x, rows, cols, wide);
    iterate(muon, least, most, wide, room + n);
    if (rows > cols)
        transpose(wide, cols, rows, x);
    free(room);
}

void zo_muon_update(const zo_muon_t *muon, uint64_t rows, uint64_t cols, float *w, float *m, const float *g) {
    float mu = (float)muon->momentum, *update = malloc(rows * cols * sizeof *update);
    double ratio = (double)rows / (double)cols;
    double scale = muon->match_rms ? 0.2 * sqrt((double)(rows > cols ? rows : cols)) : sqrt(ratio > 1 ? ratio : 1);
    if (!update)
        abort();
    for (uint64_t i = 0; i < rows * cols; i++) {
        m[i] += (1 - mu) * (g[i] - m[i]);
        update[i] = muon->nesterov ? m[i] - (m[i] - g[i]) * (1 - mu) : m[i];
    }
    orthogonalise(muon, rows, cols, update);
    for (uint64_t i = 0; i < rows * cols; i++)
        w[i] = w[i] * (float)(1 - muon->lr * muon->weight_decay) - (float)(muon->lr * scale) * update[i];
    free(update);
}
