/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/model.h - two small parameters, one instance, and configurations of every mode: what checkpoints of the
 * corpus were saved from and are loaded into. */
#pragma once

#include "zf/ext/state.h"
#include "zf/plugin.h"

enum { FUZZ_N_MODELS = 6, FUZZ_N_PARAMS = 2 };

typedef struct fuzz_model {
    const zf_plugin_t *zf;
    const zf_state_ext_t *state;
    zf_instance_t *instance;
    float matrix[3 * 4], matrix_grad[3 * 4];
    uint16_t vector[5], vector_grad[5];
    zf_tensor_t tensors[FUZZ_N_PARAMS], grads[FUZZ_N_PARAMS];
} fuzz_model_t;

const zf_plugin_t *fuzz_plugin(void);
/* Parameters bound under configuration 0 .. FUZZ_N_MODELS - 1. */
void fuzz_model_start(fuzz_model_t *model, uint32_t config);
/* Up to n steps with holes; the first error ends them and is returned. */
zf_status_t fuzz_model_steps(fuzz_model_t *model, uint32_t n);
void fuzz_model_end(fuzz_model_t *model);
