/* SPDX-License-Identifier: Apache-2.0 */
/* hidden_states.c - what the host's encoder computes for the dev rows of a file of examples, for forward_torch.py.
 *
 *   hidden_states FILE
 * Writes little-endian 32-bit words: number of layers + 1, hidden, rows; the length n of each row; then for each row
 * its hidden states [layers + 1, n, hidden] as floats; then the pooled rows [rows, hidden]. */
#include <stdio.h>
#include <stdlib.h>

#include "host/encoder.h"
#include "host/examples.h"

static int stop(const glue_error_t *err) {
    (void)fprintf(stderr, "hidden_states: %s\n", err->text);
    return EXIT_FAILURE;
}

static void put_word(int32_t word) { (void)fwrite(&word, sizeof word, 1, stdout); }

static void write_all(const host_encoder_t *e, const host_batch_t *batch, const host_model_config_t *config) {
    put_word((int32_t)config->n_layers + 1);
    put_word((int32_t)config->hidden);
    put_word((int32_t)batch->n_sequences);
    for (size_t i = 0; i < batch->n_sequences; i++)
        put_word(batch->starts[i + 1] - batch->starts[i]);
    for (size_t i = 0; i < batch->n_sequences; i++)
        for (size_t layer = 0; layer <= config->n_layers; layer++) {
            const float *all = layer == 0 ? e->embedded : e->layers[layer - 1].out;
            size_t first = (size_t)batch->starts[i], n = (size_t)batch->starts[i + 1] - first;
            (void)fwrite(all + first * config->hidden, sizeof(float), n * config->hidden, stdout);
        }
    (void)fwrite(e->pooled, sizeof(float), batch->n_sequences * config->hidden, stdout);
}

int main(int argc, char **argv) {
    enum { MAX_ROWS = 64 };
    host_batch_buffer_t buffer = {.ids = NULL};
    uint32_t rows[MAX_ROWS];
    host_examples_t examples;
    host_model_t model;
    host_encoder_t encoder;
    host_batch_t batch;
    glue_error_t err = {""};

    for (uint32_t i = 0; i < MAX_ROWS; i++)
        rows[i] = i;
    if (argc != 2 || host_examples_open(argv[1], &examples, &err) != 0 || examples.dev.n_rows > MAX_ROWS ||
        host_model_init(&model, &examples.shape, &err) != 0 || host_examples_fill(&examples, &model, &err) != 0 ||
        host_encoder_init(&encoder, &model, &err) != 0 ||
        host_corpus_gather(&examples.dev, rows, examples.dev.n_rows, &buffer, &batch, &err) != 0 ||
        host_encoder_forward(&encoder, &batch, 0, 0, NULL, &err) != 0)
        return stop(&err);
    write_all(&encoder, &batch, &model.config);
    host_batch_buffer_free(&buffer);
    host_encoder_free(&encoder);
    host_model_free(&model);
    host_examples_close(&examples);
    return EXIT_SUCCESS;
}
