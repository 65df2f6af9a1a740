/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/dir.c - a checkpoint as a directory (contract in state/store.h).
 *
 * Model. The index is the checkpoint: it names its files. A save writes files under names that are free and an index of
 * its own beside the present one, and renames that index. So the index that is there is whole at any moment, and so are
 * the files that it names; a process that is killed leaves files that no index names.
 *
 *   zf_state.json                   the index
 *   zf_state-00001.safetensors ...  data of save 0, the first in a directory
 *   zf_state-N-00001.safetensors    data of save N
 *   zf_state-N.new                  the index of save N, which is on its way; made first, so that N is its own
 *
 * Locks (flock). A save holds its .new exclusively, a reader the first data file of what it reads shared. A save that
 * is over removes the files of every other number: but those of saves on their way, and those that are read. They are
 * left to the next save. Without locks a save on its way cannot be told from a killed one, so both stay; a reader that
 * loses its files begins again with the checkpoint that took their place (zfi_store_begin_again).
 *
 * Order on the disk: data and their names, the index, its name; then names go (conformance/cases/abi_order.c). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "state/store.h"

static zf_status_t fail(zf_error_t *err, const char *what, const zfi_store_t *store, const char *blob, int code) {
    return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, code, "state", "%s %s%s%s: %s", what, store->path,
                            *blob ? "/" : "", blob, strerror(code));
}

static zf_status_t fail_at(zf_error_t *err, const char *what, const zfi_store_t *store, const char *blob, uint64_t at,
                           uint64_t nbytes, int code) {
    return zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, code, "state",
                            "%s %s/%s at byte %" PRIu64 " (%" PRIu64 " bytes): %s", what, store->path, blob, at, nbytes,
                            strerror(code));
}

/* Brings a directory's names to the disk: 0 or errno. A mount that cannot is passed over. */
static int sync_names(zfi_store_t *store, int fd) {
    if (!store->syncs || fsync(fd) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOTSUP && errno != ENOSYS)
        return errno;
    store->lacks_dir_sync = 1;
    return 0;
}

