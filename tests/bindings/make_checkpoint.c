/* SPDX-License-Identifier: Apache-2.0 */
/* tests/bindings/make_checkpoint.c DIR FILE - trains a few steps, saves an exact checkpoint in mid-window to DIR, and
 * writes the weights that export_params gives to FILE, one parameter after another. For test_cli.sh. */
#include <stdio.h>

#include "zf/ext/state.h"
#include "zf_trainer.h"

enum { N = 3, MOST = 64 * 48 };
static const int64_t shapes[N][2] = {{64, 48}, {17, 1}, {40, 33}};
static float params[N][MOST], grads[N][MOST], weights[N][MOST];

static zf_trainer_t *start(void) {
    static const char *const names[N] = {"encoder.weight", "encoder.bias \xc3\xa9", "head/weight"};
    zf_trainer_t *t = zf_trainer_new(NULL, NULL, 0);
    zf_trainer_set(t, "zenflow.update_interval=4");
    zf_trainer_set(t, "zenflow.full_warm_up_rounds=2");
    zf_trainer_set(t, "zenflow.topk_ratio=0.2");
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < MOST; k++)
            params[i][k] = (float)((k * 7919 + i) % 1000) / 1000.0f - 0.5f;
        zf_trainer_add(t, names[i], params[i], grads[i], 2, shapes[i], 0);
    }
    zf_trainer_bind(t);
    return t;
}

static zf_status_t save(zf_trainer_t *t, const char *directory) {
    const zf_state_ext_t *state = zf_trainer_plugin(t)->get_extension(ZF_EXT_STATE);
    zf_state_args_t args = {.struct_size = sizeof args, .path = directory, .note = "made by a test"};
    return state->save(zf_trainer_instance(t), &args, NULL, NULL);
}

static zf_status_t export_weights(zf_trainer_t *t, FILE *out) {
    zf_export_item_t items[N];
    for (uint32_t i = 0; i < N; i++)
        items[i] = (zf_export_item_t){.struct_size = sizeof items[i],
                                      .id = i,
                                      .dst = weights[i],
                                      .dst_nbytes = (uint64_t)(shapes[i][0] * shapes[i][1]) * sizeof(float)};
    zf_status_t st = zf_trainer_plugin(t)->export_params(zf_trainer_instance(t), items, N, sizeof items[0], NULL);
    for (int i = 0; i < N; i++)
        fwrite(weights[i], 1, items[i].dst_nbytes, out);
    return st;
}

int main(int argc, char **argv) {
    zf_trainer_t *t = start();
    FILE *out = argc == 3 ? fopen(argv[2], "wb") : NULL;
    for (int step = 1; step <= 9; step++) {
        for (int i = 0; i < N; i++)
            for (int k = 0; k < MOST; k++)
                grads[i][k] = (float)((k * 31 + step * 17 + i) % 200) / 100.0f - 1.0f;
        if (zf_trainer_step(t, 1e-3) < 0)
            return fprintf(stderr, "make_checkpoint: %s\n", zf_trainer_error(t)), 1;
    }
    if (out == NULL || save(t, argv[1]) < 0 || export_weights(t, out) < 0 || fclose(out) != 0)
        return perror("make_checkpoint"), 1;
    zf_trainer_free(t);
    return 0;
}
