/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/index.c - what an instance would save, and the index as text (contract in state/index.h). */
#include "state/index.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "config/config_table.h"
#include "state/json.h"

void zfi_saved_free(zfi_saved_t *saved) {
    for (int i = 0; i < ZFI_N_CLOCKS; i++)
        free(saved->clocks[i]);
    for (int i = 0; i < ZFI_N_STATE_STEPS; i++)
        free(saved->step_values[i]);
    for (uint32_t i = 0; saved->params && i < saved->n_params; i++) {
        zfi_saved_param_t *param = &saved->params[i];
        for (uint32_t k = 0; param->tensors && k < param->n_tensors; k++) {
            free(param->tensors[k].matrices);
            free(param->tensors[k].parts);
        }
        free(param->tensors);
        free(param->matrices);
    }
    free(saved->params);
    free(saved->files);
    free(saved->rules);
    free(saved->note);
    memset(saved, 0, sizeof *saved);
}

zfi_state_dtype_t zfi_saved_dtype(const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor, uint32_t i) {
    return param ? zfi_state_array_dtype(tensor->array, &param->param) : zfi_state_steps[i].dtype;
}

size_t zfi_saved_elem_nbytes(const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor) {
    return zfi_state_dtype_nbytes(zfi_saved_dtype(param, tensor, 0));
}

uint64_t zfi_saved_tensor_nbytes(const zfi_saved_t *saved, const zfi_saved_param_t *param,
                                 const zfi_saved_tensor_t *tensor) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < tensor->n_matrices; i++)
        n += tensor->array->length(&saved->shape, &param->matrices[tensor->matrices[i]]);
    return n * zfi_saved_elem_nbytes(param, tensor);
}

void zfi_saved_tensor_name(const zfi_saved_param_t *param, const zfi_saved_tensor_t *tensor, int i, char *buf,
                           size_t nbytes) {
    if (!param)
        snprintf(buf, nbytes, "step/%s", zfi_state_steps[i].name);
    else if (tensor->array->flags & ZFI_ARRAY_PER_STEP)
        snprintf(buf, nbytes, "%s.%" PRIu64 "/%s", tensor->array->name, tensor->step, param->param.name);
    else
        snprintf(buf, nbytes, "%s/%s", tensor->array->name, param->param.name);
}

const zfi_saved_tensor_t *zfi_saved_find(const zfi_saved_param_t *param, const char *array, uint64_t step) {
    for (uint32_t i = 0; i < param->n_tensors; i++)
        if (strcmp(param->tensors[i].array->name, array) == 0 && param->tensors[i].step == step)
            return &param->tensors[i];
    return NULL;
}

int zfi_next_tensor(const zfi_saved_t *saved, zfi_tensor_walk_t *at) {
    if (!at->is_past_steps && saved->n_steps && at->next_number < ZFI_N_STATE_STEPS) {
        at->number = at->next_number++;
        at->tensor = (zfi_saved_tensor_t *)(uintptr_t)&saved->steps[at->number];
        return 1;
    }
    if (!at->is_past_steps)
        at->next_number = 0;
    at->is_past_steps = 1;
    while (at->next_number < saved->n_params && at->next_tensor == saved->params[at->next_number].n_tensors) {
        at->next_number++;
        at->next_tensor = 0;
    }
    if (at->next_number == saved->n_params)
        return 0;
    at->number = at->next_number;
    at->param = &saved->params[at->number];
    at->tensor = &at->param->tensors[at->next_tensor++];
    return 1;
}

uint64_t zfi_count_tensors(const zfi_saved_t *saved) {
    uint64_t n = 0;
    for (zfi_tensor_walk_t at = {0}; zfi_next_tensor(saved, &at);)
        n++;
    return n;
}

/* ---- of an instance ---------------------------------------------------------------------------------------------- */

static int has_array(zfi_state_io_t *io, const zfi_state_array_t *array, const zfi_state_shape_t *shape,
                     uint32_t matrix, uint64_t step) {
    return array->length(shape, &io->state->plan->matrices[matrix]) > 0 &&
           (!array->has || array->has(io, &(zfi_state_at_t){.matrix = matrix, .step = step}));
}

