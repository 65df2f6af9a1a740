/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/reduce_bind.c - do all ranks bind the same? (contract in reduce.h)
 *
 * What must be equal is written as a text: a line per key of the configuration, but nearly all of [host],
 * [trace] and [audit], one for what create was given, one per parameter. First the ranks compare their number and one
 * digest of the text. Only if it differs, they look for the first line that does, by halves, and exchange that. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/timeline.h"
#include "hooks/reduce.h"
#include "ranks/groups.h"
#include "ranks/ranks.h"
#include "ranks/shards.h"
#include "state/together.h"

enum {
    LINE =
        768, /* bytes of a line that are exchanged: a name of 255, eight axes, all else that is said of a parameter */
    SHOWN = 181, /* bytes of a line that a message shows */
    HEAD = 70    /* from its beginning on these at least */
};

typedef struct comparison {
    zf_instance_t *inst;
    const zfi_param_t *params;
    uint32_t n_params;
    int has_values;               /* visible values are compared as well */
    const zfi_group_list_t *list; /* of a process group; NULL: group 0, and all that is not a parameter's */
    uint32_t group, rank, n_ranks;
} comparison_t;

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Whether a rank may have another value. */
static int is_own(const zf_config_key_t *key) {
    if (strcmp(key->section, "host") == 0)
        return strcmp(key->key, "moments_dtype") != 0;
    return strcmp(key->section, "trace") == 0 || strcmp(key->section, "audit") == 0;
}

/* Writes the settings that a rank trains with: the keys, and what create was given. */
static void write_settings(const comparison_t *it, FILE *out) {
    const zfi_engine_t *engine = &it->inst->engine;
    for (uint32_t i = 0; i < zfi_config_n_keys(); i++) {
        zf_config_key_t key;
        char value[64] = "";
        (void)zfi_config_key(i, &key, NULL);
        (void)zfi_config_value(&engine->config, i, value, sizeof value, NULL);
        if (!is_own(&key))
            fprintf(out, "[%s] %s = %s\n", key.section, key.key, value);
    }
    fprintf(out,
            "libzfplugin " ZFI_VERSION " in host \"%s\", create flags 0x%" PRIx32 ", publish_lag %" PRIu32
            ", blocks of %" PRIu64 ", %" PRIu32 " parameters\n",
            engine->host_name, engine->flags, engine->policy.lag, engine->config.block_elems, it->n_params);
}

/* The bytes that a tensor's elements lie in, from *out_before bytes before its first one on. */
static uint64_t span_nbytes(const zfi_param_t *param, uint64_t *out_before) {
    uint64_t elem = zfi_dtype_nbytes(param->dtype), before = 0, after = 0;
    for (int i = 0; i < param->ndim; i++) {
        uint64_t steps = (uint64_t)param->shape[i] - 1;
        if (param->strides[i] < 0)
            before += steps * (uint64_t)-param->strides[i] * elem;
        else
            after += steps * (uint64_t)param->strides[i] * elem;
    }
    *out_before = before;
    return before + after + elem;
}

/* A copy of them in host memory; NULL where that failed, which has ended the instance. */
static unsigned char *copy_down(zfi_engine_t *engine, const unsigned char *from, uint64_t nbytes) {
    zf_error_t err = {.struct_size = sizeof err};
    unsigned char *copy = malloc(nbytes);
    zfi_range_t range = {copy, from, nbytes};
    zfi_op_t down = zfi_op_down(&range, 1);
    zf_status_t st = zfi_send(engine), waited;
    if (!copy)
        st = zfi_error_scoped(&err, ZF_ERR_MEMORY, ZF_SCOPE_INSTANCE, 0, "ranks",
                              "no memory to compare a parameter of %" PRIu64 " bytes", nbytes);
    if (!copy)
        zfi_poison(engine, &err);
    if (!st)
        st = zfi_enqueue(engine, engine->stream, &down, 1);
    waited = engine->ops->synchronise(engine->stream, engine->ops->mark(engine->stream), UINT64_MAX, NULL);
    if (!st && !waited)
        return copy;
    free(copy);
    return NULL;
}

