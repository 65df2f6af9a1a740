/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/rig.h - a small host: parameters, gradients that depend on (parameter, step) alone, and one instance
 * reached through the public table. Any failure of a call that is not expected to fail ends the test. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "serial.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/draft/plan.h"
#include "zf/ext/stats.h"
#include "zf/plugin.h"

enum { ZT_MAX_PARAMS = 4096, ZT_MAX_GROUPS = 3 };

/* What a test declares; rows x cols, or one axis where cols = 0. */
typedef struct zt_shape {
    int64_t rows, cols;
    int is_bf16;
    uint32_t flags; /* ZF_PARAM_... */
    uint32_t group;
    int32_t channels;
    int32_t home; /* ZF_HOME_... */
} zt_shape_t;

typedef struct zt_param {
    char name[32];
    zt_shape_t shape;
    int64_t sizes[2];
    size_t n_elems, elem_nbytes;
    unsigned char *visible, *grad; /* host memory; grad is what is delivered */
    zf_tensor_t tensor, grad_tensor;
    uint32_t id;
    zt_serial_t serial;
    float *grad_values; /* the gradient as the engine sees it */
} zt_param_t;

typedef struct zt_rig {
    const zf_plugin_t *zf;
    const zf_cpu_ext_t *cpu;
    const zf_stats_ext_t *stats;
    zf_instance_t *inst;
    zf_cpu_queue_t *queue; /* NULL: host thread */
    zf_stream_t stream;
    zf_host_t host;
    zf_bind_report_t layout;
    zf_error_t err;
    uint32_t n_params;
    zt_param_t *params;
    zf_param_decl_t *decls;
    zf_group_hyper_t groups[ZT_MAX_GROUPS];
    double unscale;
    zf_group_decl_t rules[ZT_MAX_GROUPS]; /* the serial optimizer is AdamW */
    const void *bind_next;                /* chained to the arguments of bind_params */
    uint32_t norm_group;
    uint64_t step; /* submitted */
} zt_rig_t;

/* The table of the plugin, linked statically. */
const zf_plugin_t *zt_table(void);

/* Parameters with their own values, a serial AdamW beside each; hyper-parameters of three groups. No instance yet. */
void zt_rig_start(zt_rig_t *rig, const zt_shape_t *shapes, uint32_t n);
/* Destroys the instance, the queue and the memory. */
void zt_rig_end(zt_rig_t *rig);

/* A CPU queue instead of the host's thread; before zt_rig_create. */
void zt_rig_use_queue(zt_rig_t *rig);
void zt_rig_create(zt_rig_t *rig, const char *config, uint32_t flags);
zf_status_t zt_rig_try_create(zt_rig_t *rig, const char *config, uint32_t flags);
void zt_rig_bind(zt_rig_t *rig);
zf_status_t zt_rig_try_bind(zt_rig_t *rig);
/* What bind_params is given. */
zf_bind_args_t zt_rig_bind_args(const zt_rig_t *rig);
/* The plan of zf.plan/0 for it, as this rank of so many. */
zf_plan_t zt_rig_plan(const zt_rig_t *rig, const char *config, uint32_t flags, uint32_t rank, uint32_t n_ranks);
/* All groups have this rule; callback: of ZF_RULE_CALLBACK. */
void zt_rig_use_rule(zt_rig_t *rig, uint32_t rule, const zf_rule_callback_t *callback);
/* create and bind */
void zt_rig_open(zt_rig_t *rig, const char *config, uint32_t flags);
/* start and open; with this flag beside those of create, on a queue */
enum { ZT_ON_QUEUE = 1 << 30 };
void zt_rig_make(zt_rig_t *rig, const zt_shape_t *shapes, uint32_t n, const char *config, uint32_t flags);

/* Fills the parameter's gradient of a step: grad (rounded to its type) and grad_values. */
void zt_rig_fill_grad(zt_rig_t *rig, uint32_t param, uint64_t step);
/* One delivery, TOTAL | LAST unless flags say otherwise; of all of it, or of a range of its matrices. */
zf_status_t zt_rig_deliver(zt_rig_t *rig, uint32_t param, uint32_t flags, zf_fence_t *fence);
zf_status_t zt_rig_deliver_range(zt_rig_t *rig, uint32_t param, uint32_t first, uint32_t n, uint32_t flags,
                                 zf_fence_t *fence);
