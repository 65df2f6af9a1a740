/* SPDX-License-Identifier: Apache-2.0 */
/* mock.h - a small plugin that keeps every rule of the ABI, but for the one that it is built to break.
 *
 * It trains with plain gradient descent with momentum, on the calling thread or, given a queue, in jobs there. Its only
 * purpose is to prove that the checker sees each broken rule and blames no other. */
#ifndef ZFC_MOCK_H
#define ZFC_MOCK_H

#include <pthread.h>
#include <stddef.h>

#include "zf/plugin.h"

enum {
#define MOCK(name, broken, what) BREAK_##name,
#include "mocks.def"
#undef MOCK
    N_MOCKS
};

/* Most mocks share their code, and what they break is linked to it (mock_which.c). Where the code itself must differ -
 * what it imports, what the compiler lays out - a mock is compiled alone with MOCK_BREAKS=BREAK_<name>: those rules ask
 * BREAKS_ALONE. */
#ifdef MOCK_BREAKS
#define BREAKS(name) (MOCK_BREAKS == BREAK_##name)
#define BREAKS_ALONE(name) BREAKS(name)
#else
extern const int mock_breaks;
#define BREAKS(name) (mock_breaks == BREAK_##name)
#define BREAKS_ALONE(name) 0
#endif

#ifdef ZF_APPENDED /* a later minor: every struct is 8 bytes longer than in the oldest that is served */
enum { MOCK_APPENDED_NBYTES = 8 };
#else
enum { MOCK_APPENDED_NBYTES = 0 };
#endif

enum { MOCK_MAX_PARAMS = 8, MOCK_MAX_ELEMS = 64, MOCK_MAX_JOBS = 64 };

typedef struct mock_param {
    char name[256];
    uint32_t flags;
    uint32_t n_elems;
    int32_t ndim;
    int64_t shape[ZF_MAX_NDIM];
    int is_bf16;
    void *visible;
    float w[MOCK_MAX_ELEMS], m[MOCK_MAX_ELEMS], grad[MOCK_MAX_ELEMS];
    uint32_t n;
    int has_grad;
    uint64_t n_batch;
    int habit; /* 1: had a gradient in every step so far, 2: not in all */
} mock_param_t;

typedef struct mock_job { /* one delivery, or one step; run in stream order */
    zf_instance_t *instance;
    uint32_t n; /* delivered gradients; 0 = a step */
    uint32_t ids[MOCK_MAX_PARAMS];
    const void *data[MOCK_MAX_PARAMS];
    float lr;
    zf_step_report_t report;
} mock_job_t;

struct zf_instance {
    zf_instance_t *next; /* of all bound ones */
    zf_host_t host;
    const zf_host_t *given_host;      /* of the mock that keeps it */
    int is_bound, is_dead, has_begun; /* a gradient of the coming step was delivered */
    float carry;                      /* of the mock that keeps parts of a refused delivery */
    uint32_t n_params;
    mock_param_t params[MOCK_MAX_PARAMS];
    uint64_t n_steps;
    pthread_mutex_t lock; /* guards last, n_pending */
    pthread_cond_t changed;
    zf_step_report_t last;
    uint32_t n_pending;
    uint64_t n_jobs;
    mock_job_t jobs[MOCK_MAX_JOBS]; /* used in turns: so many may wait */
};

zf_status_t mock_fail(zf_error_t *err, zf_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A failure names this parameter. Returns st. */
zf_status_t mock_blame(zf_error_t *err, zf_status_t st, uint32_t param);

/* Size rules. */
zf_status_t mock_read(void *out, const void *given, uint32_t size, const char *name, zf_error_t *err);
zf_status_t mock_read_item(void *out, const void *items, uint32_t i, uint32_t elem_size, uint32_t size,
                           const char *name, zf_error_t *err);
zf_status_t mock_check_array(const void *items, uint32_t n, uint32_t *elem_size, uint32_t size, const char *name,
                             zf_error_t *err);
zf_status_t mock_check_out(const void *out, const char *name, zf_error_t *err);
void mock_write(void *out, const void *from, uint32_t size);

/* Checks. */
zf_status_t mock_check_reserved(uint32_t reserved0, const char *name, zf_error_t *err);
zf_status_t mock_check_chain(const void *next, const char *name, zf_error_t *err);
zf_status_t mock_check_group(const zf_bind_args_t *args, uint32_t i, zf_error_t *err);
zf_status_t mock_check_config(const zf_create_args_t *args, zf_error_t *err);
zf_status_t mock_check_stream(const zf_stream_t *given, zf_stream_t *out, zf_error_t *err);
zf_status_t mock_check_tensor(const zf_tensor_t *given, const char *name, zf_tensor_t *out, zf_error_t *err);
zf_status_t mock_check_hyper(const zf_step_args_t *args, zf_group_hyper_t *out, zf_error_t *err);

/* Ways to break rules. */
void mock_misbehave_in_negotiate(void);
void mock_misbehave_in_create(const zf_host_t *host);
void mock_misbehave_in_step(zf_instance_t *instance);
float mock_learning_rate(double lr);

#endif
