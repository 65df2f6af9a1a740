/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/crash_disk.c - see crash_disk.h. A name stays with its number: that of a file or directory that is gone
 * is not used again. */
#define _GNU_SOURCE
#include "crash_disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "suite.h"
#include "wrap.h"

enum { MOST_NODES = 32, MOST_NAMES = 16, MOST_CALLS = 128, ALL_OF = 10, MOST_STATES = 1 << 16, PATH_NBYTES = 600 };

typedef struct name {
    char text[256];
    int node;
} name_t;

/* A file or a directory as one state has it. */
typedef struct node {
    int is_dir, n_names;
    name_t names[MOST_NAMES];
    size_t nbytes; /* of data, which the state has */
} node_t;

typedef enum kind { MAKE, WRITE, SYNC, RENAME, REMOVE } kind_t;

typedef struct call {
    kind_t kind;
    int node, made; /* node: the directory, or the file of WRITE and SYNC */
    char from[256], to[256];
    size_t end; /* WRITE: bytes of the file from then on */
} call_t;

static struct disk { node_t nodes[MOST_NODES]; } first, state;
static struct {
    ino_t inode;
    unsigned char *data; /* of a file: all that is ever written to it */
    size_t nbytes;
} known[MOST_NODES];
static int n_nodes, n_calls, is_recording;
static call_t calls[MOST_CALLS];
static const char *made_in;

/* ---- what is recorded -------------------------------------------------------------------------------------------- */

static int add_node(ino_t inode) {
    ck_assert_int_lt(n_nodes, MOST_NODES);
    known[n_nodes].inode = inode;
    return n_nodes++;
}

/* The newest of the number; -1: it is none of the directory's. */
static int node_of(int fd) {
    struct stat info;
    if (is_recording && fstat(fd, &info) == 0)
        for (int i = n_nodes; i-- > 0;)
            if (known[i].inode == info.st_ino)
                return i;
    return -1;
}

static call_t *record(kind_t kind, int node, const char *from, const char *to) {
    call_t *call = &calls[n_calls++];
    ck_assert_int_lt(n_calls, MOST_CALLS);
    *call = (call_t){.kind = kind, .node = node};
    snprintf(call->from, sizeof call->from, "%s", from);
    snprintf(call->to, sizeof call->to, "%s", to);
    return call;
}

ZT_WRAP(int, openat, int dir, const char *name, int flags, ...) {
    struct stat info;
    mode_t mode = 0;
    int at = node_of(dir), is_new = at >= 0 && (flags & O_CREAT) && fstatat(dir, name, &info, AT_SYMLINK_NOFOLLOW) != 0;
    if (flags & O_CREAT) {
        va_list rest;
        va_start(rest, flags);
        mode = (mode_t)va_arg(rest, int);
        va_end(rest);
    }
    int fd = __real_openat(dir, name, flags, mode);
    if (fd >= 0 && is_new && fstat(fd, &info) == 0)
        record(MAKE, at, "", name)->made = add_node(info.st_ino);
    return fd;
}

ZT_WRAP(int, mkdir, const char *path, mode_t mode) {
    const char *name = strrchr(path, '/');
    int rc = __real_mkdir(path, mode), above = is_recording ? open(path, O_RDONLY | O_DIRECTORY) : -1, at;
    struct stat info;
    if (above < 0)
        return rc;
    ck_assert(name && fstat(above, &info) == 0);
    int parent = __real_openat(above, "..", O_RDONLY | O_DIRECTORY, 0);
    if (!rc && (at = node_of(parent)) >= 0) {
        call_t *call = record(MAKE, at, "", name + 1);
        call->made = add_node(info.st_ino);
        first.nodes[call->made].is_dir = 1;
    }
    close(parent);
    close(above);
    return rc;
}

static void keep_data(int node, const void *data, size_t n) {
    known[node].data = realloc(known[node].data, known[node].nbytes + n);
    memcpy(known[node].data + known[node].nbytes, data, n);
    known[node].nbytes += n;
}

/* Writes that follow each other are two: the first half of their bytes, and the rest. */
static ssize_t note_write(int fd, const void *data, ssize_t done) {
    int node = node_of(fd);
    if (node < 0 || done <= 0)
        return done;
    keep_data(node, data, (size_t)done);
    if (!n_calls || calls[n_calls - 1].kind != WRITE || calls[n_calls - 1].node != node) {
        record(WRITE, node, "", "");
        record(WRITE, node, "", "");
    }
    calls[n_calls - 1].end = known[node].nbytes;
    calls[n_calls - 2].end = known[node].nbytes - known[node].nbytes / 2;
    return done;
}

