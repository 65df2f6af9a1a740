/* SPDX-License-Identifier: Apache-2.0 */
/* exact_result.h - what a case found: how many values were compared under each law, and the first that differed.
 * Written by the host's thread and by the queue's; one mutex guards it. */
#pragma once

#include <pthread.h>
#include <stdint.h>

enum { ZX_N_LAWS = 6 };

/* X(enumerator, what it is called at the end of a run): what a case drew of the host's timing and manners. */
#define ZX_DRAWN(X)                                                                                                    \
    X(FETCHED, "fetches that values of a closed window waited for")                                                    \
    X(MISSED, "such values that were not fetched before the next step")                                                \
    X(PAUSED, "moments that passed before a fetch")                                                                    \
    X(LATE, "gradients that came late on a queue")                                                                     \
    X(MOVED, "calls of bind_params again with the same set in other memory")                                           \
    X(OTHER_SET, "with another set")                                                                                   \
    X(OTHER_CUT, "loads into another cut")                                                                             \
    X(OTHER_CONFIG, "into another configuration")                                                                      \
    X(OTHER_ORDER, "into another order or set of parameters")                                                          \
    X(FAILED_LOAD, "loads that had to fail")                                                                           \
    X(ASKED, "questions what the host had written")                                                                    \
    X(WRITTEN, "parameters that it had")                                                                               \
    X(ADOPTED, "adopted by element")                                                                                   \
    X(LATE_STEPS, "checkpoints of a late step")                                                                        \
    X(FLUSHING, "instances of a host that flushes denormals")                                                          \
    X(LAYERS, "fetches and changes of some matrices of a parameter")                                                   \
    X(RELEASED, "releases of the device's memory")                                                                     \
    X(AUTO, "instances with room on the device for one MiB of state, as auto finds it")                                \
    X(STEPS, "steps")                                                                                                  \
    X(CLIPPED, "of them clipped")                                                                                      \
    X(SKIPPED, "more were skipped")

enum {
#define ZX_DRAWN_ENUM(id, text) ZX_##id,
    ZX_DRAWN(ZX_DRAWN_ENUM)
#undef ZX_DRAWN_ENUM
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
