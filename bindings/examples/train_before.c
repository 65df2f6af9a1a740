/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer of flat float arrays: the model of mlp.h, 1000 steps with a learning rate that rises and falls. There are
 * three of it: train_before.c with an AdamW of its own, train_zf.c with libzfplugin in its place, train_zf_overlap.c
 * with gradients and weights that travel while it computes. `diff` shows what had to change, a test counts lines. */
#include <stdio.h>
#include <stdlib.h>

#include "adamw.h"
#include "mlp.h"

int main(void) {
    static model_t model;
    uint64_t data = 1, test = 2;
    adamw_t opt;
    init_model(&model);
    init_adamw(&opt, &model);
    for (int step = 1; step <= N_STEPS; ++step) {
        double loss = forward(&model, &data);
        backward_output(&model);
        for (int l = N_LAYERS - 1; l >= 0; --l)
            backward_layer(&model, l);
        backward_input(&model);
        adamw_step(&opt, &model, learning_rate(step));
        if (step % 100 == 0)
            printf("step %4d  loss %.4f\n", step, loss);
    }
    printf("final loss %.6f\n", test_loss(&model, &test));
    free(opt.m), free(opt.v), free(model.params), free(model.grads);
    return 0;
}
