/* SPDX-License-Identifier: Apache-2.0 */
/* abi_order.c - proof 5, a save that is killed, or cut off by the power, at any moment: the system calls of a first
 * one, and of one that replaces a checkpoint, in their order.
 *
 * Killed: after every call that moves names, and after every one that writes to the former checkpoint, `verify` finds a
 * whole one at the path, where there was one. Power: what a disk may lose is what was not synced. A new checkpoint
 * takes the path with its index: in the former one's directory, or with a directory of its own. So each of its files is
 * synced behind its last write, and their directory behind the last new name, before that; the directory in which a
 * name changed hands behind that; and nothing of the former is written, cut or removed before. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "abi_probes.h"
#include "abi_traced.h"

enum { MOST_FILES = 256, MOST_FORMER = 32, NAME_NBYTES = 256 };

typedef enum { BEFORE, SAVING, OVER } phase_t;

typedef struct noted { /* a file or a directory; times are numbers of system calls, 0: never */
    dev_t device;
    ino_t number;
    uint64_t made, written, synced;
} noted_t;

typedef struct former { /* a file of the checkpoint that is replaced, but its index */
    int fd;
    struct stat was;
} former_t;

typedef struct order {
    abi_probe_t *probe;
    const zf_state_ext_t *ext;
    char path[4200], above[4200];
    volatile phase_t *phase; /* shared with the traced process */
    uint64_t now, replaced, lost, all_synced;
    const char *lost_how;
    noted_t files[MOST_FILES];
    former_t former[MOST_FORMER];
    int n_former, is_blind;   /* calls are made whose order does not show */
    struct stat there, index; /* what is at the path, and its index */
    int in_place;             /* the directory stayed */
} order_t;

/* ---- what was seen ----------------------------------------------------------------------------------------------- */

static noted_t *note_of(order_t *o, const struct stat *info) {
    for (int i = 0; i < MOST_FILES; i++) {
        noted_t *file = &o->files[i];
        if (file->number == 0)
            *file = (noted_t){.device = info->st_dev, .number = info->st_ino};
        if (file->number == info->st_ino && file->device == info->st_dev)
            return file;
    }
    o->is_blind = 1;
    return &o->files[0];
}

/* Of a file that the traced process has open; NULL: none. */
static noted_t *note_of_fd(order_t *o, const abi_syscall_t *call, uint64_t fd) {
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", call->pid, (int)fd);
    if (stat(path, &info) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)))
        return NULL;
    return note_of(o, &info);
}

static int has_lost(const former_t *f, const char **out_how) {
    struct stat is;
    if (fstat(f->fd, &is) != 0)
        return 0;
    *out_how = is.st_nlink == 0 ? "removed" : is.st_size < f->was.st_size ? "cut" : "written";
    return is.st_nlink == 0 || is.st_size != f->was.st_size || is.st_mtim.tv_sec != f->was.st_mtim.tv_sec ||
           is.st_mtim.tv_nsec != f->was.st_mtim.tv_nsec;
}

static int look_at_former(order_t *o) {
    for (int i = 0; i < o->n_former; i++)
        if (has_lost(&o->former[i], &o->lost_how)) {
            o->lost = o->lost ? o->lost : o->now;
            return 1;
        }
    return 0;
}

static void check_killed(order_t *o, const char *after) {
    const zf_state_args_t args = {.struct_size = sizeof args, .path = o->path};
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st = o->n_former || o->replaced ? o->ext->verify(&args, NULL, &err) : ZF_OK;
    abi_check(o->probe, ABI_RULE_ORDER, st == ZF_OK, "killed after %s, a save leaves no whole checkpoint: %.300s",
              after, err.message);
}

/* ---- the new checkpoint ------------------------------------------------------------------------------------------ */

static int is_synced(const order_t *o, const noted_t *file) {
    return file->synced > file->written || o->all_synced > file->written;
}

/* when: "before it took the path" ... */
static void check_synced(order_t *o, const char *when) {
    DIR *dir = opendir(o->path);
    const noted_t *own = note_of(o, &o->there);
    struct stat info;
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        if (fstatat(dirfd(dir), e->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode))
            continue;
        const noted_t *file = note_of(o, &info);
        abi_check(o->probe, ABI_RULE_ORDER, !file->written || is_synced(o, file),
                  "%s of the new checkpoint was not synced behind its last write %s", e->d_name, when);
        abi_check(o->probe, ABI_RULE_ORDER, !file->made || own->synced > file->made || o->all_synced > file->made,
                  "the new checkpoint's directory was not synced behind the name %s %s", e->d_name, when);
    }
    if (dir)
        closedir(dir);
}

