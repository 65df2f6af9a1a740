/* SPDX-License-Identifier: Apache-2.0 */
/* compute.c - what the model makes of compute.h's table, wherever that computes. */
#include "compute.h"

size_t host_attention_n_probs(const host_attention_shape_t *shape) {
    size_t n = 0;
    for (size_t s = 0; s < shape->n_sequences; s++) {
        size_t length = (size_t)(shape->starts[s + 1] - shape->starts[s]);
        n += shape->n_heads * length * length;
    }
    return n;
}

void host_compute_linear(host_compute_t *c, const host_real_t *x, host_affine_arrays_t p, size_t n, size_t n_in,
                         size_t n_out, host_real_t *y) {
    c->ops->fill_rows(c, y, p.bias, n, n_out);
    c->ops->matmul(c, n, n_out, n_in, (host_matrix_t){.data = x, .stride = n_in},
                   (host_matrix_t){.data = p.weight, .stride = n_in, .is_transposed = 1}, 1.0, y);
}

void host_compute_linear_back(host_compute_t *c, const host_real_t *x, const host_real_t *weight, const host_real_t *dy,
                              size_t n, size_t n_in, size_t n_out, int keep_dx, host_real_t *dx,
                              host_affine_arrays_t grad) {
    c->ops->matmul(c, n_out, n_in, n, (host_matrix_t){.data = dy, .stride = n_out, .is_transposed = 1},
                   (host_matrix_t){.data = x, .stride = n_in}, 1.0, grad.weight);
    c->ops->sum_rows(c, dy, n, n_out, grad.bias);
    c->ops->matmul(c, n, n_in, n_out, (host_matrix_t){.data = dy, .stride = n_out},
                   (host_matrix_t){.data = weight, .stride = n_in}, keep_dx ? 1.0 : 0.0, dx);
}

int host_compute_check(const host_compute_t *compute, glue_error_t *err) {
    return compute->error.text[0] == '\0' ? 0 : glue_fail(err, "%s", compute->error.text);
}

void host_compute_close(host_compute_t *compute) {
    if (compute != NULL)
        compute->ops->close(compute);
}
