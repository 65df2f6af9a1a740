/* SPDX-License-Identifier: Apache-2.0 */
/* test_tokenizer.c - WordPiece on a small vocabulary written here; forward_torch.py compares cleaning, folding and
 * splitting with Hugging Face's tokenizer. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/tokenizer.h"
#include "host/unicode.h"
#include "suite.h"

static char path[] = "/tmp/zf_test_vocab_XXXXXX";
static host_tokenizer_t *tokenizer;

static void write_vocab(const char *text) {
    FILE *file = fopen(path, "wb");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void) {
    glue_error_t err = {""};
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    write_vocab(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\n##a\ncafe\nnaive\n,\n'\n!\n-\n$\nthe\nthem\n##e\n"
        "\xe4\xb8\xad\n\xe5\x9b\xbd\ni\nstraße\n\xe2\x80\x93\n##s\na\n");
    ck_assert_msg(host_tokenizer_load(path, &tokenizer, &err) == 0, "%s", err.text);
}

static void teardown(void) {
    host_tokenizer_free(tokenizer);
    (void)unlink(path);
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
}

/* text becomes these pieces, space-separated. */
static void gives(const char *text, const char *expected) {
    int32_t ids[64];
    size_t n = host_tokenize(tokenizer, text, ids, 64);
    char found[512] = "";

    for (size_t i = 0; i < n; i++) {
        (void)strcat(found, i > 0 ? " " : "");
        (void)strcat(found, host_tokenizer_piece(tokenizer, ids[i]));
    }
    ck_assert_msg(strcmp(found, expected) == 0, "\"%s\" gives \"%s\", expected \"%s\"", text, found, expected);
}

START_TEST(test_pieces) {
    gives("unaffable", "un ##aff ##able");
    gives("them", "them");
    gives("theme", "them ##e"); /* longest first */
    gives("thes", "the ##s");
    gives("thexyz", "[UNK]"); /* a rest without a piece makes the whole word unknown */
    gives("", "");
    gives("  \t \n ", "");
}
END_TEST

START_TEST(test_encode) {
    int32_t ids[16], types[16];

    ck_assert_uint_eq(host_encode(tokenizer, "the", NULL, 16, ids, types), 3);
    ck_assert_int_eq(ids[0], 2);
    ck_assert_int_eq(ids[2], 3);
    ck_assert_int_eq(types[2], 0);
    ck_assert_uint_eq(host_encode(tokenizer, "the", "i i", 16, ids, types), 6);
    ck_assert_int_eq(ids[2], 3);
    ck_assert_int_eq(types[2], 0);
    ck_assert_int_eq(types[3], 1);
    ck_assert_int_eq(ids[5], 3);
    ck_assert_int_eq(types[5], 1);
    /* cut to 7: three specials, the longer text shortened first */
    ck_assert_uint_eq(host_encode(tokenizer, "the the the the the", "i", 7, ids, types), 7);
    ck_assert_int_eq(ids[4], 3);
    ck_assert_int_eq(ids[5], host_tokenizer_id(tokenizer, "i"));
    ck_assert_uint_eq(host_encode(tokenizer, "the the the the the", NULL, 5, ids, types), 5);
    ck_assert_int_eq(ids[4], 3);
}
END_TEST

static void load_fails(const char *vocab_path, const char *word) {
    glue_error_t err = {""};
    host_tokenizer_t *t = NULL;

    ck_assert_int_eq(host_tokenizer_load(vocab_path, &t, &err), -1);
    ck_assert_ptr_null(t);
    ck_assert_msg(strstr(err.text, word) != NULL, "\"%s\" lacks \"%s\"", err.text, word);
}

START_TEST(test_bad_vocabularies) {
    load_fails("/nonexistent/vocab.txt", "cannot open");
    load_fails("/tmp", "/tmp");
    write_vocab("");
    load_fails(path, "empty");
    write_vocab("the\nthem\n");
    load_fails(path, "[PAD]");
    write_vocab("[PAD]\n\n[UNK]\n");
    load_fails(path, ":2: found an empty line");
}
END_TEST

START_TEST(test_utf8) {
    static const uint32_t samples[] = {0x24, 0xa2, 0x20ac, 0x10348};

    for (size_t i = 0; i < 4; i++) {
        char bytes[5] = "";
        uint32_t c;
        int n = host_utf8_put(samples[i], bytes);

        ck_assert_int_eq(n, (int)i + 1);
        ck_assert_ptr_eq(host_utf8_next(bytes, &c), bytes + n);
        ck_assert_uint_eq(c, samples[i]);
    }
    {
        uint32_t c;
        const char overlong[] = "\xc0\xaf";

        ck_assert_ptr_eq(host_utf8_next(overlong, &c), overlong + 1);
        ck_assert_uint_eq(c, 0xfffd);
    }
}
END_TEST

ZT_MAIN_WITH("tokenizer", setup, teardown, test_pieces, test_encode, test_bad_vocabularies, test_utf8)
