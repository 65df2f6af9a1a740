/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_examples.c - the host's file of examples: what is read of it, and files that do not fit together, each
 * refused with its reason. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>

#include "host/examples.h"
#include "suite.h"
#include "tensors.h"

#define FILE_NAME "made.safetensors"
#define METADATA(pieces, labels)                                                                                       \
    "\"__metadata__\":{\"task\":\"cola\",\"skipped\":\"2\",\"pieces\":"                                                \
    "\"" pieces "\",\"positions\":\"4\",\"labels\":\"" labels "\"}"

/* Two rows of 1 and 2 pieces in train and in dev. */
typedef struct rows {
    double train_targets[2], dev_targets[2];
    int32_t train_ids[3], train_types[3], train_lengths[2], dev_ids[3], dev_types[3], dev_lengths[2];
} rows_t;

static const rows_t good = {.train_targets = {1, 0},
                            .dev_targets = {0, 1},
                            .train_ids = {2, 4, 3},
                            .train_types = {0, 0, 1},
                            .train_lengths = {1, 2},
                            .dev_ids = {0, 1, 4},
                            .dev_types = {0, 0, 0},
                            .dev_lengths = {2, 1}};

static const struct {
    const char *name, *dtype;
    int n, first, end;
} tensors[] = {{"train.targets", "F64", 2, 0, 16}, {"dev.targets", "F64", 2, 16, 32},   {"train.ids", "I32", 3, 32, 44},
               {"train.types", "I32", 3, 44, 56},  {"train.lengths", "I32", 2, 56, 64}, {"dev.ids", "I32", 3, 64, 76},
               {"dev.types", "I32", 3, 76, 88},    {"dev.lengths", "I32", 2, 88, 96}};

static void write_rows(const rows_t *rows, const char *metadata, const char *renamed) {
    char header[2048] = "{";
    size_t n = 1;

    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        n += (size_t)snprintf(header + n, sizeof header - n,
                              "\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[%d,%d]},", tensors[i].name,
                              renamed != NULL && strcmp(renamed, tensors[i].name) == 0 ? "x" : "", tensors[i].dtype,
                              tensors[i].n, tensors[i].first, tensors[i].end);
    n += (size_t)snprintf(header + n, sizeof header - n, "%s}", metadata);
    zt_write_tensors(FILE_NAME, header, n, rows, sizeof *rows);
}

static void refused(const rows_t *rows, const char *metadata, const char *renamed, const char *reason) {
    host_examples_t examples;
    glue_error_t err = {""};
    write_rows(rows, metadata, renamed);
    ck_assert_msg(host_examples_open(zt_path(FILE_NAME), &examples, &err) == -1, "opened, although \"%s\"", reason);
    ck_assert_msg(strstr(err.text, reason) != NULL && strstr(err.text, FILE_NAME) != NULL, "\"%s\" lacks \"%s\"",
                  err.text, reason);
}

ZT_TEST(test_read) {
    host_examples_t e;
    glue_error_t err = {""};
    write_rows(&good, METADATA("5", "2"), NULL);
    ck_assert_msg(host_examples_open(zt_path(FILE_NAME), &e, &err) == 0, "%s", err.text);
    ck_assert_str_eq(e.task, "cola");
    ck_assert_uint_eq(e.n_skipped, 2);
    ck_assert_uint_eq(e.shape.n_pieces, 5);
    ck_assert_uint_eq(e.shape.max_positions, 4);
    ck_assert_uint_eq(e.shape.n_labels, 2);
    ck_assert_int_eq(e.shape.is_regression, 0);
    ck_assert_uint_eq(e.train.n_rows, 2);
    ck_assert_uint_eq(e.train.starts[1], 1);
    ck_assert_uint_eq(e.train.starts[2], 3);
    ck_assert_int_eq(e.train.types[2], 1);
    ck_assert_double_eq(e.train.targets[0], 1.0);
    ck_assert_uint_eq(e.dev.starts[1], 2);
    ck_assert_uint_eq(e.second_dev.n_rows, 0);
    host_examples_close(&e);
}

ZT_TEST(test_refused) {
    static const char fits[] = METADATA("5", "2");
    rows_t rows = good;
    refused(&good, METADATA("x", "2"), NULL, "\"pieces\" is missing");
    refused(&good, "\"__metadata__\":{}", NULL, "\"pieces\" is missing");
    refused(&good, fits, "dev.types", "dev.types is missing");
    refused(&good, METADATA("4", "2"), NULL, "train: row 1 of 2 does not fit");
    rows.train_ids[0] = -1;
    refused(&rows, fits, NULL, "train: row 0 of 2");
    rows = good;
    rows.dev_types[2] = 2;
    refused(&rows, fits, NULL, "dev: row 1 of 2");
    rows = good;
    rows.train_targets[1] = 2;
    refused(&rows, fits, NULL, "train: row 1 of 2");
    rows = good;
    rows.train_lengths[1] = 3;
    refused(&rows, fits, NULL, "train: row 0 of 2");
    rows.train_lengths[0] = 0;
    refused(&rows, fits, NULL, "train: row 0 of 2");
}

ZT_SUITE("examples")
