/* SPDX-License-Identifier: Apache-2.0 */
/* exact_state.c - see exact_state.h. */
#include "exact_state.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exact.h"
#include "exact_carried.h"
#include "exact_change.h"
#include "exact_late.h"
#include "exact_store.h"
#include "shard.h"
#include "zf/ext/state.h"

enum { MOST_SAVES = 3 };
typedef enum zx_place { NEW_PROCESS, NEW_INSTANCE, SAME_INSTANCE, AS_IT_IS, N_PLACES } zx_place_t;

/* ---- saving and loading ------------------------------------------------------------------------------------------ */

static const zf_state_ext_t *extension(const zx_run_t *run) {
    return zf_loader_plugin(run->host.loader)->get_extension(ZF_EXT_STATE);
}

/* Where save number n_saves lies. */
static void draw_store(const zx_run_t *run, zx_store_t *out) {
    zx_store_draw(out, run->c->seed, run->c->index, run->n_saves, run->state_path);
    out->is_alone = !run->c->ranks;
}

static uint32_t note_length(const zx_run_t *run) { return (uint32_t)(run->c->index + 7 * run->n_saves) % 20; }

/* What both say of a checkpoint: its step, its note, how many parameters. */
static void check_report(zx_run_t *run, const char *call, const zf_state_report_t *report) {
    zx_where_t where = {.law = run->c->law, .what = call, .step = run->host.step, .element = UINT64_MAX};
    uint32_t n = 0;
    for (uint32_t i = 0; i < run->c->n_params; i++)
        n += (uint32_t)zx_is_trainable(&run->c->params[i]);
    if (report->step != zo_n_steps(run->oracle) + run->late || report->n_params + report->n_missing != n ||
        report->nbytes == 0 || report->note_nbytes != note_length(run))
        zx_fails(run->result, &where,
                 "step %" PRIu64 ", expected %" PRIu64 "; %u parameters, expected %u; %" PRIu64
                 " bytes; a note of %u, expected %u",
                 report->step, zo_n_steps(run->oracle) + run->late, report->n_params + report->n_missing, n,
                 report->nbytes, report->note_nbytes, note_length(run));
}

static int save(zx_run_t *run, int keeps_open) {
    char note[32];
    zx_store_t store;
    zf_state_report_t report = {.struct_size = sizeof report};
    draw_store(run, &store);
    snprintf(note, sizeof note, "%.*s", (int)note_length(run), "a note of a checkpoint");
    zf_status_t st = zx_store_save(&store, extension(run), run->host.instance, keeps_open ? ZF_STATE_KEEP_OPEN : 0,
                                   note[0] ? note : NULL, &report, &run->host.err);
    if (zx_is_call_bad(&run->host, "save", st))
        return -1;
    check_report(run, "save", &report);
    return 0;
}

/* What begins again is refused where it was to go on; so are parameters that come and go, without PARTIAL. Nothing has
 * changed then. */
static int load_in_vain(zx_run_t *run, const zx_store_t *store, const zx_change_t *change) {
    zf_error_t err = {.struct_size = sizeof err};
    zx_where_t where = {.law = run->c->law, .what = "load in vain", .step = run->host.step, .element = UINT64_MAX};
    int is_other_model = change->n_missing + change->n_extra > 0;
    zf_status_t st =
        zx_store_load(store, extension(run), run->host.instance, is_other_model ? 0 : ZF_STATE_CONTINUE, NULL, &err);
    zx_count_drawn(run->result, ZX_FAILED_LOAD, 1);
    if (st == ZF_ERR_CHECKPOINT)
        return 0;
    zx_fails(run->result, &where, "status %d of what does not fit", st);
    return -1;
}

