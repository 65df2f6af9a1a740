/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/tensor.c - checks of tensor descriptors, strided copies (contract in tensor.h). */
#include "base/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/struct.h"

int zfi_dtype_of(zf_dtype_t dtype) {
    if (dtype.lanes != 1)
        return -1;
    if (dtype.code == ZF_DTYPE_CODE_FLOAT && dtype.bits == 32)
        return ZFI_F32;
    if (dtype.code == ZF_DTYPE_CODE_BFLOAT && dtype.bits == 16)
        return ZFI_BF16;
    if (dtype.code == ZF_DTYPE_CODE_FLOAT && dtype.bits == 16)
        return ZFI_F16;
    return -1;
}

/* DLPack's name of a type, where it has one here; "" else. */
static const char *type_name(zf_dtype_t dtype) {
    static const char *const of_8_bits[] = {
        [ZF_DTYPE_CODE_FLOAT8_E3M4] = "float8_e3m4",
        [ZF_DTYPE_CODE_FLOAT8_E4M3] = "float8_e4m3",
        [ZF_DTYPE_CODE_FLOAT8_E4M3B11FNUZ] = "float8_e4m3b11fnuz",
        [ZF_DTYPE_CODE_FLOAT8_E4M3FN] = "float8_e4m3fn",
        [ZF_DTYPE_CODE_FLOAT8_E4M3FNUZ] = "float8_e4m3fnuz",
        [ZF_DTYPE_CODE_FLOAT8_E5M2] = "float8_e5m2",
        [ZF_DTYPE_CODE_FLOAT8_E5M2FNUZ] = "float8_e5m2fnuz",
        [ZF_DTYPE_CODE_FLOAT8_E8M0FNU] = "float8_e8m0fnu",
    };
    const size_t n = sizeof of_8_bits / sizeof *of_8_bits;
    return dtype.code < n && of_8_bits[dtype.code] ? of_8_bits[dtype.code] : "";
}

void zfi_dtype_text(char *buf, size_t nbytes, zf_dtype_t dtype) {
    const char *name = type_name(dtype);
    snprintf(buf, nbytes, "%s%s%u, %u bits, %u lanes%s", name, *name ? " (code " : "code ", dtype.code, dtype.bits,
             dtype.lanes, *name ? ")" : "");
}

void zfi_shape_text(char *buf, size_t nbytes, int ndim, const int64_t *shape) {
    size_t at = 0;
    at += (size_t)snprintf(buf, nbytes, "[");
    for (int i = 0; i < ndim && at < nbytes; i++)
        at += (size_t)snprintf(buf + at, nbytes - at, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (at < nbytes)
        snprintf(buf + at, nbytes - at, "]");
}

/* Elements, and the highest element offset that a strided tensor touches; 0 on overflow or a negative number. */
static int measure(const zf_dl_tensor_t *dl, zfi_view_t *out, uint64_t *out_last) {
    uint64_t n = 1, last = 0;
    int64_t expected = 1;
    out->is_contiguous = 1;
    for (int i = dl->ndim - 1; i >= 0; i--) {
        int64_t size = dl->shape[i], stride = dl->strides ? dl->strides[i] : expected;
        if (size < 0 || stride < 0 || __builtin_mul_overflow(n, (uint64_t)size, &n) || n > (uint64_t)1 << 48)
            return 0;
        if (size > 1) {
            uint64_t reach;
            if (__builtin_mul_overflow((uint64_t)(size - 1), (uint64_t)stride, &reach) ||
                __builtin_add_overflow(last, reach, &last))
                return 0;
            if (stride != expected)
                out->is_contiguous = 0;
        }
        out->shape[i] = size;
        out->strides[i] = stride;
        if (__builtin_mul_overflow(expected, size ? size : 1, &expected))
            return 0;
    }
    out->n_elems = n;
    *out_last = last;
    return last <= (uint64_t)1 << 48;
}

static zf_status_t check_extent(const zf_tensor_t *tensor, const char *what, const char *name, zfi_view_t *out,
                                uint64_t last, zf_error_t *err) {
    size_t elem = out->elem_nbytes;
    uint64_t need = out->n_elems ? (last + 1) * elem : 0;
    if (need > tensor->nbytes)
        return zfi_error(err, ZF_ERR_SHAPE, "tensor",
                         "%s of \"%s\": shape and strides reach %" PRIu64 " bytes, the tensor says nbytes = %" PRIu64,
                         what, name, need, tensor->nbytes);
    if (tensor->dl.byte_offset > (uint64_t)1 << 48)
        return zfi_error(err, ZF_ERR_ARGUMENT, "tensor", "%s of \"%s\": byte_offset = %" PRIu64 "; at most 2^48", what,
                         name, tensor->dl.byte_offset);
    if (out->n_elems && !tensor->dl.data)
        return zfi_error(err, ZF_ERR_ARGUMENT, "tensor", "%s of \"%s\": data is NULL", what, name);
    out->data = out->n_elems ? (unsigned char *)tensor->dl.data + tensor->dl.byte_offset : NULL;
    if ((uintptr_t)out->data % elem)
        return zfi_error(err, ZF_ERR_ARGUMENT, "tensor", "%s of \"%s\": address %p is not aligned to %zu bytes", what,
                         name, (void *)out->data, elem);
    return ZF_OK;
}

/* Everything but the data type, shape and extent. */
static zf_status_t check_descriptor(const zf_tensor_t *tensor, const char *what, const char *name, int32_t device_type,
                                    zf_error_t *err) {
    zf_error_t why = {.struct_size = sizeof why};
    if (!tensor)
        return zfi_error(err, ZF_ERR_ARGUMENT, "tensor", "%s of \"%s\": tensor is NULL", what, name);
    zf_status_t st = ZFI_CHECK(tensor, zf_tensor_t, &why);
    if (st)
        return zfi_error(err, st, "tensor", "%s of \"%s\": %s", what, name, why.message);
    if (tensor->flags & ZF_TENSOR_SPARSE)
        return zfi_error(err, ZF_ERR_SHAPE, "tensor",
                         "%s of \"%s\" is sparse: only dense tensors are supported; make it dense (in PyTorch: "
                         "nn.Embedding(sparse=False))",
                         what, name);
    if (tensor->flags)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "tensor", "%s of \"%s\": unknown flags 0x%x", what, name,
                         tensor->flags);
    if (tensor->dl.device_type != device_type)
        return zfi_error(err, ZF_ERR_DEVICE, "tensor",
                         "%s of \"%s\" is on device type %d, the instance was created for %d", what, name,
                         tensor->dl.device_type, device_type);
    return ZF_OK;
}

