/* tests/plugin/bare.c - an instance without threads (contract in bare.h). */
#include "bare.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "window.h"

enum { PASSED = 1 << 30 };

zf_instance_t *zt_bare_create(const zt_rig_t *rig, const char *config) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_instance_t *inst = calloc(1, sizeof *inst);
    zf_status_t st;
    ck_assert(inst != NULL);
    inst->host = &rig->host;
    inst->device_type = ZF_DEVICE_CPU;
    inst->kernels = zfi_kernels_of(zfi_isa_best());
    pthread_mutex_init(&inst->poison_lock, NULL);
    zfi_timelines_init(inst);
    st = zfi_config_parse(config, strlen(config), "bare", NULL, 0, &inst->config, &err);
    inst->timeout_ns = (uint64_t)inst->config.deadline_ms * 1000000u;
    inst->n_params = rig->n_params;
    inst->n_groups = ZT_MAX_GROUPS;
    if (!st)
        st = zfi_params_build(rig->decls, rig->n_params, sizeof *rig->decls, ZF_DEVICE_CPU, &inst->params, &err);
    if (!st)
        st = zfi_plan_build(&inst->config, inst->params, rig->n_params, &inst->plan, &err);
    if (!st)
        st = zfi_memory_bind(inst, &err);
    ck_assert_msg(st == ZF_OK, "%s", err.message);
    zfi_window_start(inst);
    return inst;
}

void zt_bare_destroy(zf_instance_t *inst) {
    zfi_memory_free(inst);
    zfi_plan_free(&inst->plan);
    zfi_params_free(inst->params, inst->n_params);
    zfi_timelines_free(inst);
    pthread_mutex_destroy(&inst->poison_lock);
    free(inst);
}

void zt_bare_pass(zfi_timeline_t *timeline) { zfi_timeline_signal(timeline, PASSED); }
