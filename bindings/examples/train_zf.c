/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer of flat float arrays: the model of mlp.h, 1000 steps with a learning rate that rises and falls. There are
 * three of it: train_before.c with an AdamW of its own, train_zf.c with libzfplugin in its place, train_zf_overlap.c
 * with gradients and weights that travel while it computes. `diff` shows what had to change, a test counts lines. */
#include <stdio.h>
#include <stdlib.h>

#include "mlp.h"
#include "zf_trainer.h"

int main(int argc, char **argv) {
    static model_t model;
    uint64_t data = 1, test = 2;
    zf_trainer_t *opt = zf_trainer_new(NULL, argc > 1 ? argv[1] : NULL, 0);
    init_model(&model);
    for (int t = 0; t < N_TENSORS; ++t) {
        const spec_t *a = &specs[t];
        float *w = model.params + model.offset[t], *g = model.grads + model.offset[t];
        zf_trainer_adamw(opt, 0.9, 0.999, 1e-8, a->group == DECAY ? 0.01 : 0.0);
        zf_trainer_add(opt, a->name, w, g, a->ndim, a->shape, a->n_batch_axes);
    }
    zf_trainer_bind(opt);
    for (int step = 1; step <= N_STEPS; ++step) {
        double loss = forward(&model, &data);
        backward_output(&model);
        for (int l = N_LAYERS - 1; l >= 0; --l)
            backward_layer(&model, l);
        backward_input(&model);
        if (zf_trainer_step(opt, learning_rate(step)) < 0)
            return fprintf(stderr, "%s\n", zf_trainer_error(opt)), 1;
        if (step % 100 == 0)
            printf("step %4d  loss %.4f\n", step, loss);
    }
    if (zf_trainer_flush(opt) < 0)
        return fprintf(stderr, "%s\n", zf_trainer_error(opt)), 1;
    printf("final loss %.6f\n", test_loss(&model, &test));
    zf_trainer_free(opt), free(model.params), free(model.grads);
    return 0;
}
