/* SPDX-License-Identifier: Apache-2.0 */
/* exact_run.h - a case that runs: oracle and plugin side by side, and what is done to both alike. */
#pragma once

#include "exact_case.h"
#include "exact_host.h"
#include "exact_result.h"

typedef struct zx_run {
    zx_case_t *c;
    zx_result_t *result;
    zx_host_t host;
    zo_t *oracle;
    zo_adamw_t *adamw;    /* laws 1 and 6, else NULL */
    zo_report_t *reports; /* [n_steps + 1], by step */
    zx_rng_t pauses;      /* of its own: what a case computes does not depend on them */
    /* law 3 (exact_state.h) */
    const char *state_path, *plugin; /* plugin: --plugin or NULL */
    uint32_t n_saves, resume;        /* resume: dry up to this save, which is loaded */
    uint64_t late;                   /* numbers of steps are higher by so much (exact_late.h) */
    int is_kept_open;                /* the save that is being loaded showed nothing */
    uint32_t forced_threads;
    int is_dry, is_over; /* is_over: another process has run the rest */
    /* exact_change.c */
    zx_rng_t changes;
    uint32_t n_rebinds;
    zx_param_t before[ZX_MAX_PARAMS]; /* what was declared before the change that is being made */
    uint32_t n_before, origins[ZX_MAX_PARAMS];
    zx_array_t *left[2 * ZX_MAX_PARAMS]; /* memory that the plugin was told of, and is no more */
    uint32_t n_left;
    /* exact_damage.c */
    zx_rng_t damages;
    int has_damaged, is_damaged_by_host; /* the host keeps the blobs */
    uint32_t damage;
    zx_rng_t questions; /* exact_ask.c */
    zx_rng_t releases;  /* exact_release.c */
    int is_released;
    zx_rng_t clips;
    uint32_t p_clip;   /* in percent, that a step may clip */
    zx_rng_t exports;  /* exact_compare.c */
    zx_rng_t wide;     /* exact_wide.c, the same on every rank */
    uint64_t *audited; /* [n_audited] steps that this process has audited */
    uint32_t n_audited;
    zx_rng_t more;   /* calls that are named, timed or ended in another way */
    zx_rng_t layers; /* exact_layers.c */
    zx_rng_t ranges; /* ..., the same on every rank */
    /* exact_edit.c: what the host wrote before a step that does not wait; NULL: nothing */
    void *edited;
    uint32_t edited_param;
} zx_run_t;

/* exact_compare.c */
void zx_run_look(zx_run_t *run, int is_everything);                   /* visible values, in stream order */
void zx_run_fetch(zx_run_t *run, const uint32_t *params, uint32_t n); /* on both sides; n = 0: all */
void zx_run_fetch_to_write(zx_run_t *run, uint32_t i);                /* where the host has to, or perhaps */
void zx_run_fetch_some(zx_run_t *run);                                /* with FETCH: any, in any order */
void zx_run_export(zx_run_t *run);
void zx_run_inspect(zx_run_t *run);       /* w, m, v, n, selected, importance */
void zx_run_compare_adamw(zx_run_t *run); /* law 6, after FLUSH */
void zx_run_check_report(zx_run_t *run, zf_status_t st, int is_wait, const zf_step_report_t *report);
void zx_run_check_counters(zx_run_t *run); /* of steps; at rest */
void zx_run_poll(zx_run_t *run);           /* late errors, and the newest finished report */
/* exact_edit.c: the host writes a trainable parameter unannounced, right before its step. Returns 1 where that step
 * must wait; after one that does not, zx_run_edited() has to come first. */
int zx_run_edit(zx_run_t *run, uint32_t param, const zo_hyper_t *groups);
void zx_run_edited(zx_run_t *run);
int zx_are_finite(const void *values, zo_dtype_t dtype, uint64_t n); /* exact_change.c */
/* [elements] What parameter i shows, with what no fp16 holds changed; or with one element changed, or a few, or all; to
 * be freed. */
void *zx_run_draw_sound(zx_run_t *run, uint32_t i);
void *zx_run_draw_edit(zx_run_t *run, uint32_t i);
/* exact_ask.c: on_overwrite = ask. Perhaps the host writes a parameter, or asks what it wrote. */
void zx_run_ask_point(zx_run_t *run);
void zx_run_ask_released(zx_run_t *run); /* ... the plugin's memory on the device is gone */
/* params_changed of all that it wrote, or held over a step: a checkpoint does not say what was held. */
void zx_run_announce_all(zx_run_t *run);
/* exact_release.c: zf.residency/1. Perhaps the plugin's device memory is released; then 1, and zx_run_resume() comes
 * before any other call. chance: in percent, of the cases that release at all. */
int zx_run_release(zx_run_t *run, uint32_t chance);
void zx_run_resume(zx_run_t *run);
void zx_run_release_point(zx_run_t *run); /* perhaps both, with an export or a look at the state in between */

/* exact_layers.c: calls that name some matrices of a stacked parameter ([L, out, in]). */
enum { ZX_MOST_RANGES = 4, ZX_MOST_ITEMS = ZX_MAX_PARAMS * ZX_MOST_RANGES };

/* The items by which a parameter is fetched: the whole, or, in some cases, ranges of its matrices in any order, of
 * which `keeps` percent are there; 0: always the whole. Returns how many, at most ZX_MOST_RANGES. */
uint32_t zx_run_draw_layers(zx_run_t *run, uint32_t param, uint32_t keeps, zf_param_item_t *out);

/* params_changed of one matrix of a parameter is refused while a window holds gradients for it. */
void zx_run_refuse_layers(zx_run_t *run);
/* In some cases the host writes some matrices of a parameter, for which no window holds gradients, and says so, on both
 * sides. */
void zx_run_change_layers(zx_run_t *run);
