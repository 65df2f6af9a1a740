/* SPDX-License-Identifier: Apache-2.0 */
/* mock_stats.c - the mocks' zf.stats/1: two counters of steps and the size of the instance. */
#include "mock_stats.h"

#include "mock.h"

static const zf_counter_t counters[] = {
    {.kind = ZF_COUNTER_SUM, .name = "steps", .unit = "steps", .doc = "Steps that were submitted."},
    {.kind = ZF_COUNTER_SUM, .name = "asked", .unit = "count", .doc = "Twice the steps."},
    {.kind = ZF_COUNTER_LEVEL, .name = "instance_nbytes", .unit = "bytes", .doc = "Bytes of an instance."}};
enum { N_COUNTERS = sizeof counters / sizeof *counters };

static uint32_t n_counters(void) { return N_COUNTERS; }

static zf_status_t write_counter(uint32_t i, uint64_t n_steps, zf_counter_t *out, zf_error_t *err) {
    zf_status_t st;
    zf_counter_t counter;
    if (!out || i >= N_COUNTERS)
        return mock_fail(err, ZF_ERR_ARGUMENT, out ? "counter %u; there are %d" : "out is NULL", i, N_COUNTERS);
    st = mock_check_out(out, "zf_counter_t", err);
    if (st)
        return st;
    counter = counters[i];
    if (BREAKS(counter_twice) && i == 1)
        counter.name = "steps";
    if (BREAKS(counter_unit) && i == 2)
        counter.unit = "elems";
    counter.value = i == 2 ? sizeof(zf_instance_t) : (i + 1) * n_steps;
    mock_write(out, &counter, sizeof counter);
    return ZF_OK;
}

static zf_status_t read_counter(zf_instance_t *instance, uint32_t i, zf_counter_t *out, zf_error_t *err) {
    uint64_t n = instance ? instance->n_steps : 0;
    return write_counter(i, BREAKS(counter_falls) && n ? 100 - n : n, out, err);
}

static zf_status_t check(const zf_instance_t *instance, const void *out, const char *name, zf_error_t *err) {
    if (!instance || !out)
        return mock_fail(err, ZF_ERR_ARGUMENT, "%s is NULL", instance ? "out" : "instance");
    return mock_check_out(out, name, err);
}

static zf_status_t lateness(zf_instance_t *instance, uint64_t step, uint32_t group, zf_lateness_t *out,
                            zf_error_t *err) {
    zf_status_t st = check(instance, out, "zf_lateness_t", err);
    (void)step, (void)group;
    return st ? st : ZF_DISABLED;
}

static zf_status_t step_record(zf_instance_t *instance, uint64_t step, zf_step_record_t *out, zf_error_t *err) {
    zf_step_record_t none = {0};
    zf_status_t st = check(instance, out, "zf_step_record_t", err);
    (void)step;
    if (st)
        return st;
    mock_write(out, &none, sizeof none);
    return ZF_IN_PROGRESS;
}

static zf_status_t step_counter(zf_instance_t *instance, uint64_t step, uint32_t i, zf_counter_t *out,
                                zf_error_t *err) {
    uint32_t is_kept = instance && step != 0 && step <= instance->n_steps;
    zf_status_t st = instance ? write_counter(i, is_kept * (BREAKS(counter_grows_twice) ? 2u : 1u), out, err)
                              : mock_fail(err, ZF_ERR_ARGUMENT, "instance is NULL");
    return st ? st : is_kept ? ZF_OK : ZF_IN_PROGRESS;
}

const zf_stats_ext_t mock_stats_table = {.struct_size = sizeof mock_stats_table,
                                         .n_counters = n_counters,
                                         .counter = read_counter,
                                         .lateness = lateness,
                                         .step_record = step_record,
                                         .step_counter = step_counter};
