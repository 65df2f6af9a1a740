/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_bf16.c - products of bf16 operands by oneDNN (matmul_bf16.h). oneDNN keeps the code it made for a shape. */
#include "matmul_bf16.h"

#include "bfloat16.h"

#if defined(HOST_HAS_ONEDNN) && !defined(HOST_COMPUTE_IN_DOUBLE)

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static dnnl_engine_t engine;
static dnnl_stream_t stream;

/* An operand as oneDNN takes it. The buffer grows and stays for the next product. */
typedef struct operand {
    uint16_t *data;
    size_t capacity; /* elements */
} operand_t;

static operand_t operand_a, operand_b;

const char *host_matmul_bf16_missing(void) {
    if (dnnl_get_effective_cpu_isa() < dnnl_cpu_isa_avx512_core_bf16)
        return "this processor has neither AMX nor AVX-512 BF16";
    if (engine == NULL && dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        return "oneDNN does not start";
    if (stream == NULL && dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success)
        return "oneDNN does not start";
    return NULL;
}

HOST_CLONES static void round_row(const float *x, size_t n, uint16_t *out) {
    for (size_t j = 0; j < n; j++)
        out[j] = host_bfloat16_from_float(x[j]);
}

/* Rounds the matrix as it is stored, rows x columns, to a dense copy. */
static int round_operand(host_matrix_t from, size_t rows, size_t columns, operand_t *to) {
    if (to->capacity < rows * columns) {
        uint16_t *larger = realloc(to->data, rows * columns * sizeof *larger);
        if (larger == NULL)
            return -1;
        to->data = larger;
        to->capacity = rows * columns;
    }
    for (size_t i = 0; i < rows; i++)
        round_row(from.data + i * from.stride, columns, to->data + i * columns);
    return 0;
}

/* A rows x columns matrix in memory; row_stride elements from row to row, or the transpose of one stored so. */
static int describe(dnnl_memory_desc_t *out, dnnl_data_type_t type, size_t rows, size_t columns, size_t row_stride,
                    int is_transposed) {
    dnnl_dims_t sizes = {(dnnl_dim_t)rows, (dnnl_dim_t)columns}, strides = {(dnnl_dim_t)row_stride, 1};
    dnnl_dims_t transposed = {1, (dnnl_dim_t)row_stride};
    return dnnl_memory_desc_init_by_strides(out, 2, sizes, type, is_transposed ? transposed : strides) == dnnl_success
               ? 0
               : -1;
}

/* What one product needs of oneDNN; members stay NULL until made. */
typedef struct product {
    dnnl_memory_desc_t a_desc, b_desc, out_desc;
    dnnl_post_ops_t after;
    dnnl_primitive_attr_t attributes;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, out;
} product_t;

static int make(product_t *p, double keep, float *out) {
    dnnl_matmul_desc_t what;
    if (dnnl_primitive_attr_create(&p->attributes) != dnnl_success || dnnl_post_ops_create(&p->after) != dnnl_success)
        return -1;
    if (keep != 0.0 && (dnnl_post_ops_append_sum(p->after, (float)keep) != dnnl_success ||
                        dnnl_primitive_attr_set_post_ops(p->attributes, p->after) != dnnl_success))
        return -1;
    return dnnl_matmul_desc_init(&what, &p->a_desc, &p->b_desc, NULL, &p->out_desc) == dnnl_success &&
                   dnnl_primitive_desc_create(&p->description, &what, p->attributes, engine, NULL) == dnnl_success &&
                   dnnl_primitive_create(&p->primitive, p->description) == dnnl_success &&
                   dnnl_memory_create(&p->a, &p->a_desc, engine, operand_a.data) == dnnl_success &&
                   dnnl_memory_create(&p->b, &p->b_desc, engine, operand_b.data) == dnnl_success &&
                   dnnl_memory_create(&p->out, &p->out_desc, engine, out) == dnnl_success
               ? 0
               : -1;
}

static int execute(const product_t *p) {
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->out}};
    return dnnl_primitive_execute(p->primitive, stream, 3, arguments) == dnnl_success &&
                   dnnl_stream_wait(stream) == dnnl_success
               ? 0
               : -1;
}

static void release(product_t *p) {
    (void)dnnl_memory_destroy(p->out);
    (void)dnnl_memory_destroy(p->b);
    (void)dnnl_memory_destroy(p->a);
    (void)dnnl_primitive_destroy(p->primitive);
    (void)dnnl_primitive_desc_destroy(p->description);
    (void)dnnl_post_ops_destroy(p->after);
    (void)dnnl_primitive_attr_destroy(p->attributes);
}

int host_matmul_bf16(size_t m, size_t n, size_t k, host_matrix_t a, host_matrix_t b, double keep, host_real_t *out,
                     size_t out_stride, size_t n_threads) {
    size_t a_rows = a.is_transposed ? k : m, a_columns = a.is_transposed ? m : k;
    size_t b_rows = b.is_transposed ? n : k, b_columns = b.is_transposed ? k : n;
    product_t p = {.primitive = NULL};
    int st;
    if (host_matmul_bf16_missing() != NULL || round_operand(a, a_rows, a_columns, &operand_a) != 0 ||
        round_operand(b, b_rows, b_columns, &operand_b) != 0 ||
        describe(&p.a_desc, dnnl_bf16, m, k, a_columns, a.is_transposed) != 0 ||
        describe(&p.b_desc, dnnl_bf16, k, n, b_columns, b.is_transposed) != 0 ||
        describe(&p.out_desc, dnnl_f32, m, n, out_stride, 0) != 0)
        return -1;
    omp_set_num_threads((int)n_threads);
    st = make(&p, keep, out);
    if (st == 0)
        st = execute(&p);
    release(&p);
    return st;
}

#else

const char *host_matmul_bf16_missing(void) { return "built without oneDNN 2 (libdnnl-dev) and OpenMP"; }

int host_matmul_bf16(size_t m, size_t n, size_t k, host_matrix_t a, host_matrix_t b, double keep, host_real_t *out,
                     size_t out_stride, size_t n_threads) {
    (void)m, (void)n, (void)k, (void)a, (void)b, (void)keep, (void)out, (void)out_stride, (void)n_threads;
    return -1;
}

#endif
