/* SPDX-License-Identifier: Apache-2.0 */
/* init.c - initial weights: host_model_randomise of model.h.
 *
 * Element i of a parameter is draw i of a stream that is named by the parameter's name, so a weight does not depend on
 * the number of other parameters. Integers and exact operations only: every machine gets the same bits. */
#include "model.h"

#include "glue/rng.h"

#include <string.h>

/* A stream number from a name (FNV-1a). */
static uint64_t stream_of(const char *name) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

static void fill_normal(host_param_t *param, uint64_t seed, double deviation) {
    glue_rng_t rng = glue_rng(seed, stream_of(param->name));
    for (size_t i = 0; i < param->n_elems; i++)
        host_param_set(param, i, (float)(deviation * glue_rng_normal(rng, i)));
}

static void fill_constant(host_param_t *param, float value) {
    for (size_t i = 0; i < param->n_elems; i++)
        host_param_set(param, i, value);
}

void host_model_randomise(host_model_t *model, uint64_t seed) {
    for (size_t i = 0; i < model->params.n; i++) {
        host_param_t *param = &model->params.list[i];
        if (param->n_dims == 2)
            fill_normal(param, seed, model->config.init_std);
        else
            fill_constant(param, strstr(param->name, "LayerNorm.weight") != NULL ? 1.0f : 0.0f);
    }
}
