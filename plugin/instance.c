/* plugin/instance.c - what every hook and thread shares: entry and exit, logging, poison, waits (instance.h). */
#include "instance.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"

/* ---- every hook's entry ------------------------------------------------------------------------------------------ */

static const char *state_name(int state) {
    static const char *const names[] = {"created", "bound", "active", "quiesced"};
    return names[state];
}

zf_status_t zfi_enter(zf_instance_t *inst, unsigned states, const char *origin, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    if (!inst || inst->magic != ZFI_INSTANCE_MAGIC)
        return zfi_error(err, ZF_ERR_ARGUMENT, origin, "instance is %s", inst ? "not one of this plugin's" : "NULL");
    if (!*inst->alive)
        return zfi_error_scoped(err, ZF_ERR_FORKED, ZF_SCOPE_INSTANCE, 0, origin,
                                "called in a child process after "
                                "fork(): the instance's threads live in the parent; create one here instead");
    if (atomic_exchange(&inst->is_busy, 1))
        return zfi_error(err, ZF_ERR_BUSY, origin,
                         "another hook of this instance is running: a host that calls hooks "
                         "from several threads must lock");
    if (atomic_load(&inst->is_poisoned)) {
        pthread_mutex_lock(&inst->poison_lock);
        st = zfi_error_copy(err, &inst->poison);
        pthread_mutex_unlock(&inst->poison_lock);
    } else if (!(states & (1u << inst->state))) {
        st = zfi_error(err, ZF_ERR_STATE, origin, "not legal in state \"%s\": call bind_params first",
                       state_name(inst->state));
    }
    if (st)
        atomic_store(&inst->is_busy, 0);
    return st;
}

void zfi_leave(zf_instance_t *inst) { atomic_store(&inst->is_busy, 0); }

void zfi_log_at(zf_instance_t *inst, int32_t level, const char *component, const char *file, int32_t line,
                const char *format, ...) {
    char text[512];
    va_list args;
    int n;
    if (!inst->host->log || level > inst->config.level)
        return;
    va_start(args, format);
    n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0)
        return;
    inst->host->log(inst->host->ctx, level, component, file, line, text,
                    (uint64_t)n < sizeof text ? (uint64_t)n : sizeof text - 1);
}

/* ---- poison ------------------------------------------------------------------------------------------------------ */

static void list_timelines(zf_instance_t *inst, zfi_timeline_t **out) {
    zfi_timeline_t *all[ZFI_N_TIMELINES] = {&inst->shipped,  &inst->batches,  &inst->finished,    &inst->down,
                                            &inst->jobs,     &inst->up,       &inst->merged,      &inst->chosen,
                                            &inst->host_sel, &inst->enter_up, &inst->enter_done,  &inst->entered,
                                            &inst->control,  &inst->stepped,  &inst->publish_due, &inst->enter_due,
                                            &inst->summed,   &inst->rounded,  &inst->sums,        &inst->decided};
    memcpy(out, all, sizeof all);
}

void zfi_timelines_init(zf_instance_t *inst) {
    static const char *const names[ZFI_N_TIMELINES] = {"shipped",    "batches", "finished", "down",     "jobs",
                                                       "up",         "merged",  "chosen",   "host_sel", "enter_up",
                                                       "enter_done", "entered", "control",  "stepped",  "publish_due",
                                                       "enter_due",  "summed",  "rounded",  "sums",     "decided"};
    zfi_timeline_t *all[ZFI_N_TIMELINES];
    list_timelines(inst, all);
    for (int i = 0; i < ZFI_N_TIMELINES; i++)
        zfi_timeline_init(all[i], names[i]);
}

void zfi_timelines_free(zf_instance_t *inst) {
    zfi_timeline_t *all[ZFI_N_TIMELINES];
    list_timelines(inst, all);
    for (int i = 0; i < ZFI_N_TIMELINES; i++)
        zfi_timeline_free(all[i]);
}

void zfi_poison(zf_instance_t *inst, const zf_error_t *error) {
    zfi_timeline_t *all[ZFI_N_TIMELINES];
    pthread_mutex_lock(&inst->poison_lock);
    if (!atomic_load(&inst->is_poisoned)) {
        inst->poison = *error;
        inst->poison.struct_size = sizeof inst->poison;
        inst->poison.scope = ZF_SCOPE_INSTANCE;
        atomic_store(&inst->is_poisoned, 1);
    }
    pthread_mutex_unlock(&inst->poison_lock);
    list_timelines(inst, all);
    for (int i = 0; i < ZFI_N_TIMELINES; i++)
        zfi_timeline_poison(all[i]);
}

static void poison_timeout(zf_instance_t *inst, const zfi_timeline_t *timeline, uint64_t value) {
    zf_error_t error = {.struct_size = sizeof error};
    zfi_timeline_t *all[ZFI_N_TIMELINES];
    char dump[352];
    size_t at = 0;
    list_timelines(inst, all);
    for (int i = 0; i < ZFI_N_TIMELINES && at < sizeof dump; i++)
        at += (size_t)snprintf(dump + at, sizeof dump - at, " %s=%" PRIu64, all[i]->name, zfi_timeline_now(all[i]));
    zfi_error_scoped(&error, ZF_ERR_TIMEOUT, ZF_SCOPE_INSTANCE, 0, timeline->name,
                     "waited %u ms ([host] deadline_ms) for %s to reach %" PRIu64 ";%s", inst->config.deadline_ms,
                     timeline->name, value, dump);
    zfi_poison(inst, &error);
}

zf_status_t zfi_wait(zf_instance_t *inst, zfi_timeline_t *timeline, uint64_t value, _Atomic uint64_t *waited_ns) {
    uint64_t waited = 0;
    zf_status_t st = zfi_timeline_wait(timeline, value, inst->timeout_ns, &waited);
    if (waited && waited_ns)
        atomic_fetch_add(waited_ns, waited);
    if (st == ZF_ERR_TIMEOUT)
        poison_timeout(inst, timeline, value);
    if (!st && atomic_load(&inst->is_poisoned))
        st = ZF_ERR_POISONED;
    return st;
}

zf_status_t zfi_wait_for_host(zf_instance_t *inst, zfi_timeline_t *timeline, uint64_t value) {
    zf_status_t st = zfi_timeline_wait(timeline, value, UINT64_MAX, NULL);
    return !st && atomic_load(&inst->is_poisoned) ? ZF_ERR_POISONED : st;
}
