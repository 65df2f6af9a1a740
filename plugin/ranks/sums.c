/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/sums.c - sums over ranks (contract in sums.h).
 *
 * A bucket is reduced by an all-to-all of its parts in the gradients' data type. This rank adds the parts it was sent,
 * in fp32 and by rank index from rank 0's on, divides by the number of ranks where the average is wanted, and rounds
 * once. Where every rank keeps the whole state, an all-gather of the sums follows. Else parts are collected from the
 * bucket's flat memory first, by the table `cut`, and the sums stay where they are. Each rank sends (P-1)/P of the
 * bucket in either exchange; in two levels (nodes.h), less of it to other machines.
 *
 * Where the transport sums (nccl_native), its reduce-scatter takes the place of the all-to-all and of the additions: in
 * its own order and with its own roundings to the data type. The division stays here. */
#include "ranks/sums.h"

#include <string.h>

#include "instance/gradient_place.h"
#include "instance/memory.h"
#include "ranks/collective.h"
#include "ranks/mirror.h"
#include "ranks/nonfinite.h"

/* Maps the places where each rank's slice of each matrix lies in the flat memory of its bucket, and in the parts; then
 * a whole part. */
zf_status_t zfi_sums_map_cut(zfi_ranks_t *ranks, zf_error_t *err) {
    zf_status_t st = zfi_memory_map_pinned(ranks, &ranks->mem->cut.arena, zfi_memory_cut_nbytes(ranks),
                                           "where slices travel to", err);
    zfi_move_t *move = (zfi_move_t *)(void *)ranks->mem->cut.arena.base;
    for (uint32_t b = 0; b < ranks->buckets->n && !st; b++) {
        const zfi_bucket_t *bucket = &ranks->buckets->all[b];
        for (uint32_t i = 0; i < bucket->n_params; i++) {
            const zfi_param_t *param = &ranks->params[ranks->buckets->params[bucket->first + i]];
            for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++)
                for (uint32_t r = 0; r < bucket->place.n_ranks; r++) {
                    const zfi_matrix_t *matrix = &ranks->plan->matrices[m];
                    const zfi_slice_t *slice = &matrix->slices[r];
                    uint64_t flat = ranks->buckets->offset[param->id] + matrix->param_offset + slice->first;
                    if (slice->n)
                        *move++ = (zfi_move_t){
                            flat, zfi_part_of(ranks->engine, bucket->group, r) * bucket->part_elems + slice->at,
                            slice->n};
                }
        }
        *move++ = (zfi_move_t){0, 0, bucket->part_elems};
    }
    return st;
}

zfi_move_args_t zfi_sums_cut(const zfi_ranks_t *ranks, uint32_t bucket, void *flat, void *parts) {
    const zfi_bucket_t *of = &ranks->buckets->all[bucket];
    const zfi_move_t *all = (const zfi_move_t *)(const void *)ranks->mem->cut.arena.base;
    return (zfi_move_args_t){
        .moves = all + of->first_move, .n = of->n_moves, .dtype = of->dtype, .from = flat, .to = parts};
}

/* A bucket on its way. */
typedef struct summing {
    zfi_ranks_t *ranks;
    const zfi_bucket_t *bucket;
    uint32_t number;
    uint64_t step;
    unsigned char *flat;
} summing_t;

unsigned char *zfi_own_sums(const zfi_ranks_t *ranks, uint32_t number) {
    const zfi_bucket_t *bucket = &ranks->buckets->all[number];
    const zfi_opened_t *opened = ranks->reduction->opened;
    if (opened)
        return ranks->mem->staging_arena.base + opened[number].kept_at;
    return zfi_gradient_bucket(zfi_gradient_place(ranks), number) +
           zfi_own_part(ranks->engine, bucket) * zfi_part_nbytes(bucket);
}

/* On the stream of gradients, or at once. */
static void work(zfi_engine_t *engine, zfi_kernel_t kernel, const void *args, uint32_t nbytes) {
    zfi_op_t op = zfi_op_launch(kernel, args, nbytes);
    if (engine->ranks_stream)
        (void)zfi_enqueue(engine, engine->ranks_stream, &op, 1); /* a failure has ended the instance */
    else
        zfi_launch_cpu[kernel](engine->kernels, args);
}

/* The same. What makes parts equal is looked at where a run has several. */
static void clear(zfi_engine_t *engine, unsigned char *parts, uint64_t nbytes) {
    zfi_op_t op = zfi_op_fill(parts, nbytes);
    if (engine->ranks_stream)
        (void)zfi_enqueue(engine, engine->ranks_stream, &op, 1);
    else
        memset(parts, 0, nbytes);
}

/* The exchange of a bucket's sums, of all ranks that one level has. */
static zfi_exchange_t exchange_of(const summing_t *it, int32_t purpose, uint32_t group) {
    const zfi_bucket_t *bucket = it->bucket;
    return (zfi_exchange_t){.purpose = purpose,
                            .bucket = it->number,
                            .step = it->step,
                            .nbytes = zfi_part_nbytes(bucket),
                            .group = group,
                            .stream = it->ranks->engine->ranks_stream};
}

/* Among whom runs of parts are summed: every member of a group sends [n_ranks] of them, and sums those that it gets in
 * its own place. */
typedef struct level {
    uint32_t group;
    zfi_member_t place;
    uint32_t n_parts; /* of a run */
    uint32_t divisor;
    uint64_t n_looked; /* of a run: what each member has sent itself, so its number says whose is not finite */
} level_t;

