/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/table.h - what a checkpoint holds, as tables: one row per array, per clock, per array of the steps whose
 * slots are open. Whatever is added to the training state is one more row here
 * (arrays: state/table.c; clocks and steps: state/clocks.c).
 *
 * Arrays belong to matrices (plan.h); in a checkpoint the matrices of a parameter lie one after another in one tensor,
 * "<array>/<parameter>", or "<array>.<step>/<parameter>" for slots. Where every matrix has the array and it has one
 * value per element, that is the parameter itself, row-major. */
#pragma once

#include "instance/run.h"
#include "state/rehearse.h"

/* Data types of safetensors. */
typedef enum zfi_state_dtype {
    ZFI_STATE_U8,
    ZFI_STATE_U32,
    ZFI_STATE_BF16,
    ZFI_STATE_F16,
    ZFI_STATE_F32,
    ZFI_STATE_F64
} zfi_state_dtype_t;

const char *zfi_state_dtype_name(zfi_state_dtype_t dtype);
size_t zfi_state_dtype_nbytes(zfi_state_dtype_t dtype);

/* What a row's functions work on. */
typedef struct zfi_state_io {
    const zfi_state_t *state;
    zfi_rehearsal_t *rehearsal; /* compact save: w, m, v, n as FLUSH would leave them; else NULL */
    unsigned char **overlay;    /* load: [n_matrices] visible values that do not follow from the state, or NULL */
    const uint8_t *differs;     /* save, several ranks: [n_matrices] what is visible is not the state everywhere */
    const uint32_t *ids;        /* parameters in the checkpoint's order */
    uint32_t n_ids;
    zf_status_t status; /* the first failure of a getter or setter */
} zfi_state_io_t;

/* Values [first, first + n) of an array of a matrix, of a step where it has one per step. */
typedef struct zfi_state_at {
    uint32_t matrix;
    uint64_t step, first, n;
} zfi_state_at_t;

/* The shape a row's length depends on: of an instance, or of a checkpoint. */
typedef struct zfi_state_shape {
    int is_mean;
    uint32_t n_groups, n_params;
} zfi_state_shape_t;

enum { ZFI_ARRAY_COMPACT = 1 /* in compact checkpoints too */, ZFI_ARRAY_PER_STEP = 2, ZFI_ARRAY_PER_ELEMENT = 4 };
enum { ZFI_DTYPE_FIXED, ZFI_DTYPE_VISIBLE, ZFI_DTYPE_GRAD };

typedef struct zfi_state_array {
    const char *name;
    unsigned flags;
    int dtype_kind;
    zfi_state_dtype_t dtype; /* with ZFI_DTYPE_FIXED */
    uint64_t (*length)(const zfi_state_shape_t *shape, const zfi_matrix_t *matrix);
    /* save: whether a matrix has the array now; NULL = always */
    int (*has)(zfi_state_io_t *io, const zfi_state_at_t *at);
    void (*get)(zfi_state_io_t *io, const zfi_state_at_t *at, void *out);
    void (*put)(zfi_state_io_t *io, const zfi_state_at_t *at, const void *values);
    /* index of the first value that no training leaves, or n; is_applied: of the slot's step */
    uint64_t (*find_bad)(const void *values, uint64_t n, zfi_state_dtype_t dtype, int is_applied);
} zfi_state_array_t;

/* find_bad, of a parameter. */
uint64_t zfi_state_find_bad(const zfi_state_array_t *array, const zfi_param_t *param, const void *values, uint64_t n,
                            int is_applied);

extern const zfi_state_array_t zfi_state_arrays[];
extern const uint32_t zfi_n_state_arrays;
const zfi_state_array_t *zfi_state_array_find(const char *name, size_t length); /* or NULL */
zfi_state_dtype_t zfi_state_array_dtype(const zfi_state_array_t *array, const zfi_param_t *param);

/* Counters and steps: numbers in the index. */
typedef struct zfi_state_clock {
    const char *name;
    int is_per_cohort;
    size_t offset; /* in zfi_clock_t, but of decisions */
} zfi_state_clock_t;

enum {
    ZFI_CLOCK_T,
    ZFI_CLOCK_BASE,
    ZFI_CLOCK_STEPS_BEFORE,
    ZFI_CLOCK_N_APPLIED,
    ZFI_CLOCK_N_SKIPPED,
    ZFI_CLOCK_WAITING_CHOICE,
    ZFI_CLOCK_EPOCH_END,
    ZFI_CLOCK_WINDOW_FIRST,
    ZFI_CLOCK_LAST_CHOICE,
    ZFI_CLOCK_READY_1, /* automatic interval, 0 or 1: decided for t + 1 ... */
    ZFI_CLOCK_READY_2, /* ... and for t + 2 */
    ZFI_N_CLOCKS
};
extern const zfi_state_clock_t zfi_state_clocks[ZFI_N_CLOCKS];
/* [control] cohort: 0 where a clock is of all. */
uint64_t zfi_state_clock_get(const zfi_state_t *state, int clock, uint32_t cohort);
void zfi_state_clock_put(const zfi_state_t *state, int clock, uint32_t cohort, uint64_t value);

/* Arrays of one value or more per step, for the steps of the open windows and the newest one: "step/<name>", [steps,
 * n]. */
typedef struct zfi_state_steps {
    const char *name;
    zfi_state_dtype_t dtype;
    uint64_t (*length)(const zfi_state_shape_t *shape);
    void (*get)(const zfi_state_io_t *io, const zfi_step_row_t *row, void *out);
    void (*put)(const zfi_state_io_t *io, zfi_step_row_t *row, const void *values);
    int (*is_bad)(const zfi_state_shape_t *shape, const void *values);
} zfi_state_steps_t;

enum { ZFI_STEPS_PRESENT, ZFI_STEPS_SCALARS, ZFI_STEPS_HYPER, ZFI_N_STATE_STEPS };
extern const zfi_state_steps_t zfi_state_steps[ZFI_N_STATE_STEPS];

/* Hyper-parameters of a group, from the five values of "step/hyper". */
void zfi_state_hyper(const double values[5], zfi_hyper_t *out);

enum { ZFI_SCALAR_APPLIED = 0, ZFI_N_STEP_SCALARS = 8 }; /* "step/scalars" */

/* "selected" of a channel */
enum { ZFI_CHANNEL_DEFERRED = 0, ZFI_CHANNEL_SELECTED, ZFI_CHANNEL_ENTERING /* selected, not yet visible */ };
