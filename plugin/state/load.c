/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/load.c - a checked checkpoint into a run, whatever that is cut like (contract in state.h).
 *
 * The schedule goes on where it was, if the selection fits: then who saved and who loads do the same from here on. Else
 * it begins again with its warm-up. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/tensor.h"
#include "instance/memory.h"
#include "ranks/gathering.h"
#include "schedule/window.h"
#include "state/spread.h"
#include "state/state.h"

typedef struct loader {
    zfi_run_t **slot;
    zfi_run_t *run; /* the present one */
    zfi_store_t *store;
    zfi_together_t *together;
    zfi_saved_t saved;
    uint32_t *ids; /* [saved.n_params] of the run, ZF_NO_ID: none */
    uint32_t n_missing, n_extra;
    int is_in_place;    /* every rank's run may be filled in place */
    int gives_up;       /* some rank has no room for two */
    uint32_t *crcs;     /* [saved.n_params][ZFI_SAVED_ARRAYS] the index's; in saved they become those of own ranges */
    uint8_t **selected; /* [saved.n_params] the tensor "selected", checked; NULL: none, or it is not needed */
    int continues;      /* the schedule goes on where it was; else it begins again, for this reason: */
    char why[256];
} loader_t;

/* ---- which parameters -------------------------------------------------------------------------------------------- */

static zf_status_t check_shape(const zfi_saved_param_t *saved, const zfi_param_t *bound, zf_error_t *err) {
    char have[128], need[128];
    if (zfi_param_has_shape(bound, saved->ndim, saved->shape))
        return ZF_OK;
    zfi_shape_text(have, sizeof have, saved->ndim, saved->shape);
    zfi_shape_text(need, sizeof need, bound->ndim, bound->shape);
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "parameter \"%s\" has shape %s in the checkpoint, %s here: this is not the model that was saved",
                     bound->name, have, need);
}

/* Whether what is bound here and what was saved are the same. is_found: of each parameter here. */
static zf_status_t find_all(loader_t *loader, const zfi_param_t *const *by_name, uint8_t *is_found, int is_partial,
                            zf_error_t *err) {
    const zfi_run_t *run = loader->run;
    const zfi_saved_t *saved = &loader->saved;
    const char *missing = NULL, *extra = NULL;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < saved->n_params && !st; i++) {
        const zfi_saved_param_t *param = &saved->params[i];
        const zfi_param_t *here = zfi_params_find(by_name, run->n_params, param->name);
        loader->ids[i] = here && here->has_state ? here->id : ZF_NO_ID;
        if (loader->ids[i] == ZF_NO_ID) {
            extra = extra ? extra : param->name;
            loader->n_extra++;
        } else {
            st = check_shape(param, here, err);
            is_found[here->id] = 1;
        }
    }
    for (uint32_t i = 0; i < run->n_params; i++)
        if (by_name[i]->has_state && !is_found[by_name[i]->id]) {
            missing = missing ? missing : by_name[i]->name;
            loader->n_missing++;
        }
    if (!st && !is_partial && (missing || extra))
        st = zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                       "%u trainable parameter(s) are not in the checkpoint (first: \"%.100s\"), %u of the checkpoint "
                       "are not trainable here (first: \"%.100s\"): bind the same parameters, or load with PARTIAL",
                       loader->n_missing, missing ? missing : "none", loader->n_extra, extra ? extra : "none");
    if (!st && loader->n_extra == saved->n_params)
        st = zfi_error(err, ZF_ERR_CHECKPOINT, "state", "no parameter of the checkpoint is bound here: another model");
    return st;
}

static zf_status_t match(loader_t *loader, uint32_t flags, zf_error_t *err) {
    const zfi_run_t *run = loader->run;
    const zfi_param_t **by_name = zfi_params_by_name(run->params, run->n_params);
    uint8_t *is_found = calloc(run->n_params + 1u, 1);
    zf_status_t st;
    loader->ids = malloc((loader->saved.n_params + 1) * sizeof *loader->ids);
    if (by_name && is_found && loader->ids)
        st = find_all(loader, by_name, is_found, (flags & ZF_STATE_PARTIAL) != 0, err);
    else
        st = zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to compare %u parameters", run->n_params);
    free(by_name);
    free(is_found);
    return st;
}

