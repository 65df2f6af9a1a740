/* SPDX-License-Identifier: Apache-2.0 */
/* harness/blobs.c - see blobs.h. */
#define _GNU_SOURCE /* nftw */
#include "blobs.h"

#include <errno.h>
#include <ftw.h>

static FILE *open_blob(const blobs_t *blobs, const char *name, const char *mode) {
    char file[4400];
    snprintf(file, sizeof file, "%s/%s", blobs->dir, name);
    return fopen(file, mode);
}

static int32_t begin(void *ctx, const char *name, uint64_t nbytes) {
    blobs_t *blobs = ctx;
    (void)nbytes;
    blobs->open = open_blob(blobs, name, "wb");
    return blobs->open ? 0 : -errno;
}

static int32_t write_blob(void *ctx, const void *data, uint64_t nbytes) {
    const blobs_t *blobs = ctx;
    return fwrite(data, 1, nbytes, blobs->open) == nbytes ? 0 : -EIO;
}

static int32_t end(void *ctx) {
    blobs_t *blobs = ctx;
    return fclose(blobs->open) ? -EIO : 0;
}

static int32_t size(void *ctx, const char *name, uint64_t *out_nbytes) {
    FILE *blob = open_blob(ctx, name, "rb");
    if (!blob)
        return -errno;
    fseek(blob, 0, SEEK_END);
    *out_nbytes = (uint64_t)ftell(blob);
    fclose(blob);
    return 0;
}

static int32_t read_blob(void *ctx, const char *name, uint64_t offset, void *out, uint64_t nbytes) {
    FILE *blob = open_blob(ctx, name, "rb");
    if (!blob)
        return -errno;
    int is_read = fseek(blob, (long)offset, SEEK_SET) == 0 && fread(out, 1, nbytes, blob) == nbytes;
    fclose(blob);
    return is_read ? 0 : -EIO;
}

void blobs_init(blobs_t *blobs, const char *dir) {
    *blobs = (blobs_t){.table = {.struct_size = sizeof blobs->table,
                                 .ctx = blobs,
                                 .begin = begin,
                                 .write = write_blob,
                                 .end = end,
                                 .size = size,
                                 .read = read_blob},
                       .dir = dir};
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    return remove(path);
}

void blobs_remove(const char *path) { (void)nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS); }
