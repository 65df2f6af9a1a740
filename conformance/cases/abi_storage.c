/* SPDX-License-Identifier: Apache-2.0 */
/* abi_storage.c - proof 5, checkpoints at their limits: notes of 64 KiB, what reports count, a damaged byte anywhere in
 * a large tensor, and what the system refuses. */
#define _GNU_SOURCE /* unshare */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi_probes.h"
#include "harness/blobs.h"
#include "harness/clock.h"
#include "harness/rig.h"

typedef struct storage {
    abi_rig_t *rig;
    const zf_state_ext_t *ext;
    zf_state_args_t args;
    char path[4200];
} storage_t;

static int start(storage_t *s, abi_rig_t *rig, const char *name) {
    *s = (storage_t){.rig = rig, .ext = rig->table->get_extension(ZF_EXT_STATE)};
    snprintf(s->path, sizeof s->path, "%s/%s", rig->probe->scratch, name);
    s->args = (zf_state_args_t){.struct_size = sizeof s->args, .flags = ZF_STATE_NO_SYNC, .path = s->path};
    return s->ext != NULL;
}

static zf_status_t save(storage_t *s, zf_state_report_t *out) {
    return ABI_CALL(s->rig, s->ext->save(s->rig->instance, &s->args, out, &s->rig->err));
}

static zf_status_t load(storage_t *s, abi_rig_t *into, uint32_t flags, zf_state_report_t *out) {
    const zf_state_args_t args = {.struct_size = sizeof args, .flags = flags, .path = s->path};
    *out = (zf_state_report_t){.struct_size = sizeof *out};
    return ABI_CALL(into, s->ext->load(into->instance, &args, out, &into->err));
}

static int check(const storage_t *s, int is_ok, const char *what, zf_status_t st) {
    return abi_check(s->rig->probe, ABI_RULE_CHECKPOINT, is_ok, "%s (status %d: %.200s)", what, st,
                     st < 0 ? s->rig->err.message : "");
}

/* ---- notes ------------------------------------------------------------------------------------------------------- */

static void probe_note(abi_rig_t *rig) {
    enum { MOST = 65536 };
    static char note[MOST + 3], back[MOST + 3];
    zf_state_report_t r = {.struct_size = sizeof r};
    storage_t s;
    if (!start(&s, rig, "noted"))
        return;
    for (int i = 0; i < MOST; i += 2)
        memcpy(note + i, i % 512 ? "\xc3\xa9" : "\n\"", 2);
    s.args.note = note;
    zf_status_t st = save(&s, &r);
    check(&s, st == ZF_OK && r.note_nbytes == MOST, "a note of 64 KiB is not saved, or counted otherwise", st);
    st = s.ext->note(&(zf_state_args_t){.struct_size = sizeof s.args, .path = s.path}, back, sizeof back, &rig->err);
    check(&s, st == ZF_OK && strcmp(note, back) == 0, "a note of 64 KiB does not come back", st);
    memcpy(note + MOST, "xy", 2);
    st = save(&s, NULL);
    check(&s, st < 0, "a note of more than 64 KiB is taken", st);
}

/* A note is cut to the buffer that it is read into, and its length is told. */
static void probe_cut(abi_rig_t *rig) {
    enum { ROOM = 4 };
    zf_state_report_t r = {.struct_size = sizeof r};
    char back[ROOM + 4];
    storage_t s;
    if (!start(&s, rig, "cut"))
        return;
    s.args.note = "eight";
    check(&s, save(&s, NULL) == ZF_OK, "a right save is refused", ZF_OK);
    memset(back, '#', sizeof back);
    zf_status_t st =
        s.ext->note(&(zf_state_args_t){.struct_size = sizeof s.args, .path = s.path}, back, ROOM, &rig->err);
    check(&s, st == ZF_OK && strcmp(back, "eig") == 0 && back[ROOM] == '#', "a note is not cut to its buffer", st);
    st = load(&s, rig, 0, &r);
    check(&s, st == ZF_OK && r.note_nbytes == strlen(s.args.note), "a load counts another length of the note", st);
    s.args.note = NULL;
    check(&s, save(&s, NULL) == ZF_OK, "a right save is refused", ZF_OK);
    st = s.ext->note(&(zf_state_args_t){.struct_size = sizeof s.args, .path = s.path}, back, ROOM, &rig->err);
    check(&s, st == ZF_OK && back[0] == '\0', "a checkpoint that was saved without a note has one", st);
}

