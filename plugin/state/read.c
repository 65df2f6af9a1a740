/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/read.c - the index read back (contract in state/index.h). The text may be anybody's: every number is
 * checked before it is used as a size, an index or a loop's end, and memory is asked for only in proportion to the
 * text.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "config/config_table.h"
#include "state/index.h"
#include "state/json.h"
#include "state/read.h"

static const uint64_t LARGEST_INDEX = (uint64_t)1 << 30;
enum { MOST_COHORTS = 64, MOST_GROUPS = 65536, MOST_STEPS = 64 + 1, MOST_PARTS = 1 << 20 };

zf_status_t zfi_read_bad(const zfi_reader_t *reader, const char *where, const char *what) {
    return zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state", "%s: %s: %s; the file was changed or is not a checkpoint",
                     ZF_STATE_INDEX, where, what);
}

zf_status_t zfi_read_no_memory(const zfi_reader_t *reader) {
    return zfi_error(reader->err, ZF_ERR_MEMORY, "state", "no memory for the index of a checkpoint");
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

zf_status_t zfi_read_to_number(const zfi_reader_t *reader, const json_t *value, const char *where, uint64_t max,
                               uint64_t *out) {
    char what[96];
    if (!json_is_integer(value) || json_integer_value(value) < 0 || (uint64_t)json_integer_value(value) > max) {
        snprintf(what, sizeof what, "need a whole number, at most %" PRIu64, max);
        return zfi_read_bad(reader, where, what);
    }
    *out = (uint64_t)json_integer_value(value);
    return ZF_OK;
}

zf_status_t zfi_read_number(const zfi_reader_t *reader, const json_t *from, const char *name, uint64_t max,
                            uint64_t *out) {
    return zfi_read_to_number(reader, json_object_get(from, name), name, max, out);
}

zf_status_t zfi_read_text(const zfi_reader_t *reader, const json_t *from, const char *name, size_t max,
                          const char **out) {
    const json_t *value = json_object_get(from, name);
    if (!json_is_string(value) || json_string_length(value) > max ||
        strlen(json_string_value(value)) != json_string_length(value))
        return zfi_read_bad(reader, name, "need a text that is not too long");
    *out = json_string_value(value);
    return ZF_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static zf_status_t read_file(const zfi_reader_t *reader, const json_t *from, zfi_saved_file_t *out) {
    const char *name;
    uint64_t crc = 0;
    zf_status_t st = zfi_read_text(reader, from, "name", ZFI_BLOB_NAME - 1, &name);
    if (!st && (!zfi_store_is_name(name) || strncmp(name, "zf_state", 8) != 0 || strcmp(name, ZF_STATE_INDEX) == 0))
        st = zfi_read_bad(reader, "files", "a name that no checkpoint's file has");
    if (!st)
        st = zfi_read_number(reader, from, "nbytes", ZFI_LARGEST_SAVED, &out->nbytes);
    if (!st)
        st = zfi_read_number(reader, from, "header_nbytes", out->nbytes, &out->header_nbytes);
    if (!st)
        st = zfi_read_number(reader, from, "header_crc32", UINT32_MAX, &crc);
    if (st)
        return st;
    out->header_crc = (uint32_t)crc;
    snprintf(out->name, sizeof out->name, "%s", name);
    return ZF_OK;
}

static zf_status_t read_files(const zfi_reader_t *reader, const json_t *root) {
    const json_t *list = json_object_get(root, "files");
    zfi_saved_t *saved = reader->out;
    zf_status_t st = ZF_OK;
    if (!json_is_array(list))
        return zfi_read_bad(reader, "files", "need a list");
    saved->files = calloc(json_array_size(list) + 1, sizeof *saved->files);
    if (!saved->files)
        return zfi_read_no_memory(reader);
    for (; saved->n_files < json_array_size(list) && !st; saved->n_files++)
        st = read_file(reader, json_array_get(list, saved->n_files), &saved->files[saved->n_files]);
    return st;
}

zf_status_t zfi_read_place(const zfi_reader_t *reader, const json_t *from, const char *where, uint64_t nbytes,
                           zfi_saved_tensor_t *out) {
    const zfi_saved_t *saved = reader->out;
    uint64_t file = 0, crc = 0;
    zf_status_t st = zfi_read_number(reader, from, "file", saved->n_files ? saved->n_files - 1 : 0, &file);
    if (!st)
        st = zfi_read_number(reader, from, "offset", ZFI_LARGEST_SAVED, &out->offset);
    if (!st)
        st = zfi_read_number(reader, from, "nbytes", ZFI_LARGEST_SAVED, &out->nbytes);
    if (!st)
        st = zfi_read_number(reader, from, "crc32", UINT32_MAX, &crc);
    if (!st && (saved->n_files == 0 || out->nbytes != nbytes || out->offset < saved->files[file].header_nbytes ||
                out->offset + out->nbytes > saved->files[file].nbytes))
        st = zfi_read_bad(reader, where,
                          "the tensor does not have the bytes that its shape needs, or lies outside its file");
    out->file = (uint32_t)file;
    out->crc = (uint32_t)crc;
    return st;
}

/* ---- clocks, steps, configuration -------------------------------------------------------------------------------- */

static zf_status_t read_clocks(const zfi_reader_t *reader, const json_t *root) {
    const json_t *from = json_object_get(root, "clocks");
    zfi_saved_t *saved = reader->out;
    for (int i = 0; i < ZFI_N_CLOCKS; i++) {
        const json_t *value = json_object_get(from, zfi_state_clocks[i].name);
        uint32_t n = zfi_state_clocks[i].is_per_cohort ? saved->n_cohorts : 1;
        saved->clocks[i] = calloc(n, sizeof *saved->clocks[i]);
        if (!saved->clocks[i])
            return zfi_read_no_memory(reader);
        if (zfi_state_clocks[i].is_per_cohort && json_array_size(value) != n)
            return zfi_read_bad(reader, zfi_state_clocks[i].name, "need one number per cohort");
        for (uint32_t c = 0; c < n; c++)
            if (zfi_read_to_number(reader, zfi_state_clocks[i].is_per_cohort ? json_array_get(value, c) : value,
                                   zfi_state_clocks[i].name, ZFI_LARGEST_SAVED, &saved->clocks[i][c]))
                return ZF_ERR_CHECKPOINT;
    }
    return ZF_OK;
}

static zf_status_t read_steps(const zfi_reader_t *reader, const json_t *root) {
    const json_t *from = json_object_get(root, "steps");
    zfi_saved_t *saved = reader->out;
    for (int i = 0; i < ZFI_N_STATE_STEPS && saved->n_steps; i++) {
        uint64_t nbytes = saved->n_steps * zfi_state_steps[i].length(&saved->shape) *
                          zfi_state_dtype_nbytes(zfi_state_steps[i].dtype);
        zf_status_t st = zfi_read_place(reader, json_object_get(from, zfi_state_steps[i].name), zfi_state_steps[i].name,
                                        nbytes, &saved->steps[i]);
        if (st)
            return st;
    }
    return ZF_OK;
}

/* A key of a configuration that a load does not compare, or that is gone and says what this version does; of a compact
 * checkpoint any that is gone: what it holds does not depend on it. */
static int is_left_out(const char *key, const char *said, int is_compact) {
    const char *dot = strchr(key, '.');
    char section[32];
    if (!dot || (size_t)(dot - key) >= sizeof section)
        return 0;
    snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
    return zfi_key_is_free(section, dot + 1) || zfi_gone_is_implied(key, said, is_compact);
}

enum { MOST_TODAY = 32 };

/* NULL: it is written so today. */
static const char *in_todays_words(const char *key, const char *said) {
    if (strcmp(key, "zenflow.deferred") != 0)
        return NULL;
    return strcmp(said, "none") == 0 ? "device.state_mib=all" : strcmp(said, "mean") == 0 ? "zenflow.mode=mean" : NULL;
}

/* The values as overrides of the defaults. A key that is unknown here may change what the numbers mean. */
static zf_status_t read_config(const zfi_reader_t *reader, const json_t *root) {
    json_t *from = json_object_get(root, "config");
    size_t n = json_object_size(from), i = 0;
    char **overrides = calloc(n + 1, sizeof *overrides);
    zf_error_t problem = {.struct_size = sizeof problem};
    zf_status_t st = overrides ? ZF_OK : zfi_read_no_memory(reader);
    const char *key;
    json_t *value;
    json_object_foreach(from, key, value) {
        const char *said = json_string_value(value), *now = said ? in_todays_words(key, said) : NULL;
        size_t length = strlen(key) + (said ? strlen(said) : 0) + MOST_TODAY;
        if (st)
            break;
        if (said && is_left_out(key, said, reader->out->is_compact))
            continue;
        overrides[i] = said ? malloc(length) : NULL;
        if (!overrides[i]) {
            st = said ? zfi_read_no_memory(reader) : zfi_read_bad(reader, "config", "need texts");
            break;
        }
        if (now)
            snprintf(overrides[i++], length, "%s", now);
        else
            snprintf(overrides[i++], length, "%s=%s", key, said);
    }
    if (!st && zfi_config_parse(NULL, 0, "the checkpoint", (const char *const *)overrides, (uint32_t)i,
                                &reader->out->config, &problem))
        st = zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state",
                       "%s: its configuration is not one of this version's: %.300s", ZF_STATE_INDEX, problem.message);
    zfi_config_settle(&reader->out->config, 0); /* it was when it was saved; a written one need not be */
    reader->out->policy = zfi_config_policy(&reader->out->config);
    for (size_t k = 0; k < i; k++)
        free(overrides[k]);
    free(overrides);
    return st;
}

static zf_status_t read_rule(const zfi_reader_t *reader, const json_t *from, const char *name_of,
                             const char *moments_of, zfi_group_rule_t *out) {
    const char *name = "";
    uint64_t rule = 0, n_moments = 0;
    zf_status_t st = zfi_read_number(reader, from, "rule", ZF_RULE_CALLBACK, &rule);
    if (!st && rule != ZF_RULE_CALLBACK)
        return *out = *zfi_rule_builtin((uint32_t)rule), ZF_OK;
    if (!st)
        st = zfi_read_text(reader, from, name_of, sizeof out->name - 1, &name);
    if (!st)
        st = zfi_read_number(reader, from, moments_of, 2, &n_moments);
    *out = (zfi_group_rule_t){.number = ZF_RULE_CALLBACK, .n_moments = (uint32_t)n_moments};
    snprintf(out->name, sizeof out->name, "%s", name);
    return st;
}

/* Before version 0.2 of the ABI all groups had one rule, whose members are the root's. */
static zf_status_t read_rules(const zfi_reader_t *reader, const json_t *root) {
    zfi_saved_t *saved = reader->out;
    const json_t *list = json_object_get(root, "rules");
    zf_status_t st = ZF_OK;
    saved->n_rules = list ? saved->shape.n_groups : 1;
    if (list && json_array_size(list) != saved->n_rules)
        return zfi_read_bad(reader, "rules", "need one for each of n_groups");
    saved->rules = calloc(saved->n_rules, sizeof *saved->rules);
    if (!saved->rules)
        return zfi_read_no_memory(reader);
    if (!list)
        return read_rule(reader, root, "rule_name", "rule_moments", saved->rules);
    for (uint32_t i = 0; i < saved->n_rules && !st; i++)
        st = read_rule(reader, json_array_get(list, i), "name", "moments", &saved->rules[i]);
    return st;
}

static zf_status_t read_part(const zfi_reader_t *reader, const json_t *root, zfi_part_t *out) {
    const json_t *from = json_object_get(root, "part");
    uint64_t part = 0, n = 0;
    zf_status_t st;
    if (!from)
        return ZF_OK;
    st = json_array_size(from) == 2 ? zfi_read_to_number(reader, json_array_get(from, 1), "part", MOST_PARTS, &n)
                                    : zfi_read_bad(reader, "part", "need two numbers");
    if (!st)
        st = n > 1 ? zfi_read_to_number(reader, json_array_get(from, 0), "part", n - 1, &part)
                   : zfi_read_bad(reader, "part", "need 2 parts at least");
    *out = (zfi_part_t){(uint32_t)part, (uint32_t)n};
    return st;
}

static zf_status_t read_head(const zfi_reader_t *reader, const json_t *root) {
    zfi_saved_t *saved = reader->out;
    const char *kind, *note;
    uint64_t x = 0;
    zf_status_t st = zfi_read_text(reader, root, "kind", 16, &kind);
    if (!st)
        st = zfi_read_text(reader, root, "note", 65536, &note);
    if (st)
        return st;
    if (strcmp(kind, "exact") != 0 && strcmp(kind, "compact") != 0)
        return zfi_read_bad(reader, "kind", "need \"exact\" or \"compact\"");
    saved->is_compact = strcmp(kind, "compact") == 0;
    saved->note = strdup(note);
    if (!saved->note)
        return zfi_read_no_memory(reader);
    saved->note_nbytes = (uint32_t)strlen(note);
    saved->shape.is_mean = json_is_true(json_object_get(root, "is_mean"));
    st = read_part(reader, root, &saved->part);
    if (!st)
        st = zfi_read_number(reader, root, "n_cohorts", MOST_COHORTS, &x);
    saved->n_cohorts = (uint32_t)x;
    if (!st)
        st = zfi_read_number(reader, root, "n_groups", MOST_GROUPS, &x);
    saved->shape.n_groups = (uint32_t)x;
    if (!st && (!saved->n_cohorts || !saved->shape.n_groups))
        st = zfi_read_bad(reader, "n_cohorts, n_groups", "need 1 at least");
    if (!st)
        st = read_rules(reader, root);
    if (!st)
        st = zfi_read_number(reader, root, "first_step", ZFI_LARGEST_SAVED, &saved->first_step);
    if (!st)
        st = zfi_read_number(reader, root, "n_steps", saved->is_compact ? 0 : MOST_STEPS, &saved->n_steps);
    return st;
}

static zf_status_t read_all(const zfi_reader_t *reader, const json_t *root) {
    zf_status_t st = read_head(reader, root);
    if (!st)
        st = read_config(reader, root);
    if (!st)
        st = read_clocks(reader, root);
    if (!st)
        st = read_files(reader, root);
    if (!st)
        st = zfi_read_params(reader, root);
    return st ? st : read_steps(reader, root);
}

/* ---- the text ---------------------------------------------------------------------------------------------------- */

static const char *check_prefix(const zfi_reader_t *reader, const char *all, uint64_t nbytes, zf_status_t *st) {
    unsigned version = 0, crc = 0;
    int used = 0;
    const char *payload;
    if (sscanf(all, "{\"format\":\"zf.state\",\"version\":%9u,\"crc32\":\"%8x\",%n", &version, &crc, &used) != 2 ||
        !used) {
        *st = zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state",
                        "%s does not begin as the index of a zf.state checkpoint", ZF_STATE_INDEX);
        return NULL;
    }
    if (version != ZFI_STATE_VERSION) {
        *st = zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state",
                        "%s is of version %u, this plugin knows %d: use the plugin that wrote it, or a newer one",
                        ZF_STATE_INDEX, version, ZFI_STATE_VERSION);
        return NULL;
    }
    reader->out->index_crc = crc;
    payload = all + used + 1; /* a line feed */
    if ((uint64_t)used + 3 > nbytes || payload[-1] != '\n' || all[nbytes - 1] != '\n' ||
        zfi_crc32(0, payload, nbytes - (uint64_t)used - 2) != crc) {
        *st = zfi_error(reader->err, ZF_ERR_CHECKPOINT, "state",
                        "%s is damaged: its checksum is not %08x (%" PRIu64 " bytes)", ZF_STATE_INDEX, crc, nbytes);
        return NULL;
    }
    return payload;
}

