/* SPDX-License-Identifier: Apache-2.0 */
/* test_launch_moves.c - kernels that move values or round them (kernels/launch.h) against naive loops: channels that
 * enter, published values, rounded moments, plain reads and writes. world.h says how they are compared. */
#include <launch.h>

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "suite.h"
#include "world.h"

#define LAUNCH(table, kernel, args) zfi_launch_cpu[kernel](table, args)

/* ---- entering channels ------------------------------------------------------------------------------------------- */

typedef struct lists {
    uint32_t *n_enter, *position, *channel, *count;
} lists_t;

static uint64_t n_index(const world_t *world) {
    const zfi_data_matrix_t *last = &world->matrices[world->data.n_matrices - 1];
    return last->index_base + last->k;
}

static uint64_t n_channels(const world_t *world) {
    const zfi_data_matrix_t *last = &world->matrices[world->data.n_matrices - 1];
    return last->channel_base + last->n_channels;
}

/* Some of a matrix's channels that are not selected, for rising positions; the first choice fills every position. */
static uint32_t draw_list(world_t *world, const zfi_data_matrix_t *matrix, const lists_t *lists, int replaces) {
    const uint8_t *mask = world->data.masks[0] + matrix->channel_base;
    uint32_t n = 0, channel = 0;
    for (uint32_t pos = 0; pos < matrix->k; pos++) {
        if (replaces && world_below(world, 2))
            continue;
        while (channel < matrix->n_channels && mask[channel])
            channel++;
        if (channel == matrix->n_channels)
            break;
        lists->position[matrix->index_base + n] = pos;
        lists->channel[matrix->index_base + n] = channel++;
        lists->count[matrix->index_base + n++] = (uint32_t)world_below(world, 1000);
    }
    return n;
}

static lists_t draw_lists(world_t *world, int replaces) {
    lists_t lists = {.n_enter =
                         world_array(world, "n_enter", WORLD_BYTES, world->data.n_matrices, sizeof *lists.n_enter),
                     .position = world_array(world, "position", WORLD_BYTES, n_index(world), sizeof *lists.position),
                     .channel = world_array(world, "channel", WORLD_BYTES, n_index(world), sizeof *lists.channel),
                     .count = world_array(world, "count", WORLD_BYTES, n_index(world), sizeof *lists.count)};
    if (!replaces) {
        memset(world->data.masks[0], 0, n_channels(world));
        memset(world->data.index, 0, n_index(world) * sizeof *world->data.index);
    }
    for (uint32_t i = 0; i < world->data.n_matrices; i++)
        lists.n_enter[i] = draw_list(world, &world->matrices[i], &lists, replaces);
    return lists;
}

static zfi_entering_t entering_of(const lists_t *lists) {
    return (zfi_entering_t){lists->n_enter, lists->position, lists->channel, lists->count};
}

/* The masks change places. */
static void take_turns(world_t *world) {
    uint8_t *first = world->data.masks[0];
    world->data.masks[0] = world->data.masks[1];
    world->data.masks[1] = first;
}

/* The mask that has its turn becomes the one before the choice with its changes; that one stays. */
static void try_enter_maps(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    int replaces = seed % 3 != 0;
    lists_t lists = draw_lists(want, replaces), other = draw_lists(got, replaces);
    zfi_enter_maps_args_t args = {&got->data, entering_of(&other), replaces, seed % 2};
    for (uint32_t i = 0; i < want->data.n_matrices; i++) {
        const zfi_data_matrix_t *matrix = &want->matrices[i];
        uint32_t *index = want->data.index + matrix->index_base;
        uint8_t *mask = want->data.masks[1] + matrix->channel_base;
        for (uint32_t e = 0; e < lists.n_enter[i]; e++)
            index[lists.position[matrix->index_base + e]] = lists.channel[matrix->index_base + e];
        memset(mask, 0, matrix->n_channels);
        for (uint32_t pos = 0; pos < matrix->k; pos++)
            mask[index[pos]] = 1;
    }
    memset(got->data.masks[1], 0xA5, n_channels(got)); /* whatever an earlier choice has left there */
    if (args.turn == 0)
        take_turns(got);
    LAUNCH(table, ZFI_KERNEL_ENTER_MAPS, &args);
}

