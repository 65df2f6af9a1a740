/* SPDX-License-Identifier: Apache-2.0 */
/* test_lateness.c - the meter of lateness against a plain sum over what the host itself reads.
 *
 * Gradients do not depend on the weights here, so the serial AdamW holds what every step should have seen, and the
 * host's memory holds what it did see. A selected channel sees what it should, so the plain sum runs over all. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "instance/meter.h"
#include "rig.h"
#include "suite.h"

enum { N_STEPS = 40 };

static const zt_shape_t shapes[] = {{48, 40, 0, 0, 0, 0, ZF_HOME_PLUGIN},
                                    {40, 0, 0, 0, 0, 0, ZF_HOME_PLUGIN},
                                    {64, 33, 1, 0, 1, 0, ZF_HOME_PLUGIN},
                                    {30, 50, 1, 0, 2, ZF_CHANNELS_ROWS, ZF_HOME_PLUGIN},
                                    {7, 9, 0, 0, 1, 0, ZF_HOME_HOST}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static zt_rig_t rig;
static double want[N_STEPS + 1][ZT_MAX_GROUPS], size[N_STEPS + 1][ZT_MAX_GROUPS]; /* size: sum of |parts| */

static double seen(const zt_param_t *p, size_t i) {
    uint16_t bits;
    float x;
    if (p->shape.is_bf16) {
        memcpy(&bits, p->visible + 2 * i, 2);
        return (double)zt_from_bf16(bits);
    }
    memcpy(&x, p->visible + 4 * i, 4);
    return (double)x;
}

/* What the coming step costs. */
static void measure(uint64_t step) {
    for (uint32_t id = 0; id < rig.n_params; id++) {
        const zt_param_t *p = &rig.params[id];
        zt_rig_fill_grad(&rig, id, step);
        for (size_t i = 0; i < p->n_elems; i++) {
            float w = p->serial.w[i];
            double due = (double)(p->shape.is_bf16 ? zt_from_bf16(zt_to_bf16(w)) : w);
            double part = (rig.unscale != 0 ? rig.unscale : 1) * (double)p->grad_values[i] * (seen(p, i) - due);
            want[step][p->shape.group] += part;
            size[step][p->shape.group] += fabs(part);
        }
    }
}

static void open_rig(const char *config) {
    memset(want, 0, sizeof want);
    memset(size, 0, sizeof size);
    zt_rig_start(&rig, shapes, N_SHAPES);
    rig.unscale = 0.5;
    zt_rig_open(&rig, config, 0);
}

static void steps(int n) {
    for (int i = 0; i < n; i++) {
        measure(rig.step + 1);
        zt_rig_step(&rig);
    }
}

static void flush(void) { ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH)); }

static zf_lateness_t read_lateness(uint64_t step, uint32_t group, zf_status_t expected) {
    zf_lateness_t got = {.struct_size = sizeof got};
    ck_assert_int_eq(rig.stats->lateness(rig.inst, step, group, &got, &rig.err), expected);
    return got;
}

/* Steps [first, last] of each group, and their sum; returns the sum of |parts|. */
static double check_steps(uint64_t first, uint64_t last) {
    double total = 0, all_sizes = 0;
    for (uint32_t g = 0; g < ZT_MAX_GROUPS; g++) {
        double sum = 0, sizes = 0;
        for (uint64_t t = 1; t <= last; t++) {
            zf_lateness_t got = read_lateness(t, g, ZF_OK);
            ck_assert_uint_eq(got.step, t);
            ck_assert_msg(t < first || fabs(got.loss - want[t][g]) <= 1e-5 * size[t][g],
                          "step %d, group %u: %.9g, want %.9g", (int)t, g, got.loss, want[t][g]);
            sum += got.loss;
            sizes += size[t][g];
        }
        ck_assert_uint_eq(read_lateness(0, g, ZF_OK).n_steps, last);
        ck_assert(fabs(read_lateness(0, g, ZF_OK).sum - sum) <= 1e-9 * (1 + sizes));
        total += sum;
        all_sizes += sizes;
    }
    ck_assert(fabs(read_lateness(0, ZF_NO_ID, ZF_OK).sum - total) <= 1e-9 * (1 + all_sizes));
    ck_assert_uint_eq(zt_rig_counter(&rig, "lateness_steps"), last);
    return all_sizes;
}

static const char *const schedules[] = {
    "update_interval = 4\npublish_lag = 1\n",
    "update_interval = 4\npublish_lag = 0\n",
    "update_interval = 4\npublish_lag = 1\npredict = auto\n",
    "update_interval = 3\npublish_lag = 0\npredict = auto\nselect_interval = 1\n",
    "update_interval = 1\npublish_lag = 1\nselect_interval = 1\n",
    "update_interval = 5\npublish_lag = 1\nselect_interval = 1\n",
    "update_interval = 2\npublish_lag = 1\ntopk_ratio = 0\n",
};

