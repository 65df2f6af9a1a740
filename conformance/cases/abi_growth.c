/* SPDX-License-Identifier: Apache-2.0 */
/* abi_growth.c - proof 7, a long life: memory over some hundred calls of a kind, memory and processor time over four
 * thousand steps. */
#include <time.h>

#include "abi_probes.h"
#include "abi_watch.h"
#include "harness/clock.h"

static const double max_growth_nbytes = 100 * 1024, max_slower_ms = 60;

/* ---- steps ------------------------------------------------------------------------------------------------------- */

enum { N_SETTLED = 200, N_MEASURED = 300, N_BETWEEN = 3500 };

static double cpu_ms(void) { return 1e-6 * (double)zc_clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

/* Processor time of some steps, all threads together. */
static double time_steps(abi_rig_t *rig, unsigned n) {
    double before = cpu_ms();
    return abi_rig_train(rig, n, ABI_RULE_VALID) ? cpu_ms() - before : -1;
}

static void probe_long_run(abi_rig_t *rig) {
    if (!abi_rig_train(rig, N_SETTLED, ABI_RULE_VALID))
        return;
    double before = abi_data_nbytes(), early = time_steps(rig, N_MEASURED), grown;
    if (early < 0 || !abi_rig_train(rig, N_BETWEEN, ABI_RULE_VALID))
        return;
    double late = time_steps(rig, N_MEASURED);
    grown = abi_data_nbytes() - before;
    abi_check(rig->probe, ABI_RULE_GROWTH, grown <= max_growth_nbytes,
              "%d steps took %.0f bytes that were not given back, limit %.0f", N_BETWEEN + 2 * N_MEASURED, grown,
              max_growth_nbytes);
    abi_check(rig->probe, ABI_RULE_GROWTH, late <= 2 * early + max_slower_ms,
              "%d steps took %.0f ms of processor time early in a run, %.0f ms %d steps later", N_MEASURED, early, late,
              N_BETWEEN);
}

/* ---- other calls ------------------------------------------------------------------------------------------------- */

enum { N_FIRST = 20, N_CALLS = 60 };
static const double max_lost_nbytes = 500; /* by a call */

static zf_status_t call_state(abi_rig_t *rig, int is_load) {
    const zf_state_ext_t *ext = rig->table->get_extension(ZF_EXT_STATE);
    char path[4200];
    const zf_state_args_t args = {.struct_size = sizeof args, .flags = is_load ? 0 : ZF_STATE_NO_SYNC, .path = path};
    snprintf(path, sizeof path, "%s/grown", rig->probe->scratch);
    if (!ext)
        return ZF_DISABLED;
    return is_load ? ABI_CALL(rig, ext->load(rig->instance, &args, NULL, &rig->err))
                   : ABI_CALL(rig, ext->save(rig->instance, &args, NULL, &rig->err));
}

static zf_status_t save(abi_rig_t *rig) { return call_state(rig, 0); }

static zf_status_t load(abi_rig_t *rig) { return call_state(rig, 1); }

static zf_status_t rest(abi_rig_t *rig) { return abi_rig_quiesce(rig, ZF_QUIESCE_FLUSH); }

static zf_status_t bind(abi_rig_t *rig) { return abi_rig_bind(rig, NULL); }

static zf_status_t export(abi_rig_t *rig) {
    float out[30];
    const zf_export_item_t item = {.struct_size = sizeof item, .id = rig->ids[0], .dst = out, .dst_nbytes = sizeof out};
    return abi_rig_export(rig, &item);
}

static zf_status_t fetch(abi_rig_t *rig) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    zf_status_t st = ABI_CALL(rig, rig->table->param_fetch(rig->instance, NULL, 0, 0, &rig->stream, &fence, &rig->err));
    return st < 0 ? st : ABI_CALL(rig, rig->table->fence_wait(rig->instance, &fence, 10000000000u, &rig->err));
}

static zf_status_t change(abi_rig_t *rig) {
    return ABI_CALL(rig, rig->table->params_changed(rig->instance, NULL, 0, 0, 0, &rig->err));
}

static zf_status_t refuse(abi_rig_t *rig) {
    const zf_export_item_t item = {.struct_size = sizeof item, .id = 77};
    return abi_rig_export(rig, &item) < 0 ? ZF_OK : ZF_ERR_INTERNAL;
}

static zf_status_t release_and_resume(abi_rig_t *rig) {
    const zf_residency_ext_t *ext = rig->table->get_extension(ZF_EXT_RESIDENCY);
    if (!ext)
        return ZF_DISABLED;
    zf_status_t st = ABI_CALL(rig, ext->release(rig->instance, ZF_RELEASE_DEVICE, &rig->stream, NULL, &rig->err));
    return st < 0 ? st : ABI_CALL(rig, ext->resume(rig->instance, &rig->stream, NULL, &rig->err));
}

static const struct {
    const char *name;
    zf_status_t (*call)(abi_rig_t *);
} kinds[] = {{"save", save},
             {"load", load},
             {"quiesce", rest},
             {"bind_params", bind},
             {"export_params", export},
             {"param_fetch", fetch},
             {"params_changed", change},
             {"a refused call", refuse},
             {"release and resume", release_and_resume}};

/* The last steps of each kind with a step between: what a call prepares for the next one is used. */
static int repeat(abi_rig_t *rig, zf_status_t (*call)(abi_rig_t *), const char *name, int n) {
    for (int i = 0; i < n; i++) {
        zf_status_t st = call(rig);
        if (st == ZF_DISABLED || !abi_rig_check(rig, ABI_RULE_VALID, st >= 0, name, st) ||
            (i % 20 == 19 && !abi_rig_train(rig, 1, ABI_RULE_VALID)))
            return 0;
    }
    return 1;
}

static void probe_calls(abi_rig_t *rig) {
    rig->create.flags |= ZF_CREATE_CAP_RELEASE;
    if (!abi_rig_start(rig, ABI_ACTIVE))
        return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!repeat(rig, kinds[i].call, kinds[i].name, N_FIRST))
            continue;
        double mapped = abi_data_nbytes(), heap = abi_heap_nbytes(), lost;
        if (!repeat(rig, kinds[i].call, kinds[i].name, N_CALLS))
            continue;
        lost = (abi_heap_nbytes() - heap) / N_CALLS;
        abi_check(rig->probe, ABI_RULE_GROWTH,
                  lost <= max_lost_nbytes && abi_data_nbytes() - mapped <= max_growth_nbytes,
                  "%d times %s took %.0f bytes each that were not given back, limit %.0f; %.0f more are mapped",
                  N_CALLS, kinds[i].name, lost, max_lost_nbytes, abi_data_nbytes() - mapped);
    }
}

const abi_row_t abi_growth_rows[] = {{"a long run", ABI_BOUND, 0, probe_long_run}, {NULL, ABI_NOTHING, 0, NULL}};

const abi_row_t abi_calls_rows[] = {{"many calls", ABI_OPEN, 0, probe_calls}, {NULL, ABI_NOTHING, 0, NULL}};
