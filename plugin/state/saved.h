/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/saved.h - what a checkpoint holds, and where. abi/CHECKPOINT.md describes it for others.
 *
 * Model: of each parameter six arrays at most, each one tensor of a safetensors file. A parameter is cut into blocks:
 * each of its n_batch matrices into n_blocks runs of rows, as equal as can be (SCHEDULE.md). What is kept by block or
 * by channel lies block after block. All that a tensor's length depends on is in zfi_saved_param_t, so a reader needs
 * no plan, and no more memory than the text of the index has bytes.
 *
 *   w, m, v      [shape] F32       m and v: as many as the parameter's rule has
 *   n            [blocks] U32      counts of updates; mode = mean: [channels of all blocks]
 *   selected     [channels] U8     1: in Sel. After warm-up, where a block has a choice
 *   importance   [channels] F64    where a block has a choice */
#pragma once

#include "instance/run.h"
#include "replay/state_arrays.h"
#include "state/store.h"
#include "state/together.h"

enum { ZFI_STATE_VERSION = 2 };

typedef enum zfi_saved_array {
    ZFI_SAVED_W, /* these three are zfi_array_t */
    ZFI_SAVED_M,
    ZFI_SAVED_V,
    ZFI_SAVED_N,
    ZFI_SAVED_SELECTED,
    ZFI_SAVED_IMPORTANCE,
    ZFI_SAVED_ARRAYS
} zfi_saved_array_t;

typedef struct zfi_saved_tensor {
    uint64_t offset, nbytes; /* from the file's start; nbytes = 0: the parameter has no such array */
    uint32_t crc;
    int lacks_crc; /* the index has none: ZF_STATE_OWN */
} zfi_saved_tensor_t;

typedef struct zfi_saved_param {
    char *name;
    uint32_t id; /* its number in the run that saved it */
    zfi_dtype_t dtype;
    int ndim, n_batch_axes, channels_are_rows;
    int64_t shape[ZF_MAX_NDIM];
    uint64_t n_elems, n_batch, rows, cols;
    uint32_t group, n_blocks; /* n_blocks: of each of its n_batch matrices */
    uint32_t file;            /* that has its tensors */
    zfi_saved_tensor_t tensors[ZFI_SAVED_ARRAYS];
} zfi_saved_param_t;

typedef struct zfi_saved_file {
    char name[ZFI_BLOB_NAME];
    uint64_t nbytes, header_nbytes;
    uint32_t header_crc;
    uint32_t first_param, end_param; /* whose tensors it has */
} zfi_saved_file_t;

typedef struct zfi_saved {
    char *note;
    uint32_t note_nbytes, index_crc; /* index_crc: of its text */
    zfi_part_t part;
    uint64_t step, n_submitted, n_applied, n_skipped; /* step: t of SCHEDULE.md; the others count on from run to run */
    uint64_t epoch_end, *last_choice;                 /* [n_cohorts] */
    uint32_t n_cohorts;
    int is_mean;             /* n is kept by channel */
    zfi_group_rule_t *rules; /* [n_groups] */
    uint32_t n_groups;
    zfi_saved_file_t *files;
    uint32_t n_files;
    zfi_saved_param_t *params;
    uint32_t n_params;
} zfi_saved_t;

void zfi_saved_free(zfi_saved_t *saved);

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

const char *zfi_saved_name(zfi_saved_array_t array);
size_t zfi_saved_elem_nbytes(zfi_saved_array_t array);
static inline int zfi_saved_is_by_element(zfi_saved_array_t array) { return array <= ZFI_SAVED_V; }

/* [any-thread] n_batch, rows, cols and n_elems from shape and n_batch_axes. */
void zfi_saved_measure(zfi_saved_param_t *param);
/* [any-thread] Values of an array. */
uint64_t zfi_saved_length(const zfi_saved_t *saved, const zfi_saved_param_t *param, zfi_saved_array_t array);
/* [any-thread] Block i of all: param_offset, rows, cols, channels; of array, where its values begin and how many it
 * has. */
void zfi_saved_block(const zfi_saved_param_t *param, uint64_t i, zfi_matrix_t *out);
void zfi_saved_range(const zfi_saved_t *saved, const zfi_saved_param_t *param, zfi_saved_array_t array, uint64_t i,
                     uint64_t *out_first, uint64_t *out_n);
/* [any-thread] The first of n values that no training leaves, or n. most: of counts of updates. */
uint64_t zfi_saved_find_bad(zfi_saved_array_t array, const zfi_group_rule_t *rule, uint64_t most, const void *values,
                            uint64_t n);

/* ---- of a run ---------------------------------------------------------------------------------------------------- */

/* [control] What the drained run would save, once FLUSH has closed its windows: without places and checksums. */
zf_status_t zfi_saved_of(const zfi_state_t *state, zfi_part_t part, const char *note, zfi_saved_t *out,
                         zf_error_t *err);
/* [any-thread] Whether any of its matrices has something to choose. */
int zfi_saved_has_choice(const zfi_plan_t *plan, const zfi_param_t *param);
/* [control] Whether a parameter of the run and of a checkpoint are cut alike: what is kept by channel fits. */
int zfi_saved_is_cut_alike(const zfi_saved_param_t *saved, const zfi_param_t *here);

/* ---- as text ----------------------------------------------------------------------------------------------------- */

/* [any-thread] Length, JSON and padding of a file's header, by the places of its tensors and file->header_nbytes:
 * *out_nbytes, to be freed; NULL without memory. */
unsigned char *zfi_header_print(const zfi_saved_t *saved, uint32_t file, uint64_t *out_nbytes);
/* [any-thread] The first header_nbytes of a file are that. */
zf_status_t zfi_header_check(zfi_store_t *store, const zfi_saved_t *saved, uint32_t file, zf_error_t *err);

/* [any-thread] The index as text, to be freed, and its index_crc; NULL without memory. */
char *zfi_index_print(zfi_saved_t *saved, const zfi_config_t *config);
/* [any-thread] Reads the index and checks it by itself, and the sizes of its files. */
zf_status_t zfi_index_read(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err);
/* [any-thread] From its text. */
zf_status_t zfi_index_parse(const char *text, uint64_t nbytes, zfi_saved_t *out, zf_error_t *err);
