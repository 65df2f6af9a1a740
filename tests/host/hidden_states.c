/* SPDX-License-Identifier: Apache-2.0 */
/* hidden_states.c - what the host's encoder computes for a batch, for forward_torch.py to compare.
 *
 *   hidden_states MODEL_DIR < lines     each line a text, or two texts and a TAB between
 * Writes little-endian 32-bit words: number of layers + 1, hidden, rows; for each row its length n, ids [n], types [n];
 * then for each row its hidden states [layers + 1, n, hidden] as floats; then the pooled rows [rows, hidden]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/encoder.h"
#include "host/pretrained.h"
#include "host/tokenizer.h"

enum { MAX_ROWS = 64, MAX_TOKENS = 256 };

typedef struct input {
    int32_t ids[MAX_ROWS * MAX_TOKENS], types[MAX_ROWS * MAX_TOKENS], starts[MAX_ROWS + 1];
    size_t n_rows;
} input_t;

static int stop(const glue_error_t *err) {
    (void)fprintf(stderr, "hidden_states: %s\n", err->text);
    return EXIT_FAILURE;
}

static void put_word(int32_t word) { (void)fwrite(&word, sizeof word, 1, stdout); }

static void read_rows(const host_tokenizer_t *tokenizer, input_t *in) {
    static char line[65536];

    while (in->n_rows < MAX_ROWS && fgets(line, sizeof line, stdin) != NULL) {
        int32_t first = in->starts[in->n_rows];
        char *second;

        line[strcspn(line, "\n")] = '\0';
        second = strchr(line, '\t');
        if (second != NULL)
            *second++ = '\0';
        in->starts[++in->n_rows] =
            first + (int32_t)host_encode(tokenizer, line, second, MAX_TOKENS, in->ids + first, in->types + first);
    }
}

static void write_all(const host_encoder_t *e, const input_t *in, const host_model_config_t *config) {
    put_word((int32_t)config->n_layers + 1);
    put_word((int32_t)config->hidden);
    put_word((int32_t)in->n_rows);
    for (size_t i = 0; i < in->n_rows; i++) {
        int32_t first = in->starts[i], n = in->starts[i + 1] - first;

        put_word(n);
        (void)fwrite(in->ids + first, sizeof(int32_t), (size_t)n, stdout);
        (void)fwrite(in->types + first, sizeof(int32_t), (size_t)n, stdout);
    }
    for (size_t i = 0; i < in->n_rows; i++)
        for (size_t layer = 0; layer <= config->n_layers; layer++) {
            const float *all = layer == 0 ? e->embedded : e->layers[layer - 1].out;
            size_t first = (size_t)in->starts[i], n = (size_t)in->starts[i + 1] - first;

            (void)fwrite(all + first * config->hidden, sizeof(float), n * config->hidden, stdout);
        }
    (void)fwrite(e->pooled, sizeof(float), in->n_rows * config->hidden, stdout);
}

int main(int argc, char **argv) {
    static input_t in;
    host_pretrained_t pretrained;
    host_tokenizer_t *tokenizer;
    host_model_t model;
    host_encoder_t encoder;
    host_batch_t batch;
    glue_error_t err = {""};

    if (argc != 2 || host_pretrained_open(argv[1], &pretrained, &err) != 0 ||
        host_tokenizer_load(pretrained.vocab_path, &tokenizer, &err) != 0 ||
        host_model_init(&model, &pretrained.config, &err) != 0 ||
        host_pretrained_fill(&pretrained, NULL, &model, &err) != 0 || host_encoder_init(&encoder, &model, &err) != 0)
        return stop(&err);
    if (pretrained.keeps_case)
        host_tokenizer_keep_case(tokenizer);
    read_rows(tokenizer, &in);
    batch = (host_batch_t){.ids = in.ids, .types = in.types, .starts = in.starts, .n_sequences = in.n_rows};
    if (host_encoder_forward(&encoder, &batch, 0, 0, NULL, &err) != 0)
        return stop(&err);
    write_all(&encoder, &in, &model.config);
    host_encoder_free(&encoder);
    host_model_free(&model);
    host_tokenizer_free(tokenizer);
    host_pretrained_free(&pretrained);
    return ferror(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
