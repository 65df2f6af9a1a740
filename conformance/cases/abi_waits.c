/* SPDX-License-Identifier: Apache-2.0 */
/* abi_waits.c - proof 5, deadlines: while an update rule of the host's does not return, hooks that do not wait return,
 * and what waits does so until its own deadline. A call that is still there after seconds is let go, and named. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi_probes.h"
#include "harness/clock.h"

static const char config[] = "[zenflow]\nmode = exact\n[host]\nthreads = 1\n",
                  with_deadline[] = "[zenflow]\nmode = exact\n[host]\nthreads = 1\ndeadline_ms = 300\n";
static const uint64_t patience_ns = 4000000000u, short_ns = 40000000u;
/* 34 s: of 32 bits nothing is left, of the milliseconds' nanoseconds a quarter of one. */
static const uint64_t long_ns = UINT64_C(1) << 35;
enum { LONG_MS = 34360 };

static struct stopped {
    sem_t gate;
    _Atomic int is_open, is_over, is_late; /* the watch had to open the gate */
    _Atomic uint64_t since_ns;             /* a call has begun then; 0: none */
    _Atomic uint64_t opens_ns;             /* when the watch opens the gate; 0: it does not */
} stopped;

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

static void open_gate(void) {
    atomic_store(&stopped.is_open, 1);
    for (int i = 0; i < 64; i++)
        sem_post(&stopped.gate);
}

static int32_t update(void *ctx, const zf_rule_update_t *u) {
    (void)ctx;
    while (!atomic_load(&stopped.is_open) && sem_wait(&stopped.gate) != 0) {
    }
    for (uint64_t i = 0; i < u->n_elems; i++)
        u->w[i] -= (float)u->lr * u->g[i];
    return 0;
}

static void *watch(void *unused) {
    (void)unused;
    while (!atomic_load(&stopped.is_over)) {
        uint64_t since = atomic_load(&stopped.since_ns), opens = atomic_load(&stopped.opens_ns);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        if (since && zc_now_ns() - since > patience_ns && !atomic_load(&stopped.is_open)) {
            atomic_store(&stopped.is_late, 1);
            open_gate();
        }
        if (opens && zc_now_ns() > opens && !atomic_load(&stopped.is_open))
            open_gate();
    }
    return NULL;
}

/* ---- calls beside it --------------------------------------------------------------------------------------------- */

static void begin(abi_rig_t *rig, const char *what) {
    abi_try(rig->probe, "%s while an update does not end", what);
    atomic_store(&stopped.since_ns, zc_now_ns());
}

/* It has returned before it was let go, with one of these. */
static int end(abi_rig_t *rig, const char *what, zf_status_t st, zf_status_t want) {
    atomic_store(&stopped.since_ns, 0);
    return abi_check(rig->probe, ABI_RULE_WAITS, !atomic_load(&stopped.is_late),
                     "%s does not return while an update does not end", what) &&
           abi_check(rig->probe, ABI_RULE_WAITS, st == want && (st != ZF_ERR_TIMEOUT || rig->err.retryable),
                     "%s while an update does not end: returned %d, not %d, retryable %d: %.200s", what, st, want,
                     rig->err.retryable, st < 0 ? rig->err.message : "");
}

/* n = 0: of all. */
static int fetch_at_once(abi_rig_t *rig, const zf_param_item_t *items, uint32_t n, zf_fence_t *out) {
    *out = (zf_fence_t){.struct_size = sizeof *out};
    begin(rig, "param_fetch");
    zf_status_t st =
        ABI_CALL(rig, rig->table->param_fetch(rig->instance, items, n, sizeof *items, &rig->stream, out, &rig->err));
    return end(rig, "param_fetch", st, ZF_OK) &&
           abi_check(rig->probe, ABI_RULE_WAITS, out->kind == ZF_FENCE_HOST_COUNTER,
                     "param_fetch says that values are there, and their update has not ended");
}

