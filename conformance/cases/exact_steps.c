/* SPDX-License-Identifier: Apache-2.0 */
/* exact_steps.c - see exact_steps.h. */
#include "exact_steps.h"
#include "exact_between.h"
#include "exact_carried.h"
#include "exact_change.h"
#include "exact_damage.h"
#include "exact_device.h"
#include "exact_gradients.h"
#include "exact_state.h"
#include "exact_wide_calls.h"
#include "shard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zf/ext/state.h"

/* At times none that a step may have: not finite, or negative. */
static double draw_host_norm(zx_run_t *run) {
    zx_rng_t *r = &run->c->rng;
    static const double extremes[] = {0.0, 0x1p-1074, 1e-300, 1e-10, 1e39, 1e300};
    int is_bad = zx_chance(r, 8);
    double norm = is_bad ? (zx_chance(r, 50) ? NAN : INFINITY) : zx_log_uniform(r, 1e-3, 1e3);
    if (!is_bad && zx_chance(&run->more, 8))
        return extremes[zx_below(&run->more, 6)];
    return is_bad && zx_chance(&run->more, 40) ? -1.5 : norm;
}

/* An audited step drains. */
static void audit(zx_run_t *run) {
    const zx_case_t *c = run->c;
    uint64_t t = zo_n_steps(run->oracle) + run->late;
    uint32_t every = c->audit_every ? c->audit_every : 1;
    if (!strstr(c->config_text, "[audit]") || t % every)
        return;
    zo_rest(run->oracle);
    run->audited = realloc(run->audited, (run->n_audited + 1u) * sizeof *run->audited);
    if (!run->audited)
        abort();
    if (!run->is_dry)
        run->audited[run->n_audited++] = t;
}

/* Those steps stand in the file, by the numbers that reports have. */
static void check_audits(zx_run_t *run) {
    zx_where_t where = {.law = 2, .what = "audited steps", .step = run->host.step, .element = UINT64_MAX};
    FILE *file = fopen(run->c->audit_path, "re");
    char *line = NULL;
    size_t room = 0;
    uint32_t n = 0;
    unsigned long long t;
    while (file && getline(&line, &room, file) > 0) {
        if (sscanf(line, "{\"step\":%llu", &t) != 1)
            continue;
        if (n >= run->n_audited || run->audited[n] != t)
            zx_differs(run->result, &where, n < run->n_audited ? run->audited[n] : 0, t, 1);
        n++;
    }
    if (n < run->n_audited)
        zx_fails(run->result, &where, "%u of them, expected %u", n, run->n_audited);
    free(line);
    if (file)
        fclose(file);
    unlink(run->c->audit_path);
}

static void step_oracle(zx_run_t *run, const zo_hyper_t *groups, const double *host_norm, uint32_t flags) {
    zx_case_t *c = run->c;
    zo_step_t args = {.groups = groups,
                      .unscale = run->host.unscale == 0.0 ? 1.0 : run->host.unscale,
                      .clip_norm = run->host.clip_norm,
                      .host_norm = host_norm,
                      .is_epoch_end = (flags & ZF_STEP_EPOCH_END) != 0};
    const float *grads[ZX_MAX_PARAMS];
    zo_report_t *r = &run->reports[zo_n_steps(run->oracle) + 1];
    if (c->ranks)
        zs_count_selected(c->ranks, c, run->oracle);
    zo_step(run->oracle, &args, r);
    zx_count_drawn(run->result, r->is_applied ? ZX_STEPS : ZX_SKIPPED, 1);
    zx_count_drawn(run->result, ZX_CLIPPED, r->is_applied && r->clip_factor < 1.0);
    if (c->ranks)
        zs_count_norm(c->ranks);
    if (c->ranks)
        zs_count_values(c->ranks, c, run->oracle);
    audit(run);
    for (uint32_t i = 0; i < c->n_params; i++)
        grads[i] = zo_step_grad(run->oracle, i);
    if (run->adamw && r->is_applied)
        zo_adamw_step(run->adamw, grads, groups, r->s);
}