static zf_status_t parse(const zfi_reader_t *reader, char *all, uint64_t nbytes) {
    char problem[ZFI_JSON_PROBLEM];
    json_t *root;
    zf_status_t st = ZF_OK;
    char *payload = (char *)(uintptr_t)check_prefix(reader, all, nbytes, &st);
    if (st)
        return st;
    payload[-1] = '{';
    root = zfi_json_parse(payload - 1, nbytes - (uint64_t)(payload - 1 - all), &st, problem);
    if (!root && st == ZF_ERR_MEMORY)
        return zfi_error(reader->err, st, "state", "%s: %s", ZF_STATE_INDEX, problem);
    if (!root)
        return zfi_read_bad(reader, "JSON", problem);
    st = json_is_object(root) ? read_all(reader, root) : zfi_read_bad(reader, "JSON", "need an object");
    json_decref(root);
    return st;
}

static zf_status_t check_sizes(zfi_store_t *store, const zfi_saved_t *saved, zf_error_t *err) {
    for (uint32_t i = 0; i < saved->n_files; i++) {
        uint64_t nbytes = 0;
        zf_status_t st = zfi_store_size(store, saved->files[i].name, &nbytes, err);
        if (st)
            return st;
        if (nbytes != saved->files[i].nbytes)
            return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                             "%s has %" PRIu64 " bytes, the index says %" PRIu64 ": the checkpoint is incomplete",
                             saved->files[i].name, nbytes, saved->files[i].nbytes);
    }
    return ZF_OK;
}

