/* SPDX-License-Identifier: Apache-2.0 */
/* exact_store.c - see exact_store.h. */
#include "exact_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exact_rng.h"
#include "exact_synced.h"

static const char host_suffix[] = ".blobs";
enum { MOST_SWEEPS = 20 };

/* ---- the host's blobs ----------------------------------------------------------------------------------------------
 */

static FILE *open_blob(const zx_store_t *store, const char *name, const char *mode) {
    char file[4400];
    snprintf(file, sizeof file, "%s/%s", store->path, name);
    return fopen(file, mode);
}

static int32_t begin(void *ctx, const char *name, uint64_t nbytes) {
    zx_store_t *store = ctx;
    (void)nbytes;
    store->open = open_blob(store, name, "wb");
    return store->open ? 0 : -errno;
}

static int32_t write_blob(void *ctx, const void *data, uint64_t nbytes) {
    const zx_store_t *store = ctx;
    return fwrite(data, 1, nbytes, store->open) == nbytes ? 0 : -EIO;
}

static int32_t end(void *ctx) {
    zx_store_t *store = ctx;
    return fclose(store->open) ? -EIO : 0;
}

static int32_t size(void *ctx, const char *name, uint64_t *out_nbytes) {
    FILE *blob = open_blob(ctx, name, "rb");
    if (!blob)
        return -errno;
    fseek(blob, 0, SEEK_END);
    *out_nbytes = (uint64_t)ftell(blob);
    fclose(blob);
    return 0;
}

static int32_t read_blob(void *ctx, const char *name, uint64_t offset, void *out, uint64_t nbytes) {
    FILE *blob = open_blob(ctx, name, "rb");
    int is_read;
    if (!blob)
        return -errno;
    is_read = fseek(blob, (long)offset, SEEK_SET) == 0 && fread(out, 1, nbytes, blob) == nbytes;
    fclose(blob);
    return is_read ? 0 : -EIO;
}

/* ---- drawing -------------------------------------------------------------------------------------------------------
 */

void zx_store_draw(zx_store_t *store, uint64_t seed, uint64_t index, uint32_t n, const char *state_path) {
    zx_rng_t rng = zx_rng(seed, 97, index * 16 + n);
    *store = (zx_store_t){.is_host = zx_chance(&rng, 25),
                          .is_bare = zx_chance(&rng, 30),
                          .is_synced = zx_chance(&rng, 10),
                          .has_many_files = zx_chance(&rng, 40),
                          .is_crowded = zx_chance(&rng, 20)};
    store->table = (zf_state_store_t){.struct_size = sizeof store->table,
                                      .ctx = store,
                                      .begin = begin,
                                      .write = write_blob,
                                      .end = end,
                                      .size = size,
                                      .read = read_blob};
    snprintf(store->path, sizeof store->path, "%s%s", state_path, store->is_host ? host_suffix : "");
}

/* Goes to the directory that holds the path and gives the bare name there; the directory left, or -1: not gone. */
static int go_beside(const zx_store_t *store, const char **out_name) {
    char parent[sizeof store->path];
    char *slash;
    int here;
    *out_name = store->path;
    snprintf(parent, sizeof parent, "%s", store->path);
    slash = strrchr(parent, '/');
    if (store->is_host || !store->is_bare || !slash || slash == parent)
        return -1;
    *slash = '\0';
    here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (here < 0 || chdir(parent)) {
        close(here);
        return -1;
    }
    *out_name = store->path + (slash - parent) + 1;
    return here;
}

static void go_back(int here) {
    if (here < 0)
        return;
    if (fchdir(here))
        abort(); /* every relative path of the options would mean something else */
    close(here);
}

/* ---- saves beside readers ------------------------------------------------------------------------------------------
 */

typedef struct zx_reader {
    const zf_state_ext_t *state;
    zf_state_args_t args;
    atomic_int is_over;
    zf_status_t status; /* the first failure, and its record */
    zf_error_t err;
} zx_reader_t;

static void *read_on(void *arg) {
    zx_reader_t *reader = arg;
    do {
        reader->status = reader->state->verify(&reader->args, NULL, &reader->err);
    } while (reader->status >= 0 && !atomic_load(&reader->is_over));
    return NULL;
}