/* ---- whether the schedule goes on -------------------------------------------------------------------------------- */

/* Whether a choice has been made in the run by the time that the checkpoint is at. */
static int has_chosen(const loader_t *loader) { return !zfi_is_warm_up(&loader->run->clock, loader->saved.step + 1); }

/* A choice takes k channels of every block: others are of another cut, or of another topk_ratio. */
static int has_k_of_each(const loader_t *loader, uint32_t p) {
    const zfi_param_t *here = &loader->run->params[loader->ids[p]];
    const uint8_t *selected = loader->selected[p];
    for (uint32_t m = here->first_matrix; m < here->first_matrix + here->n_matrices; m++) {
        const zfi_matrix_t *matrix = &loader->run->plan.matrices[m];
        uint32_t n = 0;
        for (uint32_t c = 0; c < matrix->n_channels; c++)
            n += *selected++;
        if (n != matrix->k)
            return 0;
    }
    return 1;
}

static zf_status_t read_selected(loader_t *loader, uint32_t p, zf_error_t *err) {
    const zfi_saved_param_t *param = &loader->saved.params[p];
    uint64_t nbytes = param->tensors[ZFI_SAVED_SELECTED].nbytes;
    if (!nbytes)
        return ZF_OK;
    loader->selected[p] = malloc(nbytes);
    if (!loader->selected[p])
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the selection of \"%s\"", param->name);
    return zfi_state_read_all(loader->store, &loader->saved, param, ZFI_SAVED_SELECTED, loader->selected[p], err);
}

/* Reads the selection where it is needed, and fills continues. */
static zf_status_t find_whether_it_goes_on(loader_t *loader, zf_error_t *err) {
    const zfi_device_side_t *side = &loader->run->side;
    uint32_t n_found = 0, n_needed = 0;
    loader->continues = 1;
    loader->selected = calloc(loader->saved.n_params + 1, sizeof *loader->selected);
    if (!loader->selected)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for selections");
    for (uint32_t i = 0; i < side->n_params && has_chosen(loader); i++)
        n_needed += side->params[i].has_state && zfi_saved_has_choice(side->plan, &side->params[i]);
    for (uint32_t p = 0; p < loader->saved.n_params && has_chosen(loader); p++) {
        const zfi_param_t *here = loader->ids[p] == ZF_NO_ID ? NULL : &side->params[loader->ids[p]];
        if (!here || !zfi_saved_has_choice(side->plan, here))
            continue;
        zf_status_t st = read_selected(loader, p, err);
        if (st)
            return st;
        if (loader->selected[p] && zfi_saved_is_cut_alike(&loader->saved.params[p], here) && has_k_of_each(loader, p)) {
            n_found++;
        } else if (loader->continues) {
            loader->continues = 0;
            snprintf(loader->why, sizeof loader->why, "\"%.100s\" %s", here->name,
                     loader->selected[p] ? "is cut otherwise, or other channels are selected of it: another topk_ratio"
                                         : "has no selection in it");
        }
    }
    if (loader->continues && n_found < n_needed) {
        loader->continues = 0;
        snprintf(loader->why, sizeof loader->why, "of %u parameters it has no selection", n_needed - n_found);
    }
    return ZF_OK;
}

/* ---- of tensors with a value per element, what this rank keeps ----------------------------------------------------
 */

/* Whether all of a tensor is read, also what others keep. */
static int is_read_whole(const loader_t *loader, uint32_t p) {
    return !zfi_is_sharded(loader->run->engine) ||
           zfi_spread_is_gathered(&loader->run->ranks, loader->together, loader->ids[p]);
}

/* The elements of a matrix that are read. */
static zfi_slice_t range_of(const loader_t *loader, uint32_t p, uint32_t number) {
    const zfi_matrix_t *matrix = &loader->run->plan.matrices[number];
    return is_read_whole(loader, p) ? (zfi_slice_t){.n = matrix->rows * matrix->cols} : matrix->own;
}

/* The place for the values of a tensor. */
typedef struct put_args {
    const zfi_state_t *into;
    zfi_saved_array_t array;
    uint32_t id;
} put_args_t;

