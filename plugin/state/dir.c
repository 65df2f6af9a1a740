/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/dir.c - a checkpoint as a directory (contract in state/store.h).
 *
 * Everything is done relative to the parent directory, which is opened once: a change of the working directory in the
 * middle of a save does no harm. A save writes beside the path (state/beside.h) and takes the path's place in one
 * renameat2(RENAME_EXCHANGE); where the file system cannot do that, in two renames, and a process that comes between
 * them finds the former checkpoint aside. If the process was killed there, a load puts it back; so does a save, which
 * then fails once, since it would replace what its host has not seen. A reader holds the directory that it opened under
 * a shared lock, so that its files stay until it is done. Saves of several processes to one path each write their own
 * directory and take turns at the end: a lock on the parent directory guards that, and the last one stays. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "state/beside.h"
#include "state/store.h"

static zf_status_t fail(zf_error_t *err, const char *what, const char *path, const char *blob, int code) {
    return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, code, "state", "%s %s%s%s: %s", what, path,
                            *blob ? "/" : "", blob, strerror(code));
}

static zf_status_t fail_at(zf_error_t *err, const char *what, const char *path, const char *blob, uint64_t at,
                           uint64_t nbytes, int code) {
    return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, code, "state",
                            "%s %s/%s at byte %" PRIu64 " (%" PRIu64 " bytes): %s", what, path, blob, at, nbytes,
                            strerror(code));
}

static const char *what_to_do(int code) {
    switch (code) {
    case EXDEV:
        return "it lies in a lower layer of an overlay, as what an image of a container holds: name a directory that "
               "is "
               "new, or one on a volume";
    case EBUSY:
        return "a file system is mounted there: name a directory in it";
    case EACCES:
    case EPERM:
        return "rename must be allowed in the directory that holds it: mend its permissions, or name another place";
    default:
        return "a save needs rename of directories where it writes: name a directory on another mount, or give the "
               "save a store of your own (zf_state_store_t)";
    }
}

static zf_status_t cannot_rename(zf_error_t *err, const char *what, const char *path, int code) {
    return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, code, "state",
                            "%s %s: rename failed (%s), so nothing was saved; %s", what, path, strerror(code),
                            what_to_do(code));
}

static zf_status_t no_memory(zf_error_t *err) {
    return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a path or a list of files");
}

/* ---- paths ------------------------------------------------------------------------------------------------------- */

char *zfi_store_plain_path(const char *path) {
    size_t n = strlen(path);
    char *real = realpath(path, NULL), *out = NULL;
    if (real || errno == ENOMEM)
        return real;
    while (n > 1 && path[n - 1] == '/')
        n--;
    char *plain = strndup(path, n), *slash = plain ? strrchr(plain, '/') : NULL;
    if (!plain || slash == plain)
        return plain;
    if (slash)
        *slash = '\0';
    real = realpath(slash ? plain : ".", NULL);
    if (slash)
        *slash = '/';
    if (!real)
        return plain;
    if (asprintf(&out, "%s/%s", strcmp(real, "/") == 0 ? "" : real, slash ? slash + 1 : plain) < 0)
        out = NULL;
    free(real);
    free(plain);
    return out;
}

static const char *parent_of(const zfi_store_t *store) {
    return store->base == store->path ? "." : store->base == store->path + 1 ? "/" : store->path;
}

/* Opens the directory that holds the path's last name. */
static zf_status_t open_parent(zfi_store_t *store, const char *path, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    if (!*path || strlen(path) > PATH_MAX - 16)
        return zfi_error(err, ZF_ERR_ARGUMENT, "state", "path is %s", *path ? "too long" : "empty");
    store->path = zfi_store_plain_path(path);
    if (!store->path)
        return no_memory(err);
    char *slash = strrchr(store->path, '/');
    store->base = slash ? slash + 1 : store->path;
    if (slash && slash != store->path)
        *slash = '\0';
    store->parent_fd = open(parent_of(store), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->parent_fd < 0)
        st = fail(err, "cannot open the directory", parent_of(store), "", errno);
    if (slash)
        *slash = '/';
    return st;
}

static void directory_close(zfi_store_t *store) {
    if (store->blob_fd >= 0)
        close(store->blob_fd);
    if (store->dir_fd >= 0)
        close(store->dir_fd);
    if (store->parent_fd >= 0)
        close(store->parent_fd);
    store->blob_fd = store->dir_fd = store->parent_fd = -1;
    free(store->path);
    store->path = NULL;
}

/* ---- the former checkpoint --------------------------------------------------------------------------------------- */

