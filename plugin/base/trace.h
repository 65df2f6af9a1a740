/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/trace.h - what each thread of an instance did and when, for some steps, as a file that trace viewers
 * open.
 *
 * Model. An event is a name, begin, end and up to two numbers; it belongs to the lane of the thread that recorded it.
 * Events lie in an array that is mapped when the trace is opened, so that recording allocates nothing and takes no
 * lock; what finds no room is counted. A trace records from the end of the step before its first one until that of its
 * last one, and is written then, or when the instance ends before.
 *
 * The file is in the Trace Event Format: a JSON object with "traceEvents", complete events ("ph": "X") in microseconds
 * of CLOCK_MONOTONIC, one thread id per lane, named and sorted by metadata events. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/timeline.h"

typedef struct zfi_trace zfi_trace_t;

/* The numbers of an event: the values of two numbers; name NULL: none. Names are literals. */
typedef struct zfi_trace_number {
    const char *name;
    uint64_t value;
} zfi_trace_number_t;

/* The steps that are traced, and the file. */
typedef struct zfi_trace_wish {
    const char *file;
    uint64_t first_step, n_steps; /* 0: all from there on */
    uint32_t rank, n_ranks;       /* of several ranks each has a file of its own: NAME.rank3.json */
    uint64_t most_events;         /* that are kept; 0: a million */
} zfi_trace_wish_t;

/* [control] Creates the file: NAME.2.json and so on where another instance still writes to it. What is there stays
 * until the trace is written. ZF_ERR_STORAGE or ZF_ERR_MEMORY, nothing left behind. */
zf_status_t zfi_trace_open(const zfi_trace_wish_t *wish, zfi_trace_t **out, zf_error_t *err);
const char *zfi_trace_file(const zfi_trace_t *trace);

/* [control] Writes what was not written yet, frees. No thread records any more. NULL is legal. The system's error, or
 * 0, as write. */
int zfi_trace_close(zfi_trace_t *trace);

/* [control] Nothing is to be written any more. */
void zfi_trace_forget(zfi_trace_t *trace);

/* [hook] The next step will be t. Returns 1 once: the trace is complete and can be written. */
int zfi_trace_step(zfi_trace_t *trace, uint64_t t);

/* [any-thread] Writes, once; events that are still going on are left out. counted: a JSON value that the file tells of
 * the steps, or NULL. */
int zfi_trace_write(zfi_trace_t *trace, const char *counted);

/* [any-thread] The two ends of an event: begin() is 0 where nothing is recorded, and end() does nothing then. */
uint64_t zfi_trace_begin(const zfi_trace_t *trace);
void zfi_trace_end(zfi_trace_t *trace, uint64_t began_ns, const char *name, zfi_trace_number_t a, zfi_trace_number_t b);
/* The same of a wait, for a timeline (its name and the value) or a mark of a stream. */
void zfi_trace_waited(zfi_trace_t *trace, uint64_t began_ns, const char *what, uint64_t value);

#define ZFI_TRACE_NONE ((zfi_trace_number_t){0})
