/* SPDX-License-Identifier: Apache-2.0 */
/* test_option_table.c - command lines from a table: every kind of value, what is refused and how it is said, areas. */
#define _POSIX_C_SOURCE 200809L
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "glue/task.h"
#include "harness/option_table.h"
#include "suite.h"

typedef struct filled {
    const char *text, *ratio, *word, *millions, *child, *operand;
    int is_on, choice;
    size_t n;
    uint64_t seed;
    uint32_t law;
    double real, positive;
    const glue_task_t *task;
    zc_overrides_t sets;
} filled_t;

#define AT(member) offsetof(filled_t, member)

static const zc_option_t table[] = {
    ZC_OPTION("text", ZC_TEXT, AT(text), "FILE", "a file"),
    ZC_OPTION("on", ZC_SWITCH, AT(is_on), NULL, "a switch"),
    ZC_OPTION("n", ZC_COUNT, AT(n), "N", "a count"),
    ZC_OPTION("seed", ZC_U64, AT(seed), "N", "a seed", .areas = "one two"),
    ZC_OPTION("real", ZC_REAL, AT(real), "X", "a number"),
    ZC_OPTION("positive", ZC_POSITIVE, AT(positive), "X", "a number"),
    ZC_OPTION("ratio", ZC_POSITIVE_TEXT, AT(ratio), "X", "a number"),
    ZC_OPTION("choice", ZC_CHOICE, AT(choice), "TYPE", "a type", .choices = "fp32 bf16 fp16"),
    ZC_OPTION("word", ZC_CHOICE_TEXT, AT(word), "TYPE", "a type", .choices = "fp32 bf16"),
    ZC_OPTION("task", ZC_PARSED, AT(task), "NAME", "a task", .parse = glue_task_parse),
    ZC_OPTION("set", ZC_OVERRIDE, AT(sets), "S.KEY=VALUE", "a key"),
    ZC_OPTION("big", ZC_U64, AT(seed), "N", "a seed"),
    ZC_OPTION("law", ZC_U32, AT(law), "N", "a law", .least = 1, .most = 6),
    ZC_OPTION("millions", ZC_POSITIVE_TEXT, AT(millions), "X", "a size", .least = 1, .most = 1000),
    ZC_OPTION("child", ZC_TEXT, AT(child), "LIST", NULL),
    ZC_OPTION("INPUT", ZC_OPERAND, AT(operand), NULL, "a file, or -"),
};

enum { N = sizeof table / sizeof table[0] };

static int parse(const char *area, filled_t *out, glue_error_t *err, const char *line) {
    static char text[4096];
    char *argv[2 * ZC_MAX_OVERRIDES + 4] = {"program"};
    int argc = 1;

    (void)strcpy(text, line);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    return zc_options_parse(table, N, area, argc, argv, out, err);
}

START_TEST(every_kind) {
    filled_t f = {.n = 7, .choice = 2};
    glue_error_t err = {""};

    ck_assert_int_eq(parse(NULL, &f, &err, ""), 0);
    ck_assert(f.n == 7 && f.choice == 2 && f.text == NULL);
    ck_assert_int_eq(parse("two", &f, &err,
                           "--text --x --on --n 1000000000 --seed 9223372036854775807 --real 0 --positive 2.5e-3 "
                           "--ratio 1e-4 --choice bf16 --word fp32 --task mrpc --set a.b=c --set d.e=f=g --law 6 "
                           "--millions 1.5 --child x -"),
                     0);
    ck_assert_str_eq(f.text, "--x");
    ck_assert_str_eq(f.ratio, "1e-4");
    ck_assert_str_eq(f.word, "fp32");
    ck_assert(f.is_on == 1 && f.choice == 1 && f.n == 1000000000 && f.seed == INT64_MAX);
    ck_assert(f.real == 0.0 && f.positive == 2.5e-3);
    ck_assert_str_eq(f.task->name, "mrpc");
    ck_assert_uint_eq(f.sets.n, 2);
    ck_assert_str_eq(f.sets.list[1], "d.e=f=g");
    ck_assert_uint_eq(f.law, 6);
    ck_assert_str_eq(f.millions, "1.5");
    ck_assert_str_eq(f.child, "x");
    ck_assert_str_eq(f.operand, "-");
}
END_TEST