/* Adds the tensor of one array where any of the parameter's matrices has it. */
static int add_tensor(zfi_state_io_t *io, const zfi_saved_t *saved, zfi_saved_param_t *out, uint32_t id,
                      const zfi_state_array_t *array, uint64_t step) {
    const zfi_param_t *param = &io->state->side->params[id];
    uint32_t *matrices, n = 0;
    matrices = malloc(param->n_matrices * sizeof *matrices);
    if (!matrices)
        return -1;
    for (uint32_t i = 0; i < param->n_matrices; i++)
        if (has_array(io, array, &saved->shape, param->first_matrix + i, step))
            matrices[n++] = i;
    void *grown = n ? realloc(out->tensors, (out->n_tensors + 1) * sizeof *out->tensors) : NULL;
    if (!grown) {
        free(matrices);
        return n ? -1 : 0;
    }
    out->tensors = grown;
    zfi_saved_tensor_t *tensor = &out->tensors[out->n_tensors++];
    *tensor = (zfi_saved_tensor_t){.array = array, .step = step, .matrices = matrices, .n_matrices = n};
    tensor->nbytes = zfi_saved_tensor_nbytes(saved, out, tensor);
    return 0;
}

static int add_param(zfi_state_io_t *io, const zfi_saved_t *saved, zfi_saved_param_t *out, uint32_t id) {
    const zfi_param_t *param = &io->state->side->params[id];
    uint64_t end = saved->first_step + saved->n_steps;
    out->param = *param;
    out->param.visible = NULL;
    out->param.col_offset = NULL;
    out->n_matrices = param->n_matrices;
    out->matrices = malloc(param->n_matrices * sizeof *out->matrices);
    if (!out->matrices)
        return -1;
    memcpy(out->matrices, &io->state->plan->matrices[param->first_matrix], param->n_matrices * sizeof *out->matrices);
    for (uint32_t a = 0; a < zfi_n_state_arrays; a++) {
        const zfi_state_array_t *array = &zfi_state_arrays[a];
        if (saved->is_compact && !(array->flags & ZFI_ARRAY_COMPACT))
            continue;
        if (!(array->flags & ZFI_ARRAY_PER_STEP)) {
            if (add_tensor(io, saved, out, id, array, 0))
                return -1;
            continue;
        }
        for (uint64_t s = saved->first_step; s < end; s++)
            if (add_tensor(io, saved, out, id, array, s))
                return -1;
    }
    return 0;
}

static int copy_clocks(const zfi_state_t *state, zfi_saved_t *out) {
    for (int i = 0; i < ZFI_N_CLOCKS; i++) {
        uint32_t n = zfi_state_clocks[i].is_per_cohort ? out->n_cohorts : 1;
        out->clocks[i] = calloc(n, sizeof *out->clocks[i]);
        if (!out->clocks[i])
            return -1;
        for (uint32_t c = 0; c < n; c++)
            out->clocks[i][c] = zfi_state_clock_get(state, i, c);
    }
    return 0;
}

/* Steps whose slots are open, and the newest one for its report. */
static void find_steps(const zfi_clock_t *clock, zfi_saved_t *out) {
    uint64_t first = clock->t;
    if (out->is_compact || clock->t == 0) {
        out->first_step = 1;
        return;
    }
    for (uint32_t c = 0; c < out->n_cohorts; c++)
        if (clock->window_first[c] < first)
            first = clock->window_first[c];
    out->first_step = first;
    out->n_steps = clock->t + 1 - first;
}

static int copy_rules(const zfi_rules_t *rules, zfi_saved_t *out) {
    out->rules = calloc(out->shape.n_groups, sizeof *out->rules);
    for (uint32_t i = 0; i < out->shape.n_groups && out->rules; i++)
        out->rules[i] = *rules->of[i];
    return out->rules ? 0 : -1;
}