START_TEST(enter_maps) { world_try(try_enter_maps, "maps of entering channels"); }
END_TEST

static void try_enter_counts(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    lists_t lists, other;
    zfi_enter_maps_args_t args;
    if (!want->data.counts_per_channel)
        return;
    lists = draw_lists(want, seed % 3 != 0);
    other = draw_lists(got, seed % 3 != 0);
    args = (zfi_enter_maps_args_t){.data = &got->data, .entering = entering_of(&other)};
    for (uint32_t i = 0; i < want->data.n_matrices; i++)
        for (uint32_t e = 0; e < lists.n_enter[i]; e++) {
            uint64_t base = want->matrices[i].index_base;
            want->data.n[base + lists.position[base + e]] = lists.count[base + e];
        }
    LAUNCH(table, ZFI_KERNEL_ENTER_COUNTS, &args);
}

START_TEST(enter_counts) { world_try(try_enter_counts, "counts of entering channels"); }
END_TEST

/* What enters is cut across the channel axis or along it. */
static void add_rects(world_t *world, const lists_t *lists, uint32_t i, zfi_enter_block_t *block, uint32_t *n_elems) {
    const zfi_data_matrix_t *matrix = &world->matrices[i];
    uint64_t n = lists->n_enter[i], rows = matrix->channels_are_rows ? n : matrix->rows;
    uint64_t cols = matrix->channels_are_rows ? matrix->cols : n;
    uint64_t row = world_below(world, rows), col = world_below(world, cols); /* rectangles of the four corners */
    for (int corner = 3; corner >= 0 && n; corner--) {
        zfi_enter_rect_t *rect = &block->rects[block->n_rects];
        *rect = (zfi_enter_rect_t){.matrix = i, .at = *n_elems};
        rect->a0 = corner & 1 ? row : 0;
        rect->na = corner & 1 ? rows - row : row;
        rect->b0 = corner & 2 ? col : 0;
        rect->nb = corner & 2 ? cols - col : col;
        if (rect->na == 0 || rect->nb == 0)
            continue;
        *n_elems += (uint32_t)(rect->na * rect->nb);
        block->n_rects++;
    }
}

/* A block of everything that enters, in device memory like any other array. */
static zfi_enter_block_t *draw_block(world_t *world, const lists_t *lists, uint32_t n_arrays) {
    uint64_t n_values = n_arrays * world->n_selected;
    uint32_t n_elems = 0;
    zfi_enter_block_t *block = world_array(world, "block", WORLD_BYTES, 1, sizeof *block + n_values * sizeof(float));
    world_fill(world, block->values, ZFI_F32, n_values);
    for (uint32_t i = world->data.n_matrices; i-- > 0;)
        add_rects(world, lists, i, block, &n_elems);
    return block;
}

/* Position and place within the channel of a rectangle's element (a, b). */
static uint64_t entering_at(const zfi_data_matrix_t *matrix, const lists_t *lists, uint64_t a, uint64_t b) {
    uint64_t e = matrix->channels_are_rows ? a : b, i = matrix->channels_are_rows ? b : a;
    return world_compact(matrix, lists->position[matrix->index_base + e], i);
}

static void naive_enter_state(world_t *world, const lists_t *lists, const zfi_enter_block_t *block, uint32_t n_arrays) {
    float *arrays[] = {world->data.w, world->data.m, world->data.v};
    for (uint64_t r = 0; r < block->n_rects; r++) {
        const zfi_enter_rect_t *rect = &block->rects[r];
        const float *value = block->values + (uint64_t)rect->at * n_arrays;
        for (uint32_t array = 0; array < n_arrays; array++)
            for (uint64_t a = 0; a < rect->na; a++)
                for (uint64_t b = 0; b < rect->nb; b++)
                    arrays[array][entering_at(&world->matrices[rect->matrix], lists, rect->a0 + a, rect->b0 + b)] =
                        *value++;
    }
}

