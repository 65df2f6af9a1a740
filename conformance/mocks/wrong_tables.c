/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_tables.c - as wrong_sentences.c, of the extensions' tables (wrong.h). */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wrong.h"
#include "zf/ext/config.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/draft/plan.h"
#include "zf/ext/residency.h"
#include "zf/ext/state.h"
#include "zf/ext/stats.h"

/* ---- zf.state/1 -------------------------------------------------------------------------------------------------- */

static const zf_state_ext_t *state;
static const zf_state_store_t *given;
static zf_state_store_t store;

static int32_t end_nothing(void *ctx) {
    (void)ctx;
    return 0;
}

static void remove_foreign(const char *path) {
    char name[4600];
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.' && strncmp(e->d_name, "zf_state", 8) != 0)
            unlink(name);
    }
    if (dir)
        closedir(dir);
}

static void after_save(const char *path) {
    char beside[4400];
    snprintf(beside, sizeof beside, "%s.zf-save-0123456789abcdef", path);
    if (IS(save_leaves_rest))
        mkdir(beside, 0700);
    if (IS(mode_of_save_lost))
        chmod(path, 0711);
}

static zf_status_t save(zf_instance_t *x, const zf_state_args_t *args, zf_state_report_t *out, zf_error_t *err) {
    zf_state_args_t mine;
    if (!args || args->struct_size != sizeof mine)
        return state->save(x, args, out, err);
    mine = *args;
    if (IS(keep_open_lost))
        mine.flags &= ~ZF_STATE_KEEP_OPEN;
    if (IS(foreign_replaced) && mine.path)
        remove_foreign(mine.path);
    if (IS(store_end_lost) && mine.store) {
        store = *(given = mine.store);
        store.end = end_nothing;
        mine.store = &store;
    }
    zf_status_t st = state->save(x, &mine, out, err);
    if (st == ZF_OK && mine.path)
        after_save(mine.path);
    return st;
}

static zf_status_t load(zf_instance_t *x, const zf_state_args_t *args, zf_state_report_t *out, zf_error_t *err) {
    zf_status_t st = state->load(x, args, out, err);
    if (IS(note_length_lost) && st == ZF_OK && out && out->struct_size == sizeof *out)
        out->note_nbytes = 0;
    return st;
}

static zf_status_t note(const zf_state_args_t *args, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = state->note(args, buf, nbytes, err);
    if (IS(note_overruns) && st == ZF_OK && nbytes && strlen(buf) == nbytes - 1)
        buf[nbytes] = '\0';
    return st;
}

static zf_status_t verify(const zf_state_args_t *args, zf_state_report_t *out, zf_error_t *err) {
    zf_status_t st = state->verify(args, out, err);
    if (IS(verify_counts_nothing) && st == ZF_OK && out && out->struct_size == sizeof *out)
        out->n_params = 0, out->step = 0;
    return st;
}

static zf_status_t weights(const zf_state_args_t *args, const char *param, float *out, uint64_t n_elems,
                           zf_error_t *err) {
    zf_status_t st = state->weights(args, param, out, n_elems, err);
    return IS(weights_of_any_size) && st == ZF_ERR_SHAPE ? ZF_OK : st;
}

static const void *wrap_state(const void *table) {
    static zf_state_ext_t mine;
    mine = *(state = table);
    mine.save = save, mine.load = load, mine.note = note, mine.verify = verify, mine.weights = weights;
    return &mine;
}

/* ---- zf.stats/1, zf.config/1 ------------------------------------------------------------------------------------- */

static const zf_stats_ext_t *stats;
static const zf_config_ext_t *config;
static zf_instance_t *asked; /* last */

static zf_status_t counter(zf_instance_t *x, uint32_t i, zf_counter_t *out, zf_error_t *err) {
    asked = x ? x : asked;
    return stats->counter(x ? x : asked, i, out, err);
}

static zf_status_t step_record(zf_instance_t *x, uint64_t step, zf_step_record_t *out, zf_error_t *err) {
    return stats->step_record(x, step ? step : 1, out, err);
}

static zf_status_t step_counter(zf_instance_t *x, uint64_t step, uint32_t i, zf_counter_t *out, zf_error_t *err) {
    return stats->step_counter(x, step > 1 ? step - 1 : step, i, out, err);
}

static const void *wrap_stats(const void *table) {
    static zf_stats_ext_t mine;
    mine = *(stats = table);
    if (IS(counter_of_nobody))
        mine.counter = counter;
    if (IS(newest_record_is_first))
        mine.step_record = step_record;
    if (IS(step_counter_behind))
        mine.step_counter = step_counter;
    return &mine;
}

