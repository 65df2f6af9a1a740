/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - small random tables of parameters, matrices, segments and pieces (kernels/launch.h) with the arrays that
 * they describe.
 *
 * Two worlds of one seed are alike. A test runs a kernel on the one and naive loops on the other and compares all
 * arrays, so that a write to a wrong place fails as well as a wrong value. */
#ifndef ZF_TEST_WORLD_H
#define ZF_TEST_WORLD_H

#include <launch.h>

enum {
    WORLD_PARAMS = 6,
    WORLD_MATRICES = 8,
    WORLD_SEGMENTS = 4 * WORLD_MATRICES,
    WORLD_ARRAYS = 64,
    WORLD_GROUPS = 2,
    WORLD_MAX_SIDE = 80 /* rows and columns */
};

/* How an array is compared: floats and doubles by bits, but a NaN equals a NaN. */
typedef enum world_kind { WORLD_BYTES, WORLD_FLOATS, WORLD_DOUBLES } world_kind_t;

typedef struct world_array {
    const char *name;
    world_kind_t kind;
    unsigned char *at;
    uint64_t nbytes;
} world_array_t;

typedef struct world {
    uint64_t random; /* state of its generator */
    zfi_data_t data;
    zfi_data_param_t params[WORLD_PARAMS];
    zfi_data_matrix_t matrices[WORLD_MATRICES];
    zfi_data_segment_t segments[WORLD_SEGMENTS];
    zfi_data_piece_t pieces[WORLD_SEGMENTS];
    uint32_t listed_pieces[WORLD_SEGMENTS], listed_matrices[WORLD_MATRICES], n_pieces;
    uint64_t merge_from[WORLD_MATRICES];
    uint64_t *digests; /* data.digests, or what it would be */
    zfi_totals_t totals;
    zfi_hyper_t hyper[WORLD_GROUPS];
    uint8_t present[WORLD_PARAMS];
    int64_t col_offset[WORLD_PARAMS][WORLD_MAX_SIDE];
    void *grad[WORLD_PARAMS]; /* contiguous gradients in their type */
    uint64_t n_selected;
    world_array_t arrays[WORLD_ARRAYS];
    uint32_t n_arrays;
} world_t;

/* Rule, types, shapes, selections and values follow from the seed; every channel of data.index is in data.masks[0]. */
void world_start(world_t *world, uint64_t seed);
void world_end(world_t *world);

/* Another array, of unset elements; it is compared and freed with the others. */
void *world_array(world_t *world, const char *name, world_kind_t kind, uint64_t n, size_t elem);

/* A number below n, 0 where n is 0; one in [-1, 1); both the same in worlds of one seed. */
uint64_t world_below(world_t *world, uint64_t n);
float world_unit(world_t *world);
/* Random values in a gradient's or a parameter's type. */
void world_fill(world_t *world, void *array, zfi_dtype_t dtype, uint64_t n);

/* Fails the running test, naming array and element, unless both hold the same. */
void world_check(const world_t *want, const world_t *got, const char *table, const char *what);

/* Runs a trial for many seeds and every table of this CPU, and compares the worlds after each: the trial makes `want`
 * with naive loops and `got` with the kernel, after the same draws from both. */
typedef void (*world_trial_fn)(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed);
void world_try(world_trial_fn trial, const char *what);

/* Element i of an array in its type. */
float world_load(const void *array, zfi_dtype_t dtype, uint64_t i);
void world_store(void *array, zfi_dtype_t dtype, uint64_t i, float value);

/* Elements of one channel; where element i of selected position pos lies in the compact arrays, and in the matrix. */
uint64_t world_channel_elems(const zfi_data_matrix_t *matrix);
uint64_t world_compact(const zfi_data_matrix_t *matrix, uint64_t pos, uint64_t i);
uint64_t world_element(const zfi_data_matrix_t *matrix, uint64_t channel, uint64_t i);
/* The channel at a selected position: all channels where none are listed. */
uint32_t world_channel(const world_t *world, const zfi_data_matrix_t *matrix, uint32_t pos);
/* The digest of a matrix's visible values. A trial's wanted digests move with what its naive loops write. */
uint64_t world_digest(const zfi_data_matrix_t *matrix);
/* A matrix's element in what the model reads. */
void *world_visible(const zfi_data_matrix_t *matrix, uint64_t element);

#endif