static void discard(zx_run_t *run) {
    uint32_t flags = ZF_STEP_DISCARD | (zx_chance(&run->c->rng, 50) ? ZF_STEP_EPOCH_END : 0);
    zf_step_report_t report;
    zo_hyper_t groups[ZX_MAX_GROUPS];
    zx_case_hyper(run->c, groups);
    zx_run_gradients(run);
    if (run->c->ranks)
        zs_count_selected(run->c->ranks, run->c, run->oracle);
    zx_host_step(&run->host, groups, flags, NULL, &report);
    zx_host_settle(&run->host, 0);
    zo_discard(run->oracle, (flags & ZF_STEP_EPOCH_END) != 0);
}

static void count_missed(zx_run_t *run) {
    for (uint32_t i = 0; i < run->c->n_params; i++)
        zx_count_drawn(run->result, ZX_MISSED, (uint64_t)zo_is_unfetched(run->oracle, i) & 1);
}

/* That of the case, or one that no norm reaches, or one that the host's norm barely passes: what is expected of a step
 * comes true or not, at random. */
static void choose_clip_norm(zx_run_t *run, double host_norm) {
    run->host.clip_norm = run->c->clip_norm;
    if (run->host.clip_norm > 0.0 && !zx_chance(&run->clips, run->p_clip))
        run->host.clip_norm = zx_chance(&run->clips, 30) ? 0.0 : 1e30;
    if (run->host.clip_norm > 0.0 && run->c->norm_kind && host_norm > 0.0 && isfinite(host_norm) &&
        zx_chance(&run->clips, 30))
        run->host.clip_norm = host_norm * (1.0 - zx_log_uniform(&run->clips, 0x1p-22, 0x1p-7));
}

/* A norm that bounds all gradients, also where they are scaled beyond FLT_MAX. */
static int has_whole_norm(const zx_case_t *c) {
    int is_whole = !c->norm_kind;
    for (uint32_t i = 0; i < c->n_params; i++)
        is_whole &= !c->params[i].decl.is_not_in_norm;
    return is_whole;
}

/* In some steps the factor leaves fp32 at either end: it is infinite, and the step is skipped; or clipping brings it
 * back; or it is denormal, or 0. Else it is the case's, or in early cases at times a little less. */
static void choose_unscale(zx_run_t *run) {
    static const double extremes[] = {0x1.ffffffp127, 1e39, 1e300, 0x1p-1074, 1e-300, 1e-42};
    zx_host_t *h = &run->host;
    zx_rng_t *r = &run->clips;
    h->unscale = run->c->unscale;
    if (zx_is_early(run->c) && h->unscale > 0.0 && zx_chance(r, 10))
        h->unscale *= 1.0 - zx_log_uniform(r, 0x1p-20, 0x1p-4);
    if (!zx_chance(r, 4))
        return;
    uint32_t which = zx_below(r, 6);
    h->unscale = extremes[which];
    if (which < 3 && (!has_whole_norm(run->c) || zx_chance(r, 30)))
        h->clip_norm = 0.0;
    else if (zx_chance(r, 30))
        h->clip_norm = zx_chance(r, 50) ? 0x1p-1074 : 1e300;
    if (which < 3 && h->clip_norm > 1e9)
        h->clip_norm = 1.0;
}

static void step(zx_run_t *run) {
    zx_case_t *c = run->c;
    zo_hyper_t groups[ZX_MAX_GROUPS];
    int is_wait = zx_chance(&c->rng, c->p_wait) || (c->is_carrying && c->mode == ZX_QUEUE);
    uint32_t p_end = c->config.strategy == ZO_SELECT_EPOCH ? 20 : 10;
    uint32_t flags = (is_wait ? ZF_STEP_WAIT : 0) | (zx_chance(&c->rng, p_end) ? ZF_STEP_EPOCH_END : 0);
    uint32_t edited = zx_below(&c->rng, c->n_params);
    double norm = draw_host_norm(run);
    zf_step_report_t report;
    zx_case_hyper(c, groups);
    if (run->host.finds_edits && !c->is_ask && zx_chance(&c->rng, c->p_edit) && zx_is_trainable(&c->params[edited]) &&
        zo_n_elems(run->oracle, edited) > 0) {
        is_wait = zx_run_edit(run, edited, groups);
        flags = (flags & ~ZF_STEP_WAIT) | (is_wait ? ZF_STEP_WAIT : 0);
    }
    if (c->index % 4 == 0 && zx_chance(&run->pauses, 50))
        usleep(2000); /* what the plugin can do before the step, it does */
    count_missed(run);
    choose_clip_norm(run, norm);
    choose_unscale(run);
    step_oracle(run, groups, c->norm_kind ? &norm : NULL, flags);
    if (c->norm_kind && run->reports[zo_n_steps(run->oracle)].is_applied && run->host.step % 2)
        flags |= ZF_STEP_NORM_OF_ALL;
    zf_status_t st = zx_host_step(&run->host, groups, flags, c->norm_kind ? &norm : NULL, &report);
    if (st >= 0)
        zx_run_check_report(run, st, is_wait, &report);
    zx_host_settle(&run->host, is_wait);
    zx_run_edited(run);
}

