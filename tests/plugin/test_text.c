/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_text.c - names that are too long for a message are cut between two characters. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "instance/engine.h"
#include "rig.h"
#include "suite.h"

static void expect(const char *given, const char *want) {
    char text[64];
    snprintf(text, sizeof text, "%s", given);
    ck_assert_uint_eq(zfi_utf8_mend(text), strlen(want));
    ck_assert_str_eq(text, want);
}

ZT_TEST(what_is_no_character_is_taken_out) {
    expect("", "");
    expect("plain", "plain");
    expect("h\xc3\xb6he \xe2\x82\xac \xf0\x9f\x98\x80", "h\xc3\xb6he \xe2\x82\xac \xf0\x9f\x98\x80");
    expect("cut \xc3", "cut ");
    expect("\"cut \xe2\x82\" here", "\"cut \" here");
    expect("\"cut \xf0\x9f\x98\" here \xf0", "\"cut \" here ");
    expect("\x82\xac begins in one", " begins in one");
    expect("\xc0\xaf\xed\xa0\x80\xff", "");
}

/* A record is cut by its caller's size, a message by its own, a name by what the message gives to it. */
ZT_TEST(messages_are_text) {
    char name[600];
    for (size_t first = 0; first < 4; first++) { /* one of them ends where the record does */
        zf_error_t err = {.struct_size = sizeof err};
        memset(name, 'x', first);
        for (size_t i = 0; i < 120; i++)
            memcpy(name + first + 4 * i, "\xf0\x9f\x98\x80", 5);
        zfi_error(&err, ZF_ERR_PARAM, "test", "\"%.99s\" and %s", name, name);
        ck_assert(zfi_utf8_is_text(err.message, strlen(err.message)));
        ck_assert_uint_ge(strlen(err.message), sizeof err.message - 1 - 3 - 3);
        err = (zf_error_t){.struct_size = offsetof(zf_error_t, message) + 50};
        zfi_error(&err, ZF_ERR_PARAM, "test", "%s", name);
        ck_assert(zfi_utf8_is_text(err.message, strlen(err.message)));
        ck_assert_uint_ge(strlen(err.message), 46);
    }
}

/* ---- log lines --------------------------------------------------------------------------------------------------- */

static int n_logged;

static void check_line(void *ctx, int32_t level, const char *component, const char *file, int32_t line,
                       const char *text, uint64_t nbytes) {
    (void)ctx, (void)level, (void)component, (void)file, (void)line;
    ck_assert_uint_eq(nbytes, strlen(text));
    ck_assert(zfi_utf8_is_text(text, nbytes));
    n_logged++;
}

ZT_TEST(log_lines_are_text) {
    static const zf_host_t host = {.struct_size = sizeof host, .log = check_line};
    zfi_engine_t engine = {.host = &host};
    char name[600] = "";
    for (size_t i = 0; i < 150; i++)
        memcpy(name + 3 * i, "\xe2\x82\xac", 4);
    zfi_log(&engine, ZF_LOG_INFO, "test", "\"%.100s\" was cut", name);
    zfi_log(&engine, ZF_LOG_INFO, "test", "%s%s", name, name);
    ck_assert_int_eq(n_logged, 2);
}

/* ---- an instance ------------------------------------------------------------------------------------------------- */

/* bind_params gives 100 bytes to the names of two parameters. */
ZT_TEST(names_of_parameters_are_cut_between_characters) {
    static const zt_shape_t shapes[] = {{.rows = 8, .cols = 4}};
    static char name[180];
    zt_rig_t rig, other;
    for (size_t i = 0; i < 50; i++)
        memcpy(name + 3 * i, "\xe2\x82\xac", 4);
    zt_rig_start(&rig, shapes, 1);
    rig.decls[0].name = name;
    zt_rig_open(&rig, "[host]\nthreads = 1\n", 0);
    other = rig;
    zt_rig_create(&other, "[host]\nthreads = 1\n", 0);
    zt_refused(&other.err, zt_rig_try_bind(&other), ZF_ERR_PARAM, "which another live instance trains as");
    ck_assert(zfi_utf8_is_text(other.err.message, strlen(other.err.message)));
    other.zf->destroy(other.inst, NULL);
    zt_rig_end(&rig);
}

ZT_SUITE("text")