static zf_status_t put(void *arg, uint64_t first, const void *values, uint64_t n, zf_error_t *err) {
    const put_args_t *to = arg;
    return zfi_values_put(to->into, to->array, to->id, first, n, values, err);
}

static zf_status_t damaged(const zfi_saved_param_t *param, zfi_saved_array_t array, zf_error_t *err) {
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "%s of \"%s\" is damaged, or was changed while it was read: load another checkpoint",
                     zfi_saved_name(array), param->name);
}

/* Names the ranges to the store, of all tensors. */
static zf_status_t want_own(const loader_t *loader, zf_error_t *err) {
    const zfi_saved_t *saved = &loader->saved;
    zf_status_t st = ZF_OK;
    for (uint32_t p = 0; p < saved->n_params; p++)
        for (int a = 0; a <= ZFI_SAVED_V && loader->ids[p] != ZF_NO_ID; a++) {
            const zfi_param_t *here = &loader->run->params[loader->ids[p]];
            const zfi_saved_tensor_t *tensor = &saved->params[p].tensors[a];
            for (uint32_t m = here->first_matrix; m < here->first_matrix + here->n_matrices && tensor->nbytes && !st;
                 m++) {
                zfi_slice_t range = range_of(loader, p, m);
                if (range.n)
                    st = zfi_store_want(loader->store, saved->files[saved->params[p].file].name,
                                        tensor->offset +
                                            (loader->run->plan.matrices[m].param_offset + range.first) * sizeof(float),
                                        range.n * sizeof(float), err);
            }
        }
    return st;
}

/* Reads this rank's ranges of a tensor into a run, or, with into = NULL, nowhere. The tensor's checksum becomes that of
 * the ranges, until the ranks agree. Where this rank has to read all of it for its checksum, it does. A checksum that
 * the index lacks becomes that of what is read first. */
static zf_status_t read_own(loader_t *loader, uint32_t p, zfi_saved_array_t array, const zfi_state_t *into,
                            zf_error_t *err) {
    const zfi_param_t *here = &loader->run->params[loader->ids[p]];
    zfi_saved_param_t *param = &loader->saved.params[p];
    zfi_saved_tensor_t *tensor = &param->tensors[array];
    put_args_t to = {into, array, here->id};
    uint32_t need = tensor->crc;
    zf_status_t st = ZF_OK;
    tensor->crc = 0;
    for (uint32_t m = here->first_matrix; m < here->first_matrix + here->n_matrices && !st; m++) {
        zfi_slice_t slice = range_of(loader, p, m);
        zfi_tensor_range_t of = {param, array, loader->run->plan.matrices[m].param_offset + slice.first, slice.n};
        st = zfi_state_read(loader->store, &loader->saved, &of, into ? put : NULL, &to, &tensor->crc, err);
    }
    if (!is_read_whole(loader, p))
        return st;
    if (!st && tensor->crc != need && !tensor->lacks_crc)
        st = damaged(param, array, err);
    tensor->lacks_crc = 0;
    return st;
}

static zf_status_t join(loader_t *loader, zf_error_t *err) {
    zf_status_t st = zfi_spread_join(&loader->run->ranks, loader->ids, loader->together, &loader->saved, err);
    for (uint64_t i = 0; i < (uint64_t)loader->saved.n_params * ZFI_SAVED_ARRAYS && !st; i++) {
        zfi_saved_param_t *param = &loader->saved.params[i / ZFI_SAVED_ARRAYS];
        zfi_saved_tensor_t *tensor = &param->tensors[i % ZFI_SAVED_ARRAYS];
        if (tensor->lacks_crc) {
            loader->crcs[i] = tensor->crc;
            tensor->lacks_crc = 0;
        } else if (tensor->crc != loader->crcs[i]) {
            st = damaged(param, (zfi_saved_array_t)(i % ZFI_SAVED_ARRAYS), err);
        }
    }
    return st;
}

/* The ranks have read (st, err): whether, joined, it is what was saved. A meeting of all. */
static zf_status_t agree_own(loader_t *loader, zf_status_t st, zf_error_t *err) {
    st = zfi_together_meet(loader->together, st, err);
    if (st || !zfi_is_sharded(loader->run->engine))
        return st;
    return zfi_together_meet(loader->together, join(loader, err), err);
}