zf_status_t zfi_saved_of(const zfi_state_io_t *from, int is_compact, const char *note, zfi_saved_t *out,
                         zf_error_t *err) {
    zfi_state_io_t io = {.state = from->state, .differs = from->differs, .ids = from->ids, .n_ids = from->n_ids};
    const zfi_state_t *state = io.state;
    const uint32_t *ids = io.ids, n_ids = io.n_ids;
    *out = (zfi_saved_t){.is_compact = is_compact,
                         .shape = {state->dev->head.counts_per_channel, state->ranks->n_groups, n_ids},
                         .config = state->engine->config,
                         .policy = state->engine->policy,
                         .n_cohorts = state->plan->n_cohorts,
                         .n_params = n_ids};
    find_steps(state->windows->clock, out);
    out->note = strdup(note ? note : "");
    out->params = calloc(n_ids, sizeof *out->params);
    int is_bad = !out->note || !out->params || copy_clocks(state, out) || copy_rules(&state->engine->rules, out);
    out->note_nbytes = out->note ? (uint32_t)strlen(out->note) : 0;
    for (uint32_t i = 0; i < n_ids && !is_bad; i++)
        is_bad = add_param(&io, out, &out->params[i], ids[i]);
    for (int i = 0; i < ZFI_N_STATE_STEPS; i++)
        out->steps[i].nbytes =
            out->n_steps * zfi_state_steps[i].length(&out->shape) * zfi_state_dtype_nbytes(zfi_state_steps[i].dtype);
    if (!is_bad)
        return ZF_OK;
    zfi_saved_free(out);
    return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the index of %u parameters", n_ids);
}

/* ---- as text ----------------------------------------------------------------------------------------------------- */

static json_t *integer(uint64_t x) { return json_integer((json_int_t)x); }

static json_t *print_tensor(zfi_json_t *json, const zfi_saved_tensor_t *tensor, uint32_t n_all) {
    json_t *out =
        json_pack("{s:I, s:I, s:I, s:I}", "file", (json_int_t)tensor->file, "offset", (json_int_t)tensor->offset,
                  "nbytes", (json_int_t)tensor->nbytes, "crc32", (json_int_t)tensor->crc);
    if (tensor->n_matrices == n_all)
        return out;
    json_t *list = json_array();
    for (uint32_t i = 0; i < tensor->n_matrices; i++)
        zfi_json_append(json, list, integer(tensor->matrices[i]));
    zfi_json_set(json, out, "matrices", list);
    return out;
}

/* A resident matrix is written as of a cohort behind the last. */
static json_t *print_matrix(const zfi_matrix_t *matrix, uint32_t n_cohorts) {
    return json_pack("[I,I,I,I,I]", (json_int_t)matrix->param_offset, (json_int_t)matrix->rows,
                     (json_int_t)matrix->cols, (json_int_t)(matrix->is_resident ? n_cohorts : matrix->cohort),
                     (json_int_t)matrix->k);
}

static json_t *print_param(zfi_json_t *json, const zfi_saved_param_t *saved, uint32_t n_cohorts) {
    const zfi_param_t *param = &saved->param;
    json_t *shape = json_array(), *matrices = json_array(), *tensors = json_object();
    char name[ZFI_TENSOR_NAME];
    for (int i = 0; i < param->ndim; i++)
        zfi_json_append(json, shape, integer((uint64_t)param->shape[i]));
    for (uint32_t i = 0; i < saved->n_matrices; i++)
        zfi_json_append(json, matrices, print_matrix(&saved->matrices[i], n_cohorts));
    for (uint32_t i = 0; i < saved->n_tensors; i++) {
        zfi_saved_tensor_name(saved, &saved->tensors[i], 0, name, sizeof name);
        *strchr(name, '/') = '\0';
        zfi_json_set(json, tensors, name, print_tensor(json, &saved->tensors[i], saved->n_matrices));
    }
    return json_pack(
        "{s:s, s:I, s:o, s:s, s:s, s:I, s:I, s:I, s:s, s:o, s:o}", "name", param->name, "id", (json_int_t)param->id,
        "shape", shape, "dtype",
        zfi_state_dtype_name(zfi_state_array_dtype(&(zfi_state_array_t){.dtype_kind = ZFI_DTYPE_VISIBLE}, param)),
        "grad_dtype",
        zfi_state_dtype_name(zfi_state_array_dtype(&(zfi_state_array_t){.dtype_kind = ZFI_DTYPE_GRAD}, param)), "flags",
        (json_int_t)param->flags, "group", (json_int_t)param->group, "n_batch_axes", (json_int_t)param->n_batch_axes,
        "channels", param->channels_are_rows ? "rows" : "columns", "matrices", matrices, "tensors", tensors);
}