static zf_status_t bad_dtype(const zf_tensor_t *tensor, const char *what, const char *name, const char *supported,
                             zf_error_t *err) {
    char have[64];
    zfi_dtype_text(have, sizeof have, tensor->dl.dtype);
    return zfi_error(err, ZF_ERR_DTYPE, "tensor", "%s of \"%s\": data type %s; supported: %s", what, name, have,
                     supported);
}

/* Shape, strides and extent in elements of out->elem_nbytes. */
static zf_status_t check_shape(const zf_tensor_t *tensor, const char *what, const char *name, zfi_view_t *out,
                               zf_error_t *err) {
    const zf_dl_tensor_t *dl = &tensor->dl;
    uint64_t last = 0;
    if (dl->ndim < 0 || dl->ndim > ZF_MAX_NDIM || (dl->ndim > 0 && !dl->shape))
        return zfi_error(err, ZF_ERR_SHAPE, "tensor", "%s of \"%s\": ndim = %d (allowed 0..%d) or shape is NULL", what,
                         name, dl->ndim, ZF_MAX_NDIM);
    out->ndim = dl->ndim;
    if (!measure(dl, out, &last))
        return zfi_error(err, ZF_ERR_SHAPE, "tensor",
                         "%s of \"%s\": a negative size or stride, or more than 2^48 elements", what, name);
    return check_extent(tensor, what, name, out, last, err);
}

zf_status_t zfi_tensor_check(const zf_tensor_t *tensor, const char *what, const char *name, int32_t device_type,
                             zfi_view_t *out, zf_error_t *err) {
    zf_status_t st = check_descriptor(tensor, what, name, device_type, err);
    if (st)
        return st;
    int dtype = zfi_dtype_of(tensor->dl.dtype);
    if (dtype < 0)
        return bad_dtype(tensor, what, name, "float32 (2, 32, 1), bfloat16 (4, 16, 1), float16 (2, 16, 1)", err);
    out->dtype = (zfi_dtype_t)dtype;
    out->elem_nbytes = zfi_dtype_nbytes(out->dtype);
    return check_shape(tensor, what, name, out, err);
}

zf_status_t zfi_tensor_check_bytes(const zf_tensor_t *tensor, const char *what, const char *name, int32_t device_type,
                                   zfi_view_t *out, zf_error_t *err) {
    zf_status_t st = check_descriptor(tensor, what, name, device_type, err);
    if (st)
        return st;
    uint32_t bits = tensor->dl.dtype.bits;
    if (tensor->dl.dtype.lanes != 1 || (bits != 8 && bits != 16 && bits != 32 && bits != 64))
        return bad_dtype(tensor, what, name, "one lane of 8, 16, 32 or 64 bits", err);
    out->elem_nbytes = bits / 8;
    return check_shape(tensor, what, name, out, err);
}
