/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/fuzz.h - what the fuzzers share. A fuzzer is one file fuzz_<name>.c with LLVMFuzzerTestOneInput; libFuzzer
 * gives it inputs, or replay.c those of corpus/<name>. An input must never crash, hang, leak or break what FUZZ_CHECK
 * says. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Ends the program, as a defect found. */
#define FUZZ_CHECK(is_right, ...)                                                                                      \
    do {                                                                                                               \
        if (!(is_right)) {                                                                                             \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #is_right);                                             \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* An input that is eaten byte by byte; past its end everything is 0. */
typedef struct fuzz_bytes {
    const uint8_t *at;
    size_t left;
} fuzz_bytes_t;

static inline uint8_t fuzz_byte(fuzz_bytes_t *in) {
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

/* One of 0 .. n-1; n from 1 to 256. */
static inline uint32_t fuzz_below(fuzz_bytes_t *in, uint32_t n) { return fuzz_byte(in) % n; }

/* True for one byte in n. */
static inline int fuzz_seldom(fuzz_bytes_t *in, uint32_t n) { return fuzz_below(in, n) == n - 1; }

/* A copy of exactly nbytes, so that a read past the end is seen. */
void *fuzz_copy(const void *data, size_t nbytes);

/* A file in memory with these bytes, by a path that can be opened again. Until fuzz_file_end. */
typedef struct fuzz_file {
    int fd;
    char path[32];
} fuzz_file_t;
void fuzz_file_start(fuzz_file_t *file, const void *data, size_t nbytes);
void fuzz_file_end(fuzz_file_t *file);