/* This rank's own run and those that have arrived of the others, [n_ranks]. */
static void sum_runs(const summing_t *it, const level_t *level, const void *own, const void *arrived, void *out) {
    zfi_sum_parts_args_t args = {.own = own,
                                 .arrived = arrived,
                                 .out = out,
                                 .found = &zfi_row(it->ranks->rows, it->step)->nonfinite_part,
                                 .found_as = zfi_nonfinite_of(level->group),
                                 .n_looked = level->n_looked,
                                 .n_elems = level->n_parts * it->bucket->part_elems,
                                 .dtype = it->bucket->dtype,
                                 .rank = level->place.rank,
                                 .n_ranks = level->place.n_ranks,
                                 .divisor = level->divisor};
    work(it->ranks->engine, ZFI_KERNEL_SUM_PARTS, &args, sizeof args);
}

/* This rank's part of a bucket's sums is added up over the second group. */
static zf_status_t add_second(const summing_t *it, unsigned char *sums) {
    const level_t copy = {.place = {0, 1}, .n_parts = 1}, second = {it->bucket->group2, it->bucket->place2, 1, 0, 0};
    zfi_exchange_t what = exchange_of(it, ZF_COLLECTIVE_FOR_GRADIENTS, second.group);
    unsigned char *parts = zfi_mirrored(it->ranks, zfi_arriving(it->ranks));
    unsigned char *own = parts + second.place.rank * what.nbytes;
    if (second.group == 0)
        return ZF_OK;
    what.bucket = it->bucket->number2;
    what.recv = parts;
    sum_runs(it, &copy, sums, NULL, own);
    zf_status_t st = zfi_collective(it->ranks->engine, &what);
    if (!st)
        sum_runs(it, &second, own, parts, sums);
    return st;
}

static zf_status_t sum_level(const summing_t *it, const level_t *level, unsigned char *runs, unsigned char *out) {
    zfi_exchange_t what = exchange_of(it, ZF_COLLECTIVE_FOR_GRADIENTS, level->group);
    what.nbytes *= level->n_parts;
    what.send = runs;
    what.recv = zfi_mirrored(it->ranks, zfi_arriving(it->ranks));
    zf_status_t st = zfi_collective(it->ranks->engine, &what);
    if (!st)
        sum_runs(it, level, runs + level->place.rank * what.nbytes, what.recv, out);
    return st;
}

static zf_status_t sum_by_transport(const summing_t *it, const unsigned char *all_parts, unsigned char *sums,
                                    uint32_t divisor) {
    const level_t divided = {.place = {0, 1}, .n_parts = 1, .divisor = divisor};
    zfi_exchange_t what = exchange_of(it, ZF_COLLECTIVE_FOR_GRADIENTS, it->bucket->group);
    what.is_sum = 1;
    what.dtype = it->bucket->dtype;
    what.send = all_parts;
    what.recv = sums;
    zf_status_t st = zfi_collective(it->ranks->engine, &what);
    if (!st && divisor)
        sum_runs(it, &divided, sums, NULL, sums);
    return st;
}

/* This rank's part of all_parts, over all ranks, comes to `sums`. */
static zf_status_t sum_parts(const summing_t *it, unsigned char *all_parts, unsigned char *sums) {
    const zfi_bucket_t *bucket = it->bucket;
    const zfi_nodes_t *nodes = &it->ranks->engine->nodes;
    uint32_t divisor = bucket->is_average ? bucket->place.n_ranks : 0;
    level_t all = {bucket->group, bucket->place, 1, divisor, bucket->own_elems};
    level_t inside = {nodes->inside_group, nodes->inside, nodes->between.n_ranks, 0,
                      nodes->between.n_ranks * bucket->part_elems};
    level_t between = {nodes->between_group, nodes->between, 1, divisor, 0};
    unsigned char *of_node = all_parts + nodes->inside.rank * nodes->between.n_ranks * zfi_part_nbytes(bucket);
    if (zfi_transport_sums(it->ranks->engine) && bucket->place.n_ranks > 1)
        return sum_by_transport(it, all_parts, sums, divisor);
    if (!zfi_has_two_levels(it->ranks->engine, bucket->group))
        return sum_level(it, &all, all_parts, sums);
    zf_status_t st = sum_level(it, &inside, all_parts, of_node);
    return st ? st : sum_level(it, &between, of_node, sums);
}

/* Where every rank keeps the whole state: all parts of the bucket's flat memory, of each this rank's sums. */
static zf_status_t gather_sums(const summing_t *it) {
    zfi_exchange_t all = exchange_of(it, ZF_COLLECTIVE_FOR_SUMS, it->bucket->group);
    all.recv = it->flat;
    return zfi_gather_parts(it->ranks->engine, &all);
}

zf_status_t zfi_sum_bucket(zfi_ranks_t *ranks, uint32_t bucket, uint64_t step, unsigned char *flat) {
    summing_t it = {ranks, &ranks->buckets->all[bucket], bucket, step, flat};
    unsigned char *all_parts = zfi_is_sharded(ranks->engine) ? zfi_mirrored(ranks, zfi_parts(ranks)) : flat;
    unsigned char *sums = zfi_mirrored(ranks, zfi_own_sums(ranks, bucket));
    if (zfi_is_sharded(ranks->engine)) {
        if (zfi_has_two_levels(ranks->engine, it.bucket->group))
            clear(ranks->engine, all_parts, it.bucket->place.n_ranks * zfi_part_nbytes(it.bucket));
        zfi_move_args_t cut = zfi_sums_cut(ranks, bucket, flat, all_parts);
        work(ranks->engine, ZFI_KERNEL_MOVE, &cut, sizeof cut);
    }
    zf_status_t st = sum_parts(&it, all_parts, sums);
    if (!st)
        st = add_second(&it, sums);
    return st || zfi_is_sharded(ranks->engine) ? st : gather_sums(&it);
}
