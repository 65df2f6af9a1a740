/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_folder.c - which checkpoints a folder holds, and how one comes and goes whole (checkpoint.h).
 *
 * A name counts only as "checkpoint-" and digits without a leading zero; ".part" after it marks what is being written
 * or removed. Nothing else in the folder is touched. */
#define _XOPEN_SOURCE 700
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "checkpoint-"
#define PART ".part"

typedef struct listing {
    size_t *steps; /* [n] ascending: finished checkpoints */
    size_t n;
    size_t *parts; /* [n_parts] */
    size_t n_parts;
} listing_t;

static void listing_free(listing_t *l) {
    free(l->steps);
    free(l->parts);
    *l = (listing_t){.n = 0};
}

/* 1: a checkpoint, 2: a part of one, 0: something else. */
static int parse_name(const char *name, size_t *out_step) {
    const char *digits = name + strlen(PREFIX);
    unsigned long long step;
    char *end;

    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || digits[0] < '1' || digits[0] > '9')
        return 0;
    errno = 0;
    step = strtoull(digits, &end, 10);
    *out_step = (size_t)step;
    if (errno != 0)
        return 0;
    return *end == '\0' ? 1 : strcmp(end, PART) == 0 ? 2 : 0;
}

static int add_step(size_t **list, size_t *n, size_t step) {
    size_t *longer = realloc(*list, (*n + 1) * sizeof *longer);

    if (longer == NULL)
        return -1;
    longer[(*n)++] = step;
    *list = longer;
    return 0;
}

static int compare_steps(const void *a, const void *b) {
    const size_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static int list_folder(const char *dir, listing_t *out, glue_error_t *err) {
    DIR *stream = opendir(dir);
    const struct dirent *entry;
    size_t step;
    int st = 0;

    *out = (listing_t){.n = 0};
    if (stream == NULL)
        return glue_fail(err, "%s: cannot open: %s; a folder of checkpoints is needed", dir, strerror(errno));
    while (st == 0 && (entry = readdir(stream)) != NULL) {
        int kind = parse_name(entry->d_name, &step);

        if (kind == 1)
            st = add_step(&out->steps, &out->n, step);
        else if (kind == 2)
            st = add_step(&out->parts, &out->n_parts, step);
    }
    (void)closedir(stream);
    if (st != 0) {
        listing_free(out);
        return glue_fail(err, "%s: out of memory for the list of its checkpoints", dir);
    }
    if (out->n > 0)
        qsort(out->steps, out->n, sizeof *out->steps, compare_steps);
    return 0;
}

static int path_of(const char *dir, size_t step, const char *ending, char out[HOST_CHECKPOINT_PATH_NBYTES],
                   glue_error_t *err) {
    int n = snprintf(out, HOST_CHECKPOINT_PATH_NBYTES, "%s/" PREFIX "%zu%s", dir, step, ending);

    return n > 0 && n < HOST_CHECKPOINT_PATH_NBYTES ? 0 : glue_fail(err, "%.200s: the path is too long", dir);
}

static int sync_folder(const char *path, glue_error_t *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), st;

    if (fd < 0)
        return glue_fail(err, "%s: cannot open: %s", path, strerror(errno));
    st = fsync(fd) == 0 ? 0 : glue_fail(err, "%s: cannot sync: %s", path, strerror(errno));
    (void)close(fd);
    return st;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    return remove(path);
}