/* What a save left beside the path: ZF_ERR_STORAGE and its name. */
static zf_status_t find_leftover(const char *path, zf_error_t *err) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char parent[4096];
    DIR *dir;
    const struct dirent *entry;
    zf_status_t st = ZF_OK;
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    dir = opendir(parent);
    while (dir && !st && (entry = readdir(dir)))
        if (strncmp(entry->d_name, base, strlen(base)) == 0 &&
            strncmp(entry->d_name + strlen(base), ".zf-save-", 9) == 0) {
            snprintf(err->message, sizeof err->message, "after the last of several saves %.200s lies beside",
                     entry->d_name);
            st = ZF_ERR_STORAGE;
        }
    if (dir)
        closedir(dir);
    return st;
}

/* Saves that were made once are made again while another thread reads, and then without it until what a reader kept is
 * removed: a save leaves that to the next one while another process saves in the same directory. */
static zf_status_t save_in_a_crowd(const zf_state_ext_t *state, zf_instance_t *instance, const zf_state_args_t *args,
                                   zf_error_t *err) {
    zx_reader_t reader = {.state = state, .args = {.struct_size = sizeof reader.args, .path = args->path}};
    pthread_t thread;
    zf_status_t st = ZF_OK;
    reader.err.struct_size = sizeof reader.err;
    if (pthread_create(&thread, NULL, read_on, &reader) != 0)
        return ZF_OK;
    for (int i = 0; i < 2 && st >= 0; i++)
        st = state->save(instance, args, NULL, err);
    atomic_store(&reader.is_over, 1);
    pthread_join(thread, NULL);
    if (st >= 0 && reader.status < 0) {
        *err = reader.err;
        st = reader.status;
    }
    if (st < 0)
        return st;
    for (int i = 0; i < MOST_SWEEPS; i++) {
        st = state->save(instance, args, NULL, err);
        if (st < 0 || find_leftover(args->path, err) >= 0)
            return st;
        usleep(1000);
    }
    return find_leftover(args->path, err);
}

static zf_status_t check_synced(const char *path, zf_error_t *err) {
    const char *missing = zx_synced_missing(path);
    if (!missing)
        return ZF_OK;
    snprintf(err->message, sizeof err->message, "save without ZF_STATE_NO_SYNC has not synced %.200s of %.100s",
             missing, path);
    return ZF_ERR_STORAGE;
}

zf_status_t zx_store_save(zx_store_t *store, const zf_state_ext_t *state, zf_instance_t *instance, uint32_t flags,
                          zf_error_t *err) {
    zf_state_args_t args = {.struct_size = sizeof args, .flags = flags | (store->is_synced ? 0 : ZF_STATE_NO_SYNC)};
    int here = go_beside(store, &args.path), is_watched = store->is_synced && store->is_alone && !store->is_host;
    zf_status_t st;
    if (store->is_host) {
        mkdir(store->path, 0777);
        args.path = NULL;
        args.store = &store->table;
    }
    if (store->has_many_files)
        setenv("ZF_STATE_FILE_NBYTES", "4096", 1);
    if (is_watched)
        zx_synced_begin();
    st = state->save(instance, &args, NULL, err);
    if (st >= 0 && is_watched)
        st = check_synced(args.path, err);
    if (st >= 0 && store->is_crowded && !store->is_host && state->verify)
        st = save_in_a_crowd(state, instance, &args, err);
    unsetenv("ZF_STATE_FILE_NBYTES");
    go_back(here);
    return st;
}

zf_status_t zx_store_load(zx_store_t *store, const zf_state_ext_t *state, zf_instance_t *instance, uint32_t flags,
                          zf_state_report_t *report, zf_error_t *err) {
    zf_state_args_t args = {.struct_size = sizeof args, .flags = flags};
    int here = go_beside(store, &args.path);
    zf_status_t st;
    if (store->is_host) {
        args.path = NULL;
        args.store = &store->table;
    }
    st = state->load(instance, &args, report, err);
    go_back(here);
    return st;
}

/* ---- afterwards ----------------------------------------------------------------------------------------------------
 */

static void remove_directory(const char *path) {
    DIR *dir = opendir(path);
    const struct dirent *entry;
    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(path);
}

void zx_store_remove(const char *state_path) {
    char blobs[4200];
    snprintf(blobs, sizeof blobs, "%s%s", state_path, host_suffix);
    remove_directory(state_path);
    remove_directory(blobs);
}