/* ---- what lies there ----------------------------------------------------------------------------------------------
 */

static int n_beside(const abi_rig_t *rig, const char *name) {
    int n = 0;
    DIR *dir = opendir(rig->probe->scratch);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        n += strncmp(e->d_name, name, strlen(name)) == 0;
    if (dir)
        closedir(dir);
    return n;
}

/* A save leaves nothing beside its path, keeps the mode of what it replaces, and leaves what is the user's. */
static void probe_place(abi_rig_t *rig) {
    struct stat info;
    char own[4300];
    storage_t s;
    if (!start(&s, rig, "placed") || save(&s, NULL) != ZF_OK || chmod(s.path, 0750) != 0)
        return;
    zf_status_t st = save(&s, NULL);
    check(&s, st == ZF_OK && n_beside(rig, "placed") == 1, "a save leaves something beside its path", st);
    check(&s, stat(s.path, &info) == 0 && (info.st_mode & 07777) == 0750,
          "a save does not keep the mode of the directory that it replaces", st);
    snprintf(own, sizeof own, "%s/own.txt", s.path);
    FILE *file = fopen(own, "we");
    if (file)
        fclose(file);
    st = save(&s, NULL);
    check(&s, stat(own, &info) == 0, "a save removed a file of the user's, which lay in its directory", st);
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

static uint64_t nbytes_in(const char *path) {
    struct stat info;
    uint64_t n = 0;
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (fstatat(dirfd(dir), e->d_name, &info, 0) == 0 && S_ISREG(info.st_mode))
            n += (uint64_t)info.st_size;
    if (dir)
        closedir(dir);
    return n;
}

/* The bits that export_params gives, which are those that FLUSH leaves, are those of the checkpoint. */
static void check_weights(storage_t *s) {
    const zf_state_args_t args = {.struct_size = sizeof args, .path = s->path};
    float mine[30], theirs[30] = {0};
    const zf_export_item_t item = {
        .struct_size = sizeof item, .id = s->rig->ids[0], .dst = mine, .dst_nbytes = sizeof mine};
    zf_status_t st = abi_rig_export(s->rig, &item);
    check(s, st == ZF_OK, "a right export is refused", st);
    st = s->ext->weights(&args, "a.weight", theirs, 30, &s->rig->err);
    check(s, st == ZF_OK && memcmp(mine, theirs, sizeof mine) == 0, "weights and export_params give different bits",
          st);
    st = abi_rig_quiesce(s->rig, ZF_QUIESCE_FLUSH);
    check(s, st == ZF_OK && memcmp(mine, s->rig->memory[0], sizeof mine) == 0, "export_params is not what FLUSH leaves",
          st);
}

/* Without an instance: what is there, and no parameter of another size. */
static void check_outside(storage_t *s) {
    const zf_state_args_t args = {.struct_size = sizeof args, .path = s->path};
    zf_state_report_t r = {.struct_size = sizeof r};
    float w[31];
    zf_status_t st = s->ext->verify(&args, &r, &s->rig->err);
    check(s, st == ZF_OK && r.n_params == ABI_RIG_TRAINED && r.step == s->rig->n_steps,
          "the report of verify says something else than was saved", st);
    static const uint64_t others_n[] = {29, 31, 30 + (UINT64_C(1) << 32)};
    for (int i = 0; i < 3; i++) {
        st = s->ext->weights(&args, "a.weight", w, others_n[i], &s->rig->err);
        check(s, st < 0, "weights of a parameter of 30 elements are given as others", st);
    }
    static const char *const others[] = {"no.weight", "a.weights", "a.weigh", ""};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        st = s->ext->weights(&args, others[i], w, 30, &s->rig->err);
        check(s, st < 0, "weights of a parameter that is not there are given", st);
    }
}

