/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_config.c - the configuration: values, defaults, and a message for every kind of mistake. */
#include "config/config.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config_table.h"
#include "kernels.h"
#include "state_rig.h"
#include "suite.h"
#include "wrap.h"

static zfi_config_t config;
static zf_error_t err;

static zf_status_t parse_bytes(const char *text, size_t nbytes) {
    err = (zf_error_t){.struct_size = sizeof err};
    return zfi_config_parse(text, nbytes, "zf.ini", NULL, 0, &config, &err);
}

static zf_status_t parse(const char *text) { return parse_bytes(text, strlen(text)); }

static zf_status_t parse_override(const char *text, const char *override) {
    err = (zf_error_t){.struct_size = sizeof err};
    return zfi_config_parse(text, text ? strlen(text) : 0, "zf.ini", &override, 1, &config, &err);
}

/* The text is refused, out stays as it was, and the message has this part in it. */
static void refused_bytes(const char *text, size_t nbytes, const char *part) {
    memset(&config, 0x5A, sizeof config);
    zfi_config_t before = config;
    zt_refused(&err, parse_bytes(text, nbytes), ZF_ERR_CONFIG, part);
    ck_assert_int_eq(err.status, ZF_ERR_CONFIG);
    ck_assert_int_eq(memcmp(&before, &config, sizeof config), 0);
}

static void refused(const char *text, const char *part) { refused_bytes(text, strlen(text), part); }

static void refused_override(const char *override, const char *part) {
    zt_refused(&err, parse_override(NULL, override), ZF_ERR_CONFIG, part);
}

/* ---- what is accepted -------------------------------------------------------------------------------------------- */

ZT_TEST(whole_file) {
    const char *text = "\xEF\xBB\xBF# comment\r\n; another\r\n\r\n[zenflow]\r\n"
                       "  topk_ratio = 2.5e-1 ; why\r\n\tselect_strategy=step\r\n select_interval : 32\n"
                       "update_interval = +8\nfull_warm_up_rounds=1\nmode = mean\n"
                       "publish_lag=0\n[host]\nthreads=3\n"
                       "memory_limit_mib=1099511627776\ndeadline_ms=100\n[shard] # ok\nstage=2";
    ck_assert_msg(parse(text) == ZF_OK, "%s", err.message);
    ck_assert(config.topk_ratio == 0.25);
    ck_assert_uint_eq(config.select_interval, 32);
    ck_assert_uint_eq(config.update_interval, 8);
    ck_assert_int_eq(config.deferred, ZFI_DEFERRED_MEAN);
    ck_assert_uint_eq(config.publish_lag, 0);
    ck_assert_uint_eq(config.threads, 3);
    ck_assert_uint_eq(config.memory_limit_mib, (uint64_t)1 << 40);
    ck_assert_uint_eq(config.stage, 2);
}

