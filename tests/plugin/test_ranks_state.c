/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_state.c - checkpoints of several ranks, which are threads of this process: saved by P, loaded by Q, and
 * what one rank does wrong is every rank's error. The whole comparison with the oracle is tests/ranks.sh. Averages are
 * exact over powers of two, so runs on 1, 2 and 4 ranks have the same bits. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"
#include "local_ranks.h"
#include "memory_store.h"
#include "state_rig.h"
#include "suite.h"
#include "wrap.h"

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 17, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 30, .cols = 20, .is_bf16 = 1, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 5, .cols = 7, .flags = ZF_PARAM_AVERAGE}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MOST = 4, STEPS = 11, SAVED_AT = 6 };

#define COMMON                                                                                                         \
    "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 2\nselect_interval = 3\n"                 \
    "predict = off\n[host]\nthreads = 2\ndeadline_ms = 60000\n[log]\nlevel = error\n[shard]\nbucket_bytes = 1000\n"
static const char replicated[] = COMMON, sharded[] = COMMON "stage = 1\n";
/* Windows end by what the ranks' channels measured together. */
#define BY_DATA                                                                                                        \
    "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = auto\nselect_interval = 3\n"                                       \
    "full_warm_up_rounds = 2\npredict = off\n[host]\nthreads = 2\ndeadline_ms = 60000\n[log]\n"                        \
    "level = error\n[shard]\nbucket_bytes = 1000\n"

typedef struct job {
    ZT_JOB;
    const char *save_to, *load_from, *note;
    const zf_state_store_t *store;
    uint32_t flags, n_saves, n_missing;
    int cannot_write, delivers_before, writes_before, delivers_first;
    zf_status_t moved; /* by save or load */
    char why[440];
    zf_state_report_t report;
} job_t;

static zt_ranks_t sets[4]; /* instances of some may be alive beside others */

/* ---- a disk that is full for one rank ---------------------------------------------------------------------------- */

static _Thread_local int is_full;

ZT_WRAP(ssize_t, pwrite, int fd, const void *data, size_t nbytes, off_t at) {
    if (!is_full)
        return __real_pwrite(fd, data, nbytes, at);
    errno = ENOSPC;
    return -1;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static void train(job_t *job, uint64_t until) {
    while (job->rig.step < until && job->st >= 0)
        job->st = zt_rig_try_step(&job->rig);
}

static void move(job_t *job, const char *path, int is_load) {
    zf_state_args_t args = {
        .struct_size = sizeof args, .flags = job->flags, .path = path, .store = job->store, .note = job->note};
    const zf_state_ext_t *state = zt_state(&job->rig);
    if (job->store)
        args.path = NULL;
    job->report = (zf_state_report_t){.struct_size = sizeof job->report};
    is_full = job->cannot_write;
    job->moved = (is_load ? state->load : state->save)(job->rig.inst, &args, &job->report, &job->rig.err);
    is_full = 0;
    snprintf(job->why, sizeof job->why, "%s", job->moved < 0 ? job->rig.err.message : "");
    if (is_load && job->moved >= 0)
        job->rig.step = job->report.step;
}

static void *run_job(void *raw) {
    job_t *job = raw;
    zt_job_open(job, shapes, N_SHAPES - job->n_missing);
    if (job->save_to) {
        train(job, SAVED_AT);
        for (uint32_t i = 0; i <= job->n_saves; i++)
            move(job, job->save_to, 0);
    }
    for (uint32_t i = N_SHAPES; i-- > 0 && job->delivers_before;) {
        zt_rig_fill_grad(&job->rig, i, job->rig.step + 1);
        job->st = zt_rig_deliver(&job->rig, i, 0, NULL);
    }
    if (job->writes_before)
        job->st = job->rig.zf->params_changed(job->rig.inst, NULL, 0, 0, 0, &job->rig.err);
    if (job->delivers_first) { /* which is in the last bucket */
        zt_rig_fill_grad(&job->rig, 0, 77);
        job->st = zt_rig_deliver(&job->rig, 0, 0, NULL);
    }
    if (job->load_from)
        move(job, job->load_from, 1);
    if (job->delivers_before)
        return NULL;
    train(job, STEPS);
    if (job->st >= 0)
        job->st = zt_quiesce(&job->rig, ZF_QUIESCE_FLUSH);
    return NULL;
}

static void run(job_t *jobs, uint32_t n, const char *config, const char *save_to, const char *load_from) {
    static int turn;
    zt_ranks_t *ranks = &sets[turn++ % 4];
    zt_jobs_start(ranks, n, jobs, sizeof *jobs, NULL);
    for (uint32_t r = 0; r < n; r++) {
        jobs[r].config = config;
        jobs[r].save_to = jobs[r].save_to ? jobs[r].save_to : save_to;
        jobs[r].load_from = jobs[r].load_from ? jobs[r].load_from : load_from;
    }
    zt_jobs_run(ranks, run_job, 0);
}

static void end(const job_t *jobs) { zt_jobs_end(jobs[0].rank->all); }

/* The same weights. */
static void check_shows(const job_t *job, const job_t *as) {
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        const zt_param_t *param = &job->rig.params[i];
        ck_assert_mem_eq(param->visible, as->rig.params[i].visible, param->n_elems * param->elem_nbytes);
    }
}

