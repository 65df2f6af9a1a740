/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_hostile.c - checkpoints that are damaged, foreign or made to do harm: refused with a message,
 * nothing crashes, and the instance that was asked to load them is as it was. */
#define _GNU_SOURCE
#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"
#include "config/config_table.h"
#include "state_rig.h"
#include "suite.h"

static const char config[] =
    "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2\npublish_lag = 1";
static const char data_blob[] = "zf_state-00001.safetensors";

static zt_rig_t rig, victim;
static zt_memory_store_t good, bad;
static unsigned char *before;
static size_t before_nbytes;

static void start_with(const char *text) {
    zt_memory_store_start(&good);
    zt_memory_store_start(&bad);
    zt_state_open(&rig, text);
    zt_state_steps(&rig, 7);
    ZT_OK(&rig, zt_save(&rig, &good.table, NULL, 0, NULL));
    zt_state_open(&victim, text);
    zt_state_steps(&victim, 5);
    before = zt_state_image(&victim, &before_nbytes);
}

static void start(void) { start_with(config); }

static void copy_good(void) {
    zt_memory_store_clear(&bad);
    for (int i = 0; i < good.n_blobs; i++) {
        bad.blobs[i] = good.blobs[i];
        bad.blobs[i].data = malloc(good.blobs[i].nbytes + 1);
        memcpy(bad.blobs[i].data, good.blobs[i].data, good.blobs[i].nbytes);
        bad.blobs[i].data[good.blobs[i].nbytes] = 0;
    }
    bad.n_blobs = good.n_blobs;
}

static void check_unchanged(const char *what) {
    size_t nbytes;
    unsigned char *now = zt_state_image(&victim, &nbytes);
    if (nbytes != before_nbytes || memcmp(now, before, nbytes) != 0)
        ck_abort_msg("%s: the instance has changed", what);
    free(now);
}

/* by load and, where the checkpoint itself is wrong, by verify */
static void expect_refused(const char *what) {
    zf_state_args_t args = {.struct_size = sizeof args, .store = &bad.table};
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_status_t st = zt_load(&victim, &bad.table, NULL, 0, NULL);
    if (st != ZF_ERR_CHECKPOINT && st != ZF_ERR_STORAGE)
        ck_abort_msg("%s: load returned %d", what, st);
    if (strlen(victim.err.message) < 20)
        ck_abort_msg("%s: message \"%s\"", what, victim.err.message);
    if (!strstr(what, "rule") && zt_state(&victim)->verify(&args, &report, &victim.err) >= 0)
        ck_abort_msg("%s: verify found nothing", what);
}

static void expect_refused_for(const char *what, const char *why) {
    expect_refused(what);
    ck_assert_msg(strstr(victim.err.message, why) != NULL, "%s: %s", what, victim.err.message);
}

static void finish(void) {
    check_unchanged("at the end");
    zt_state_steps(&victim, 4); /* and it goes on */
    ZT_OK(&victim, zt_load(&victim, &good.table, NULL, 0, NULL));
    zt_state_check_equal(&rig, &victim, "the good one");
    free(before);
    zt_rig_end(&rig);
    zt_rig_end(&victim);
    zt_memory_store_end(&good);
    zt_memory_store_end(&bad);
}

/* ---- damage --------------------------------------------------------------------------------------------------------
 */

START_TEST(flipped_bits) {
    start();
    for (int b = 0; b < good.n_blobs; b++)
        for (uint64_t i = 0; i < good.blobs[b].nbytes; i += 1 + ZT_EVERY * good.blobs[b].nbytes / 150) {
            copy_good();
            bad.blobs[b].data[i] ^= (unsigned char)(1u << (i % 8));
            expect_refused("a flipped bit");
        }
    finish();
}
END_TEST

START_TEST(truncated) {
    start();
    for (int b = 0; b < good.n_blobs; b++)
        for (int k = 0; k < 20; k += ZT_EVERY) {
            copy_good();
            bad.blobs[b].nbytes = good.blobs[b].nbytes * (uint64_t)k / 20;
            expect_refused("a truncated blob");
        }
    copy_good();
    free(bad.blobs[1].data);
    bad.n_blobs = 1; /* the data without the index */
    expect_refused("without its index");
    copy_good();
    snprintf(bad.blobs[0].name, sizeof bad.blobs[0].name, "other");
    expect_refused("without its data");
    finish();
}
END_TEST