/* ---- into a run -------------------------------------------------------------------------------------------------- */

/* Every rank has all counts of updates. */
static zf_status_t read_counts(const loader_t *loader, uint32_t p, const zfi_state_t *into, zf_error_t *err) {
    const zfi_saved_param_t *param = &loader->saved.params[p];
    uint32_t *counts = malloc(param->tensors[ZFI_SAVED_N].nbytes);
    zf_status_t st = counts ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for counts of updates");
    if (!st)
        st = zfi_state_read_all(loader->store, &loader->saved, param, ZFI_SAVED_N, counts, err);
    for (uint64_t i = 0; i < param->n_batch * param->n_blocks && into && !st; i++) {
        zfi_matrix_t block;
        uint64_t first, n;
        zfi_saved_block(param, i, &block);
        zfi_saved_range(&loader->saved, param, ZFI_SAVED_N, i, &first, &n);
        zfi_values_put_counts(into, loader->ids[p], &block, counts + first, !loader->saved.is_mean);
    }
    free(counts);
    return st;
}

/* Reads what this rank keeps of every tensor into a run; with into = NULL the values are checked alone. */
static zf_status_t read_saved(loader_t *loader, const zfi_state_t *into, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (uint32_t p = 0; p < loader->saved.n_params && !st; p++) {
        if (loader->ids[p] == ZF_NO_ID)
            continue;
        for (int a = 0; a <= ZFI_SAVED_V && !st; a++)
            if (loader->saved.params[p].tensors[a].nbytes)
                st = read_own(loader, p, (zfi_saved_array_t)a, into, err);
        if (!st)
            st = read_counts(loader, p, into, err);
    }
    return st;
}

/* Sel of a matrix: its mask, and a list of what is selected, in rising order. selected: of its channels, or NULL: all.
 */
static void put_selected(const zfi_state_t *into, uint32_t number, const uint8_t *selected) {
    const zfi_matrix_t *matrix = &into->plan->matrices[number];
    uint32_t pos = 0;
    for (uint32_t c = 0; c < matrix->n_channels && matrix->k; c++) {
        into->sel->mask[matrix->channel_base + c] = selected ? selected[c] : 1;
        if (into->sel->mask[matrix->channel_base + c] && pos < matrix->k)
            into->sel->index[matrix->index_base + pos++] = c;
    }
}

static zf_status_t put_importance(loader_t *loader, uint32_t p, const zfi_state_t *into, zf_error_t *err) {
    const zfi_saved_param_t *param = &loader->saved.params[p];
    const zfi_param_t *here = &into->side->params[loader->ids[p]];
    uint64_t nbytes = param->tensors[ZFI_SAVED_IMPORTANCE].nbytes;
    double *values, *from;
    if (!nbytes || !zfi_saved_is_cut_alike(param, here))
        return ZF_OK;
    values = from = malloc(nbytes);
    zf_status_t st = values
                         ? zfi_state_read_all(loader->store, &loader->saved, param, ZFI_SAVED_IMPORTANCE, values, err)
                         : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the importance of channels");
    for (uint32_t m = here->first_matrix; m < here->first_matrix + here->n_matrices && !st; m++) {
        const zfi_matrix_t *matrix = &into->plan->matrices[m];
        if (matrix->is_choosable)
            memcpy(into->sel->importance + matrix->sum_base, from, matrix->n_channels * sizeof *from);
        from += matrix->n_channels;
    }
    free(values);
    return st;
}

/* The schedule as it was: selection, importance, and the steps of the last choices. */
static zf_status_t put_schedule(loader_t *loader, zfi_run_t *into, zf_error_t *err) {
    const zfi_saved_t *saved = &loader->saved;
    zf_status_t st = ZF_OK;
    into->clock.t = saved->step;
    into->clock.epoch_end = saved->epoch_end;
    for (uint32_t c = 0; c < into->plan.n_cohorts && has_chosen(loader); c++) {
        uint64_t step = saved->n_cohorts == into->plan.n_cohorts ? saved->last_choice[c] : 0;
        into->clock.last_choice[c] = step ? step : saved->step;
    }
    for (uint32_t i = 0; i < into->plan.n_matrices && has_chosen(loader); i++)
        put_selected(&into->state, i, NULL); /* all, but where the checkpoint has a choice */
    for (uint32_t p = 0; p < saved->n_params && !st; p++) {
        const uint8_t *selected = loader->selected[p];
        const zfi_param_t *here = loader->ids[p] == ZF_NO_ID ? NULL : &into->params[loader->ids[p]];
        for (uint32_t m = 0; selected && m < here->n_matrices; m++) {
            put_selected(&into->state, here->first_matrix + m, selected);
            selected += into->plan.matrices[here->first_matrix + m].n_channels;
        }
        if (here)
            st = put_importance(loader, p, &into->state, err);
    }
    return st;
}