/* Every rank has moved; what all show is what the first job of `as` shows. */
static void check_like(const job_t *jobs, uint32_t n, const job_t *as) {
    for (uint32_t r = 0; r < n; r++) {
        ck_assert_msg(jobs[r].moved >= 0, "rank %u: %s", r, jobs[r].why);
        check_shows(&jobs[r], as);
    }
}

/* Every rank was told, and by name where another one failed. */
static void check_failed(const job_t *jobs, uint32_t n, zf_status_t st, const char *text) {
    for (uint32_t r = 0; r < n; r++) {
        ck_assert_msg(jobs[r].moved == st, "rank %u: status %d: %s", r, jobs[r].moved, jobs[r].why);
        ck_assert_msg(strstr(jobs[r].why, text) != NULL, "\"%s\" is not in \"%s\"", text, jobs[r].why);
    }
}

static const char *path_of(const char *name) {
    static char paths[2][256];
    static int turn;
    turn = !turn;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", zt_state_dir(), name);
    return paths[turn];
}

static int exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

/* ---- P and Q ----------------------------------------------------------------------------------------------------- */

/* Each rank has all of it, the same bytes, and others go on from there. */
static void through_stores(const char *saving, const char *loading, uint32_t flags) {
    zt_memory_store_t stores[4];
    job_t saved[MOST] = {0}, loaded[MOST] = {0};
    for (uint32_t r = 0; r < 4; r++) {
        zt_memory_store_start(&stores[r]);
        saved[r].store = loaded[r].store = &stores[r].table;
        saved[r].flags = flags;
    }
    run(saved, 4, saving, "store", NULL);
    check_like(saved, 4, saved);
    for (int i = 0; i < stores[0].n_blobs; i++)
        for (uint32_t r = 1; r < 4; r++) {
            const zt_blob_t *blob = zt_memory_store_find(&stores[r], stores[0].blobs[i].name);
            ck_assert_uint_eq(blob->nbytes, stores[0].blobs[i].nbytes);
            ck_assert_mem_eq(blob->data, stores[0].blobs[i].data, blob->nbytes);
        }
    run(loaded, 2, loading, NULL, "store");
    if (flags)
        check_like(loaded, 2, loaded);
    else
        check_like(loaded, 2, saved);
    for (uint32_t r = 0; r < 4; r++)
        zt_memory_store_end(&stores[r]);
    end(saved);
    end(loaded);
}

ZT_TEST(each_has_a_store_with_all_of_it) {
    through_stores(sharded, sharded, 0);
    through_stores(sharded, replicated, 0);
    through_stores(replicated, sharded, ZF_STATE_COMPACT);
    through_stores(sharded, sharded, ZF_STATE_COMPACT);
}

