/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/stats.c - zf.stats/1: the table of counters (contract in zf/ext/stats.h), records of steps.
 *
 * A row says what a counter is and where its value comes from: a member of zfi_counters_t, or a function. Any thread
 * may ask, so the run, which a hook may be exchanging, is not read. */
#include "base/error.h"
#include "base/struct.h"
#include "hooks/hooks.h"
#include "hooks/step_record.h"

typedef struct row {
    const char *name, *unit, *doc;
    uint32_t kind;
    size_t offset;                         /* in zfi_counters_t, unless get is set */
    uint64_t (*get)(zfi_engine_t *engine); /* or NULL */
} row_t;

static uint64_t n_applied(zfi_engine_t *engine) {
    return __atomic_load_n(&engine->totals->n_applied, __ATOMIC_RELAXED);
}
static uint64_t n_skipped(zfi_engine_t *engine) {
    return __atomic_load_n(&engine->totals->n_skipped, __ATOMIC_RELAXED);
}
static uint64_t n_overwritten(zfi_engine_t *engine) {
    return __atomic_load_n(&engine->totals->n_overwritten, __ATOMIC_RELAXED);
}
static uint64_t n_workers(zfi_engine_t *engine) { return atomic_load(&engine->n_workers); }
static uint64_t interval(zfi_engine_t *engine) { return engine->policy.interval; }
static uint64_t lag(zfi_engine_t *engine) { return engine->policy.lag; }

