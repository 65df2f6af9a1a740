/* SPDX-License-Identifier: Apache-2.0 */
/* zf_memory.c - host memory per parameter of a trainer in float32, as the plugin plans it.
 *
 *     zf_memory [section.key=value ...]
 *
 * One row for each window of 1, 2, 4 and 8 steps, over 24 matrices of 512 x 512; what is set counts for all of them. */
#include <stdio.h>
#include <stdlib.h>

#include "zf_trainer.h"

enum { N = 24, SIDE = 512 };

/* Binds the arrays with one window; 0 = done. */
static int print_row(unsigned interval, char **settings, float *memory) {
    static const int64_t shape[2] = {SIDE, SIDE};
    const size_t n_elems = (size_t)SIDE * SIDE;
    char text[64];
    zf_trainer_t *opt = zf_trainer_new(NULL, NULL, 0);
    snprintf(text, sizeof text, "zenflow.update_interval=%u", interval);
    zf_trainer_set(opt, text);
    for (; *settings != NULL; ++settings)
        zf_trainer_set(opt, *settings);
    for (size_t i = 0; i < N; ++i) {
        snprintf(text, sizeof text, "layer.%zu", i);
        zf_trainer_add(opt, text, memory + 2 * i * n_elems, memory + (2 * i + 1) * n_elems, 2, shape, 0);
    }
    int is_bound = zf_trainer_bind(opt) >= 0;
    const zf_layout_t *l = zf_trainer_layout(opt);
    double n = (double)l->n_elems, s = interval;
    if (is_bound)
        printf("%2u  %7.2f  %7.2f\n", interval, 12 + 4 * ((s + 1) / 2 + 1) + 4 / s + 8 / s, (double)l->host_nbytes / n);
    else
        fprintf(stderr, "%s\n", zf_trainer_error(opt));
    zf_trainer_free(opt);
    return !is_bound;
}

int main(int argc, char **argv) {
    float *memory = calloc(2 * (size_t)N * SIDE * SIDE, sizeof *memory);
    int status = memory == NULL;
    (void)argc;
    printf("bytes of host memory per parameter, weights and gradients in float32\n");
    printf(" S  formula  planned\n");
    for (unsigned interval = 1; interval <= 8 && status == 0; interval *= 2)
        status = print_row(interval, argv + 1, memory);
    free(memory);
    return status;
}
