/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/load.c - a checked checkpoint into a run (contract in state.h).
 *
 * Exact, where configuration, parameters, their order and their cut are those that it was saved with; else matrix by
 * matrix as FLUSH would have left it, and the schedule begins anew. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/tensor.h"
#include "config/config_table.h"
#include "instance/memory.h"
#include "ranks/gathering.h"
#include "schedule/window.h"
#include "state/loader.h"

/* ---- which parameters -------------------------------------------------------------------------------------------- */

static zf_status_t check_shape(const zfi_param_t *saved, const zfi_param_t *bound, zf_error_t *err) {
    char have[128], need[128];
    if (zfi_param_has_shape(saved, bound->ndim, bound->shape))
        return ZF_OK;
    zfi_shape_text(have, sizeof have, saved->ndim, saved->shape);
    zfi_shape_text(need, sizeof need, bound->ndim, bound->shape);
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "parameter \"%s\" has shape %s in the checkpoint, %s here: this is not the model that was saved",
                     bound->name, have, need);
}

/* Whether what is bound here and what was saved are the same. is_found: of each parameter here. */
static zf_status_t find_all(zfi_loader_t *loader, const zfi_param_t *const *by_name, uint8_t *is_found, int is_partial,
                            zf_error_t *err) {
    const zfi_run_t *run = loader->run;
    const zfi_saved_t *saved = &loader->saved;
    const char *missing = NULL, *extra = NULL;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < saved->n_params && !st; i++) {
        const zfi_param_t *param = &saved->params[i].param;
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

static zf_status_t match(zfi_loader_t *loader, uint32_t flags, zf_error_t *err) {
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

/* ---- exact or not ------------------------------------------------------------------------------------------------ */

static int config_differs(zfi_loader_t *loader) {
    char saved[256], here[256];
    for (uint32_t i = 0; i < zfi_config_n_keys(); i++) {
        const zfi_key_t *key = zfi_key_at(i);
        zfi_config_effect(&loader->saved.config, i, saved, sizeof saved);
        zfi_config_effect(&loader->run->engine->config, i, here, sizeof here);
        if (zfi_key_is_free(key->section, key->name) || strcmp(saved, here) == 0)
            continue;
        snprintf(loader->why, sizeof loader->why, "%s.%s was %.64s, is %.64s", key->section, key->name, saved, here);
        return 1;
    }
    return 0;
}

static int cut_differs(const zfi_matrix_t *saved, const zfi_matrix_t *here) {
    return saved->param_offset != here->param_offset || saved->rows != here->rows || saved->cols != here->cols ||
           saved->cohort != here->cohort || saved->is_resident != here->is_resident ||
           saved->is_choosable != here->is_choosable || saved->k != here->k;
}

static int param_differs(zfi_loader_t *loader, const zfi_saved_param_t *saved, const zfi_param_t *here) {
    const zfi_param_t *there = &saved->param;
    int differs = there->dtype != here->dtype || there->grad_dtype != here->grad_dtype || there->group != here->group ||
                  there->flags != here->flags || there->n_batch_axes != here->n_batch_axes ||
                  there->channels_are_rows != here->channels_are_rows || saved->n_matrices != here->n_matrices;
    for (uint32_t m = 0; m < saved->n_matrices && !differs; m++) {
        const zfi_matrix_t *matrix = &loader->run->plan.matrices[here->first_matrix + m];
        differs = cut_differs(&saved->matrices[m], matrix);
    }
    if (differs)
        snprintf(loader->why, sizeof loader->why, "\"%.100s\" is declared or cut differently", here->name);
    return differs;
}

static int fits_exactly(zfi_loader_t *loader) {
    const zfi_run_t *run = loader->run;
    uint32_t last = 0;
    if (loader->saved.is_compact)
        return 0;
    if (loader->n_missing || loader->n_extra) {
        snprintf(loader->why, sizeof loader->why, "%u parameter(s) are missing in it, %u are not bound",
                 loader->n_missing, loader->n_extra);
        return 0;
    }
    if (config_differs(loader))
        return 0;
    for (uint32_t i = 0; i < loader->saved.n_params; i++) {
        if (i && loader->ids[i] < last) {
            snprintf(loader->why, sizeof loader->why, "the parameters are bound in another order");
            return 0;
        }
        last = loader->ids[i];
        if (run->dev.head.moments == ZFI_MOMENTS_BF16_STOCHASTIC && loader->saved.params[i].param.id != last) {
            snprintf(loader->why, sizeof loader->why, "\"%.100s\" had another number, by which its moments are rounded",
                     run->params[last].name);
            return 0;
        }
        if (param_differs(loader, &loader->saved.params[i], &run->params[last]))
            return 0;
    }
    if (loader->saved.shape.n_groups == run->n_groups)
        return 1;
    snprintf(loader->why, sizeof loader->why, "it has %u parameter groups, here are %u", loader->saved.shape.n_groups,
             run->n_groups);
    return 0;
}

/* ---- as a compact one -------------------------------------------------------------------------------------------- */

typedef struct counts {
    zfi_value_check_t check; /* as they are read again */
    uint32_t *values;
} counts_t;

static zf_status_t keep_counts(void *arg, uint64_t at, const void *block, uint64_t nbytes, zf_error_t *err) {
    counts_t *counts = arg;
    memcpy(counts->values + at / sizeof *counts->values, block, nbytes);
    return zfi_state_check_block(&counts->check, at, block, nbytes, err);
}

/* Every rank has all counts of updates. */
static zf_status_t read_counts(const zfi_loader_t *loader, uint32_t p, const zfi_saved_tensor_t *tensor,
                               const zfi_state_t *into, zf_error_t *err) {
    const zfi_saved_param_t *param = &loader->saved.params[p];
    counts_t counts = {{.saved = &loader->saved, .param = param, .tensor = tensor}, malloc(tensor->nbytes + 1)};
    zfi_flushed_t flushed = {.n = counts.values, .has_one_count = !loader->saved.shape.is_mean};
    zf_status_t st = counts.values ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for counts of updates");
    if (!st)
        st = zfi_state_stream(loader->store, &loader->saved, tensor, param->param.name, keep_counts, &counts, err);
    for (uint32_t m = 0; m < param->n_matrices && into && !st; m++) {
        st = zfi_carry(into, loader->ids[p], &param->matrices[m], &flushed, err);
        flushed.n += tensor->array->length(&loader->saved.shape, &param->matrices[m]);
    }
    free(counts.values);
    return st;
}

/* A compact checkpoint has values alone, which are put to where they belong, whatever it is cut like. into = NULL: what
 * this rank keeps is checked. */
static zf_status_t read_saved(zfi_loader_t *loader, const zfi_state_t *into, zf_error_t *err) {
    zfi_state_io_t io = {.state = into};
    zf_status_t st = ZF_OK;
    for (zfi_tensor_walk_t at = {0}; !st && zfi_next_tensor(&loader->saved, &at);)
        if (loader->ids[at.number] == ZF_NO_ID)
            continue;
        else if (at.tensor->array->flags & ZFI_ARRAY_PER_ELEMENT)
            st = zfi_own_read(loader, at.number, at.tensor, into ? &io : NULL, err);
        else
            st = read_counts(loader, at.number, at.tensor, into, err);
    return st;
}

static zf_status_t carry_saved(zfi_loader_t *loader, zfi_run_t *into, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    for (uint32_t p = 0; p < loader->saved.n_params && !st; p++) {
        const zfi_saved_param_t *param = &loader->saved.params[p];
        for (uint32_t m = 0; m < param->n_matrices && loader->ids[p] != ZF_NO_ID && !st; m++) {
            zfi_flushed_t flushed;
            st = zfi_state_flushed(loader->store, &loader->saved, p, m, into->engine->kernels,
                                   into->params[loader->ids[p]].rule, &flushed, err);
            if (st)
                break;
            st = zfi_carry(&into->state, loader->ids[p], &param->matrices[m], &flushed, err);
            zfi_flushed_free(&flushed);
        }
    }
    return st;
}

static int is_saved(const zfi_loader_t *loader, uint32_t id) {
    for (uint32_t p = 0; p < loader->saved.n_params; p++)
        if (loader->ids[p] == id)
            return 1;
    return 0;
}

/* Parameters that the checkpoint lacks keep what they have. (In place: they have what bind_params gave.) */
static zf_status_t carry_missing(zfi_loader_t *loader, zfi_run_t *into, zf_error_t *err) {
    zfi_run_t *run = loader->run;
    zfi_rehearsal_t *rehearsal = zfi_rehearsal_new(&run->state, &run->replays);
    zf_status_t st = rehearsal ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a chunk's copies");
    for (uint32_t i = 0; i < run->plan.n_matrices && !st; i++) {
        const zfi_matrix_t *matrix = &run->plan.matrices[i];
        zfi_flushed_t flushed;
        if (is_saved(loader, matrix->param))
            continue;
        st = zfi_run_flushed(&run->plan, run->params, rehearsal, i, &flushed, err);
        if (st)
            break;
        st = zfi_carry(&into->state, matrix->param, matrix, &flushed, err);
        zfi_flushed_free(&flushed);
    }
    zfi_rehearsal_free(rehearsal);
    return st;
}

zf_status_t zfi_loader_begin(zfi_loader_t *loader, zfi_replacement_t *out, zf_error_t *err) {
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

/* That the run goes on from. A parameter that the checkpoint lacks may have had more updates than that has steps. */
static uint64_t count_steps(const zfi_loader_t *loader, const zfi_run_t *into) {
    const zfi_clock_t *clock = &loader->run->clock;
    uint64_t n = loader->saved.clocks[ZFI_CLOCK_T][0] + loader->saved.clocks[ZFI_CLOCK_STEPS_BEFORE][0];
    int keeps = loader->n_missing && into != loader->run;
    return keeps && clock->t + clock->steps_before > n ? clock->t + clock->steps_before : n;
}

static zf_status_t load_compact(zfi_loader_t *loader, zf_error_t *err) {
    const zfi_saved_t *saved = &loader->saved;
    zfi_replacement_t replacement;
    zfi_run_t *into = NULL;
    zf_status_t st = loader->n_missing && zfi_is_sharded(loader->run->engine)
                         ? zfi_gathering_counts(&loader->run->ranks, loader->run->hs.n)
                         : 0;
    if (!st)
        st = zfi_loader_begin(loader, &replacement, err);
    int has_begun = !st;
    if (!st) {
        into = replacement.into;
        st = saved->is_compact ? read_saved(loader, &into->state, err) : carry_saved(loader, into, err);
    }
    if (!st && loader->n_missing && into != loader->run)
        st = carry_missing(loader, into, err);
    st = saved->is_compact ? zfi_own_agree(loader, st, err) : zfi_together_meet(loader->together, st, err);
    if (st) {
        if (has_begun)
            zfi_replace_cancel(&replacement, err);
        return st;
    }
    into->clock.steps_before = count_steps(loader, into);
    into->clock.n_applied = saved->clocks[ZFI_CLOCK_N_APPLIED][0];
    into->clock.n_skipped = saved->clocks[ZFI_CLOCK_N_SKIPPED][0];
    into->clock.next_job = 0;
    zfi_window_start(&into->windows);
    return zfi_replace_commit(&replacement, err);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* Moments of one rule mean nothing to another. */
static zf_status_t check_rules(const zfi_loader_t *loader, zf_error_t *err) {
    for (uint32_t p = 0; p < loader->saved.n_params; p++) {
        const zfi_param_t *there = &loader->saved.params[p].param, *here;
        if (loader->ids[p] == ZF_NO_ID)
            continue;
        here = &loader->run->params[loader->ids[p]];
        if (!zfi_rule_is_alike(there->rule, here->rule))
            return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                             "\"%.100s\" was saved with the update rule \"%s\" of %u moment(s); its group %u has "
                             "\"%s\" of %u: bind the rule that the weights were trained with",
                             here->name, there->rule->name, there->rule->n_moments, here->group, here->rule->name,
                             here->rule->n_moments);
    }
    return ZF_OK;
}

/* The checkpoint's tensors, which are all read before anything is changed. The ranks share the work; of an exact one
 * that is taken as a compact one each computes with checksums of its own. */
static zf_status_t check_tensors(zfi_loader_t *loader, int is_exact, zf_error_t *err) {
    int is_shared = is_exact || loader->saved.is_compact;
    uint32_t n = is_shared ? loader->together->n_ranks : 1, first = is_shared ? loader->together->rank : 0;
    zf_status_t st = ZF_OK;
    for (uint32_t p = first; p < loader->saved.n_params && !st; p += n)
        st = zfi_state_check_tensors(loader->store, &loader->saved, p, err);
    return zfi_together_meet(loader->together, st, err);
}

/* Where no rank's store has all of them. A rank whose store fails before the hosts may exchange bytes keeps nobody
 * waiting for it there. */
static zf_status_t check_own(zfi_loader_t *loader, zf_error_t *err) {
    zf_status_t st = zfi_together_meet(loader->together, zfi_own_want(loader, err), err);
    if (!st)
        st = zfi_together_meet(loader->together, zfi_store_want(loader->store, NULL, 0, 0, err), err);
    return st ? st : zfi_own_agree(loader, read_saved(loader, NULL, err), err);
}

/* How it is loaded: each way has meetings of its own. */
enum { EXACT, COMPACT, TAKEN_AS_COMPACT };
static const char *const kinds[] = {"exact", "compact", "not exact"};

/* What every rank must find alike. */
typedef struct found {
    uint32_t part, index_crc; /* of one part one index */
    uint32_t flags, kind, n_params, n_missing;
    uint32_t is_in_place, gives_up; /* the last: what each may find otherwise */
} found_t;

static zf_status_t compare_ranks(zfi_loader_t *loader, uint32_t flags, int is_exact, zf_error_t *err) {
    zfi_together_t *together = loader->together;
    const found_t own = {together->part.number,
                         loader->saved.index_crc,
                         flags,
                         is_exact                   ? EXACT
                         : loader->saved.is_compact ? COMPACT
                                                    : TAKEN_AS_COMPACT,
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
                              "rank %u and rank 0 do not load the same: index %08x and %08x, flags 0x%x and 0x%x, %s "
                              "and %s, %u and %u parameters; give every rank the same checkpoint and the same flags",
                              r, all[r].index_crc, all[0].index_crc, all[r].flags, all[0].flags, kinds[all[r].kind],
                              kinds[all[0].kind], all[r].n_params, all[0].n_params);
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
static zf_status_t check_looked(const zfi_loader_t *loader, zf_error_t *err) {
    if (!loader->together->looked_crc || loader->together->looked_crc == loader->saved.index_crc)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "it was exchanged for another while the ranks compared what they load: load once more");
}

/* [n] The index's; NULL without memory. */
static uint32_t *keep_checksums(const zfi_saved_t *saved) {
    uint32_t *out = malloc((zfi_count_tensors(saved) + 1) * sizeof *out), n = 0;
    for (zfi_tensor_walk_t at = {0}; out && zfi_next_tensor(saved, &at);)
        out[n++] = at.tensor->crc;
    return out;
}

/* Everything that can be said before anything is changed; all ranks come to the same. */
static zf_status_t examine(zfi_loader_t *loader, uint32_t flags, int *out_is_exact, zf_error_t *err) {
    zf_status_t st = zfi_state_open(loader->store, &loader->saved, err);
    if (!st)
        st = check_looked(loader, err);
    if (!st)
        st = zfi_state_check_part(&loader->saved, loader->together, flags, err);
    if (!st && loader->together->is_apart && !loader->saved.is_compact)
        st = zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                       "it is exact, and ZF_STATE_OWN loads compact ones: save with ZF_STATE_COMPACT, or load without "
                       "ZF_STATE_OWN from a store that has all of it");
    if (!st)
        st = match(loader, flags, err);
    if (!st)
        st = check_rules(loader, err);
    if (!st && !(loader->crcs = keep_checksums(&loader->saved)))
        st = zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for checksums");
    *out_is_exact = 0;
    if (!st) {
        *out_is_exact = fits_exactly(loader);
        loader->is_in_place = zfi_replace_is_lossless(loader->run);
        loader->gives_up =
            !loader->is_in_place && !loader->n_missing && !zfi_memory_has_room_beside(&loader->run->ranks);
    }
    st = zfi_together_meet(loader->together, st, err);
    if (!st && zfi_together_meets(loader->together))
        st = compare_ranks(loader, flags, *out_is_exact, err);
    if (!st) /* another model's tensors are not read at all */
        st = loader->together->is_apart ? check_own(loader, err) : check_tensors(loader, *out_is_exact, err);
    return st;
}

/* loader->run may be gone by now. */
static void report_load(const zfi_loader_t *loader, int is_exact, zf_state_report_t *report) {
    const zfi_engine_t *engine = loader->together->engine;
    zfi_state_report(&loader->saved, loader->store, report);
    report->is_exact = is_exact;
    report->n_params = loader->saved.n_params - loader->n_extra;
    report->n_missing = loader->n_missing;
    report->n_extra = loader->n_extra;
    zfi_log(engine, is_exact || loader->saved.is_compact ? ZF_LOG_INFO : ZF_LOG_WARN, "state",
            "loaded %u parameters at step %" PRIu64 "%s%s", report->n_params, report->step,
            is_exact ? ", to the bit" : "; the schedule begins anew with its warm-up",
            is_exact || loader->saved.is_compact ? "" : ", although the checkpoint is exact:");
    if (!is_exact && !loader->saved.is_compact)
        zfi_log(engine, ZF_LOG_WARN, "state", "... %s", loader->why);
}

static zf_status_t load(zfi_loader_t *loader, uint32_t flags, zf_state_report_t *report, zf_error_t *err) {
    int is_exact;
    zf_status_t st = examine(loader, flags, &is_exact, err);
    if (st)
        return st;
    if (!is_exact && (flags & ZF_STATE_EXACT))
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "it cannot be continued to the bit: %s",
                         loader->saved.is_compact ? "it was saved compact, without open windows" : loader->why);
    st = is_exact ? zfi_load_exact(loader, err) : load_compact(loader, err);
    if (!st)
        report_load(loader, is_exact, report);
    return st;
}

zf_status_t zfi_state_read_into(zfi_run_t **slot, zfi_store_t *store, uint32_t flags, zfi_together_t *together,
                                zf_state_report_t *report, zf_error_t *err) {
    zfi_loader_t loader = {.slot = slot, .run = *slot, .store = store, .together = together};
    zf_status_t st = load(&loader, flags, report, err);
    free(loader.ids);
    free(loader.crcs);
    zfi_saved_free(&loader.saved);
    return st;
}