/* ---- content, with every checksum right ----------------------------------------------------------------------------
 */

static char *index_text(void) {
    zt_blob_t *blob = zt_memory_store_find(&bad, ZF_STATE_INDEX);
    blob->data[blob->nbytes] = 0;
    return (char *)blob->data;
}

/* The index with its checksum made right. */
static void seal(char *text) {
    zt_blob_t *blob = zt_memory_store_find(&bad, ZF_STATE_INDEX);
    char *payload = strchr(text, '\n') + 1, crc[16], *at = strstr(text, "\"crc32\":\"");
    snprintf(crc, sizeof crc, "%08x", zfi_crc32(0, payload, strlen(payload) - 1));
    memcpy(at + 9, crc, 8);
    if ((char *)blob->data != text)
        free(blob->data);
    blob->data = (unsigned char *)text;
    blob->nbytes = strlen(text);
}

/* Replaces the first `from` at or after `behind` (NULL: anywhere). */
static void replace(const char *behind, const char *from, const char *to) {
    char *text = index_text(), *start_at = behind ? strstr(text, behind) : text;
    char *at = start_at ? strstr(start_at, from) : NULL, *out;
    if (!at)
        ck_abort_msg("\"%s\" is not in the index", from);
    out = malloc(strlen(text) + strlen(to) + 1);
    memcpy(out, text, (size_t)(at - text));
    strcpy(out + (at - text), to);
    strcat(out, at + strlen(from));
    seal(out);
}

START_TEST(hostile_indexes) {
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
        {NULL, "\"kind\":\"exact\"", "\"kind\":\"compact\""},
        {"\"config\"", "\"zenflow.topk_ratio\":", "\"zenflow.no_such_key\":\"1\",\"zenflow.topk_ratio\":"},
        {"\"config\"", "\"zenflow.update_interval\":\"4\"", "\"zenflow.update_interval\":\"64\""},
        {"\"config\"", "\"zenflow.update_interval\":\"4\"", "\"zenflow.update_interval\":4"},
        {"\"params\"", "\"name\":\"", "\"name\":\"\\u0000"},
    };
    start();
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        copy_good();
        replace(edits[i].behind, edits[i].from, edits[i].to);
        expect_refused(edits[i].to);
    }
    check_unchanged("after hostile indexes");
    zt_memory_store_clear(&good); /* compact: steps that are to come are counted on from these */
    ZT_OK(&rig, zt_save(&rig, &good.table, NULL, ZF_STATE_COMPACT, NULL));
    copy_good();
    replace("\"clocks\"", "\"steps_before\":0", "\"steps_before\":72057594037927935");
    expect_refused_for("a compact one of too many steps", "3221225472");
    zt_memory_store_clear(&good);
    ZT_OK(&rig, zt_save(&rig, &good.table, NULL, 0, NULL));
    copy_good(); /* nested deep enough to exhaust a stack */
    {
        char *text = malloc(3000000 + 200);
        strcpy(text, "{\"format\":\"zf.state\",\"version\":1,\"crc32\":\"00000000\",\n\"a\":");
        memset(text + strlen(text) + 1, 0, 1);
        memset(strchr(text, 0), '[', 3000000);
        strcpy(text + 60 + 2999900, "\n");
        seal(text);
        expect_refused("brackets");
    }
    finish();
}
END_TEST

/* Puts a value into element `at` of a tensor of a parameter, with both checksums right. */
static uint64_t cut_off; /* bytes that the planted tensor is too short */