static int wait_in_vain(abi_rig_t *rig, const zf_fence_t *fence) {
    begin(rig, "fence_wait of no time");
    zf_status_t at_once = ABI_CALL(rig, rig->table->fence_wait(rig->instance, fence, 0, &rig->err));
    if (!end(rig, "fence_wait of no time", at_once, ZF_ERR_TIMEOUT))
        return 0;
    begin(rig, "fence_wait");
    uint64_t began = zc_now_ns();
    zf_status_t st = ABI_CALL(rig, rig->table->fence_wait(rig->instance, fence, short_ns, &rig->err));
    uint64_t took = zc_now_ns() - began;
    return end(rig, "fence_wait", st, ZF_ERR_TIMEOUT) &&
           abi_check(rig->probe, ABI_RULE_WAITS, took >= short_ns, "fence_wait of %llu ms took %llu us",
                     (unsigned long long)(short_ns / 1000000), (unsigned long long)(took / 1000));
}

static int quiesce_in_vain(abi_rig_t *rig, int32_t mode, const char *what) {
    const zf_quiesce_args_t args = {
        .struct_size = sizeof args, .mode = mode, .deadline_ms = (uint32_t)(short_ns / 1000000)};
    begin(rig, what);
    uint64_t began = zc_now_ns();
    zf_status_t st = ABI_CALL(rig, rig->table->quiesce(rig->instance, &args, &rig->err));
    uint64_t took = zc_now_ns() - began;
    return end(rig, what, st, ZF_ERR_TIMEOUT) &&
           abi_check(rig->probe, ABI_RULE_WAITS, took >= short_ns, "%s of %u ms took %llu us", what, args.deadline_ms,
                     (unsigned long long)(took / 1000));
}

/* Of a list of 17 the last is what does not end. */
static int fetch_many(abi_rig_t *rig, zf_fence_t *out) {
    enum { N = 17 };
    zf_param_item_t items[N];
    for (int i = 0; i < N; i++)
        items[i] = (zf_param_item_t){.struct_size = sizeof *items, .id = rig->ids[i < N - 1 ? ABI_RIG_FROZEN : 0]};
    return fetch_at_once(rig, items, N, out);
}

typedef struct waiter {
    abi_rig_t *rig;
    const zf_fence_t *fence;
    zf_status_t st;
} waiter_t;

static void *wait_long(void *arg) {
    waiter_t *w = arg;
    w->st = w->rig->table->fence_wait(w->rig->instance, w->fence, long_ns, NULL);
    return NULL;
}

/* Two calls that have half a minute, while the update ends. */
static void wait_for_end(abi_rig_t *rig, const zf_fence_t *fence) {
    const zf_quiesce_args_t args = {.struct_size = sizeof args, .mode = ZF_QUIESCE_DRAIN, .deadline_ms = LONG_MS};
    waiter_t waiter = {rig, fence, ZF_OK};
    pthread_t thread;
    atomic_store(&stopped.opens_ns, zc_now_ns() + short_ns);
    if (pthread_create(&thread, NULL, wait_long, &waiter) != 0)
        return;
    zf_status_t st = ABI_CALL(rig, rig->table->quiesce(rig->instance, &args, &rig->err));
    pthread_join(thread, NULL);
    abi_rig_check(rig, ABI_RULE_WAITS, st == ZF_OK, "quiesce(DRAIN) of half a minute, while an update ends,", st);
    abi_check(rig->probe, ABI_RULE_WAITS, waiter.st == ZF_OK,
              "fence_wait of half a minute, while an update ends, returned %d", waiter.st);
}

static int poll_at_once(abi_rig_t *rig) {
    begin(rig, "poll");
    zf_status_t st = ABI_CALL(rig, rig->table->poll(rig->instance, NULL, &rig->err));
    return end(rig, "poll", st >= 0 ? ZF_OK : st, ZF_OK);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static int bind(abi_rig_t *rig, const char *text) {
    static zf_rule_callback_t callback = {.struct_size = sizeof callback, .name = "stopped", .update = update};
    static zf_group_decl_t group = {.struct_size = sizeof group, .rule = ZF_RULE_CALLBACK, .callback = &callback};
    const zf_bind_args_t args = {.struct_size = sizeof args,
                                 .decls = rig->decls,
                                 .n_decls = ABI_RIG_PARAMS,
                                 .decl_size = sizeof *rig->decls,
                                 .groups = &group,
                                 .n_groups = 1,
                                 .group_size = sizeof group};
    rig->create.config_text = text;
    rig->create.config_text_nbytes = strlen(text);
    rig->create.flags |= ZF_CREATE_CAP_FETCH;
    zf_status_t st = abi_rig_create(rig);
    if (st >= 0)
        st = ABI_CALL(rig, rig->table->bind_params(rig->instance, &args, rig->ids, NULL, &rig->err));
    return abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "create or bind_params with a rule of the host's", st);
}