/* Of a checkpoint that lacks the first parameter, and has another; into an instance that has trained longer. */
static void check_partial(storage_t *s) {
    static abi_rig_t other;
    zf_state_report_t r;
    if (!abi_rig_open(&other, s->rig->probe, s->rig->probe->plugin))
        return;
    other.decls[0].name = "another.weight";
    if (!abi_rig_start(&other, ABI_BOUND))
        return;
    if (!abi_rig_train(&other, s->rig->n_steps + 4, ABI_RULE_VALID))
        return;
    zf_status_t st = abi_rig_quiesce(&other, ZF_QUIESCE_FLUSH);
    abi_rig_check(&other, ABI_RULE_VALID, st == ZF_OK, "quiesce(FLUSH)", st);
    float *own = (float *)(void *)other.memory[0], kept = own[3];
    st = load(s, &other, 0, &r);
    check(s, st == ZF_ERR_CHECKPOINT, "a checkpoint of other parameters is loaded without PARTIAL", st);
    st = load(s, &other, ZF_STATE_PARTIAL, &r);
    check(s, st == ZF_OK && r.n_params == ABI_RIG_TRAINED - 1 && r.n_missing == 1 && r.n_extra == 1,
          "the report of a load with PARTIAL counts other parameters", st);
    check(s, own[3] == kept, "a parameter that the checkpoint lacks was written", st);
    zf_step_report_t report;
    abi_rig_set_gradients(&other);
    st = abi_rig_step(&other, ABI_RIG_TRAINED, &report);
    check(s, st >= 0 && report.submitted_step == other.n_steps,
          "of an instance that has trained longer the steps count on from the checkpoint's, with PARTIAL", st);
    abi_rig_end(&other);
}

static void probe_reports(abi_rig_t *rig) {
    static abi_rig_t fresh;
    zf_state_report_t r = {.struct_size = sizeof r};
    storage_t s;
    if (!start(&s, rig, "reported"))
        return;
    uint64_t began = zc_now_ns();
    zf_status_t st = save(&s, &r);
    uint64_t took = zc_now_ns() - began;
    check(&s, st == ZF_OK && r.nbytes == nbytes_in(s.path), "nbytes of a save is not what lies in its directory", st);
    check(&s, r.drain_ns <= took, "drain_ns of a save is longer than the save", st);
    if (abi_rig_open(&fresh, rig->probe, rig->probe->plugin) && abi_rig_start(&fresh, ABI_BOUND)) {
        st = load(&s, &fresh, 0, &r);
        check(&s, st == ZF_OK && r.continues == 1 && r.step == rig->n_steps && r.n_params == ABI_RIG_TRAINED,
              "the report of a load says something else than was saved", st);
        check(&s, r.n_missing == 0 && r.n_extra == 0 && r.nbytes > 0, "the report of a load counts others", st);
        check(&s, memcmp(fresh.memory, rig->memory, sizeof fresh.memory) == 0, "a load shows other weights", st);
        abi_rig_end(&fresh);
    }
    check_weights(&s);
    check_outside(&s);
    check_partial(&s);
}

/* Gradients that are delivered but not stepped are dropped by a load. */
static void probe_gradients(abi_rig_t *rig) {
    zf_state_report_t r;
    zf_step_report_t step;
    storage_t s;
    if (!start(&s, rig, "delivered") || save(&s, NULL) != ZF_OK)
        return;
    abi_rig_set_gradients(rig);
    zf_status_t st = abi_rig_deliver(rig, 0, ABI_RIG_TRAINED);
    abi_rig_check(rig, ABI_RULE_VALID, st >= 0, "grads_ready", st);
    st = load(&s, rig, 0, &r);
    abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "load", st);
    rig->step.flags |= ZF_STEP_WAIT;
    st = abi_rig_step(rig, 1, &step);
    check(&s, st >= 0 && step.n_present == 1, "gradients that were delivered before a load count behind it", st);
}

