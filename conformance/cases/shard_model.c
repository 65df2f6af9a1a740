/* SPDX-License-Identifier: Apache-2.0 */
/* shard_model.c - made-up tensors and gradients (shard_model.h). */
#include "shard_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 256, WIDEST = 4 * WIDTH, N_PIECES = 8000, TENSORS_PER_LAYER = 16, TENSORS_BESIDE = 3 };

static uint16_t to_bfloat16(float x) {
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static uint32_t mix(uint32_t x) { /* a bijection that scatters bits (Ettinger's "lowbias32") */
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static float to_unit(uint32_t bits) { return (float)(bits >> 8) * (1.0f / 8388608.0f) - 1.0f; }

static int add(zs_model_t *m, const char *name, size_t layer, int64_t rows, int64_t columns) {
    zs_tensor_t *t = &m->list[m->n++];

    (void)snprintf(t->name, sizeof t->name, "layer%zu.%s", layer, name);
    t->n_dims = rows > 0 ? 2 : 1;
    t->shape[0] = rows > 0 ? rows : columns;
    t->shape[1] = columns;
    t->n_elems = (size_t)((rows > 0 ? rows : 1) * columns);
    t->value = malloc(t->n_elems * sizeof *t->value);
    t->grad = calloc(t->n_elems, sizeof *t->grad);
    m->n_elems += t->n_elems;
    if (t->value == NULL || t->grad == NULL)
        return -1;
    for (size_t i = 0; i < t->n_elems; i++)
        t->value[i] = to_bfloat16(0.05f * to_unit(mix((uint32_t)(m->n * 7919 + i))));
    return 0;
}

static int add_layer(zs_model_t *m, size_t layer) {
    static const struct {
        const char *name;
        int64_t rows, columns;
    } shapes[TENSORS_PER_LAYER] = {{"query.weight", WIDTH, WIDTH},    {"query.bias", 0, WIDTH},
                                   {"key.weight", WIDTH, WIDTH},      {"key.bias", 0, WIDTH},
                                   {"value.weight", WIDTH, WIDTH},    {"value.bias", 0, WIDTH},
                                   {"out.weight", WIDTH, WIDTH},      {"out.bias", 0, WIDTH},
                                   {"norm1.weight", 0, WIDTH},        {"norm1.bias", 0, WIDTH},
                                   {"up.weight", 4 * WIDTH, WIDTH},   {"up.bias", 0, 4 * WIDTH},
                                   {"down.weight", WIDTH, 4 * WIDTH}, {"down.bias", 0, WIDTH},
                                   {"norm2.weight", 0, WIDTH},        {"norm2.bias", 0, WIDTH}};

    for (size_t i = 0; i < TENSORS_PER_LAYER; i++)
        if (add(m, shapes[i].name, layer, shapes[i].rows, shapes[i].columns) != 0)
            return -1;
    return 0;
}

int zs_model_init(zs_model_t *m, double millions) {
    double beside = (double)N_PIECES * WIDTH, per_layer = 12.0 * WIDTH * WIDTH;
    double n = (millions * 1e6 - beside) / per_layer + 0.5;
    size_t n_layers = n > 1.0 ? (size_t)n : 1;
    int st;

    *m = (zs_model_t){.n = 0};
    m->list = calloc(n_layers * TENSORS_PER_LAYER + TENSORS_BESIDE, sizeof *m->list);
    if (m->list == NULL)
        return -1;
    st = add(m, "words", 0, N_PIECES, WIDTH) | add(m, "norm.weight", 0, 0, WIDTH) | add(m, "norm.bias", 0, 0, WIDTH);
    for (size_t i = 0; st == 0 && i < n_layers; i++)
        st = add_layer(m, i + 1);
    return st;
}

void zs_model_free(zs_model_t *m) {
    for (size_t i = 0; i < m->n; i++) {
        free(m->list[i].value);
        free(m->list[i].grad);
    }
    free(m->list);
}

void zs_model_fill_gradients(zs_model_t *m, unsigned step) {
    for (size_t i = 0; i < m->n; i++) {
        zs_tensor_t *t = &m->list[i];
        size_t columns = (size_t)t->shape[t->n_dims - 1], hot = (step / 8 * 3 + i * 5) % columns;
        uint32_t seed = mix(step * 977u + (uint32_t)i);
        float scale[WIDEST];

        for (size_t c = 0; c < columns; c++)
            scale[c] = (c + columns - hot) % columns < columns / 10 ? 1e-2f : 1e-3f;
        for (size_t at = 0; at < t->n_elems; at += columns)
            for (size_t c = 0; c < columns; c++)
                t->grad[at + c] = to_bfloat16(to_unit(mix(seed + (uint32_t)at + (uint32_t)c)) * scale[c]);
    }
}
