/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_hostile.c - checkpoints that are damaged, foreign or made to do harm: refused with a message,
 * nothing crashes, and the instance that was asked to load them is as it was. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "hostile_rig.h"
#include "suite.h"

static const char config[] =
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\npublish_lag = 1";

ZT_TEST(hostile_indexes) {
    static const struct {
        const char *behind, *from, *to;
    } edits[] = {
        {NULL, "\"version\":2", "\"version\":3"},
        {NULL, "\"version\":2", "\"version\":1"},
        {NULL, "\"format\":\"zf.state\"", "\"format\":\"pickle00\""},
        {NULL, "\"plugin\":", " \"plugin\":"}, /* a space */
        {NULL, "\"plugin\":\"", "\"plugin\":\"\\q"},
        {NULL, "\"plugin\":\"", "\"plugin\":\"\377"},
        {NULL, "\"note\":\"\"", "\"note\":\"\\u0000\""},
        {NULL, "\"note\":\"\"", "\"note\":\"\",\"part\":[2,2]"},
        {NULL, "\"note\":\"\"", "\"note\":\"\",\"part\":[0,0]"},
        {NULL, "\"note\":\"\"", "\"note\":\"\",\"part\":[0]"},
        {NULL, "\"note\":\"\"", "\"note\":\"\",\"part\":7"},
        {NULL, "\"note\":\"\"", "\"note\":\"\",\"part\":[-1,2]"},
        {NULL, "\"note\":\"\"", "\"note\":\"\",\"part\":[0,5000000000]"},
        {"\"config\"", "\"zenflow.update_interval\":\"4\"", "\"zenflow.update_interval\":4"},
        {NULL, "\"step\":7", "\"step\":8"},
        {NULL, "\"step\":7", "\"step\":07"},
        {NULL, "\"step\":7", "\"step\":-7"},
        {NULL, "\"step\":7", "\"step\":1e9"},
        {NULL, "\"step\":7", "\"step\":99999999999999999999999"},
        {NULL, "\"submitted\":7", "\"submitted\":6"},
        {NULL, "\"submitted\":7", "\"submitted\":3221225473"},
        {NULL, "\"applied\":6", "\"applied\":8"},
        {NULL, "\"skipped\":1", "\"skipped\":8"},
        {NULL, "\"epoch_end\":", "\"epoch_end\":9"},
        {NULL, "\"last_choice\":[", "\"last_choice\":[99,"},
        {NULL, "\"last_choice\":[", "\"last_choice\":[],\"z\":["},
        {NULL, "\"is_mean\":false", "\"is_mean\":true"},
        {NULL, "\"is_mean\":false", "\"is_mean\":0"},
        {NULL, "\"rules\":[{\"rule\":0", "\"rules\":[{\"rule\":3"},
        {NULL, "\"rules\":[{\"rule\":0", "\"rules\":[{\"rule\":6"}, /* a rule that is none */
        {NULL, "\"rules\":[", "\"rules\":[],\"z\":["},
        {"\"files\"", "zf_state-00001.safetensors", "../../../etc/passwd"},
        {"\"files\"", "zf_state-00001.safetensors", "/etc/passwd"},
        {"\"files\"", "zf_state-00001.safetensors", "zf_state.json"},
        {"\"files\"", "\"nbytes\":", "\"nbytes\":9"},
        {"\"files\"", "\"header_nbytes\":", "\"header_nbytes\":99999999"},
        {"\"files\"", "\"files\":[", "\"files\":[1,"},
        {"\"params\"", "\"name\":\"", "\"name\":\"\\u0000"},
        {"\"params\"", "\"name\":\"", "\"name\":\"q"}, /* a parameter that is not bound here, and one that is missing */
        {"\"params\"", "\"group\":0", "\"group\":77"},
        {"\"params\"", "\"dtype\":\"F32\"", "\"dtype\":\"F31\""},
        {"\"params\"", "\"shape\":[", "\"shape\":[0,"},
        {"\"params\"", "\"shape\":[", "\"shape\":[4294967295,4294967295,"},
        {"\"params\"", "\"shape\":[", "\"shape\":[1,1,1,1,1,1,1,1,1,1,"},
        {"\"params\"", "\"shape\":[", "\"shape\":[-1,"},
        {"\"params\"", "\"batch_axes\":0", "\"batch_axes\":7"},
        {"\"params\"", "\"blocks\":1", "\"blocks\":0"},
        {"\"params\"", "\"blocks\":1", "\"blocks\":2"},
        {"\"params\"", "\"blocks\":1", "\"blocks\":4000000000"},
        {"\"params\"", "\"file\":0", "\"file\":1"},
        {"\"params\"", "\"w\":[", "\"w\":[1"},
        {"\"params\"", "\"w\":[", "\"w\":[72057594037927930,"},
        {"\"params\"", "\"w\":[", "\"w\":[-"},
        {"\"params\"", "\"m\":[", "\"q\":["},
        {"\"params\"", "\"selected\":[", "\"slot\":["},
        {"\"params\"", "]}\n", "]}\n "},
    };
    zt_hostile_start(config);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        zt_hostile_copy();
        zt_index_replace(&zt_hostile.bad, edits[i].behind, edits[i].from, edits[i].to);
        zt_hostile_refused(edits[i].to);
    }
    zt_hostile_check_unchanged("after hostile indexes");
}

