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
        {NULL, "\"version\":1", "\"version\":2"},
        {NULL, "\"format\":\"zf.state\"", "\"format\":\"pickle00\""},
        {"\"files\"", "zf_state-00001.safetensors", "../../../etc/passwd"},
        {"\"files\"", "zf_state-00001.safetensors", "/etc/passwd"},
        {"\"files\"", "zf_state-00001.safetensors", "zf_state.json"},
        {"\"files\"", "\"nbytes\":", "\"nbytes\":9"},
        {"\"files\"", "\"header_nbytes\":", "\"header_nbytes\":99999999"},
        {"\"files\"", "\"files\":[", "\"files\":[1,"},
        {"\"params\"", "\"shape\":[", "\"shape\":[0,"},
        {"\"params\"", "\"shape\":[", "\"shape\":[4294967296,4294967296,"},
        {"\"params\"", "\"shape\":[", "\"shape\":[1,1,1,1,1,1,1,1,1,1,"},
        {"\"params\"", "\"shape\":[", "\"shape\":[-1,"},
        {"\"params\"", "\"dtype\":\"F32\"", "\"dtype\":\"F31\""},
        {"\"params\"", "\"group\":0", "\"group\":77"},
        {"\"params\"", "\"n_batch_axes\":0", "\"n_batch_axes\":7"},
        {"\"params\"", "\"matrices\":[[0,", "\"matrices\":[[1,"},
        {"\"params\"", "\"matrices\":[[0,", "\"matrices\":[[0,99,99,1,1],[0,"},
        {"\"params\"", "\"matrices\":[[0,", "\"matrices\":[],\"x\":[[0,"},
        {"\"params\"", "\"offset\":", "\"offset\":1"},
        {"\"params\"", "\"offset\":", "\"offset\":72057594037927930,\"y\":"},
        {"\"params\"", "\"offset\":", "\"offset\":-"},
        {"\"params\"", "\"file\":0", "\"file\":1"},
        {"\"params\"", "\"m\":{", "\"q\":{"},
        {"\"params\"", "\"m\":{", "\"m.1\":{"},
        {"\"params\"", "\"slot.", "\"slot.1"},
        {"\"params\"", "\"slot.", "\"slot.-"},
        {"\"params\"", "\"importance\":{", "\"visible\":{"},
        {"\"clocks\"", "\"step\":7", "\"step\":8"},
        {"\"clocks\"", "\"step\":7", "\"step\":72057594037927935"},
        {"\"clocks\"", "\"step\":7", "\"step\":1e9"},
        {"\"clocks\"", "\"step\":7", "\"step\":99999999999999999999999"},
        {"\"clocks\"", "\"clock_base\":2", "\"clock_base\":6"},
        {"\"clocks\"", "\"window_first\":[", "\"window_first\":[0,"},
        {"\"clocks\"", "\"last_choice\":[", "\"last_choice\":[99],\"z\":["},
        {"\"clocks\"", "\"waiting_choice\":", "\"waiting_choice\":1"},
        {"\"clocks\"", "\"steps_before\":0", "\"steps_before\":72057594037927935"},
        {"\"clocks\"", "\"steps_before\":0", "\"steps_before\":3221225466"},
        {"\"clocks\"", "\"steps_applied\":", "\"steps_applied\":72057594037927935,\"z\":"},
        {"\"clocks\"", "\"steps_skipped\":", "\"steps_skipped\":9,\"z\":"},
        {NULL, "\"n_steps\":", "\"n_steps\":6"},
        {NULL, "\"kind\":", "\"part\":[2,2],\"kind\":"},
        {NULL, "\"kind\":", "\"part\":[0,0],\"kind\":"},
        {NULL, "\"kind\":", "\"part\":[0],\"kind\":"},
        {NULL, "\"kind\":", "\"part\":7,\"kind\":"},
        {NULL, "\"kind\":", "\"part\":[-1,2],\"kind\":"},
        {NULL, "\"kind\":", "\"part\":[0,5000000000],\"kind\":"},
        {NULL, "\"n_cohorts\":4", "\"n_cohorts\":0"},
        {NULL, "\"n_cohorts\":4", "\"n_cohorts\":4000000000"},
        {NULL, "\"n_groups\":3", "\"n_groups\":0"},
        {NULL, "\"n_groups\":3", "\"n_groups\":60000"},
        {NULL, "\"is_mean\":false", "\"is_mean\":true"},
        {NULL, "\"rule\":0", "\"rule\":3"},
        {NULL, "\"rule\":0", "\"rule\":6"}, /* a rule that is none */
        {NULL, "\"kind\":\"exact\"", "\"kind\":\"compact\""},
        {"\"config\"", "\"zenflow.topk_ratio\":", "\"zenflow.no_such_key\":\"1\",\"zenflow.topk_ratio\":"},
        {"\"config\"", "\"zenflow.update_interval\":\"4\"", "\"zenflow.update_interval\":\"64\""},
        {"\"config\"", "\"zenflow.update_interval\":\"4\"", "\"zenflow.update_interval\":4"},
        {"\"params\"", "\"name\":\"", "\"name\":\"\\u0000"},
        {"\"params\"", "\"name\":\"", "\"name\":\"q"}, /* a parameter that is not bound here, and one that is missing */
    };
    zt_hostile_start(config);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        zt_hostile_copy();
        zt_index_replace(&zt_hostile.bad, edits[i].behind, edits[i].from, edits[i].to);
        zt_hostile_refused(edits[i].to);
    }
    zt_hostile_check_unchanged("after hostile indexes");
    zt_memory_store_clear(&zt_hostile.good); /* compact: steps that are to come are counted on from these */
    ZT_OK(&zt_hostile.rig, zt_save(&zt_hostile.rig, &zt_hostile.good.table, NULL, ZF_STATE_COMPACT, NULL));
    zt_hostile_copy();
    zt_index_replace(&zt_hostile.bad, "\"clocks\"", "\"steps_before\":0", "\"steps_before\":72057594037927935");
    zt_hostile_refused_for("a compact one of too many steps", "3221225472");
    zt_memory_store_clear(&zt_hostile.good);
    ZT_OK(&zt_hostile.rig, zt_save(&zt_hostile.rig, &zt_hostile.good.table, NULL, 0, NULL));
    zt_hostile_copy(); /* nested deep enough to exhaust a stack */
    {
        char *text = malloc(3000000 + 200);
        strcpy(text, "{\"format\":\"zf.state\",\"version\":1,\"crc32\":\"00000000\",\n\"a\":");
        memset(text + strlen(text) + 1, 0, 1);
        memset(strchr(text, 0), '[', 3000000);
        strcpy(text + 60 + 2999900, "\n");
        zt_index_seal(&zt_hostile.bad, text);
        zt_hostile_refused("brackets");
    }
}