static void try_enter_state(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    int replaces = seed % 3 != 0;
    uint32_t n_arrays;
    lists_t lists, other;
    zfi_enter_state_args_t args;
    if (seed % 4 == 0) /* a host's own rule may keep no moments */
        want->data.m = got->data.m = want->data.v = got->data.v = NULL;
    n_arrays = 1u + (want->data.m != NULL) + (want->data.v != NULL);
    lists = draw_lists(want, replaces);
    other = draw_lists(got, replaces);
    args = (zfi_enter_state_args_t){&got->data, entering_of(&other), draw_block(got, &other, n_arrays), n_arrays};
    naive_enter_state(want, &lists, draw_block(want, &lists, n_arrays), n_arrays);
    LAUNCH(table, ZFI_KERNEL_ENTER_STATE, &args);
}

START_TEST(enter_state) { world_try(try_enter_state, "state of entering channels"); }
END_TEST

static void try_show_entered(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    lists_t lists = draw_lists(want, seed % 3 != 0), other = draw_lists(got, seed % 3 != 0);
    zfi_enter_maps_args_t args = {.data = &got->data, .entering = entering_of(&other)};
    for (uint32_t i = 0; i < want->data.n_matrices; i++) {
        const zfi_data_matrix_t *matrix = &want->matrices[i];
        for (uint32_t e = 0; e < lists.n_enter[i] && !want->data.is_foreign[matrix->param]; e++)
            for (uint64_t k = 0; k < world_channel_elems(matrix); k++) {
                uint64_t element = world_element(matrix, lists.channel[matrix->index_base + e], k);
                uint64_t from = world_compact(matrix, lists.position[matrix->index_base + e], k);
                world_store(world_visible(matrix, element), matrix->place.dtype, 0, want->data.w[from]);
            }
    }
    LAUNCH(table, ZFI_KERNEL_SHOW_ENTERED, &args);
}

START_TEST(show_entered) { world_try(try_show_entered, "entering channels become visible"); }
END_TEST

/* ---- merge ------------------------------------------------------------------------------------------------------- */

/* Whether a piece's value is for this element's channel. */
static int takes(const world_t *world, const zfi_merge_args_t *args, const zfi_data_matrix_t *matrix,
                 uint64_t element) {
    uint64_t channel = matrix->channels_are_rows ? element / matrix->cols : element % matrix->cols;
    if (args->takes_all)
        return 1;
    if (!args->all_open && matrix->k == matrix->n_channels)
        return 0;
    return !world->data.masks[args->turn][matrix->channel_base + channel];
}

static void naive_merge(const world_t *world, const zfi_merge_args_t *args) {
    for (uint32_t i = 0; i < args->n; i++) {
        const zfi_data_piece_t *piece = &world->pieces[world->listed_pieces[args->first + i]];
        uint64_t number = args->first_number + i;
        const unsigned char *staged = args->staged + number % args->n_places * args->place_nbytes;
        for (uint32_t s = 0; s < piece->n_segments; s++) {
            const zfi_data_segment_t *segment = &world->segments[piece->first_segment + s];
            const zfi_data_matrix_t *matrix = &world->matrices[segment->matrix];
            size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
            if (piece->first_segment + s < args->first_segment || piece->first_segment + s >= args->end_segment ||
                world->data.is_foreign[matrix->param])
                continue;
            for (uint64_t e = 0; e < segment->n_elems && number >= world->merge_from[segment->matrix]; e++)
                if (takes(world, args, matrix, segment->matrix_offset + e))
                    memcpy(world_visible(matrix, segment->matrix_offset + e),
                           staged + (segment->piece_offset + e) * elem, elem);
        }
    }
}

static uint32_t n_segments(const world_t *world) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < world->n_pieces; i++) {
        uint32_t end = world->pieces[i].first_segment + world->pieces[i].n_segments;
        most = end > most ? end : most;
    }
    return most;
}

/* Before the first choice nothing is selected; flush takes all; some matrices drop what was published before; a fetch
 * takes the segments of some. */
