/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/publisher.h - when a closed window's values become visible, and of residents those of other ranks: one
 * table for each way, chosen at bind. What closes in warm-up, or by FLUSH, becomes visible at once in all of them.
 *
 *   at_step         in the step that closes the window
 *   next_step       at the end of the step after it (publish_lag = 1)
 *   at_fetch        matrix by matrix, when the host fetches it (unfetched.h)
 *   gathered        at fetch, where each rank keeps a part of the state: the values travel meanwhile
 *                   (ranks/values_behind.h)
 *   gathered_later  at the end of the next step, there; residents' values in their own step */
#pragma once

#include "instance/run.h"

/* All of it is [hook], and none may be NULL. */
typedef struct zfi_publisher {
    /* A window has closed in this step, and its replay is enqueued. */
    void (*close)(zfi_publishing_t *publishing, const zfi_close_t *close);
    /* All windows of step t that close have closed. */
    void (*end)(zfi_publishing_t *publishing, uint64_t t);
    /* What the step before has closed becomes visible, at the end of a step or in FLUSH. */
    void (*due)(zfi_publishing_t *publishing);
    /* Values of matrices [first, end) that wait become visible; the others stay. */
    zf_status_t (*fetch)(zfi_publishing_t *publishing, uint32_t first, uint32_t end);
    /* All that still wait become visible: before a step's own visible writes, and where the instance comes to rest.
     * All visible values were checked before (guard.h). */
    zf_status_t (*rest)(zfi_publishing_t *publishing);
    /* The values of matrices [first, end) that wait are dropped: the host has written others. */
    zf_status_t (*drop)(zfi_publishing_t *publishing, uint32_t first, uint32_t end);
} zfi_publisher_t;

extern const zfi_publisher_t zfi_publisher_at_step, zfi_publisher_next_step, zfi_publisher_at_fetch,
    zfi_publisher_gathered, zfi_publisher_gathered_later;
