/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/slice.h - which elements of every matrix each of several ranks owns, and where they lie in what is
 * exchanged.
 *
 * Model. A matrix is cut into units: rows, or where a row is shorter than ZFI_SLICE_ALIGN elements as many rows as have
 * them. Of every matrix a rank owns neighbouring units, a P-th of them. Those that are left over go, one each, to the
 * ranks that have least so far of the matrix's bucket and of its cohort, taken together. So each rank owns a P-th of
 * every block, of every bucket and of what closes at every step, within a unit or so.
 *
 *   matrix 0   | rows of 0 | of 1  | of 2  |          of a bucket, on three ranks
 *   matrix 1   | of 0  | of 1  | of 2      |
 *   exchanged  | 0 of matrix 0 | 0 of 1 | . | 1 of 0 | 1 of 1 | . . | 2 of 0 | 2 of 1 |      parts of equal length
 *
 * The ranks are those that hold the matrix (bucket.h). Experts are dealt among their own, with loads of their own: no
 * rank knows how the others deal theirs.
 *
 * A sharded matrix (stage 3) whose channels are rows is one unit: its selected rows lie packed, wherever they are.
 *
 * All of it follows from the declarations, the cohorts and the number of ranks (SCHEDULE.md, "Several ranks"). Cost: 24
 * bytes for each matrix and rank. zfi_plan_deal_slices() in plan.h does it. */
#pragma once

#include "plan/bucket.h"
#include "plan/plan.h"

enum { ZFI_SLICE_ALIGN = 16 };

/* [any-thread] What of `n` elements that lie at `offset` of something lies in its elements [first, end). Empty where
 * they do not meet: *out_first = *out_end. */
static inline void zfi_overlap(uint64_t offset, uint64_t n, uint64_t first, uint64_t end, uint64_t *out_first,
                               uint64_t *out_end) {
    first = first > offset ? first - offset : 0;
    end = end > offset ? end - offset : 0;
    *out_end = end < n ? end : n;
    *out_first = first < *out_end ? first : *out_end;
}