/* What the checkpoint had where the two differ; 1 where they do not. */
static unsigned char replaced_byte(void) {
    const zt_blob_t *was = zt_memory_store_find(&zt_hostile.good, ZT_DATA_BLOB),
                    *is = zt_memory_store_find(&zt_hostile.bad, ZT_DATA_BLOB);
    for (size_t i = 0; i < was->nbytes; i++)
        if (was->data[i] != is->data[i])
            return was->data[i];
    return 1;
}

ZT_TEST(hostile_values) {
    uint64_t n_more = 0;
    static const float nan = NAN, inf = INFINITY, minus = -1e-9f;
    static const double bad_importance = -1.0, wild = NAN, half = 0.5, two = 2.0;
    static const uint32_t many = 4000000000u;
    static const uint8_t seven = 7, two_of_one = 2, one = 1;
    const struct {
        const char *param, *tensor;
        uint64_t at;
        const void *value;
        size_t nbytes;
    } all[] = {{"\"params\"", "w", 17, &nan, 4},          {"\"params\"", "w", 17, &inf, 4},
               {"\"params\"", "m", 300, &nan, 4},         {"\"params\"", "m", 300, &inf, 4},
               {"\"params\"", "v", 1, &nan, 4},           {"\"params\"", "v", 1, &minus, 4},
               {"\"params\"", "visible", 2, &nan, 4},     {"\"params\"", "publish", 2, &nan, 4},
               {"\"params\"", "n", 0, &many, 4},          {"\"params\"", "importance", 3, &bad_importance, 8},
               {"\"params\"", "importance", 3, &wild, 8}, {"\"params\"", "selected", 5, &seven, 1},
               {"\"steps\"", "present", 0, &seven, 1},    {"\"steps\"", "present", 1, &two_of_one, 1},
               {"\"steps\"", "scalars", 0, &half, 8},     {"\"steps\"", "hyper", 0, &wild, 8},
               {"\"steps\"", "hyper", 1, &two, 8}};
    zt_hostile_start(config);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        zt_hostile_copy();
        zt_plant(0, all[i].param, all[i].tensor, all[i].at, all[i].value, all[i].nbytes);
        zt_hostile_refused(all[i].tensor);
    }
    for (uint64_t cut_off = 4; cut_off <= 400; cut_off += 396) { /* a tensor that is shorter than its parameter */
        zt_hostile_copy();
        zt_plant(cut_off, "\"params\"", "m", 0, &minus, 4);
        zt_hostile_refused("short");
    }
    for (uint64_t c = 0; c < 80; c++) { /* one channel more than the choice takes */
        zt_hostile_copy();
        zt_plant(0, "\"params\"", "selected", c, &one, 1);
        if (replaced_byte() != 0)
            continue; /* it was selected, or on its way in */
        zt_hostile_refused("selected");
        n_more++;
    }
    ck_assert_uint_eq(n_more, 80 - 16);
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
        zt_hostile_refused_for("a broken length", "first eight bytes");
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
        snprintf(text[i], sizeof text[i], "\"offset\":%llu,\"nbytes\":%llu,\"crc32\":%llu", at.offset, at.nbytes,
                 at.crc);
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
    for (n_calls = 1;; n_calls += ZT_EVERY > 1 ? 3 : 1) {
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
    check_swapped("selected", 1, config, "not as many selected channels");
    check_swapped("w", 0xFF, config, "no training leaves");
    check_swapped("w", 0xFF, other, "no training leaves");
    check_swapped("w", 0, config, "changed while it was read");
    check_swapped("w", 0, other, "changed while it was read");
}

