/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/metrics.c - counters for Prometheus (contract in metrics.h). Each writing makes a new file beside the
 * old one and renames it, so that a reader never sees half of one. A writing that fails is told once and training goes
 * on. */
#include "hooks/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/timeline.h"

enum { PATH_NBYTES = ZFI_TEXT_NBYTES + 64 };

/* One value: where it lies in zf_stats_t, and in what unit it is shown. */
typedef struct metric {
    const char *name, *type, *what;
    size_t at;
    int is_ns;
} metric_t;

#define AT(member) offsetof(zf_stats_t, member)
static const metric_t metrics[] = {
    {"steps_total", "counter", "Steps submitted.", AT(steps), 0},
    {"steps_applied_total", "counter", "Steps finished and applied.", AT(steps_applied), 0},
    {"steps_skipped_total", "counter", "Steps skipped because of non-finite gradients.", AT(steps_skipped), 0},
    {"window_closes_total", "counter", "Windows of cohorts that closed.", AT(window_closes), 0},
    {"reselects_total", "counter", "Choices of channels.", AT(reselects), 0},
    {"down_grad_bytes_total", "counter", "Gradients over the link to the host.", AT(down_grad_nbytes), 0},
    {"up_publish_bytes_total", "counter", "Published values over the link to the device.", AT(up_publish_nbytes), 0},
    {"host_bytes", "gauge", "Host memory that is mapped.", AT(host_measured_nbytes), 0},
    {"device_bytes", "gauge", "Device memory that is mapped.", AT(device_measured_nbytes), 0},
    {"slot_chunks_peak", "gauge", "Pieces of slot memory in use, at most.", AT(slot_chunks_peak), 0},
    {"stall_replay_seconds_total", "counter", "The device waited for replays or their publication.",
     AT(stall_replay_ns), 1},
    {"stall_select_seconds_total", "counter", "The device waited for a selection.", AT(stall_select_ns), 1},
    {"stall_pool_seconds_total", "counter", "Copies waited for slot memory.", AT(stall_pool_ns), 1},
    {"stall_ranks_seconds_total", "counter", "The device waited for other ranks.", AT(stall_ranks_ns), 1},
    {"host_wait_seconds_total", "counter", "Hooks waited.", AT(host_wait_ns), 1},
    {"replay_seconds_total", "counter", "Time of all workers in replays.", AT(replay_ns), 1},
    {"replay_elements_total", "counter", "Elements replayed, times slots.", AT(replay_elems), 0},
    {"exchanges_total", "counter", "Collectives that are over.", AT(exchanges), 0},
    {"sent_bytes_total", "counter", "Sent to other ranks.", AT(sent_nbytes), 0},
};
#undef AT

/* NAME.prom, of several ranks NAME.rank3.prom. */
static void name_file(const zfi_engine_t *engine, char out[PATH_NBYTES]) {
    const char *file = engine->config.stats_file, *base = strrchr(file, '/'), *end = strrchr(base ? base : file, '.');
    int n = end ? (int)(end - file) : (int)strlen(file);
    char rank[24] = "";
    if (zfi_n_ranks(engine) > 1)
        snprintf(rank, sizeof rank, ".rank%" PRIu32, zfi_rank(engine));
    snprintf(out, PATH_NBYTES, "%.*s%s%s", n, file, rank, file + n);
}

/* All of a metric but its value. */
static void print_name(FILE *to, const char *name, const char *type, const char *what, uint32_t rank) {
    fprintf(to, "# HELP zfplugin_%s %s\n# TYPE zfplugin_%s %s\nzfplugin_%s{rank=\"%" PRIu32 "\"} ", name, what, name,
            type, name, rank);
}

static void print_value(FILE *to, const char *name, const char *type, const char *what, uint32_t rank, double value) {
    print_name(to, name, type, what, rank);
    fprintf(to, "%.9g\n", value);
}

static void print_steady(FILE *to, const zf_stats_t *stats, const zfi_steady_t *steady, uint32_t rank) {
    int has_begun = steady->n_settled == ZFI_SETTLE;
    print_value(to, "steady_steps", "gauge", "Steps behind warm-up and 8 more.", rank, (double)steady->n_steps);
    print_value(to, "steady_seconds", "gauge", "Time of the trainer in these steps.", rank,
                1e-9 * (double)(steady->newest_ns - steady->began_ns));
    print_value(to, "steady_stall_seconds", "gauge",
                "The device waited for replays, selections or slot memory in these steps.", rank,
                1e-9 * (double)(steady->stall_ns - steady->stall_before_ns));
    print_value(to, "steady_lateness_sum", "gauge", "Loss that old weights cost in these steps, to first order.", rank,
                has_begun ? stats->lateness_sum - steady->lateness_sum_before : 0);
    print_value(to, "steady_lateness_steps", "gauge", "Steps in that sum.", rank,
                has_begun ? (double)(stats->lateness_steps - steady->lateness_steps_before) : 0);
}