ZT_WRAP(ssize_t, write, int fd, const void *data, size_t n) { return note_write(fd, data, __real_write(fd, data, n)); }

/* One rank writes its files from their beginning to their end. */
ZT_WRAP(ssize_t, pwrite, int fd, const void *data, size_t n, off_t at) {
    int node = node_of(fd);
    ck_assert(node < 0 || (size_t)at == known[node].nbytes);
    return note_write(fd, data, __real_pwrite(fd, data, n, at));
}

ZT_WRAP(int, fsync, int fd) {
    int node = node_of(fd), rc = __real_fsync(fd);
    if (!rc && node >= 0)
        record(SYNC, node, "", "");
    return rc;
}

ZT_WRAP(int, renameat, int from_dir, const char *from, int to_dir, const char *to) {
    int at = node_of(from_dir), rc = __real_renameat(from_dir, from, to_dir, to);
    if (!rc && at >= 0)
        record(RENAME, at, from, to);
    return rc;
}

ZT_WRAP(int, unlinkat, int dir, const char *name, int flags) {
    int at = node_of(dir), rc = __real_unlinkat(dir, name, flags);
    if (!rc && at >= 0)
        record(REMOVE, at, name, "");
    return rc;
}

/* ---- the disk before --------------------------------------------------------------------------------------------- */

static void read_file(int node, int fd) {
    char block[4096];
    ssize_t n;
    while ((n = read(fd, block, sizeof block)) > 0)
        keep_data(node, block, (size_t)n);
    first.nodes[node].nbytes = known[node].nbytes;
}

static void add_name(node_t *dir, const char *text, int node) {
    ck_assert_int_lt(dir->n_names, MOST_NAMES);
    snprintf(dir->names[dir->n_names].text, sizeof dir->names->text, "%s", text);
    dir->names[dir->n_names++].node = node;
}