/* As it is read it is printed, but for what is another name of the same. */
ZT_TEST(values_are_read_and_printed) {
    static const struct {
        const char *section, *key, *value, *printed;
    } of[] = {{"zenflow", "topk_ratio", "2e-1", "0.2"},
              {"zenflow", "topk_ratio", "2E-1", "0.2"},
              {"zenflow", "topk_ratio", "25e-2", "0.25"},
              {"zenflow", "topk_ratio", ".5", "0.5"},
              {"zenflow", "topk_ratio", "1.", "1"},
              {"zenflow", "topk_ratio", "+.5e+00", "0.5"},
              {"zenflow", "topk_ratio", "0.005e02", "0.5"},
              {"zenflow", "predict", "0", "off"},
              {"zenflow", "predict", "auto", "auto"},
              {"zenflow", "publish_lag", "auto", "auto"},
              {"zenflow", "select_interval", "7", "7"},
              {"zenflow", "select_interval", "auto", "auto"},
              {"zenflow", "update_interval", "6", "6"},
              {"zenflow", "update_interval", "auto", "auto"},
              {"device", "state_mib", "3", "3"},
              {"device", "state_mib", "all", "all"},
              {"device", "state_mib", "auto", "auto"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char text[64];
        snprintf(text, sizeof text, "[%s]\n%s = %s\n", of[i].section, of[i].key, of[i].value);
        ck_assert_msg(parse(text) == ZF_OK, "%s: %s", text, err.message);
        zfi_key_print(zfi_key_at((uint32_t)zfi_key_find(of[i].section, of[i].key)), &config, text, sizeof text);
        ck_assert_str_eq(text, of[i].printed);
    }
    ck_assert(parse("[zenflow]\nupdate_interval = auto\n") == ZF_OK && config.is_interval_auto);
    ck_assert_uint_eq(config.update_interval, 16);
    ck_assert_int_eq(parse("[zenflow]\nselect_interval = auto\nupdate_interval = 6\n"), ZF_OK);
    ck_assert_uint_eq(zfi_config_select_interval(&config), 24);
    ck_assert(parse("[device]\nstate_mib = auto\n") == ZF_OK && config.resident_nbytes == 0 && config.is_auto_resident);
    ck_assert(parse("") == ZF_OK && config.resident_nbytes == 0 && !config.is_auto_resident);
}

ZT_TEST(steps_of_a_trace) {
    static const struct {
        const char *text;
        uint32_t first, n;
    } good[] = {{"20", 1, 20}, {"0", 1, 0}, {"1000000000", 1, 1000000000}, {"5..8", 5, 4}, {"7..7", 7, 1}};
    char text[64];
    ck_assert(parse("") == ZF_OK && config.trace_first_step == 1 && config.trace_steps == 20);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(text, sizeof text, "[trace]\nfile = a steps b steps %s\n", good[i].text);
        ck_assert_msg(parse(text) == ZF_OK, "%s", err.message);
        ck_assert_str_eq(config.trace_file, "a steps b");
        ck_assert(config.trace_first_step == good[i].first && config.trace_steps == good[i].n);
    }
}

ZT_TEST(steps_of_an_audit) {
    ck_assert(parse("[audit]\nfile = none\n") == ZF_OK && !*config.audit_file);
    ck_assert(parse("[audit]\nfile = a b\n") == ZF_OK && config.audit_every == 100);
    ck_assert_str_eq(config.audit_file, "a b");
    ck_assert(parse("[audit]\nfile = a every b every 7\n") == ZF_OK && config.audit_every == 7);
    ck_assert_str_eq(config.audit_file, "a every b");
}

static void expect_exact(const char *text) {
    ck_assert_msg(parse(text) == ZF_OK, "%s", err.message);
    zfi_config_settle(&config, 1, 0);
    ck_assert(config.update_interval == 1 && config.publish_lag == 0 && config.deferred == ZFI_DEFERRED_REPLAY);
    ck_assert_uint_eq(zfi_config_predict(&config), 0);
}

static const struct {
    const char *text;
    uint32_t interval;
} of_windows[] = {{"[zenflow]\nmode = windows\n", 2},
                  {"[zenflow]\nupdate_interval = 1\n", 1},
                  {"[zenflow]\nupdate_interval = auto\n", 16},
                  {"[zenflow]\npublish_lag = 1\n", 2}};

ZT_TEST(one_word) {
    expect_exact("[zenflow]\nmode = exact\n");
    expect_exact("[zenflow]\npublish_lag = auto\nmode = exact\n");
    expect_exact("[zenflow]\nupdate_interval = 1\npublish_lag = 0\nmode = exact\n");
    expect_exact("");
    expect_exact("[zenflow]\npublish_lag = auto\ntopk_ratio = 0.2\n");
    for (size_t i = 0; i < sizeof of_windows / sizeof *of_windows; i++) {
        ck_assert_int_eq(parse(of_windows[i].text), ZF_OK);
        ck_assert_int_eq(config.mode, ZFI_MODE_WINDOWS);
        ck_assert_uint_eq(config.update_interval, of_windows[i].interval);
    }
}