START_TEST(what_is_refused) {
    static const char *const lines[][2] = {
        {"--nothing 1", "found \"--nothing\"; an option is needed, --help lists them"},
        {"--seed 1", "found \"--seed\"; an option is needed, --help lists them"}, /* of other areas */
        {"--text", "--text: nothing follows; FILE is needed"},
        {"--n 0", "--n: found \"0\"; a whole number from 1 is needed"},
        {"--n 1000000001", "--n: found \"1000000001\"; a whole number from 1 is needed"},
        {"--n -1", "--n: found \"-1\"; a whole number from 1 is needed"},
        {"--n 3x", "--n: found \"3x\"; a whole number from 1 is needed"},
        {"--real -0.5", "--real: found \"-0.5\"; a number, 0 or more is needed"},
        {"--real nan", "--real: found \"nan\"; a number, 0 or more is needed"},
        {"--real 1e400", "--real: found \"1e400\"; a number, 0 or more is needed"},
        {"--positive 0", "--positive: found \"0\"; a number above 0, below 10^6 is needed"},
        {"--ratio 1e6", "--ratio: found \"1e6\"; a number above 0, below 10^6 is needed"},
        {"--ratio 1e", "--ratio: found \"1e\"; a number above 0, below 10^6 is needed"},
        {"--choice fp", "--choice: found \"fp\"; fp32 or bf16 or fp16 is needed"},
        {"--word fp16", "--word: found \"fp16\"; fp32 or bf16 is needed"},
        {"--task sst3", "--task: found \"sst3\"; the name of a GLUE task, such as sst2, is needed"},
        {"--set a.b", "--set: found \"a.b\"; section.key=value, at most 64 times is needed"},
        {"--law 0", "--law: found \"0\"; a whole number from 1 to 6 is needed"},
        {"--law 7", "--law: found \"7\"; a whole number from 1 to 6 is needed"},
        {"--law 4294967297", "--law: found \"4294967297\"; a whole number from 1 to 6 is needed"},
        {"--law 18446744073709551617", "--law: found \"18446744073709551617\"; a whole number from 1 to 6 is needed"},
        {"--big 9223372036854775808", "--big: found \"9223372036854775808\"; a whole number below 2^63 is needed"},
        {"--big -1", "--big: found \"-1\"; a whole number below 2^63 is needed"},
        {"--millions 0.5", "--millions: found \"0.5\"; a number from 1 to 1000 is needed"},
        {"--millions 1001", "--millions: found \"1001\"; a number from 1 to 1000 is needed"},
        {"--INPUT 3", "found \"--INPUT\"; an option is needed, --help lists them"},
        {"--n 3 --n 3", "--n: given twice; once is needed"},
        {"--on --on", "--on: given twice; once is needed"},
        {"--text --n --n 3 --n 4", "--n: given twice; once is needed"}, /* the first "--n" is a value */
        {"a --n 3 b", "INPUT: given twice; once is needed"},
    };
    static const zc_option_t no_operand = ZC_OPTION("n", ZC_COUNT, AT(n), "N", "a count");
    char many[2048] = "", *word[] = {"program", "text"};
    filled_t f = {.sets = {.n = 0}};
    glue_error_t err = {""};

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        ck_assert_int_eq(parse("three", &f, &err, lines[i][0]), -1);
        ck_assert_str_eq(err.text, lines[i][1]);
    }
    ck_assert_int_eq(zc_options_parse(&no_operand, 1, NULL, 2, word, &f, &err), -1);
    ck_assert_str_eq(err.text, "found \"text\"; an option is needed, --help lists them");
    for (int i = 0; i < ZC_MAX_OVERRIDES; i++)
        (void)strcat(many, "--set a.b=c ");
    ck_assert_int_eq(parse(NULL, &f, &err, many), 0);
    ck_assert_int_eq(parse(NULL, &f, &err, "--set a.b=c"), -1);
    ck_assert_uint_eq(f.sets.n, ZC_MAX_OVERRIDES);
}
END_TEST

START_TEST(help_lists_the_area) {
    char *text = NULL;
    size_t nbytes = 0;
    FILE *file = open_memstream(&text, &nbytes);

    ck_assert_ptr_nonnull(file);
    zc_options_print(file, table, N, "on");
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_ptr_nonnull(strstr(text, "  --text          FILE         a file\n"));
    ck_assert_ptr_null(strstr(text, "--seed"));
    ck_assert_ptr_null(strstr(text, "--child"));
    ck_assert_ptr_nonnull(strstr(text, "  INPUT                        a file, or -\n"));
    free(text);
}
END_TEST

ZT_MAIN("option_table", every_kind, what_is_refused, help_lists_the_area)