/* Parameters that the checkpoint lacks keep what they have. (In place: they have what bind_params gave.) */
static zf_status_t carry_missing(loader_t *loader, zfi_run_t *into, zf_error_t *err) {
    zfi_run_t *run = loader->run;
    zfi_reader_t reader;
    uint8_t *is_saved = calloc(run->n_params + 1u, 1);
    if (!is_saved)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to compare %u parameters", run->n_params);
    for (uint32_t p = 0; p < loader->saved.n_params; p++)
        if (loader->ids[p] != ZF_NO_ID)
            is_saved[loader->ids[p]] = 1;
    zf_status_t st = zfi_reader_open(run, 1, "state", &reader, err);
    for (uint32_t i = 0; i < run->plan.n_matrices && !st; i++)
        if (!is_saved[run->plan.matrices[i].param])
            st = zfi_values_carry(&reader, i, &into->state, run->plan.matrices[i].param, NULL, NULL, err);
    zfi_reader_close(&reader);
    free(is_saved);
    return st;
}

static zf_status_t begin(loader_t *loader, zfi_replacement_t *out, zf_error_t *err) {
    if (loader->is_in_place)
        return zfi_replace_begin_in_place(loader->slot, out, err);
    if (!loader->gives_up)
        return zfi_replace_begin(loader->slot, NULL, 0, ZFI_BEGIN_BESIDE, out, err);
    zfi_log(loader->run->engine, ZF_LOG_WARN, "state",
            "no room for what is loaded beside what is there: that is given up now, so an error from here on ends the "
            "instance");
    zf_status_t st = zfi_replace_begin(loader->slot, NULL, 0, ZFI_BEGIN_INSTEAD, out, err);
    loader->run = *loader->slot;
    return st;
}

/* Submitted steps that the run goes on from. A parameter that the checkpoint lacks may have had more updates than that
 * has steps. */
static uint64_t count_steps(const loader_t *loader) {
    const zfi_clock_t *clock = &loader->run->clock;
    uint64_t n = loader->saved.n_submitted;
    int keeps = loader->n_missing && !loader->is_in_place;
    return keeps && clock->t + clock->steps_before > n ? clock->t + clock->steps_before : n;
}

static zf_status_t fill(loader_t *loader, zfi_run_t *into, zf_error_t *err) {
    zf_status_t st = read_saved(loader, &into->state, err);
    if (!st && loader->n_missing && !loader->is_in_place)
        st = carry_missing(loader, into, err);
    return !st && loader->continues ? put_schedule(loader, into, err) : st;
}

static zf_status_t load_into(loader_t *loader, zf_error_t *err) {
    zfi_replacement_t replacement;
    zfi_run_t *into = NULL;
    zf_status_t st = loader->n_missing ? zfi_gathering_counts(&loader->run->ranks, loader->run->hs.n) : ZF_OK;
    if (!st)
        st = begin(loader, &replacement, err);
    int has_begun = !st;
    if (!st) {
        into = replacement.into;
        st = fill(loader, into, err);
    }
    st = agree_own(loader, st, err);
    if (st) {
        if (has_begun)
            zfi_replace_cancel(&replacement, err);
        return st;
    }
    into->clock.steps_before = count_steps(loader) - into->clock.t;
    into->clock.n_applied = loader->saved.n_applied;
    into->clock.n_skipped = loader->saved.n_skipped;
    into->clock.next_job = 0;
    memset(into->clock.skip_publish_below, 0, into->plan.n_matrices * sizeof *into->clock.skip_publish_below);
    zfi_window_start(&into->windows);
    return zfi_replace_commit(&replacement, err);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* Moments of one rule mean nothing to another. */
static zf_status_t check_rules(const loader_t *loader, zf_error_t *err) {
    for (uint32_t p = 0; p < loader->saved.n_params; p++) {
        const zfi_group_rule_t *there = &loader->saved.rules[loader->saved.params[p].group];
        const zfi_param_t *here;
        if (loader->ids[p] == ZF_NO_ID)
            continue;
        here = &loader->run->params[loader->ids[p]];
        if (!zfi_rule_is_alike(there, here->rule))
            return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                             "\"%.100s\" was saved with the update rule \"%s\" of %u moment(s); its group %u has "
                             "\"%s\" of %u: bind the rule that the weights were trained with",
                             here->name, there->name, there->n_moments, here->group, here->rule->name,
                             here->rule->n_moments);
    }
    return ZF_OK;
}

