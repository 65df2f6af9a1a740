/* SPDX-License-Identifier: Apache-2.0 */
/* test_lateness.c - the meter of lateness against a plain sum over what the host itself reads, and on several ranks.
 *
 * Gradients do not depend on the weights here, so the serial AdamW holds what every step should have seen, and the
 * host's memory holds what it did see. A selected channel sees what it should, so the plain sum runs over all. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "instance/meter.h"
#include "local_ranks.h"
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

/* What the coming step costs. */
static void measure(uint64_t step) {
    for (uint32_t id = 0; id < rig.n_params; id++) {
        const zt_param_t *p = &rig.params[id];
        zt_rig_fill_grad(&rig, id, step);
        for (size_t i = 0; i < p->n_elems; i++) {
            double late = (double)zt_visible(p, i) - (double)zt_rounded(p, p->serial.w[i]);
            double part = (rig.unscale != 0 ? rig.unscale : 1) * (double)p->grad_values[i] * late;
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

ZT_TEST(equals_a_plain_sum) {
    for (size_t i = 0; i<sizeof schedules / sizeof *schedules; i += ZT_EVERY> 1 ? 2 : 1)
        run_schedule(schedules[i]);
}

/* One block of three, chosen anew in every window. A matrix has 1 to 50 blocks, so single steps stray widely. */
ZT_TEST(sample_is_unbiased) {
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

/* What the host writes is not late; windows whose visible values are known again are measured again. */
ZT_TEST(after_params_changed) {
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

ZT_TEST(reading) {
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

/* Weights that are past saving: a sum beyond what it can hold stays there and does not turn its sign. */
ZT_TEST(losses_without_bound) {
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

/* ---- several ranks ----------------------------------------------------------------------------------------------- */

/* Each keeps a part of the state: every one reads what one rank alone would, and all the same bits. Every rank has the
 * same gradients, whose average is exact. */
static const zt_shape_t averaged[] = {{.rows = 48, .cols = 40, .flags = ZF_PARAM_AVERAGE},
                                      {.rows = 40, .flags = ZF_PARAM_AVERAGE},
                                      {.rows = 64, .cols = 33, .is_bf16 = 1, .group = 1, .flags = ZF_PARAM_AVERAGE},
                                      {.rows = 3, .cols = 5, .group = 1, .flags = ZF_PARAM_AVERAGE}};
enum { N_AVERAGED = sizeof averaged / sizeof *averaged, MOST = 4, RANK_STEPS = 24, KNOWN = 20, AFTER = 3, GROUPS = 2 };

typedef struct job {
    ZT_JOB;
    double loss[KNOWN + 1][GROUPS], sum;
} job_t;

static zt_ranks_t ranks;

static void train(job_t *job, int n) {
    zt_rig_steps(&job->rig, n);
    ZT_OK(&job->rig, zt_quiesce(&job->rig, ZF_QUIESCE_DRAIN));
}

/* What is complete by step RANK_STEPS, and told since. */
static void read_all(job_t *job) {
    for (uint64_t t = 1; t <= KNOWN; t++)
        for (uint32_t g = 0; g < GROUPS; g++) {
            zf_lateness_t got = {.struct_size = sizeof got};
            ck_assert_int_eq(job->rig.stats->lateness(job->rig.inst, t, g, &got, &job->rig.err), ZF_OK);
            job->loss[t][g] = got.loss;
            job->sum += got.loss;
        }
}

static void *run(void *raw) {
    job_t *job = raw;
    if (!zt_job_open(job, averaged, N_AVERAGED))
        return NULL;
    train(job, RANK_STEPS);
    train(job, AFTER);
    return NULL;
}

#define WINDOWS "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 2\npublish_lag = "
#define REST "\n[host]\nthreads = 2\ndeadline_ms = 60000\n[log]\nlevel = error\nlateness = 1\n[shard]\nstage = "

/* The same training on n ranks and on one. */
static void compare(uint32_t n, const char *config) {
    static job_t jobs[MOST], alone;
    static zt_ranks_t one;
    const job_t as = {.config = config};
    zt_jobs_start(&ranks, n, jobs, sizeof *jobs, &as);
    zt_jobs_run(&ranks, run, 0);
    zt_jobs_start(&one, 1, &alone, sizeof alone, &as);
    zt_jobs_run(&one, run, 0);
    read_all(&alone);
    ck_assert(alone.sum != 0);
    for (uint32_t r = 0; r < n; r++) {
        read_all(&jobs[r]);
        ck_assert_mem_eq(jobs[r].loss, jobs[0].loss, sizeof jobs[0].loss);
        for (int t = 1; t <= KNOWN; t++)
            for (int g = 0; g < GROUPS; g++)
                ck_assert_msg(fabs(jobs[r].loss[t][g] - alone.loss[t][g]) <= 1e-6 * (1 + fabs(alone.loss[t][g])),
                              "rank %u, step %d, group %d: %.9g, alone %.9g", r, t, g, jobs[r].loss[t][g],
                              alone.loss[t][g]);
    }
    zt_jobs_end(&one);
    zt_jobs_end(&ranks);
}

ZT_TEST(every_rank_reads_what_one_would) {
    compare(2, WINDOWS "0" REST "1\nbucket_bytes = 1000\n");
    compare(4, WINDOWS "1" REST "1\nbucket_bytes = 1000\n");
    compare(3, WINDOWS "0" REST "2\n"); /* in one bucket: parts begin and end within rows */
    compare(2, WINDOWS "0" REST "0\n");
}

/* A part of the state is not measured by some alone. */
ZT_TEST(all_measure_or_none) {
    static job_t jobs[2];
    zt_jobs_start(&ranks, 2, jobs, sizeof *jobs, &(job_t){.config = WINDOWS "0" REST "1\nbucket_bytes = 1000\n"});
    jobs[1].config =
        WINDOWS "0\n[host]\nthreads = 2\ndeadline_ms = 60000\n[log]\nlevel = error\nlateness = 0\n[shard]\n"
                "stage = 1\nbucket_bytes = 1000\n";
    zt_jobs_run(&ranks, run, 1);
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert_int_lt(jobs[r].st, 0);
        zt_contains(jobs[r].rig.err.message, "[log] lateness = 1");
    }
    zt_jobs_end(&ranks);
}

/* ---- the meter alone --------------------------------------------------------------------------------------------- */

enum { METERS = 3, BURST = 3 * ZFI_METER_SHARED };
static zfi_meter_t meters[METERS];

/* As the ranks do with every step. */
static void join_all(void) {
    union {
        zfi_meter_share_t share;
        unsigned char room[sizeof(zfi_meter_share_t) + 8 * ZFI_METER_SHARED * GROUPS];
    } told[METERS];
    for (int r = 0; r < METERS; r++)
        zfi_meter_share(&meters[r], &told[r].share);
    for (int r = 0; r < METERS; r++)
        for (uint32_t from = 0; from < METERS; from++)
            zfi_meter_join(&meters[r], from, &told[from].share);
}

static uint64_t newest_of(int r) {
    zfi_meter_reading_t got;
    (void)zfi_meter_read(&meters[r], 0, UINT32_MAX, &got);
    return got.step;
}

/* Ranks are ahead of each other, one has nothing, and more steps become complete at once than a share holds. */
ZT_TEST(a_step_counts_once_all_have_told) {
    zfi_meter_reading_t got;
    ck_assert_uint_eq(zfi_meter_share_nbytes(GROUPS), sizeof(zfi_meter_share_t) + 8 * ZFI_METER_SHARED * GROUPS);
    for (int r = 0; r < METERS; r++) {
        const zfi_meter_size_t room = {GROUPS, 1, METERS};
        zfi_meter_init(&meters[r]);
        ck_assert_int_ne(zfi_meter_reserve(&meters[r], room), 0);
        zfi_meter_start(&meters[r], 1, room, 0);
    }
    zfi_meter_close(&meters[2], 0, UINT64_MAX);
    for (uint64_t t = 1; t <= BURST; t++)
        for (int r = 0; r < 2; r++)
            zfi_meter_add(&meters[r], t, r == 1, (double)t * (r + 1));
    zfi_meter_close(&meters[0], 0, BURST);
    zfi_meter_close(&meters[1], 0, 2);
    join_all();
    for (int r = 0; r < METERS; r++)
        ck_assert_uint_eq(newest_of(r), 2);
    zfi_meter_close(&meters[1], 0, BURST);
    for (uint64_t i = 1; i <= 3; i++) {
        join_all();
        for (int r = 0; r < METERS; r++)
            ck_assert_uint_eq(newest_of(r), i < 3 ? i * ZFI_METER_SHARED + 2 : BURST);
    }
    for (int r = 0; r < METERS; r++) {
        for (uint64_t t = 1; t <= BURST; t++)
            for (uint32_t g = 0; g < GROUPS; g++) {
                ck_assert_int_ne(zfi_meter_read(&meters[r], t, g, &got), 0);
                ck_assert(got.loss == (double)t * (g + 1));
            }
        ck_assert_uint_eq(got.n_steps, BURST);
        ck_assert(got.sum == BURST * (BURST + 1)); /* of group 1 */
        zfi_meter_free(&meters[r]);
    }
}

ZT_SUITE("lateness")