/* What each weight is after the step: w - lr * g, once. */
static void check_weights(abi_rig_t *rig, const float *before) {
    const float *w = (const float *)(const void *)rig->memory[0], *g = (const float *)(const void *)rig->grads[0];
    for (int i = 0; i < 30; i++)
        if (!abi_check(rig->probe, ABI_RULE_WAITS, w[i] == before[i] - (float)rig->hyper.lr * g[i],
                       "after calls that gave up, and FLUSH, weight %d is %.9g, not %.9g", i, (double)w[i],
                       (double)(before[i] - (float)rig->hyper.lr * g[i])))
            return;
}

static void look(abi_rig_t *rig) {
    zf_fence_t fence, of_many;
    float before[30];
    memcpy(before, rig->memory[0], sizeof before);
    rig->step.flags = 0;
    begin(rig, "step");
    zf_status_t st = abi_rig_step(rig, ABI_RIG_TRAINED, NULL);
    if (!end(rig, "step", st, ZF_SUBMITTED) || !fetch_at_once(rig, NULL, 0, &fence) || !poll_at_once(rig) ||
        !wait_in_vain(rig, &fence) || !fetch_many(rig, &of_many) || !wait_in_vain(rig, &of_many) ||
        !quiesce_in_vain(rig, ZF_QUIESCE_DRAIN, "quiesce(DRAIN) with a deadline") ||
        !quiesce_in_vain(rig, ZF_QUIESCE_FLUSH, "quiesce(FLUSH) with a deadline"))
        return;
    wait_for_end(rig, &fence);
    st = abi_rig_quiesce(rig, ZF_QUIESCE_FLUSH);
    if (abi_rig_check(rig, ABI_RULE_WAITS, st == ZF_OK, "quiesce(FLUSH), once the update has ended,", st))
        check_weights(rig, before);
}

/* A step that waits does so for as long as the configuration says. */
static void wait_in_step(abi_rig_t *rig) {
    begin(rig, "step that waits");
    uint64_t began = zc_now_ns();
    zf_status_t st = abi_rig_step(rig, ABI_RIG_TRAINED, NULL);
    uint64_t took = zc_now_ns() - began;
    atomic_store(&stopped.since_ns, 0);
    abi_check(rig->probe, ABI_RULE_WAITS, !atomic_load(&stopped.is_late) && st == ZF_ERR_TIMEOUT && took >= 300000000u,
              "with deadline_ms = 300 a step whose update does not end returned %d after %llu us: %.200s", st,
              (unsigned long long)(took / 1000), st < 0 ? rig->err.message : "");
}

static void run_stopped(abi_rig_t *rig, const char *text, void (*fn)(abi_rig_t *)) {
    pthread_t thread;
    sem_init(&stopped.gate, 0, 0);
    if (pthread_create(&thread, NULL, watch, NULL) != 0)
        return;
    if (bind(rig, text))
        fn(rig);
    open_gate();
    abi_rig_end(rig);
    atomic_store(&stopped.is_over, 1);
    pthread_join(thread, NULL);
}

static void probe_stopped(abi_rig_t *rig) { run_stopped(rig, config, look); }

static void probe_deadline(abi_rig_t *rig) { run_stopped(rig, with_deadline, wait_in_step); }

const abi_row_t abi_waits_rows[] = {{"an update that does not end", ABI_OPEN, 1, probe_stopped},
                                    {"a deadline of the configuration", ABI_OPEN, 1, probe_deadline},
                                    {NULL, ABI_NOTHING, 0, NULL}};
