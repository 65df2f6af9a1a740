/* SPDX-License-Identifier: Apache-2.0 */
/* exact_ask.c - on_overwrite = ask: the host writes weights at any moment and says nothing. It asks `written` of
 * zf.digest/0 when it likes, writes back what was there, holds a parameter, accepts what came of it, announces it, or
 * has it adopted by element. Of several ranks all do the same, as far as each has the whole parameter.
 *
 * What the plugin shows meanwhile comes over the host's values, channel by channel; so the oracle shows the same
 * mixture, and only a parameter that is held stays as the host wrote it. Drawn from run->questions. */
#include <stdlib.h>
#include <string.h>

#include "exact_run.h"
#include "shard.h"

/* ---- questions --------------------------------------------------------------------------------------------------- */

static void check_answers(zx_run_t *run, const uint32_t *params, uint32_t n, const uint8_t *answers) {
    zx_count_drawn(run->result, ZX_ASKED, 1);
    for (uint32_t i = 0; i < n; i++) {
        zx_where_t where = {.law = 2,
                            .what = "written",
                            .param = run->c->params[params[i]].name,
                            .step = run->host.step,
                            .element = UINT64_MAX};
        if (answers[i] != zo_is_written(run->oracle, params[i]))
            zx_differs(run->result, &where, (uint64_t)zo_is_written(run->oracle, params[i]), answers[i], 1);
        zx_count_drawn(run->result, ZX_WRITTEN, answers[i]);
    }
}

/* A resident's new values its owner shows at once, and the other ranks where their hosts fetch it: what is held in
 * between would differ. */
static void fetch_before_held(zx_run_t *run, uint32_t i) {
    if (run->c->ranks && run->c->mode % 2 && !(run->host.shards && run->host.is_sharded[i]))
        zx_run_fetch(run, &i, 1);
}

/* n = 0: about all, by id. */
static void ask(zx_run_t *run, uint32_t flags, const uint32_t *params, uint32_t n) {
    zx_host_t *h = &run->host;
    uint32_t ids[ZX_MAX_PARAMS], all[ZX_MAX_PARAMS];
    uint8_t answers[ZX_MAX_PARAMS] = {0};
    const uint32_t *about = n ? params : all;
    uint32_t n_about = n ? n : h->c->n_params;
    for (uint32_t i = 0; i < n_about; i++) {
        if (!n)
            all[i] = i;
        ids[i] = h->c->params[about[i]].id;
        if (h->c->params[about[i]].flags & ZF_PARAM_TIED) /* as its owner */
            all[i] = h->c->params[i].tied_to;
        fetch_before_held(run, about[i]);
    }
    if (!run->is_dry &&
        !zx_is_call_bad(h, "written", h->digest->written(h->instance, flags, n ? ids : NULL, n, answers, &h->err)))
        check_answers(run, about, n_about, answers);
    for (uint32_t i = 0; i < n_about; i++) {
        if (flags == ZF_WRITTEN_ACCEPT)
            zo_accept(run->oracle, about[i]);
        else
            zo_hold(run->oracle, about[i], flags == ZF_WRITTEN_HOLD && zo_is_written(run->oracle, about[i]));
        run->c->params[about[i]].is_held &= flags == ZF_WRITTEN_HOLD;
    }
}

/* What was held over a step is announced before it is asked about. */
static int is_open_to_questions(const zx_run_t *run, uint32_t i) {
    return !(run->c->params[i].flags & ZF_PARAM_TIED) && !zo_is_behind(run->oracle, i);
}

static void ask_some(zx_run_t *run, uint32_t flags) {
    zx_rng_t *r = &run->c->rng;
    uint32_t params[ZX_MAX_PARAMS], n = 0;
    int is_about_all = zx_chance(r, 30);
    for (uint32_t i = 0; i < run->c->n_params; i++) {
        is_about_all = is_about_all && !zo_is_behind(run->oracle, i);
        if (is_open_to_questions(run, i) && zx_chance(r, 60))
            params[n++] = i;
    }
    if (n > 0 || is_about_all)
        ask(run, flags, params, is_about_all ? 0 : n);
}