/* A trainer may write and announce weights before it loads: all of that is gone with the load. */
static void write_in_vain(zx_run_t *run, const zx_change_t *change) {
    zx_rng_t rng = zx_rng(run->c->seed, 96, run->c->index + run->n_saves);
    if (run->c->ranks || change->n_missing || !zx_chance(&rng, 35))
        return;
    zx_rng_swap(&run->c->rng, &rng);
    for (uint32_t n = 0; n < 2 * run->c->n_params; n++) {
        uint32_t i = n % run->c->n_params;
        if (!zx_is_trainable(&run->c->params[i]) || zx_chance(&run->c->rng, 40))
            continue;
        if (zx_chance(&run->c->rng, 20))
            zx_host_quiesce(&run->host, ZF_QUIESCE_FLUSH);
        zf_param_item_t item = zx_host_item(&run->host, i);
        if (run->c->params[i].away == ZX_UNFETCHED || run->c->params[i].away == ZX_SPOILT_UNFETCHED)
            zx_host_fetch_items(&run->host, &item, 1);
        void *values = zx_case_values(run->c, &run->c->params[i]);
        zx_host_overwrite(&run->host, i, &(zo_range_t){.id = i}, values, zx_chance(&run->c->rng, 40));
        free(values);
    }
    zx_rng_swap(&run->c->rng, &rng);
}

/* After a load the newest report is the checkpoint's, which misses none. */
static void forget_missing(zx_run_t *run) {
    zo_report_t *r = &run->reports[zo_n_steps(run->oracle)];
    r->n_missing = 0;
    r->first_missing = ZO_NO_ID;
}

/* What is loaded is perhaps loaded again. */
static int load(zx_run_t *run, const zx_change_t *change) {
    zx_rng_t twice = zx_rng(run->c->seed, 99, run->c->index + run->n_saves);
    zx_store_t store;
    zf_status_t st = ZF_OK;
    zf_state_report_t report = {.struct_size = sizeof report};
    zx_where_t where = {.law = run->c->law, .what = "load", .step = run->host.step, .element = UINT64_MAX};
    draw_store(run, &store);
    if ((change->n_missing + change->n_extra > 0 || (!change->continues && (run->c->index + run->n_saves) % 3 == 0)) &&
        load_in_vain(run, &store, change))
        return -1;
    write_in_vain(run, change);
    for (int n = zx_chance(&twice, 25) ? 2 : 1, i = 0; i < n && st >= 0; i++)
        st = zx_store_load(&store, extension(run), run->host.instance,
                           (change->is_partial ? ZF_STATE_PARTIAL : 0) |
                               (change->continues && zx_chance(&twice, 30) ? ZF_STATE_CONTINUE : 0),
                           &report, &run->host.err);
    if (zx_is_call_bad(&run->host, "load", st))
        return -1;
    forget_missing(run);
    zx_run_check_counters(run);
    check_report(run, "load", &report);
    if (report.continues != change->continues || report.n_missing != change->n_missing ||
        report.n_extra != change->n_extra) {
        zx_fails(run->result, &where, "continues %d, expected %d; missing %u, expected %u; extra %u, expected %u",
                 report.continues, change->continues, report.n_missing, change->n_missing, report.n_extra,
                 change->n_extra);
        return -1;
    }
    return 0;
}

/* What a trainer that starts again has in its parameters is not what it had, but for those the checkpoint lacks. */
static void spoil_params(zx_run_t *run) {
    zx_rng_t rng = zx_rng(run->c->seed, 98, run->c->index + run->n_saves);
    zx_rng_swap(&run->c->rng, &rng);
    for (uint32_t i = 0; i < run->c->n_params; i++) {
        zx_param_t *p = &run->c->params[i];
        if (!zx_is_trainable(p) || (run->n_before > 0 && run->origins[i] == ZO_NO_ID))
            continue;
        void *values = zx_case_values(run->c, p);
        zx_host_write(&run->host, p->array, values);
        free(values);
    }
    zx_rng_swap(&run->c->rng, &rng);
}

/* The host begins anew, with another configuration and other parameters where it is moving. is_dry: it goes on to a
 * later save, without the plugin. */