static zf_status_t value(zf_instance_t *x, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = config->value(x, i, buf, nbytes, err);
    if (st == ZF_OK && nbytes && strlen(buf) == nbytes - 1)
        buf[nbytes] = '\0';
    return st;
}

static zf_status_t check(const char *text, uint64_t nbytes, const char *const *overrides, uint32_t n, zf_error_t *err) {
    (void)overrides, (void)n;
    return config->check(text, nbytes, NULL, 0, err);
}

static const void *wrap_config(const void *table) {
    static zf_config_ext_t mine;
    mine = *(config = table);
    if (IS(value_overruns))
        mine.value = value;
    if (IS(check_without_overrides))
        mine.check = check;
    return &mine;
}

/* ---- zf.cpu/1, zf.residency/1, zf.plan/0, zf.inspect/0 ------------------------------------------------------------
 */

static const zf_residency_ext_t *residency;
static const zf_plan_ext_t *plan;
static const zf_inspect_ext_t *inspect;

static zf_status_t queue_sync(zf_cpu_queue_t *queue, uint64_t timeout_ns, zf_error_t *err) {
    (void)queue, (void)timeout_ns, (void)err;
    return ZF_OK;
}

static zf_status_t queue_launch(zf_cpu_queue_t *queue, void (*fn)(void *), void *arg, zf_error_t *err) {
    (void)queue, (void)err;
    fn(arg);
    return ZF_OK;
}

static const void *wrap_cpu(const void *table) {
    static zf_cpu_ext_t mine;
    mine = *(const zf_cpu_ext_t *)table;
    if (IS(queue_sync_early))
        mine.queue_sync = queue_sync;
    if (IS(queue_runs_at_once))
        mine.queue_launch = queue_launch;
    return &mine;
}

static zf_status_t release(zf_instance_t *x, uint32_t what, const zf_stream_t *stream, zf_fence_t *out,
                           zf_error_t *err) {
    zf_status_t st = residency->release(x, what, stream, out, err);
    if (st == ZF_OK)
        residency->resume(x, stream, NULL, NULL);
    return st;
}

static zf_status_t resume(zf_instance_t *x, const zf_stream_t *stream, zf_fence_t *out, zf_error_t *err) {
    zf_status_t st = residency->resume(x, stream, out, err);
    return st == ZF_ERR_STATE ? ZF_OK : st;
}

static const void *wrap_residency(const void *table) {
    static zf_residency_ext_t mine;
    mine = *(residency = table);
    if (IS(release_keeps))
        mine.release = release, mine.resume = resume;
    return &mine;
}

static zf_status_t plan_of_one(const zf_plan_args_t *args, zf_plan_t *out, zf_error_t *err) {
    zf_plan_args_t mine;
    if (!args || args->struct_size != sizeof mine)
        return plan->plan(args, out, err);
    mine = *args;
    mine.n_ranks = mine.rank = 0;
    return plan->plan(&mine, out, err);
}

static const void *wrap_plan(const void *table) {
    static zf_plan_ext_t mine;
    mine = *(plan = table);
    if (IS(plan_of_one_rank))
        mine.plan = plan_of_one;
    return &mine;
}

static zf_status_t read_state(zf_instance_t *x, uint32_t id, zf_inspect_out_t *out, zf_error_t *err) {
    zf_status_t st = inspect->read(x, id, out, err);
    for (uint64_t i = 0; st == ZF_OK && out->n && i < out->n_elems; i++)
        out->n[i] += out->n[i] > 3;
    return st;
}

static const void *wrap_inspect(const void *table) {
    static zf_inspect_ext_t mine;
    mine = *(inspect = table);
    if (IS(updates_miscounted))
        mine.read = read_state;
    return &mine;
}

/* ---- by id ------------------------------------------------------------------------------------------------------- */

const void *wrong_break_table(const char *id, const void *table) {
    static const struct {
        const char *id;
        const void *(*wrap)(const void *);
    } own[] = {{ZF_EXT_STATE, wrap_state},    {ZF_EXT_STATS, wrap_stats},         {ZF_EXT_CONFIG, wrap_config},
               {ZF_EXT_CPU, wrap_cpu},        {ZF_EXT_RESIDENCY, wrap_residency}, {ZF_EXT_PLAN, wrap_plan},
               {ZF_EXT_INSPECT, wrap_inspect}};
    for (size_t i = 0; table && i < sizeof own / sizeof *own; i++)
        if (strcmp(id, own[i].id) == 0)
            return own[i].wrap(table);
    return table;
}