static int stat_index(const order_t *o, struct stat *out) {
    char path[4300];
    snprintf(path, sizeof path, "%s/" ZF_STATE_INDEX, o->path);
    return stat(path, out);
}

static void look_at_path(order_t *o) {
    struct stat is, index;
    if (stat(o->path, &is) != 0)
        return;
    if (stat_index(o, &index) != 0 && !o->there.st_ino) {
        o->there = is;
        note_of(o, &is)->made = o->now;
    }
    if (stat_index(o, &index) != 0 || index.st_ino == o->index.st_ino)
        return;
    o->in_place = is.st_ino == o->there.st_ino;
    o->there = is;
    o->index = index;
    o->replaced = o->now;
    check_synced(o, "before it took the path");
}

static void check_end(order_t *o) {
    struct stat above;
    if (!abi_check(o->probe, ABI_RULE_ORDER, !o->n_former || o->replaced || o->lost,
                   "a save left the former checkpoint at its path") ||
        stat(o->in_place ? o->path : o->above, &above) != 0)
        return;
    const noted_t *own = note_of(o, &o->there);
    uint64_t synced = note_of(o, &above)->synced;
    synced = o->all_synced > synced ? o->all_synced : synced;
    check_synced(o, "at its end");
    abi_check(o->probe, ABI_RULE_ORDER, synced > o->replaced,
              "the directory was not synced in which the new checkpoint took the path, behind that");
    abi_check(o->probe, ABI_RULE_ORDER,
              !own->made || o->all_synced > own->made ||
                  (stat(o->above, &above) == 0 && note_of(o, &above)->synced > own->made),
              "the directory above was not synced behind the name of the first checkpoint's directory");
    abi_check(o->probe, ABI_RULE_ORDER, !o->lost || (o->replaced && o->lost > o->replaced && o->lost > synced),
              "a file of the former checkpoint was %s before the new one was at its path and that was synced",
              o->lost_how);
}

/* ---- system calls ------------------------------------------------------------------------------------------------ */

static int is_of(uint64_t number, const long *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (number == (uint64_t)list[i])
            return 1;
    return 0;
}
#define IS_OF(number, ...)                                                                                             \
    is_of(number, (const long[]){__VA_ARGS__}, sizeof((const long[]){__VA_ARGS__}) / sizeof(long))

static int moves_names(uint64_t number) {
#ifdef SYS_rename
    if (IS_OF(number, SYS_rename, SYS_unlink, SYS_rmdir, SYS_link, SYS_mkdir))
        return 1;
#endif
#ifdef SYS_renameat
    if (number == SYS_renameat)
        return 1;
#endif
    return IS_OF(number, SYS_renameat2, SYS_unlinkat, SYS_linkat, SYS_mkdirat);
}

/* The file that a call wrote to; -1: it wrote to none. */
static int64_t written_fd(const abi_syscall_t *call) {
    if (IS_OF(call->number, SYS_write, SYS_pwrite64, SYS_writev, SYS_pwritev, SYS_pwritev2, SYS_ftruncate,
              SYS_fallocate, SYS_sendfile))
        return (int64_t)call->args[0];
    if (IS_OF(call->number, SYS_copy_file_range, SYS_splice))
        return (int64_t)call->args[2];
    if (call->number == SYS_mmap && (call->args[3] & MAP_SHARED) && (call->args[2] & PROT_WRITE))
        return (int64_t)call->args[4];
    return -1;
}

static uint64_t open_flags(const abi_syscall_t *call) {
#ifdef SYS_open
    if (call->number == SYS_open)
        return call->args[1];
    if (call->number == SYS_creat)
        return O_CREAT | O_TRUNC;
#endif
    return call->number == SYS_openat ? call->args[2] : 0;
}

static void see_write(order_t *o, const abi_syscall_t *call) {
    noted_t *file = note_of_fd(o, call, (uint64_t)written_fd(call));
    if (file)
        file->written = o->now;
    if (look_at_former(o))
        check_killed(o, "a write to the former checkpoint");
}

