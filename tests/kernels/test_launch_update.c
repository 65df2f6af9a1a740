/* SPDX-License-Identifier: Apache-2.0 */
/* test_launch_update.c - the update of every channel (kernels/launch.h, UPDATE_ALL) against naive loops: state in the
 * order of segments, moments of each kind, visible values that the host had changed, weights that end Inf. */
#include <launch.h>

#include <check.h>
#include <math.h>
#include <string.h>

#include "suite.h"
#include "world.h"

enum { GAP = 3 }; /* elements between the state of two segments, which nothing may touch */

static zfi_dtype_t kept_as(const world_t *world) { return world->data.moments == ZFI_MOMENTS_F32 ? ZFI_F32 : ZFI_BF16; }

static void *draw_moment(world_t *world, const char *name, uint64_t n, int is_second) {
    zfi_dtype_t dtype = kept_as(world);
    void *array = world_array(world, name, WORLD_BYTES, n, zfi_dtype_nbytes(dtype));
    world_fill(world, array, dtype, n);
    for (uint64_t i = 0; i < n && is_second; i++)
        world_store(array, dtype, i, fabsf(world_load(array, dtype, i)));
    return array;
}

static uint32_t n_segments(const world_t *world) {
    const zfi_data_piece_t *last = &world->pieces[world->n_pieces - 1];
    return last->first_segment + last->n_segments;
}

/* State of every segment, in falling order; half of what the model reads is what it says. */
static void draw_whole_state(world_t *world, zfi_scalars_t *scalars) {
    zfi_data_t *data = &world->data;
    uint64_t n = 0;
    for (uint32_t s = n_segments(world); s-- > 0; n += world->segments[s].n_elems + GAP)
        world->segments[s].state_base = n;
    data->all_w = world_array(world, "all_w", WORLD_FLOATS, n, sizeof(float));
    world_fill(world, data->all_w, ZFI_F32, n);
    data->all_m = draw_moment(world, "all_m", n, 0);
    data->all_v = zfi_rule_has_v(data->rule) ? draw_moment(world, "all_v", n, 1) : NULL;
    data->n = world_array(world, "counts", WORLD_BYTES, data->n_matrices, sizeof *data->n);
    for (uint32_t i = 0; i < data->n_matrices; i++)
        data->n[i] = (uint32_t)world_below(world, 5);
    data->counts_per_channel = 0;
    data->scalars = scalars;
    if (world_below(world, 3) == 0)
        data->all_w[world_below(world, n)] = INFINITY;
    for (uint32_t s = 0; s < n_segments(world); s++) {
        const zfi_data_segment_t *segment = &world->segments[s];
        const zfi_data_matrix_t *matrix = &world->matrices[segment->matrix];
        for (uint64_t i = 0; i < segment->n_elems; i++)
            if (world_below(world, 2))
                world_store(world_visible(matrix, segment->matrix_offset + i), matrix->place.dtype, 0,
                            data->all_w[segment->state_base + i]);
    }
}

/* One element, by the reference. Returns whether its weight ended Inf or NaN. */
static int naive_update(const world_t *world, const zfi_data_segment_t *segment, uint64_t i, const zfi_scalars_t *k,
                        uint64_t key) {
    const zfi_data_t *data = &world->data;
    const zfi_data_matrix_t *matrix = &world->matrices[segment->matrix];
    zfi_dtype_t grad_dtype = world->params[matrix->param].grad_dtype;
    uint64_t at = segment->state_base + i, in_param = matrix->param_offset + segment->matrix_offset + i;
    size_t moment = zfi_dtype_nbytes(kept_as(world));
    const void *grad = (unsigned char *)world->grad[matrix->param] + in_param * zfi_dtype_nbytes(grad_dtype);
    zfi_replay_t job = {.w = data->all_w + at,
                        .m = (unsigned char *)data->all_m + at * moment,
                        .v = data->all_v ? (unsigned char *)data->all_v + at * moment : NULL,
                        .grads = &grad,
                        .scalars = k,
                        .n_slots = 1,
                        .grad_dtype = grad_dtype,
                        .n_elems = 1,
                        .moments = data->moments,
                        .key = key,
                        .first_index = ((uint64_t)matrix->param << 40) + in_param};
    return zfi_kernels_ref()->replay[data->rule](&job) != UINT64_MAX;
}

static void naive_segment(world_t *world, const zfi_data_segment_t *segment, const zfi_scalars_t *k, uint64_t key) {
    const zfi_data_matrix_t *matrix = &world->matrices[segment->matrix];
    for (uint64_t i = 0; i < segment->n_elems; i++) {
        void *visible = world_visible(matrix, segment->matrix_offset + i);
        if (naive_update(world, segment, i, k, key) && !world->totals.nonfinite_param)
            world->totals.nonfinite_param = (uint64_t)matrix->param + 1;
        if (!world->data.is_foreign[matrix->param])
            world_store(visible, matrix->place.dtype, 0, world->data.all_w[segment->state_base + i]);
    }
}

static void naive_update_all(world_t *world, uint32_t first, uint32_t end, float s, uint64_t key) {
    for (uint32_t m = first; m < end; m++) {
        uint32_t param = world->matrices[m].param;
        zfi_scalars_t k;
        if (!world->present[param])
            continue;
        world->data.n[m]++;
        k = zfi_rule_scalars(world->data.rule, &world->hyper[world->params[param].group], s, world->data.n[m]);
        for (uint32_t i = 0; i < n_segments(world); i++)
            if (world->segments[i].matrix == m)
                naive_segment(world, &world->segments[i], &k, key);
    }
}

