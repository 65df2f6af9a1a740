/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_state.c - checkpoints of several ranks, which are threads of this process: saved by P, loaded by Q, and
 * what one rank does wrong is every rank's error. The whole comparison with the oracle is tests/ranks.sh. Averages are
 * exact over powers of two, so runs on 1, 2 and 4 ranks have the same bits. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "hostile_rig.h"
#include "local_ranks.h"
#include "memory_store.h"
#include "state_rig.h"
#include "suite.h"
#include "wrap.h"

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 17, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 30, .cols = 20, .is_bf16 = 1, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 5, .cols = 7, .flags = ZF_PARAM_AVERAGE},
                                    {.rows = 1, .flags = ZF_PARAM_AVERAGE}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MOST = 4, STEPS = 11, SAVED_AT = 6 };
enum { N_STATE_BYTES = 12 * (24 * 40 + 17 + 30 * 20 + 5 * 7 + 1) }; /* w, m, v: each value has one owner */

#define WITHIN(ms)                                                                                                     \
    "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = 4\nfull_warm_up_rounds = 2\nselect_interval = 3\n"                 \
    "predict = off\n[host]\nthreads = 2\ndeadline_ms = " ms "\n[shard]\nbucket_bytes = 1000\n"
#define COMMON WITHIN("60000")
#define IN_BF16 "[host]\nmoments_dtype = bfloat16\n"
static const char replicated[] = COMMON, sharded[] = COMMON "stage = 1\n";