/* Perhaps a step is discarded right behind a choice: that its epoch ended counts for the next one. */
static int is_behind_choice(zx_run_t *run) {
    const zo_config_t *g = &run->c->config;
    return g->strategy == ZO_SELECT_EPOCH && zo_has_chosen(run->oracle) && zx_chance(&run->wide, 30);
}

static void run_steps(zx_run_t *run) {
    zx_case_t *c = run->c;
    for (uint32_t i = 0; i < c->n_steps && !zx_is_bad(run->result); i++) {
        run->host.step = zo_n_steps(run->oracle) + 1;
        if (zx_chance(&c->rng, c->p_discard) || is_behind_choice(run))
            do
                discard(run);
            while (zx_wide_again(run));
        zx_wide_announce(run);
        zx_run_gradients(run);
        step(run);
        if (zx_chance(&c->rng, c->p_look))
            zx_run_look(run, zx_chance(&c->rng, 75));
        zx_run_between(run);
        zx_run_damage_point(run);
        zx_run_rebind_point(run, 0);
        if (c->ranks)
            zx_run_release_point(run);
        zx_run_save_point(run);
        zx_run_move_point(run);
        if (run->is_over)
            return;
    }
}

static void finish(zx_run_t *run) {
    if (run->c->law == 6 || zx_chance(&run->c->rng, 60))
        zx_run_flush(run);
    zx_run_export(run);
    zx_run_look(run, 1);
    zx_run_inspect(run);
    if (run->c->law == 6)
        zx_run_compare_adamw(run);
}

/* After destroy the parameters are the host's alone: the last values stay. */
static void check_after_destroy(zx_run_t *run) {
    const zx_case_t *c = run->c;
    for (uint32_t i = 0; i < c->n_params; i++) {
        zx_where_t where = {
            .law = 2, .what = "visible after destroy", .param = c->params[i].name, .step = zo_n_steps(run->oracle)};
        uint32_t expected, found;
        if ((c->params[i].flags & ZF_PARAM_TIED) || c->params[i].away != ZX_IN_PLACE ||
            (run->host.shards && run->host.is_sharded[i]))
            continue;
        if (run->host.is_on_gpu) {
            zx_device_pull(c->params[i].array);
            zx_device_sync();
        }
        unsigned char *image = zx_array_image(c->params[i].array, zo_visible(run->oracle, i));
        if (memcmp(image, c->params[i].array->mem, c->params[i].array->mem_nbytes) != 0) {
            where.element = zx_array_first_difference(c->params[i].array, image, &expected, &found);
            zx_differs(run->result, &where, expected, found, 8);
        }
        free(image);
    }
}

static void check_callback(zx_run_t *run) {
    zx_where_t where = {.law = 2, .what = "rule callback", .step = run->host.step, .element = UINT64_MAX};
    for (uint32_t i = 0; i < run->c->n_groups; i++)
        if (run->c->rules[i].n_bad_calls > 0)
            zx_fails(run->result, &where, "%u calls for group %u with a member that breaks its contract",
                     run->c->rules[i].n_bad_calls, i);
}

/* Destroyed with FLUSH: from rest, or with gradients of a step that does not come, perhaps of both. */
static void flush_at_the_end(zx_run_t *run) {
    zx_run_announce_all(run);
    if (zx_chance(&run->more, 50))
        zx_run_gradients(run);
    if (zx_chance(&run->more, 50)) {
        zo_rest(run->oracle);
        zx_host_quiesce(&run->host, ZF_QUIESCE_DRAIN);
    }
    zx_host_sync(&run->host);
    zo_flush(run->oracle);
}

