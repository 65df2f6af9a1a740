/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/make_seeds.c - writes corpus/checkpoint: make_seeds FOLDER. One file per configuration of model.c, and
 * one of windows that stay open. To be run again where the format of checkpoints changes. */

#include "../plugin/memory_store.h"
#include "fuzz.h"
#include "model.h"

static void write_seed(const char *folder, uint32_t config, uint32_t steps, int keeps_open) {
    fuzz_model_t model;
    zt_memory_store_t store;
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_args_t args = {.struct_size = sizeof args,
                            .flags = keeps_open ? ZF_STATE_KEEP_OPEN : 0,
                            .store = &store.table,
                            .note = "seed"};
    char path[512];
    zt_memory_store_start(&store);
    fuzz_model_start(&model, config);
    FUZZ_CHECK(fuzz_model_steps(&model, steps) >= 0, "steps");
    FUZZ_CHECK(model.state->save(model.instance, &args, NULL, &err) == ZF_OK, "%s", err.message);
    fuzz_model_end(&model);
    const zt_blob_t *index = zt_memory_store_find(&store, ZF_STATE_INDEX);
    const zt_blob_t *file = zt_memory_store_find(&store, "zf_state-00001.safetensors");
    snprintf(path, sizeof path, "%s/config%u-%s", folder, config, keeps_open ? "open" : "closed");
    FILE *out = fopen(path, "wb");
    FUZZ_CHECK(index && file && out, "cannot write %s", path);
    /* the choices: this configuration; every other seed with REBUILD, one from a directory */
    fputc((int)(config | (config % 2 ? 0x08u : 0) | (config == 2 ? 0x10u : 0)), out);
    fwrite(index->data, 1, index->nbytes, out);
    fputc(0, out);
    fwrite(file->data, 1, file->nbytes, out);
    FUZZ_CHECK(fclose(out) == 0, "cannot write %s", path);
    zt_memory_store_clear(&store);
}

int main(int argc, char **argv) {
    FUZZ_CHECK(argc == 2, "usage: make_seeds FOLDER");
    for (uint32_t config = 0; config < FUZZ_N_MODELS; config++)
        write_seed(argv[1], config, 4 + config % 3, 0);
    write_seed(argv[1], 0, 3, 1);
    return 0;
}
