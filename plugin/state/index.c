/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/index.c - the index of a checkpoint and the headers of its files, as text and back (contract in
 * saved.h).
 *
 * The text of an index may be anybody's: every number is checked before it is used as a size, an index or a loop's end,
 * and memory is asked for only in proportion to the text. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "config/config_table.h"
#include "state/saved.h"
#include "state/text.h"

static const uint64_t LARGEST = (uint64_t)1 << 56; /* of any number in it: sums of a few cannot wrap */
static const uint64_t LARGEST_INDEX = (uint64_t)1 << 32;
static const uint64_t MOST_STEPS = (uint64_t)3 << 30; /* counts of updates have 32 bits, and training has to go on */
enum { MOST_COHORTS = 64, MOST_GROUPS = 65536, MOST_PARTS = 1 << 20, MOST_NOTE = 65537, MOST_HEADER = 100000000 };

/* By zfi_dtype_t, and by array. */
static const char *const dtypes[ZFI_N_DTYPES] = {[ZFI_F32] = "F32", [ZFI_BF16] = "BF16", [ZFI_F16] = "F16"};
static const char *const kinds[ZFI_SAVED_ARRAYS] = {"F32", "F32", "F32", "U32", "U8", "F64"};

/* ---- headers ----------------------------------------------------------------------------------------------------- */

static void print_shape(zfi_text_t *text, const zfi_saved_param_t *param, zfi_saved_array_t array) {
    if (!zfi_saved_is_by_element(array)) {
        zfi_text_add(text, "[%" PRIu64 "]", param->tensors[array].nbytes / zfi_saved_elem_nbytes(array));
        return;
    }
    zfi_text_add(text, "[");
    for (int i = 0; i < param->ndim; i++)
        zfi_text_add(text, "%s%" PRId64, i ? "," : "", param->shape[i]);
    zfi_text_add(text, "]");
}

static void print_entry(zfi_text_t *text, const zfi_saved_param_t *param, zfi_saved_array_t array,
                        uint64_t header_nbytes) {
    const zfi_saved_tensor_t *tensor = &param->tensors[array];
    zfi_text_add(text, ",\"%s/", zfi_saved_name(array));
    size_t quote = text->n;
    zfi_text_quote(text, param->name);
    if (!text->is_bad) /* one string of both */
        memmove(text->at + quote, text->at + quote + 1, text->n-- - quote);
    zfi_text_add(text, ":{\"dtype\":\"%s\",\"shape\":", kinds[array]);
    print_shape(text, param, array);
    zfi_text_add(text, ",\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", tensor->offset - header_nbytes,
                 tensor->offset - header_nbytes + tensor->nbytes);
}

unsigned char *zfi_header_print(const zfi_saved_t *saved, uint32_t number, uint64_t *out_nbytes) {
    const zfi_saved_file_t *file = &saved->files[number];
    zfi_text_t text = {0};
    zfi_text_add(&text, "12345678{\"__metadata__\":{\"format\":\"zf.state\"}");
    for (uint32_t p = file->first_param; p < file->end_param; p++)
        for (int a = 0; a < ZFI_SAVED_ARRAYS; a++)
            if (saved->params[p].tensors[a].nbytes)
                print_entry(&text, &saved->params[p], (zfi_saved_array_t)a, file->header_nbytes);
    zfi_text_add(&text, "}");
    while (text.n % 8 && !text.is_bad)
        zfi_text_add(&text, " ");
    if (text.is_bad) {
        free(text.at);
        return NULL;
    }
    for (int i = 0; i < 8; i++)
        text.at[i] = (char)((text.n - 8) >> 8 * i);
    *out_nbytes = text.n;
    return (unsigned char *)text.at;
}