static zx_run_t *new_run(zx_case_t *c, zx_result_t *result) {
    static const uint32_t p_clip[] = {5, 50, 100, 100};
    zx_run_t *run = zx_alloc(sizeof *run);
    zo_decl_t decls[ZX_MAX_PARAMS];
    run->c = c;
    run->result = result;
    run->pauses = zx_rng(c->seed + 0x7061757365, (uint64_t)c->law, c->index);
    run->questions = zx_rng(c->seed + 0x61736b, (uint64_t)c->law, c->index);
    run->releases = zx_rng(c->seed + 0x72656c65617365, (uint64_t)c->law, c->index);
    run->exports = zx_rng(c->seed + 0x6578706f7274, (uint64_t)c->law, c->index);
    run->clips = zx_rng(c->seed + 0x636c697073, (uint64_t)c->law, c->index);
    run->p_clip = p_clip[zx_below(&run->clips, 4)];
    run->wide = zx_rng(c->seed + 0x6c69737473, (uint64_t)c->law, c->index);
    run->more = zx_rng(c->seed + 0x6d6f7265, (uint64_t)c->law, c->index);
    run->layers = zx_rng(c->seed + 0x6c6179657273, (uint64_t)c->law, c->index);
    run->ranges = zx_rng(c->seed + 0x72616e676573, (uint64_t)c->law, c->index);
    run->damages = zx_rng(c->seed + 0x64616d616765, (uint64_t)c->law, c->index);
    run->changes = zx_rng(c->seed + 0x6368616e6765, (uint64_t)c->law, c->index);
    for (uint32_t i = 0; i < c->n_params; i++)
        decls[i] = c->params[i].decl;
    run->oracle = zo_create(&c->config, decls, c->n_params);
    if (c->law == 1 || c->law == 6)
        run->adamw = zo_adamw_create(&c->config, decls, c->n_params);
    run->reports = zx_alloc((c->n_steps + 2) * sizeof *run->reports);
    return run;
}

static void free_run(zx_run_t *run) {
    zo_adamw_destroy(run->adamw);
    zo_destroy(run->oracle);
    free(run->reports);
    free(run->audited);
    free(run);
}

/* A plugin that has ended, by its deadline say, lets the host's queue go on: what differs then comes of that. */
static void note_ended(zx_run_t *run, zx_result_t *result) {
    zf_step_report_t report = {.struct_size = sizeof report};
    size_t n = strlen(result->text);
    if (!result->is_told && run->host.zf->poll(run->host.instance, &report, &run->host.err) != ZF_OK)
        snprintf(result->text + n, sizeof result->text - n, "; the instance had ended: %s", run->host.err.message);
}

void zx_run_case(zx_case_t *c, zx_result_t *result, const zf_loader_t *loader, const zx_resume_t *resume) {
    int is_flushed, is_abrupt; /* destroyed with FLUSH; or with windows open and replays in flight */
    if (zx_law_saves(c->law) && !zf_loader_plugin(loader)->get_extension(ZF_EXT_STATE))
        return; /* nothing is compared, which the table says */
    zx_run_t *run = new_run(c, result);
    run->state_path = resume->state_path;
    run->plugin = resume->plugin;
    run->resume = resume->save;
    run->forced_threads = resume->threads;
    run->is_dry = result->is_muted = resume->save > 0 || (c->ranks && c->ranks->load_from);
    if (c->audit_every)
        unlink(c->audit_path); /* of a process of this number that was killed */
    if (zx_host_open(&run->host, c, result, loader, run->is_dry) != 0)
        return;
    run_steps(run);
    is_abrupt = c->law == 2 && zx_chance(&c->rng, 10);
    is_flushed = !c->ranks && c->law != 6 && !is_abrupt && zx_chance(&run->more, 30);
    if (!zx_is_bad(result) && !is_abrupt && !run->is_over)
        is_flushed ? flush_at_the_end(run) : finish(run);
    zx_host_sync(&run->host);
    if (!zx_is_bad(result) && !run->is_over)
        zx_run_poll(run);
    if (zx_is_bad(result)) { /* work may still be on the queue: nothing is freed */
        note_ended(run, result);
        return;
    }
    zx_host_close(&run->host, is_flushed ? ZF_DESTROY_FLUSH : 0);
    if (!run->is_over &&
        (!is_abrupt || c->mode % 2 == 0)) /* with FETCH, values that were not fetched may be on their way for ever */
        check_after_destroy(run);
    check_callback(run);
    if (c->audit_every)
        check_audits(run);
    free_run(run);
}
