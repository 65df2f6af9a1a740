/* SPDX-License-Identifier: Apache-2.0 */
/* abi_layers.c - proof 5, a host with a stacked parameter [3, 2, 5] that fetches one matrix after the other, beside one
 * that fetches all: the same values. The first ends by destroy with FLUSH, the other by quiesce(FLUSH). */
#include <string.h>

#include "abi_probes.h"
#include "abi_rig.h"
#include "zf/ext/cpu.h"

enum { LAYERS = 3, STEPS = 7, LAYER_ELEMS = 10 };

static const int64_t stacked[3] = {LAYERS, 2, 5};

static int open_stacked(abi_rig_t *rig, abi_probe_t *probe) {
    if (!abi_rig_open(rig, probe, probe->env->plugin))
        return 0;
    rig->create.flags = ZF_CREATE_CAP_FETCH;
    rig->tensors[0].dl.ndim = rig->grad_tensors[0].dl.ndim = 3;
    rig->tensors[0].dl.shape = rig->grad_tensors[0].dl.shape = stacked;
    rig->decls[0].n_batch_axes = 1;
    return abi_rig_start(rig, ABI_BOUND);
}

/* items NULL: all parameters. */
static int fetch(abi_rig_t *rig, const zf_param_item_t *item) {
    const zf_cpu_ext_t *cpu = rig->table->get_extension ? rig->table->get_extension(ZF_EXT_CPU) : NULL;
    zf_error_t err = {.struct_size = sizeof err};
    zf_fence_t there = {.struct_size = sizeof there};
    zf_status_t st;
    abi_host_enter(&rig->host);
    st = rig->table->param_fetch(rig->instance, item, item != NULL, sizeof *item, &rig->stream, &there, &err);
    if (st >= 0 && there.kind == ZF_FENCE_HOST_COUNTER)
        st = cpu ? cpu->fence_wait(&there, UINT64_C(20000000000), &err) : ZF_ERR_ABI;
    abi_host_leave(&rig->host);
    return abi_check(rig->probe, ABI_RULE_VALID, st >= 0, "param_fetch of %s returned %d: %s",
                     item ? "one matrix" : "all", st, err.message);
}

static int is_layer_equal(const abi_rig_t *a, const abi_rig_t *b, uint32_t layer) {
    size_t at = layer * LAYER_ELEMS * sizeof(float);
    return memcmp((const char *)a->memory[0] + at, (const char *)b->memory[0] + at, LAYER_ELEMS * sizeof(float)) == 0;
}

/* From the last matrix to the first, as a host may; then what is left. */
static int fetch_layers(abi_rig_t *rig, const abi_rig_t *whole) {
    for (uint32_t layer = LAYERS; layer-- > 0;) {
        zf_param_item_t item = {.struct_size = sizeof item, .id = rig->ids[0], .first_batch = layer, .n_batches = 1};
        abi_try(rig->probe, "param_fetch of matrix %u after step %u", layer, rig->n_steps);
        if (!fetch(rig, &item))
            return 0;
        abi_check(rig->probe, ABI_RULE_LAYERS, is_layer_equal(rig, whole, layer),
                  "matrix %u of \"a.weight\" after step %u, fetched by itself, is not what a fetch of all shows", layer,
                  rig->n_steps);
    }
    return fetch(rig, NULL);
}

static void end_with_flush(abi_rig_t *rig) {
    const zf_destroy_args_t flush = {.struct_size = sizeof flush, .flags = ZF_DESTROY_FLUSH};
    abi_try(rig->probe, "destroy with FLUSH");
    abi_host_enter(&rig->host);
    rig->table->destroy(rig->instance, &flush);
    abi_host_leave(&rig->host);
    rig->instance = NULL;
}

static void end_with_quiesce(abi_rig_t *rig) {
    const zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st;
    abi_try(rig->probe, "quiesce(FLUSH)");
    abi_host_enter(&rig->host);
    st = rig->table->quiesce(rig->instance, &flush, &err);
    abi_host_leave(&rig->host);
    abi_check(rig->probe, ABI_RULE_VALID, st == ZF_OK, "quiesce(FLUSH) returned %d: %s", st, err.message);
    abi_rig_end(rig);
}

static void run_layers(abi_probe_t *probe) {
    static abi_rig_t whole, layers;
    if (!open_stacked(&whole, probe) || !open_stacked(&layers, probe))
        return;
    for (unsigned step = 0; step < STEPS; step++)
        if (!abi_rig_train(&whole, 1, ABI_RULE_VALID) || !fetch(&whole, NULL) ||
            !abi_rig_train(&layers, 1, ABI_RULE_VALID) || !fetch_layers(&layers, &whole))
            return;
    end_with_quiesce(&whole);
    end_with_flush(&layers);
    abi_check(probe, ABI_RULE_DESTROY, memcmp(whole.memory, layers.memory, sizeof whole.memory) == 0,
              "after %d steps, destroy with FLUSH leaves other values than quiesce(FLUSH) shows", STEPS);
}

void abi_layer_probes(abi_report_t *report, const abi_env_t *env) {
    abi_probe_run(report, env, "a stacked parameter, layer by layer", run_layers);
}