zf_status_t zfi_header_check(zfi_store_t *store, const zfi_saved_t *saved, uint32_t number, zf_error_t *err) {
    const zfi_saved_file_t *file = &saved->files[number];
    uint64_t nbytes = 0;
    unsigned char *need = zfi_header_print(saved, number, &nbytes), *have = NULL;
    zf_status_t st = ZF_OK;
    int is_equal = 0;
    if (!need || (nbytes == file->header_nbytes && !(have = malloc(nbytes))))
        st = zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the header of %s", file->name);
    if (have)
        st = zfi_store_read(store, file->name, 0, have, nbytes, err);
    if (have && !st)
        is_equal = memcmp(have, need, nbytes) == 0 && zfi_crc32(0, have, nbytes) == file->header_crc;
    free(need);
    free(have);
    if (st || is_equal)
        return st;
    return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                     "%s: its header is not what the index makes of it; the checkpoint was changed or is damaged",
                     file->name);
}

/* ---- the index as text ------------------------------------------------------------------------------------------- */

/* The configuration of the run, for readers. A load does not look at it. */
static void print_config(zfi_text_t *text, const zfi_config_t *config) {
    const char *before = "";
    char name[128], value[256];
    zfi_text_add(text, "\"config\":{");
    for (uint32_t i = 0; i < zfi_config_n_keys(); i++) {
        const zfi_key_t *key = zfi_key_at(i);
        if (strcmp(key->section, "trace") == 0) /* paths of this machine */
            continue;
        snprintf(name, sizeof name, "%s.%s", key->section, key->name);
        zfi_key_print(key, config, value, sizeof value);
        zfi_text_add(text, "%s", before);
        zfi_text_quote(text, name);
        zfi_text_add(text, ":");
        zfi_text_quote(text, value);
        before = ",";
    }
    zfi_text_add(text, "},");
}

static void print_clocks(zfi_text_t *text, const zfi_saved_t *saved) {
    zfi_text_add(text,
                 "\"step\":%" PRIu64 ",\"submitted\":%" PRIu64 ",\"applied\":%" PRIu64 ",\"skipped\":%" PRIu64
                 ",\"epoch_end\":%" PRIu64 ",\"last_choice\":[",
                 saved->step, saved->n_submitted, saved->n_applied, saved->n_skipped, saved->epoch_end);
    for (uint32_t c = 0; c < saved->n_cohorts; c++)
        zfi_text_add(text, "%s%" PRIu64, c ? "," : "", saved->last_choice[c]);
    zfi_text_add(text, "],\"is_mean\":%s,\"rules\":[", saved->is_mean ? "true" : "false");
    for (uint32_t i = 0; i < saved->n_groups; i++) {
        const zfi_group_rule_t *rule = &saved->rules[i];
        zfi_text_add(text, "%s{\"rule\":%" PRIu32 ",\"name\":", i ? "," : "", rule->number);
        zfi_text_quote(text, rule->name);
        zfi_text_add(text, ",\"moments\":%" PRIu32 "}", rule->n_moments);
    }
    zfi_text_add(text, "],\"files\":[");
    for (uint32_t i = 0; i < saved->n_files; i++)
        zfi_text_add(text,
                     "%s{\"name\":\"%s\",\"nbytes\":%" PRIu64 ",\"header_nbytes\":%" PRIu64 ",\"header_crc32\":%" PRIu32
                     "}",
                     i ? "," : "", saved->files[i].name, saved->files[i].nbytes, saved->files[i].header_nbytes,
                     saved->files[i].header_crc);
    zfi_text_add(text, "],");
}

static void print_param(zfi_text_t *text, const zfi_saved_param_t *param) {
    const char *before = "";
    zfi_text_add(text, "{\"name\":");
    zfi_text_quote(text, param->name);
    zfi_text_add(text, ",\"id\":%" PRIu32 ",\"group\":%" PRIu32 ",\"dtype\":\"%s\",\"shape\":", param->id, param->group,
                 dtypes[param->dtype]);
    print_shape(text, param, ZFI_SAVED_W);
    zfi_text_add(text,
                 ",\"batch_axes\":%d,\"channels\":\"%s\",\"blocks\":%" PRIu32 ",\"file\":%" PRIu32 ",\"tensors\":{",
                 param->n_batch_axes, param->channels_are_rows ? "rows" : "columns", param->n_blocks, param->file);
    for (int a = 0; a < ZFI_SAVED_ARRAYS; a++) {
        const zfi_saved_tensor_t *tensor = &param->tensors[a];
        if (!tensor->nbytes)
            continue;
        zfi_text_add(text, "%s\"%s\":[%" PRIu64 ",%" PRIu64 ",%" PRIu32 "]", before,
                     zfi_saved_name((zfi_saved_array_t)a), tensor->offset, tensor->nbytes, tensor->crc);
        before = ",";
    }
    zfi_text_add(text, "}}");
}

