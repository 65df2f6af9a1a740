/* SPDX-License-Identifier: Apache-2.0 */
/* zf/types.h - statuses, data types, tensors, streams and fences shared by every table of the ABI (major 0).
 *
 * Rules for every struct: the first member is uint32_t struct_size, set by its owner to sizeof as compiled; members are
 * only appended, in groups of 8 bytes; zero means "behave as before". An input struct that is shorter than the plugin's
 * is zero-extended; a longer one is accepted only if its unknown tail is zero; an output struct is written up to the
 * smaller of both sizes. Sizes: _elems counts elements, _nbytes bytes, _ns nanoseconds. */
#ifndef ZF_TYPES_H
#define ZF_TYPES_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "zf/bootstrap.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_ABI_0_16 ZF_ABI_NUMBER(0, 16) /* the ABI these headers describe */

/* Status: 0 is success, positive is information, negative is an error.
 *
 * Kinds that the plugin gives out are positive statuses, fence kinds, skip reasons and counter kinds. A later version
 * may have new ones. The comment of each then names the flag ZF_CREATE_CAP_... by which a host says at create that it
 * knows it; another host gets what it would have got before. */
typedef int32_t zf_status_t;
#define ZF_OK 0
#define ZF_IN_PROGRESS 1              /* poll: nothing new yet */
#define ZF_DISABLED 2                 /* an optional feature is off; said once in the log */
#define ZF_SKIPPED 3                  /* step with WAIT: not finite, so no update; what was due is published */
#define ZF_SUBMITTED 4                /* step: enqueued */
#define ZF_ERR_ARGUMENT (-1)          /* NULL, out of range, wrong size */
#define ZF_ERR_ABI (-2)               /* no common ABI, or a struct smaller than the oldest known */
#define ZF_ERR_UNSUPPORTED_FIELD (-3) /* a member this plugin does not know is not zero */
#define ZF_ERR_STATE (-4)             /* the hook is not legal in the instance's state */
#define ZF_ERR_CONFIG (-5)            /* configuration; the message lists every problem */
#define ZF_ERR_PARAM (-6)             /* unknown id, frozen, bound twice, changed shape ... */
#define ZF_ERR_DTYPE (-7)             /* data type not supported here */
#define ZF_ERR_SHAPE (-8)             /* shape, strides or byte size do not match */
#define ZF_ERR_DEVICE (-9)            /* tensor or stream of another device */
#define ZF_ERR_MEMORY (-10)           /* allocation, memory limit, page lock */
#define ZF_ERR_OVERWRITTEN (-11)      /* the host changed weights without params_changed() */
#define ZF_ERR_NONFINITE (-12)        /* a weight is not finite: bound, announced as changed, or updated */
#define ZF_ERR_TIMEOUT (-13)          /* a wait passed its deadline */
#define ZF_ERR_POISONED (-14)         /* an earlier asynchronous error ended this instance */
#define ZF_ERR_FORKED (-15)           /* called in a child process after fork() */
#define ZF_ERR_BUSY (-16)             /* two hooks at once on one instance */
#define ZF_ERR_INTERNAL (-17)         /* a bug in the plugin */
#define ZF_ERR_STORAGE (-18)          /* reading or writing a file or a host's store failed */
#define ZF_ERR_CHECKPOINT (-19)       /* a checkpoint is damaged, foreign, of a later version, or does not fit */
#define ZF_ERR_CAPTURE (-20)          /* the stream is being captured into a CUDA graph */
#define ZF_ERR_RANKS (-21)            /* the ranks of a job do not do the same, or the transport between them failed */

#define ZF_ERR_RULE (-22) /* the host's own update rule failed: native_code is what it returned */

/* `next` of an input struct leads to a chain of structs that others than this ABI define, each of which begins
 * with these members. A plugin passes over a struct that it does not know, but for what is required:
 * ZF_ERR_UNSUPPORTED_FIELD. At most 64 in a chain; borrowed for the call. */
#define ZF_CHAINED_REQUIRED 1u /* without it the call makes no sense: a plugin that does not know it refuses */
typedef struct zf_chained {
    uint32_t struct_size; /* of the whole struct */
    uint32_t flags;       /* ZF_CHAINED_... */
    const char *id;       /* "vendor.name/1": whose struct, which, and its revision */
    const void *next;     /* the next one, or NULL */
} zf_chained_t;

/* Data types and devices use DLPack's numbers. */
#define ZF_DTYPE_CODE_INT 0
#define ZF_DTYPE_CODE_UINT 1
#define ZF_DTYPE_CODE_FLOAT 2
#define ZF_DTYPE_CODE_BFLOAT 4
/* Codes of 8 bits are reserved. No parameter and no gradient has them in this version; they are refused by name. */
#define ZF_DTYPE_CODE_FLOAT8_E3M4 7
#define ZF_DTYPE_CODE_FLOAT8_E4M3 8
#define ZF_DTYPE_CODE_FLOAT8_E4M3B11FNUZ 9
#define ZF_DTYPE_CODE_FLOAT8_E4M3FN 10
#define ZF_DTYPE_CODE_FLOAT8_E4M3FNUZ 11
#define ZF_DTYPE_CODE_FLOAT8_E5M2 12
#define ZF_DTYPE_CODE_FLOAT8_E5M2FNUZ 13
#define ZF_DTYPE_CODE_FLOAT8_E8M0FNU 14
#define ZF_DEVICE_CPU 1
#define ZF_DEVICE_CUDA 2
#define ZF_MAX_NDIM 8