static void plant(const char *param, const char *tensor, uint64_t at, const void *value, size_t nbytes) {
    char key[64], was[200], is[200], *text = index_text(), *from = strstr(text, param);
    unsigned long long offset, n, crc, file;
    zt_blob_t *data = zt_memory_store_find(&bad, data_blob);
    snprintf(key, sizeof key, "\"%s\":{", tensor);
    from = from ? strstr(from, key) : NULL;
    if (!from || sscanf(from + strlen(key), "\"file\":%llu,\"offset\":%llu,\"nbytes\":%llu,\"crc32\":%llu", &file,
                        &offset, &n, &crc) != 4)
        ck_abort_msg("no tensor %s of %s", tensor, param);
    ck_assert_uint_lt(at * nbytes, n);
    memcpy(data->data + offset + at * nbytes, value, nbytes);
    snprintf(was, sizeof was, "\"nbytes\":%llu,\"crc32\":%llu", n, crc);
    snprintf(is, sizeof is, "\"nbytes\":%llu,\"crc32\":%u", n - cut_off,
             zfi_crc32(0, data->data + offset, n - cut_off));
    replace(was, was, is);
}

/* What the checkpoint had where the two differ; 1 where they do not. */
static unsigned char replaced_byte(void) {
    const zt_blob_t *was = zt_memory_store_find(&good, data_blob), *is = zt_memory_store_find(&bad, data_blob);
    for (size_t i = 0; i < was->nbytes; i++)
        if (was->data[i] != is->data[i])
            return was->data[i];
    return 1;
}

START_TEST(hostile_values) {
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
    start();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        copy_good();
        plant(all[i].param, all[i].tensor, all[i].at, all[i].value, all[i].nbytes);
        expect_refused(all[i].tensor);
    }
    for (cut_off = 4; cut_off <= 400; cut_off += 396) { /* a tensor that is shorter than its parameter */
        copy_good();
        plant("\"params\"", "m", 0, &minus, 4);
        expect_refused("short");
    }
    cut_off = 0;
    for (uint64_t c = 0; c < 80; c++) { /* one channel more than the choice takes */
        copy_good();
        plant("\"params\"", "selected", c, &one, 1);
        if (replaced_byte() != 0)
            continue; /* it was selected, or on its way in */
        expect_refused("selected");
        n_more++;
    }
    ck_assert_uint_eq(n_more, 80 - 16);
    finish();
}
END_TEST

/* ---- headers, places, and files that change while they are read ---------------------------------------------------
 */

/* Makes the header's checksum in the index right. */
static void seal_header(void) {
    const zt_blob_t *data = zt_memory_store_find(&bad, data_blob);
    unsigned long long nbytes, crc;
    char was[100], is[100];
    const char *at = strstr(index_text(), "\"header_nbytes\":");
    ck_assert_int_eq(sscanf(at, "\"header_nbytes\":%llu,\"header_crc32\":%llu", &nbytes, &crc), 2);
    snprintf(was, sizeof was, "\"header_crc32\":%llu", crc);
    snprintf(is, sizeof is, "\"header_crc32\":%u", zfi_crc32(0, data->data, nbytes));
    replace(NULL, was, is);
}

/* What foreign tools find a tensor by: it says what the index says, or the checkpoint is refused. */
START_TEST(hostile_headers) {
    static const struct {
        const char *from, *to; /* of one length */
    } edits[] = {{"\"F32\"", "\"U32\""},
                 {"[96,80]", "[80,96]"},
                 {"\"data_offsets\":[", "\"data_offsats\":["},
                 {"\"w/", "\"q/"},
                 {"{\"__metadata__\"", "[\"__metadata__\""},
                 {"zf.state\"}", "zf.state\" "}};
    start();
    for (int byte = 0; byte < 8; byte++) {
        copy_good();
        zt_memory_store_find(&bad, data_blob)->data[byte] ^= 1;
        seal_header();
        expect_refused_for("a broken length", "first eight bytes");
    }
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        unsigned char *data, *at;
        copy_good();
        data = zt_memory_store_find(&bad, data_blob)->data;
        at = memmem(data, 4000, edits[i].from, strlen(edits[i].from));
        ck_assert_msg(at != NULL, "no %s in the header", edits[i].from);
        memcpy(at, edits[i].to, strlen(edits[i].to));
        seal_header();
        expect_refused_for(edits[i].to, "its header");
    }
    finish();
}
END_TEST