char *zfi_index_print(zfi_saved_t *saved, const zfi_config_t *config) {
    enum { HEAD_NBYTES = 56 }; /* what is put in front when the checksum is known */
    zfi_text_t text = {0};
    char head[64];
    zfi_text_add(&text, "%*s\"plugin\":\"libzfplugin " ZFI_VERSION "\",\"note\":", HEAD_NBYTES, "");
    zfi_text_quote(&text, saved->note);
    if (saved->part.n > 1)
        zfi_text_add(&text, ",\"part\":[%" PRIu32 ",%" PRIu32 "]", saved->part.number, saved->part.n);
    zfi_text_add(&text, ",");
    print_config(&text, config);
    print_clocks(&text, saved);
    zfi_text_add(&text, "\"params\":[");
    for (uint32_t i = 0; i < saved->n_params; i++) {
        zfi_text_add(&text, "%s", i ? "," : "");
        print_param(&text, &saved->params[i]);
    }
    zfi_text_add(&text, "]}");
    if (text.is_bad) {
        free(text.at);
        return NULL;
    }
    saved->index_crc = zfi_crc32(0, text.at + HEAD_NBYTES, text.n - HEAD_NBYTES);
    int n = snprintf(head, sizeof head, "{\"format\":\"zf.state\",\"version\":%d,\"crc32\":\"%08x\",\n",
                     ZFI_STATE_VERSION, (unsigned)saved->index_crc);
    memmove(text.at + n, text.at + HEAD_NBYTES, text.n - HEAD_NBYTES + 1);
    memcpy(text.at, head, (size_t)n);
    zfi_text_t out = {text.at, text.n - HEAD_NBYTES + (size_t)n, text.room, 0};
    zfi_text_add(&out, "\n");
    if (out.is_bad)
        free(out.at);
    return out.is_bad ? NULL : out.at;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct reader {
    zfi_scan_t scan;
    zfi_saved_t *out;
    int has_no_memory;
} reader_t;

/* Room for one more in a list that grows by doubling. */
static void *grow(reader_t *reader, void *list, uint32_t n, size_t elem) {
    void *grown = list;
    if (n && (n & (n - 1)))
        return list;
    grown = realloc(list, (n ? 2 * (size_t)n : 1) * elem);
    if (!grown) {
        reader->has_no_memory = 1;
        zfi_scan_fail(&reader->scan, "more memory");
        return list;
    }
    memset((char *)grown + n * elem, 0, (n ? n : 1) * elem);
    return grown;
}

/* A name as long as it is. */
static char *read_name(reader_t *reader) {
    char text[sizeof((zfi_param_t *)0)->name];
    zfi_scan_string(&reader->scan, text, sizeof text);
    char *out = strdup(text);
    if (!out) {
        reader->has_no_memory = 1;
        zfi_scan_fail(&reader->scan, "more memory");
    }
    return out;
}

/* ["member":]number */
static uint64_t member(reader_t *reader, const char *word, uint64_t most) {
    zfi_scan_word(&reader->scan, word);
    return zfi_scan_number(&reader->scan, most);
}

static void read_config(reader_t *reader) {
    char text[300];
    zfi_scan_word(&reader->scan, ",\"config\":{");
    while (!reader->scan.need && !zfi_scan_has(&reader->scan, "},")) {
        zfi_scan_string(&reader->scan, text, sizeof text);
        zfi_scan_word(&reader->scan, ":");
        zfi_scan_string(&reader->scan, text, sizeof text);
        (void)zfi_scan_has(&reader->scan, ",");
    }
}

static void read_head(reader_t *reader) {
    zfi_saved_t *saved = reader->out;
    char plugin[64];
    saved->note = malloc(MOST_NOTE);
    if (!saved->note) {
        reader->has_no_memory = 1;
        zfi_scan_fail(&reader->scan, "more memory");
        return;
    }
    zfi_scan_word(&reader->scan, "\"plugin\":");
    zfi_scan_string(&reader->scan, plugin, sizeof plugin);
    zfi_scan_word(&reader->scan, ",\"note\":");
    saved->note_nbytes = (uint32_t)zfi_scan_string(&reader->scan, saved->note, MOST_NOTE);
    if (!zfi_scan_has(&reader->scan, ",\"part\":["))
        return;
    saved->part.number = (uint32_t)zfi_scan_number(&reader->scan, MOST_PARTS);
    saved->part.n = (uint32_t)member(reader, ",", MOST_PARTS);
    zfi_scan_word(&reader->scan, "]");
    if (saved->part.n < 2 || saved->part.number >= saved->part.n)
        zfi_scan_fail(&reader->scan, "a part of two or more");
}

static void read_clocks(reader_t *reader) {
    zfi_saved_t *saved = reader->out;
    saved->step = member(reader, "\"step\":", LARGEST);
    saved->n_submitted = member(reader, ",\"submitted\":", LARGEST);
    if (saved->n_submitted > MOST_STEPS)
        zfi_scan_fail(&reader->scan, "at most 3221225472 steps");
    saved->n_applied = member(reader, ",\"applied\":", saved->n_submitted);
    saved->n_skipped = member(reader, ",\"skipped\":", saved->n_submitted);
    saved->epoch_end = member(reader, ",\"epoch_end\":", saved->step + 1);
    if (saved->step > saved->n_submitted)
        zfi_scan_fail(&reader->scan, "step <= submitted");
    zfi_scan_word(&reader->scan, ",\"last_choice\":[");
    saved->last_choice = calloc(MOST_COHORTS, sizeof *saved->last_choice);
    if (!saved->last_choice) {
        reader->has_no_memory = 1;
        zfi_scan_fail(&reader->scan, "more memory");
    }
    do {
        if (saved->n_cohorts == MOST_COHORTS)
            zfi_scan_fail(&reader->scan, "at most 64 cohorts");
        else if (!reader->scan.need)
            saved->last_choice[saved->n_cohorts++] = zfi_scan_number(&reader->scan, saved->step);
    } while (zfi_scan_has(&reader->scan, ","));
    saved->is_mean = zfi_scan_has(&reader->scan, "],\"is_mean\":true,\"rules\":[");
    if (!saved->is_mean)
        zfi_scan_word(&reader->scan, "],\"is_mean\":false,\"rules\":[");
}

static void read_rules(reader_t *reader) {
    zfi_saved_t *saved = reader->out;
    do {
        saved->rules = grow(reader, saved->rules, saved->n_groups, sizeof *saved->rules);
        if (reader->scan.need || saved->n_groups == MOST_GROUPS)
            break;
        zfi_group_rule_t *rule = &saved->rules[saved->n_groups++];
        rule->number = (uint32_t)member(reader, "{\"rule\":", ZF_RULE_CALLBACK);
        zfi_scan_word(&reader->scan, ",\"name\":");
        zfi_scan_string(&reader->scan, rule->name, sizeof rule->name);
        rule->n_moments = (uint32_t)member(reader, ",\"moments\":", 2);
        zfi_scan_word(&reader->scan, "}");
        if (rule->number != ZF_RULE_CALLBACK)
            *rule = *zfi_rule_builtin(rule->number);
    } while (zfi_scan_has(&reader->scan, ","));
}

static void read_files(reader_t *reader) {
    zfi_saved_t *saved = reader->out;
    zfi_scan_word(&reader->scan, "],\"files\":[");
    do {
        saved->files = grow(reader, saved->files, saved->n_files, sizeof *saved->files);
        if (reader->scan.need)
            break;
        zfi_saved_file_t *file = &saved->files[saved->n_files++];
        zfi_scan_word(&reader->scan, "{\"name\":");
        zfi_scan_string(&reader->scan, file->name, sizeof file->name);
        if (!zfi_store_is_name(file->name) || strncmp(file->name, "zf_state-", 9) != 0)
            zfi_scan_fail(&reader->scan, "the name of a checkpoint's file");
        file->nbytes = member(reader, ",\"nbytes\":", LARGEST);
        file->header_nbytes =
            member(reader, ",\"header_nbytes\":", file->nbytes < MOST_HEADER ? file->nbytes : MOST_HEADER);
        file->header_crc = (uint32_t)member(reader, ",\"header_crc32\":", UINT32_MAX);
        zfi_scan_word(&reader->scan, "}");
    } while (zfi_scan_has(&reader->scan, ","));
    zfi_scan_word(&reader->scan, "],\"params\":[");
}

static void read_shape(reader_t *reader, zfi_saved_param_t *out) {
    uint64_t n = 1;
    zfi_scan_word(&reader->scan, ",\"shape\":[");
    while (!reader->scan.need && !zfi_scan_has(&reader->scan, "]")) {
        uint64_t x = out->ndim == ZF_MAX_NDIM ? 0 : zfi_scan_number(&reader->scan, UINT32_MAX);
        if (!x || n > LARGEST / x) {
            zfi_scan_fail(&reader->scan, "a shape with elements, and not too many");
            return;
        }
        out->shape[out->ndim++] = (int64_t)x;
        n *= x;
        (void)zfi_scan_has(&reader->scan, ",");
    }
}

static zfi_dtype_t read_dtype(reader_t *reader) {
    char text[8];
    zfi_scan_word(&reader->scan, ",\"dtype\":");
    zfi_scan_string(&reader->scan, text, sizeof text);
    for (int i = 0; i < ZFI_N_DTYPES; i++)
        if (strcmp(text, dtypes[i]) == 0)
            return (zfi_dtype_t)i;
    zfi_scan_fail(&reader->scan, "F32, BF16 or F16");
    return ZFI_F32;
}

static void read_tensor(reader_t *reader, const zfi_saved_param_t *param, zfi_saved_array_t array,
                        zfi_saved_tensor_t *out) {
    const zfi_saved_t *saved = reader->out;
    const zfi_saved_file_t *file = &saved->files[param->file];
    out->offset = zfi_scan_number(&reader->scan, LARGEST);
    out->nbytes = member(reader, ",", LARGEST);
    out->lacks_crc = zfi_scan_has(&reader->scan, ",null]");
    if (!out->lacks_crc) {
        out->crc = (uint32_t)member(reader, ",", UINT32_MAX);
        zfi_scan_word(&reader->scan, "]");
    }
    if (reader->scan.need)
        return;
    if (out->nbytes != zfi_saved_length(saved, param, array) * zfi_saved_elem_nbytes(array) ||
        out->offset < file->header_nbytes || out->offset + out->nbytes > file->nbytes)
        zfi_scan_fail(&reader->scan, "a tensor of as many bytes as its shape needs, inside of its file");
}

static void read_tensors(reader_t *reader, zfi_saved_param_t *out) {
    const char *before = "";
    uint32_t n_moments = reader->scan.need ? 0 : reader->out->rules[out->group].n_moments;
    zfi_scan_word(&reader->scan, ",\"tensors\":{");
    for (int a = 0; a < ZFI_SAVED_ARRAYS; a++) {
        char word[32];
        snprintf(word, sizeof word, "%s\"%s\":[", before, zfi_saved_name((zfi_saved_array_t)a));
        if (!zfi_scan_has(&reader->scan, word)) /* never behind a failure */
            continue;
        read_tensor(reader, out, (zfi_saved_array_t)a, &out->tensors[a]);
        before = ",";
    }
    zfi_scan_word(&reader->scan, "}}");
    for (uint32_t a = 0; a < ZFI_SAVED_SELECTED; a++)
        if ((out->tensors[a].nbytes != 0) != (a == ZFI_SAVED_M ? n_moments > 0 : a != ZFI_SAVED_V || n_moments > 1))
            zfi_scan_fail(&reader->scan, "w, n, and as many moments as its rule has");
}

/* Parameters lie in the files in the order in which they are listed. */
static void take_file(reader_t *reader, zfi_saved_param_t *out) {
    zfi_saved_t *saved = reader->out;
    uint32_t number = saved->n_params - 1u, before = number ? out[-1].file : 0;
    out->file = (uint32_t)member(reader, ",\"file\":", saved->n_files - 1u);
    if (out->file < before)
        zfi_scan_fail(&reader->scan, "a file that is not before the last");
    if (reader->scan.need)
        return;
    if (!number || out->file != before)
        saved->files[out->file].first_param = number;
    saved->files[out->file].end_param = number + 1;
}

static void read_param(reader_t *reader, zfi_saved_param_t *out) {
    zfi_scan_word(&reader->scan, "{\"name\":");
    out->name = read_name(reader);
    out->id = (uint32_t)member(reader, ",\"id\":", ZF_NO_ID - 1);
    out->group = (uint32_t)member(reader, ",\"group\":", reader->out->n_groups - 1u);
    out->dtype = read_dtype(reader);
    read_shape(reader, out);
    out->n_batch_axes = (int)member(reader, ",\"batch_axes\":", (uint64_t)out->ndim);
    out->channels_are_rows = zfi_scan_has(&reader->scan, ",\"channels\":\"rows\"");
    if (!out->channels_are_rows)
        zfi_scan_word(&reader->scan, ",\"channels\":\"columns\"");
    zfi_saved_measure(out);
    out->n_blocks = (uint32_t)member(reader, ",\"blocks\":", out->rows < UINT32_MAX ? out->rows : UINT32_MAX);
    if (!out->n_blocks)
        zfi_scan_fail(&reader->scan, "one block at least");
    take_file(reader, out);
    read_tensors(reader, out);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const zfi_saved_param_t *const *)a)->name, (*(const zfi_saved_param_t *const *)b)->name);
}

