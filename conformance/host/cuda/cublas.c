/* SPDX-License-Identifier: Apache-2.0 */
/* cublas.c - cuBLAS at run time (cublas.h). Its few functions and numbers are declared here (cublas_api.h of CUDA 12),
 * so that neither header nor library is needed to build. */
#include "cublas.h"

#include <dlfcn.h>
#include <stdlib.h>

enum { OP_NONE = 0, OP_TRANSPOSE = 1, TYPE_32F = 0, COMPUTE_32F = 68, COMPUTE_32F_FAST_16BF = 75, GEMM_DEFAULT = -1 };

struct host_cublas {
    void *library, *handle;
    int compute, version;
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*get_version)(void *handle, int *version);
    int (*set_stream)(void *handle, void *stream);
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int a_type,
                int a_stride, const void *b, int b_type, int b_stride, const void *beta, void *c, int c_type,
                int c_stride, int compute, int algorithm);
};

static int find_all(host_cublas_t *b, const char *name, glue_error_t *err) {
    const struct function {
        const char *name;
        void *at;
    } functions[] = {{"cublasCreate_v2", &b->create},
                     {"cublasDestroy_v2", &b->destroy},
                     {"cublasGetVersion_v2", &b->get_version},
                     {"cublasSetStream_v2", &b->set_stream},
                     {"cublasGemmEx", &b->gemm}};

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(b->library, functions[i].name);
        if (found == NULL)
            return glue_fail(err, "cuBLAS: %s has no %s", name, functions[i].name);
        *(void **)functions[i].at = found;
    }
    return 0;
}

static int open_library(host_cublas_t *b, glue_error_t *err) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (b->library != NULL)
            return find_all(b, names[i], err);
    }
    return glue_fail(err,
                     "cuBLAS: libcublas.so.13 or .12 was not found (package libcublas, or pip install nvidia-cublas "
                     "and its folder in LD_LIBRARY_PATH)");
}

int host_cublas_open(void *stream, int is_bf16, host_cublas_t **out, glue_error_t *err) {
    host_cublas_t *b = calloc(1, sizeof *b);
    int st = -1;
    *out = NULL;
    if (b == NULL)
        return glue_fail(err, "cuBLAS: out of memory");
    b->compute = is_bf16 ? COMPUTE_32F_FAST_16BF : COMPUTE_32F;
    if (open_library(b, err) == 0) {
        st = b->create(&b->handle);
        if (st == 0)
            st = b->set_stream(b->handle, stream);
        if (st == 0)
            st = b->get_version(b->handle, &b->version);
        if (st != 0)
            (void)glue_fail(err, "cuBLAS: does not start: status %d", st);
    }
    if (st != 0) {
        host_cublas_close(b);
        return -1;
    }
    *out = b;
    return 0;
}

/* The library stays loaded: it may have threads. */
void host_cublas_close(host_cublas_t *b) {
    if (b != NULL && b->handle != NULL)
        (void)b->destroy(b->handle);
    free(b);
}

int host_cublas_version(const host_cublas_t *b) { return b->version; }

/* A row-major matrix is the transpose of the column-major one that cuBLAS takes it for: out^T = b^T * a^T. */
int host_cublas_matmul(host_cublas_t *cublas, size_t m, size_t n, size_t k, host_matrix_t a, host_matrix_t b,
                       double keep, host_real_t *out) {
    const float alpha = 1.0f, beta = (float)keep;
    return cublas->gemm(cublas->handle, b.is_transposed ? OP_TRANSPOSE : OP_NONE,
                        a.is_transposed ? OP_TRANSPOSE : OP_NONE, (int)n, (int)m, (int)k, &alpha, b.data, TYPE_32F,
                        (int)b.stride, a.data, TYPE_32F, (int)a.stride, &beta, out, TYPE_32F, (int)n, cublas->compute,
                        GEMM_DEFAULT);
}