/* m of the first parameter at v's place, with v's checksum: every byte of it is right. */
START_TEST(tensors_that_overlap) {
    char m[200], v[200];
    unsigned long long n[8];
    const char *from;
    start();
    copy_good();
    from = strstr(index_text(), "\"params\"");
    ck_assert_int_eq(sscanf(strstr(from, "\"m\":{"),
                            "\"m\":{\"file\":%llu,\"offset\":%llu,\"nbytes\":%llu,\"crc32\":%llu", &n[0], &n[1], &n[2],
                            &n[3]),
                     4);
    ck_assert_int_eq(sscanf(strstr(from, "\"v\":{"),
                            "\"v\":{\"file\":%llu,\"offset\":%llu,\"nbytes\":%llu,\"crc32\":%llu", &n[4], &n[5], &n[6],
                            &n[7]),
                     4);
    snprintf(m, sizeof m, "\"offset\":%llu,\"nbytes\":%llu,\"crc32\":%llu", n[1], n[2], n[3]);
    snprintf(v, sizeof v, "\"offset\":%llu,\"nbytes\":%llu,\"crc32\":%llu", n[5], n[6], n[7]);
    replace("\"params\"", m, v);
    expect_refused_for("two tensors in one place", "overlap");
    finish();
}
END_TEST

/* The data file is longer, as the index says: so many bytes of zeros, and then a hole. Verifies it. */
static zf_status_t verify_with_hole(const char *name, uint64_t nbytes, uint64_t n_data) {
    zf_state_args_t args = {.struct_size = sizeof args};
    char path[160], was[64], is[64];
    const char *at;
    unsigned long long had;
    copy_good();
    at = strstr(strstr(index_text(), "\"files\""), "\"nbytes\":");
    ck_assert_int_eq(sscanf(at, "\"nbytes\":%llu", &had), 1);
    snprintf(was, sizeof was, "\"nbytes\":%llu", had);
    snprintf(is, sizeof is, "\"nbytes\":%" PRIu64, nbytes);
    replace("\"files\"", was, is);
    snprintf(path, sizeof path, "%s/%s", zt_state_dir(), name);
    args.path = path;
    mkdir(path, 0777);
    for (int i = 0; i < bad.n_blobs; i++) {
        char file[256];
        FILE *f;
        snprintf(file, sizeof file, "%s/%s", path, bad.blobs[i].name);
        f = fopen(file, "wb");
        ck_assert_uint_eq(fwrite(bad.blobs[i].data, 1, bad.blobs[i].nbytes, f), bad.blobs[i].nbytes);
        if (strcmp(bad.blobs[i].name, data_blob) == 0) {
            for (uint64_t n = bad.blobs[i].nbytes; n < n_data; n++)
                ck_assert_int_eq(fputc(0, f), 0);
            fflush(f);
            ck_assert_int_eq(ftruncate(fileno(f), (off_t)nbytes), 0);
        }
        fclose(f);
    }
    return zt_state(&rig)->verify(&args, NULL, &rig.err);
}

/* A terabyte, nearly all of it a hole, is not read; a file of which a 64th part is there is. */
START_TEST(hollow_files) {
    start();
    ck_assert_int_eq(verify_with_hole("hollow", (uint64_t)1 << 40, 0), ZF_ERR_CHECKPOINT);
    ck_assert_msg(strstr(rig.err.message, "holes") != NULL, "%s", rig.err.message);
    ck_assert_int_eq(verify_with_hole("whole", 16 << 20, 16 << 14), ZF_ERR_CHECKPOINT);
    ck_assert_msg(strstr(rig.err.message, "holes") == NULL, "%s", rig.err.message);
    finish();
}
END_TEST

/* Overwrites a tensor of the first parameter in `bad`, whose checksums stay. */
static void overwrite(const char *tensor, int value) {
    char key[64];
    const char *from = strstr(index_text(), "\"params\"");
    unsigned long long file, offset, n;
    snprintf(key, sizeof key, "\"%s\":{", tensor);
    from = strstr(from, key);
    ck_assert_ptr_nonnull(from);
    ck_assert_int_eq(sscanf(from + strlen(key), "\"file\":%llu,\"offset\":%llu,\"nbytes\":%llu", &file, &offset, &n),
                     3);
    memset(zt_memory_store_find(&bad, data_blob)->data + offset, value, n);
}

/* The files are exchanged after any of a load's reads. What comes from the changed ones is checked as it is used: a
 * mask of too many channels would be listed past its end, a weight would become NaN. */