static int by_place(const void *a, const void *b) {
    const zfi_saved_tensor_t *x = *(const zfi_saved_tensor_t *const *)a, *y = *(const zfi_saved_tensor_t *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Header and tensors fill a file: no gap, no overlap. That also bounds the work of a check by the files' bytes. */
static int do_fill(const zfi_saved_t *saved, const zfi_saved_file_t *file, const zfi_saved_tensor_t **tensors) {
    uint64_t end = file->header_nbytes;
    size_t n = 0;
    for (uint32_t p = file->first_param; p < file->end_param; p++)
        for (int a = 0; a < ZFI_SAVED_ARRAYS; a++)
            if (saved->params[p].tensors[a].nbytes)
                tensors[n++] = &saved->params[p].tensors[a];
    qsort(tensors, n, sizeof *tensors, by_place);
    for (size_t i = 0; i < n; i++) {
        if (tensors[i]->offset != end)
            return 0;
        end += tensors[i]->nbytes;
    }
    return end == file->nbytes;
}

/* Names are different, and places do not overlap. */
static zf_status_t check_lists(const zfi_saved_t *saved, zf_error_t *err) {
    const zfi_saved_param_t **params = malloc(saved->n_params * sizeof *params);
    const zfi_saved_tensor_t **tensors = malloc((size_t)saved->n_params * ZFI_SAVED_ARRAYS * sizeof *tensors);
    zf_status_t st =
        params && tensors ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to compare parameters");
    for (uint32_t i = 0; i < saved->n_params && !st; i++)
        params[i] = &saved->params[i];
    if (!st)
        qsort(params, saved->n_params, sizeof *params, by_name);
    for (uint32_t i = 1; i < saved->n_params && !st; i++)
        if (by_name(&params[i - 1], &params[i]) == 0)
            st = zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s: two parameters are named \"%s\"", ZF_STATE_INDEX,
                           params[i]->name);
    for (uint32_t f = 0; f < saved->n_files && !st; f++)
        if (!do_fill(saved, &saved->files[f], tensors))
            st = zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                           "%s: its tensors overlap, or do not fill it; the checkpoint was changed or is damaged",
                           saved->files[f].name);
    free(params);
    free(tensors);
    return st;
}