static json_t *print_config(zfi_json_t *json, const zfi_config_t *config) {
    json_t *out = json_object();
    char name[128], value[256];
    for (uint32_t i = 0; i < zfi_config_n_keys(); i++) {
        const zfi_key_t *key = zfi_key_at(i);
        if (strcmp(key->section, "trace") == 0) /* paths of this machine */
            continue;
        snprintf(name, sizeof name, "%s.%s", key->section, key->name);
        zfi_key_print(key, config, value, sizeof value);
        zfi_json_set(json, out, name, json_string(value));
    }
    return out;
}

static json_t *print_clock(zfi_json_t *json, const zfi_saved_t *saved, int clock) {
    if (!zfi_state_clocks[clock].is_per_cohort)
        return integer(saved->clocks[clock][0]);
    json_t *out = json_array();
    for (uint32_t c = 0; c < saved->n_cohorts; c++)
        zfi_json_append(json, out, integer(saved->clocks[clock][c]));
    return out;
}

static json_t *print_clocks(zfi_json_t *json, const zfi_saved_t *saved) {
    json_t *out = json_object();
    for (int i = 0; i < ZFI_N_CLOCKS; i++)
        zfi_json_set(json, out, zfi_state_clocks[i].name, print_clock(json, saved, i));
    return out;
}

static json_t *print_file(const zfi_saved_file_t *file) {
    return json_pack("{s:s, s:I, s:I, s:I}", "name", file->name, "nbytes", (json_int_t)file->nbytes, "header_nbytes",
                     (json_int_t)file->header_nbytes, "header_crc32", (json_int_t)file->header_crc);
}

static json_t *print_rules(zfi_json_t *json, const zfi_saved_t *saved) {
    json_t *out = json_array();
    for (uint32_t i = 0; i < saved->shape.n_groups; i++) {
        const zfi_group_rule_t *rule = &saved->rules[i];
        json_t *one = json_pack("{s:I}", "rule", (json_int_t)rule->number);
        if (rule->number == ZF_RULE_CALLBACK) {
            zfi_json_set(json, one, "name", json_string(rule->name));
            zfi_json_set(json, one, "moments", integer(rule->n_moments));
        }
        zfi_json_append(json, out, one);
    }
    return out;
}

static json_t *print_all(zfi_json_t *json, const zfi_saved_t *saved) {
    json_t *files = json_array(), *params = json_array(), *steps = json_object(), *out;
    for (uint32_t i = 0; i < saved->n_files; i++)
        zfi_json_append(json, files, print_file(&saved->files[i]));
    for (uint32_t i = 0; i < saved->n_params; i++)
        zfi_json_append(json, params, print_param(json, &saved->params[i], saved->n_cohorts));
    for (int i = 0; i < ZFI_N_STATE_STEPS && saved->n_steps; i++)
        zfi_json_set(json, steps, zfi_state_steps[i].name, print_tensor(json, &saved->steps[i], 0));
    out = json_pack("{s:s, s:s, s:s, s:o, s:b, s:I, s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:o}", "plugin",
                    "libzfplugin " ZFI_VERSION, "kind", saved->is_compact ? "compact" : "exact", "note", saved->note,
                    "rules", print_rules(json, saved), "is_mean", saved->shape.is_mean, "n_cohorts",
                    (json_int_t)saved->n_cohorts, "config", print_config(json, &saved->config), "clocks",
                    print_clocks(json, saved), "first_step", (json_int_t)saved->first_step, "n_steps",
                    (json_int_t)saved->n_steps, "n_groups", (json_int_t)saved->shape.n_groups, "files", files, "steps",
                    steps, "params", params);
    if (saved->part.n > 1)
        zfi_json_set(json, out, "part", json_pack("[I,I]", (json_int_t)saved->part.number, (json_int_t)saved->part.n));
    return out;
}

char *zfi_index_print(zfi_saved_t *saved) {
    zfi_json_t json = {0};
    json_t *all = print_all(&json, saved);
    char *text = zfi_json_print(&json, all), *out = NULL;
    size_t n = text ? strlen(text) : 0;
    json_decref(all);
    if (n) {
        saved->index_crc = zfi_crc32(0, text + 1, n - 1);
        out = malloc(n + 128);
    }
    if (out)
        snprintf(out, n + 128, "{\"format\":\"zf.state\",\"version\":%d,\"crc32\":\"%08x\",\n%s\n", ZFI_STATE_VERSION,
                 (unsigned)saved->index_crc, text + 1);
    free(text);
    return out;
}
