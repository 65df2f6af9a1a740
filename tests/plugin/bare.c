/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/bare.c - a run without workers (contract in bare.h). */
#include "bare.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "instance/memory.h"
#include "instance/tables.h"
#include "schedule/window.h"
#include "state/make.h"
#include "step/updater.h"

enum { PASSED = 1 << 30 };

zfi_run_t *zt_bare_create(const zt_rig_t *rig, const char *config) {
    zf_error_t err = {.struct_size = sizeof err};
    zfi_engine_t *engine = calloc(1, sizeof *engine);
    zfi_param_t *params = NULL;
    zfi_run_t *run;
    zf_status_t st;
    ck_assert(engine != NULL);
    engine->host = &rig->host;
    engine->device_type = ZF_DEVICE_CPU;
    engine->kernels = zfi_kernels_of(zfi_isa_best());
    engine->ops = &zfi_device_cpu;
    engine->comm_ops = &zfi_comm_self;
    zfi_engine_init(engine);
    st = zfi_config_parse(config, strlen(config), "bare", NULL, 0, &engine->config, &err);
    zfi_config_settle(&engine->config, 0);
    engine->policy = zfi_config_policy(&engine->config);
    engine->timeout_ns = (uint64_t)engine->config.deadline_ms * 1000000u;
    if (!st)
        st = zfi_engine_open(engine, &err);
    if (!st)
        st = zfi_params_build(rig->decls, rig->n_params, sizeof *rig->decls, ZF_DEVICE_CPU, &params, &err);
    ck_assert_msg(st == ZF_OK, "%s", err.message);
    run = zfi_run_make(engine, params, rig->n_params);
    ck_assert(run != NULL);
    run->n_groups = ZT_MAX_GROUPS;
    if (!st)
        st = zfi_plan_build(&engine->config, run->params, rig->n_params, &run->plan, &err);
    if (!st)
        st = zfi_memory_bind(run, &err);
    ck_assert_msg(st == ZF_OK, "%s", err.message);
    zfi_window_start(&run->windows);
    zfi_step_bind(run);
    ck_assert_int_eq(zfi_tables_upload(&run->side), ZF_OK);
    return run;
}

void zt_bare_destroy(zfi_run_t *run) {
    zfi_engine_t *engine = run->engine;
    zfi_engine_stop(engine);
    zfi_run_free(run);
    zfi_engine_close(engine);
    zfi_engine_free(engine);
    free(engine);
}

void zt_bare_hold(zfi_run_t *run, zfi_stream_t *stream, zfi_timeline_t *gate) {
    zfi_op_t op = zfi_op_wait_for_host(gate, 1);
    ck_assert_int_eq(zfi_enqueue(run->engine, stream, &op, 1), ZF_OK);
}

void zt_bare_pass(zfi_timeline_t *timeline) { zfi_timeline_signal(timeline, PASSED); }