static void check_swapped(const char *tensor, int value, const char *into, const char *why) {
    int n_calls, n_why = 0;
    copy_good();
    overwrite(tensor, value);
    for (n_calls = 1;; n_calls++) {
        zt_rig_t fresh;
        zf_status_t st;
        int is_over;
        good.n_calls = 0;
        good.other = &bad;
        good.other_from = n_calls;
        zt_state_open(&fresh, into);
        st = zt_load(&fresh, &good.table, NULL, 0, NULL);
        is_over = good.n_calls <= n_calls && !st;
        good.other = NULL;
        n_why += st && strstr(fresh.err.message, why) != NULL;
        if (st && value && !strstr(fresh.err.message, why)) /* found by its checksum, when it had been used */
            ck_abort_msg("changed after read %d: %s", n_calls, fresh.err.message);
        if (!st && !is_over) {
            zt_rig_t sound;
            zt_state_open(&sound, into);
            ZT_OK(&sound, zt_load(&sound, &good.table, NULL, 0, NULL));
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

START_TEST(files_that_change) {
    static const char other[] = "topk_ratio = 0.2\nupdate_interval = 3\nfull_warm_up_rounds = 2";
    start();
    check_swapped("selected", 1, config, "not as many selected channels");
    check_swapped("w", 0xFF, config, "no training leaves");
    check_swapped("w", 0xFF, other, "no training leaves");
    check_swapped("w", 0, other, "changed while it was read");
    finish();
}
END_TEST

/* Takes the first tensor of this array out of the index. */
/* The good checkpoint, as a version that had this key would have written it. */
static void add_key(const zfi_gone_t *gone, const char *value) {
    char text[192];
    snprintf(text, sizeof text, "\"%s.%s\":\"%s\",\"zenflow.topk_ratio\":", gone->section, gone->name, value);
    copy_good();
    replace("\"config\"", "\"zenflow.topk_ratio\":", text);
}

/* A checkpoint of a version that had more keys is refused with what to use instead, and continued to the bit where they
 * say what this version does. */
START_TEST(keys_that_are_gone) {
    int n = 0;
    start();
    for (uint32_t i = 0; zfi_gone_at(i); i++) {
        const zfi_gone_t *gone = zfi_gone_at(i);
        if (!gone->name || zfi_key_is_free(gone->section, gone->name) ||
            (gone->implied && (gone->value || strcmp(gone->implied, "*") == 0)) ||
            (gone->value && strcmp(gone->value, "none") == 0)) /* read as state_mib = all */
            continue;
        if (gone->value) {
            char was[96], is[96];
            snprintf(was, sizeof was, "\"%s.%s\":", gone->section, gone->name);
            snprintf(is, sizeof is, "\"%s.%s\":\"%s\",\"was\":", gone->section, gone->name, gone->value);
            copy_good();
            if (!strstr(index_text(), was)) /* nothing that a checkpoint has */
                continue;
            replace("\"config\"", was, is);
        } else {
            add_key(gone, "0.123");
        }
        expect_refused_for(gone->name, gone->instead);
    }
    check_unchanged("a key that is gone");
    for (uint32_t i = 0; zfi_gone_at(i); i++) {
        const zfi_gone_t *gone = zfi_gone_at(i);
        if (!gone->implied || gone->value)
            continue;
        add_key(gone, *gone->implied == '*' ? "0.123" : gone->implied);
        ZT_OK(&victim, zt_load(&victim, &bad.table, NULL, ZF_STATE_EXACT, NULL));
        zt_state_check_equal(&rig, &victim, gone->name);
        n++;
    }
    ck_assert_int_gt(n, 0);
    free(before);
    before = zt_state_image(&victim, &before_nbytes);
    finish();
}
END_TEST

static void drop(const char *key) {
    char *text = index_text(), *from = strstr(strstr(text, "\"params\""), key), *to = strchr(from, '}') + 1;
    char *was = calloc(1, (size_t)(to - from) + 2);
    from -= *to != ','; /* with the comma behind it, or before it */
    to += *to == ',';
    memcpy(was, from, (size_t)(to - from));
    replace(was, was, "");
    free(was);
}

/* Where the windows of the first four of sixteen cohorts begin. */
#define FIRST "\"window_first\":[7,5,6,6,"

/* Of the automatic interval: windows that data cannot have left open, decisions from nothing, sums that cannot be. */
START_TEST(hostile_intervals) {
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
    static const double wild = NAN, minus = -1.0, early = 0.25;
    start_with(text);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        copy_good();
        replace(edits[i].behind, edits[i].from, edits[i].to);
        expect_refused_for(edits[i].to, edits[i].why);
    }
    copy_good();
    drop("\"interval\":{");
    expect_refused_for("without sums", "the sums that close windows");
    for (uint64_t at = 0; at < 2; at++) {
        copy_good();
        plant("\"params\"", "interval", at, &wild, 8);
        expect_refused_for("a sum that is no number", "no training leaves");
        copy_good();
        plant("\"params\"", "interval", at, &minus, 8);
        expect_refused_for("a negative sum", "no training leaves");
    }
    for (cut_off = 8; cut_off <= 16; cut_off += 8) {
        copy_good();
        plant("\"params\"", "interval", 0, &early, 8);
        expect_refused("sums too short");
    }
    cut_off = 0;
    zt_state_steps(&rig,
                   2); /* cohort 0 closes and chooses: what begins anew has gathered nothing and decides nothing */
    zt_memory_store_clear(&good);
    ZT_OK(&rig, zt_save(&rig, &good.table, NULL, 0, NULL));
    for (int n = 1; n <= 2; n++) {
        copy_good();
        ck_assert_ptr_nonnull(strstr(index_text(), "\"window_first\":[10,5,9,9,8,9,10,3,"));
        replace("\"clocks\"", n == 1 ? "\"ready_1\":[0,0,0,0," : "\"ready_2\":[0,0,1,1,",
                n == 1 ? "\"ready_1\":[1,0,0,0," : "\"ready_2\":[1,0,1,1,");
        expect_refused_for("a decision from nothing", "ready_1 or ready_2");
        copy_good();
        plant("\"params\"", "interval", (uint64_t)n - 1, &early, 8);
        expect_refused_for("sums of steps to come", "still to come");
    }
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_FLUSH));
    zt_state_steps(&rig, 1);
    zt_memory_store_clear(&good);
    ZT_OK(&rig, zt_save(&rig, &good.table, NULL, 0, NULL));
    copy_good();
    replace("\"clocks\"", "\"clock_base\":9", "\"clock_base\":10"); /* a window that FLUSH would have closed */
    expect_refused_for("opened before the clock's base", "window_first");
    finish();
}
END_TEST

