/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/beside.c - see state/beside.h. */
#include "state/beside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/timeline.h"
#include "zf/ext/state.h"

static const char new_mark[] = ZFI_BESIDE_MARK ".new"; /* a mark that is being written */
static const char infix[] = ".zf-save-";
enum { DIGITS = 16, MARK_NBYTES = 2 * ZFI_BESIDE_NAME + 32 };
static const char *const words[] = {
    [ZFI_BESIDE_SAVING] = "saving", [ZFI_BESIDE_REPLACED] = "replaced", [ZFI_BESIDE_ASIDE] = "aside"};

int zfi_beside_is_file(const char *name) {
    static const char prefix[] = "zf_state-";
    if (strcmp(name, ZF_STATE_INDEX) == 0 || strcmp(name, ZFI_BESIDE_MARK) == 0 || strcmp(name, new_mark) == 0)
        return 1;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return 0;
    size_t n_digits = strspn(name + sizeof prefix - 1, "0123456789");
    return n_digits >= 5 && strcmp(name + sizeof prefix - 1 + n_digits, ".safetensors") == 0;
}

int zfi_beside_sync(int dir_fd, zfi_sync_t *sync) {
    if (!sync->is_wanted || fsync(dir_fd) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOTSUP && errno != ENOSYS)
        return errno;
    sync->lacks_directories = 1;
    return 0;
}

/* ---- names and marks --------------------------------------------------------------------------------------------- */

/* The part of a long name that still leaves room for what comes behind it. */
static int kept(const char *base) {
    size_t n = strlen(base), most = 255 - (sizeof infix - 1) - DIGITS;
    return (int)(n < most ? n : most);
}

void zfi_beside_name(const char *base, char out[ZFI_BESIDE_NAME]) {
    uint64_t random;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = zfi_now_ns() * 0x9E3779B97F4A7C15u ^ (uint64_t)getpid();
    snprintf(out, ZFI_BESIDE_NAME, "%.*s%s%016" PRIx64, kept(base), base, infix, random);
}

/* Whether a save to this path could have made the name. */
static int may_be(const char *name, const char *base) {
    int n = kept(base);
    const char *digits = name + n + sizeof infix - 1;
    return strncmp(name, base, (size_t)n) == 0 && strncmp(name + n, infix, sizeof infix - 1) == 0 &&
           strspn(digits, "0123456789abcdef") == DIGITS && digits[DIGITS] == '\0';
}