static int read_node(int parent, const char *name) {
    struct stat info;
    int fd = __real_openat(parent, name, O_RDONLY | O_CLOEXEC, 0), node;
    const struct dirent *entry;
    ck_assert(fd >= 0 && fstat(fd, &info) == 0);
    node = add_node(info.st_ino);
    first.nodes[node].is_dir = S_ISDIR(info.st_mode);
    if (!first.nodes[node].is_dir) {
        read_file(node, fd);
        close(fd);
        return node;
    }
    DIR *dir = fdopendir(fd);
    while ((entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            add_name(&first.nodes[node], entry->d_name, read_node(fd, entry->d_name));
    closedir(dir);
    return node;
}

void zt_crash_begin(const char *dir) {
    for (int i = 0; i < n_nodes; i++)
        free(known[i].data);
    memset(known, 0, sizeof known);
    memset(&first, 0, sizeof first);
    n_nodes = n_calls = 0;
    read_node(AT_FDCWD, dir);
    is_recording = 1;
}

void zt_crash_end(void) { is_recording = 0; }

/* ---- a state ----------------------------------------------------------------------------------------------------- */

static name_t *find(node_t *dir, const char *text) {
    for (int i = 0; i < dir->n_names; i++)
        if (strcmp(dir->names[i].text, text) == 0)
            return &dir->names[i];
    return NULL;
}

static void drop(node_t *dir, name_t *name) { *name = dir->names[--dir->n_names]; }

static int may_go(const name_t *name) { return !state.nodes[name->node].n_names; }

static int rename_in(node_t *dir, const call_t *call) {
    name_t *from = find(dir, call->from), *to = find(dir, call->to);
    int node = from ? from->node : -1;
    if (!from || (to && !may_go(to)))
        return 0;
    if (to)
        to->node = node;
    else
        add_name(dir, call->to, node);
    drop(dir, find(dir, call->from));
    return 1;
}

/* 0: what it needs is not there. */
static int apply(const call_t *call) {
    node_t *node = &state.nodes[call->node];
    name_t *name;
    switch (call->kind) {
    case MAKE:
        add_name(node, call->to, call->made);
        return 1;
    case WRITE:
        if (call->end > node->nbytes)
            node->nbytes = call->end;
        return 1;
    case RENAME:
        return rename_in(node, call);
    case REMOVE:
        name = find(node, call->from);
        if (!name || !may_go(name))
            return 0;
        drop(node, name);
        return 1;
    default:
        return 1;
    }
}

/* A file's second half does not come without the first one: what the file system gives there instead, a checksum finds
 * as well as an end that is missing. */
static int make_state(int n, const unsigned char *is_kept) {
    state = first;
    for (int i = 0; i < n; i++) {
        if (is_kept[i] && i > 0 && calls[i].kind == WRITE && calls[i - 1].kind == WRITE && !is_kept[i - 1])
            return 0;
        if (is_kept[i] && !apply(&calls[i]))
            return 0;
    }
    return 1;
}

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

/* Of all that can be reached; the order of names does not count. */
static uint64_t hash_of(int node) {
    const node_t *n = &state.nodes[node];
    uint64_t sum = mix((uint64_t)n->is_dir, n->is_dir ? 0 : mix((uint64_t)node, n->nbytes));
    for (int i = 0; i < n->n_names; i++) {
        uint64_t hash = hash_of(n->names[i].node);
        for (const char *c = n->names[i].text; *c; c++)
            hash = mix(hash, (unsigned char)*c);
        sum += hash;
    }
    return mix(sum, 1);
}

static void make_node(const char *path, int node) {
    const node_t *n = &state.nodes[node];
    char below[PATH_NBYTES];
    if (n->is_dir) {
        ck_assert_int_eq(mkdir(path, 0777), 0);
        for (int i = 0; i < n->n_names; i++) {
            snprintf(below, sizeof below, "%s/%s", path, n->names[i].text);
            make_node(below, n->names[i].node);
        }
        return;
    }
    FILE *file = fopen(path, "w");
    ck_assert(file && fwrite(known[node].data, 1, n->nbytes, file) == n->nbytes && fclose(file) == 0);
}

void zt_crash_make_again(void) {
    ck_assert_int_eq(zt_shell("rm -rf '%s'", made_in), 0);
    make_node(made_in, 0);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static uint64_t seen[MOST_STATES]; /* by hash, 0: free */
static int n_states;
static void (*look_at)(const char *dir, int is_over);

static int is_new(uint64_t hash) {
    uint64_t at = hash % MOST_STATES;
    hash |= 1;
    while (seen[at] && seen[at] != hash)
        at = (at + 1) % MOST_STATES;
    if (seen[at])
        return 0;
    seen[at] = hash;
    ck_assert_int_lt(++n_states, MOST_STATES / 2);
    return 1;
}

static void look(int n, const unsigned char *is_kept) {
    if (!make_state(n, is_kept) || !is_new(mix(hash_of(0), n == n_calls)))
        return;
    zt_crash_make_again();
    look_at(made_in, n == n_calls);
}

static int is_synced(int i, int n) {
    for (int k = i + 1; k < n; k++)
        if (calls[k].kind == SYNC && calls[k].node == calls[i].node)
            return 1;
    return 0;
}

static void look_at_subsets(int n, const int *free_ones, int n_free, unsigned char *is_kept) {
    for (unsigned kept = 0; kept < 1u << n_free; kept++) {
        for (int i = 0; i < n_free; i++)
            is_kept[free_ones[i]] = kept >> i & 1;
        look(n, is_kept);
    }
}

/* All but one or two, or one or two alone. */
static void look_at_pairs(int n, const int *free_ones, int n_free, unsigned char *is_kept) {
    for (int alone = 0; alone < 2; alone++)
        for (int a = 0; a < n_free; a++)
            for (int b = a; b < n_free; b++) {
                for (int i = 0; i < n_free; i++)
                    is_kept[free_ones[i]] = (i == a || i == b) == alone;
                look(n, is_kept);
            }
    for (int all = 0; all < 2; all++) {
        for (int i = 0; i < n_free; i++)
            is_kept[free_ones[i]] = (unsigned char)all;
        look(n, is_kept);
    }
}

static void stop_after(int n) {
    unsigned char is_kept[MOST_CALLS];
    int free_ones[MOST_CALLS], n_free = 0;
    memset(is_kept, 1, sizeof is_kept);
    for (int i = 0; i < n; i++)
        if (calls[i].kind != SYNC && !is_synced(i, n))
            free_ones[n_free++] = i;
    if (n_free <= ALL_OF)
        look_at_subsets(n, free_ones, n_free, is_kept);
    else
        look_at_pairs(n, free_ones, n_free, is_kept);
}

int zt_crash_each(const char *dir, void (*called)(const char *dir, int is_over)) {
    memset(seen, 0, sizeof seen);
    n_states = 0;
    made_in = dir;
    look_at = called;
    for (int n = 0; n <= n_calls; n++)
        stop_after(n);
    return n_states;
}