/* ---- another model ----------------------------------------------------------------------------------------------- */

static int32_t do_nothing(void *ctx, const zf_rule_update_t *u) {
    (void)ctx, (void)u;
    return 0;
}

static const zf_rule_callback_t own_rules[] = {
    {.struct_size = sizeof *own_rules, .n_moments = 1, .name = "one", .update = do_nothing},
    {.struct_size = sizeof *own_rules, .n_moments = 1, .name = "another", .update = do_nothing},
    {.struct_size = sizeof *own_rules, .n_moments = 2, .name = "one", .update = do_nothing}};
enum { N_RULES = ZF_RULE_CALLBACK + sizeof own_rules / sizeof *own_rules };

/* A rule by its number: the plugin's own, then those of the host. */
static zf_group_decl_t group_of(uint32_t rule) {
    return rule < ZF_RULE_CALLBACK
               ? (zf_group_decl_t){sizeof(zf_group_decl_t), rule, NULL}
               : (zf_group_decl_t){sizeof(zf_group_decl_t), ZF_RULE_CALLBACK, &own_rules[rule - ZF_RULE_CALLBACK]};
}

/* Loads into an instance of another rule, or other shapes of as many elements: nothing of it is taken. */
static void try_other(storage_t *s, abi_rig_t *into, const char *what, int is_right) {
    static uint64_t shown[ABI_RIG_PARAMS][ABI_RIG_MAX_ELEMS / 2];
    zf_state_report_t r;
    if (!abi_rig_start(into, ABI_BOUND))
        return;
    memcpy(shown, into->memory, sizeof shown);
    for (uint32_t flags = 0; flags <= ZF_STATE_PARTIAL; flags += ZF_STATE_PARTIAL) {
        zf_status_t st = load(s, into, flags, &r);
        abi_check(into->probe, ABI_RULE_CHECKPOINT, st == (is_right ? ZF_OK : ZF_ERR_CHECKPOINT),
                  "a load into an instance of %s returned %d: %.200s", what, st, st < 0 ? into->err.message : "");
        abi_check(into->probe, ABI_RULE_CHECKPOINT, is_right || memcmp(shown, into->memory, sizeof shown) == 0,
                  "a refused load into an instance of %s has written weights", what);
    }
    abi_rig_end(into);
}

static void probe_rules(abi_rig_t *rig) {
    static abi_rig_t into;
    zf_group_decl_t saved, loaded;
    char what[64];
    storage_t s;
    for (uint32_t a = 0; a < N_RULES; a++) {
        saved = group_of(a);
        abi_rig_describe(rig, 1);
        rig->group = &saved;
        if (!start(&s, rig, "ruled") || !abi_rig_start(rig, ABI_ACTIVE) ||
            !check(&s, save(&s, NULL) == ZF_OK, "a right save is refused", ZF_OK))
            return;
        abi_rig_end(rig);
        for (uint32_t b = 0; b < N_RULES && abi_rig_open(&into, rig->probe, rig->probe->plugin); b++) {
            loaded = group_of(b);
            into.group = &loaded;
            snprintf(what, sizeof what, "rule %u, saved with rule %u", b, a);
            try_other(&s, &into, what, a == b);
        }
    }
}

static void probe_shapes(abi_rig_t *rig) {
    static const int64_t shapes[][2] = {{6, 5}, {5, 6}, {30, 1}, {1, 30}, {6, 4}};
    static abi_rig_t into;
    storage_t s;
    if (!start(&s, rig, "shaped") || !check(&s, save(&s, NULL) == ZF_OK, "a right save is refused", ZF_OK))
        return;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && abi_rig_open(&into, rig->probe, rig->probe->plugin); i++) {
        memcpy(into.shapes[0], shapes[i], sizeof shapes[i]);
        try_other(&s, &into, "other shapes", i == 0);
    }
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static const char damage_config[] = "[zenflow]\nmode = exact\n[host]\nthreads = 1\n";

