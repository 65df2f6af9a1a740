/* SPDX-License-Identifier: Apache-2.0 */
/* mlp.c - see mlp.h. Forward and backward in plain loops, one sample at a time; nothing of the plugin here. */
#include "mlp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const spec_t specs[N_TENSORS] = {
    {"in.weight", 2, 0, {WIDTH, N_IN, 0}, DECAY},
    {"in.bias", 1, 0, {WIDTH, 0, 0}, NO_DECAY},
    {"hidden.weight", 3, 1, {N_LAYERS, WIDTH, WIDTH}, DECAY},
    {"hidden.bias", 2, 1, {N_LAYERS, WIDTH, 0}, NO_DECAY},
    {"out.weight", 2, 0, {N_CLASSES, WIDTH, 0}, DECAY},
    {"out.bias", 1, 0, {N_CLASSES, 0, 0}, NO_DECAY},
};

static float uniform(uint64_t *state) { /* [-1, 1), xorshift64* */
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return (float)((*state * UINT64_C(2685821657736338717)) >> 40) / 8388608.0f - 1.0f;
}

static int draw_sample(uint64_t *state, float x[N_IN]) {
    for (int i = 0; i < N_IN; ++i)
        x[i] = uniform(state);
    return 2 * (x[0] * x[1] > 0.0f) + (x[2] * x[3] > 0.0f);
}

float *allocate(size_t n_elems) {
    float *p = calloc(n_elems, sizeof *p);
    if (p == NULL)
        fprintf(stderr, "no memory for %zu floats\n", n_elems), exit(2);
    return p;
}

void init_model(model_t *model) {
    uint64_t state = 7;
    for (int t = 0; t < N_TENSORS; ++t) {
        size_t n_elems = 1;
        for (int32_t i = 0; i < specs[t].ndim; ++i)
            n_elems *= (size_t)specs[t].shape[i];
        model->offset[t + 1] = model->offset[t] + n_elems;
    }
    model->params = allocate(model->offset[N_TENSORS]);
    model->grads = allocate(model->offset[N_TENSORS]);
    for (int t = 0; t < N_TENSORS; ++t) /* biases start at 0, weights uniform with variance 1 / inputs */
        for (size_t i = model->offset[t]; specs[t].group == DECAY && i < model->offset[t + 1]; ++i)
            model->params[i] = uniform(&state) * sqrtf(3.0f / (float)specs[t].shape[specs[t].ndim - 1]);
}

/* y = W x + b, W [n_out, n_in] */
static void affine(const float *w, const float *b, const float *x, int n_out, int n_in, float *y) {
    for (int o = 0; o < n_out; ++o) {
        y[o] = b[o];
        for (int i = 0; i < n_in; ++i)
            y[o] += w[o * n_in + i] * x[i];
    }
}

/* From dy [n_out] adds to dW and db; dx [n_in], if wanted, is overwritten. */
static void affine_backward(const float *w, const float *x, const float *dy, int n_out, int n_in, float *dw, float *db,
                            float *dx) {
    for (int i = 0; dx != NULL && i < n_in; ++i)
        dx[i] = 0.0f;
    for (int o = 0; o < n_out; ++o) {
        db[o] += dy[o];
        for (int i = 0; i < n_in; ++i) {
            dw[o * n_in + i] += dy[o] * x[i];
            if (dx != NULL)
                dx[i] += dy[o] * w[o * n_in + i];
        }
    }
}

/* Loss of one sample; h [N_LAYERS + 1][WIDTH] are the activations, prob [N_CLASSES] the softmax. */
static double forward_sample(const model_t *model, const float *x, int label, float h[][WIDTH], float *prob) {
    const float *p = model->params;
    const size_t *at = model->offset;
    affine(p + at[W_IN], p + at[B_IN], x, WIDTH, N_IN, h[0]);
    for (int l = 0; l < N_LAYERS; ++l) {
        for (int i = 0; i < WIDTH; ++i)
            h[l][i] = tanhf(h[l][i]);
        affine(p + at[W_HIDDEN] + l * WIDTH * WIDTH, p + at[B_HIDDEN] + l * WIDTH, h[l], WIDTH, WIDTH, h[l + 1]);
    }
    for (int i = 0; i < WIDTH; ++i)
        h[N_LAYERS][i] = tanhf(h[N_LAYERS][i]);
    affine(p + at[W_OUT], p + at[B_OUT], h[N_LAYERS], N_CLASSES, WIDTH, prob);
    float sum = 0.0f;
    for (int c = 0; c < N_CLASSES; ++c)
        sum += prob[c] = expf(prob[c]);
    for (int c = 0; c < N_CLASSES; ++c)
        prob[c] /= sum;
    return -log((double)prob[label]);
}

double forward(model_t *model, uint64_t *state) {
    double loss = 0.0;
    memset(model->grads, 0, model->offset[N_TENSORS] * sizeof(float));
    for (int s = 0; s < BATCH; ++s) {
        model->label[s] = draw_sample(state, model->x[s]);
        loss += forward_sample(model, model->x[s], model->label[s], model->h[s], model->prob[s]);
    }
    return loss / BATCH;
}

void backward_output(model_t *model) {
    const size_t *at = model->offset;
    float *g = model->grads, dlogits[N_CLASSES];
    for (int s = 0; s < BATCH; ++s) {
        for (int c = 0; c < N_CLASSES; ++c)
            dlogits[c] = (model->prob[s][c] - (c == model->label[s] ? 1.0f : 0.0f)) / (float)BATCH;
        affine_backward(model->params + at[W_OUT], model->h[s][N_LAYERS], dlogits, N_CLASSES, WIDTH, g + at[W_OUT],
                        g + at[B_OUT], model->dh[s]);
    }
}

/* dz = gradient before the tanh of activations h, from that after it. */
static void tanh_backward(const float *h, const float *dh, float *dz) {
    for (int i = 0; i < WIDTH; ++i)
        dz[i] = dh[i] * (1.0f - h[i] * h[i]);
}

void backward_layer(model_t *model, int l) {
    size_t w = model->offset[W_HIDDEN] + (size_t)l * WIDTH * WIDTH, b = model->offset[B_HIDDEN] + (size_t)l * WIDTH;
    float dz[WIDTH];
    for (int s = 0; s < BATCH; ++s) {
        tanh_backward(model->h[s][l + 1], model->dh[s], dz);
        affine_backward(model->params + w, model->h[s][l], dz, WIDTH, WIDTH, model->grads + w, model->grads + b,
                        model->dh[s]);
    }
}

void backward_input(model_t *model) {
    const size_t *at = model->offset;
    float dz[WIDTH];
    for (int s = 0; s < BATCH; ++s) {
        tanh_backward(model->h[s][0], model->dh[s], dz);
        affine_backward(model->params + at[W_IN], model->x[s], dz, WIDTH, N_IN, model->grads + at[W_IN],
                        model->grads + at[B_IN], NULL);
    }
}

double learning_rate(int step) {
    double warm = step / 20.0, down = 1.0 - (double)step / N_STEPS;
    return 4e-3 * (warm < down ? warm : down);
}

double test_loss(const model_t *model, uint64_t *state) {
    float x[N_IN], h[N_LAYERS + 1][WIDTH], prob[N_CLASSES];
    double loss = 0.0;
    for (int s = 0; s < N_TEST; ++s) {
        int label = draw_sample(state, x);
        loss += forward_sample(model, x, label, h, prob);
    }
    return loss / N_TEST;
}
