/* SPDX-License-Identifier: Apache-2.0 */
/* exact_late.c - see exact_late.h. */
#include "exact_late.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exact_device.h"

enum { INDEX_NBYTES = 1 << 18, MOST_FILES = 64 };

typedef struct zx_late {
    uint64_t clock;
    uint32_t counts;
    int moves_schedule;
} zx_late_t;

/* ---- the files --------------------------------------------------------------------------------------------------- */

/* Of zlib. */
static uint32_t crc32_of(const void *data, size_t nbytes) {
    const unsigned char *bytes = data;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < nbytes; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

/* The number at a place of a text becomes another one; returns what is behind it. */
static char *put_number(char *at, uint64_t number) {
    char now[24];
    size_t was = strspn(at, "0123456789"), n = (size_t)snprintf(now, sizeof now, "%llu", (unsigned long long)number);
    memmove(at + n, at + was, strlen(at + was) + 1);
    memcpy(at, now, n);
    return at + n;
}

/* 0 stays: nothing has happened yet. */
static char *move_on(char *at, uint64_t by) {
    uint64_t number = strtoull(at, NULL, 10);
    return put_number(at, number ? number + by : 0);
}

static char *behind(char *text, const char *word) {
    char *at = text ? strstr(text, word) : NULL;
    return at ? at + strlen(word) : NULL;
}

static int move_clock(char *text, const zx_late_t *late) {
    char *at = behind(text, "\"step\":");
    if (at && late->moves_schedule)
        put_number(at, strtoull(at, NULL, 10) + late->clock);
    at = behind(at, ",\"submitted\":");
    if (at)
        at = put_number(at, strtoull(at, NULL, 10) + late->clock);
    at = behind(at, ",\"applied\":");
    if (at)
        at = put_number(at, strtoull(at, NULL, 10) + late->clock);
    at = behind(at, ",\"epoch_end\":");
    if (at && late->moves_schedule)
        at = move_on(at, late->clock);
    at = behind(at, "\"last_choice\":[");
    while (at && late->moves_schedule && *at != ']') {
        at = move_on(at, late->clock);
        at += *at == ',';
    }
    return at ? 0 : -1;
}

/* The counts at a place of a file; their new checksum. */
static int move_counts(const char *path, uint64_t offset, uint64_t nbytes, uint32_t by, uint32_t *out_crc) {
    uint32_t *counts = zx_alloc(nbytes);
    int fd = open(path, O_RDWR | O_CLOEXEC), is_done = fd >= 0 && pread(fd, counts, nbytes, (off_t)offset) > 0;
    for (uint64_t i = 0; i < nbytes / sizeof *counts; i++)
        counts[i] += by;
    is_done = is_done && pwrite(fd, counts, nbytes, (off_t)offset) == (ssize_t)nbytes;
    *out_crc = crc32_of(counts, nbytes);
    free(counts);
    return fd >= 0 && close(fd) == 0 && is_done ? 0 : -1;
}

/* Parameters name a file by its number. */
static uint32_t read_files(char *text, char names[MOST_FILES][80]) {
    uint32_t n = 0;
    char *at = behind(text, "\"files\":["), *end = at ? strstr(at, "\"params\":[") : NULL;
    while (n < MOST_FILES && (at = behind(at, "{\"name\":\"")) && at < end && sscanf(at, "%79[^\"]", names[n]) == 1)
        n++;
    return n;
}

static int move_params(const char *dir, char *text, const zx_late_t *late) {
    char names[MOST_FILES][80], path[4300];
    uint32_t n = read_files(text, names), crc;
    for (char *at = behind(text, "\"params\":["); (at = behind(at, ",\"file\":"));) {
        unsigned long file = strtoul(at, NULL, 10);
        at = behind(at, "\"n\":[");
        if (!at || file >= n)
            return -1;
        uint64_t offset = strtoull(at, &at, 10), nbytes = strtoull(at + 1, &at, 10);
        snprintf(path, sizeof path, "%s/%s", dir, names[file]);
        if (move_counts(path, offset, nbytes, late->counts, &crc))
            return -1;
        at = put_number(at + 1, crc);
    }
    return 0;
}

/* The first line has the checksum of the second. */
static int write_index(const char *path, char *text) {
    char digits[9], *second = strchr(text, '\n'), *crc = behind(text, "\"crc32\":\"");
    FILE *file = second && crc ? fopen(path, "we") : NULL;
    if (!file)
        return -1;
    snprintf(digits, sizeof digits, "%08x", crc32_of(second + 1, strcspn(second + 1, "\n")));
    memcpy(crc, digits, 8);
    int is_written = fputs(text, file) >= 0;
    return fclose(file) == 0 && is_written ? 0 : -1;
}

static int move_files(const char *dir, const zx_late_t *late) {
    char path[4300], *text = zx_alloc(INDEX_NBYTES);
    snprintf(path, sizeof path, "%s/%s", dir, ZF_STATE_INDEX);
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, INDEX_NBYTES / 2, file) : 0;
    if (file)
        fclose(file);
    int st = n == 0 || move_clock(text, late) || move_params(dir, text, late) || write_index(path, text) ? -1 : 0;
    free(text);
    return st;
}

/* ---- the draw ---------------------------------------------------------------------------------------------------- */

/* Right before a power of two, or of ten, that some count may have as its end; or anywhere. */
static uint64_t draw_number(zx_rng_t *r) {
    static const uint64_t ends[] = {255, 4095, 9999, 32767, 65535, 999999, (1 << 24) - 1, INT32_MAX};
    return zx_chance(r, 50) ? ends[zx_below(r, 8)] - zx_below(r, 12) : (uint64_t)zx_log_uniform(r, 1e3, 3.2e9);
}

void zx_late_move(zx_run_t *run, const zx_store_t *store, int has_clock, int is_there) {
    zx_case_t *c = run->c;
    zx_rng_t r = zx_rng(c->seed, 94, c->index * 16 + run->n_saves);
    zx_where_t where = {.law = c->law, .what = "a late checkpoint", .step = run->host.step, .element = UINT64_MAX};
    if (run->late || c->ranks || zx_device_is_gpu() || !zx_chance(&r, 40))
        return;
    uint64_t a = draw_number(&r), b = draw_number(&r);
    zx_late_t late = {.clock = a > b ? a : b, .counts = (uint32_t)(a > b ? b : a)}; /* no more updates than steps */
    run->late = late.clock;
    c->late_counts = late.counts;
    late.moves_schedule = zo_late(run->oracle, has_clock ? late.clock : 0, late.counts);
    zx_count_drawn(run->result, ZX_LATE_STEPS, 1);
    if (is_there && move_files(store->path, &late))
        zx_fails(run->result, &where, "its files are not as abi/CHECKPOINT.md says");
}
