/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/instance.c - begin and end of every hook (contract in instance.h). */
#include "instance/instance.h"

#include <assert.h>

#include "base/error.h"

static const char *state_name(int state) {
    static const char *const names[] = {"created", "bound", "active", "quiesced", "released"};
    return names[state];
}

void zfi_hook_traced(zf_instance_t *inst) {
    zfi_trace_end(inst->engine.trace, inst->hook_began_ns, inst->hook,
                  (zfi_trace_number_t){"steps", atomic_load(&inst->engine.count.steps)}, ZFI_TRACE_NONE);
    inst->hook_began_ns = 0;
}

/* The instance is free, and its thread as it was. */
static void leave(zf_instance_t *inst) {
    int cancel_state = inst->cancel_state;
    assert(zfi_list_is_empty(&inst->engine.to_device) && zfi_list_is_empty(&inst->engine.to_down) &&
           zfi_list_is_empty(&inst->engine.to_up)); /* what a hook collects it sends */
    zfi_hook_traced(inst);
    atomic_store(&inst->is_busy, 0); /* from here on another thread may begin */
    pthread_setcancelstate(cancel_state, NULL);
}

zf_status_t zfi_instance_check(const zf_instance_t *inst, const char *origin, zf_error_t *err) {
    if (!inst || inst->magic != ZFI_INSTANCE_MAGIC)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "instance is %s", inst ? "not one of this plugin's" : "NULL");
    return ZF_OK;
}

zf_status_t zfi_instance_check_process(const zf_instance_t *inst, const char *origin, zf_error_t *err) {
    zf_status_t st = zfi_instance_check(inst, origin, err);
    if (!st && !*inst->alive)
        return zfi_error_scoped(err, ZF_ERR_FORKED, ZF_SCOPE_INSTANCE, 0, origin,
                                "called in a child process after fork(): the instance's threads live in the parent; "
                                "create one here instead");
    return st;
}

zf_status_t zfi_hook_begin(zf_instance_t *inst, unsigned states, const char *origin, zf_error_t *err) {
    zf_status_t st = zfi_instance_check_process(inst, origin, err);
    int cancel_state;
    if (st)
        return st;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    if (atomic_exchange(&inst->is_busy, 1)) {
        pthread_setcancelstate(cancel_state, NULL);
        return zfi_error(
            err, ZF_ERR_BUSY, origin,
            "another hook of this instance is running: a host that calls hooks from several threads must lock");
    }
    inst->cancel_state = cancel_state;
    inst->hook = origin;
    inst->hook_began_ns = zfi_trace_begin(inst->engine.trace);
    if (zfi_is_poisoned(&inst->engine)) {
        zfi_engine_settle(&inst->engine, inst->host_streams, inst->n_host_streams);
        st = zfi_poisoned(&inst->engine, err);
    } else if (!(states & (1u << inst->state))) {
        st = zfi_error(err, ZF_ERR_STATE, origin, "not legal in state \"%s\": call %s first", state_name(inst->state),
                       inst->state == ZFI_STATE_RELEASED ? "resume of zf.residency/1" : "bind_params");
    }
    if (st)
        leave(inst);
    return st;
}

zf_status_t zfi_hook_failed(zf_instance_t *inst, zf_status_t st, const char *origin, const char *what,
                            zf_error_t *err) {
    if (!st)
        return ZF_OK;
    if (!zfi_is_poisoned(&inst->engine))
        return zfi_error(err, st, origin, "%s", what);
    /* the host may free its gradients once it has seen the error */
    zfi_engine_settle(&inst->engine, inst->host_streams, inst->n_host_streams);
    return zfi_poisoned(&inst->engine, err);
}

zf_status_t zfi_hook_end(zf_instance_t *inst, zf_status_t st, zf_error_t *err) {
    if (zfi_is_poisoned(&inst->engine))
        st = zfi_hook_failed(inst, ZF_ERR_POISONED, inst->hook, "", err);
    leave(inst);
    return st;
}