typedef struct job {
    ZT_JOB;
    const char *save_to, *load_from, *note; /* names in zt_dir() */
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

static void move(job_t *job, const char *name, int is_load) {
    zf_state_args_t args = {
        .struct_size = sizeof args, .flags = job->flags, .path = zt_path(name), .store = job->store, .note = job->note};
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
    if (job->delivers_before)
        job->st = zt_rig_deliver_all(&job->rig, NULL);
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
    for (uint32_t i = 0; i < N_SHAPES - (job->n_missing | as->n_missing); i++) {
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

static int exists(const char *name) { return access(zt_path(name), F_OK) == 0; }

/* ---- P and Q ----------------------------------------------------------------------------------------------------- */

ZT_TEST(own_is_for_stores) {
    job_t jobs[MOST] = {0};
    for (uint32_t r = 0; r < 2; r++)
        jobs[r].flags = ZF_STATE_OWN;
    run(jobs, 2, sharded, "own", NULL);
    check_failed(jobs, 2, ZF_ERR_ARGUMENT, "ZF_STATE_OWN is for stores");
    end(jobs);
}

/* ---- stores that have what each rank keeps ----------------------------------------------------------------------- */

/* What `n_saving` ranks save, each into a store, `n` ranks load. What all of them have is in the pool. Each has all of
 * it, the same bytes, or with OWN what is its own, and loads from a copy with these flags. */
typedef struct owned {
    zt_memory_store_t stores[MOST], pool;
    job_t jobs[MOST];
    uint32_t n;
} owned_t;

static void own_start(owned_t *own, const char *config, job_t as, uint32_t n_saving, uint32_t n, uint32_t flags) {
    zt_memory_store_t stores[MOST];
    job_t saved[MOST] = {0};
    *own = (owned_t){.n = n};
    zt_memory_store_start(&own->pool);
    for (uint32_t r = 0; r < n_saving; r++) {
        zt_memory_store_start(&stores[r]);
        saved[r] = as;
        saved[r].store = &stores[r].table;
    }
    run(saved, n_saving, config, "store", NULL);
    check_like(saved, n_saving, saved);
    uint64_t n_alone = zt_memory_store_gather(&own->pool, stores, n_saving);
    ck_assert_uint_eq(n_alone >= N_STATE_BYTES - 12 * as.n_missing, (as.flags & ZF_STATE_OWN) && n_saving > 1);
    for (uint32_t r = 0; r < n; r++) {
        zt_memory_store_start(&own->stores[r]);
        zt_memory_store_gather(&own->stores[r], flags & ZF_STATE_OWN ? &stores[r % n_saving] : &own->pool, 1);
        own->stores[r].pool = &own->pool;
        own->jobs[r] = (job_t){.store = &own->stores[r].table, .flags = flags};
    }
    for (uint32_t r = 0; r < n_saving; r++)
        zt_memory_store_clear(&stores[r]);
    end(saved);
}

static void own_end(owned_t *own) {
    for (uint32_t r = 0; r < own->n; r++)
        zt_memory_store_clear(&own->stores[r]);
    zt_memory_store_clear(&own->pool);
    end(own->jobs);
}

/* They come to what one rank comes to that has all of it. Returns how many bytes their stores have lacked. */
static uint64_t own_load(owned_t *own, const char *config, const char *config_alone) {
    job_t alone = {.store = &own->pool.table};
    uint64_t n_fetched = 0;
    run(&alone, 1, config_alone, NULL, "store");
    run(own->jobs, own->n, config, NULL, "store");
    check_like(own->jobs, own->n, &alone);
    for (uint32_t r = 0; r < own->n; r++) {
        ck_assert_int_eq(own->stores[r].n_told, (own->jobs[r].flags & ZF_STATE_OWN) != 0);
        n_fetched += own->stores[r].n_fetched;
    }
    end(&alone);
    return n_fetched;
}

static void through_stores(const char *saving, const char *loading, uint32_t flags) {
    owned_t own;
    own_start(&own, saving, (job_t){.flags = flags}, 4, 2, 0);
    own_load(&own, loading, replicated);
    job_t fresh = {0};
    run(&fresh, 1, replicated, NULL, NULL);
    if (flags & ZF_STATE_KEEP_OPEN)
        check_shows(&own.jobs[0], &fresh);
    end(&fresh);
    own_end(&own);
}

ZT_TEST(each_has_a_store) {
    through_stores(sharded, sharded, 0);
    through_stores(sharded, replicated, 0);
    through_stores(replicated, sharded, ZF_STATE_KEEP_OPEN);
    through_stores(sharded, sharded, ZF_STATE_KEEP_OPEN);
    through_stores(sharded, replicated, ZF_STATE_OWN);
    through_stores(replicated, sharded, ZF_STATE_OWN);
}

static uint64_t through_own(const char *saving, uint32_t n_saving, const char *loading, uint32_t n, const char *alone) {
    owned_t own;
    own_start(&own, saving, (job_t){.flags = ZF_STATE_OWN | ZF_STATE_KEEP_OPEN}, n_saving, n, ZF_STATE_OWN);
    uint64_t n_fetched = own_load(&own, loading, alone);
    own_end(&own);
    return n_fetched;
}

ZT_TEST(each_loads_what_its_store_has) {
    static const char in_bf16[] = COMMON IN_BF16, both[] = COMMON "stage = 1\n" IN_BF16;
    ck_assert_uint_eq(through_own(sharded, 4, sharded, 4, replicated), 0);
    ck_assert_uint_eq(through_own(sharded, 2, sharded, 2, replicated), 0);
    ck_assert_uint_eq(through_own(replicated, 1, replicated, 1, replicated), 0);
    ck_assert_uint_gt(through_own(sharded, 4, sharded, 2, replicated), 0);
    ck_assert_uint_lt(through_own(sharded, 4, sharded, 2, replicated), N_STATE_BYTES);
    ck_assert_uint_lt(through_own(sharded, 2, sharded, 4, replicated), N_STATE_BYTES);
    ck_assert_uint_eq(through_own(sharded, 2, replicated, 2, replicated), N_STATE_BYTES); /* each keeps all */
    ck_assert_uint_eq(through_own(both, 2, both, 2, in_bf16), 0);
    through_own(replicated, 2, both, 4, in_bf16);
}

/* Parameters that one side lacks: nobody asks for bytes of them. */
ZT_TEST(each_loads_some_of_it) {
    for (uint32_t side = 0; side < 2; side++) {
        owned_t own;
        own_start(&own, sharded, (job_t){.flags = ZF_STATE_OWN | ZF_STATE_KEEP_OPEN, .n_missing = side}, 2, 2,
                  ZF_STATE_OWN);
        own.stores[0].pool = own.stores[1].pool = NULL;
        for (uint32_t r = 0; r < 2; r++) {
            own.jobs[r].flags |= ZF_STATE_PARTIAL;
            own.jobs[r].n_missing = !side;
        }
        run(own.jobs, 2, sharded, NULL, "store");
        for (uint32_t r = 0; r < 2; r++)
            ck_assert_msg(own.jobs[r].moved >= 0, "rank %u: %s", r, own.jobs[r].why);
        ck_assert_uint_eq(own.jobs[0].report.n_extra, !side);
        ck_assert_uint_eq(own.jobs[0].report.n_missing, side);
        own_end(&own);
    }
}

/* Of two ranks rank 1's store or call is spoiled; both fail, and go on as if nothing had been called.
 * is_told: the host may have waited for another one's. */
typedef void (*spoil_fn)(owned_t *own);

static void spoiled(uint32_t saved_as, uint32_t flags, spoil_fn spoil, int is_told, zf_status_t st, const char *text) {
    owned_t own;
    job_t fresh = {0};
    own_start(&own, sharded, (job_t){.flags = flags | saved_as}, 2, 2, flags);
    spoil(&own);
    run(own.jobs, 2, sharded, NULL, "store");
    check_failed(own.jobs, 2, st, text);
    ck_assert_int_eq(own.stores[0].n_told, is_told);
    run(&fresh, 1, replicated, NULL, NULL);
    check_shows(&own.jobs[1], &fresh);
    end(&fresh);
    own_end(&own);
}

static zt_blob_t *data_of(zt_memory_store_t *store) { return zt_memory_store_find(store, ZT_DATA_BLOB); }

static uint64_t last_of_w(zt_memory_store_t *store) {
    zt_range_t w = zt_index_range(store, "\"params\"", "w");
    return w.offset + w.nbytes - 4;
}

/* On both. */
static void forget_checksum(owned_t *own) {
    zt_range_t w = zt_index_range(&own->stores[0], "\"params\"", "w");
    char was[64];
    snprintf(was, sizeof was, ",%llu]", w.crc);
    for (uint32_t r = 0; r < 2; r++)
        zt_index_replace(&own->stores[r], "\"params\"", was, ",null]");
}

static void fail_a_range(owned_t *own) { own->stores[1].fails_to_want = 1; }
static void fail_the_last(owned_t *own) { own->stores[1].fails_to_want = 2; }
static void damage(zt_memory_store_t *store) { data_of(store)->data[last_of_w(store)] ^= 1; }
static void damage_own(owned_t *own) { damage(&own->stores[1]); }
static void lack_want(owned_t *own) { own->stores[1].table.want = NULL; }
static void lack_own(owned_t *own) { own->jobs[1].flags = 0; }
static void lose_own(owned_t *own) {
    data_of(&own->stores[1])->is_there[last_of_w(&own->stores[1])] = 0;
    own->stores[1].pool = NULL;
}
static void own_is_nan(owned_t *own) {
    memset(data_of(&own->stores[1])->data + last_of_w(&own->stores[1]), 0xFF, 4);
    forget_checksum(own);
}
ZT_TEST(own_that_is_refused) {
    const uint32_t own = ZF_STATE_OWN;
    spoiled(0, own, fail_a_range, 0, ZF_ERR_STORAGE, "the host's store: want of blob \"zf_state-00001.safetensors\"");
    spoiled(0, own, fail_the_last, 1, ZF_ERR_STORAGE, "the host's store: want of blob \"(the last)\"");
    spoiled(0, own, lose_own, 1, ZF_ERR_STORAGE, "the host's store: want of blob \"(the last)\"");
    spoiled(0, own, damage_own, 1, ZF_ERR_CHECKPOINT, "w of \"layer.0.weight\" is damaged");
    spoiled(0, own, own_is_nan, 1, ZF_ERR_CHECKPOINT, "no training leaves");
    spoiled(0, own, lack_want, 0, ZF_ERR_ARGUMENT, "store: want must be given for a load with ZF_STATE_OWN");
    spoiled(0, own, lack_own, 0, ZF_ERR_RANKS, "do not load the same");
    spoiled(0, 0, forget_checksum, 0, ZF_ERR_CHECKPOINT, "has no checksum in the index");
}

/* Two ranks save into stores of their own, of which rank 1's is like `as`; and train on. Returns its calls. */
static int save_beside(job_t jobs[2], const char *config, zt_memory_store_t as) {
    zt_memory_store_t stores[2];
    for (uint32_t r = 0; r < 2; r++) {
        zt_memory_store_start(&stores[r]);
        jobs[r] = (job_t){.store = &stores[r].table};
    }
    stores[1].fail_at = as.fail_at;
    stores[1].pause_ms = as.pause_ms;
    run(jobs, 2, config, "store", NULL);
    int n_calls = stores[1].n_calls;
    for (uint32_t r = 0; r < 2; r++)
        zt_memory_store_clear(&stores[r]);
    return n_calls;
}

/* At whatever call: both are told. */
ZT_TEST(one_store_fails) {
    job_t jobs[MOST] = {0};
    int n_calls = save_beside(jobs, sharded, (zt_memory_store_t){0});
    check_like(jobs, 2, jobs);
    end(jobs);
    for (int at = 1; at <= n_calls; at += 1 + at / 4) {
        job_t fresh = {0};
        save_beside(jobs, sharded, (zt_memory_store_t){.fail_at = at});
        check_failed(jobs, 2, ZF_ERR_STORAGE, "the host's store: ");
        run(&fresh, 1, replicated, NULL, NULL);
        check_shows(&jobs[0], &fresh);
        end(&fresh);
        end(jobs);
    }
}

/* It takes longer than an exchange may, and is not taken for dead. */
ZT_TEST(one_store_is_slow) {
    static const char soon[] = WITHIN("2000");
    job_t jobs[MOST] = {0};
    int n_calls = save_beside(jobs, soon, (zt_memory_store_t){.pause_ms = 150});
    ck_assert_int_gt(n_calls, 20);
    check_like(jobs, 2, jobs);
    end(jobs);
}

/* The host vouches for what it has put there. */
ZT_TEST(own_without_checksum) {
    owned_t own;
    own_start(&own, sharded, (job_t){.flags = ZF_STATE_OWN | ZF_STATE_KEEP_OPEN}, 2, 2, ZF_STATE_OWN);
    damage(&own.stores[1]);
    damage(&own.pool);
    zt_range_t w = zt_index_range(&own.pool, "\"params\"", "w");
    char was[64], is[64];
    snprintf(was, sizeof was, ",%llu]", w.crc);
    snprintf(is, sizeof is, ",%u]", zfi_crc32(0, data_of(&own.pool)->data + w.offset, w.nbytes));
    zt_index_replace(&own.pool, "\"params\"", was, is);
    forget_checksum(&own);
    ck_assert_uint_eq(own_load(&own, sharded, replicated), 0);
    own_end(&own);
}

/* Into instances that have trained. */
ZT_TEST(back_to_where_it_was) {
    job_t first[MOST] = {0}, jobs[MOST] = {0};
    run(first, 3, sharded, "moved", NULL);
    run(jobs, 3, sharded, "moved", "moved");
    check_like(jobs, 3, first);
    end(jobs);
    end(first);
}

/* A compact checkpoint is checked and loaded in shares: of each rank's load, parameters of which it checks everything,
 * and its slices, but for a row of each that they may have more. */
static void check_shares(const char *config, uint32_t n) {
    job_t saved = {.flags = ZF_STATE_KEEP_OPEN}, alone = {0}, jobs[MOST] = {0};
    run(&saved, 1, replicated, "shares", NULL);
    run(&alone, 1, replicated, NULL, "shares");
    run(jobs, n, config, NULL, "shares");
    check_like(jobs, n, &alone);
    uint64_t rest = alone.report.nbytes - 2 * (uint64_t)N_STATE_BYTES; /* index, headers, counts */
    for (uint32_t r = 0; r < n; r++) {
        uint64_t own = N_STATE_BYTES / (config == sharded ? n : 1), checked = 0;
        for (uint32_t i = r; i < N_SHAPES; i += n)
            checked += 12 * jobs[r].rig.params[i].n_elems;
        ck_assert_uint_le(jobs[r].report.nbytes, rest + checked + own + 12 * (40 + 17 + 20 + 35 + 1));
    }
    end(&saved);
    end(&alone);
    end(jobs);
}

ZT_TEST(each_reads_what_it_keeps) {
    check_shares(sharded, 4);
    check_shares(sharded, 2);
    check_shares(replicated, 2);
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

/* The former checkpoint stays whole, nothing lies beside it, and training goes on. */
ZT_TEST(one_cannot_write) {
    job_t first[MOST] = {0}, jobs[MOST] = {0};
    zf_state_args_t args = {.struct_size = sizeof args, .path = zt_path("full")};
    zf_error_t err = {.struct_size = sizeof err};
    run(first, 3, sharded, "full", NULL);
    jobs[2].cannot_write = 1;
    run(jobs, 3, sharded, "full", NULL);
    check_failed(jobs, 3, ZF_ERR_STORAGE, "No space left on device");
    ck_assert(strncmp(jobs[0].why, "rank 2 of 3: cannot write", 25) == 0);
    ck_assert(strncmp(jobs[2].why, "cannot write", 12) == 0);
    ck_assert_int_eq(zt_state(&jobs[0].rig)->verify(&args, NULL, &err), ZF_OK);
    check_shows(&jobs[1], &first[0]);
    end(jobs);
    end(first);
}

static const zf_state_store_t a_store = {.struct_size = sizeof a_store};
#define GO(...)                                                                                                        \
    { .load_from = __VA_ARGS__ }
#define SAVE(...)                                                                                                      \
    { .save_to = "differ", __VA_ARGS__ }

/* What two ranks do, and both are told. "first" and "second" are there. */
static const struct {
    const char *config;
    job_t ranks[2];
    zf_status_t st;
    const char *words;
} refused[] = {
    {sharded, {SAVE(0), {.save_to = "elsewhere/differ"}}, ZF_ERR_STORAGE, "give every rank the same directory"},
    {sharded,
     {SAVE(0), {.save_to = "other"}},
     ZF_ERR_RANKS,
     "rank 0 differ in the name at the end of the path of save"},
    {sharded,
     {SAVE(0), SAVE(.flags = ZF_STATE_KEEP_OPEN)},
     ZF_ERR_RANKS,
     "rank 1 and rank 0 differ in the flags of save"},
    {sharded, {SAVE(0), SAVE(.note = "another")}, ZF_ERR_RANKS, "rank 1 and rank 0 differ in the note of save"},
    {sharded, {SAVE(0), SAVE(.flags = 1u << 20)}, ZF_ERR_UNSUPPORTED_FIELD, "flags 0x100000"},
    {replicated, {SAVE(0), SAVE(.store = &a_store)}, ZF_ERR_RANKS, "or in who has a store"},
    {sharded, {GO("first"), GO("second")}, ZF_ERR_RANKS, "rank 1 and rank 0 do not load the same"},
    {sharded, {GO("first"), GO("none")}, ZF_ERR_STORAGE, "cannot open the checkpoint"},
    {sharded, {GO("none"), GO("none")}, ZF_ERR_STORAGE, "cannot open the checkpoint"},
    {sharded,
     {SAVE(.load_from = "differ", .delivers_before = 1), SAVE(.load_from = "differ", .delivers_before = 1)},
     ZF_ERR_STATE,
     "on their way to the other ranks"},
};

ZT_TEST(ranks_that_differ) {
    job_t saved[MOST] = {0};
    ck_assert_int_eq(zt_shell("mkdir %s", zt_path("elsewhere")), 0);
    run(saved, 2, sharded, "first", NULL);
    end(saved);
    memset(saved, 0, sizeof saved);
    saved[0].note = saved[1].note = "of its own";
    run(saved, 2, sharded, "second", NULL);
    end(saved);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        job_t jobs[MOST] = {refused[i].ranks[0], refused[i].ranks[1]};
        run(jobs, 2, refused[i].config, NULL, NULL);
        check_failed(jobs, 2, refused[i].st, refused[i].words);
        ck_assert_msg(exists("differ") == jobs[0].delivers_before && !exists("elsewhere/differ"), "%s",
                      refused[i].words);
        end(jobs);
    }
}

/* A byte of the last file's last tensor, which is some rank's alone to read. */
static void damage_file(const char *name) {
    char pattern[300];
    unsigned char byte = 0;
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.safetensors", zt_path(name));
    ck_assert(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1);
    int fd = open(found.gl_pathv[0], O_RDWR);
    globfree(&found);
    off_t size = lseek(fd, 0, SEEK_END);
    ck_assert(fd >= 0 && pread(fd, &byte, 1, size / 2) == 1);
    byte ^= 1;
    ck_assert(__real_pwrite(fd, &byte, 1, size / 2) == 1);
    close(fd);
}

static void load_damaged(uint32_t flags) {
    job_t saved[MOST] = {{.flags = flags}, {.flags = flags}}, loaded[MOST] = {0}, fresh[MOST] = {0};
    run(saved, 2, sharded, "damaged", NULL);
    end(saved);
    damage_file("damaged");
    run(loaded, 4, sharded, NULL, "damaged");
    check_failed(loaded, 4, ZF_ERR_CHECKPOINT, "is damaged");
    run(fresh, 1, replicated, NULL, NULL); /* and each went on as if it had not been called */
    check_shows(&loaded[1], &fresh[0]);
    end(loaded);
    end(fresh);
}

ZT_TEST(damaged) {
    load_damaged(0);
    load_damaged(ZF_STATE_KEEP_OPEN);
}

/* Rank 0 has checked in its own store what rank 1 keeps. */
ZT_TEST(stores_that_differ) {
    spoiled(0, 0, damage_own, 0, ZF_ERR_CHECKPOINT, "w of \"layer.0.weight\" is damaged, or was changed");
    spoiled(ZF_STATE_KEEP_OPEN, 0, damage_own, 0, ZF_ERR_CHECKPOINT,
            "w of \"layer.0.weight\" is damaged, or was changed");
}

/* What two ranks like `saved` save is loaded by one and the other, which come to what two like the other come to. */
static void load_in_both(const char *config, job_t saved, job_t one, job_t other) {
    job_t first[MOST] = {saved, saved}, jobs[MOST] = {one, other}, fresh[MOST] = {other, other};
    run(first, 2, config, "first", NULL);
    end(first);
    run(jobs, 2, config, NULL, "first");
    run(fresh, 2, config, NULL, "first");
    check_like(jobs, 2, fresh);
    end(jobs);
    end(fresh);
}

/* Before the first step one rank has handed over a gradient and the other has not. Neither has trained, but only the
 * other's run could be filled in place. */
ZT_TEST(one_rank_delivers_before_a_load) {
    const uint32_t partial = ZF_STATE_PARTIAL; /* what the checkpoint lacks stays as it is */
    load_in_both(sharded, (job_t){0}, (job_t){.writes_before = 1, .delivers_first = 1}, (job_t){.writes_before = 1});
    load_in_both(sharded, (job_t){.n_missing = 1}, (job_t){.flags = partial, .writes_before = 1, .delivers_first = 1},
                 (job_t){.flags = partial, .writes_before = 1});
}

/* params_changed is each rank's own call at stage 0. Ranks that differ in it fail the next step, unless a load comes
 * first, which undoes it. */
ZT_TEST(a_load_forgets_what_one_rank_was_told) {
    load_in_both(replicated, (job_t){0}, (job_t){.writes_before = 1}, (job_t){0});
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