typedef struct zf_dtype { /* = DLDataType, 4 bytes */
    uint8_t code;         /* ZF_DTYPE_CODE_... */
    uint8_t bits;
    uint16_t lanes; /* 1 */
} zf_dtype_t;

typedef struct zf_dl_tensor { /* = DLTensor, 48 bytes */
    void *data;               /* data + byte_offset is a multiple of the element's size; no more is asked */
    int32_t device_type;      /* ZF_DEVICE_... */
    int32_t device_id;
    int32_t ndim; /* 0..ZF_MAX_NDIM */
    zf_dtype_t dtype;
    const int64_t *shape;   /* [ndim], elements; may be NULL when ndim = 0 */
    const int64_t *strides; /* [ndim], elements, >= 0; NULL = contiguous in row-major order */
    uint64_t byte_offset;
} zf_dl_tensor_t;

#define ZF_TENSOR_SPARSE 1u /* flag: not a dense tensor; refused by name */

/* A borrowed view. The descriptor is read before the call returns; the memory's lifetime is stated by each hook. */
typedef struct zf_tensor {
    uint32_t struct_size;
    uint32_t flags; /* ZF_TENSOR_... */
    zf_dl_tensor_t dl;
    uint64_t nbytes; /* bytes from data + byte_offset that may be touched; must cover shape and strides */
} zf_tensor_t;

/* Streams: work that the host enqueued before the call is finished, in stream order, before the plugin's. */
#define ZF_STREAM_HOST_THREAD 1 /* the host computes on the calling thread; handle is 0 */
#define ZF_STREAM_CPU_QUEUE 2   /* handle is a queue made by zf/ext/cpu.h */
#define ZF_STREAM_CUDA 3        /* handle is a CUstream */
/* Flags of CUDA streams; another kind with one of them is refused. */
#define ZF_STREAM_FLAG_CAPTURING 1u  /* into a graph: refused, ZF_ERR_CAPTURE */
#define ZF_STREAM_FLAG_PER_THREAD 2u /* another stream in every thread: refused, as CU_STREAM_PER_THREAD is */

typedef struct zf_stream {
    uint32_t struct_size;
    int32_t kind; /* ZF_STREAM_HOST_THREAD ... */
    int32_t device_type;
    int32_t device_id;
    uint32_t flags; /* ZF_STREAM_FLAG_... */
    uint32_t reserved0;
    uint64_t handle;
    uint64_t id; /* unique in the host, never reused; 0 = derive from handle */
} zf_stream_t;

/* Fences say when something is over. Kinds that the plugin gives out. */
#define ZF_FENCE_NONE 0         /* already over */
#define ZF_FENCE_STREAM_ORDER 1 /* over for whatever is enqueued on the call's stream after it returned */
#define ZF_FENCE_HOST_COUNTER 2 /* over once an acquire load of *counter is >= value; fence_wait waits for it */

typedef struct zf_fence { /* output struct */
    uint32_t struct_size;
    int32_t kind;
    const uint64_t *counter; /* lives as long as the instance; rises only. After a fatal error (poll() tells) waits end
                              * early: gradient memory must then live until destroy() */
    uint64_t value;
} zf_fence_t;

#define ZF_NO_ID 0xFFFFFFFFu

/* The data model: LP64, little endian, members at multiples of their sizes. The offsets of every struct are in
 * abi/layout/, which is installed beside the headers. */
#if defined(__cplusplus) ? __cplusplus >= 201103L : defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
static_assert(sizeof(void *) == 8 && sizeof(void (*)(void)) == 8, "pointers have 8 bytes");
static_assert(sizeof(double) == 8 && sizeof(float) == 4, "float and double are IEEE 754's");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are little endian");
static_assert(sizeof(zf_error_t) == 512 && offsetof(zf_error_t, origin) == 24, "zf_error_t");
static_assert(sizeof(zf_bootstrap_t) == 64 && offsetof(zf_bootstrap_t, plugin) == 24, "zf_bootstrap_t");
static_assert(sizeof(zf_dtype_t) == 4 && offsetof(zf_dtype_t, lanes) == 2, "DLDataType");
static_assert(sizeof(zf_dl_tensor_t) == 48 && offsetof(zf_dl_tensor_t, device_type) == 8, "DLTensor");
static_assert(offsetof(zf_dl_tensor_t, ndim) == 16 && offsetof(zf_dl_tensor_t, dtype) == 20, "DLTensor");
static_assert(offsetof(zf_dl_tensor_t, shape) == 24 && offsetof(zf_dl_tensor_t, strides) == 32, "DLTensor");
static_assert(offsetof(zf_dl_tensor_t, byte_offset) == 40, "DLTensor");
static_assert(offsetof(zf_tensor_t, dl) == 8 && offsetof(zf_tensor_t, nbytes) == 56, "zf_tensor_t");
#endif

#ifdef __cplusplus
}
#endif
#endif
