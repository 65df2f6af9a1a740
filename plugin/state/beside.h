/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/beside.h - the directories that lie beside a checkpoint while it is replaced.
 *
 * Name:   <checkpoint's name>.zf-save-<16 random hexadecimal digits>, in the same parent directory
 * Mark:   the file zf_state.mark in it holds three words: what it is, its own name, the checkpoint's name. A directory
 *         is of a save only where its mark names it. So nothing that a user made, copied or renamed is ever touched.
 *   saving    a checkpoint that is being written
 *   replaced  the former checkpoint, whose files are being removed
 *   aside     the former checkpoint between two renames, where the file system cannot exchange two names at once
 * Order:  what a mark says is on the disk before what it is there for: files come into the directory, names change, and
 *         the mark goes when the files are gone. So a machine that stops leaves nothing that nobody would find again
 *         (tests/plugin/test_state_crash.c tries every such state). A save without sync, or on a mount that does not
 *         sync directories, keeps that order only as long as the machine runs.
 * Lock:   a process that writes or reads one holds it shared (flock), one that removes it holds it exclusively. Where
 *         the file system has no locks, nothing that another process may be using is removed.
 *
 * What a killed process left is removed by the next save to the same path. A checkpoint that is aside while none is at
 * the path is the only one: the next save or load puts it back, and nothing removes it. */
#pragma once

#include <dirent.h>
#include <sys/stat.h>

#define ZFI_BESIDE_MARK "zf_state.mark"
enum { ZFI_BESIDE_NAME = 256 };

typedef enum zfi_beside { ZFI_BESIDE_NONE, ZFI_BESIDE_SAVING, ZFI_BESIDE_REPLACED, ZFI_BESIDE_ASIDE } zfi_beside_t;

/* Whether what is written is to be on the disk before what comes after it, and whether the mount cannot say that of a
 * directory: its fsync fails with EINVAL, ENOTSUP or ENOSYS, which is passed over. */
typedef struct zfi_sync {
    int is_wanted, lacks_directories;
} zfi_sync_t;

/* Functions return 0 or errno. parent_fd is the parent directory; base is the checkpoint's name in it. */

/* Brings a directory's names to the disk, if that is wanted. */
int zfi_beside_sync(int dir_fd, zfi_sync_t *sync);

/* A name that nobody has. */
void zfi_beside_name(const char *base, char out[ZFI_BESIDE_NAME]);
/* Makes a marked directory, locked shared; its mark is on the disk before anything else that comes into it. It gets its
 * name by a rename, so a mount that cannot rename directories fails here, before anything is written: then
 * *out_cannot_rename is 1, and nothing is left. */
int zfi_beside_make(int parent_fd, const char *base, mode_t mode, zfi_sync_t *sync, char out_name[ZFI_BESIDE_NAME],
                    int *out_fd, int *out_cannot_rename);
/* Whether what lies at the path can be renamed, asked by a rename that changes nothing: onto the directory `name`,
 * which holds its mark. */
int zfi_beside_try_rename(int parent_fd, const char *base, const char *name);
/* Marks a directory that has, or is about to get, this name; the mark is on the disk afterwards. */
int zfi_beside_mark(int dir_fd, zfi_beside_t what, const char *name, const char *base, zfi_sync_t *sync);
void zfi_beside_unmark(int dir_fd);
/* Removes a checkpoint's files, then the directory; whatever else is in it stays, and the directory with it. Keeps
 * everything where another process holds a lock. The caller's own lock on dir is given up. */
void zfi_beside_remove(int parent_fd, const char *name, DIR *dir, zfi_sync_t *sync);
/* The caller holds the lock on the parent directory, and there is nothing to put back. Removes what killed processes
 * left. Fails only for want of memory. */
int zfi_beside_sweep(int parent_fd, const char *base, zfi_sync_t *sync);
/* The former checkpoint that lies aside; ENOENT: there is none. */
int zfi_beside_find_aside(int parent_fd, const char *base, char out_name[ZFI_BESIDE_NAME]);

/* The caller holds the lock on the parent directory. Puts the former checkpoint that lies aside back to the path where
 * none is, on the disk; ENOENT: there is nothing to put back. */
int zfi_beside_put_back(int parent_fd, const char *base, zfi_sync_t *sync);
/* A checkpoint is at the path: a directory with an index. */
int zfi_beside_is_there(int parent_fd, const char *base);

/* A name that a checkpoint's file can have: the index, the mark, or a data file with its five digits or more. */
int zfi_beside_is_file(const char *name);