/* auto: 0; what was given stays. */
ZT_TEST(lag_follows_the_host) {
    for (int can_fetch = 0; can_fetch < 2; can_fetch++) {
        ck_assert_int_eq(parse("[zenflow]\npublish_lag = auto\nmode = windows\n"), ZF_OK);
        zfi_config_settle(&config, can_fetch, 0);
        ck_assert_uint_eq(config.publish_lag, 0);
        ck_assert_uint_eq(zfi_config_predict(&config), 1);
        ck_assert_int_eq(zfi_config_policy(&config).published,
                         can_fetch ? ZFI_PUBLISHED_AT_FETCH : ZFI_PUBLISHED_AT_STEP);
        ck_assert_int_eq(parse("[zenflow]\npublish_lag = 1\n"), ZF_OK);
        zfi_config_settle(&config, can_fetch, 0);
        ck_assert_uint_eq(config.publish_lag, 1);
        ck_assert_int_eq(zfi_config_policy(&config).published, ZFI_PUBLISHED_NEXT_STEP);
        ck_assert_uint_eq(zfi_config_predict(&config), 2);
    }
}

ZT_TEST(prediction) {
    static const struct {
        const char *text;
        uint32_t steps;
    } of[] = {{"predict = off\n", 0},
              {"predict = auto\nupdate_interval = 8\npublish_lag = 1\n", 4}, /* no further than S = 4 needs */
              {"predict = auto\nupdate_interval = 3\npublish_lag = 0\n", 2},
              {"predict = auto\nmode = mean\n", 0}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char text[96];
        snprintf(text, sizeof text, "[zenflow]\n%s", of[i].text);
        ck_assert_int_eq(parse(text), ZF_OK);
        ck_assert_uint_eq(zfi_config_predict(&config), of[i].steps);
    }
}