/* The digest of visible values, which are read in the host's memory. */
static uint64_t digest_values(zfi_engine_t *engine, const zfi_param_t *param, void *values) {
    unsigned char *copy = NULL;
    uint64_t before = 0, nbytes, digest;
    zfi_view_t view = {.data = values,
                       .dtype = param->dtype,
                       .ndim = param->ndim,
                       .n_elems = param->n_elems,
                       .elem_nbytes = zfi_dtype_nbytes(param->dtype),
                       .is_contiguous = param->is_contiguous};
    memcpy(view.shape, param->shape, sizeof view.shape);
    memcpy(view.strides, param->strides, sizeof view.strides);
    if (!param->n_elems)
        return 0;
    if (engine->ops->has_own_memory) {
        nbytes = view.is_contiguous ? view.n_elems * view.elem_nbytes : span_nbytes(param, &before);
        copy = copy_down(engine, view.data - before, nbytes);
        if (!copy)
            return 0;
        view.data = copy + before;
    }
    digest = zfi_digest(&view);
    free(copy);
    return digest;
}

void zfi_reduce_changed(zfi_run_t *run, uint32_t param, uint32_t first, uint32_t end, uint32_t flags) {
    uint32_t first_matrix = run->params[param].first_matrix;
    struct {
        uint64_t values;
        uint32_t param, flags, first, end;
    } what = {0, param, flags, first - first_matrix, end - first_matrix};
    if (!zfi_is_reduced(run))
        return;
    what.values = digest_values(run->engine, &run->params[param], zfi_shards_address(&run->ranks, param));
    if (run->params[param].group_index[0] == 0)
        zfi_reduce_event(run, flags, &what, sizeof what);
    what.param = 0; /* each instance has its own numbers */
    zfi_reduce_event_of(run, param, &what, sizeof what);
}

/* Writes what decides how a parameter is cut, dealt and updated. */
static void write_declared(const zfi_param_t *param, FILE *out) {
    char shape[64];
    zfi_shape_text(shape, sizeof shape, param->ndim, param->shape);
    fprintf(out, " %s %s, gradient %s, flags 0x%" PRIx32 ", home %d, rule %s of %" PRIu32 " moments, batch axes %d, %s",
            zfi_dtype_name(param->dtype), shape, zfi_dtype_name(param->grad_dtype), param->flags, param->home,
            param->rule->name, param->rule->n_moments, param->n_batch_axes,
            param->channels_are_rows ? "rows" : "columns");
}

static void write_values(const comparison_t *it, const zfi_param_t *param, FILE *out) {
    if (it->has_values)
        fprintf(out, ", values %016" PRIx64, digest_values(&it->inst->engine, param, param->visible));
    fputc('\n', out);
}

/* A parameter that ranks of group 0 do not share: they cut and deal it alike. */
static void write_foreign(const zfi_param_t *param, uint32_t i, FILE *out) {
    fprintf(out, "parameter %" PRIu32 " of process group %" PRIu32 ":", i, param->reduce_group[0]);
    write_declared(param, out);
    fputc('\n', out);
}

/* Writes what instances that hold the same parameter must agree on, though each has a number and a name of its own for
 * it. */
static void write_second(const comparison_t *it, uint32_t i, FILE *out) {
    const zfi_param_t *param = &it->params[it->list->ids[i]];
    const zfi_config_t *config = &it->inst->engine.config;
    zfi_member_t place = zfi_member(&it->inst->engine, param->group_index[0]);
    fprintf(out, "parameter %" PRIu32 " of process group %" PRIu32, i, it->list->name);
    write_declared(param, out);
    fprintf(out,
            ", rank %" PRIu32 " of %" PRIu32 " in its first group, stage %d, blocks of %" PRIu64 ", buckets of %" PRIu64
            ", moments %d",
            place.rank, place.n_ranks, (int)config->stage, config->block_elems, (uint64_t)config->bucket_bytes,
            (int)config->moments);
    if (zfi_is_stochastic((zfi_moments_t)config->moments)) /* rounded by a hash of it */
        fprintf(out, " by number %" PRIu32, param->id);
    write_values(it, param, out);
}

static void write_param(const comparison_t *it, uint32_t i, FILE *out) {
    const zfi_param_t *param = &it->params[i];
    fprintf(out, "parameter %" PRIu32 " \"%s\"", i, param->name);
    write_declared(param, out);
    fprintf(out, ", group %" PRIu32 ", owner %" PRIu32, param->group, param->owner);
    write_values(it, param, out);
}

/* Experts are cut and dealt beside all that a rank has, which has to be alike wherever one of them is. */
static void write_beside(const comparison_t *it, FILE *out) {
    for (uint32_t i = 0; i < it->n_params; i++) {
        fprintf(out, "beside process group %" PRIu32 ": ", it->list->name);
        write_foreign(&it->params[i], i, out);
    }
}