ZT_TEST(hostile_values) {
    static const float nan = NAN, inf = INFINITY, minus = -1e-9f;
    static const double bad_importance = -1.0, wild = NAN;
    static const uint32_t many = 8; /* one more than there were steps */
    static const uint8_t two = 2;
    const struct {
        const char *tensor;
        uint64_t at;
        const void *value;
        size_t nbytes;
    } all[] = {{"w", 17, &nan, 4},          {"w", 17, &inf, 4},
               {"m", 300, &nan, 4},         {"m", 300, &inf, 4},
               {"v", 1, &nan, 4},           {"v", 1, &minus, 4},
               {"n", 0, &many, 4},          {"importance", 3, &bad_importance, 8},
               {"importance", 3, &wild, 8}, {"selected", 5, &two, 1}};
    zt_hostile_start(config);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        zt_hostile_copy();
        zt_plant(0, "\"params\"", all[i].tensor, all[i].at, all[i].value, all[i].nbytes);
        zt_hostile_refused(all[i].tensor);
    }
    for (uint64_t cut_off = 4; cut_off <= 400; cut_off += 396) { /* a tensor that is shorter than its parameter */
        zt_hostile_copy();
        zt_plant(cut_off, "\"params\"", "m", 0, &minus, 4);
        zt_hostile_refused("short");
    }
}

/* One channel more than a choice takes: the schedule cannot go on with that, and begins again. */
ZT_TEST(a_selection_that_does_not_fit) {
    static const uint8_t one = 1;
    uint64_t n_more = 0;
    zt_hostile_start(config);
    for (uint64_t c = 0; c < 80; c++) {
        zf_status_t st;
        zt_hostile_copy();
        zt_plant(0, "\"params\"", "selected", c, &one, 1);
        st = zt_load(&zt_hostile.victim, &zt_hostile.bad.table, NULL, ZF_STATE_CONTINUE, NULL);
        n_more += st == ZF_ERR_CHECKPOINT && strstr(zt_hostile.victim.err.message, "other channels are selected");
        ck_assert(st == ZF_OK || st == ZF_ERR_CHECKPOINT);
    }
    ck_assert_uint_eq(n_more, 80 - 16);
    ZT_OK(&zt_hostile.victim, zt_load(&zt_hostile.victim, &zt_hostile.bad.table, NULL, 0, NULL));
    zt_hostile_remember();
}

/* ---- headers, places, and files that change while they are read -------------------------------------------------- */

/* Makes the header's checksum in the index right. */
static void seal_header(void) {
    const zt_blob_t *data = zt_memory_store_find(&zt_hostile.bad, ZT_DATA_BLOB);
    unsigned long long nbytes, crc;
    char was[100], is[100];
    const char *at = strstr(zt_index_text(&zt_hostile.bad), "\"header_nbytes\":");
    ck_assert_int_eq(sscanf(at, "\"header_nbytes\":%llu,\"header_crc32\":%llu", &nbytes, &crc), 2);
    snprintf(was, sizeof was, "\"header_crc32\":%llu", crc);
    snprintf(is, sizeof is, "\"header_crc32\":%u", zfi_crc32(0, data->data, nbytes));
    zt_index_replace(&zt_hostile.bad, NULL, was, is);
}

