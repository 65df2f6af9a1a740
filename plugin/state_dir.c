/* plugin/state_dir.c - a checkpoint as a directory (contract in state_store.h).
 *
 * path       the newest whole checkpoint; replaced by one renameat2(RENAME_EXCHANGE), so it is whole at every moment
 * path.tmp   one being written, or what a killed process left; locked by the writer, cleared by the next save
 * path.old   file systems without RENAME_EXCHANGE: the former checkpoint between two renames; load takes it where path
 *            is missing
 * Only files that a checkpoint can hold are ever removed. */
#include <dirent.h>
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

#include "error.h"
#include "state_store.h"

static zf_status_t fail(zf_error_t *err, const char *what, const char *path, const char *blob, int code) {
    return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, code, "state", "%s %s%s%s: %s", what, path,
                            *blob ? "/" : "", blob, strerror(code));
}

static zf_status_t fail_at(const zfi_store_t *store, zf_error_t *err, const char *what, const char *path,
                           const char *blob, uint64_t at, uint64_t nbytes, int code) {
    (void)store;
    return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, code, "state",
                            "%s %s/%s at byte %" PRIu64 " (%" PRIu64 " bytes): %s", what, path, blob, at, nbytes,
                            strerror(code));
}

/* ---- paths --------------------------------------------------------------------------------------------------------
 */

/* A copy of path without slashes at its end; where it is a symbolic link that leads somewhere, where that is. */
static char *plain_path(const char *path) {
    size_t n = strlen(path);
    char *real = realpath(path, NULL);
    if (real)
        return real;
    while (n > 1 && path[n - 1] == '/')
        n--;
    return strndup(path, n);
}

static char *with_suffix(const char *path, const char *suffix) {
    size_t n = strlen(path) + strlen(suffix) + 1;
    char *out = malloc(n);
    if (out)
        snprintf(out, n, "%s%s", path, suffix);
    return out;
}

static zf_status_t check_path(const char *path, zf_error_t *err) {
    if (!*path || strlen(path) > PATH_MAX - 16)
        return zfi_error(err, ZF_ERR_ARGUMENT, "state", "path is %s", *path ? "too long" : "empty");
    return ZF_OK;
}

/* ---- directories ---------------------------------------------------------------------------------------------------
 */

/* A name that a save gives: the index, or a data file with its number of five digits or more. */
static int is_ours(const char *name) {
    static const char prefix[] = "zf_state-";
    size_t n_digits;
    if (strcmp(name, ZF_STATE_INDEX) == 0)
        return 1;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return 0;
    n_digits = strspn(name + sizeof prefix - 1, "0123456789");
    return n_digits >= 5 && strcmp(name + sizeof prefix - 1 + n_digits, ".safetensors") == 0;
}