static int reopen(zx_run_t *run, zx_change_t *change, int is_moving, int is_dry) {
    const zf_loader_t *loader = run->host.loader;
    zx_host_sync(&run->host);
    zx_host_close(&run->host, 0);
    run->result->is_muted = is_dry;
    zx_carried_restore(run, 0);
    if (is_moving)
        zx_run_move(run, change);
    zx_run_forget(run);
    if (!is_dry)
        spoil_params(run);
    run->n_before = 0;
    run->is_dry = is_dry;
    run->is_released = 0;
    if (zx_host_open(&run->host, run->c, run->result, loader, is_dry))
        return -1;
    run->host.step = zo_n_steps(run->oracle);
    return 0;
}

/* ---- a new process ----------------------------------------------------------------------------------------------- */

/* Law 4: another instruction set and number of workers. */
static uint32_t change_machine(const zx_run_t *run) {
    const char *isa = getenv("ZF_FORCE_ISA");
    uint32_t n = run->forced_threads ? run->forced_threads : run->c->threads;
    if (!isa || strcmp(isa, "generic") != 0)
        setenv("ZF_FORCE_ISA", "generic", 1);
#if defined(__x86_64__)
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        setenv("ZF_FORCE_ISA", "avx2", 1);
#elif defined(__aarch64__)
    else
        setenv("ZF_FORCE_ISA", "neon", 1);
#endif
    return n % 4 + 1;
}

static void become_child(const zx_run_t *run) {
    char list[64];
    zx_options_t options = {.plugin = run->plugin,
                            .seed = run->c->seed,
                            .threads = run->forced_threads,
                            .resume = run->n_saves,
                            .state = run->state_path};
    snprintf(list, sizeof list, "%d:%" PRIu64, run->c->law, run->c->index);
    if (run->c->law == 4)
        options.threads = change_machine(run);
    zx_become_child(&options, list);
}

/* Takes over what the child found; 0 where it said so. */
static int take_lines(zx_run_t *run, FILE *from) {
    char line[1400];
    zx_done_t done;
    int is_done = 0;
    while (fgets(line, sizeof line, from)) {
        if (line[0] == '|') {
            fputs(line, stdout);
            run->result->is_told = 1;
        } else if (zx_read_done(line, &done) == 0) {
            zx_where_t where = {.law = done.broken, .what = "in a new process", .element = UINT64_MAX};
            is_done = 1;
            for (int i = 1; i <= ZX_N_LAWS; i++)
                zx_count(run->result, i, done.n_values[i]);
            for (int i = 0; i < ZX_N_DRAWN; i++)
                zx_count_drawn(run->result, i, done.n_drawn[i]);
            if (done.broken)
                zx_fails(run->result, &where, "see above");
        }
    }
    return is_done ? 0 : -1;
}

static void go_on_in_a_new_process(zx_run_t *run) {
    zx_where_t where = {.law = run->c->law, .what = "a new process", .step = run->host.step, .element = UINT64_MAX};
    int fd, status = 0;
    pid_t pid = zx_fork(&fd);
    if (pid < 0) {
        zx_fails(run->result, &where, "cannot be started");
        return;
    }
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* ended for its silence, this process takes that one along */
        become_child(run);
    }
    FILE *from = fdopen(fd, "r");
    if (take_lines(run, from))
        zx_fails(run->result, &where, "died before it was done");
    fclose(from);
    waitpid(pid, &status, 0);
    run->is_over = 1;
}

/* ---- the save point ---------------------------------------------------------------------------------------------- */

/* The run goes on from its save in another place, or in this one. */
static void go_on(zx_run_t *run, zx_place_t place, int is_moving) {
    zx_change_t change = {.continues = 1};
    zx_store_t store;
    draw_store(run, &store);
    if (place != AS_IT_IS || run->c->law == 4)
        zx_late_move(run, &store, !is_moving, !run->is_dry);
    if (!run->is_dry && (place == NEW_PROCESS || run->c->law == 4)) {
        go_on_in_a_new_process(run);
    } else if (run->is_dry && run->n_saves != run->resume) { /* another process has done so */
        run->is_released = 0;
        if (is_moving)
            reopen(run, &change, is_moving, 1);
    } else if (run->is_dry || is_moving || place == NEW_INSTANCE) {
        if (reopen(run, &change, is_moving, 0) == 0)
            load(run, &change);
    } else if (place == SAME_INSTANCE) {
        load(run, &change);
    }
    if (place != AS_IT_IS || run->c->law == 4)
        zx_carried_brought(run->c);
}