ZT_TEST(overrides) {
    const char *const list[] = {"zenflow.topk_ratio=0.5", "zenflow.topk_ratio = 0.25 ", "shard.stage=2"};
    if (parse_override("[zenflow]\nupdate_interval=2\n", "zenflow.update_interval=3") != ZF_OK)
        ck_abort_msg("%s", err.message);
    ck_assert_uint_eq(config.update_interval, 3);
    ck_assert_int_eq(zfi_config_parse(NULL, 0, NULL, list + 2, 1, &config, NULL), ZF_OK);
    ck_assert_uint_eq(config.stage, 2);
    ck_assert_int_eq(zfi_config_parse(NULL, 0, NULL, list, 1, &config, NULL), ZF_OK);
    ck_assert(config.topk_ratio == 0.5);
    ck_assert_int_eq(zfi_config_parse(NULL, 0, NULL, list, 2, &config, NULL), ZF_OK);
    ck_assert(config.topk_ratio == 0.25); /* the last one */
    refused_override(" zenflow.topk_ratio = 0.25", "override 1: no section [ zenflow]");
    refused_override("zenflow.topk_ratio", "override 1: \"zenflow.topk_ratio\" is not section.key=value");
    refused_override("topk_ratio=0.5", "is not section.key=value");
    refused_override("topk_ratio=0.5.5", "is not section.key=value");
    refused_override("zenflow.topk_ratio=2", "override 1: [zenflow] topk_ratio = 2 is out of range");
    refused_override("zenflow.topk=2", "nearest: topk_ratio");
    refused_override("shard.stage=4", "allowed: 0 | 1 | 2 | 3");
    refused_override("device.id=3", "override 1: [device] has no key \"id\"");
    refused_override("zenflow.topk_ratio=0.\x01", "override 1:1: byte 0x01");
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static const struct {
    const char *text, *part;
} wrong[] = {
    {"[zenflow]\ntopk_ration = 0.1\n", "zf.ini:2: [zenflow] has no key \"topk_ration\"; nearest: topk_ratio"},
    {"[zenflow]\nTopK_Ratio = 0.1\n", "nearest: topk_ratio"},
    {"[zenflow]\nupdate_interval_level = 1\n", "nearest: update_interval"}, /* not: its end, level */
    {"\n\n[zenflw]\ntopk_ratio = 0.1\n", "zf.ini:3: no section [zenflw]; nearest: [zenflow]"},
    {"[]\n", "no section []"},
    {"[zenflow]\nthreads = 2\n", "threads: this key belongs to [host]"},
    {"[zenflow]\nlr = 1e-4\n", "it comes from the trainer with every step"},
    {"topk_ratio = 0.1\n", "zf.ini:1: key before the first [section]"},
    {"[zenflow]\n = 0.1\n", "zf.ini:2: no key before '='"},
    {"[zenflow\ntopk_ratio=7\n", "zf.ini:1: no ']'"},
    {"[zenflow] topk_ratio=0.1\n", "zf.ini:1: text after ']'"},
    {"[zenflow]\npublish_lag=1\n[host]\nthreads=1\n[zenflow]\npublish_lag=1\n",
     "zf.ini:6: [zenflow] publish_lag is given again, first in line 2"},
    {"[zenflow]\n  publish_lag = 1\n  publish_lag = 1\n", "zf.ini:3: [zenflow] publish_lag is given again"},
    {"[zenflow]\nmode = exact\nupdate_interval = 2\n", ":3: [zenflow] mode = exact sets update_interval = 1"},
    {"[zenflow]\nmode = exact\nupdate_interval = auto\n", "leave update_interval out, or write mode = windows"},
    {"[zenflow]\nmode = windows\n[host]\nmoments_dtype = int8\n", "or windows with topk_ratio = 0"},
    {"[zenflow]\nmode = mean\ntopk_ratio = 0\n[host]\nmoments_dtype = int8_bfloat16\n", "take exact or windows"},
    {"[zenflow]\npublish_lag = 1\nmode = exact\n", ":2: [zenflow] mode = exact sets publish_lag = 0"},
    {"[zenflow]\npredict = 65\n", "is no choice; allowed: auto | off"},
    {"[zenflow]\ntopk_ratio = -1\n", "topk_ratio = -1 is out of range"},
    {"[zenflow]\nselect_interval = 0\n", "select_interval = 0 is out of range; allowed: 1..1000000 | auto"},
    {"[zenflow]\nselect_interval = aut\n", "select_interval = \"aut\" is no int"},
    {"[zenflow]\nupdate_interval = 0\n", "update_interval = 0 is out of range; allowed: 1..64 | auto"},
    {"[device]\nstate_mib = 1073741825\n", "allowed: 0..1073741824 | auto | all"},
};

ZT_TEST(what_is_wrong) {
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(wrong[i].text, wrong[i].part);
    refused("[zenflw]\na=1\nb=2\n[shard]\nstage=loud\n", "stage = \"loud\"");
    ck_assert(strstr(err.message, "zf.ini:2") == NULL);
    refused("[zenflow]\ntopk_ratio\npublish_lag\n", "zf.ini:2: neither [section], key = value nor a comment");
    ck_assert(strstr(err.message, "zf.ini:3: neither") != NULL);
}

/* Each of the values is refused so; a key may have a part of its value already. */
ZT_TEST(values_that_are_none) {
    static const struct {
        const char *line, *part, *values[11];
    } of[] = {{"[zenflow]\ntopk_ratio =", "is no real", {"e1", "1e+", "1e-", "1e+-1", "+", "+-1", "1e1x"}},
              {"[trace]\nfile = a steps",
               "PATH steps N | PATH steps FIRST..LAST",
               {"-1", "8..5", "0..5", "5..", "..5", "5...8", "5-8", "1..1000000001", "all"}},
              {"[audit]\nfile = a every",
               "none | PATH | PATH every N, of 1000000000",
               {"0", "-1", "1000000001", "2 3", "all", "1..2"}}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (const char *const *value = of[i].values; *value; value++) {
            char text[128];
            snprintf(text, sizeof text, "%s %s\n", of[i].line, *value);
            refused(text, of[i].part);
        }
}

/* A text is kept as it is, up to the room that there is; the default is a word for none. */
ZT_TEST(texts) {
    const zfi_key_t *key = zfi_key_at((uint32_t)zfi_key_find("trace", "file"));
    char text[256], longest[ZFI_TEXT_NBYTES + 1] = "";
    ck_assert_int_eq(parse("[trace]\nfile = /tmp/A b.json\n"), ZF_OK);
    zfi_key_print(key, &config, text, sizeof text);
    ck_assert_str_eq(text, "/tmp/A b.json");
    ck_assert_int_eq(parse_override("[trace]\nfile = x\n", "trace.file=none"), ZF_OK);
    ck_assert_str_eq(config.trace_file, "");
    zfi_key_print(key, &config, text, sizeof text);
    ck_assert_str_eq(text, "none");
    memset(longest, 'a', ZFI_TEXT_NBYTES - 1);
    ck_assert_int_eq(zfi_key_set(key, longest, &config), ZFI_VALUE_OK);
    longest[ZFI_TEXT_NBYTES - 1] = 'a';
    ck_assert_int_eq(zfi_key_set(key, longest, &config), ZFI_VALUE_RANGE);
    ck_assert_uint_eq(strlen(config.trace_text), ZFI_TEXT_NBYTES - 1);
}

ZT_TEST(a_long_name_of_the_text) {
    char where[1024];
    memset(where, 'w', sizeof where);
    where[sizeof where - 1] = '\0';
    err.struct_size = sizeof err;
    ck_assert_int_eq(zfi_config_parse("[shard]\nstage=x\n", 16, where, NULL, 0, &config, &err), ZF_ERR_CONFIG);
    ck_assert(strstr(err.message, "stage = \"x\"") != NULL);
    for (uint32_t i = 0; i < zfi_config_n_keys(); i++) { /* whatever is said of a key, it begins with the place */
        zf_config_key_t key = {.struct_size = sizeof key};
        char text[512];
        ck_assert_int_eq(zfi_config_key(i, &key, NULL), ZF_OK);
        for (int twice = 0; twice < 2; twice++) {
            size_t n = (size_t)snprintf(text, sizeof text, "[%s]\n%s = %0120d\n%s", key.section, key.key, 0,
                                        twice ? "[wrong]\n" : "");
            memset(text + n - 121 - (twice ? 8 : 0), 'x', 120);
            if (zfi_config_parse(text, n, where, NULL, 0, &config, &err) == ZF_ERR_CONFIG)
                ck_assert_msg(strncmp(err.message, where, 20) == 0, "%s: %s", key.key, err.message);
        }
    }
}

ZT_TEST(arguments) {
    ck_assert_int_eq(zfi_config_parse(NULL, 0, NULL, NULL, 0, NULL, NULL), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zfi_config_parse(NULL, 7, NULL, NULL, 0, &config, NULL), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zfi_config_parse(NULL, 0, NULL, NULL, 1, &config, NULL), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(parse_override(NULL, NULL), ZF_ERR_CONFIG);
    ck_assert_int_eq(parse_bytes("", (size_t)1 << 21), ZF_ERR_CONFIG);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static zf_status_t parse_file(const char *path) {
    err.struct_size = sizeof err;
    return zfi_config_parse_file(path, NULL, 0, &config, &err);
}

/* A file system that gives a few bytes at a time, and is interrupted in between. */
static size_t given, asked_in_all;
static int is_in_pieces;

ZT_WRAP(ssize_t, read, int fd, void *buf, size_t nbytes) {
    if (!is_in_pieces)
        return __real_read(fd, buf, nbytes);
    is_in_pieces = -is_in_pieces;
    if (is_in_pieces < 0) {
        errno = EINTR;
        return -1;
    }
    if (!asked_in_all)
        asked_in_all = nbytes;
    ck_assert_uint_eq(given + nbytes, asked_in_all); /* no more than there is room for */
    ssize_t got = __real_read(fd, buf, nbytes < 5 ? nbytes : 5);
    given += got > 0 ? (size_t)got : 0;
    return got;
}

ZT_TEST(a_file_in_pieces) {
    const char *path = zt_path("zf.ini");
    zt_write("zf.ini", "[shard]\nstage = 2\n", 18);
    is_in_pieces = 1;
    ck_assert_msg(parse_file(path) == ZF_OK, "%s", err.message);
    is_in_pieces = 0;
    ck_assert_uint_eq(config.stage, 2);
    ck_assert_uint_eq(given, 18);
}

ZT_TEST(files) {
    const char *path = zt_path("zf.ini");
    ck_assert_int_eq(parse_file(path), ZF_ERR_CONFIG);
    ck_assert(strstr(err.message, path) && strstr(err.message, "errno 2") && err.native_code == 2);
    zt_refused(&err, parse_file(zt_dir()), ZF_ERR_CONFIG, "not a regular file");
    ck_assert_int_eq(parse_file(""), ZF_ERR_CONFIG);
    ck_assert_int_eq(parse_file(NULL), ZF_ERR_CONFIG);
    zt_write("zf.ini", "[shard]\nstage = 2\n", 18);
    ck_assert_int_eq(parse_file(path), ZF_OK);
    ck_assert_uint_eq(config.stage, 2);
    zt_write("zf.ini", "[shard]\nstage = 9\n", 18);
    zt_refused(&err, parse_file(path), ZF_ERR_CONFIG, "zf.ini:2: [shard] stage");
    char *big = calloc(1, ((size_t)1 << 20) + 1);
    ck_assert_ptr_nonnull(big);
    zt_write("zf.ini", big, ((size_t)1 << 20) + 1);
    free(big);
    zt_refused(&err, parse_file(path), ZF_ERR_CONFIG, "more than 1048576 bytes");
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

ZT_TEST(values_are_cut) {
    char buf[8] = "zzzzzzz";
    parse("[zenflow]\ntopk_ratio = 0.12345678901234567\n");
    ck_assert_int_eq(zfi_config_value(&config, (uint32_t)zfi_key_find("zenflow", "topk_ratio"), buf, 4, NULL), ZF_OK);
    ck_assert_str_eq(buf, "0.1");
    ck_assert_int_eq(zfi_config_value(&config, 0, buf, 0, NULL), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zfi_config_value(&config, 99, buf, 8, NULL), ZF_ERR_ARGUMENT);
}

/* ---- every locale, every input ----------------------------------------------------------------------------------- */

/* A locale with a decimal comma, made of the sources in Debian's package locales. */
ZT_TEST(locale) {
    char buf[64];
    ck_assert_msg(zt_shell("localedef -i de_DE -f UTF-8 %s", zt_path("de_DE.UTF-8")) == 0,
                  "is the package locales there?");
    setenv("LOCPATH", zt_dir(), 1);
    ck_assert_ptr_nonnull(setlocale(LC_ALL, "de_DE.UTF-8"));
    snprintf(buf, sizeof buf, "%.1f", 0.5);
    ck_assert_str_eq(buf, "0,5");
    ck_assert_int_eq(parse("[zenflow]\ntopk_ratio = 0.15625\n"), ZF_OK);
    ck_assert(config.topk_ratio == 0.15625);
    ck_assert_int_eq(zfi_config_value(&config, (uint32_t)zfi_key_find("zenflow", "topk_ratio"), buf, sizeof buf, NULL),
                     ZF_OK);
    ck_assert_str_eq(buf, "0.15625");
    refused("[zenflow]\ntopk_ratio = 0,5\n", "is no real");
    setlocale(LC_ALL, "C");
}

ZT_SUITE("config")
