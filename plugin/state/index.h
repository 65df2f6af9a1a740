/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/index.h - the index of a checkpoint: what it holds, where, and its clocks; as a structure and as JSON.
 *
 * Text: one line `{"format":"zf.state","version":1,"crc32":"xxxxxxxx",` and then the rest of one JSON object; the
 * checksum is that of the text behind it. Members:
 *   plugin, kind ("exact" | "compact"), note, part ([number, parts]; absent = all of the model), rules [per group
 * {"rule"; of ZF_RULE_CALLBACK also "name" and "moments"}], is_mean, config {"section.key": text}, clocks {name: number
 * or [per cohort]}, first_step, n_steps, n_groups, files
 * [{"name", "nbytes", "header_nbytes", "header_crc32"}], safetensors with the tensors named below, steps {"present",
 * "scalars", "hyper": tensor}, params [{"name", "id" (its number in the run that saved it; absent = its place in this
 * list), "shape", "dtype", "grad_dtype", "flags", "group", "n_batch_axes", "channels", "matrices": [[first element,
 * rows, columns, cohort, selected], ...], "tensors": {"w": tensor, ..., "slot.17": tensor}}] tensor = {"file", "offset"
 * (from the file's start), "nbytes", "crc32" (absent: only where ZF_STATE_OWN loads it), "matrices" ([numbers]; absent
 * = all)}
 *
 * Reading trusts nothing: every number is checked against what it counts before it is used. */
#pragma once

#include "state/store.h"
#include "state/table.h"
#include "state/together.h"

enum { ZFI_STATE_VERSION = 1 };

/* One matrix of a tensor: where its bytes begin in it, and their checksum as they were checked. */
typedef struct zfi_saved_part {
    uint64_t from;
    uint32_t crc;
} zfi_saved_part_t;

typedef struct zfi_saved_tensor {
    const zfi_state_array_t *array; /* NULL: of the steps */
    uint64_t step;                  /* ZFI_ARRAY_PER_STEP */
    uint32_t file, crc;
    int lacks_crc; /* the index has none: ZF_STATE_OWN */
    uint64_t offset, nbytes;
    uint32_t *matrices, n_matrices; /* of the parameter, rising */
    zfi_saved_part_t *parts;        /* [n_matrices]; NULL: not checked yet */
} zfi_saved_tensor_t;

typedef struct zfi_saved_param {
    zfi_param_t param;      /* name, shape, types, flags, group, n_elems: the rest is zero */
    zfi_matrix_t *matrices; /* [n_matrices] cut and channels: the rest is zero */
    uint32_t n_matrices;
    zfi_saved_tensor_t *tensors;
    uint32_t n_tensors;
} zfi_saved_param_t;

typedef struct zfi_saved_file {
    char name[ZFI_BLOB_NAME];
    uint64_t nbytes, header_nbytes;
    uint32_t header_crc;
} zfi_saved_file_t;

typedef struct zfi_saved {
    int is_compact;
    zfi_group_rule_t *rules; /* [shape.n_groups] */
    zfi_state_shape_t shape;
    zfi_config_t config;
    zfi_policy_t policy;
    uint32_t n_cohorts;
    uint64_t *clocks[ZFI_N_CLOCKS]; /* [1] or [n_cohorts] */
    uint64_t first_step, n_steps;
    zfi_saved_file_t *files;
    uint32_t n_files;
    zfi_saved_tensor_t steps[ZFI_N_STATE_STEPS];
    void *step_values[ZFI_N_STATE_STEPS]; /* load: [n_steps][length], checked */
    zfi_saved_param_t *params;
    uint32_t n_params;
    char *note;
    uint32_t note_nbytes;
    uint32_t index_crc; /* of its text */
    zfi_part_t part;
} zfi_saved_t;

/* [control] What the instance of io->state would save of io->ids, without places and checksums; the note is checked
 * before. */
zf_status_t zfi_saved_of(const zfi_state_io_t *io, int is_compact, const char *note, zfi_saved_t *out, zf_error_t *err);
void zfi_saved_free(zfi_saved_t *saved);

/* [any-thread] The type of a tensor's values; param = NULL: of the steps, number i. And how many bytes one has. */
zfi_state_dtype_t zfi_saved_dtype(const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor, uint32_t i);
size_t zfi_saved_elem_nbytes(const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor);
/* [any-thread] Bytes of a tensor by what it holds. */
uint64_t zfi_saved_tensor_nbytes(const zfi_saved_t *saved, const zfi_saved_param_t *param,
                                 const zfi_saved_tensor_t *tensor);
/* [any-thread] "w/encoder.weight" into buf; param = NULL: of the steps, number i. */
void zfi_saved_tensor_name(const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor, int i, char *buf,
                           size_t nbytes);
enum { ZFI_TENSOR_NAME = 320 };
const zfi_saved_tensor_t *zfi_saved_find(const zfi_saved_param_t *param, const char *array, uint64_t step);

/* [any-thread] Every tensor: for (zfi_tensor_walk_t at = {0}; zfi_next_tensor(saved, &at);) */
typedef struct zfi_tensor_walk {
    zfi_saved_param_t *param; /* NULL: of the steps */
    zfi_saved_tensor_t *tensor;
    uint32_t number; /* of the parameter in the list, or of the steps' array */
    uint32_t next_number, next_tensor;
    int is_past_steps;
} zfi_tensor_walk_t;
int zfi_next_tensor(const zfi_saved_t *saved, zfi_tensor_walk_t *at);
uint64_t zfi_count_tensors(const zfi_saved_t *saved);

/* [any-thread] The index as text, to be freed, and its index_crc; NULL without memory. */
char *zfi_index_print(zfi_saved_t *saved);
/* [any-thread] Reads and checks the index and the sizes of its files (not the tensors themselves). */
zf_status_t zfi_index_read(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err);
/* [any-thread] The index from its text, which is changed; the sizes of its files are not looked up. */
zf_status_t zfi_index_parse(char *text, uint64_t nbytes, zfi_saved_t *out, zf_error_t *err);
