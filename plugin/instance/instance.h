/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/instance.h - the handle behind the ABI: what hooks alone need, the engine (engine.h), and the run of
 * the bound parameters (run.h). Only plugin/hooks includes this file. */
#pragma once

#include "instance/run.h"

enum { ZFI_MOST_STREAMS = 64 }; /* streams of the host's that one instance may be used with */
enum { ZFI_STATE_CREATED, ZFI_STATE_BOUND, ZFI_STATE_ACTIVE, ZFI_STATE_QUIESCED, ZFI_STATE_RELEASED };
enum { /* bits of zfi_hook_begin */
       ZFI_IN_CREATED = 1 << ZFI_STATE_CREATED,
       ZFI_IN_TRAINING = 1 << ZFI_STATE_BOUND | 1 << ZFI_STATE_ACTIVE | 1 << ZFI_STATE_QUIESCED,
       ZFI_IN_RELEASED = 1 << ZFI_STATE_RELEASED
};

/* A record that zf.stats/1 keeps of each step (hooks/step_record.h). */
typedef struct zfi_step_kept {
    zf_step_record_t record;
    uint64_t grown[ZFI_N_COUNTERS]; /* what each counter grew by */
} zfi_step_kept_t;

enum { ZFI_STEP_RECORDS = 128 };
typedef struct zfi_step_records {
    uint64_t counted[ZFI_N_COUNTERS]; /* [hook] by the records so far */
    uint64_t newest_ns;               /* when the newest record was made */
    pthread_mutex_t lock;             /* guards the rest against readers; hooks alone write: */
    uint64_t newest, finished;
    zfi_step_kept_t rows[ZFI_STEP_RECORDS]; /* step s: row s % ZFI_STEP_RECORDS */
} zfi_step_records_t;

struct zf_instance {
    uint64_t magic;
    const unsigned char *alive;               /* 1; a page that fork() wipes in the child */
    _Atomic int is_busy;                      /* a hook runs */
    int cancel_state;                         /* of its thread, given back at its end */
    const char *hook;                         /* which hook runs, as a trace shows it */
    uint64_t hook_began_ns;                   /* its begin; 0: it is not traced */
    struct zfi_claims *claims;                /* the memory that is trained (hooks/claims.h) */
    int has_warned_missing, has_warned_empty; /* of steps without a gradient, or without any */
    zfi_step_records_t step_records;
    int state;
    int has_said_sync;    /* that a save's mount does not sync directories */
    int closes_at_resume; /* a save while memory was released: its windows close with resume */
    zfi_engine_t engine;
    zfi_run_t *run; /* NULL until parameters are bound; a load or a second bind_params exchanges it */
    zfi_stream_t *host_streams[ZFI_MOST_STREAMS]; /* that have held work of ours: errors and destroy wait for them */
    uint32_t n_host_streams;
    uint64_t n_calls; /* of grads_ready */
};

#define ZFI_INSTANCE_MAGIC 0x7A66696E7374ull

/* [any-thread] An instance argument: one of this plugin's; and not a parent process's. */
zf_status_t zfi_instance_check(const zf_instance_t *inst, const char *origin, zf_error_t *err);
zf_status_t zfi_instance_check_process(const zf_instance_t *inst, const char *origin, zf_error_t *err);
/* [hook] Begin and end of every hook: validity, fork, re-entrance, poison, state bits (ZFI_IN_...). Between
 * them the thread cannot be cancelled: the instance would stay busy for ever.
 * end returns what the hook does: st, or the error that has ended the instance, which every wait ends early for. */
zf_status_t zfi_hook_begin(zf_instance_t *inst, unsigned states, const char *origin, zf_error_t *err);
zf_status_t zfi_hook_end(zf_instance_t *inst, zf_status_t st, zf_error_t *err);
/* [hook] What a trace shows of it ends here, not at its end. */
void zfi_hook_traced(zf_instance_t *inst);

/* [hook] st != 0 came from below without a record: fills the caller's with the error that ended the instance, or with
 * this text. Returns the status that the record has; 0 for 0. */
zf_status_t zfi_hook_failed(zf_instance_t *inst, zf_status_t st, const char *origin, const char *what, zf_error_t *err);
