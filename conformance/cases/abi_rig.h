/* SPDX-License-Identifier: Apache-2.0 */
/* abi_rig.h - a small trainer around the plugin under test: what a probe needs to bring an instance into any state.
 *
 * Four parameters: "a.weight" float32 [6, 5], "b.weight" bfloat16 [4, 8], "c.bias" float32 [5], "d.frozen" float32 [3].
 * Windows of two steps and two warm-up steps, so that after three steps a window is half full and channels are
 * selected. The host table's functions check on which thread and when they are called. */
#pragma once

#include <pthread.h>

#include "abi_probe.h"
#include "zf/ext/config.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/draft/matrix.h"
#include "zf/ext/draft/plan.h"
#include "zf/ext/draft/shards.h"
#include "zf/ext/residency.h"
#include "zf/ext/state.h"
#include "zf/ext/stats.h"
#include "zf/plugin.h"

enum {
    ABI_RIG_PARAMS = 4,
    ABI_RIG_TRAINED = 3,
    ABI_RIG_FROZEN = 3,
    ABI_RIG_MAX_ELEMS = 32,
    ABI_RIG_STEPS = 3 /* to state active */
};

/* NOTHING: not even the library is open; OPEN: no instance. */
typedef enum { ABI_NOTHING, ABI_OPEN, ABI_CREATED, ABI_BOUND, ABI_ACTIVE, ABI_QUIESCED, ABI_RELEASED } abi_stage_t;

typedef struct abi_host { /* the host table and what was seen of its use */
    zf_host_t table;
    abi_probe_t *probe;
    int is_inside; /* a hook runs, on this thread: */
    pthread_t thread;
    const void *extension; /* what get_extension returns */
    const struct abi_host *self;
} abi_host_t;

typedef struct abi_rig {
    abi_probe_t *probe;
    const zf_plugin_t *table;
    const zf_inspect_ext_t *inspect; /* NULL = the plugin has none */
    abi_host_t host;
    zf_instance_t *instance;
    abi_stage_t stage;                                      /* of the instance */
    uint64_t memory[ABI_RIG_PARAMS][ABI_RIG_MAX_ELEMS / 2]; /* visible values */
    uint64_t grads[ABI_RIG_PARAMS][ABI_RIG_MAX_ELEMS / 2];
    int64_t shapes[ABI_RIG_PARAMS][2];
    zf_tensor_t tensors[ABI_RIG_PARAMS];
    zf_tensor_t grad_tensors[ABI_RIG_PARAMS];
    zf_param_decl_t decls[ABI_RIG_PARAMS];
    zf_grad_item_t items[ABI_RIG_TRAINED];
    zf_group_hyper_t hyper;
    zf_step_args_t step;
    zf_stream_t stream;
    zf_create_args_t create;
    const void *bind_next;        /* chained to the arguments of bind_params */
    const zf_group_decl_t *group; /* the rule of all parameters; NULL: AdamW, unsaid */
    uint32_t ids[ABI_RIG_PARAMS];
    uint32_t n_steps;
    uint32_t seed;
    zf_error_t err; /* of the newest call below that has a status */
} abi_rig_t;

extern const char abi_rig_config[];

/* The entry of the library in a file, opened; NULL: it cannot be used (reported under NEGOTIATE). */
zf_plugin_negotiate_fn abi_open_entry(abi_probe_t *probe, const char *path);

/* Opens the library and negotiates. 0 = it cannot be used (reported under NEGOTIATE). */
int abi_rig_open(abi_rig_t *rig, abi_probe_t *probe, const char *path);

/* Describes parameters, gradients, hyper-parameters and configuration from the seed, 1 or 2; needs no plugin. */
void abi_rig_describe(abi_rig_t *rig, uint32_t seed);

/* A call of the rig's plugin: the host table's functions know that a hook runs, and on which thread. Its status. */
#define ABI_CALL(rig, call) (abi_host_enter(&(rig)->host), abi_host_left(&(rig)->host, (call)))

/* Single hooks with what the rig describes. bind_params: out may be NULL. deliver: n
 * gradients from number `first` on. step: the first n gradients, and the step; report may be NULL, else it is zeroed
 * before. quiesce: DRAIN or FLUSH. */
zf_status_t abi_rig_create(abi_rig_t *rig);
zf_status_t abi_rig_bind(abi_rig_t *rig, zf_bind_report_t *out);
zf_status_t abi_rig_deliver(abi_rig_t *rig, uint32_t first, uint32_t n);
zf_status_t abi_rig_step(abi_rig_t *rig, uint32_t n, zf_step_report_t *report);
zf_status_t abi_rig_export(abi_rig_t *rig, const zf_export_item_t *item);
zf_status_t abi_rig_quiesce(abi_rig_t *rig, int32_t mode);

/* One check, whether a call returned what it must: status and rig->err stand in the message. Returns is_ok. */
int abi_rig_check(abi_rig_t *rig, abi_rule_t rule, int is_ok, const char *call, zf_status_t st);

/* A bound instance that computes on a queue of zf.cpu/1, to be destroyed after it; NULL: there is none (skipped under
 * `rule`, or reported under VALID). */
zf_cpu_queue_t *abi_rig_queue(abi_rig_t *rig, abi_rule_t rule);

/* A new instance in the given state. 0 = a right call failed (reported under VALID). */
int abi_rig_start(abi_rig_t *rig, abi_stage_t stage);

/* Delivers gradients and steps. 0 = failed (reported under `rule`). */
int abi_rig_train(abi_rig_t *rig, unsigned n_steps, abi_rule_t rule);

/* Drains. 0 = failed (reported under VALID). */
int abi_rig_rest(abi_rig_t *rig);

/* Sets the gradients of the next step. */
void abi_rig_set_gradients(abi_rig_t *rig);

/* Destroys the instance, if any. */
void abi_rig_end(abi_rig_t *rig);

/* Every bit of the training state, in malloc'ed memory: visible values, and what zf.inspect/0 shows. NULL when the
 * instance has no parameters. describe says what byte i belongs to. */
unsigned char *abi_rig_state(abi_rig_t *rig, size_t *out_nbytes);
void abi_rig_describe_byte(const abi_rig_t *rig, size_t byte, char *out, size_t nbytes);

/* A hash of the state, for comparisons between processes; 0 = there is none. */
uint64_t abi_rig_hash(abi_rig_t *rig);

/* The same after n_steps of a trainer that is alone in a process of its own; 0 = it failed (reported). */
uint64_t abi_rig_hash_alone(abi_probe_t *probe, uint32_t seed, unsigned n_steps);

/* A probe: what is done with a rig in a state, in a child process of its own; what is left then is destroyed. */
typedef struct abi_row {
    const char *name; /* NULL ends a list */
    abi_stage_t stage;
    int is_of_engine; /* of plugins that train by plugin/SCHEDULE.md alone: they have zf.stats/1 and zf.state/1 */
    void (*fn)(abi_rig_t *rig);
} abi_row_t;
void abi_row_run(abi_probe_t *probe, const abi_row_t *row);

/* Marks that a hook runs on this thread, and that it has returned with a status, which is passed on. */
void abi_host_enter(abi_host_t *host);
zf_status_t abi_host_left(abi_host_t *host, zf_status_t st);
