/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/tensor.h - checks of borrowed tensor descriptors, and copies between strided and contiguous memory. */
#pragma once

#include <stdint.h>

#include "kernels.h"
#include "zf/types.h"

/* A checked view. */
typedef struct zfi_view {
    unsigned char *data; /* element 0; NULL only where n_elems = 0 */
    int ndim;
    int64_t shape[ZF_MAX_NDIM];
    int64_t strides[ZF_MAX_NDIM]; /* elements */
    uint64_t n_elems;
    size_t elem_nbytes;
    zfi_dtype_t dtype; /* zfi_tensor_check */
    int is_contiguous;
} zfi_view_t;

/* [any-thread] Checks a descriptor of parameter `name`; what = "parameter" or "gradient" for messages. */
zf_status_t zfi_tensor_check(const zf_tensor_t *tensor, const char *what, const char *name, int32_t device_type,
                             zfi_view_t *out, zf_error_t *err);

/* [any-thread] The same for memory that is only read as bytes: any data type of one lane and 8, 16, 32 or 64 bits. */
zf_status_t zfi_tensor_check_bytes(const zf_tensor_t *tensor, const char *what, const char *name, int32_t device_type,
                                   zfi_view_t *out, zf_error_t *err);

/* [any-thread] DLPack's type to ours; -1 where unsupported. */
int zfi_dtype_of(zf_dtype_t dtype);

/* [any-thread] "float8_e4m3fn (code 10, 8 bits, 1 lanes)" into buf; without the name where it has none here. */
void zfi_dtype_text(char *buf, size_t nbytes, zf_dtype_t dtype);

/* [any-thread] "[2, 3]" into buf. */
void zfi_shape_text(char *buf, size_t nbytes, int ndim, const int64_t *shape);