/* The largest file; -1: there is none. */
static int open_largest(const char *path, off_t *out_nbytes) {
    struct stat info;
    int largest = -1;
    DIR *dir = opendir(path);
    *out_nbytes = 0;
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        int fd = openat(dirfd(dir), e->d_name, O_RDWR | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > *out_nbytes) {
            largest = fd;
            *out_nbytes = info.st_size;
        }
    }
    if (dir)
        closedir(dir);
    return largest;
}

static void change_byte(int fd, off_t at) {
    unsigned char byte;
    if (pread(fd, &byte, 1, at) == 1) {
        byte ^= 16;
        (void)!pwrite(fd, &byte, 1, at);
    }
}

static void damage_everywhere(storage_t *s, const rig_t *big, int fd, off_t nbytes) {
    enum { N_PLACES = 24 };
    blobs_t blobs;
    blobs_init(&blobs, s->path);
    const zf_state_args_t args = {.struct_size = sizeof args, .path = s->path},
                          by_host = {.struct_size = sizeof args, .store = &blobs.table};
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st = s->ext->verify(&args, NULL, &err);
    abi_check(s->rig->probe, ABI_RULE_CHECKPOINT, st == ZF_OK, "a whole checkpoint: verify returned %d", st);
    for (int i = 0; i < N_PLACES; i++) {
        off_t at = nbytes - 1 - nbytes * i / N_PLACES;
        change_byte(fd, at);
        zf_status_t verified = s->ext->verify(i % 2 ? &by_host : &args, NULL, &err);
        zf_status_t loaded = i % 6 ? ZF_ERR_CHECKPOINT : s->ext->load(big->instance, &args, NULL, &err);
        abi_check(s->rig->probe, ABI_RULE_CHECKPOINT, verified == ZF_ERR_CHECKPOINT && loaded == ZF_ERR_CHECKPOINT,
                  "byte %lld of %lld is another one: verify returned %d, load %d", (long long)at, (long long)nbytes,
                  verified, loaded);
        change_byte(fd, at);
    }
    st = s->ext->verify(&by_host, NULL, &err);
    abi_check(s->rig->probe, ABI_RULE_CHECKPOINT, st == ZF_OK, "a checkpoint that is whole again: verify returned %d",
              st);
}

static int open_big(rig_t *big, const char *plugin) {
    const rig_spec_t spec = {
        .n_tensors = 1, .ndim = 2, .shape = {512, 512}, .dtype = zf_dtype_float32(), .config = damage_config};
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader;
    if (zf_loader_open(plugin, &loader, &err) < 0)
        return 0;
    rig_open(big, loader, &spec);
    rig_deliver(big, 0, 1, 1, NULL);
    rig_step(big, ZF_STEP_WAIT);
    return 1;
}

static void probe_damage(abi_rig_t *rig) {
    rig_t big;
    storage_t s;
    off_t nbytes;
    if (!start(&s, rig, "damaged") || !open_big(&big, rig->probe->plugin))
        return;
    zf_status_t st = s.ext->save(big.instance, &s.args, NULL, &rig->err);
    int fd = st == ZF_OK ? open_largest(s.path, &nbytes) : -1;
    check(&s, st == ZF_OK && fd >= 0 && nbytes > 1 << 20, "a save of 1 MiB of weights leaves no such file", st);
    if (fd >= 0)
        damage_everywhere(&s, &big, fd, nbytes);
    rig_close(&big);
}

/* ---- what the system refuses ------------------------------------------------------------------------------------- */

/* The call is to fail so; afterwards the former checkpoint is whole and training goes on. */
static void expect_errno(storage_t *s, zf_status_t st, int want, const char *what) {
    const zf_error_t *e = &s->rig->err;
    abi_check(s->rig->probe, ABI_RULE_NATIVE, st == ZF_ERR_STORAGE && e->native_code == want && e->retryable == 1,
              "%s: returned %d, native_code %lld, retryable %d; needed %d, %d, 1: %.200s", what, st,
              (long long)e->native_code, e->retryable, ZF_ERR_STORAGE, want, e->message);
}