void zx_run_save_point(zx_run_t *run) {
    zx_case_t *c = run->c;
    int is_due = zx_chance(&c->rng, 25), keeps_open = zx_chance(&c->rng, 20), is_moving, is_released;
    zx_place_t place = (zx_place_t)zx_below(&c->rng, N_PLACES);
    if (!zx_law_saves(c->law) || !is_due || run->n_saves == MOST_SAVES)
        return;
    if (keeps_open && place == AS_IT_IS && c->law == 4)
        place = SAME_INSTANCE;
    run->n_saves++;
    run->is_kept_open = keeps_open;
    zx_run_announce_all(run);
    is_released = zx_run_release(run, 50);
    if (!run->is_dry) {
        zx_host_sync(&run->host);
        if (save(run, keeps_open))
            return;
    }
    zx_host_settle(&run->host, 1); /* a save drains: what was borrowed until a report is the host's again */
    run->host.is_quiet = 1;
    zo_rest(run->oracle);
    if (!keeps_open || place != AS_IT_IS)
        zo_save(run->oracle);
    if (!keeps_open && !is_released && zx_chance(&run->more, 80)) /* what it leaves shown */
        zx_run_look(run, 1);
    is_moving = zx_run_is_moving(run) && place != AS_IT_IS;
    if (place != AS_IT_IS || run->c->law == 4)
        zo_loaded(run->oracle);
    /* FLUSH comes with resume, and a set that freezes a parameter shows it. Others are destroyed as they are. */
    if (is_released && (place == SAME_INSTANCE || place == AS_IT_IS || keeps_open || is_moving))
        zx_run_resume(run);
    go_on(run, place, is_moving);
    run->is_kept_open = 0;
}

/* ---- several ranks ----------------------------------------------------------------------------------------------- */

static void load_move(zx_run_t *run, const zx_change_t *change) {
    const zs_ranks_t *ranks = run->c->ranks;
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_state_args_t args = {.struct_size = sizeof args, .path = ranks->moves_through};
    zx_where_t where = {.law = run->c->law, .what = "load", .step = run->host.step, .element = UINT64_MAX};
    zf_status_t st = extension(run)->load(run->host.instance, &args, &report, &run->host.err);
    if (zx_is_call_bad(&run->host, "load", st))
        return;
    if (report.continues != change->continues || report.step != zo_n_steps(run->oracle))
        zx_fails(run->result, &where, "continues %d, expected %d; step %" PRIu64 ", expected %" PRIu64,
                 report.continues, change->continues, report.step, zo_n_steps(run->oracle));
}

static void save_move(zx_run_t *run) {
    const zs_ranks_t *ranks = run->c->ranks;
    zf_state_args_t args = {.struct_size = sizeof args,
                            .flags = ZF_STATE_NO_SYNC | (ranks->keeps_open ? ZF_STATE_KEEP_OPEN : 0),
                            .path = ranks->moves_through};

    zx_host_sync(&run->host);
    int is_released = zx_run_release(run, 50);
    zx_is_call_bad(&run->host, "save", extension(run)->save(run->host.instance, &args, NULL, &run->host.err));
    if (is_released)
        zx_run_resume(run);
}

void zx_run_move_point(zx_run_t *run) {
    zs_ranks_t *ranks = run->c->ranks;
    zx_change_t change;
    if (!ranks || ranks->moves_at != zo_n_steps(run->oracle))
        return;
    ranks->moves_at = 0;
    if (!run->is_dry)
        save_move(run);
    zx_host_settle(&run->host, 1);
    run->host.is_quiet = 1;
    zo_rest(run->oracle);
    if (run->is_dry || !ranks->keeps_open)
        zo_save(run->oracle);
    if (!run->is_dry)
        return;
    zs_take_over(ranks, run->c);
    zx_run_resplit(run, &change);
    ranks->expected_nbytes = 0; /* of steps that no plugin has made */
    if (reopen(run, NULL, 0, 0) == 0)
        load_move(run, &change);
}