START_TEST(a_rule_that_is_none) {
    start();
    copy_good();
    replace(NULL, "\"rule\":0", "\"rule\":6");
    expect_refused_for("a rule that is none", "rule");
    finish();
}
END_TEST

/* ---- keys and values of an older version ------------------------------------------------------------------------- */

/* Saved with `more` in its configuration, in place of `from`. */
static zf_status_t load_as(uint32_t flags, const char *from, const char *more) {
    ZT_OK(&rig, zt_save(&rig, &good.table, NULL, flags, NULL));
    copy_good();
    replace("\"config\"", from, more);
    return zt_load(&victim, &bad.table, NULL, 0, NULL);
}

/* What says the same as this version is passed over. What does not is refused, but of a compact checkpoint, which does
 * not depend on it. */
START_TEST(what_is_gone) {
    static const char mode[] = "\"zenflow.mode\":\"windows\"";
    start();
    ZT_OK(&victim, load_as(0, mode,
                           "\"zenflow.deferred\":\"replay\",\"zenflow.accumulate_on\":\"host\","
                           "\"zenflow.deferred_lr_scale\":\"1\""));
    zt_state_check_equal(&rig, &victim, "keys at their defaults");
    ZT_OK(&victim, load_as(0, "\"zenflow.on_overwrite\":\"error\"", "\"zenflow.on_overwrite\":\"follow\""));
    zt_state_check_equal(&rig, &victim, "a key that changes no number");
    free(before);
    before = zt_state_image(&victim, &before_nbytes);
    ck_assert_int_eq(load_as(0, mode, "\"zenflow.deferred\":\"moments\""), ZF_ERR_CHECKPOINT);
    ck_assert_ptr_nonnull(strstr(victim.err.message, "[zenflow] deferred is no key of this version"));
    ck_assert_int_eq(load_as(0, "\"zenflow.predict\":\"auto\"", "\"zenflow.predict\":\"3\""), ZF_ERR_CHECKPOINT);
    ck_assert_int_eq(load_as(0, mode, "\"zenflow.deferred\":\"replay\",\"zenflow.deferred_lr_scale\":\"2\""),
                     ZF_ERR_CHECKPOINT);
    check_unchanged("refused");
    ZT_OK(&victim, load_as(ZF_STATE_COMPACT, mode, "\"zenflow.deferred\":\"moments\""));
    ZT_OK(&victim, load_as(ZF_STATE_COMPACT, "\"zenflow.predict\":\"auto\"", "\"zenflow.predict\":\"3\""));
    ZT_OK(&rig, zt_save(&rig, &good.table, NULL, 0, NULL));
    free(before);
    before = zt_state_image(&victim, &before_nbytes);
    finish();
}
END_TEST

