/* plugin/bound.c - see bound.h. bind_params makes it in an instance that has nothing, a load or a second bind_params in
 * the twin that is to replace what is there. */
#include "bound.h"

#include "device/device.h"
#include "error.h"
#include "memory.h"
#include "offload/workers.h"
#include "window.h"

static uint32_t count_groups(const zfi_param_t *params, uint32_t n) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        if (params[i].has_state && params[i].group > most)
            most = params[i].group;
    return most + 1;
}

zf_status_t zfi_bound_read_masters(zf_instance_t *inst) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < inst->n_params && !st; i++)
        if (inst->params[i].has_state)
            st = inst->device->read_visible(inst, i);
    /* our own finite work on memory that may be freed next: waited for without a deadline */
    zfi_timeline_wait(&inst->stream->executed, zfi_queue_newest(inst->stream), UINT64_MAX, NULL);
    return st;
}

zf_status_t zfi_bound_make(zf_instance_t *inst, zfi_param_t *params, uint32_t n_params, int reads_visible,
                           const char *origin, zf_error_t *err) {
    zf_status_t st;
    inst->params = params;
    inst->n_params = n_params;
    inst->n_groups = count_groups(params, n_params);
    st = zfi_plan_build(&inst->config, params, n_params, &inst->plan, err);
    if (!st)
        st = zfi_memory_bind(inst, err);
    if (!st)
        zfi_window_start(inst);
    if (!st && reads_visible && (st = zfi_bound_read_masters(inst)))
        zfi_error(err, st, origin, "cannot read the parameters");
    if (!st)
        st = zfi_workers_start(inst, inst->n_workers, err);
    if (st)
        zfi_bound_free(inst);
    return st;
}

void zfi_bound_free(zf_instance_t *inst) {
    zfi_workers_stop(inst->workers);
    inst->workers = NULL;
    zfi_memory_free(inst);
    zfi_plan_free(&inst->plan);
    zfi_params_free(inst->params, inst->n_params);
    inst->params = NULL;
    inst->n_params = 0;
}