int host_checkpoint_folder_remove(const char *part, glue_error_t *err) {
    enum { MAX_OPEN = 8 };

    if (nftw(part, remove_entry, MAX_OPEN, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return glue_fail(err, "%s: cannot remove: %s", part, strerror(errno));
    return 0;
}

int host_checkpoint_find(const char *dir, char out[HOST_CHECKPOINT_PATH_NBYTES], glue_error_t *err) {
    listing_t l;
    int st, n = snprintf(out, HOST_CHECKPOINT_PATH_NBYTES, "%s/" HOST_CHECKPOINT_INDEX, dir);

    if (n < 0 || n >= HOST_CHECKPOINT_PATH_NBYTES)
        return glue_fail(err, "%.200s: the path is too long", dir);
    if (access(out, F_OK) == 0) {
        (void)snprintf(out, HOST_CHECKPOINT_PATH_NBYTES, "%s", dir);
        return 0;
    }
    if (list_folder(dir, &l, err) != 0)
        return -1;
    st = l.n > 0 ? path_of(dir, l.steps[l.n - 1], "", out, err)
                 : glue_fail(err,
                             "%s: holds no checkpoint; a folder that --save wrote, or a checkpoint-STEP in it, is "
                             "needed",
                             dir);
    listing_free(&l);
    return st;
}

static int is_same_folder(const char *a, const char *b) {
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int check_newest(const char *dir, const listing_t *l, const char *resumed, glue_error_t *err) {
    char newest[HOST_CHECKPOINT_PATH_NBYTES];

    if (l->n == 0)
        return 0;
    if (path_of(dir, l->steps[l->n - 1], "", newest, err) != 0)
        return -1;
    if (resumed != NULL && is_same_folder(newest, resumed))
        return 0;
    return glue_fail(err, "%s: is there and is not where this run starts; --resume it, or --save elsewhere", newest);
}

static int remove_parts(const char *dir, const listing_t *l, glue_error_t *err) {
    char part[HOST_CHECKPOINT_PATH_NBYTES];

    for (size_t i = 0; i < l->n_parts; i++)
        if (path_of(dir, l->parts[i], PART, part, err) != 0 || host_checkpoint_folder_remove(part, err) != 0)
            return -1;
    return 0;
}

int host_checkpoint_folder_prepare(const char *dir, const char *resumed, glue_error_t *err) {
    listing_t l;
    int st;

    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return glue_fail(err, "%s: cannot make the folder: %s", dir, strerror(errno));
    if (list_folder(dir, &l, err) != 0)
        return -1;
    st = check_newest(dir, &l, resumed, err);
    if (st == 0)
        st = remove_parts(dir, &l, err);
    listing_free(&l);
    return st;
}

int host_checkpoint_folder_begin(const char *dir, size_t step, char out_part[HOST_CHECKPOINT_PATH_NBYTES],
                                 glue_error_t *err) {
    if (path_of(dir, step, PART, out_part, err) != 0)
        return -1;
    return mkdir(out_part, 0777) == 0 ? 0 : glue_fail(err, "%s: cannot make the folder: %s", out_part, strerror(errno));
}

int host_checkpoint_folder_commit(const char *dir, size_t step, glue_error_t *err) {
    char part[HOST_CHECKPOINT_PATH_NBYTES], whole[HOST_CHECKPOINT_PATH_NBYTES];

    if (path_of(dir, step, PART, part, err) != 0 || path_of(dir, step, "", whole, err) != 0 ||
        sync_folder(part, err) != 0)
        return -1;
    if (rename(part, whole) != 0)
        return glue_fail(err, "%s: cannot rename to %s: %s", part, whole, strerror(errno));
    return sync_folder(dir, err);
}

static int drop(const char *dir, size_t step, glue_error_t *err) {
    char part[HOST_CHECKPOINT_PATH_NBYTES], whole[HOST_CHECKPOINT_PATH_NBYTES];

    if (path_of(dir, step, PART, part, err) != 0 || path_of(dir, step, "", whole, err) != 0)
        return -1;
    if (rename(whole, part) != 0)
        return glue_fail(err, "%s: cannot rename to %s: %s", whole, part, strerror(errno));
    return host_checkpoint_folder_remove(part, err);
}

int host_checkpoint_folder_drop(const char *dir, size_t keep, glue_error_t *err) {
    listing_t l;
    int st = 0;

    if (list_folder(dir, &l, err) != 0)
        return -1;
    for (size_t i = 0; st == 0 && i + keep < l.n; i++)
        st = drop(dir, l.steps[i], err);
    listing_free(&l);
    return st;
}