/* Fills and delivers every parameter's gradient of the next step, up to the first error; the fence is of the last. */
zf_status_t zt_rig_deliver_all(zt_rig_t *rig, zf_fence_t *fence);
zf_status_t zt_rig_submit(zt_rig_t *rig, uint32_t flags, zf_step_report_t *report);
/* What zt_rig_submit() submits, and step is given. */
zf_step_args_t zt_rig_step_args(zt_rig_t *rig, uint32_t flags);
/* What zt_rig_submit() would submit now. */
zf_status_t zt_rig_announce(zt_rig_t *rig);
/* Delivers all, submits, and updates the serial AdamW. Ends the test on an error. */
void zt_rig_step(zt_rig_t *rig);
void zt_rig_steps(zt_rig_t *rig, int n);
/* The same up to the first error, which it returns. */
zf_status_t zt_rig_try_step(zt_rig_t *rig);
/* The newest step is reported: what it writes itself is in place. Replays may go on. */
void zt_rig_finish_step(zt_rig_t *rig);
/* DRAIN or FLUSH. */
zf_status_t zt_quiesce(zt_rig_t *rig, int32_t mode);
/* params_changed and param_fetch of one parameter. */
zf_status_t zt_changed(zt_rig_t *rig, uint32_t id, uint32_t flags);
zf_status_t zt_fetch(zt_rig_t *rig, uint32_t id, zf_fence_t *fence);
/* Waits for a fence: ends the test after a minute. */
void zt_rig_wait(zt_rig_t *rig, const zf_fence_t *fence);

/* Everything that was enqueued on the host's queue has run. */
void zt_rig_sync(zt_rig_t *rig);
/* The host's queue stands still from here on, until the gate is open. There is one gate in a process. */
void zt_rig_block(zt_rig_t *rig);
void zt_gate_close(void);
void zt_gate_open(void);
/* Stands still while the gate is closed: for queue_launch. */
void zt_gate_pass(void *unused);
/* Of one parameter: its type, an element that it shows, a value as it would show it; its bytes, whether it shows these,
 * its masters. */
zo_dtype_t zt_dtype(const zt_param_t *param);
float zt_visible(const zt_param_t *param, size_t i);
float zt_rounded(const zt_param_t *param, float value);
size_t zt_nbytes(const zt_param_t *param);
int zt_shows(const zt_param_t *param, const void *values);
zf_status_t zt_try_export(zt_rig_t *rig, uint32_t param, float *out);
/* The counter of zf.stats/1 that has this name. */
uint64_t zt_rig_counter(const zt_rig_t *rig, const char *name);
/* The parts of the memory plan (instance/run_memory.h). */
const struct zfi_layout *zt_rig_parts(const zt_rig_t *rig);
/* FLUSH; export and the visible values equal the serial AdamW bit for bit. */
void zt_rig_check_flushed(zt_rig_t *rig);
void zt_rig_end_flushed(zt_rig_t *rig); /* ... and the rig ends */
/* The visible values do. */
void zt_rig_check_visible(const zt_rig_t *rig);
/* export equals the serial AdamW bit for bit; nothing is flushed. */
void zt_rig_check_export(zt_rig_t *rig);
/* Fills tensor for contiguous memory. */
void zt_tensor(zf_tensor_t *out, void *data, const int64_t *sizes, int ndim, int is_bf16);

/* The host's warnings from create on: those that have these words (NULL: all) are counted and kept, one a line. */
typedef struct zt_log {
    const char *words;
    int n;
    char text[8192];
} zt_log_t;
void zt_rig_listen(zt_rig_t *rig, zt_log_t *log, const char *words);

/* A call returned st, and was to be refused so, with these words in its message. */
void zt_refused(const zf_error_t *err, zf_status_t st, zf_status_t want, const char *words);
/* The words are in the text. */
void zt_contains(const char *text, const char *words);
/* Small numbers from a counter-based hash: the same on every machine. */
uint64_t zt_hash(uint64_t x);

#define ZT_OK(rig, call)                                                                                               \
    do {                                                                                                               \
        zf_status_t zt_st_ = (call);                                                                                   \
        ck_assert_msg(zt_st_ >= 0, "%s: %d (%s: %s)", #call, zt_st_, (rig)->err.origin, (rig)->err.message);           \
    } while (0)