static zfi_merge_args_t draw_merge(world_t *world, uint64_t seed) {
    zfi_merge_args_t args = {.data = &world->data, .takes_all = seed % 5 == 0, .all_open = seed % 4 == 0};
    uint64_t most = 0;
    unsigned char *staged;
    args.first = (uint32_t)world_below(world, world->n_pieces);
    args.n = 1 + (uint32_t)world_below(world, world->n_pieces - args.first);
    args.n_places = args.n + (uint32_t)world_below(world, 3);
    args.first_number = 5 + world_below(world, 20);
    for (uint32_t i = 0; i < world->n_pieces; i++)
        most = world->pieces[i].n_elems > most ? world->pieces[i].n_elems : most;
    args.place_nbytes = most * sizeof(float);
    staged = world_array(world, "staged", WORLD_BYTES, args.n_places, args.place_nbytes);
    world_fill(world, staged, ZFI_BF16, args.n_places * args.place_nbytes / 2);
    args.staged = staged;
    for (uint32_t i = 0; i < world->data.n_matrices; i++)
        world->merge_from[i] = world_below(world, 2) ? 0 : args.first_number - 2 + world_below(world, args.n + 4);
    if (args.all_open)
        memset(world->data.masks[0], 0, n_channels(world));
    args.turn = seed % 2;
    if (args.turn)
        take_turns(world);
    args.end_segment = n_segments(world);
    if (seed % 3 == 0) {
        args.first_segment = (uint32_t)world_below(world, n_segments(world) + 1);
        args.end_segment =
            args.first_segment + (uint32_t)world_below(world, n_segments(world) - args.first_segment + 1);
    }
    return args;
}

static void try_merge(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    zfi_merge_args_t naive = draw_merge(want, seed), args = draw_merge(got, seed);
    naive_merge(want, &naive);
    LAUNCH(table, ZFI_KERNEL_MERGE, &args);
}

START_TEST(merge) { world_try(try_merge, "merge"); }
END_TEST

/* ---- plain reads and writes -------------------------------------------------------------------------------------- */

/* An element that is written goes to the model; one that is read comes from there. */
static void naive_place(const zfi_data_matrix_t *matrix, const zfi_place_args_t *args, int is_write) {
    size_t elem = zfi_dtype_nbytes(matrix->place.dtype);
    const uint8_t *mask = args->data->masks[args->turn] + matrix->channel_base;
    for (uint64_t e = 0; e < args->n; e++) {
        uint64_t row = (args->first + e) / matrix->cols, col = (args->first + e) % matrix->cols;
        unsigned char *bits = (unsigned char *)args->bits + e * elem, *at = world_visible(matrix, args->first + e);
        int is_kept =
            args->keeps_selected && (matrix->k == matrix->n_channels || mask[matrix->channels_are_rows ? row : col]);
        if (is_write ? !is_kept && !args->data->is_foreign[matrix->param] : 1)
            memcpy(is_write ? at : bits, is_write ? bits : at, elem);
    }
}

static void try_places(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    if (seed % 4 > 1) {
        take_turns(want);
        take_turns(got);
    }
    for (uint32_t i = 0; i < want->data.n_matrices; i++) {
        const zfi_data_matrix_t *matrix = &want->matrices[i];
        zfi_dtype_t dtype = matrix->place.dtype;
        size_t elem = zfi_dtype_nbytes(dtype);
        uint64_t first = world_below(want, matrix->rows * matrix->cols);
        uint64_t n = world_below(want, matrix->rows * matrix->cols - first + 1);
        unsigned char *bits = world_array(want, "bits", WORLD_BYTES, n, elem);
        zfi_place_args_t args = {.data = &got->data, .matrix = i, .first = first, .n = n}, naive;
        args.bits = world_array(got, "bits", WORLD_BYTES, n, elem);
        args.keeps_selected = seed % 2 && seed % 3 == 0;
        args.turn = seed % 4 > 1;
        world_fill(want, bits, dtype, n);
        memcpy(args.bits, bits, n * elem);
        naive = args;
        naive.data = &want->data;
        naive.bits = bits;
        naive_place(matrix, &naive, seed % 2);
        LAUNCH(table, seed % 2 ? ZFI_KERNEL_WRITE_PLACE : ZFI_KERNEL_READ_PLACE, &args);
    }
}

START_TEST(places) { world_try(try_places, "plain reads and writes"); }
END_TEST

/* ---- what the host wrote ----------------------------------------------------------------------------------------- */

/* The host writes an element of some matrices. */
static void edit(world_t *want, world_t *got, uint32_t i) {
    const zfi_data_matrix_t *matrix = &want->matrices[i];
    uint64_t e = world_below(want, matrix->rows * matrix->cols), byte, bit;
    byte = world_below(want, zfi_dtype_nbytes(matrix->place.dtype));
    bit = world_below(want, 8);
    ((unsigned char *)world_visible(matrix, e))[byte] ^= (unsigned char)(1u << bit);
    ((unsigned char *)world_visible(&got->matrices[i], e))[byte] ^= (unsigned char)(1u << bit);
}

