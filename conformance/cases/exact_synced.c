/* SPDX-License-Identifier: Apache-2.0 */
/* exact_synced.c - see exact_synced.h. */
#define _GNU_SOURCE /* syncfs */
#include "exact_synced.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_NOTED = 4096 };

static _Atomic int is_noting, n_noted, has_synced_all, has_synced_directory;
static ino_t noted[MOST_NOTED];

static void note(int fd) {
    struct stat info;
    if (!atomic_load(&is_noting) || fstat(fd, &info))
        return;
    if (S_ISDIR(info.st_mode))
        atomic_store(&has_synced_directory, 1);
    int at = atomic_fetch_add(&n_noted, 1);
    if (at < MOST_NOTED)
        noted[at] = info.st_ino;
}

/* ---- in the place of libc's -------------------------------------------------------------------------------------- */

int fsync(int fd) {
    note(fd);
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    note(fd);
    return (int)syscall(SYS_fdatasync, fd);
}

int syncfs(int fd) {
    atomic_store(&has_synced_all, 1);
    return (int)syscall(SYS_syncfs, fd);
}

void sync(void) {
    atomic_store(&has_synced_all, 1);
    syscall(SYS_sync);
}

/* ---- what a save has done ---------------------------------------------------------------------------------------- */

void zx_synced_begin(void) {
    atomic_store(&n_noted, 0);
    atomic_store(&has_synced_all, 0);
    atomic_store(&has_synced_directory, 0);
    atomic_store(&is_noting, 1);
}

static int is_noted(ino_t number) {
    int n = atomic_load(&n_noted);
    for (int i = 0; i < n && i < MOST_NOTED; i++)
        if (noted[i] == number)
            return 1;
    return n > MOST_NOTED;
}

const char *zx_synced_missing(const char *dir_path) {
    static char name[256];
    const struct dirent *entry;
    struct stat info;
    const char *out = atomic_load(&has_synced_directory) ? NULL : "the directory";
    DIR *dir = opendir(dir_path);
    atomic_store(&is_noting, 0);
    if (atomic_load(&has_synced_all))
        out = NULL;
    while (dir && !atomic_load(&has_synced_all) && (entry = readdir(dir)))
        if (fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) &&
            !is_noted(info.st_ino)) {
            snprintf(name, sizeof name, "%s", entry->d_name);
            out = name;
        }
    if (dir)
        closedir(dir);
    return out;
}