static int is_directory(DIR *dir, const char *name) {
    struct stat info;
    return fstatat(dirfd(dir), name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
}

/* The first entry of a directory that no checkpoint holds, in `out`; 0 = there is none, 1 = there is, -1 = errno. */
static int find_foreign(const char *path, char *out, size_t nbytes) {
    DIR *dir = opendir(path);
    const struct dirent *entry;
    int found = 0;
    if (!dir)
        return -1;
    while (!found && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            (!is_ours(entry->d_name) || is_directory(dir, entry->d_name))) {
            snprintf(out, nbytes, "%s", entry->d_name);
            found = 1;
        }
    closedir(dir);
    return found;
}

static zf_status_t check_replaceable(const char *path, zf_error_t *err) {
    char foreign[256];
    struct stat info;
    int found = find_foreign(path, foreign, sizeof foreign);
    if (found < 0 && errno == ENOENT && lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
        return zfi_error(err, ZF_ERR_STORAGE, "state",
                         "%s is a symbolic link that leads nowhere: make the directory that it names, or remove it",
                         path);
    if (found == 0 || (found < 0 && errno == ENOENT))
        return ZF_OK;
    if (found < 0)
        return fail(err, "cannot replace", path, "", errno);
    return zfi_error(err, ZF_ERR_STORAGE, "state",
                     "%s holds \"%.100s\", which is not of a checkpoint: a save replaces the whole directory; name one "
                     "that is new, empty, or a checkpoint",
                     path, foreign);
}

/* Removes a checkpoint's files and then the directory; what is not of a checkpoint stays, and the directory with it. */
static void remove_checkpoint(const char *path) {
    DIR *dir = opendir(path);
    const struct dirent *entry;
    if (!dir)
        return;
    while ((entry = readdir(dir)))
        if (is_ours(entry->d_name))
            unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    rmdir(path);
}

static int sync_parent(const char *path) {
    char *parent = strdup(path), *slash;
    int fd, rc;
    if (!parent)
        return ENOMEM;
    slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = '\0';
    fd = open(slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(parent);
    if (fd < 0)
        return errno;
    rc = fsync(fd) ? errno : 0;
    close(fd);
    return rc;
}

/* ---- save ---------------------------------------------------------------------------------------------------------
 */

static void free_paths(zfi_store_t *store) {
    free(store->path);
    free(store->tmp_path);
    store->path = store->tmp_path = NULL;
}

static void directory_close(zfi_store_t *store) {
    if (store->blob_fd >= 0)
        close(store->blob_fd);
    if (store->dir_fd >= 0)
        close(store->dir_fd);
    store->blob_fd = store->dir_fd = -1;
    free_paths(store);
}

static void directory_cancel(zfi_store_t *store) {
    if (store->dir_fd >= 0)
        remove_checkpoint(store->tmp_path); /* while the lock is ours */
    directory_close(store);
}

static zf_status_t another_save(const zfi_store_t *store, zf_error_t *err) {
    return zfi_error(err, ZF_ERR_STORAGE, "state", "another save is writing %s: one at a time, or to different paths",
                     store->path);
}

/* The temporary directory, made or taken over from a process that is gone, empty and locked. */
static zf_status_t take_tmp(zfi_store_t *store, zf_error_t *err) {
    struct stat mine, there;
    if (mkdir(store->tmp_path, 0777) && errno != EEXIST)
        return fail(err, "cannot make", store->tmp_path, "", errno);
    store->dir_fd = open(store->tmp_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (store->dir_fd < 0)
        return fail(err, "cannot open", store->tmp_path, "", errno);
    if (flock(store->dir_fd, LOCK_EX | LOCK_NB) || fstat(store->dir_fd, &mine) || stat(store->tmp_path, &there) ||
        mine.st_ino != there.st_ino) {
        close(store->dir_fd);
        store->dir_fd = -1;
        return another_save(store, err);
    }
    return ZF_OK;
}

static zf_status_t clear_tmp(zfi_store_t *store, zf_error_t *err) {
    zf_status_t st = check_replaceable(store->tmp_path, err);
    DIR *dir = st ? NULL : opendir(store->tmp_path);
    const struct dirent *entry;
    if (!dir)
        return st ? st : fail(err, "cannot open", store->tmp_path, "", errno);
    while (!st && (entry = readdir(dir)))
        if (is_ours(entry->d_name) && unlinkat(dirfd(dir), entry->d_name, 0))
            st = fail(err, "cannot remove", store->tmp_path, entry->d_name, errno);
    closedir(dir);
    return st;
}

zf_status_t zfi_directory_open_save(zfi_store_t *store, const char *path, zf_error_t *err) {
    zf_status_t st = check_path(path, err);
    if (st)
        return st;
    store->path = plain_path(path);
    store->tmp_path = store->path ? with_suffix(store->path, ".tmp") : NULL;
    if (!store->tmp_path)
        st = zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a path");
    if (!st)
        st = check_replaceable(store->path, err);
    if (!st)
        st = take_tmp(store, err);
    if (!st)
        st = clear_tmp(store, err);
    if (st)
        directory_close(store);
    return st;
}

static zf_status_t directory_begin(zfi_store_t *store, zf_error_t *err) {
    store->blob_fd = openat(store->dir_fd, store->blob, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    return store->blob_fd < 0 ? fail(err, "cannot make", store->tmp_path, store->blob, errno) : ZF_OK;
}

static zf_status_t directory_write(zfi_store_t *store, const void *data, uint64_t nbytes, zf_error_t *err) {
    const unsigned char *from = data;
    uint64_t done = 0;
    while (done < nbytes) {
        ssize_t n = write(store->blob_fd, from + done, nbytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail_at(store, err, "cannot write", store->tmp_path, store->blob, store->at + done, nbytes - done,
                           n < 0 ? errno : ENOSPC);
        done += (uint64_t)n;
    }
    return ZF_OK;
}

static zf_status_t directory_end(zfi_store_t *store, zf_error_t *err) {
    int fd = store->blob_fd, code = store->is_synced && fsync(fd) ? errno : 0;
    store->blob_fd = -1;
    if (close(fd) && !code)
        code = errno;
    return code ? fail_at(store, err, "cannot sync", store->tmp_path, store->blob, 0, store->blob_nbytes, code) : ZF_OK;
}

/* Two renames, where one that exchanges is not to be had. */
static int replace_in_two(const char *tmp, const char *path) {
    char *old = with_suffix(path, ".old");
    int code = old ? 0 : ENOMEM;
    if (!code) {
        remove_checkpoint(old);
        code = rename(path, old) ? errno : 0;
    }
    if (!code && rename(tmp, path)) {
        code = errno;
        rename(old, path);
    }
    if (!code)
        remove_checkpoint(old);
    free(old);
    return code;
}

static int put_in_place(const char *tmp, const char *path) {
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        remove_checkpoint(tmp); /* the former checkpoint */
        return 0;
    }
    if (errno == ENOENT)
        return rename(tmp, path) ? errno : 0;
    if (errno == EINVAL || errno == ENOSYS)
        return replace_in_two(tmp, path);
    return errno;
}

/* The former checkpoint becomes path.tmp for as long as its files are removed: locked like one that is being written,
 * so that no other save takes it over meanwhile. *out_fd = -1: there is none. */
static zf_status_t lock_former(const zfi_store_t *store, int *out_fd, zf_error_t *err) {
    *out_fd = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (*out_fd < 0)
        return errno == ENOENT ? ZF_OK : fail(err, "cannot open", store->path, "", errno);
    return flock(*out_fd, LOCK_EX | LOCK_NB) ? another_save(store, err) : ZF_OK;
}

static zf_status_t replace_former(zfi_store_t *store, zf_error_t *err) {
    int former_fd = -1, code = store->is_synced && fsync(store->dir_fd) ? errno : 0;
    zf_status_t st = check_replaceable(store->path, err); /* again: time has passed */
    if (!st && code)
        st = fail(err, "cannot sync", store->tmp_path, "", code);
    if (!st)
        st = lock_former(store, &former_fd, err);
    if (!st && (code = put_in_place(store->tmp_path, store->path)))
        st = fail(err, "cannot put the new checkpoint in the place of", store->path, "", code);
    if (former_fd >= 0)
        close(former_fd);
    return st;
}

static zf_status_t directory_commit(zfi_store_t *store, zf_error_t *err) {
    zf_status_t st = replace_former(store, err);
    int code;
    if (st)
        return st;                 /* cancel follows */
    flock(store->dir_fd, LOCK_UN); /* in place: the next save may replace it */
    if (store->is_synced && (code = sync_parent(store->path)))
        st = fail(err, "the new checkpoint is in place, but its directory entry cannot be synced:", store->path, "",
                  code);
    directory_close(store);
    return st;
}

/* ---- load ---------------------------------------------------------------------------------------------------------
 */

zf_status_t zfi_directory_open_load(zfi_store_t *store, const char *path, zf_error_t *err) {
    zf_status_t st = check_path(path, err);
    int code;
    if (st)
        return st;
    store->path = plain_path(path);
    if (!store->path)
        return zfi_error(err, ZF_ERR_MEMORY, "state", "no memory for a path");
    store->dir_fd = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    code = errno;
    if (store->dir_fd < 0 && code == ENOENT) { /* between two renames */
        char *old = with_suffix(store->path, ".old");
        store->dir_fd = old ? open(old, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        free(old);
    }
    if (store->dir_fd >= 0)
        return ZF_OK;
    st = fail(err, "cannot open the checkpoint", store->path, "", code);
    free_paths(store);
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
            st = fail_at(store, err, "cannot read", store->path, name, offset + done, nbytes - done, errno);
        else if (n == 0)
            st = zfi_error(err, ZF_ERR_CHECKPOINT, "state", "%s/%s ends at byte %" PRIu64 ", need %" PRIu64,
                           store->path, name, offset + done, offset + nbytes);
        else
            done += (uint64_t)n;
    }
    return st;
}

const zfi_store_ops_t zfi_store_directory = {.begin = directory_begin,
                                             .write = directory_write,
                                             .end = directory_end,
                                             .commit = directory_commit,
                                             .cancel = directory_cancel,
                                             .size = directory_size,
                                             .read = directory_read,
                                             .close = directory_close};