zf_status_t zfi_index_parse(char *text, uint64_t nbytes, zfi_saved_t *out, zf_error_t *err) {
    zfi_reader_t reader = {err, out};
    zf_status_t st;
    memset(out, 0, sizeof *out);
    st = parse(&reader, text, nbytes);
    if (st)
        zfi_saved_free(out);
    return st;
}

zf_status_t zfi_index_read(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    zfi_reader_t reader = {err, out};
    uint64_t nbytes = 0;
    char *all;
    zf_status_t st = zfi_store_size(store, ZF_STATE_INDEX, &nbytes, err);
    if (st)
        return st;
    if (nbytes == 0 || nbytes > LARGEST_INDEX)
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s has %" PRIu64 " bytes, allowed 1..%" PRIu64,
                         ZF_STATE_INDEX, nbytes, LARGEST_INDEX);
    all = malloc(nbytes + 1);
    if (!all)
        return zfi_read_no_memory(&reader);
    st = zfi_store_read(store, ZF_STATE_INDEX, 0, all, nbytes, err);
    all[nbytes] = '\0';
    if (!st)
        st = zfi_index_parse(all, nbytes, out, err);
    free(all);
    if (st)
        return st;
    st = check_sizes(store, out, err);
    if (st)
        zfi_saved_free(out);
    return st;
}