static void check_former(storage_t *s, const char *path, const char *what) {
    const zf_state_args_t args = {.struct_size = sizeof args, .path = path};
    zf_status_t st = s->ext->verify(&args, NULL, &s->rig->err);
    abi_check(s->rig->probe, ABI_RULE_NATIVE, st == ZF_OK, "%s: the former checkpoint is no longer whole: %.200s", what,
              s->rig->err.message);
    abi_rig_train(s->rig, 1, ABI_RULE_USABLE);
}

static void probe_no_directory(abi_rig_t *rig) {
    storage_t s;
    if (!start(&s, rig, "nowhere/here/saved"))
        return;
    expect_errno(&s, save(&s, NULL), ENOENT, "a save where there is no directory");
    abi_rig_train(rig, 1, ABI_RULE_USABLE);
}

static void probe_no_files(abi_rig_t *rig) {
    struct rlimit was, none;
    storage_t s;
    if (!start(&s, rig, "filed") || save(&s, NULL) != ZF_OK || getrlimit(RLIMIT_NOFILE, &was) != 0)
        return;
    int next = dup(0);
    close(next);
    none = (struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = was.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    zf_status_t st = save(&s, NULL);
    setrlimit(RLIMIT_NOFILE, &was);
    expect_errno(&s, st, EMFILE, "a save when no file can be opened");
    check_former(&s, s.path, "a save when no file can be opened");
    st = save(&s, NULL);
    abi_rig_check(rig, ABI_RULE_NATIVE, st == ZF_OK, "the same save, when files can be opened again,", st);
}

static void probe_large_file(abi_rig_t *rig) {
    struct rlimit was, small;
    storage_t s;
    if (!start(&s, rig, "limited") || save(&s, NULL) != ZF_OK || getrlimit(RLIMIT_FSIZE, &was) != 0)
        return;
    signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){.rlim_cur = 1000, .rlim_max = was.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    zf_status_t st = save(&s, NULL);
    setrlimit(RLIMIT_FSIZE, &was);
    expect_errno(&s, st, EFBIG, "a save of files that are larger than this process may write");
    check_former(&s, s.path, "a save of files that are larger than this process may write");
}

/* A file system with room for one checkpoint of the tiny model, not for two. */
static void probe_full_disk(abi_rig_t *rig) {
    char path[4200];
    storage_t s;
    if (!start(&s, rig, "disk"))
        return;
    snprintf(path, sizeof path, "%s", s.path);
    if (mkdir(path, 0700) != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("none", path, "tmpfs", 0, "size=12k") != 0) {
        abi_skip(rig->probe, ABI_RULE_NATIVE, "a full disk: this process may not mount one (it takes root)");
        return;
    }
    strcat(s.path, "/saved");
    zf_status_t st = save(&s, NULL);
    if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "save on a small disk", st))
        return;
    expect_errno(&s, save(&s, NULL), ENOSPC, "a save on a full disk");
    check_former(&s, s.path, "a save on a full disk");
}

const abi_row_t abi_storage_rows[] = {{"a note that is cut", ABI_ACTIVE, 0, probe_cut},
                                      {"what lies beside", ABI_ACTIVE, 0, probe_place},
                                      {"a note of 64 KiB", ABI_ACTIVE, 0, probe_note},
                                      {"reports of checkpoints", ABI_ACTIVE, 0, probe_reports},
                                      {"other rules", ABI_OPEN, 1, probe_rules},
                                      {"other shapes", ABI_ACTIVE, 1, probe_shapes},
                                      {"gradients before a load", ABI_ACTIVE, 0, probe_gradients},
                                      {"damage in a large tensor", ABI_OPEN, 1, probe_damage},
                                      {"no directory", ABI_ACTIVE, 0, probe_no_directory},
                                      {"no more files", ABI_ACTIVE, 0, probe_no_files},
                                      {"a file too large", ABI_ACTIVE, 0, probe_large_file},
                                      {"a full disk", ABI_ACTIVE, 0, probe_full_disk},
                                      {NULL, ABI_NOTHING, 0, NULL}};
