/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/hostile_rig.c - see hostile_rig.h. */
#include "hostile_rig.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"

zt_hostile_t zt_hostile;
static zt_image_t before;

void zt_hostile_start(const char *text) {
    zt_memory_store_start(&zt_hostile.bad);
    zt_state_saved(&zt_hostile.rig, &zt_hostile.good, text, 7, 0);
    zt_state_open(&zt_hostile.victim, text);
    zt_state_steps(&zt_hostile.victim, 5);
    zt_hostile_remember();
}

void zt_hostile_remember(void) {
    free(before.bytes);
    before = zt_state_image(&zt_hostile.victim);
}

void zt_hostile_copy(void) {
    zt_memory_store_clear(&zt_hostile.bad);
    zt_memory_store_gather(&zt_hostile.bad, &zt_hostile.good, 1);
}

void zt_hostile_check_unchanged(const char *what) { zt_state_check_image(&zt_hostile.victim, &before, what); }

void zt_hostile_refused(const char *what) {
    zf_state_args_t args = {.struct_size = sizeof args, .store = &zt_hostile.bad.table};
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_status_t st = zt_load(&zt_hostile.victim, &zt_hostile.bad.table, NULL, 0, NULL);
    if (st != ZF_ERR_CHECKPOINT && st != ZF_ERR_STORAGE)
        ck_abort_msg("%s: load returned %d", what, st);
    if (strlen(zt_hostile.victim.err.message) < 20)
        ck_abort_msg("%s: message \"%s\"", what, zt_hostile.victim.err.message);
    if (!strstr(what, "rule") && zt_state(&zt_hostile.victim)->verify(&args, &report, &zt_hostile.victim.err) >= 0)
        ck_abort_msg("%s: verify found nothing", what);
}

void zt_hostile_refused_for(const char *what, const char *why) {
    zt_hostile_refused(what);
    ck_assert_msg(strstr(zt_hostile.victim.err.message, why) != NULL, "%s: %s", what, zt_hostile.victim.err.message);
}

void zt_hostile_end(void) {
    zt_hostile_check_unchanged("at the end");
    zt_state_steps(&zt_hostile.victim, 4); /* and it goes on */
    ZT_OK(&zt_hostile.victim, zt_load(&zt_hostile.victim, &zt_hostile.good.table, NULL, 0, NULL));
    zt_state_check_equal(&zt_hostile.rig, &zt_hostile.victim, "the good one");
    free(before.bytes);
    before.bytes = NULL;
    zt_state_end(&zt_hostile.rig, &zt_hostile.victim, &zt_hostile.good);
    zt_memory_store_clear(&zt_hostile.bad);
}

char *zt_index_text(zt_memory_store_t *store) {
    zt_blob_t *blob = zt_memory_store_find(store, ZF_STATE_INDEX);
    blob->data[blob->nbytes] = 0;
    return (char *)blob->data;
}

void zt_index_seal(zt_memory_store_t *store, char *text) {
    zt_blob_t *blob = zt_memory_store_find(store, ZF_STATE_INDEX);
    char *payload = strchr(text, '\n') + 1, crc[16], *at = strstr(text, "\"crc32\":\"");
    snprintf(crc, sizeof crc, "%08x", zfi_crc32(0, payload, strlen(payload) - 1));
    memcpy(at + 9, crc, 8);
    if ((char *)blob->data != text)
        free(blob->data);
    blob->data = (unsigned char *)text;
    blob->nbytes = strlen(text);
    blob->is_there = realloc(blob->is_there, blob->nbytes);
    memset(blob->is_there, 1, blob->nbytes);
}

void zt_index_replace(zt_memory_store_t *store, const char *behind, const char *from, const char *to) {
    char *text = zt_index_text(store), *start_at = behind ? strstr(text, behind) : text;
    char *at = start_at ? strstr(start_at, from) : NULL, *out;
    if (!at)
        ck_abort_msg("\"%s\" is not in the index", from);
    out = malloc(strlen(text) + strlen(to) + 1);
    memcpy(out, text, (size_t)(at - text));
    strcpy(out + (at - text), to);
    strcat(out, at + strlen(from));
    zt_index_seal(store, out);
}

zt_range_t zt_index_range(zt_memory_store_t *store, const char *param, const char *tensor) {
    char key[64];
    const char *from = strstr(zt_index_text(store), param);
    zt_range_t at;
    snprintf(key, sizeof key, "\"%s\":[", tensor);
    from = from ? strstr(from, key) : NULL;
    if (!from || sscanf(from + strlen(key), "%llu,%llu,%llu]", &at.offset, &at.nbytes, &at.crc) != 3)
        ck_abort_msg("no tensor %s of %s", tensor, param);
    return at;
}

void zt_plant(uint64_t cut_off, const char *param, const char *tensor, uint64_t at, const void *value, size_t nbytes) {
    char was[200], is[200];
    zt_range_t range = zt_index_range(&zt_hostile.bad, param, tensor);
    unsigned char *data = zt_memory_store_find(&zt_hostile.bad, ZT_DATA_BLOB)->data + range.offset;
    ck_assert_uint_lt(at * nbytes, range.nbytes);
    memcpy(data + at * nbytes, value, nbytes);
    snprintf(was, sizeof was, ",%llu,%llu]", range.nbytes, range.crc);
    snprintf(is, sizeof is, ",%llu,%u]", range.nbytes - cut_off, zfi_crc32(0, data, range.nbytes - cut_off));
    zt_index_replace(&zt_hostile.bad, was, was, is);
}