/* The checkpoint at the path: its descriptor and its entries, opened before anything is replaced. */
typedef struct former {
    DIR *dir;                   /* NULL: there is nothing */
    char name[ZFI_BESIDE_NAME]; /* where it lies once it is replaced */
    int is_aside;               /* it lies there, and nothing is in its place: the next save or load puts it back */
} former_t;

static int is_directory(DIR *dir, const char *name) {
    struct stat info;
    return fstatat(dirfd(dir), name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
}

/* The first entry that no checkpoint holds, or NULL; until the next readdir. */
static const char *find_foreign(DIR *dir) {
    const struct dirent *entry;
    while ((entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            (!zfi_beside_is_file(entry->d_name) || is_directory(dir, entry->d_name)))
            return entry->d_name;
    return NULL;
}

static zf_status_t nothing_there(const zfi_store_t *store, zf_error_t *err) {
    struct stat info;
    if (fstatat(store->parent_fd, store->base, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode))
        return zfi_error(err, ZF_ERR_STORAGE, "state",
                         "%s is a symbolic link that leads nowhere: make the directory that it names, or remove it",
                         store->path);
    return ZF_OK;
}

/* Opens it and checks that a save may replace it. out->dir is to be closed, also on failure. */
static zf_status_t open_former(const zfi_store_t *store, former_t *out, zf_error_t *err) {
    int fd = openat(store->parent_fd, store->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *out = (former_t){0};
    if (fd < 0)
        return errno == ENOENT ? nothing_there(store, err) : fail(err, "cannot replace", store->path, "", errno);
    out->dir = fdopendir(fd);
    if (!out->dir) {
        close(fd);
        return no_memory(err);
    }
    const char *foreign = find_foreign(out->dir);
    if (!foreign)
        return ZF_OK;
    return zfi_error(err, ZF_ERR_STORAGE, "state",
                     "%s holds \"%.100s\", which is not of a checkpoint: a save replaces the whole directory; name one "
                     "that is new, empty, or a checkpoint",
                     store->path, foreign);
}

static void close_former(former_t *former) {
    if (former->dir)
        closedir(former->dir);
    former->dir = NULL;
}

/* ---- save -------------------------------------------------------------------------------------------------------- */

static void directory_cancel(zfi_store_t *store) {
    DIR *dir = store->dir_fd >= 0 ? fdopendir(store->dir_fd) : NULL;
    if (dir) {
        zfi_beside_remove(store->parent_fd, store->tmp_name, dir, &store->sync);
        closedir(dir);
        store->dir_fd = -1;
    }
    directory_close(store);
}

enum { LOCK_TRIES = 1000, LOCK_PAUSE_US = 10000 };

/* The lock on the parent directory. Where the file system has none, saves of several processes to one path are not
 * kept apart. */
static zf_status_t lock_parent(const zfi_store_t *store, zf_error_t *err) {
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(store->parent_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            return ZF_OK;
        if (store->tick)
            store->tick(store->tick_arg); /* other ranks wait for this one */
        usleep(LOCK_PAUSE_US);
    }
    return zfi_error(
        err, ZF_ERR_STORAGE, "state",
        "another save, or another program, holds the lock on the directory of %s for more than %d s: save again later",
        store->path, LOCK_TRIES / (1000000 / LOCK_PAUSE_US));
}

static void unlock_parent(const zfi_store_t *store) { flock(store->parent_fd, LOCK_UN); }

/* The directory that is written has the mode and the group of the one that it will replace; its owner may write. */
static zf_status_t make_tmp(zfi_store_t *store, former_t *former, zf_error_t *err) {
    struct stat info;
    int is_rename, code = zfi_beside_make(store->parent_fd, store->base, former->dir ? 0700 : 0777, &store->sync,
                                          store->tmp_name, &store->dir_fd, &is_rename);
    if (code && is_rename)
        return cannot_rename(err, "cannot rename a directory beside", store->path, code);
    if (code)
        return fail(err, "cannot make a directory beside", store->path, "", code);
    if (!former->dir || fstat(dirfd(former->dir), &info))
        return ZF_OK;
    store->mode = info.st_mode & 07777;
    if (fchown(store->dir_fd, (uid_t)-1, info.st_gid))
        store->mode &= ~(mode_t)02000; /* not of that group: the bit would mean another one */
    fchmod(store->dir_fd, store->mode | 0700);
    return ZF_OK;
}

/* Refuses at once what the last operation of the save would fail with. */
static zf_status_t try_rename(const zfi_store_t *store, const former_t *former, zf_error_t *err) {
    int code = former->dir ? zfi_beside_try_rename(store->parent_fd, store->base, store->tmp_name) : 0;
    return code ? cannot_rename(err, "cannot replace", store->path, code) : ZF_OK;
}

/* A killed save has left the only checkpoint aside: back to the path with it, and no further. */
static zf_status_t put_back(zfi_store_t *store, zf_error_t *err) {
    int code = zfi_beside_put_back(store->parent_fd, store->base, &store->sync);
    if (code == ENOENT)
        return ZF_OK;
    if (code == ENOMEM)
        return no_memory(err);
    if (code)
        return fail(err, "a killed save left the checkpoint aside, and it cannot be put back to", store->path, "",
                    code);
    return zfi_error(err, ZF_ERR_STORAGE, "state",
                     "a save was killed while it replaced %s, so that no checkpoint was there; it is back now, and "
                     "nothing was saved: load it, or save again to replace it",
                     store->path);
}

static zf_status_t begin_save(zfi_store_t *store, zf_error_t *err) {
    former_t former = {0};
    zf_status_t st = ZF_OK;
    if (!*store->base || strcmp(store->base, ".") == 0 || strcmp(store->base, "..") == 0)
        return zfi_error(err, ZF_ERR_ARGUMENT, "state", "%s cannot be replaced: name a directory in it", store->path);
    if (flock(store->parent_fd, LOCK_EX | LOCK_NB) == 0) { /* else another save is at it */
        st = put_back(store, err);
        if (!st && zfi_beside_sweep(store->parent_fd, store->base, &store->sync))
            st = no_memory(err);
        unlock_parent(store);
    }
    if (!st)
        st = open_former(store, &former, err);
    if (!st)
        st = make_tmp(store, &former, err);
    if (!st)
        st = try_rename(store, &former, err);
    close_former(&former);
    return st;
}

zf_status_t zfi_directory_open_save(zfi_store_t *store, const char *path, zf_error_t *err) {
    zf_status_t st = open_parent(store, path, err);
    if (!st)
        st = begin_save(store, err);
    if (st)
        directory_cancel(store);
    return st;
}

/* Another rank has made the directory. */
zf_status_t zfi_directory_join_save(zfi_store_t *store, const char *path, const char *tmp_name, zf_error_t *err) {
    zf_status_t st = open_parent(store, path, err);
    if (!st) {
        snprintf(store->tmp_name, sizeof store->tmp_name, "%s", tmp_name);
        store->dir_fd = openat(store->parent_fd, tmp_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (store->dir_fd < 0)
            st = zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, errno, "state",
                                  "beside %s there is no \"%.100s\", which rank 0 has made beside what it was given: "
                                  "give every rank the same directory, of a file system that all of them see (%s)",
                                  store->path, tmp_name, strerror(errno));
    }
    if (st)
        directory_close(store);
    return st;
}

/* The first rank that comes makes a blob of all ranks; the directory's name is known to them alone. */
static zf_status_t directory_begin(zfi_store_t *store, zf_error_t *err) {
    int new_alone = store->is_shared ? 0 : O_EXCL;
    store->blob_fd = openat(store->dir_fd, store->blob, O_WRONLY | O_CREAT | new_alone | O_CLOEXEC | O_NOFOLLOW, 0666);
    return store->blob_fd < 0 ? fail(err, "cannot make", store->path, store->blob, errno) : ZF_OK;
}

static zf_status_t directory_write(zfi_store_t *store, uint64_t offset, const void *data, uint64_t nbytes,
                                   zf_error_t *err) {
    const unsigned char *from = data;
    uint64_t done = 0;
    while (done < nbytes) {
        ssize_t n = pwrite(store->blob_fd, from + done, nbytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail_at(err, "cannot write", store->path, store->blob, offset + done, nbytes - done,
                           n < 0 ? errno : ENOSPC);
        done += (uint64_t)n;
    }
    return ZF_OK;
}

static zf_status_t directory_end(zfi_store_t *store, zf_error_t *err) {
    int fd = store->blob_fd, code = store->sync.is_wanted && fsync(fd) ? errno : 0;
    store->blob_fd = -1;
    if (close(fd) && !code)
        code = errno;
    return code ? fail_at(err, "cannot sync", store->path, store->blob, 0, store->blob_nbytes, code) : ZF_OK;
}

/* ---- into its place ---------------------------------------------------------------------------------------------- */

/* Whether two names can be exchanged: the call is unknown, forbidden by a filter, or the file system lacks it. */
static int cannot_exchange(int code) {
    return code == EINVAL || code == EXDEV || code == ENOSYS || code == EPERM || code == EOPNOTSUPP || code == ENOTTY;
}

/* Two renames. What lies aside is marked as the checkpoint until the caller knows that the second is on the disk. */
static int replace_in_two(zfi_store_t *store, former_t *former) {
    if (renameat(store->parent_fd, store->tmp_name, store->parent_fd, store->base) == 0)
        return 0; /* nothing was there, or an empty directory */
    if (!former->dir || (errno != ENOTEMPTY && errno != EEXIST))
        return errno;
    zfi_beside_name(store->base, former->name);
    int code = zfi_beside_mark(dirfd(former->dir), ZFI_BESIDE_ASIDE, former->name, store->base, &store->sync);
    if (!code && renameat(store->parent_fd, store->base, store->parent_fd, former->name))
        code = errno;
    if (code)
        return code;
    if (renameat(store->parent_fd, store->tmp_name, store->parent_fd, store->base) == 0)
        return 0;
    code = errno;
    former->is_aside = renameat(store->parent_fd, former->name, store->parent_fd, store->base) != 0;
    return code;
}

static int put_in_place(zfi_store_t *store, former_t *former) {
    int code = former->dir ? zfi_beside_mark(dirfd(former->dir), ZFI_BESIDE_REPLACED, store->tmp_name, store->base,
                                             &store->sync)
                           : 0;
    if (code)
        return code;
    if (renameat2(store->parent_fd, store->tmp_name, store->parent_fd, store->base, RENAME_EXCHANGE) == 0) {
        memcpy(former->name, store->tmp_name, sizeof former->name);
        return 0;
    }
    code = errno;
    if (code == ENOENT || cannot_exchange(code))
        code = replace_in_two(store, former);
    if (code && former->dir && !former->is_aside)
        zfi_beside_unmark(dirfd(former->dir));
    return code;
}

/* The former one comes back, and the new one lies beside it again. */
static int take_back(const zfi_store_t *store, const former_t *former) {
    int fd = store->parent_fd, code = 0;
    if (strcmp(former->name, store->tmp_name) == 0) {
        code = renameat2(fd, store->tmp_name, fd, store->base, RENAME_EXCHANGE) ? errno : 0;
    } else {
        code = renameat(fd, store->base, fd, store->tmp_name) ? errno : 0;
        if (!code && *former->name)
            code = renameat(fd, former->name, fd, store->base) ? errno : 0;
    }
    if (!code && former->dir)
        zfi_beside_unmark(dirfd(former->dir));
    return code;
}

static zf_status_t replace(zfi_store_t *store, former_t *former, zf_error_t *err) {
    zf_status_t st = put_back(store, err); /* again: time has passed */
    if (!st)
        st = open_former(store, former, err);
    if (st)
        return st;
    int code = put_in_place(store, former);
    if (code)
        return cannot_rename(err, "cannot replace", store->path, code);
    code = zfi_beside_sync(store->parent_fd, &store->sync);
    if (!code) {
        if (*former->name && strcmp(former->name, store->tmp_name) != 0)
            zfi_beside_mark(dirfd(former->dir), ZFI_BESIDE_REPLACED, former->name, store->base, &store->sync);
        return ZF_OK;
    }
    if (take_back(store, former) == 0)
        return fail(err, "the former checkpoint stays: cannot sync the directory that holds", store->path, "", code);
    close(store->dir_fd); /* it is in place, so that cancel must not remove it */
    store->dir_fd = -1;
    return fail(err,
                "the new checkpoint is in its place, but may be lost if the machine stops: cannot sync the directory "
                "that holds",
                store->path, "", code);
}

static zf_status_t directory_commit(zfi_store_t *store, zf_error_t *err) {
    former_t former = {0};
    int code = zfi_beside_sync(store->dir_fd, &store->sync);
    zf_status_t st =
        code ? fail(err, "cannot sync the new directory of", store->path, "", code) : lock_parent(store, err);
    if (st)
        return st; /* cancel follows */
    st = replace(store, &former, err);
    if (!st)
        zfi_beside_unmark(store->dir_fd); /* once another save comes, the mark is what that one says of it */
    unlock_parent(store);
    if (!st) {
        if (store->mode)
            fchmod(store->dir_fd, store->mode);
        if (former.dir && *former.name)
            zfi_beside_remove(store->parent_fd, former.name, former.dir, &store->sync);
        directory_close(store);
    }
    close_former(&former);
    return st;
}

/* ---- load -------------------------------------------------------------------------------------------------------- */

int zfi_directory_was_replaced(const zfi_store_t *store) {
    struct stat mine, there;
    return store->parent_fd >= 0 && store->dir_fd >= 0 && fstat(store->dir_fd, &mine) == 0 &&
           (fstatat(store->parent_fd, store->base, &there, 0) || mine.st_ino != there.st_ino ||
            mine.st_dev != there.st_dev);
}

/* Opens what is at the path and locks it. EAGAIN: it was replaced meanwhile. */
static int open_locked(zfi_store_t *store, const char *name) {
    store->dir_fd = openat(store->parent_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->dir_fd < 0)
        return errno;
    if ((flock(store->dir_fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK) ||
        (!store->is_aside && zfi_directory_was_replaced(store))) {
        close(store->dir_fd);
        store->dir_fd = -1;
        return EAGAIN;
    }
    return 0;
}

static int open_checkpoint(zfi_store_t *store) {
    const char *name = *store->base ? store->base : ".";
    char aside[ZFI_BESIDE_NAME];
    int code;
    store->is_aside = 0;
    if (*store->base && !zfi_beside_is_there(store->parent_fd, store->base) &&
        flock(store->parent_fd, LOCK_EX | LOCK_NB) == 0) { /* else a save may be between its two renames */
        code = zfi_beside_put_back(store->parent_fd, store->base, &store->sync);
        unlock_parent(store);
        if (code == ENOMEM)
            return code;
    }
    code = open_locked(store, name);
    if (code != ENOENT)
        return code;
    code = zfi_beside_find_aside(store->parent_fd, store->base, aside);
    store->is_aside = !code;
    return code ? code : open_locked(store, aside);
}

zf_status_t zfi_directory_open_load(zfi_store_t *store, const char *path, zf_error_t *err) {
    enum { TRIES = 100 };
    zf_status_t st = open_parent(store, path, err);
    int code = EAGAIN;
    for (int i = 0, n_missing = 0; i < TRIES && !st && (code == EAGAIN || (code == ENOENT && n_missing < 3)); i++) {
        code = open_checkpoint(store);
        n_missing += code == ENOENT; /* it may lie between two renames, for a moment */
    }
    if (!st && code == ENOMEM)
        st = no_memory(err);
    if (!st && code)
        st = fail(err, "cannot open the checkpoint", store->path, "", code);
    if (st)
        directory_close(store);
    return st;
}

static zf_status_t open_blob(zfi_store_t *store, const char *name, zf_error_t *err) {
    struct stat info;
    if (store->blob_fd >= 0 && strcmp(store->blob, name) == 0)
        return ZF_OK;
    if (store->blob_fd >= 0)
        close(store->blob_fd);
    store->blob_fd = openat(store->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (store->blob_fd < 0)
        return fail(err, "cannot open", store->path, name, errno);
    if (fstat(store->blob_fd, &info) || !S_ISREG(info.st_mode)) {
        close(store->blob_fd);
        store->blob_fd = -1;
        return zfi_error(err, ZF_ERR_STORAGE, "state", "%s/%s is not a regular file", store->path, name);
    }
    snprintf(store->blob, sizeof store->blob, "%s", name);
    store->blob_nbytes = (uint64_t)info.st_size;
    return ZF_OK;
}

static zf_status_t directory_size(zfi_store_t *store, const char *name, uint64_t *out, zf_error_t *err) {
    zf_status_t st = open_blob(store, name, err);
    if (!st)
        *out = store->blob_nbytes;
    return st;
}

static zf_status_t directory_read(zfi_store_t *store, const char *name, uint64_t offset, void *out, uint64_t nbytes,
                                  zf_error_t *err) {
    zf_status_t st = open_blob(store, name, err);
    uint64_t done = 0;
    while (!st && done < nbytes) {
        ssize_t n = pread(store->blob_fd, (unsigned char *)out + done, nbytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            st = fail_at(err, "cannot read", store->path, name, offset + done, nbytes - done, errno);
        else if (n == 0)
            st = zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s/%s ends at byte %" PRIu64 ", need %" PRIu64,
                           store->path, name, offset + done, offset + nbytes);
        else
            done += (uint64_t)n;
    }
    return st;
}

const zfi_store_ops_t zfi_store_directory = {.reads_back = 1,
                                             .begin = directory_begin,
                                             .write = directory_write,
                                             .end = directory_end,
                                             .commit = directory_commit,
                                             .cancel = directory_cancel,
                                             .size = directory_size,
                                             .read = directory_read,
                                             .close = directory_close};