/* Runs the kernel. The wanted digests are told what it wrote: a NaN may have other bits here than there. */
static void launch_update(world_t *want, world_t *got, const zfi_kernels_t *table, const zfi_update_all_args_t *args) {
    for (uint32_t i = 0; i < want->data.n_matrices && want->data.digests; i++)
        want->digests[i] = got->digests[i] - world_digest(&got->matrices[i]) - world_digest(&want->matrices[i]);
    zfi_launch_cpu[ZFI_KERNEL_UPDATE_ALL](table, args);
    for (uint32_t i = 0; i < want->data.n_matrices && want->data.digests; i++)
        want->digests[i] += world_digest(&got->matrices[i]); /* and what world_try() adds */
}

static void try_update_all(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    zfi_scalars_t scratch[2][WORLD_MATRICES], *drawn[2] = {want->data.scalars, got->data.scalars};
    zfi_step_scalars_t step = {.s = 0.5f, .applied = seed % 5 != 0};
    uint32_t n = got->data.n_matrices, first = seed % 2 ? (uint32_t)(seed % n) : 0, end = seed % 3 ? n : first + 1;
    zfi_update_all_args_t args = {.data = &got->data,
                                  .step = {got->hyper, got->present},
                                  .scalars = &step,
                                  .first = first,
                                  .end = end,
                                  .key = seed * 0x9E3779B97F4A7C15u};
    draw_whole_state(want, scratch[0]);
    draw_whole_state(got, scratch[1]);
    while (got->segments[args.first_segment].matrix < first)
        args.first_segment++;
    for (uint32_t i = 0; i < n_segments(got); i++)
        args.end_segment = got->segments[i].matrix < end ? i + 1 : args.end_segment;
    if (step.applied)
        naive_update_all(want, first, end, step.s, args.key);
    launch_update(want, got, table, &args);
    want->data.scalars = drawn[0];
    got->data.scalars = drawn[1];
}

START_TEST(update_all) { world_try(try_update_all, "update of all"); }
END_TEST

static void try_show(world_t *want, world_t *got, const zfi_kernels_t *table, uint64_t seed) {
    zfi_scalars_t scratch[2][WORLD_MATRICES], *drawn[2] = {want->data.scalars, got->data.scalars};
    zfi_update_all_args_t args = {
        .data = &got->data, .end = got->data.n_matrices, .end_segment = n_segments(got), .only_shows = 1};
    (void)seed;
    draw_whole_state(want, scratch[0]);
    draw_whole_state(got, scratch[1]);
    for (uint32_t s = 0; s < n_segments(want); s++) {
        const zfi_data_segment_t *segment = &want->segments[s];
        const zfi_data_matrix_t *matrix = &want->matrices[segment->matrix];
        for (uint64_t i = 0; i < segment->n_elems; i++) {
            float w = want->data.all_w[segment->state_base + i];
            if (!want->data.is_foreign[matrix->param])
                world_store(world_visible(matrix, segment->matrix_offset + i), matrix->place.dtype, 0, w);
            if (!isfinite(w) && !want->totals.nonfinite_param)
                want->totals.nonfinite_param = (uint64_t)matrix->param + 1;
        }
    }
    launch_update(want, got, table, &args);
    want->data.scalars = drawn[0];
    got->data.scalars = drawn[1];
}

START_TEST(only_shows) { world_try(try_show, "show all"); }
END_TEST

/* The host's own rule gets the segment's hyper-parameters and the number of the update. */
static uint64_t note_call(const void *ctx, const zfi_replay_t *job, uint32_t group, const zfi_hyper_t *hyper,
                          uint32_t n) {
    uint64_t *calls = (uint64_t *)(uintptr_t)ctx;
    ck_assert(hyper->lr == 0.01 * (group + 1) && job->n_slots == 1 && job->scalars->s == 0.5f && n >= 1);
    *calls += job->n_elems;
    for (uint64_t i = 0; i < job->n_elems; i++)
        world_store(job->visible, job->visible_dtype, i, job->w[i]);
    return UINT64_MAX;
}

START_TEST(hosts_rule) {
    static world_t world;
    zfi_scalars_t scratch[WORLD_MATRICES], *drawn;
    zfi_step_scalars_t step = {.s = 0.5f, .applied = 1};
    uint64_t n_called = 0, n_wanted = 0;
    world_start(&world, 7);
    drawn = world.data.scalars;
    draw_whole_state(&world, scratch);
    world.data.host_update = note_call;
    world.data.host_rule_ctx = &n_called;
    zfi_update_all_args_t args = {&world.data, {world.hyper, world.present}, &step, 0, world.data.n_matrices,
                                  0,           n_segments(&world),           1,     0};
    for (uint32_t i = 0; i < n_segments(&world); i++)
        if (world.present[world.matrices[world.segments[i].matrix].param])
            n_wanted += world.segments[i].n_elems;
    zfi_launch_cpu[ZFI_KERNEL_UPDATE_ALL](zfi_kernels_of(ZFI_ISA_GENERIC), &args);
    ck_assert_uint_eq(n_called, n_wanted);
    world.data.scalars = drawn;
    world_end(&world);
}
END_TEST

ZT_MAIN("launch_update", update_all, only_shows, hosts_rule)
