/* SPDX-License-Identifier: Apache-2.0 */
/* mlp.h - the model of the examples, kept as small C trainers keep theirs: one allocation for all parameters, one for
 * all gradients, the hidden layers stacked in one [layer, out, in] tensor. A tanh MLP with softmax cross-entropy.
 * The data are generated: four classes, by the signs of x0*x1 and x2*x3, which no linear model can tell. */
#ifndef MLP_H
#define MLP_H

#include <stddef.h>
#include <stdint.h>

enum { N_STEPS = 1000, N_TEST = 2000 }; /* of a training; samples of its test */
enum { N_IN = 8, WIDTH = 32, N_LAYERS = 2, N_CLASSES = 4, BATCH = 32 };
enum { DECAY, NO_DECAY }; /* the usual two groups: weights decay, biases do not */
enum { W_IN, B_IN, W_HIDDEN, B_HIDDEN, W_OUT, B_OUT, N_TENSORS };

typedef struct spec { /* one logical tensor inside the allocation */
    const char *name;
    int32_t ndim, n_batch_axes; /* [L, out, in] is L matrices of [out, in]: one leading axis that only counts them */
    int64_t shape[3];
    uint32_t group;
} spec_t;

extern const spec_t specs[N_TENSORS];

typedef struct model {
    size_t offset[N_TENSORS + 1]; /* of each tensor in elements; the last is the total */
    float *params, *grads;        /* [total] each; the caller frees them */
    float x[BATCH][N_IN], h[BATCH][N_LAYERS + 1][WIDTH], prob[BATCH][N_CLASSES]; /* what backward needs of forward */
    float dh[BATCH][WIDTH]; /* gradient of the activations that backward has come to */
    int label[BATCH];
} model_t;

/* n_elems zeros; ends the program if there is no memory. */
float *allocate(size_t n_elems);

/* Allocates and fills a model; every call gives the same one. */
void init_model(model_t *model);

/* Mean loss of the next batch of the stream that *state stands for (not 0). Gradients are zero after it. */
double forward(model_t *model, uint64_t *state);

/* Gradients of the mean loss over the batch, from the output to the input; after each call those it names are complete:
 * W_OUT and B_OUT; layer l of W_HIDDEN and B_HIDDEN, from the last to the first; W_IN and B_IN. */
void backward_output(model_t *model);
void backward_layer(model_t *model, int l);
void backward_input(model_t *model);

/* Learning rate of a step: 20 steps up, then linearly down. */
double learning_rate(int step);

/* Mean loss of the next N_TEST samples of the stream. */
double test_loss(const model_t *model, uint64_t *state);

#endif