static void print_metrics(FILE *to, const zf_stats_t *stats, uint32_t rank) {
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        const metric_t *metric = &metrics[i];
        uint64_t value;
        memcpy(&value, (const char *)stats + metric->at, sizeof value);
        print_name(to, metric->name, metric->type, metric->what, rank);
        if (metric->is_ns)
            fprintf(to, "%.9f\n", 1e-9 * (double)value);
        else
            fprintf(to, "%" PRIu64 "\n", value);
    }
    print_value(to, "lateness_sum", "gauge", "Loss that old weights cost, to first order, summed over steps.", rank,
                stats->lateness_sum);
    print_name(to, "lateness_steps_total", "counter", "Steps in that sum.", rank);
    fprintf(to, "%" PRIu64 "\n", stats->lateness_steps);
    print_value(to, "update_interval", "gauge", "Steps per window, S.", rank, stats->update_interval);
    print_value(to, "publish_lag", "gauge", "Steps from a window's close to its values.", rank, stats->publish_lag);
}

/* What is written by another thread than the one that counts steps: these are handed over. */
typedef struct writing {
    zf_instance_t *inst;
    zfi_steady_t steady;
} writing_t;

/* 0, or errno. */
static int write_metrics(const writing_t *writing) {
    zf_instance_t *inst = writing->inst;
    char path[PATH_NBYTES], fresh[PATH_NBYTES + 8];
    locale_t c, was = (locale_t)0;
    zf_stats_t stats;
    FILE *to;
    int rc;
    name_file(&inst->engine, path);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    zfi_stats_fill(inst, &stats);
    to = fopen(fresh, "we");
    if (!to)
        return errno;
    c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (c != (locale_t)0) /* else the host's decimal sign; no memory for a locale is no reason to write nothing */
        was = uselocale(c);
    print_metrics(to, &stats, zfi_rank(&inst->engine));
    print_steady(to, &stats, &writing->steady, zfi_rank(&inst->engine));
    if (c != (locale_t)0) {
        (void)uselocale(was);
        freelocale(c);
    }
    rc = ferror(to) ? EIO : 0;
    if (fclose(to) != 0)
        rc = errno;
    if (!rc && rename(fresh, path) != 0)
        rc = errno;
    if (rc)
        (void)remove(fresh);
    return rc;
}

static void write_and_tell(void *raw) {
    const writing_t *writing = raw;
    const zfi_engine_t *engine = &writing->inst->engine;
    int rc = write_metrics(writing);
    if (rc)
        zfi_log(engine, ZF_LOG_WARN, "stats", "%s was not written: %s", engine->config.stats_file, strerror(rc));
}

static uint64_t due_from(const zf_instance_t *inst, uint64_t now) {
    uint64_t interval_s = inst->engine.config.stats_interval_s;
    return interval_s ? now + interval_s * 1000000000u : 0;
}

zf_status_t zfi_metrics_begin(zf_instance_t *inst, zf_error_t *err) {
    writing_t writing = {.inst = inst};
    int rc;
    if (!*inst->engine.config.stats_file)
        return ZF_OK;
    rc = write_metrics(&writing);
    if (rc)
        return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, rc, "create", "[stats] prometheus = %s: %s",
                                inst->engine.config.stats_file, strerror(rc));
    inst->has_metrics = 1;
    inst->metrics_due_ns = due_from(inst, zfi_now_ns());
    return ZF_OK;
}

static void count_step(zf_instance_t *inst, uint64_t now) {
    zfi_steady_t *steady = &inst->steady;
    if (zfi_is_warm_up(&inst->engine.config, inst->run->clock.t)) {
        *steady = (zfi_steady_t){0};
    } else if (steady->n_settled == ZFI_SETTLE) {
        steady->n_steps++;
        steady->newest_ns = now;
        steady->stall_ns = zfi_stalled_ns(&inst->engine.count);
    } else if (++steady->n_settled == ZFI_SETTLE) {
        zfi_meter_reading_t lateness;
        (void)zfi_meter_read(&inst->engine.meter, 0, UINT32_MAX, &lateness);
        steady->began_ns = steady->newest_ns = now;
        steady->stall_before_ns = steady->stall_ns = zfi_stalled_ns(&inst->engine.count);
        steady->lateness_steps_before = lateness.n_steps;
        steady->lateness_sum_before = lateness.sum;
    }
}

void zfi_metrics_step(zf_instance_t *inst) {
    writing_t writing;
    uint64_t now;
    if (!inst->has_metrics)
        return;
    now = zfi_now_ns();
    count_step(inst, now);
    if (!inst->metrics_due_ns || now < inst->metrics_due_ns)
        return;
    inst->metrics_due_ns = due_from(inst, now);
    writing = (writing_t){.inst = inst, .steady = inst->steady};
    (void)zfi_serial_start(inst->engine.control, write_and_tell, &writing, sizeof writing);
}

void zfi_metrics_end(zf_instance_t *inst) {
    writing_t writing = {.inst = inst, .steady = inst->steady};
    if (inst->has_metrics)
        write_and_tell(&writing);
}