static zf_status_t read_all(reader_t *reader, zf_error_t *err) {
    zfi_saved_t *saved = reader->out;
    zfi_scan_t *scan = &reader->scan;
    read_head(reader);
    read_config(reader);
    read_clocks(reader);
    read_rules(reader);
    read_files(reader);
    do {
        saved->params = grow(reader, saved->params, saved->n_params, sizeof *saved->params);
        if (!scan->need)
            read_param(reader, &saved->params[saved->n_params++]);
    } while (zfi_scan_has(scan, ","));
    zfi_scan_word(scan, "]}\n");
    if (!scan->need && scan->at != scan->end)
        zfi_scan_fail(scan, "nothing behind its end");
    if (reader->has_no_memory)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the index of a checkpoint");
    if (scan->need)
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                         "%s: byte %" PRIu64 " needs %.80s; the file was changed or is not a checkpoint",
                         ZF_STATE_INDEX, scan->failed_at, scan->need);
    return check_lists(saved, err);
}

/* Reads up to what the checksum covers. */
static zf_status_t read_first_line(zfi_scan_t *scan, uint32_t *out_crc, zf_error_t *err) {
    char crc[9];
    zfi_scan_word(scan, "{\"format\":\"zf.state\",\"version\":");
    uint64_t version = zfi_scan_number(scan, UINT32_MAX);
    if (!scan->need && version != ZFI_STATE_VERSION)
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s is of version %" PRIu64 ", this plugin reads %d: %s",
                         ZF_STATE_INDEX, version, ZFI_STATE_VERSION,
                         version == 1 ? "convert it (python -m zfplugin.convert DIR NEW)"
                                      : "use the plugin that wrote it, or a newer one");
    zfi_scan_word(scan, ",\"crc32\":");
    zfi_scan_string(scan, crc, sizeof crc);
    zfi_scan_word(scan, ",\n");
    if (scan->need)
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s does not begin as the index of a zf.state checkpoint",
                         ZF_STATE_INDEX);
    *out_crc = (uint32_t)strtoul(crc, NULL, 16);
    return ZF_OK;
}