/* Into instances that have trained. */
ZT_TEST(back_to_where_it_was) {
    const char *path = path_of("moved");
    job_t first[MOST] = {0}, jobs[MOST] = {0};
    run(first, 3, sharded, path, NULL);
    run(jobs, 3, sharded, path, path);
    check_like(jobs, 3, first);
    end(jobs);
    end(first);
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

/* The former checkpoint stays whole, nothing lies beside it, and training goes on. */
ZT_TEST(one_cannot_write) {
    const char *path = path_of("full");
    job_t first[MOST] = {0}, jobs[MOST] = {0};
    zf_state_args_t args = {.struct_size = sizeof args, .path = path};
    zf_error_t err = {.struct_size = sizeof err};
    run(first, 3, sharded, path, NULL);
    jobs[2].cannot_write = 1;
    run(jobs, 3, sharded, path, NULL);
    check_failed(jobs, 3, ZF_ERR_STORAGE, "No space left on device");
    ck_assert(strncmp(jobs[0].why, "rank 2 of 3: cannot write", 25) == 0);
    ck_assert(strncmp(jobs[2].why, "cannot write", 12) == 0);
    ck_assert_int_eq(zt_state(&jobs[0].rig)->verify(&args, NULL, &err), ZF_OK);
    check_shows(&jobs[1], &first[0]);
    end(jobs);
    end(first);
}

ZT_TEST(directories_that_differ) {
    char other[256];
    job_t jobs[MOST] = {0};
    snprintf(other, sizeof other, "%s/elsewhere", zt_state_dir());
    ck_assert(mkdir(other, 0777) == 0 || errno == EEXIST);
    snprintf(other, sizeof other, "%s/elsewhere/here", zt_state_dir());
    jobs[1].save_to = other;
    run(jobs, 2, sharded, path_of("here"), NULL);
    check_failed(jobs, 2, ZF_ERR_STORAGE, "give every rank the same directory");
    ck_assert(!exists(other) && !exists(path_of("here")));
    end(jobs);
}

/* Two ranks save, the second one otherwise: no file is made. */
static void differ(const char *config, const job_t *usual, const job_t *other, zf_status_t st, const char *words) {
    job_t jobs[MOST] = {*usual, *other};
    run(jobs, 2, config, path_of("differ"), NULL);
    check_failed(jobs, 2, st, words);
    ck_assert(!exists(path_of("differ")));
    end(jobs);
}

ZT_TEST(arguments_that_differ) {
    zf_state_store_t store = {.struct_size = sizeof store};
    const job_t usual = {.config = sharded}, stored = {.store = &store};
    char other[256];
    snprintf(other, sizeof other, "%s", path_of("other_name"));
    differ(sharded, &usual, &(job_t){.flags = ZF_STATE_COMPACT}, ZF_ERR_RANKS,
           "rank 1 and rank 0 differ in the flags of save");
    differ(sharded, &usual, &(job_t){.note = "another"}, ZF_ERR_RANKS, "rank 1 and rank 0 differ in the note of save");
    differ(sharded, &usual, &(job_t){.save_to = other}, ZF_ERR_RANKS,
           "rank 1 and rank 0 differ in the name at the end of the path of save");
    differ(replicated, &usual, &stored, ZF_ERR_RANKS, "or in who has a store");
    differ(sharded, &usual, &(job_t){.flags = 1u << 20}, ZF_ERR_UNSUPPORTED_FIELD, "flags 0x100000");
}

/* A byte of the last file's last tensor, which is some rank's alone to read. */
static void damage(const char *path) {
    char file[300];
    int fd;
    off_t size;
    unsigned char byte = 0;
    snprintf(file, sizeof file, "%s/zf_state-00001.safetensors", path);
    fd = open(file, O_RDWR);
    size = lseek(fd, 0, SEEK_END);
    ck_assert(fd >= 0 && pread(fd, &byte, 1, size / 2) == 1);
    byte ^= 1;
    ck_assert(__real_pwrite(fd, &byte, 1, size / 2) == 1);
    close(fd);
}

ZT_TEST(damaged) {
    char path[256];
    job_t saved[MOST] = {0}, loaded[MOST] = {0}, fresh[MOST] = {0};
    snprintf(path, sizeof path, "%s", path_of("damaged"));
    run(saved, 2, sharded, path, NULL);
    end(saved);
    damage(path);
    run(loaded, 4, sharded, NULL, path);
    check_failed(loaded, 4, ZF_ERR_CHECKPOINT, "is damaged");
    run(fresh, 1, replicated, NULL, NULL); /* and each went on as if it had not been called */
    check_shows(&loaded[1], &fresh[0]);
    end(loaded);
    end(fresh);
}

ZT_TEST(checkpoints_that_differ) {
    char other[256];
    job_t first[MOST] = {0}, second[MOST] = {0}, jobs[MOST] = {0};
    snprintf(other, sizeof other, "%s/second", zt_state_dir());
    second[0].note = second[1].note = "of its own";
    run(first, 2, sharded, path_of("first"), NULL);
    end(first);
    run(second, 2, sharded, other, NULL);
    end(second);
    jobs[1].load_from = other;
    run(jobs, 2, sharded, NULL, path_of("first"));
    check_failed(jobs, 2, ZF_ERR_RANKS, "rank 1 and rank 0 do not load the same");
    end(jobs);
}

/* Both, or one alone: the other one reads nothing either, and says why. */
ZT_TEST(nothing_to_load) {
    char missing[256];
    job_t saved[MOST] = {0}, jobs[MOST] = {0}, none[MOST] = {0};
    snprintf(missing, sizeof missing, "%s/missing", zt_state_dir());
    run(saved, 2, sharded, path_of("there"), NULL);
    end(saved);
    jobs[1].load_from = missing;
    run(jobs, 2, sharded, NULL, path_of("there"));
    check_failed(jobs, 2, ZF_ERR_STORAGE, "cannot open the checkpoint");
    end(jobs);
    run(none, 2, sharded, NULL, missing);
    check_failed(none, 2, ZF_ERR_STORAGE, "cannot open the checkpoint");
    end(none);
}

ZT_TEST(gradients_on_their_way) {
    job_t jobs[MOST] = {0};
    jobs[0].delivers_before = jobs[1].delivers_before = 1;
    run(jobs, 2, sharded, path_of("way"), path_of("way"));
    check_failed(jobs, 2, ZF_ERR_STATE, "on their way to the other ranks");
    end(jobs);
}

/* Before the first step one rank has handed over a gradient and the other has not. Neither has trained, but only the
 * other's run could be filled in place. */
static void one_delivers_first(uint32_t flags, uint32_t n_missing) {
    const char *path = path_of("first");
    job_t first[MOST] = {0}, jobs[MOST] = {0}, fresh[MOST] = {0};
    first[0].n_missing = first[1].n_missing = n_missing;
    run(first, 2, sharded, path, NULL);
    end(first);
    for (int r = 0; r < 2; r++) {
        jobs[r].flags = fresh[r].flags = flags;
        jobs[r].writes_before = fresh[r].writes_before = 1;
    }
    jobs[0].delivers_first = 1;
    run(jobs, 2, sharded, NULL, path);
    run(fresh, 2, sharded, NULL, path);
    check_like(jobs, 2, fresh);
    end(jobs);
    end(fresh);
}

ZT_TEST(one_rank_delivers_before_a_load) {
    one_delivers_first(0, 0);
    one_delivers_first(ZF_STATE_PARTIAL, 1); /* what the checkpoint lacks stays as it is */
}

/* params_changed is each rank's own call at stage 0. Ranks that differ in it fail the next step, unless a load comes
 * first, which undoes it. */
ZT_TEST(a_load_forgets_what_one_rank_was_told) {
    const char *path = path_of("told");
    job_t first[MOST] = {0}, jobs[MOST] = {0}, fresh[MOST] = {0};
    run(first, 2, replicated, path, NULL);
    end(first);
    jobs[0].writes_before = 1;
    run(jobs, 2, replicated, NULL, path);
    run(fresh, 2, replicated, NULL, path);
    check_like(jobs, 2, fresh);
    end(jobs);
    end(fresh);
}

/* ---- checksums --------------------------------------------------------------------------------------------------- */

ZT_TEST(joined_checksums) {
    unsigned char bytes[700];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)zt_hash(i);
    for (size_t at = 0; at <= sizeof bytes; at += 7) {
        uint32_t first = zfi_crc32(0, bytes, at), second = zfi_crc32(0, bytes + at, sizeof bytes - at);
        ck_assert_uint_eq(zfi_crc32_join(first, second, sizeof bytes - at), zfi_crc32(0, bytes, sizeof bytes));
    }
}

ZT_SUITE("ranks_state")