static void write_all(const comparison_t *it, FILE *out) {
    const zfi_group_list_t *list = it->list;
    if (!list)
        write_settings(it, out);
    for (uint32_t i = 0; i < (list ? list->n : it->n_params); i++)
        if (!list && it->params[i].group_index[0])
            write_foreign(&it->params[i], i, out);
        else if (!list)
            write_param(it, i, out);
        else if (list->which == 0)
            write_param(it, list->ids[i], out);
        else
            write_second(it, i, out);
    if (list && list->which == 0)
        write_beside(it, out), write_settings(it, out);
}

/* Lines, each with its end; to be freed. */
typedef struct text {
    char *at;
    size_t nbytes;
} text_t;

static zf_status_t write_text(const comparison_t *it, text_t *out, zf_error_t *err) {
    FILE *file = open_memstream(&out->at, &out->nbytes);
    if (file)
        write_all(it, file);
    if (file && fclose(file) == 0)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to compare ranks");
}

/* The place where line i begins; behind the last one it is the end. */
static size_t line_at(const text_t *text, uint32_t i) {
    const char *at = text->at, *end = text->at + text->nbytes;
    for (; i && at < end; i--)
        at = (const char *)memchr(at, '\n', (size_t)(end - at)) + 1;
    return (size_t)(at - text->at);
}