/* Where the windows of the first four of sixteen cohorts begin. */
#define FIRST "\"window_first\":[7,5,6,6,"

/* Of the automatic interval: windows that data cannot have left open. */
ZT_TEST(hostile_intervals) {
    static const char text[] = "topk_ratio = 0.2\nupdate_interval = auto\nselect_interval = 3\n"
                               "full_warm_up_rounds = 2";
    static const struct {
        const char *behind, *from, *to, *why;
    } edits[] = {
        {"\"clocks\"", FIRST, "\"window_first\":[2,5,6,6,", "window_first"}, /* before clock_base */
        {"\"clocks\"", FIRST, "\"window_first\":[3,5,6,6,", "window_first"}, /* past its bound */
        {"\"clocks\"", FIRST, "\"window_first\":[7,5,6,4,", "window_first"}, /* after one too short */
        {"\"clocks\"", FIRST, "\"window_first\":[7,5,6,5,", "window_first"},
        {"\"clocks\"", FIRST, "\"window_first\":[9,5,6,6,", "window_first"}, /* still to come */
        {"\"clocks\"", "\"ready_1\":[0,0,1,1,", "\"ready_1\":[0,0,1,2,", "ready_1"},
        {"\"clocks\"", "\"ready_1\":[0,0,1,1,", "\"ready_1\":[0,0,1,", "ready_1"},
        {"\"clocks\"", "\"ready_1\":[0,0,1,1,", "\"ready_1\":0,\"more\":[0,0,1,1,", "ready_1"},
        {"\"clocks\"", "\"ready_2\":[1,0,1,1,", "\"ready_2\":[-1,0,1,1,", "ready_2"},
        {"\"clocks\"", "\"ready_2\":[", "\"ready_3\":[", "ready_2"},
        {"\"params\"", "\"interval\":{", "\"intervals\":{", ""},
        {"\"params\"", "\"interval\":{", "\"interval.1\":{", ""},
        {"\"config\"", "\"zenflow.update_interval\":\"auto\"", "\"zenflow.update_interval\":\"4\"", ""},
    };
    zt_hostile_start(text);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        zt_hostile_copy();
        zt_index_replace(&zt_hostile.bad, edits[i].behind, edits[i].from, edits[i].to);
        zt_hostile_refused_for(edits[i].to, edits[i].why);
    }
}

/* Where nothing is deferred there is no ring that values to publish could go into. */
ZT_TEST(publications_without_windows) {
    zt_hostile_start("topk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npublish_lag = 1");
    zt_hostile_copy();
    zt_index_replace(&zt_hostile.bad, "\"config\"", "\"device.state_mib\":\"0\"", "\"device.state_mib\":\"all\"");
    zt_hostile_refused_for("values to publish", "where no window has closed");
}

static int is_refused_by_verify(void) {
    zf_state_args_t args = {.struct_size = sizeof args, .store = &zt_hostile.bad.table};
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_status_t st = zt_state(&zt_hostile.victim)->verify(&args, &report, &zt_hostile.victim.err);
    ck_assert(st == ZF_OK || strstr(zt_hostile.victim.err.message, "more updates than there were steps"));
    return st != ZF_OK;
}

/* At step 7 the second window of cohort 0, which began with step 4, is open: what is not selected cannot have been
 * updated seven times. */
ZT_TEST(updates_that_are_still_to_come) {
    static const char text[] = "topk_ratio = 0.2\nupdate_interval = 5\nselect_interval = 4\nfull_warm_up_rounds = "
                               "2\nmode = ";
    static const uint32_t all_steps = 7;
    char whole[256];
    uint64_t n_refused = 0;
    snprintf(whole, sizeof whole, "%s%s", text, "mean");
    zt_hostile_start(whole);
    for (uint64_t c = 0; c < 80; c++) {
        zt_hostile_copy();
        zt_plant(0, "\"params\"", "n", c, &all_steps, 4);
        n_refused += (uint64_t)is_refused_by_verify();
    }
    ck_assert_uint_eq(n_refused, 80 - 16);
    zt_hostile_end();
    snprintf(whole, sizeof whole, "%s%s", text, "windows");
    zt_hostile_start(whole);
    zt_hostile_copy();
    zt_plant(0, "\"params\"", "n", 0, &all_steps, 4);
    zt_hostile_refused_for("a count", "more updates than there were steps");
}

ZT_SUITE_WITH("state_hostile", NULL, zt_hostile_end)
