/* SPDX-License-Identifier: Apache-2.0 */
/* exact_result.h - what a case found: how many values were compared under each law, and the first that differed.
 * Written by the host's thread and by the queue's; one mutex guards it. */
#pragma once

#include <pthread.h>
#include <stdint.h>

enum { ZX_N_LAWS = 6 };

/* What a case drew of the host's timing. With FETCH: a parameter that was fetched while values of a closed window
 * waited for that, one that was not before the next step, a moment that the host let pass before a fetch; with a queue,
 * a gradient that came late on it. bind_params again: the same set in other memory, another set. A checkpoint loaded
 * into another cut, another configuration, another order or set of parameters; a load that had to fail. on_overwrite =
 * ask: questions, parameters of which the answer was that the host had written them, parameters that were adopted by
 * element. Instances of a host that flushes denormals. Ranges of the matrices of a stacked parameter that were fetched,
 * or changed. Releases of the device's memory. Steps that were done, those of them that clipped, and those skipped. */
enum {
    ZX_FETCHED,
    ZX_MISSED,
    ZX_PAUSED,
    ZX_LATE,
    ZX_MOVED,
    ZX_OTHER_SET,
    ZX_OTHER_CUT,
    ZX_OTHER_CONFIG,
    ZX_OTHER_ORDER,
    ZX_FAILED_LOAD,
    ZX_ASKED,
    ZX_WRITTEN,
    ZX_ADOPTED,
    ZX_FLUSHING,
    ZX_LAYERS,
    ZX_RELEASED,
    ZX_STEPS,
    ZX_CLIPPED,
    ZX_SKIPPED,
    ZX_N_DRAWN
};

typedef struct zx_result {
    pthread_mutex_t lock;
    int is_bad;
    int is_muted; /* nothing counts: the plugin is dry (exact_state.h) */
    int is_told;  /* the failure was printed by a process started for the rest of the case */
    int law;      /* broken, where is_bad */
    char text[1024];
    uint64_t n_values[ZX_N_LAWS + 1]; /* compared, by law */
    uint64_t n_drawn[ZX_N_DRAWN];
} zx_result_t;

typedef struct zx_where { /* of a value */
    int law;
    const char *what;  /* "visible", "export", "m", ... */
    const char *param; /* or NULL */
    uint64_t step;
    uint64_t element; /* or UINT64_MAX */
} zx_where_t;

void zx_result_init(zx_result_t *r);
void zx_result_free(zx_result_t *r);
int zx_is_bad(zx_result_t *r);
void zx_count(zx_result_t *r, int law, uint64_t n_values);
void zx_count_drawn(zx_result_t *r, int what, uint64_t n);
/* The first call counts, later ones are dropped. */
void zx_differs(zx_result_t *r, const zx_where_t *where, uint64_t expected, uint64_t found, unsigned n_digits);
void zx_fails(zx_result_t *r, const zx_where_t *where, const char *format, ...) __attribute__((format(printf, 3, 4)));