static void see_open(order_t *o, const abi_syscall_t *call) {
    noted_t *file = note_of_fd(o, call, (uint64_t)call->result);
    if (file && !file->made)
        file->made = o->now;
    if (open_flags(call) & O_TRUNC && file)
        file->written = o->now;
    if (look_at_former(o))
        check_killed(o, "a file of the former checkpoint was cut");
}

static void see(void *ctx, const abi_syscall_t *call) {
    order_t *o = ctx;
    noted_t *file;
    o->now++;
    if (*o->phase != SAVING || call->result < 0)
        return;
    if (IS_OF(call->number, SYS_sync, SYS_syncfs))
        o->all_synced = o->now;
    else if (IS_OF(call->number, SYS_fsync, SYS_fdatasync) && (file = note_of_fd(o, call, call->args[0])))
        file->synced = o->now;
    else if (written_fd(call) >= 0)
        see_write(o, call);
    else if (open_flags(call) & O_CREAT)
        see_open(o, call);
    else if (moves_names(call->number)) {
        look_at_path(o);
        look_at_former(o);
        check_killed(o, "a name was moved");
    }
#ifdef SYS_io_uring_setup
    o->is_blind |= call->number == SYS_io_uring_setup;
#endif
}

/* ---- the save ---------------------------------------------------------------------------------------------------- */

static void keep_former(order_t *o) {
    DIR *dir = opendir(o->path);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL && o->n_former < MOST_FORMER;) {
        former_t *f = &o->former[o->n_former];
        f->fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC);
        if (strcmp(e->d_name, ZF_STATE_INDEX) != 0 && f->fd >= 0 && fstat(f->fd, &f->was) == 0 &&
            S_ISREG(f->was.st_mode))
            o->n_former++;
    }
    if (dir)
        closedir(dir);
    stat(o->path, &o->there);
    stat_index(o, &o->index);
}

static zf_status_t save_at(abi_rig_t *rig, const zf_state_ext_t *ext, const char *path, uint32_t flags) {
    const zf_state_args_t args = {.struct_size = sizeof args, .flags = flags, .path = path};
    return ABI_CALL(rig, ext->save(rig->instance, &args, NULL, &rig->err));
}

/* In the traced process. */
static int save_traced(void *arg) {
    static abi_rig_t rig;
    order_t *o = arg;
    if (!abi_rig_open(&rig, o->probe, o->probe->plugin) || !abi_rig_start(&rig, ABI_ACTIVE))
        return 1;
    *o->phase = SAVING;
    zf_status_t st = save_at(&rig, rig.table->get_extension(ZF_EXT_STATE), o->path, 0);
    *o->phase = OVER;
    abi_rig_check(&rig, ABI_RULE_ORDER, st == ZF_OK, "save", st);
    abi_rig_end(&rig);
    return 0;
}

static void probe_order(abi_rig_t *rig, int is_first) {
    static order_t o;
    o = (order_t){.probe = rig->probe};
    o.ext = rig->table->get_extension(ZF_EXT_STATE);
    o.phase = mmap(NULL, sizeof *o.phase, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(o.path, sizeof o.path, "%s/ordered%d/saved", rig->probe->scratch, is_first);
    snprintf(o.above, sizeof o.above, "%s/ordered%d", rig->probe->scratch, is_first);
    if (!o.ext) {
        abi_skip(rig->probe, ABI_RULE_ORDER, "no extension " ZF_EXT_STATE);
        return;
    }
    mkdir(o.above, 0700);
    if (o.phase == MAP_FAILED || !abi_rig_start(rig, ABI_ACTIVE))
        return;
    zf_status_t st = is_first ? ZF_OK : save_at(rig, o.ext, o.path, ZF_STATE_NO_SYNC);
    abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "save", st);
    abi_rig_end(rig);
    keep_former(&o);
    int status = abi_traced_run(save_traced, &o, see, &o);
    if (status == -1 || o.is_blind)
        abi_skip(rig->probe, ABI_RULE_ORDER, "%s",
                 o.is_blind ? "the save makes calls whose order does not show"
                            : "this process may not trace another (ptrace)");
    else if (status == 0)
        check_end(&o);
}

static void probe_first(abi_rig_t *rig) { probe_order(rig, 1); }
static void probe_over(abi_rig_t *rig) { probe_order(rig, 0); }

const abi_row_t abi_order_rows[] = {{"the order of a first save", ABI_OPEN, 0, probe_first},
                                    {"the order of a save over a checkpoint", ABI_OPEN, 0, probe_over},
                                    {NULL, ABI_NOTHING, 0, NULL}};
