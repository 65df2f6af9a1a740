/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/timelines.h - the one table of timelines: everything that orders threads (timeline.h says how).
 *
 * Threads. The host's thread runs hooks: it keeps the clocks and pushes commands, and never computes. Commands run on
 * streams, in order:
 *   device   the host's stream (or, for HOST_THREAD hosts, a queue of our own): statistics, norm, run-ahead, publish
 *   down     device -> host copies: gradients into slots, step scalars, importance records
 *   up       host -> device copies: published values
 *   enter    the lists and the state of entering channels, host -> device; fed by the control thread
 * The control thread makes choices, workers replay closed windows.
 *
 * Every wait has a deadline ([host] deadline_ms) but those for publish_due, which last as long as the host does
 * something else between two steps. A waiting graph without cycles: device waits for down and recorded (t-2), maps,
 * entered and up; down for device, jobs (recycled pieces), control (t-4) and, between its signal of t and the next
 * gradients, for counted; up for jobs and merged; enter for device (the step of the choice); workers for down, up
 * (their ring) and host_sel; control for down, recorded, jobs, shown and enter_done; it counts the record of t after
 * jobs and shown of t. An early replay (replay/early.h) waits for batches, on several ranks for exchanged, and for
 * down (t-1), a slice at a time: what closes meanwhile goes before it. Each of these refers to work that was enqueued
 * before. Of what is chosen, what enters is read from w, m, v before host_sel, so the next window may be replayed after
 * it; a decision for t is made from records <= t-2, and a hook waits for it. The communication threads (ranks/ranks.h)
 * wait for collected, for jobs where sums land in recycled pieces (ranks/landing.h), and for packed, the device for
 * exchanged before the statistics of t, and sharded before its scalars and its run-ahead, or before it writes a buffer
 * again that another bucket had (ranks/buffers.h), and for shared after the publishes of t, or at a fetch
 * (ranks/values_behind.h): there, up waits for taken, which the device signals behind all fetches of the closes
 * before, and for filled. The control threads of several ranks wait for each other (ranks/importance.h), at every step
 * in the same places. */
#pragma once

#include "base/timeline.h"

/* X(name, what its value counts, writer, reset rule); the comment says what has happened when the value is reached.
 *
 * Counted: BATCH number + 1; STEP t; JOB chunk job q + 1; PUBLICATION of its values, q + 1; RECORD: parts of importance
 * records, number + 1; BLOCK of entering state e + 1; EXCHANGE of a bucket's gradients among ranks, or of what each
 * found in its part of them; SHARE of a bucket's values.
 *
 * Reset: what a load sets it to (state/replace.c), as if the run had come to its step t by itself. BY_STEP: t; BY_NEXT:
 * t + 1; AHEAD: t + 2; BY_JOB: the jobs, and publications, that are over; BY_RECORD: the parts of the records of t
 * steps; KEPT: it counts on over loads. */
#define ZFI_TIMELINES(X)                                                                                               \
    X(shipped, BATCH, DEVICE, KEPT)           /* its gradients' statistics are taken */                                \
    X(batches, BATCH, DOWN, KEPT)             /* its gradients are in slots: the host's buffers are free */            \
    X(finished, STEP, DEVICE, BY_STEP)        /* applied, norm and s of t are known */                                 \
    X(down, STEP, DOWN, BY_STEP)              /* slots and scalars of t are in host memory */                          \
    X(recorded, RECORD, DOWN, BY_RECORD)      /* this part of an importance record is, too */                          \
    X(counted, RECORD, CONTROL, BY_RECORD)    /* it is in the importance sums: its memory is free */                   \
    X(jobs, JOB, WORKERS, BY_JOB)             /* all chunk jobs <= q are replayed */                                   \
    X(up, PUBLICATION, UP, BY_JOB)            /* its values are in the device's ring */                                \
    X(merged, PUBLICATION, DEVICE, BY_JOB)    /* they are visible; the ring's piece is free */                         \
    X(maps, STEP, ENTER, BY_STEP)             /* the device's maps follow the choices of step t */                     \
    X(host_sel, STEP, CONTROL, BY_STEP)       /* the host's maps follow, w, m, v of what enters are read */            \
    X(enter_done, BLOCK, ENTER, KEPT)         /* it is in the compact state; its staging is free */                    \
    X(entered, STEP, ENTER, BY_STEP)          /* the compact state holds what was chosen at t */                       \
    X(shown, STEP, DEVICE, BY_NEXT)           /* channels chosen at t-1 are visible */                                 \
    X(control, STEP, CONTROL, BY_STEP)        /* everything of t is done there, its record is counted */               \
    X(stepped, STEP, DEVICE, BY_STEP)         /* visible writes of t are done, its report is written */                \
    X(publish_due, PUBLICATION, HOST, BY_JOB) /* it is on the device stream */                                         \
    X(used, STEP, DEVICE, BY_STEP)            /* gradients that stay on the device have been read */                   \
    X(decided, STEP, CONTROL, AHEAD)          /* automatic interval: which windows may close at t */                   \
    X(collected, EXCHANGE, DEVICE, KEPT)      /* several ranks: what is exchanged is in its memory */                  \
    X(exchanged, EXCHANGE, RANKS, KEPT)       /* what comes of it is there, too */                                     \
    X(packed, SHARE, DEVICE, KEPT)            /* this rank's values are in a bucket's value memory; UP */              \
    X(shared, SHARE, VALUES, KEPT)            /* all ranks' values are there */                                        \
    X(taken, SHARE, DEVICE, KEPT)             /* they are in what the model reads: that memory is free */              \
    X(filled, STEP, DEVICE, BY_STEP)          /* residents' values of t are in the value memory, for a fetch */

typedef struct zfi_timelines {
#define ZFI_MEMBER(name, counts, writer, reset) zfi_timeline_t name;
    ZFI_TIMELINES(ZFI_MEMBER)
#undef ZFI_MEMBER
} zfi_timelines_t;
