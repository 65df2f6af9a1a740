/* SPDX-License-Identifier: Apache-2.0 */
/* exact_damage.c - see exact_damage.h. */
#include "exact_damage.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exact_state.h"
#include "exact_store.h"
#include "zf/ext/state.h"

typedef enum zx_damage { BYTE_CHANGED, CUT_SHORT, GONE, OTHER_MODEL, N_DAMAGES } zx_damage_t;

static const char *const names[N_DAMAGES] = {"load of a damaged file", "load of a file cut short",
                                             "load without a file", "load of another model"};

static void damaged_path(const char *state_path, char *out, size_t nbytes) {
    snprintf(out, nbytes, "%s.damaged", state_path);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* One of the directory's files by its number, in the order of their names. */
static int choose_file(const char *dir_path, uint32_t number, char *out, size_t nbytes) {
    struct dirent **entries;
    int n = scandir(dir_path, &entries, NULL, alphasort), n_files = 0, is_found = 0;
    for (int i = 0; i < n; i++)
        n_files += entries[i]->d_name[0] != '.';
    for (int i = 0, at = 0; i < n && n_files > 0; i++) {
        if (entries[i]->d_name[0] != '.' && (uint32_t)at++ == number % (uint32_t)n_files) {
            snprintf(out, nbytes, "%s/%s", dir_path, entries[i]->d_name);
            is_found = 1;
        }
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    return is_found ? 0 : -1;
}

/* Not to the same letter in the other case: a checksum in the index is a number in hexadecimal digits. */
static int change_byte(const char *path, long at, int bit) {
    FILE *file = fopen(path, "r+b");
    int byte = file && fseek(file, at, SEEK_SET) == 0 ? fgetc(file) : EOF, is_changed = 0;
    if (bit == 32 && isalpha(byte))
        bit = 16;
    if (byte != EOF)
        is_changed = fseek(file, at, SEEK_SET) == 0 && fputc(byte ^ bit, file) != EOF;
    return file && fclose(file) == 0 && is_changed ? 0 : -1;
}

static const zf_state_ext_t *extension(const zx_run_t *run) {
    return zf_loader_plugin(run->host.loader)->get_extension(ZF_EXT_STATE);
}

/* ---- another model ----------------------------------------------------------------------------------------------- */

/* Saves an instance whose only parameter has the name of one of the run's and one element more. */
static zf_status_t save_another(const zx_run_t *run, const zf_state_args_t *args, zf_error_t *err) {
    const zx_host_t *h = &run->host;
    const zx_param_t *p = run->c->params;
    int64_t shape[1];
    zf_tensor_t tensor;
    zf_param_decl_t decl = {.struct_size = sizeof decl, .tensor = &tensor};
    zf_create_args_t create = {.struct_size = sizeof create, .host = &h->table, .device_type = ZF_DEVICE_CPU};
    zf_group_decl_t groups[ZX_MAX_GROUPS];
    zf_bind_args_t bind = zx_bind_args(run->c, groups);
    zf_instance_t *other = NULL;
    uint32_t id;
    zf_status_t st = h->zf->create(&create, &other, err);
    while (!zx_is_trainable(p))
        p++;
    shape[0] = (int64_t)zx_n_elems(p) + 1;
    float *values = zx_alloc((uint64_t)shape[0] * sizeof *values);
    zf_tensor_contiguous(values, zf_dtype_float32(), 1, shape, &tensor);
    decl.name = p->name;
    decl.group = p->decl.group;
    bind.decls = &decl;
    bind.n_decls = 1;
    if (st >= 0)
        st = h->zf->bind_params(other, &bind, &id, NULL, err);
    if (st >= 0)
        st = extension(run)->save(other, args, NULL, err);
    h->zf->destroy(other, NULL);
    free(values);
    return st;
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static int damage(const char *dir_path, zx_damage_t how, zx_rng_t *r) {
    char path[4500];
    struct stat info;
    if (choose_file(dir_path, (uint32_t)(zx_rng_bits(r) >> 40), path, sizeof path) || stat(path, &info))
        return -1;
    if (how == GONE)
        return unlink(path);
    if (how == CUT_SHORT)
        return truncate(path, info.st_size - 1 - zx_below(r, (uint32_t)info.st_size));
    return change_byte(path, (long)(zx_rng_bits(r) % (uint64_t)info.st_size), 1 << zx_below(r, 8));
}

static void save_and_damage(zx_run_t *run, const zf_state_args_t *args, const char *path, zx_rng_t *r) {
    zx_where_t where = {.law = run->c->law, .what = "a checkpoint", .step = run->host.step, .element = UINT64_MAX};
    zf_status_t st = extension(run)->save(run->host.instance, args, NULL, &run->host.err);
    if (st >= 0 && run->damage == OTHER_MODEL)
        st = save_another(run, args, &run->host.err);
    if (!zx_is_call_bad(&run->host, "save", st) && run->damage != OTHER_MODEL &&
        damage(path, (zx_damage_t)run->damage, r))
        zx_fails(run->result, &where, "could not be damaged for \"%s\"", names[run->damage]);
}

static void expect_refusal(zx_run_t *run, const zf_state_args_t *args) {
    zf_error_t err = {.struct_size = sizeof err};
    zx_where_t where = {.law = run->c->law, .what = names[run->damage], .step = run->host.step, .element = UINT64_MAX};
    zf_status_t st = extension(run)->load(run->host.instance, args, NULL, &err);
    zx_count_drawn(run->result, ZX_FAILED_LOAD, 1);
    if (st != ZF_ERR_CHECKPOINT && st != ZF_ERR_STORAGE)
        zx_fails(run->result, &where, "status %d", st);
    if (!extension(run)->verify)
        return;
    st = extension(run)->verify(args, NULL, &err);
    if (run->damage == OTHER_MODEL ? st < 0 : st != ZF_ERR_CHECKPOINT && st != ZF_ERR_STORAGE)
        zx_fails(run->result, &where, "verify says %d of it, and it is %s", st,
                 run->damage == OTHER_MODEL ? "whole" : "damaged");
}

void zx_run_damage_point(zx_run_t *run) {
    zx_rng_t *r = &run->damages;
    int is_due = zx_law_saves(run->c->law) && !run->c->ranks && zx_chance(r, 20), has_damaged = run->has_damaged;
    zx_rng_t how = zx_rng(zx_rng_bits(r), 0, 0);
    char path[4200];
    blobs_t blobs;
    zf_state_args_t args = {.struct_size = sizeof args, .flags = has_damaged ? 0 : ZF_STATE_NO_SYNC};
    if (!is_due)
        return;
    if (!has_damaged) {
        run->damage = zx_below(&how, run->host.is_on_gpu ? OTHER_MODEL : N_DAMAGES); /* that one is made on the CPU */
        run->is_damaged_by_host = zx_chance(&how, 50);
    }
    run->has_damaged = 1;
    damaged_path(run->state_path, path, sizeof path);
    blobs_init(&blobs, path);
    if (run->is_damaged_by_host)
        mkdir(path, 0777), args.store = &blobs.table;
    else
        args.path = path;
    if (!run->is_dry && !has_damaged)
        save_and_damage(run, &args, path, &how);
    else if (!run->is_dry)
        expect_refusal(run, &args);
    zx_host_settle(&run->host, 1); /* both bring the instance to rest */
    run->host.is_quiet = 1;
    zo_rest(run->oracle);
    if (!has_damaged)
        zo_save(run->oracle);
}

void zx_damage_remove(const char *state_path) {
    char path[4200];
    damaged_path(state_path, path, sizeof path);
    zx_store_remove(path);
}