/* ---- writes ------------------------------------------------------------------------------------------------------ */

/* What is not fetched differs between ranks, which write the same. */
static void fetch_alike(zx_run_t *run, uint32_t i) {
    const zs_ranks_t *ranks = run->c->ranks;
    if ((run->c->mode % 2 && (ranks || !zx_host_can_look_unfetched(&run->host))) || (ranks && zs_shards_params(ranks)))
        zx_run_fetch(run, &i, 1);
}

static void announce(zx_run_t *run, uint32_t i) {
    fetch_alike(run, i);
    void *values = zx_run_draw_sound(run, i);
    zx_host_overwrite(&run->host, i, &(zo_range_t){.id = i}, values, 0);
    zo_params_changed(run->oracle, &(zo_range_t){.id = i}, values, 0);
    free(values);
}

/* Those that the host did not write, nor others of their band, keep what they have in store. What fp16 shows of a
 * master that it cannot hold is refused, as in params_changed. What was not held from the write on, ranks that fetch as
 * they like have other values of. */
static void adopt(zx_run_t *run) {
    uint32_t params[ZX_MAX_PARAMS], n = 0;
    int is_alike = !run->c->ranks || run->c->mode % 2 == 0;
    for (uint32_t i = 0; i < run->c->n_params; i++)
        if (zo_is_written(run->oracle, i) && zx_chance(&run->c->rng, 70) && (is_alike || run->c->params[i].is_held) &&
            zx_are_finite(zo_visible(run->oracle, i), run->c->params[i].decl.dtype, zo_n_elems(run->oracle, i)))
            params[n++] = i;
    if (n == 0)
        return;
    if (run->is_dry || zx_host_adopt(&run->host, params, n)) {
        zo_adopt(run->oracle, params, n);
        for (int i = 0; i < 2 && run->c->ranks; i++) /* of the FLUSH, and of what was taken over */
            zs_count_values(run->c->ranks, run->c, run->oracle);
        run->host.is_quiet = 1;
        zx_count_drawn(run->result, ZX_ADOPTED, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        announce(run, params[i]);
}

void zx_run_announce_all(zx_run_t *run) {
    zx_rng_swap(&run->c->rng, &run->questions);
    for (uint32_t i = 0; i < run->c->n_params; i++)
        if (zo_is_written(run->oracle, i) || zo_is_behind(run->oracle, i))
            announce(run, i);
    zx_rng_swap(&run->c->rng, &run->questions);
}

/* Swapped out and in again before anything else happens: nothing was written. */
static void write_back(zx_run_t *run, uint32_t i, const void *values) {
    ask(run, zx_chance(&run->c->rng, 50) ? ZF_WRITTEN_HOLD : ZF_WRITTEN_LOOK, &i, 1);
    zx_host_sync(&run->host);
    zx_host_write(&run->host, run->c->params[i].array, values);
    zo_write_back(run->oracle, i, values);
    ask(run, ZF_WRITTEN_LOOK, &i, 1);
}

static void write_one(zx_run_t *run) {
    zx_case_t *c = run->c;
    uint32_t i = zx_below(&c->rng, c->n_params);
    if (!zx_is_trainable(&c->params[i]) || zo_is_written(run->oracle, i) ||
        (run->host.shards && run->host.is_sharded[i]))
        return;
    if (c->ranks)
        fetch_alike(run, i);
    else
        zx_run_fetch_to_write(run, i);
    uint64_t nbytes = zo_n_elems(run->oracle, i) * zo_dtype_nbytes(c->params[i].decl.dtype);
    void *was = zx_alloc(nbytes);
    memcpy(was, zo_visible(run->oracle, i), nbytes);
    void *values = zx_run_draw_edit(run, i);
    zx_host_sync(&run->host);
    zx_host_write(&run->host, c->params[i].array, values);
    zo_overwrite(run->oracle, i, values);
    c->params[i].is_held = 0;
    switch (zx_below(&c->rng, 4)) {
    case 0:
        write_back(run, i, was);
        break;
    case 1:
        ask(run, ZF_WRITTEN_HOLD, &i, 1);
        c->params[i].is_held = 1;
        break;
    case 2:
        ask(run, ZF_WRITTEN_ACCEPT, &i, 1);
        break;
    default:
        break; /* nobody asks, for now */
    }
    free(values);
    free(was);
}

/* Where updates see edits the host writes, and perhaps what stood there again; whatever comes next reads it. */
static void write_seen(zx_run_t *run) {
    zx_case_t *c = run->c;
    uint32_t i = zx_below(&c->rng, c->n_params);
    if (!zx_chance(&c->rng, 50) || (c->params[i].flags & ZF_PARAM_TIED) || !zx_is_trainable(&c->params[i]) ||
        !zo_sees_edits(run->oracle, i) || zo_n_elems(run->oracle, i) == 0)
        return;
    zx_run_fetch_to_write(run, i);
    uint64_t nbytes = zo_n_elems(run->oracle, i) * zo_dtype_nbytes(c->params[i].decl.dtype);
    void *was = zx_alloc(nbytes), *values;
    memcpy(was, zo_visible(run->oracle, i), nbytes);
    values = zx_run_draw_edit(run, i);
    zx_host_sync(&run->host);
    zx_host_write(&run->host, c->params[i].array, values);
    zo_overwrite(run->oracle, i, values);
    if (zx_chance(&c->rng, 20)) {
        zx_host_sync(&run->host);
        zx_host_write(&run->host, c->params[i].array, was);
        zo_overwrite(run->oracle, i, was);
    }
    free(values);
    free(was);
}

/* Laws that compare with the plain optimizer, or with what one step shows, take no edit. */
static void see_point(zx_run_t *run) {
    const zx_case_t *c = run->c;
    if (c->law != 2 && c->law != 3 && c->law != 4)
        return;
    zx_rng_swap(&run->c->rng, &run->questions);
    write_seen(run);
    zx_rng_swap(&run->c->rng, &run->questions);
}

void zx_run_ask_released(zx_run_t *run) {
    if (!run->c->is_ask || run->c->ranks || !run->host.finds_edits || !run->host.digest)
        return;
    zx_rng_swap(&run->c->rng, &run->questions);
    if (zx_chance(&run->c->rng, 70))
        ask_some(run, ZF_WRITTEN_LOOK);
    zx_rng_swap(&run->c->rng, &run->questions);
}

void zx_run_ask_point(zx_run_t *run) {
    static const uint32_t flags[] = {ZF_WRITTEN_LOOK, ZF_WRITTEN_LOOK, ZF_WRITTEN_HOLD, ZF_WRITTEN_ACCEPT};
    zx_case_t *c = run->c;
    if (c->config.sees_edits && !c->is_ask)
        see_point(run);
    if (!c->is_ask || (c->ranks && (c->ranks->is_grouped || c->ranks->has_fault || zs_moves(c->ranks))) ||
        !run->host.finds_edits || !run->host.digest)
        return; /* a case that moves is the same at every stage, where other parameters may be written */
    zx_rng_swap(&c->rng, &run->questions);
    if (c->law != 1 && c->law != 6 && zx_chance(&c->rng, 25))
        write_one(run);
    if (zx_chance(&c->rng, 30))
        ask_some(run, flags[zx_below(&c->rng, 4)]);
    if (zx_chance(&c->rng, 20))
        adopt(run);
    for (uint32_t i = 0; i < c->n_params; i++)
        if (zo_is_written(run->oracle, i) && zx_chance(&c->rng, 10))
            announce(run, i);
    zx_rng_swap(&run->c->rng, &run->questions);
}
