/* mlp.h - the model of train_arrays.c, kept as small C trainers keep theirs: one allocation for all parameters, one for
 * all gradients, the hidden layers stacked in one [layer, out, in] tensor. A tanh MLP with softmax cross-entropy.
 * The data are generated: four classes, by the signs of x0*x1 and x2*x3, which no linear model can tell. */
#ifndef MLP_H
#define MLP_H

#include <stddef.h>
#include <stdint.h>

enum { N_IN = 8, WIDTH = 32, N_LAYERS = 2, N_CLASSES = 4, BATCH = 32 };
enum { DECAY, NO_DECAY, N_GROUPS }; /* the usual two groups: weights decay, biases do not */
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
} model_t;

/* n_elems zeros; ends the program if there is no memory. */
float *allocate(size_t n_elems);

/* Allocates and fills a model; every call gives the same one. */
void init_model(model_t *model);

/* Mean loss of the next n samples of the stream that *state stands for (not 0). Training also writes the gradients of
 * the mean over BATCH samples. */
double run_samples(model_t *model, uint64_t *state, int n, int is_training);

#endif