/* What foreign tools find a tensor by: it says what the index says, or the checkpoint is refused. */
ZT_TEST(hostile_headers) {
    static const struct {
        const char *from, *to; /* of one length */
    } edits[] = {{"\"F32\"", "\"U32\""},
                 {"[96,80]", "[80,96]"},
                 {"\"data_offsets\":[", "\"data_offsats\":["},
                 {"\"w/", "\"q/"},
                 {"{\"__metadata__\"", "[\"__metadata__\""},
                 {"zf.state\"}", "zf.state\" "}};
    zt_hostile_start(config);
    for (int byte = 0; byte < 8; byte++) {
        zt_hostile_copy();
        zt_memory_store_find(&zt_hostile.bad, ZT_DATA_BLOB)->data[byte] ^= 1;
        seal_header();
        zt_hostile_refused_for("a broken length", "its header");
    }
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        unsigned char *data, *at;
        zt_hostile_copy();
        data = zt_memory_store_find(&zt_hostile.bad, ZT_DATA_BLOB)->data;
        at = memmem(data, 4000, edits[i].from, strlen(edits[i].from));
        ck_assert_msg(at != NULL, "no %s in the header", edits[i].from);
        memcpy(at, edits[i].to, strlen(edits[i].to));
        seal_header();
        zt_hostile_refused_for(edits[i].to, "its header");
    }
}

/* m of the first parameter at v's place, with v's checksum: every byte of it is right. */
ZT_TEST(tensors_that_overlap) {
    char text[2][200];
    zt_hostile_start(config);
    zt_hostile_copy();
    for (int i = 0; i < 2; i++) {
        zt_range_t at = zt_index_range(&zt_hostile.bad, "\"params\"", i ? "v" : "m");
        snprintf(text[i], sizeof text[i], "[%llu,%llu,%llu]", at.offset, at.nbytes, at.crc);
    }
    zt_index_replace(&zt_hostile.bad, "\"params\"", text[0], text[1]);
    zt_hostile_refused_for("two tensors in one place", "overlap");
}

/* Overwrites a tensor of the first parameter in `bad`, whose checksums stay. */
static void overwrite(const char *tensor, int value) {
    zt_range_t at = zt_index_range(&zt_hostile.bad, "\"params\"", tensor);
    memset(zt_memory_store_find(&zt_hostile.bad, ZT_DATA_BLOB)->data + at.offset, value, at.nbytes);
}

/* The files are exchanged after any of a load's reads. What comes from the changed ones is checked as it is used: a
 * mask of too many channels would be listed past its end, a weight would become NaN. */
static void check_swapped(const char *tensor, int value, const char *into, const char *why) {
    int n_calls, n_why = 0;
    zt_hostile_copy();
    overwrite(tensor, value);
    for (n_calls = 1;; n_calls += 3) {
        zt_rig_t fresh;
        zt_hostile.good.n_calls = 0;
        zt_hostile.good.other = &zt_hostile.bad;
        zt_hostile.good.other_from = n_calls;
        zt_state_open(&fresh, into);
        zf_status_t st = zt_load(&fresh, &zt_hostile.good.table, NULL, 0, NULL);
        int is_over = zt_hostile.good.n_calls <= n_calls && !st;
        zt_hostile.good.other = NULL;
        n_why += st && strstr(fresh.err.message, why) != NULL;
        if (st && value && !strstr(fresh.err.message, why)) /* found by its checksum, when it had been used */
            ck_abort_msg("changed after read %d: %s", n_calls, fresh.err.message);
        if (!st && !is_over) {
            zt_rig_t sound;
            zt_state_open(&sound, into);
            ZT_OK(&sound, zt_load(&sound, &zt_hostile.good.table, NULL, 0, NULL));
            zt_state_check_equal(&sound, &fresh, "the changed bytes were not used");
            zt_rig_end(&sound);
        }
        zt_rig_end(&fresh);
        if (is_over)
            break;
    }
    ck_assert_int_gt(n_calls, 20);
    ck_assert_msg(n_why > 1, "\"%s\" was said %d times", why, n_why); /* by the first read, and by the second */
}

ZT_TEST(files_that_change) {
    static const char other[] = "topk_ratio = 0.2\nupdate_interval = 3\nfull_warm_up_rounds = 2";
    zt_hostile_start(config);
    check_swapped("selected", 2, config, "no training leaves");
    check_swapped("importance", 0xFF, config, "no training leaves");
    check_swapped("w", 0xFF, config, "no training leaves");
    check_swapped("w", 0xFF, other, "no training leaves");
    check_swapped("w", 0, config, "changed while it was read");
    check_swapped("w", 0, other, "changed while it was read");
}

ZT_SUITE_WITH("state_hostile", NULL, zt_hostile_end)