/* A counter that is a member of zfi_counters_t, by its name. */
#define COUNT(member, kind, unit, doc)                                                                                 \
    { #member, unit, doc, kind, offsetof(zfi_counters_t, member), NULL }
#define SUM(member, unit, doc) COUNT(member, ZF_COUNTER_SUM, unit, doc)
#define LEVEL(member, unit, doc) COUNT(member, ZF_COUNTER_LEVEL, unit, doc)
static const row_t rows[] = {
    SUM(steps, "steps", "Steps that were submitted."),
    {"steps_applied", "steps", "Steps that are finished and were applied.", ZF_COUNTER_SUM, 0, n_applied},
    {"steps_skipped", "steps", "Steps that are finished and were skipped.", ZF_COUNTER_SUM, 0, n_skipped},
    SUM(window_closes, "count", "Windows of cohorts that were closed."),
    SUM(closes_by_data, "count", "Of window_closes, those before the bound (update_interval = auto)."),
    SUM(reselects, "count", "Choices of channels, counted by cohort; those that keep their set, too."),
    SUM(channels_entered, "count", "Channels that came into the selection."),
    SUM(channels_left, "count", "Channels that went out of it."),
    SUM(down_grad_nbytes, "bytes", "Gradients copied from device to host."),
    SUM(down_record_nbytes, "bytes", "Scalars of steps and importance, copied from device to host."),
    SUM(up_publish_nbytes, "bytes", "Published values copied from host to device."),
    SUM(up_enter_nbytes, "bytes", "State of entering channels and lists of them, copied from host to device."),
    SUM(lost_overlap_nbytes, "bytes", "Of down_grad_nbytes, gradients that were shipped early and then replaced."),
    LEVEL(host_planned_nbytes, "bytes", "Host memory as planned, with what hooks asked for since bind_params."),
    LEVEL(host_measured_nbytes, "bytes", "Host memory that is mapped."),
    LEVEL(device_planned_nbytes, "bytes", "Device memory as planned, with what hooks asked for since bind_params."),
    LEVEL(device_measured_nbytes, "bytes", "Device memory that is mapped."),
    {"slot_chunks_peak", "count", "Most pieces of the memory for gradients that were in use at once.", ZF_COUNTER_LEVEL,
     offsetof(zfi_counters_t, slots_peak), NULL},
    {"slot_chunks_total", "count", "Pieces of the memory for gradients.", ZF_COUNTER_LEVEL,
     offsetof(zfi_counters_t, slot_pieces), NULL},
    SUM(stall_replay_ns, "ns", "The device waited for a replay or for its publication."),
    SUM(stall_select_ns, "ns", "The device waited for a choice or for entering state."),
    SUM(stall_pool_ns, "ns", "Copies to the host waited for a free piece of memory."),
    SUM(stall_ranks_ns, "ns", "The device waited for sums over the ranks."),
    SUM(host_wait_ns, "ns", "Hooks waited: the host was too many steps ahead, or HOST_THREAD waited for the device."),
    SUM(host_waits, "count",
        "Calls that waited for the device's newest work: control calls, questions, steps that wait."),
    SUM(replay_ns, "ns", "Time in replays, of all workers together."),
    SUM(replay_elems, "elems", "Elements that were replayed, each once per step of its window."),
    SUM(early_taken, "count", "Chunks whose replay was over, or had begun, when their step came."),
    SUM(early_lost, "count",
        "Chunks that were replayed before their step in vain: it was clipped, skipped or another."),
    {"overwritten_elems", "elems", "Elements of blocks in which weights were found that the host wrote unannounced.",
     ZF_COUNTER_SUM, 0, n_overwritten},
    {"n_workers", "count", "Threads that replay.", ZF_COUNTER_LEVEL, 0, n_workers},
    {"update_interval", "steps", "Steps of a window, or the most that auto may make.", ZF_COUNTER_LEVEL, 0, interval},
    {"publish_lag", "steps", "Steps between a close and its publication: 0 or 1.", ZF_COUNTER_LEVEL, 0, lag},
    SUM(exchanges, "count", "Exchanges with other ranks that are over."),
    SUM(sent_nbytes, "bytes", "Sent by this rank to all others together."),
    SUM(exchange_ns, "ns", "Time in exchanges, on the plugin's threads for them."),
};
_Static_assert(sizeof rows / sizeof *rows == ZFI_N_COUNTERS, "a record has room for every counter");

static uint64_t value_of(const row_t *row, zfi_engine_t *engine) {
    const void *at = (const char *)&engine->count + row->offset;
    return row->get ? row->get(engine) : atomic_load((const _Atomic uint64_t *)at);
}

void zfi_stats_take(zfi_engine_t *engine, uint64_t out[ZFI_N_COUNTERS]) {
    for (uint32_t i = 0; i < ZFI_N_COUNTERS; i++)
        out[i] = value_of(&rows[i], engine);
}

/* A load may have set back what counts steps. */
void zfi_stats_grown(const uint64_t now[ZFI_N_COUNTERS], const uint64_t before[ZFI_N_COUNTERS],
                     uint64_t out[ZFI_N_COUNTERS]) {
    for (uint32_t i = 0; i < ZFI_N_COUNTERS; i++)
        out[i] = rows[i].kind == ZF_COUNTER_LEVEL ? now[i] : now[i] > before[i] ? now[i] - before[i] : 0;
}

static uint32_t n_counters(void) { return ZFI_N_COUNTERS; }

static zf_status_t check_counter(uint32_t i, const zf_counter_t *out, const char *origin, zf_error_t *err) {
    zf_status_t st = zfi_struct_need_out(out, "zf_counter_t", origin, err);
    if (!st && i >= ZFI_N_COUNTERS)
        st = zfi_error(err, ZF_ERR_ARGUMENT, origin, "counter %u; there are %u", i, (unsigned)ZFI_N_COUNTERS);
    return st;
}

static void write_counter(uint32_t i, uint64_t value, zf_counter_t *out) {
    const zf_counter_t counter = {.struct_size = sizeof counter,
                                  .kind = rows[i].kind,
                                  .name = rows[i].name,
                                  .unit = rows[i].unit,
                                  .doc = rows[i].doc,
                                  .value = value};
    zfi_struct_write(out, &counter, sizeof counter);
}

static zf_status_t counter(zf_instance_t *inst, uint32_t i, zf_counter_t *out, zf_error_t *err) {
    zf_status_t st = inst ? zfi_instance_check(inst, "counter", err) : ZF_OK;
    if (!st)
        st = check_counter(i, out, "counter", err);
    if (st)
        return st;
    write_counter(i, inst ? value_of(&rows[i], &inst->engine) : 0, out);
    return ZF_OK;
}

static zf_status_t step_counter(zf_instance_t *inst, uint64_t step, uint32_t i, zf_counter_t *out, zf_error_t *err) {
    uint64_t value;
    zf_status_t st = zfi_instance_check_process(inst, "step_counter", err);
    if (!st)
        st = check_counter(i, out, "step_counter", err);
    if (st)
        return st;
    st = zfi_step_record_counter(inst, step, i, &value);
    write_counter(i, value, out);
    return st;
}

static zf_status_t step_record(zf_instance_t *inst, uint64_t step, zf_step_record_t *out, zf_error_t *err) {
    zf_step_record_t record;
    zf_status_t st = zfi_instance_check_process(inst, "step_record", err);
    if (!st)
        st = zfi_struct_need_out(out, "zf_step_record_t", "step_record", err);
    if (st)
        return st;
    st = zfi_step_record_read(inst, step, &record);
    zfi_struct_write(out, &record, sizeof record);
    return st;
}

const zf_stats_ext_t zfi_stats_ext = {.struct_size = sizeof zfi_stats_ext,
                                      .n_counters = n_counters,
                                      .counter = counter,
                                      .step_record = step_record,
                                      .step_counter = step_counter};