int zfi_beside_mark(int dir_fd, zfi_beside_t what, const char *name, const char *base, zfi_sync_t *sync) {
    char text[MARK_NBYTES];
    size_t n = (size_t)snprintf(text, sizeof text, "%s\n%s\n%s\n", words[what], name, base);
    int fd, code = 0;
    if (unlinkat(dir_fd, new_mark, 0) && errno != ENOENT)
        return errno;
    fd = openat(dir_fd, new_mark, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return errno;
    for (size_t done = 0; done < n && !code;) {
        ssize_t k = write(fd, text + done, n - done);
        if (k <= 0)
            code = k < 0 ? errno : ENOSPC;
        else
            done += (size_t)k;
    }
    if (!code && ((sync->is_wanted && fsync(fd)) || renameat(dir_fd, new_mark, dir_fd, ZFI_BESIDE_MARK)))
        code = errno;
    if (!code)
        code = zfi_beside_sync(dir_fd, sync);
    close(fd);
    if (code) {
        unlinkat(dir_fd, new_mark, 0);
        zfi_beside_unmark(dir_fd);
    }
    return code;
}

void zfi_beside_unmark(int dir_fd) { unlinkat(dir_fd, ZFI_BESIDE_MARK, 0); }

static zfi_beside_t read_mark(int dir_fd, const char *name, const char *base) {
    char text[MARK_NBYTES], expected[MARK_NBYTES];
    int fd = openat(dir_fd, ZFI_BESIDE_MARK, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return ZFI_BESIDE_NONE;
    text[n] = '\0';
    for (int what = ZFI_BESIDE_SAVING; what <= ZFI_BESIDE_ASIDE; what++) {
        snprintf(expected, sizeof expected, "%s\n%s\n%s\n", words[what], name, base);
        if (strcmp(text, expected) == 0)
            return (zfi_beside_t)what;
    }
    return ZFI_BESIDE_NONE;
}

/* ---- making and removing ----------------------------------------------------------------------------------------- */

/* ENOENT: another process's sweep took the directory away before it was marked, or is about to. */
static int open_new(int parent_fd, const char *name, int *out_fd) {
    int code;
    *out_fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (*out_fd < 0) {
        code = errno;
        unlinkat(parent_fd, name, AT_REMOVEDIR);
        return code;
    }
    if (flock(*out_fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return 0;
    close(*out_fd); /* it is the sweep's */
    *out_fd = -1;
    return ENOENT;
}

static int make_one(int parent_fd, const char *base, mode_t mode, zfi_sync_t *sync, char out_name[ZFI_BESIDE_NAME],
                    int *out_fd, int *out_cannot_rename) {
    char made[ZFI_BESIDE_NAME];
    int code;
    zfi_beside_name(base, made);
    zfi_beside_name(base, out_name);
    if (mkdirat(parent_fd, made, mode))
        return errno;
    code = open_new(parent_fd, made, out_fd);
    if (code)
        return code;
    if (renameat(parent_fd, made, parent_fd, out_name)) {
        code = errno;
        *out_cannot_rename = code != ENOENT;
        memcpy(out_name, made, sizeof made);
    }
    if (!code)
        code = zfi_beside_sync(parent_fd, sync); /* the mark holds under this name alone */
    if (!code)
        code = zfi_beside_mark(*out_fd, ZFI_BESIDE_SAVING, out_name, base, sync);
    if (!code)
        return 0;
    close(*out_fd);
    *out_fd = -1;
    unlinkat(parent_fd, out_name, AT_REMOVEDIR);
    return code;
}

int zfi_beside_make(int parent_fd, const char *base, mode_t mode, zfi_sync_t *sync, char out_name[ZFI_BESIDE_NAME],
                    int *out_fd, int *out_cannot_rename) {
    enum { TRIES = 10 };
    int code = ENOENT;
    *out_cannot_rename = 0;
    for (int i = 0; i < TRIES && code == ENOENT; i++)
        code = make_one(parent_fd, base, mode, sync, out_name, out_fd, out_cannot_rename);
    return code;
}

int zfi_beside_try_rename(int parent_fd, const char *base, const char *name) {
    if (renameat(parent_fd, base, parent_fd, name))
        return errno == ENOTEMPTY || errno == EEXIST || errno == ENOENT ? 0 : errno;
    (void)renameat(parent_fd, name, parent_fd, base); /* a mount that replaces a directory with something in it */
    return EOPNOTSUPP;
}

void zfi_beside_remove(int parent_fd, const char *name, DIR *dir, zfi_sync_t *sync) {
    const struct dirent *entry;
    if (flock(dirfd(dir), LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return; /* another process reads it: the next save removes it */
    rewinddir(dir);
    while ((entry = readdir(dir)))
        if (zfi_beside_is_file(entry->d_name) && strcmp(entry->d_name, ZFI_BESIDE_MARK) != 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
    (void)zfi_beside_sync(dirfd(dir), sync);
    zfi_beside_unmark(dirfd(dir)); /* last, on the disk too: without it nobody would clear away the rest */
    unlinkat(parent_fd, name, AT_REMOVEDIR);
}

/* ---- what killed processes left ---------------------------------------------------------------------------------- */

/* Whether nothing but a mark that is being written is in it. */
static int has_no_data(DIR *dir) {
    const struct dirent *entry;
    while ((entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && strcmp(entry->d_name, new_mark) != 0)
            return 0;
    return 1;
}

/* Without a mark and without data is what is left between making and marking one, or between both at its end. */
static void clear_one(int parent_fd, const char *base, const char *name, zfi_sync_t *sync) {
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 ? fdopendir(fd) : NULL;
    if (dir && (read_mark(fd, name, base) != ZFI_BESIDE_NONE || has_no_data(dir)))
        zfi_beside_remove(parent_fd, name, dir, sync);
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
}

/* Opened again, so that it has a place of its own. */
static DIR *open_again(int fd) {
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    if (!dir && again >= 0) {
        close(again);
        errno = ENOMEM;
    }
    return dir;
}

int zfi_beside_sweep(int parent_fd, const char *base, zfi_sync_t *sync) {
    DIR *dir = open_again(parent_fd);
    const struct dirent *entry;
    if (!dir)
        return errno == ENOMEM ? ENOMEM : 0;
    while ((entry = readdir(dir)))
        if (may_be(entry->d_name, base))
            clear_one(parent_fd, base, entry->d_name, sync);
    closedir(dir);
    return 0;
}

int zfi_beside_is_there(int parent_fd, const char *base) {
    int fd = openat(parent_fd, base, O_RDONLY | O_DIRECTORY | O_CLOEXEC), is_there;
    struct stat info;
    if (fd < 0)
        return 0;
    is_there = fstatat(fd, ZF_STATE_INDEX, &info, AT_SYMLINK_NOFOLLOW) == 0;
    close(fd);
    return is_there;
}

int zfi_beside_find_aside(int parent_fd, const char *base, char out_name[ZFI_BESIDE_NAME]) {
    DIR *dir = open_again(parent_fd);
    const struct dirent *entry;
    int code = ENOENT;
    if (!dir)
        return errno;
    while (code && (entry = readdir(dir))) {
        int fd = may_be(entry->d_name, base)
                     ? openat(parent_fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
                     : -1;
        if (fd < 0)
            continue;
        if (read_mark(fd, entry->d_name, base) == ZFI_BESIDE_ASIDE && zfi_beside_is_there(parent_fd, entry->d_name)) {
            snprintf(out_name, ZFI_BESIDE_NAME, "%s", entry->d_name);
            code = 0;
        }
        close(fd);
    }
    closedir(dir);
    return code;
}

int zfi_beside_put_back(int parent_fd, const char *base, zfi_sync_t *sync) {
    char name[ZFI_BESIDE_NAME];
    int fd, code = zfi_beside_is_there(parent_fd, base) ? ENOENT : zfi_beside_find_aside(parent_fd, base, name);
    if (code)
        return code;
    if (renameat(parent_fd, name, parent_fd, base))
        return errno;
    code = zfi_beside_sync(parent_fd, sync);
    if (code)
        return code;
    fd = openat(parent_fd, base, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) {
        zfi_beside_unmark(fd);
        close(fd);
    }
    return 0;
}