static uint64_t digest_bytes(const void *bytes, size_t n) {
    zfi_view_t view = {.data = (unsigned char *)(uintptr_t)bytes,
                       .ndim = 1,
                       .shape = {(int64_t)n},
                       .strides = {1},
                       .n_elems = n,
                       .elem_nbytes = 1,
                       .is_contiguous = 1};
    return zfi_digest(&view);
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

/* Gathers nbytes of each rank, this one's own: [n_ranks][nbytes], for zfi_ranks_drop. */
static void *gather(const comparison_t *it, const void *own, uint64_t nbytes, zf_status_t *out_st, zf_error_t *err) {
    void *all = zfi_ranks_collect(&it->inst->engine, it->group, own, nbytes, out_st);
    *out_st = all ? zfi_hook_failed(it->inst, *out_st, "bind_params", "the ranks could not be compared", err)
                  : zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to compare ranks");
    return all;
}

/* A line as far as there is room for it: what it is about, and from the field on in which two lines part. */
static void show_line(const char *line, const char *other, char out[SHOWN]) {
    size_t at = 0;
    while (line[at] && line[at] == other[at])
        at++;
    while (at > HEAD && strncmp(line + at - 2, ", ", 2) != 0)
        at--;
    if (strlen(line) < SHOWN || at <= HEAD)
        snprintf(out, SHOWN, "%.*s", SHOWN - 1, line);
    else
        snprintf(out, SHOWN, "%.*s ... %.*s", HEAD, line, SHOWN - HEAD - 6, line + at);
}

/* Line i differs between rank 0 and another: both. */
static zf_status_t report_line(const comparison_t *it, const text_t *text, uint32_t i, uint32_t other,
                               zf_error_t *err) {
    char own[LINE] = "", *all, first[SHOWN], second[SHOWN];
    size_t at = line_at(text, i), end = line_at(text, i + 1);
    zf_status_t st;
    if (end > at)
        snprintf(own, sizeof own, "%.*s", (int)(end - at - 1), text->at + at);
    all = gather(it, own, LINE, &st, err);
    if (!st) {
        show_line(all, all + (uint64_t)other * LINE, first);
        show_line(all + (uint64_t)other * LINE, all, second);
        st = zfi_error_by(err, ZF_ERR_RANKS, other, "bind_params",
                          "rank 0 and rank %" PRIu32 " differ: \"%s\" and \"%s\"", other, first, second);
    }
    zfi_ranks_drop(&it->inst->engine, all);
    return st;
}

/* Texts differ, of which the longest has n_bytes: so does a line before that number. */
static zf_status_t find_line(const comparison_t *it, const text_t *text, uint64_t most, zf_error_t *err) {
    uint32_t low = 0, high = most < UINT32_MAX ? (uint32_t)most : UINT32_MAX, other = 0;
    zf_status_t st = ZF_OK;
    while (low < high && !st) { /* lines below `low` are alike; one of those below `high` is not */
        uint32_t middle = low + (high - low) / 2, differs = 0;
        const uint64_t own = digest_bytes(text->at, line_at(text, middle + 1));
        uint64_t *all = gather(it, &own, sizeof own, &st, err);
        for (uint32_t r = it->n_ranks - 1; r > 0 && !st; r--)
            differs = all[r] != all[0] ? r : differs;
        zfi_ranks_drop(&it->inst->engine, all);
        if (differs)
            high = middle, other = differs;
        else
            low = middle + 1;
    }
    return st ? st : report_line(it, text, low, other, err);
}

/* The words that ranks exchange first. */
typedef struct summary {
    uint64_t nbytes, digest; /* of the text */
    uint32_t n_ranks;        /* as the host said */
    uint32_t n_sent;         /* buckets of the coming step that are on their way */
    int32_t status;          /* of what went before: there is nothing to compare */
    uint32_t reserved0;
} summary_t;

/* Whether the host gave each rank the same group. Where it did not, the exchange may fail for want of a rank that is
 * none: of others it may have brought what they say. */
static zf_status_t check_size(const comparison_t *it, const summary_t *all, zf_status_t st, zf_error_t *err) {
    for (uint32_t r = 0; r < it->n_ranks; r++)
        if (all[r].n_ranks && all[r].n_ranks != it->n_ranks)
            return zfi_error_by(err, ZF_ERR_RANKS, r, "bind_params",
                                "this is rank %" PRIu32 " of %" PRIu32 ", but rank %" PRIu32
                                " says that they are %" PRIu32 ": the host must give every rank the same group",
                                it->rank, it->n_ranks, r, all[r].n_ranks);
    return st;
}

/* Whether none refused or is in the middle of a step. */
static zf_status_t check_places(const comparison_t *it, const summary_t *all, zf_error_t *err) {
    for (uint32_t r = 0; r < it->n_ranks; r++)
        if (all[r].status)
            return zfi_error_by(err, all[r].status, r, "bind_params",
                                "rank %" PRIu32 " refused, before anything was bound on any rank; that rank says why",
                                r);
    for (uint32_t r = 0; r < it->n_ranks; r++)
        if (all[r].n_sent)
            return zfi_error_by(err, ZF_ERR_STATE, r, "bind_params",
                                "gradients of this step are on their way from rank %" PRIu32
                                " to the other ranks: step first, or DISCARD",
                                r);
    return ZF_OK;
}

/* before: what went before on this rank. */
static zf_status_t compare(const comparison_t *it, zf_status_t before, zf_error_t *err) {
    const zfi_run_t *run = it->inst->run;
    text_t text = {NULL, 0};
    before = before ? before : write_text(it, &text, err);
    const summary_t own = {
        text.nbytes, digest_bytes(text.at, text.nbytes), it->n_ranks, run ? run->reduction.next : 0, before, 0};
    uint64_t most = 0;
    int is_equal = 1;
    zf_status_t st;
    summary_t *all = gather(it, &own, sizeof own, &st, before ? NULL : err);
    if (all && !before)
        st = check_size(it, all, st, err);
    if (!st && !before)
        st = check_places(it, all, err);
    for (uint32_t r = 0; r < it->n_ranks && !st; r++) {
        most = all[r].nbytes > most ? all[r].nbytes : most;
        is_equal &= all[r].nbytes == all[0].nbytes && all[r].digest == all[0].digest;
    }
    zfi_ranks_drop(&it->inst->engine, all);
    if (!before && !st && !is_equal)
        st = find_line(it, &text, most, err);
    free(text.at);
    return before ? before : st;
}

/* ---- process groups ---------------------------------------------------------------------------------------------- */

/* Which norm group a rank is in, and where. */
typedef struct norm_member {
    uint64_t norm_group; /* drawn by its rank 0 */
    uint64_t rank;
} norm_member_t;

/* The words of a rank to its norm group. */
typedef struct found {
    uint64_t number, is_refused; /* is_refused: by its group 0 */
} found_t;

static uint64_t draw_number(const zf_instance_t *inst) {
    const uint64_t words[] = {zfi_now_ns(), (uint64_t)getpid(), (uint64_t)(uintptr_t)inst};
    return digest_bytes(words, sizeof words);
}

/* Keeps which ranks of the norm group the members of a group (the transport's number) are. */
static zf_status_t keep_members(zfi_engine_t *engine, uint32_t group, const norm_member_t *all, uint32_t n,
                                zf_error_t *err) {
    uint32_t *ranks = realloc(engine->members[group], n * sizeof *ranks);
    if (!ranks)
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory for the ranks of a process group");
    engine->members[group] = ranks;
    engine->firsts[group] = (uint32_t)all[0].rank;
    for (uint32_t r = 0; r < n; r++) {
        ranks[r] = (uint32_t)all[r].rank;
        engine->firsts[group] = ranks[r] < engine->firsts[group] ? ranks[r] : engine->firsts[group];
    }
    return ZF_OK;
}

/* All of a group are in the same norm group: else the norm would leave some out, or differ from rank to rank. Keeps
 * which they are there. */
static zf_status_t check_members(const comparison_t *it, uint32_t name, norm_member_t self, zf_error_t *err) {
    zf_status_t st;
    norm_member_t *all = gather(it, &self, sizeof self, &st, err);
    for (uint32_t r = 1; r < it->n_ranks && !st; r++)
        if (all[r].norm_group != all[0].norm_group)
            st = zfi_error_by(err, ZF_ERR_RANKS, r, "bind_params",
                              "rank %" PRIu32 " and rank 0 of process group %" PRIu32
                              " are not both in norm_group = %" PRIu32
                              ": it is the group of all ranks that train the model together",
                              r, name, it->inst->engine.norm_group);
    if (!st)
        st = keep_members(&it->inst->engine, it->group, all, it->n_ranks, err);
    zfi_ranks_drop(&it->inst->engine, all);
    return st;
}

/* Another process group's comparison. */
static comparison_t among(const comparison_t *it, const zfi_group_list_t *list, uint32_t group) {
    zfi_member_t place = zfi_member(&it->inst->engine, group);
    comparison_t out = *it;
    out.list = list;
    out.group = group;
    out.rank = place.rank;
    out.n_ranks = place.n_ranks;
    return out;
}

/* *out_refused: any of the norm group is. */
static zf_status_t find_self(const comparison_t *it, int is_refused, norm_member_t *out, int *out_refused,
                             zf_error_t *err) {
    comparison_t norm = among(it, NULL, it->inst->engine.norm_index);
    const found_t own = {draw_number(it->inst), (uint64_t)is_refused};
    zf_status_t st;
    found_t *all = gather(&norm, &own, sizeof own, &st, err);
    if (!st)
        *out = (norm_member_t){all[0].number, norm.rank};
    *out_refused = st != ZF_OK;
    for (uint32_t r = 0; r < norm.n_ranks && !st; r++)
        *out_refused |= all[r].is_refused != 0;
    zfi_ranks_drop(&it->inst->engine, all);
    return st;
}

/* Whatever one group finds, this rank is waited for in all of them; the first error stands. */
static zf_status_t compare_groups(const comparison_t *it, const zfi_group_lists_t *lists, norm_member_t self,
                                  zf_error_t *err) {
    zfi_engine_t *engine = &it->inst->engine;
    zf_status_t st = check_members(it, 0, self, err);
    for (uint32_t i = 0; i < lists->n && !zfi_is_poisoned(engine); i++) {
        comparison_t group = among(it, &lists->all[i], lists->all[i].index);
        zf_error_t later = {.struct_size = sizeof later}, *why = st ? &later : err;
        zf_status_t found = check_members(&group, lists->all[i].name, self, why);
        if (!found)
            found = compare(&group, ZF_OK, why);
        st = st ? st : found;
    }
    return st;
}

zf_status_t zfi_reduce_compare(zf_instance_t *inst, const zfi_param_t *params, uint32_t n, zf_status_t st,
                               zf_error_t *err) {
    comparison_t it = {.inst = inst,
                       .params = params,
                       .n_params = n,
                       .has_values = inst->run == NULL,
                       .rank = zfi_rank(&inst->engine),
                       .n_ranks = zfi_n_ranks(&inst->engine)};
    zfi_group_lists_t lists = {0};
    norm_member_t self = {0};
    int is_refused;
    if (!zfi_has_peers(&inst->engine))
        return st;
    st = compare(&it, st, err);
    if (!zfi_is_grouped(&inst->engine) || zfi_is_poisoned(&inst->engine))
        return st;
    if (!st && zfi_groups_list(&inst->engine, params, n, &lists))
        st = zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to compare ranks");
    zf_status_t met = find_self(&it, st != ZF_OK, &self, &is_refused, st ? NULL : err);
    if (!is_refused)
        met = compare_groups(&it, &lists, self, err);
    st = st ? st : met;
    zfi_groups_free(&lists);
    if (zfi_is_poisoned(&inst->engine))
        return st;
    return zfi_together_agree(&inst->engine, inst->engine.norm_index, st, err); /* what one group found all refuse */
}