static int is_at(int fd, int dir_fd, const char *name) {
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && fstatat(dir_fd, name, &there, 0) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void directory_close(zfi_store_t *store) {
    close_fd(&store->blob_fd);
    close_fd(&store->held_fd);
    close_fd(&store->index_fd);
    close_fd(&store->claim_fd);
    close_fd(&store->dir_fd);
    if (store->entries)
        closedir(store->entries);
    store->entries = NULL;
}

static zf_status_t open_directory(zfi_store_t *store, const char *what, zf_error_t *err) {
    store->dir_fd = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return store->dir_fd < 0 ? fail(err, what, store, "", errno) : ZF_OK;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

void zfi_store_file_name(uint32_t number, uint32_t file, char out[ZFI_BLOB_NAME]) {
    if (number)
        snprintf(out, ZFI_BLOB_NAME, "zf_state-%" PRIu32 "-%05" PRIu32 ".safetensors", number, file);
    else
        snprintf(out, ZFI_BLOB_NAME, "zf_state-%05" PRIu32 ".safetensors", file);
}

static void new_name(uint32_t number, char out[ZFI_BLOB_NAME]) {
    snprintf(out, ZFI_BLOB_NAME, "zf_state-%" PRIu32 ".new", number);
}

/* The number of the save that gave a file its name; -1: none did. */
static int64_t number_of(const char *name, int *out_is_new) {
    static const char prefix[] = "zf_state-";
    char given[ZFI_BLOB_NAME], *end;
    *out_is_new = 0;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return -1;
    uint32_t a = (uint32_t)strtoul(name + sizeof prefix - 1, &end, 10);
    uint32_t b = *end == '-' ? (uint32_t)strtoul(end + 1, NULL, 10) : 0;
    new_name(a, given);
    if ((*out_is_new = strcmp(name, given) == 0))
        return a;
    zfi_store_file_name(b ? a : 0, b ? b : a, given);
    if (strcmp(name, given) != 0)
        return -1;
    return b ? a : 0;
}

/* The index of a save that is on its way lies under the name of its own. */
static const char *name_of(const zfi_store_t *store, const char *blob, char room[ZFI_BLOB_NAME]) {
    if (!store->is_save || strcmp(blob, ZF_STATE_INDEX) != 0)
        return blob;
    new_name(store->number, room);
    return room;
}

/* The number of the next entry that has one; -1: none is left. */
static int64_t next_number(const zfi_store_t *store, char out_name[ZFI_BLOB_NAME], int *out_is_new) {
    const struct dirent *entry;
    int64_t number = -1;
    while (number < 0 && (entry = readdir(store->entries)))
        if ((number = number_of(entry->d_name, out_is_new)) >= 0)
            memcpy(out_name, entry->d_name, strlen(entry->d_name) + 1); /* as long as number_of knows it */
    return number;
}

/* Removes the files of a save; of one that is not this one unless it is read. */
static void remove_save(const zfi_store_t *store, uint32_t number) {
    char name[ZFI_BLOB_NAME];
    int64_t found;
    int is_new;
    zfi_store_file_name(number, 1, name);
    int fd = openat(store->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    rewinddir(store->entries);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        while ((found = next_number(store, name, &is_new)) >= 0)
            if (found == number)
                unlinkat(store->dir_fd, name, 0);
    close_fd(&fd);
}

/* ---- save -------------------------------------------------------------------------------------------------------- */

/* The highest number that is there, of data alone or of all; -1: none. */
static int64_t highest(const zfi_store_t *store, int is_of_data) {
    char name[ZFI_BLOB_NAME];
    int64_t most = -1, number;
    int is_new;
    rewinddir(store->entries);
    while ((number = next_number(store, name, &is_new)) >= 0)
        if (number > most && !(is_new && is_of_data))
            most = number;
    return most;
}

/* Whether the number is this save's: nobody has taken its file for a killed save's before it was locked, and no other
 * save was over meanwhile, which may still be removing what was there before it. */
static int is_own(const zfi_store_t *store) {
    struct stat info;
    return (flock(store->claim_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
           fstat(store->claim_fd, &info) == 0 && info.st_nlink > 0 && highest(store, 1) < store->number;
}

static zf_status_t claim_number(zfi_store_t *store, zf_error_t *err) {
    enum { TRIES = 1000 };
    char name[ZFI_BLOB_NAME] = "";
    for (int i = 0; i < TRIES; i++) {
        store->number = (uint32_t)(highest(store, 0) + 1);
        new_name(store->number, name);
        store->claim_fd = openat(store->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (store->claim_fd >= 0 && is_own(store))
            return ZF_OK;
        if (store->claim_fd < 0 && errno != EEXIST)
            break;
        close_fd(&store->claim_fd); /* it stays until a save is over */
    }
    return fail(err, "cannot make", store, name, errno);
}

static void directory_cancel(zfi_store_t *store) {
    if (store->claim_fd >= 0)
        remove_save(store, store->number);
    if (store->made_dir && is_at(store->dir_fd, AT_FDCWD, store->path)) /* the working directory may be another */
        rmdir(store->path);
    directory_close(store);
}

static zf_status_t begin_save(zfi_store_t *store, zf_error_t *err) {
    store->made_dir = mkdir(store->path, 0777) == 0;
    if (!store->made_dir && errno != EEXIST)
        return fail(err, "cannot make the directory", store, "", errno);
    zf_status_t st = open_directory(store, "cannot open the directory", err);
    if (!st && store->made_dir) {
        int above = openat(store->dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int code = above < 0 ? errno : sync_names(store, above);
        close_fd(&above);
        if (code)
            st = fail(err, "cannot sync the directory that holds", store, "", code);
    }
    if (st)
        return st;
    int fd = openat(store->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    store->entries = fd < 0 ? NULL : fdopendir(fd);
    if (store->entries)
        return claim_number(store, err);
    st = errno == ENOMEM ? zfi_error(err, ZF_ERR_MEMORY, "state", "no memory to read the directory %s", store->path)
                         : fail(err, "cannot read the directory", store, "", errno);
    close_fd(&fd);
    return st;
}

zf_status_t zfi_directory_open_save(zfi_store_t *store, zf_error_t *err) {
    zf_status_t st = begin_save(store, err);
    if (st)
        directory_cancel(store);
    return st;
}

zf_status_t zfi_directory_join_save(zfi_store_t *store, zf_error_t *err) {
    char name[ZFI_BLOB_NAME];
    new_name(store->number, name);
    store->dir_fd = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->dir_fd >= 0 && faccessat(store->dir_fd, name, F_OK, 0) == 0)
        return ZF_OK;
    zfi_error_scoped(err, ZF_ERR_STORAGE, ZF_SCOPE_CALL, errno, "state",
                     "in %s there is no \"%s\", which rank 0 has made in what it was given: give every rank the same "
                     "directory, of a file system that all of them see (%s)",
                     store->path, name, strerror(errno));
    directory_close(store);
    return ZF_ERR_STORAGE;
}

/* The first rank that comes makes a blob of all ranks; the index is made already. */
static zf_status_t directory_begin(zfi_store_t *store, zf_error_t *err) {
    char room[ZFI_BLOB_NAME];
    const char *name = name_of(store, store->blob, room);
    int new_alone = store->is_shared || name == room ? 0 : O_EXCL;
    store->blob_fd = openat(store->dir_fd, name, O_WRONLY | O_CREAT | new_alone | O_CLOEXEC | O_NOFOLLOW, 0666);
    return store->blob_fd < 0 ? fail(err, "cannot make", store, name, errno) : ZF_OK;
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
            return fail_at(err, "cannot write", store, store->blob, offset + done, nbytes - done,
                           n < 0 ? errno : ENOSPC);
        done += (uint64_t)n;
    }
    return ZF_OK;
}

static zf_status_t directory_end(zfi_store_t *store, zf_error_t *err) {
    int fd = store->blob_fd, code = store->syncs && fsync(fd) ? errno : 0;
    store->blob_fd = -1;
    if (close(fd) && !code)
        code = errno;
    return code ? fail_at(err, "cannot sync", store, store->blob, 0, store->blob_nbytes, code) : ZF_OK;
}

/* ---- into its place ---------------------------------------------------------------------------------------------- */

/* Numbers of saves; what finds no room is left to the next save. */
typedef struct numbers {
    uint32_t n, all[64];
} numbers_t;

static int has_number(const numbers_t *numbers, int64_t number) {
    uint32_t i = 0;
    while (i < numbers->n && numbers->all[i] != number)
        i++;
    return i < numbers->n;
}

static void add_number(numbers_t *numbers, int64_t number) {
    if (numbers->n < sizeof numbers->all / sizeof *numbers->all && !has_number(numbers, number))
        numbers->all[numbers->n++] = (uint32_t)number;
}

/* Whether the process of a save lives, or may. The index of one that does not goes. */
static int is_on_its_way(const zfi_store_t *store, const char *name) {
    int fd = openat(store->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int is_locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (is_locked)
        unlinkat(store->dir_fd, name, 0);
    close_fd(&fd);
    return !is_locked;
}

/* Finds the saves of any process that are over, of lower numbers: a higher one may be taken again. */
static void find_over(const zfi_store_t *store, numbers_t *out) {
    numbers_t alive = {.n = 1, .all = {store->number}};
    char name[ZFI_BLOB_NAME];
    int64_t number;
    int is_new;
    rewinddir(store->entries);
    while ((number = next_number(store, name, &is_new)) >= 0)
        if (is_new && number != store->number && is_on_its_way(store, name))
            add_number(&alive, number);
    rewinddir(store->entries);
    while ((number = next_number(store, name, &is_new)) >= 0 && alive.n < sizeof alive.all / sizeof *alive.all)
        if (number < store->number && !has_number(&alive, number))
            add_number(out, number);
}

/* What is over is found before the index changes: a save that takes this one's place meanwhile is not among it. */
static zf_status_t directory_commit(zfi_store_t *store, zf_error_t *err) {
    char name[ZFI_BLOB_NAME];
    numbers_t over = {0};
    int code = sync_names(store, store->dir_fd);
    new_name(store->number, name);
    if (code)
        return fail(err, "cannot sync the directory", store, "", code);
    find_over(store, &over);
    if (renameat(store->dir_fd, name, store->dir_fd, ZF_STATE_INDEX))
        return fail(err, "cannot replace the index of", store, "", errno);
    code = sync_names(store, store->dir_fd);
    for (uint32_t i = 0; i < over.n && !code; i++)
        remove_save(store, over.all[i]);
    if (code)
        fail(err,
             "the new checkpoint is in its place, but may be lost if the machine stops; the former one's files stay: "
             "cannot sync the directory",
             store, "", code);
    directory_close(store);
    store->made_dir = 0; /* cancel may follow */
    return code ? ZF_ERR_STORAGE : ZF_OK;
}

/* ---- load -------------------------------------------------------------------------------------------------------- */

static zf_status_t open_index(zfi_store_t *store, zf_error_t *err) {
    store->index_fd = openat(store->dir_fd, ZF_STATE_INDEX, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return store->index_fd < 0 ? fail(err, "cannot open the checkpoint", store, ZF_STATE_INDEX, errno) : ZF_OK;
}

zf_status_t zfi_directory_open_load(zfi_store_t *store, zf_error_t *err) {
    zf_status_t st = open_directory(store, "cannot open the checkpoint", err);
    if (!st)
        st = open_index(store, err);
    if (st)
        directory_close(store);
    return st;
}

static zf_status_t directory_hold(zfi_store_t *store, const char *name, zf_error_t *err) {
    struct stat info;
    if (store->is_save)
        return ZF_OK;
    store->held_fd = openat(store->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (store->held_fd < 0)
        return fail(err, "cannot open", store, name, errno);
    if ((flock(store->held_fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK) ||
        (fstat(store->held_fd, &info) == 0 && info.st_nlink == 0))
        return fail(err, "another save is removing", store, name, EAGAIN);
    return ZF_OK;
}

static int directory_begin_again(zfi_store_t *store) {
    if (store->is_save || is_at(store->index_fd, store->dir_fd, ZF_STATE_INDEX))
        return 0;
    close_fd(&store->blob_fd);
    close_fd(&store->held_fd);
    close_fd(&store->index_fd);
    return open_index(store, NULL) == ZF_OK;
}

static zf_status_t open_blob(zfi_store_t *store, const char *blob, zf_error_t *err) {
    char room[ZFI_BLOB_NAME];
    struct stat info;
    const char *name = name_of(store, blob, room);
    if (store->blob_fd >= 0 && strcmp(store->blob, blob) == 0)
        return ZF_OK;
    close_fd(&store->blob_fd);
    store->blob_fd = openat(store->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (store->blob_fd < 0)
        return fail(err, "cannot open", store, name, errno);
    if (fstat(store->blob_fd, &info) || !S_ISREG(info.st_mode)) {
        close_fd(&store->blob_fd);
        return zfi_error(err, ZF_ERR_STORAGE, "state", "%s/%s is not a regular file", store->path, name);
    }
    snprintf(store->blob, sizeof store->blob, "%s", blob);
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
            st = fail_at(err, "cannot read", store, name, offset + done, nbytes - done, errno);
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
                                             .hold = directory_hold,
                                             .begin_again = directory_begin_again,
                                             .size = directory_size,
                                             .read = directory_read,
                                             .close = directory_close};
