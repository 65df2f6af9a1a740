/* SPDX-License-Identifier: Apache-2.0 */
/* tests/host/tiny_model.h - a model of two layers for three classes, and a batch of four sequences of different
 * lengths. */
#pragma once

#include <check.h>

#include "host/encoder.h"

static const int32_t tiny_ids[] = {2, 5, 7, 3, 2, 3, 2, 11, 5, 5, 9, 12, 3, 6, 2};
static const int32_t tiny_types[] = {0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0};
static const int32_t tiny_starts[] = {0, 4, 6, 14, 15};
static const double tiny_classes[] = {0, 2, 1, 2};
static const host_batch_t tiny_batch = {tiny_ids, tiny_types, tiny_starts, tiny_classes, 4};

static inline void make_tiny_model(host_model_t *model, int is_regression, double dropout, host_dtype_t dtype) {
    host_model_config_t config = {.n_pieces = 13,
                                  .max_positions = 9,
                                  .n_types = 2,
                                  .hidden = 12,
                                  .n_layers = 2,
                                  .n_heads = 3,
                                  .ffn = 20,
                                  .n_labels = is_regression ? 1 : 3,
                                  .is_regression = is_regression,
                                  .dropout = dropout,
                                  .layer_norm_eps = 1e-12,
                                  .init_std = 0.3,
                                  .dtype = dtype};
    glue_error_t err = {""};
    ck_assert_msg(host_model_init(model, &config, &err) == 0, "%s", err.text);
    host_model_randomise(model, 7);
}