zf_status_t zfi_index_parse(const char *text, uint64_t nbytes, zfi_saved_t *out, zf_error_t *err) {
    reader_t reader = {.scan = {text, text, text + nbytes, NULL, 0}, .out = out};
    memset(out, 0, sizeof *out);
    zf_status_t st = read_first_line(&reader.scan, &out->index_crc, err);
    uint64_t left = st ? 0 : (uint64_t)(reader.scan.end - reader.scan.at);
    if (!st && (left == 0 || zfi_crc32(0, reader.scan.at, left - 1) != out->index_crc))
        st = zfi_error(err, ZF_ERR_CHECKPOINT, "state",
                       "%s is damaged: its checksum is not %08" PRIx32 " (%" PRIu64 " bytes)", ZF_STATE_INDEX,
                       out->index_crc, nbytes);
    if (!st)
        st = read_all(&reader, err);
    if (st)
        zfi_saved_free(out);
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

static zf_status_t read_once(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    uint64_t nbytes = 0;
    zf_status_t st = zfi_store_size(store, ZF_STATE_INDEX, &nbytes, err);
    if (st)
        return st;
    if (nbytes == 0 || nbytes > LARGEST_INDEX)
        return zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s has %" PRIu64 " bytes, allowed 1..%" PRIu64,
                         ZF_STATE_INDEX, nbytes, LARGEST_INDEX);
    char *text = malloc(nbytes);
    if (!text)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for the index of a checkpoint");
    st = zfi_store_read(store, ZF_STATE_INDEX, 0, text, nbytes, err);
    if (!st)
        st = zfi_index_parse(text, nbytes, out, err);
    free(text);
    if (st)
        return st;
    st = zfi_store_hold(store, out->files[0].name, err);
    if (!st)
        st = check_sizes(store, out, err);
    if (st)
        zfi_saved_free(out);
    return st;
}

zf_status_t zfi_index_read(zfi_store_t *store, zfi_saved_t *out, zf_error_t *err) {
    zf_status_t st = read_once(store, out, err);
    while (st && zfi_store_begin_again(store))
        st = read_once(store, out, err);
    return st;
}