static void run_schedule(const char *schedule) {
    char config[256];
    snprintf(config, sizeof config, "[zenflow]\nfull_warm_up_rounds = 3\n%s[log]\nlateness = 1\n", schedule);
    open_rig(config);
    steps(N_STEPS - 10);
    flush();
    steps(10);
    flush();
    ck_assert_msg(check_steps(1, N_STEPS) > 0, "nothing is late: %s", schedule);
    zt_rig_end(&rig);
}

START_TEST(equals_a_plain_sum) {
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++)
        run_schedule(schedules[i]);
}
END_TEST

/* One block of three, chosen anew in every window. A matrix has 1 to 50 blocks, so single steps stray widely. */
START_TEST(sample_is_unbiased) {
    double all = 0, got = 0, sizes = 0;
    open_rig("[zenflow]\nmode = windows\nfull_warm_up_rounds = 1\ntopk_ratio = 0\n[log]\nlateness = 3\n");
    steps(N_STEPS);
    flush();
    for (uint64_t t = 1; t <= N_STEPS; t++)
        for (uint32_t g = 0; g < ZT_MAX_GROUPS; g++) {
            all += want[t][g];
            sizes += size[t][g];
        }
    got = read_lateness(0, ZF_NO_ID, ZF_OK).sum;
    ck_assert(got != all);
    ck_assert_msg(fabs(got - all) < 0.05 * sizes, "%g, want %g of %g", got, all, sizes);
    zt_rig_end(&rig);
}
END_TEST

/* What the host writes is not late; windows whose visible values are known again are measured again. */
START_TEST(after_params_changed) {
    uint32_t id = 0;
    open_rig("[zenflow]\nmode = windows\nfull_warm_up_rounds = 1\n[log]\nlateness = 1\n");
    steps(12);
    flush();
    for (size_t i = 0; i < rig.params[0].n_elems; i++) {
        float x = (float)(i % 7) * 0.125f;
        memcpy(rig.params[0].visible + 4 * i, &x, 4);
        rig.params[0].serial.w[i] = x;
    }
    ZT_OK(&rig, zt_changed(&rig, id, 0));
    steps(20);
    flush();
    ck_assert(check_steps(21, 32) > 0); /* two windows, and that of cohort 3, are not all known */
    for (uint64_t t = 1; t <= 12; t++)
        for (uint32_t g = 0; g < ZT_MAX_GROUPS; g++)
            ck_assert(fabs(read_lateness(t, g, ZF_OK).loss - want[t][g]) <= 1e-5 * size[t][g]);
    zt_rig_end(&rig);
}
END_TEST

START_TEST(reading) {
    zf_lateness_t got = {.struct_size = sizeof got};
    open_rig("[zenflow]\nfull_warm_up_rounds = 1\nupdate_interval = 4\n");
    ck_assert_uint_eq(read_lateness(0, 0, ZF_IN_PROGRESS).step, 0);
    steps(20);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    ck_assert_uint_eq(read_lateness(0, 0, ZF_OK).step,
                      17); /* cohort 0 has closed at 2, 6 ... 18, cohort 3 at 5 ... 17 */
    read_lateness(18, 0, ZF_IN_PROGRESS);
    ck_assert_int_eq(rig.stats->lateness(rig.inst, 0, ZT_MAX_GROUPS, &got, &rig.err), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(rig.stats->lateness(rig.inst, 0, 0, NULL, &rig.err), ZF_ERR_ARGUMENT);
    steps(N_STEPS - 20);
    zt_rig_end(&rig);
}
END_TEST

/* Weights that are past saving: a sum beyond what it can hold stays there and does not turn its sign. */
START_TEST(losses_without_bound) {
    static zfi_meter_t meter;
    zfi_meter_reading_t got;
    zfi_meter_init(&meter);
    ck_assert_int_ne(zfi_meter_reserve(&meter, (zfi_meter_size_t){2, 1, 1}), 0);
    zfi_meter_start(&meter, 1, (zfi_meter_size_t){2, 1, 1}, 0);
    for (int i = 0; i < 3; i++) {
        zfi_meter_add(&meter, 1, 0, 1e30);
        zfi_meter_add(&meter, 1, 1, -INFINITY);
    }
    zfi_meter_close(&meter, 0, 1);
    ck_assert_int_ne(zfi_meter_read(&meter, 1, 0, &got), 0);
    ck_assert(got.loss > 1e4);
    ck_assert_int_ne(zfi_meter_read(&meter, 1, 1, &got), 0);
    ck_assert(got.loss < -1e4);
    zfi_meter_free(&meter);
}
END_TEST

ZT_MAIN("lateness", equals_a_plain_sum, sample_is_unbiased, after_params_changed, reading, losses_without_bound)