static void naive_check(world_t *world, const zfi_check_args_t *args, const uint8_t *is_edited) {
    zfi_data_t *data = &world->data;
    for (uint32_t l = args->first; l < args->first + args->n; l++) {
        const zfi_data_matrix_t *matrix = &world->matrices[world->listed_matrices[l]];
        if (args->seals || !is_edited[world->listed_matrices[l]] || data->is_foreign[matrix->param])
            continue;
        world->totals.n_overwritten += matrix->rows * matrix->cols;
        world->totals.n_params_overwritten += !data->overwritten[matrix->param];
        data->overwritten[matrix->param] = data->is_foreign[matrix->param] = 1;
    }
}

/* Any bit of any element shows, and nothing else does; sealed, it is as if the kernels had written it. */
static void try_check(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    uint32_t first = (uint32_t)world_below(want, 3);
    uint32_t n = want->data.n_matrices - first - (uint32_t)world_below(want, 3);
    zfi_check_args_t all = {&got->data, 0, want->data.n_matrices, 1}, args = {&got->data, first, n, seed % 4 == 0};
    uint8_t is_edited[WORLD_MATRICES] = {0};
    (void)table;
    want->data.digests = want->digests;
    got->data.digests = got->digests;
    LAUNCH(table, ZFI_KERNEL_CHECK, &all);
    for (uint32_t i = 0; i < want->data.n_matrices; i++)
        want->digests[i] = world_digest(&want->matrices[i]);
    for (uint32_t i = 0; i < want->data.n_matrices; i++)
        if (world_below(want, 2)) {
            is_edited[i] = 1;
            edit(want, got, i);
        }
    naive_check(want, &args, is_edited);
    LAUNCH(table, ZFI_KERNEL_CHECK, &args);
    for (uint32_t l = first; l < first + n && args.seals; l++)
        want->digests[want->listed_matrices[l]] = world_digest(&want->matrices[want->listed_matrices[l]]);
    want->data.digests = NULL; /* they are what they shall be */
}

START_TEST(check) { world_try(try_check, "check"); }
END_TEST

/* ---- moments ----------------------------------------------------------------------------------------------------- */

static float naive_round(float x, zfi_moments_t moments, uint32_t random) {
    if (moments == ZFI_MOMENTS_F32)
        return x;
    return zfi_bf16_to_f32(moments == ZFI_MOMENTS_BF16 ? zfi_f32_to_bf16(x) : zfi_f32_to_bf16_stochastic(x, random));
}

static void try_round_moments(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    uint32_t first = (uint32_t)world_below(want, 3), n = want->data.n_matrices - first - (uint32_t)world_below(want, 3);
    zfi_data_t *data = &want->data;
    zfi_round_moments_args_t args = {&got->data, first, n, seed * 0x123456789abcdefu};
    if (seed % 6 == 0) /* a rule without moments */
        data->m = data->v = got->data.m = got->data.v = NULL;
    for (uint32_t l = first; l < first + n && data->m; l++) {
        const zfi_data_matrix_t *matrix = &want->matrices[want->listed_matrices[l]];
        for (uint32_t pos = 0; pos < matrix->k; pos++)
            for (uint64_t i = 0; i < world_channel_elems(matrix); i++) {
                uint64_t at = world_compact(matrix, pos, i);
                uint64_t index = ((uint64_t)matrix->param << 40) + matrix->param_offset +
                                 world_element(matrix, world_channel(want, matrix, pos), i);
                uint32_t random = zfi_random32(args.key, index);
                data->m[at] = naive_round(data->m[at], data->moments, random);
                if (data->v)
                    data->v[at] = naive_round(data->v[at], data->moments, random >> 16);
            }
    }
    LAUNCH(table, ZFI_KERNEL_ROUND_MOMENTS, &args);
}

START_TEST(round_moments) { world_try(try_round_moments, "rounded moments"); }
END_TEST

ZT_MAIN("launch_moves", enter_maps, enter_counts, enter_state, show_entered, merge, places, check, round_moments)
