/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/read.c - the index read back (contract in state/index.h). The text may be anybody's: every number is
 * checked before it is used as a size, an index or a loop's end, and memory is asked for only in proportion to the
 * text. */
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
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

/* The first failure stays. */
static zf_status_t fail(zfi_reader_t *reader, zf_status_t st, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static zf_status_t fail(zfi_reader_t *reader, zf_status_t st, const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!reader->st)
        reader->st = zfi_error(reader->err, st, "state", "%s", text);
    return reader->st;
}

zf_status_t zfi_read_bad(zfi_reader_t *reader, const char *where, const char *what) {
    return fail(reader, ZF_ERR_CHECKPOINT, "%s: %s: %s; the file was changed or is not a checkpoint", ZF_STATE_INDEX,
                where, what);
}

zf_status_t zfi_read_no_memory(zfi_reader_t *reader) {
    return fail(reader, ZF_ERR_MEMORY, "no memory for the index of a checkpoint");
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

uint64_t zfi_read_to_number(zfi_reader_t *reader, const json_t *value, const char *where, uint64_t max) {
    char what[96];
    if (!reader->st && json_is_integer(value) && json_integer_value(value) >= 0 &&
        (uint64_t)json_integer_value(value) <= max)
        return (uint64_t)json_integer_value(value);
    snprintf(what, sizeof what, "need a whole number, at most %" PRIu64, max);
    zfi_read_bad(reader, where, what);
    return 0;
}

uint64_t zfi_read_number(zfi_reader_t *reader, const json_t *from, const char *name, uint64_t max) {
    return zfi_read_to_number(reader, json_object_get(from, name), name, max);
}

const char *zfi_read_text(zfi_reader_t *reader, const json_t *from, const char *name, size_t max) {
    const json_t *value = json_object_get(from, name);
    if (!reader->st && json_is_string(value) && json_string_length(value) <= max &&
        strlen(json_string_value(value)) == json_string_length(value))
        return json_string_value(value);
    zfi_read_bad(reader, name, "need a text that is not too long");
    return "";
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void read_file(zfi_reader_t *reader, const json_t *from, zfi_saved_file_t *out) {
    const char *name = zfi_read_text(reader, from, "name", ZFI_BLOB_NAME - 1);
    if (!zfi_store_is_name(name) || strncmp(name, "zf_state", 8) != 0 || strcmp(name, ZF_STATE_INDEX) == 0)
        zfi_read_bad(reader, "files", "a name that no checkpoint's file has");
    snprintf(out->name, sizeof out->name, "%s", name);
    out->nbytes = zfi_read_number(reader, from, "nbytes", ZFI_LARGEST_SAVED);
    out->header_nbytes = zfi_read_number(reader, from, "header_nbytes", out->nbytes);
    out->header_crc = (uint32_t)zfi_read_number(reader, from, "header_crc32", UINT32_MAX);
}

static zf_status_t read_files(zfi_reader_t *reader, const json_t *root) {
    const json_t *list = json_object_get(root, "files");
    zfi_saved_t *saved = reader->out;
    if (!json_is_array(list))
        return zfi_read_bad(reader, "files", "need a list");
    saved->files = calloc(json_array_size(list) + 1, sizeof *saved->files);
    if (!saved->files)
        return zfi_read_no_memory(reader);
    for (; saved->n_files < json_array_size(list) && !reader->st; saved->n_files++)
        read_file(reader, json_array_get(list, saved->n_files), &saved->files[saved->n_files]);
    return reader->st;
}

zf_status_t zfi_read_place(zfi_reader_t *reader, const json_t *from, const char *where, uint64_t nbytes,
                           zfi_saved_tensor_t *out) {
    const zfi_saved_t *saved = reader->out;
    out->file = (uint32_t)zfi_read_number(reader, from, "file", saved->n_files ? saved->n_files - 1 : 0);
    out->offset = zfi_read_number(reader, from, "offset", ZFI_LARGEST_SAVED);
    out->nbytes = zfi_read_number(reader, from, "nbytes", ZFI_LARGEST_SAVED);
    out->lacks_crc = !json_object_get(from, "crc32");
    out->crc = out->lacks_crc ? 0 : (uint32_t)zfi_read_number(reader, from, "crc32", UINT32_MAX);
    if (saved->n_files == 0 || out->nbytes != nbytes || out->offset < saved->files[out->file].header_nbytes ||
        out->offset + out->nbytes > saved->files[out->file].nbytes)
        zfi_read_bad(reader, where,
                     "the tensor does not have the bytes that its shape needs, or lies outside its file");
    return reader->st;
}

/* ---- clocks, steps, configuration -------------------------------------------------------------------------------- */

static zf_status_t read_clocks(zfi_reader_t *reader, const json_t *root) {
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
            saved->clocks[i][c] =
                zfi_read_to_number(reader, zfi_state_clocks[i].is_per_cohort ? json_array_get(value, c) : value,
                                   zfi_state_clocks[i].name, ZFI_LARGEST_SAVED);
    }
    return reader->st;
}

static zf_status_t read_steps(zfi_reader_t *reader, const json_t *root) {
    const json_t *from = json_object_get(root, "steps");
    zfi_saved_t *saved = reader->out;
    for (int i = 0; i < ZFI_N_STATE_STEPS && saved->n_steps && !reader->st; i++) {
        uint64_t nbytes = saved->n_steps * zfi_state_steps[i].length(&saved->shape) *
                          zfi_state_dtype_nbytes(zfi_state_steps[i].dtype);
        zfi_read_place(reader, json_object_get(from, zfi_state_steps[i].name), zfi_state_steps[i].name, nbytes,
                       &saved->steps[i]);
    }
    return reader->st;
}

/* A key of a configuration that a load does not compare. */
static int is_left_out(const char *key) {
    const char *dot = strchr(key, '.');
    char section[32];
    if (!dot || (size_t)(dot - key) >= sizeof section)
        return 0;
    snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
    return zfi_key_is_free(section, dot + 1);
}

/* The values as overrides of the defaults. A key that is unknown here may change what the numbers mean. */
static zf_status_t read_config(zfi_reader_t *reader, const json_t *root) {
    json_t *from = json_object_get(root, "config");
    size_t n = json_object_size(from), i = 0;
    char **overrides = calloc(n + 1, sizeof *overrides);
    zf_error_t problem = {.struct_size = sizeof problem};
    const char *key;
    json_t *value;
    if (!overrides)
        return zfi_read_no_memory(reader);
    json_object_foreach(from, key, value) {
        const char *said = json_string_value(value);
        size_t length = strlen(key) + (said ? strlen(said) : 0) + 2;
        if (said && is_left_out(key))
            continue;
        overrides[i] = said ? malloc(length) : NULL;
        if (!overrides[i]) {
            (void)(said ? zfi_read_no_memory(reader) : zfi_read_bad(reader, "config", "need texts"));
            break;
        }
        snprintf(overrides[i++], length, "%s=%s", key, said);
    }
    if (!reader->st && zfi_config_parse(NULL, 0, "the checkpoint", (const char *const *)overrides, (uint32_t)i,
                                        &reader->out->config, &problem))
        fail(reader, ZF_ERR_CHECKPOINT, "%s: its configuration is not one of this version's: %.300s", ZF_STATE_INDEX,
             problem.message);
    zfi_config_settle(&reader->out->config, 0); /* it was when it was saved; a written one need not be */
    reader->out->policy = zfi_config_policy(&reader->out->config);
    for (size_t k = 0; k < i; k++)
        free(overrides[k]);
    free(overrides);
    return reader->st;
}

static void read_rule(zfi_reader_t *reader, const json_t *from, const char *name_of, const char *moments_of,
                      zfi_group_rule_t *out) {
    uint64_t rule = zfi_read_number(reader, from, "rule", ZF_RULE_CALLBACK);
    if (rule != ZF_RULE_CALLBACK) {
        *out = *zfi_rule_builtin((uint32_t)rule);
        return;
    }
    out->number = ZF_RULE_CALLBACK;
    snprintf(out->name, sizeof out->name, "%s", zfi_read_text(reader, from, name_of, sizeof out->name - 1));
    out->n_moments = (uint32_t)zfi_read_number(reader, from, moments_of, 2);
}

/* Before version 0.2 of the ABI all groups had one rule, whose members are the root's. */
static zf_status_t read_rules(zfi_reader_t *reader, const json_t *root) {
    zfi_saved_t *saved = reader->out;
    const json_t *list = json_object_get(root, "rules");
    if (list && json_array_size(list) != saved->shape.n_groups)
        return zfi_read_bad(reader, "rules", "need one for each of n_groups");
    saved->rules = calloc(saved->shape.n_groups, sizeof *saved->rules);
    if (!saved->rules)
        return zfi_read_no_memory(reader);
    for (uint32_t i = 0; i < saved->shape.n_groups; i++)
        if (list)
            read_rule(reader, json_array_get(list, i), "name", "moments", &saved->rules[i]);
        else
            read_rule(reader, root, "rule_name", "rule_moments", &saved->rules[i]);
    return reader->st;
}

static zf_status_t read_part(zfi_reader_t *reader, const json_t *root, zfi_part_t *out) {
    const json_t *from = json_object_get(root, "part");
    if (!from)
        return ZF_OK;
    if (json_array_size(from) != 2)
        return zfi_read_bad(reader, "part", "need two numbers");
    uint64_t n = zfi_read_to_number(reader, json_array_get(from, 1), "part", MOST_PARTS);
    if (n < 2)
        return zfi_read_bad(reader, "part", "need 2 parts at least");
    *out = (zfi_part_t){(uint32_t)zfi_read_to_number(reader, json_array_get(from, 0), "part", n - 1), (uint32_t)n};
    return reader->st;
}

static zf_status_t read_head(zfi_reader_t *reader, const json_t *root) {
    zfi_saved_t *saved = reader->out;
    const char *kind = zfi_read_text(reader, root, "kind", 16);
    const char *note = zfi_read_text(reader, root, "note", 65536);
    saved->is_compact = strcmp(kind, "compact") == 0;
    if (!saved->is_compact && strcmp(kind, "exact") != 0)
        return zfi_read_bad(reader, "kind", "need \"exact\" or \"compact\"");
    saved->note = strdup(note);
    if (!saved->note)
        return zfi_read_no_memory(reader);
    saved->note_nbytes = (uint32_t)strlen(note);
    saved->shape.is_mean = json_is_true(json_object_get(root, "is_mean"));
    read_part(reader, root, &saved->part);
    saved->n_cohorts = (uint32_t)zfi_read_number(reader, root, "n_cohorts", MOST_COHORTS);
    saved->shape.n_groups = (uint32_t)zfi_read_number(reader, root, "n_groups", MOST_GROUPS);
    if (!saved->n_cohorts || !saved->shape.n_groups)
        return zfi_read_bad(reader, "n_cohorts, n_groups", "need 1 at least");
    read_rules(reader, root);
    saved->first_step = zfi_read_number(reader, root, "first_step", ZFI_LARGEST_SAVED);
    saved->n_steps = zfi_read_number(reader, root, "n_steps", saved->is_compact ? 0 : MOST_STEPS);
    return reader->st;
}

/* In this order: each needs what those before it have read. */
static zf_status_t (*const sections[])(zfi_reader_t *reader, const json_t *root) = {
    read_head, read_config, read_clocks, read_files, zfi_read_params, read_steps};

static zf_status_t read_all(zfi_reader_t *reader, const json_t *root) {
    for (size_t i = 0; i < sizeof sections / sizeof *sections && !reader->st; i++)
        sections[i](reader, root);
    return reader->st;
}

/* ---- the text ---------------------------------------------------------------------------------------------------- */

/* What the checksum covers; NULL: failed. */
static char *check_prefix(zfi_reader_t *reader, char *all, uint64_t nbytes) {
    unsigned version = 0, crc = 0;
    int used = 0;
    if (sscanf(all, "{\"format\":\"zf.state\",\"version\":%9u,\"crc32\":\"%8x\",%n", &version, &crc, &used) != 2 ||
        !used) {
        fail(reader, ZF_ERR_CHECKPOINT, "%s does not begin as the index of a zf.state checkpoint", ZF_STATE_INDEX);
        return NULL;
    }
    if (version != ZFI_STATE_VERSION) {
        fail(reader, ZF_ERR_CHECKPOINT,
             "%s is of version %u, this plugin knows %d: use the plugin that wrote it, or a newer one", ZF_STATE_INDEX,
             version, ZFI_STATE_VERSION);
        return NULL;
    }
    reader->out->index_crc = crc;
    char *payload = all + used + 1; /* a line feed */
    if ((uint64_t)used + 3 > nbytes || payload[-1] != '\n' || all[nbytes - 1] != '\n' ||
        zfi_crc32(0, payload, nbytes - (uint64_t)used - 2) != crc) {
        fail(reader, ZF_ERR_CHECKPOINT, "%s is damaged: its checksum is not %08x (%" PRIu64 " bytes)", ZF_STATE_INDEX,
             crc, nbytes);
        return NULL;
    }
    return payload;
}

static zf_status_t parse(zfi_reader_t *reader, char *all, uint64_t nbytes) {
    char problem[ZFI_JSON_PROBLEM], *payload = check_prefix(reader, all, nbytes);
    zf_status_t st = ZF_OK;
    if (!payload)
        return reader->st;
    payload[-1] = '{';
    json_t *root = zfi_json_parse(payload - 1, nbytes - (uint64_t)(payload - 1 - all), &st, problem);
    if (!root && st == ZF_ERR_MEMORY)
        return fail(reader, st, "%s: %s", ZF_STATE_INDEX, problem);
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
    zfi_reader_t reader = {err, out, ZF_OK};
    memset(out, 0, sizeof *out);
    zf_status_t st = parse(&reader, text, nbytes);
    if (st)
        zfi_saved_free(out);
    return st;
}

zf_status_t zfi_index_read(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    zfi_reader_t reader = {err, out, ZF_OK};
    uint64_t nbytes = 0;
    zf_status_t st = zfi_store_size(store, ZF_STATE_INDEX, &nbytes, err);
    if (st)
        return st;
    if (nbytes == 0 || nbytes > LARGEST_INDEX)
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s has %" PRIu64 " bytes, allowed 1..%" PRIu64,
                         ZF_STATE_INDEX, nbytes, LARGEST_INDEX);
    char *all = malloc(nbytes + 1);
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