/* The checkpoint's tensors, which are all read before anything is changed. The ranks share the work. */
static zf_status_t check_tensors(loader_t *loader, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (uint32_t p = loader->together->rank; p < loader->saved.n_params && !st; p += loader->together->n_ranks)
        st = zfi_state_check_param(loader->store, &loader->saved, &loader->saved.params[p], err);
    return zfi_together_meet(loader->together, st, err);
}

/* Checks tensors of which no rank's store has all. A rank whose store fails before the hosts may exchange bytes keeps
 * nobody waiting for it there. */
static zf_status_t check_own(loader_t *loader, zf_error_t *err) {
    zf_status_t st = zfi_together_meet(loader->together, want_own(loader, err), err);
    if (!st)
        st = zfi_together_meet(loader->together, zfi_store_want(loader->store, NULL, 0, 0, err), err);
    return st ? st : agree_own(loader, read_saved(loader, NULL, err), err);
}

/* Every rank must find the same. */
typedef struct found {
    uint32_t part, index_crc; /* of one part one index */
    uint32_t flags, continues, n_params, n_missing;
    uint32_t is_in_place, gives_up; /* the last: what each may find otherwise */
} found_t;

static zf_status_t compare_ranks(loader_t *loader, uint32_t flags, zf_error_t *err) {
    zfi_together_t *together = loader->together;
    const found_t own = {together->part.number,
                         loader->saved.index_crc,
                         flags,
                         (uint32_t)loader->continues,
                         loader->saved.n_params - loader->n_extra,
                         loader->n_missing,
                         (uint32_t)loader->is_in_place,
                         (uint32_t)loader->gives_up};
    found_t *all;
    zf_status_t st = zfi_together_tell(together, ZFI_AMONG_MET, ZF_OK, &own, sizeof own, (void **)&all, err);
    for (uint32_t r = 0; r < together->meeting.n_ranks && !st; r++) {
        loader->is_in_place &= (int)all[r].is_in_place;
        loader->gives_up |= (int)all[r].gives_up;
    }
    for (uint32_t r = 1; r < together->meeting.n_ranks && !st; r++)
        if (memcmp(&all[r].flags, &all[0].flags, offsetof(found_t, is_in_place) - offsetof(found_t, flags)) != 0 ||
            (all[r].part == all[0].part && all[r].index_crc != all[0].index_crc))
            st = zfi_error_by(err, ZF_ERR_RANKS, r, "state",
                              "rank %u and rank 0 do not load the same: index %08x and %08x, flags 0x%x and 0x%x, "
                              "schedules that %s and that %s, %u and %u parameters; give every rank the same "
                              "checkpoint, flags and configuration",
                              r, all[r].index_crc, all[0].index_crc, all[r].flags, all[0].flags,
                              all[r].continues ? "go on" : "begin again", all[0].continues ? "go on" : "begin again",
                              all[r].n_params, all[0].n_params);
    zfi_together_drop(together, all);
    return st;
}

zf_status_t zfi_state_check_part(const zfi_saved_t *saved, const zfi_together_t *together, uint32_t flags,
                                 zf_error_t *err) {
    zfi_part_t there = saved->part, here = together->part;
    if (there.n == 0 || (flags & ZF_STATE_PARTIAL) || (there.number == here.number && there.n == here.n))
        return ZF_OK;
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "it holds part %u of %u of a model, this rank trains part %u of %u: give each rank the directory "
                     "that its part was saved to (or ZF_STATE_PARTIAL, if it is meant)",
                     there.number, there.n, here.number, here.n ? here.n : 1);
}

