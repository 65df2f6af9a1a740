/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_save.c - saves whose system calls come in a wrong order (wrong.h): the true plugin writes the checkpoint beside
 * the path and syncs nothing; what follows is done here, one letter after the other. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wrong.h"
#include "zf/ext/state.h"

/* s: sync files and directory of the new one.  f: its files alone.  w: write one of its files again.  e: exchange it
 * with the former.  r: rename it to the path, where nothing is.  p: sync the directory above.  d: remove what lies
 * beside the path.  u: remove what lies at it.  c: copy the new one's files over the former's. */
static const struct {
    int habit;
    const char *acts;
} orders[] = {{WRONG_save_written_after_sync, "swepd"}, {WRONG_save_parent_unsynced, "sed"},
              {WRONG_save_unlinked_first, "surp"},      {WRONG_save_renamed_first, "espd"},
              {WRONG_save_former_gone_early, "sedp"},   {WRONG_save_in_place, "cpd"},
              {WRONG_save_names_unsynced, "fepd"}};

const char *wrong_save_order(void) {
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        if (wrong_habit == orders[i].habit)
            return orders[i].acts;
    return NULL;
}

static void sync_path(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    fsync(fd);
    close(fd);
}

static void write_again(const char *path) {
    char byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (pread(fd, &byte, 1, 0) == 1 && pwrite(fd, &byte, 1, 0) != 1)
        __builtin_trap();
    close(fd);
}

static void copy_over(const char *from, const char *to) {
    char buf[4096];
    ssize_t n;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    while ((n = read(in, buf, sizeof buf)) > 0)
        if (write(out, buf, (size_t)n) != n)
            __builtin_trap();
    fsync(out);
    close(out);
    close(in);
}

static void each_file(const char *dir_path, const char *other_path, char act) {
    struct dirent *e;
    char path[4600], other[4600];
    DIR *dir = opendir(dir_path);
    while (dir && (e = readdir(dir)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir_path, e->d_name);
        snprintf(other, sizeof other, "%s/%s", other_path, e->d_name);
        if (act == 's' || act == 'f')
            sync_path(path);
        else if (act == 'w')
            write_again(path);
        else if (act == 'c')
            copy_over(path, other);
        else
            unlink(path);
    }
    if (dir)
        closedir(dir);
}

static void act(char letter, const char *path, const char *beside) {
    char above[4300];
    snprintf(above, sizeof above, "%s", path);
    *strrchr(above, '/') = '\0';
    if (strchr("sfwc", letter))
        each_file(beside, path, letter);
    if (letter == 's')
        sync_path(beside);
    if (letter == 'e' && syscall(SYS_renameat2, AT_FDCWD, beside, AT_FDCWD, path, 2 /* RENAME_EXCHANGE */) != 0)
        letter = 'r';
    if (letter == 'r' && rename(beside, path) != 0)
        __builtin_trap();
    if (letter == 'p')
        sync_path(above);
    if (letter == 'd' || letter == 'u') {
        each_file(letter == 'd' ? beside : path, "", 'd');
        rmdir(letter == 'd' ? beside : path);
    }
}

void wrong_save_finish(const char *path, const char *beside) {
    struct stat info;
    const char *acts = stat(path, &info) == 0 ? wrong_save_order() : "sr";
    for (; *acts; acts++)
        act(*acts, path, beside);
}