/* Where nothing is deferred there is no ring that values to publish could go into. */
START_TEST(publications_without_windows) {
    start_with("topk_ratio = 0\nupdate_interval = 1\nfull_warm_up_rounds = 1\npublish_lag = 1");
    copy_good();
    replace("\"config\"", "\"device.state_mib\":\"0\"", "\"device.state_mib\":\"all\"");
    expect_refused_for("values to publish", "where no window has closed");
    finish();
}
END_TEST

static int is_refused_by_verify(void) {
    zf_state_args_t args = {.struct_size = sizeof args, .store = &bad.table};
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_status_t st = zt_state(&victim)->verify(&args, &report, &victim.err);
    ck_assert(st == ZF_OK || strstr(victim.err.message, "more updates than there were steps"));
    return st != ZF_OK;
}

/* Keys that change nothing that is computed may have been saved with any value, and may be gone. */
START_TEST(keys_that_change_nothing) {
    start();
    copy_good();
    replace("\"config\"", "\"host.local_rank\":\"auto\"",
            "\"host.local_rank\":\"2\",\"host.local_ranks\":\"4\",\"host.huge_pages\":\"off\","
            "\"host.max_steps_ahead\":\"3\",\"trace.first_step\":\"7\",\"stats.prometheus\":\"x\"");
    ck_assert(!is_refused_by_verify());
    replace("\"config\"", "\"host.max_steps_ahead\":\"3\"", "\"host.moments\":\"3\"");
    expect_refused_for("a key that is unknown", "[host] has no key \"moments\"");
    finish();
}
END_TEST

/* At step 7 the second window of cohort 0, which began with step 4, is open: what is not selected cannot have been
 * updated seven times. */
START_TEST(updates_that_are_still_to_come) {
    static const char text[] = "topk_ratio = 0.2\nupdate_interval = 5\nselect_interval = 4\nfull_warm_up_rounds = "
                               "2\nmode = ";
    static const uint32_t all_steps = 7;
    char whole[256];
    uint64_t n_refused = 0;
    snprintf(whole, sizeof whole, "%s%s", text, "mean");
    start_with(whole);
    for (uint64_t c = 0; c < 80; c++) {
        copy_good();
        plant("\"params\"", "n", c, &all_steps, 4);
        n_refused += (uint64_t)is_refused_by_verify();
    }
    ck_assert_uint_eq(n_refused, 80 - 16);
    finish();
    snprintf(whole, sizeof whole, "%s%s", text, "windows");
    start_with(whole);
    copy_good();
    plant("\"params\"", "n", 0, &all_steps, 4);
    expect_refused_for("a count", "more updates than there were steps");
    finish();
}
END_TEST

ZT_MAIN("state_hostile", flipped_bits, truncated, hostile_indexes, hostile_values, hostile_headers,
        tensors_that_overlap, hollow_files, files_that_change, hostile_intervals, a_rule_that_is_none, what_is_gone,
        keys_that_are_gone, keys_that_change_nothing, publications_without_windows, updates_that_are_still_to_come)
