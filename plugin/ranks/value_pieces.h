/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/value_pieces.h - which published values of a bucket travel, and in which order.
 *
 * Model. Of each matrix that is published every rank has its slice: a piece. Each rank packs its pieces one behind the
 * other: those of cohort 0, then those of cohort 1 ... and of what is resident, in each in the order of the bucket:
 *
 *   parts   | a a b c c | a a b c | a b b c |      slices of three ranks; b's cohort is not published
 *   travel  | a a c c   | a a c   | a c     |      each as many bytes as the rank sends that has most
 *
 * So what a piece has before it in its own cohort is known at bind: a table in page-locked memory, from which one
 * launch takes a whole bucket. All of it follows from the layout and from the cohorts that are published, so it is the
 * same on every rank. */
#pragma once

#include "instance/run.h"

/* [control] Makes the table, once there is a plan. ZF_ERR_MEMORY; free, by zfi_ranks_free(), is legal then. */
zf_status_t zfi_value_pieces_new(zfi_ranks_t *ranks, zf_error_t *err);

/* [hook] Bytes that every rank sends of a bucket whose cohorts are marked (ranks->reduction->published): as many as the
 * one that has most. */
uint64_t zfi_value_pieces_sent(const zfi_ranks_t *ranks, uint32_t bucket);
/* [hook] Of these the pieces of all ranks; of this one, or of this one's residents; or of one matrix: between what the
 * model reads and the bucket's value memory. */
zfi_place_args_t zfi_value_pieces(const zfi_ranks_t *ranks, uint32_t bucket);
zfi_place_args_t zfi_value_pieces_own(const zfi_ranks_t *ranks, uint32_t bucket, int are_resident);
zfi_place_args_t zfi_value_pieces_of(const zfi_ranks_t *ranks, uint32_t matrix);