/* Nobody has exchanged it since the ranks looked. */
static zf_status_t check_looked(const loader_t *loader, zf_error_t *err) {
    if (!loader->together->looked_crc || loader->together->looked_crc == loader->saved.index_crc)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "it was exchanged for another while the ranks compared what they load: load once more");
}

/* The index's; NULL without memory. */
static uint32_t *keep_checksums(const zfi_saved_t *saved) {
    uint32_t *out = malloc(((size_t)saved->n_params * ZFI_SAVED_ARRAYS + 1) * sizeof *out);
    for (uint32_t i = 0; out && i < saved->n_params * ZFI_SAVED_ARRAYS; i++)
        out[i] = saved->params[i / ZFI_SAVED_ARRAYS].tensors[i % ZFI_SAVED_ARRAYS].crc;
    return out;
}

/* Compares the checkpoint with this run, without the other ranks. */
static zf_status_t compare_run(loader_t *loader, uint32_t flags, zf_error_t *err) {
    zf_status_t st = check_looked(loader, err);
    if (!st)
        st = zfi_state_check_part(&loader->saved, loader->together, flags, err);
    if (!st)
        st = match(loader, flags, err);
    if (!st)
        st = check_rules(loader, err);
    if (!st && !(loader->crcs = keep_checksums(&loader->saved)))
        st = zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for checksums");
    if (!st)
        st = find_whether_it_goes_on(loader, err);
    if (!st && !loader->continues && (flags & ZF_STATE_CONTINUE))
        st = zfi_error(err, ZF_ERR_CHECKPOINT, "state", "its schedule cannot go on where it was: %s", loader->why);
    return st;
}

/* Everything that can be said before anything is changed; all ranks come to the same. */
static zf_status_t examine(loader_t *loader, uint32_t flags, zf_error_t *err) {
    zf_status_t st = zfi_state_open(loader->store, &loader->saved, err);
    if (!st)
        st = compare_run(loader, flags, err);
    loader->is_in_place = !st && zfi_replace_is_lossless(loader->run);
    loader->gives_up =
        !st && !loader->is_in_place && !loader->n_missing && !zfi_memory_has_room_beside(&loader->run->ranks);
    st = zfi_together_meet(loader->together, st, err);
    if (!st && zfi_together_meets(loader->together))
        st = compare_ranks(loader, flags, err);
    if (!st) /* another model's tensors are not read at all */
        st = loader->together->is_apart ? check_own(loader, err) : check_tensors(loader, err);
    return st;
}

/* loader->run may be gone by now. */
static void report_load(const loader_t *loader, zf_state_report_t *report) {
    const zfi_engine_t *engine = loader->together->engine;
    zfi_state_report(&loader->saved, loader->store, report);
    report->continues = loader->continues;
    report->n_params = loader->saved.n_params - loader->n_extra;
    report->n_missing = loader->n_missing;
    report->n_extra = loader->n_extra;
    zfi_log(engine, loader->continues ? ZF_LOG_INFO : ZF_LOG_WARN, "state",
            "loaded %u parameters at step %" PRIu64 "%s%s", report->n_params, report->step,
            loader->continues ? "" : "; the schedule begins again with its warm-up: ",
            loader->continues ? "" : loader->why);
}

static void free_loader(loader_t *loader) {
    for (uint32_t p = 0; loader->selected && p < loader->saved.n_params; p++)
        free(loader->selected[p]);
    free(loader->selected);
    free(loader->ids);
    free(loader->crcs);
    zfi_saved_free(&loader->saved);
}

zf_status_t zfi_state_read_into(zfi_run_t **slot, zfi_store_t *store, uint32_t flags, zfi_together_t *together,
                                zf_state_report_t *report, zf_error_t *err) {
    loader_t loader = {.slot = slot, .run = *slot, .store = store, .together = together};
    zf_status_t st = examine(&loader, flags, err);
    if (!st)
        st = load_into(&loader, err);
    if (!st)
        report_load(&loader, report);
    free_loader(&loader);
    return st;
}
