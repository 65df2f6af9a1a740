/* SPDX-License-Identifier: Apache-2.0 */
/* test_audit.c - [audit] file and `zf audit`: a bit that flips anywhere is named, equal runs are equal on any number of
 * ranks and threads, at any stage and with any instruction set, and trouble with the file is no trouble of training. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "digest.h"
#include "instance/instance.h"
#include "local_ranks.h"
#include "replay/state_arrays.h"
#include "state/audit.h"
#include "state_rig.h"
#include "suite.h"
#include "wrap.h"

enum { STEPS = 12, MOST = 4, FETCHES = ZF_CREATE_CAP_FETCH, SHARDS = ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS };

static const zt_shape_t shapes[] = {
    {.rows = 24, .cols = 40}, {.rows = 17}, {.rows = 30, .cols = 20, .is_bf16 = 1}, {.rows = 5, .cols = 7}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static const char *const arrays[] = {"visible", "w", "m", "v"};

/* ---- a run ------------------------------------------------------------------------------------------------------- */

/* Of one audited step: a bit of one element is another just before it is read. */
static struct {
    uint64_t step;
    uint32_t rank, param, bit;
    uint64_t element;
    int array;
} flip;

static void flip_state(const zfi_state_t *state, const zfi_param_t *param) {
    zfi_array_t array = (zfi_array_t)(flip.array - ZFI_AUDIT_W + ZFI_STATE_W);
    uint32_t number = param->first_matrix, bits;
    float value;
    while (number + 1 < param->first_matrix + param->n_matrices &&
           state->plan->matrices[number + 1].param_offset <= flip.element)
        number++;
    uint64_t at = flip.element - state->plan->matrices[number].param_offset;
    ck_assert(!zfi_state_get(state, array, number, at, 1, &value));
    memcpy(&bits, &value, 4);
    bits ^= 1u << flip.bit;
    memcpy(&value, &bits, 4);
    ck_assert(!zfi_state_put(state, array, number, at, 1, &value));
}

ZT_WRAP(zf_status_t, zfi_audit_take, zfi_audit_t *audit, const zfi_state_t *state, uint64_t step, size_t *out_nbytes) {
    const zfi_param_t *param = &state->side->params[flip.param];
    if (step == flip.step && zfi_rank(state->engine) == flip.rank) {
        if (flip.array == ZFI_AUDIT_VISIBLE)
            param->visible[flip.element * zfi_dtype_nbytes(param->dtype) +
                           flip.bit / 8 % zfi_dtype_nbytes(param->dtype)] ^= (unsigned char)(1u << flip.bit % 8);
        else
            flip_state(state, param);
    }
    return __real_zfi_audit_take(audit, state, step, out_nbytes);
}

/* How a run is made. */
typedef struct way {
    const char *name; /* of its file */
    uint32_t n_ranks, flags;
    int stage, threads, every, interval, steps, uses_queue, is_away, is_strided, has_experts;
    const char *isa, *host; /* NULL: as it comes; more lines of [host] */
} way_t;

typedef struct job {
    ZT_JOB;
    const way_t *way;
} job_t;

static zt_ranks_t ranks;

static const char *config_of(const way_t *way) {
    static _Thread_local char text[1024];
    snprintf(text, sizeof text,
             "[zenflow]\ntopk_ratio = 0.2\nupdate_interval = %d\nfull_warm_up_rounds = 2\nselect_interval = 3\n"
             "on_overwrite = off\n[host]\nthreads = %d\ndeadline_ms = 60000\n%s[shard]\nstage = %d\n"
             "bucket_bytes = 1000\n[audit]\nfile = %s every %d\n",
             way->interval ? way->interval : 3, way->threads ? way->threads : 1, way->host ? way->host : "", way->stage,
             zt_path(way->name), way->every ? way->every : 1);
    return text;
}

/* Rank 0 has the gradients, so that sums are exact on any number of ranks. */
static zf_status_t step(job_t *job) {
    zt_rig_t *rig = &job->rig;
    int has_gradients = job->rank->rank == 0;
    zf_fence_t fence;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < rig->n_params && st >= 0; i++) {
        if (!has_gradients && rig->decls[i].reduce_group != ZT_ALONE)
            continue;
        zt_rig_fill_grad(rig, i, rig->step + 1);
        st = zt_rig_deliver(rig, i, 0, rig->queue ? &fence : NULL);
    }
    if (st >= 0)
        st = zt_rig_submit(rig, 0, NULL);
    if (st >= 0 && rig->queue && has_gradients)
        zt_rig_wait(rig, &fence); /* gradients may be filled again */
    return st;
}

/* Parameter 0 is another one on each rank, and by another rule; its group is the norm's, too. */
static void declare_experts(job_t *job) {
    zt_rig_t *rig = &job->rig;
    rig->norm_group = 2;
    rig->decls[0].reduce_group = ZT_ALONE;
    rig->decls[0].group = 1;
    rig->rules[1].rule = ZF_RULE_LION;
    ((float *)(void *)rig->params[0].visible)[7] += (float)job->rank->rank;
}

static void *run_job(void *raw) {
    job_t *job = raw;
    static const int64_t strides[] = {1, 24};
    static zfi_device_ops_t away;
    zt_rig_start(&job->rig, shapes, N_SHAPES);
    if (job->way->is_strided)
        job->rig.params[0].tensor.dl.strides = strides;
    if (job->way->has_experts)
        declare_experts(job);
    job->st = zt_ranks_try_open(job->rank, &job->rig, config_of(job->way), job->way->uses_queue);
    if (job->way->is_away && job->st >= 0) {
        away = *job->rig.inst->engine.ops;
        away.has_own_memory = 1;
        job->rig.inst->engine.ops = &away;
    }
    for (int t = 1; t <= (job->way->steps ? job->way->steps : STEPS) && job->st >= 0; t++)
        job->st = step(job);
    return NULL;
}

static void train(way_t way) {
    static job_t jobs[MOST];
    zt_jobs_start(&ranks, way.n_ranks ? way.n_ranks : 1, jobs, sizeof *jobs, &(job_t){.way = &way});
    if (way.isa)
        setenv("ZF_FORCE_ISA", way.isa, 1);
    for (uint32_t r = 0; r < ranks.size; r++)
        ranks.ranks[r].flags = way.flags;
    zt_jobs_run(&ranks, run_job, 0);
    zt_jobs_end(&ranks);
    unsetenv("ZF_FORCE_ISA");
}

/* ---- zf audit ---------------------------------------------------------------------------------------------------- */

static char said[4096];

/* Its exit status; what it says is in `said`. */
static int audit(const char *a, const char *b) {
    char command[1024];
    snprintf(command, sizeof command, "'%s' audit '%s/%s' '%s/%s' 2>&1", ZF, zt_dir(), a, zt_dir(), b);
    FILE *from = popen(command, "r");
    ck_assert_ptr_nonnull(from);
    said[fread(said, 1, sizeof said - 1, from)] = '\0';
    return WEXITSTATUS(pclose(from));
}

static void expect(int status, const char *a, const char *b, const char *words) {
    int is = audit(a, b);
    ck_assert_msg(is == status && strstr(said, words), "%s and %s: %d, need %d with \"%s\": %s", a, b, is, status,
                  words, said);
}

static void remove_run(const char *name) {
    char rank[64];
    unlink(zt_path(name));
    for (int r = 0; r < MOST; r++) {
        snprintf(rank, sizeof rank, "%s.rank%d", name, r);
        unlink(zt_path(rank));
    }
}

/* ---- what is named ----------------------------------------------------------------------------------------------- */

static void plant(uint64_t seed, const way_t *way) {
    memset(&flip, 0, sizeof flip);
    flip.array = (int)(zt_hash(seed) % 4);
    flip.param = (uint32_t)(zt_hash(seed + 1) % N_SHAPES);
    uint64_t n = (uint64_t)shapes[flip.param].rows * (uint64_t)(shapes[flip.param].cols ? shapes[flip.param].cols : 1);
    flip.element = zt_hash(seed + 2) % n;
    flip.bit = (uint32_t)(zt_hash(seed + 3) % 32);
    if (flip.array >= ZFI_AUDIT_M && way->host) /* in bfloat16 the lower half is not there */
        flip.bit |= 16;
    flip.step = 1 + zt_hash(seed + 4) % STEPS;
}

/* Every array, parameter, element, bit and step, on one rank, in bfloat16 as well. */
ZT_TEST(flipped_bits) {
    enum { FLIPS = 8 };
    way_t ways[] = {{.name = "sound"}, {.name = "sound16", .host = "moments_dtype = bfloat16\n"}};
    for (int w = 0; w < 2; w++) {
        way_t way = ways[w];
        memset(&flip, 0, sizeof flip);
        train(way);
        for (uint64_t i = 0; i < FLIPS; i += ZT_EVERY) {
            char words[128];
            plant(1000 * i + (uint64_t)w, &way);
            way.name = "flipped";
            way.steps = (int)flip.step; /* what comes of it is not the question */
            train(way);
            snprintf(words, sizeof words, "they part at step %d: %s of \"layer.%u.weight\"\n", way.steps,
                     arrays[flip.array], flip.param);
            expect(1, ways[w].name, "flipped", words);
            ck_assert_msg(!strstr(said, "there too"), "%s", said);
            unlink(zt_path("flipped"));
        }
    }
}

/* Of three ranks that train so, as the run "sound" was, one has another bit: the rank is named as well. Of another
 * number of ranks the rest, where `one` is the name of such a run. */
static void flip_on_each_rank(way_t way, const char *one) {
    way.name = "flipped", way.steps = 5;
    for (uint32_t r = 0; r < 3; r++) {
        char words[128];
        memset(&flip, 0, sizeof flip);
        /* element 0 is the first rank's, masters are whole at stage 0 only */
        flip.array = way.stage == 0 || r == 0 ? ZFI_AUDIT_W : ZFI_AUDIT_VISIBLE;
        flip.rank = r, flip.step = 5, flip.bit = 3;
        train(way);
        snprintf(words, sizeof words, "they part at step 5: %s of \"layer.0.weight\", rank %u", arrays[flip.array], r);
        expect(1, "sound", "flipped", words);
        if (one) {
            *strchr(words, ',') = '\0';
            expect(1, one, "flipped", words);
            expect(1, "flipped", one, words);
        }
        remove_run("flipped");
    }
    memset(&flip, 0, sizeof flip);
}

ZT_TEST(flipped_bits_on_a_rank) {
    train((way_t){.name = "one"});
    for (int stage = 0; stage<3; stage += ZT_EVERY> 1 ? 2 : 1) {
        way_t way = {.name = "sound", .n_ranks = 3, .stage = stage};
        train(way);
        flip_on_each_rank(way, "one");
        remove_run("sound");
    }
}

static void equal(const way_t *way, const char *to) {
    train(*way);
    if (audit(to, way->name) != 0 || !strstr(said, "12 steps are the same, the last of them 12"))
        ck_abort_msg("stage %d, %u ranks, %d threads, %s: %s", way->stage, way->n_ranks, way->threads,
                     way->isa ? way->isa : "-", said);
    remove_run(way->name);
}

/* A model with an expert on each of three ranks, in two parameter groups: the rank whose expert it is, too. */
ZT_TEST(flipped_bits_of_experts) {
    way_t way = {.name = "sound", .n_ranks = 3, .has_experts = 1};
    train(way);
    flip_on_each_rank(way, NULL);
    way.name = "again", way.threads = 2;
    equal(&way, "sound");
}

/* No alarm: stages, ranks, threads, instruction sets, and hosts that fetch. */
ZT_TEST(equal_runs) {
    static const char *const sets[] = {"generic", "avx2", "avx512", "neon"};
    int n_ways = 0;
    train((way_t){.name = "one"});
    for (int i = 0; i < 4; i++) {
        if (!zfi_kernels_of((zfi_isa_t)zfi_isa_parse(sets[i])))
            continue;
        for (int stage = 0; stage < 4; stage++)
            for (uint32_t n = 1 + (uint32_t)(i + stage) % 4; n <= MOST; n += 4) { /* others with the next set */
                way_t way = {.name = "other", .n_ranks = n, .stage = stage, .isa = sets[i]};
                way.threads = 1 + (int)(n + (uint32_t)stage) % 3;
                way.uses_queue = (int)(n + (uint32_t)i) % 2;
                way.flags = stage == 3 ? SHARDS : (n + (uint32_t)i) % 3 ? FETCHES : 0;
                if (n_ways++ % ZT_EVERY == 0)
                    equal(&way, "one");
            }
    }
}

/* Memory that the host's threads can read is read in place, however it lies; of a device with its own it is copied. */
ZT_TEST(equal_from_a_device) {
    static const char *const resident[] = {NULL, "[device]\nstate_mib = all\n[host]\n"};
    for (int i = 0; i < 2; i++)
        for (int is_strided = 0; is_strided < 2; is_strided++) {
            train((way_t){.name = "here", .is_strided = is_strided, .host = resident[i]});
            equal(&(way_t){.name = "away", .is_strided = is_strided, .host = resident[i], .is_away = 1}, "here");
            unlink(zt_path("here"));
        }
}

ZT_TEST(other_settings) {
    train((way_t){.name = "a"});
    train((way_t){.name = "b", .interval = 2, .every = 5});
    train((way_t){.name = "c", .steps = 4, .every = 7});
    expect(1, "a", "b", "setting zenflow.update_interval: \"3\" in A, \"2\" in B");
    expect(1, "a", "b", "they part at step 5:");
    expect(2, "a", "c", "is no audit");
    expect(2, "a", "none", "No such file");
    FILE *odd = fopen(zt_path("odd"), "w");
    ck_assert_ptr_nonnull(odd);
    fprintf(odd,
            "{\"zf_audit\": 1, \"process\": 0, \"n_processes\": 1, \"part\": 0, \"parts\": 0, \"settings\": 7, "
            "\"params\": []}\n{\"step\": 1, \"ms\": 1, \"m\": \"\", \"v\": \"\", \"w\": \"\", \"visible\": \"\"}\n");
    ck_assert_int_eq(fclose(odd), 0);
    expect(2, "odd", "a", "makes no sense");
}

/* ---- resumed, torn ----------------------------------------------------------------------------------------------- */

static void open_alone(zt_rig_t *rig, const char *name) {
    static zt_ranks_t one;
    zt_ranks_init(&one, 1);
    zt_rig_start(rig, shapes, N_SHAPES);
    ZT_OK(rig, zt_ranks_try_open(&one.ranks[0], rig, config_of(&(way_t){.name = name}), 0));
}

/* A run that dies after step 9 goes on from step 4, after which both were saved; what it left may end anywhere. */
ZT_TEST(resumed) {
    static zt_rig_t rig;
    zt_memory_store_t store;
    struct stat info;
    zt_memory_store_start(&store);
    open_alone(&rig, "whole");
    zt_rig_steps(&rig, 4);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    zt_rig_steps(&rig, STEPS - 4);
    zt_rig_end(&rig);
    zt_memory_store_clear(&store);
    for (int cut = 0; cut < 12; cut += cut ? 4 : 1) {
        zt_memory_store_start(&store);
        memset(&flip, 0, sizeof flip);
        flip.array = ZFI_AUDIT_W, flip.step = 7; /* in what is made again */
        open_alone(&rig, "resumed");
        zt_rig_steps(&rig, 4);
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
        zt_rig_steps(&rig, 5);
        zt_rig_end(&rig);
        ck_assert_int_eq(stat(zt_path("resumed"), &info), 0);
        if (!cut)
            expect(1, "whole", "resumed", "they part at step 7: w of");
        if (cut)
            info.st_size = cut == 1 ? 10 : (off_t)(zt_hash((uint64_t)cut) >> 1) % info.st_size;
        ck_assert_int_eq(truncate(zt_path("resumed"), info.st_size), 0);
        (void)audit("whole", "resumed");
        ck_assert_msg(!strstr(said, "part at") || strstr(said, "part at step 7: w of"), "%s", said);
        memset(&flip, 0, sizeof flip);
        open_alone(&rig, "resumed");
        ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
        rig.step = 4;
        for (int t = 4; t < STEPS; t++)
            ZT_OK(&rig, zt_rig_try_step(&rig));
        zt_rig_end(&rig);
        expect(0, "whole", "resumed", "the last of them 12");
        zt_memory_store_clear(&store);
        unlink(zt_path("resumed"));
    }
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

static _Atomic int64_t room = -1; /* bytes that the disk takes; -1: all */

static zt_log_t warned;

ZT_WRAP(ssize_t, write, int fd, const void *from, size_t nbytes) {
    if (room == 0) {
        errno = ENOSPC;
        return -1;
    }
    if (room > 0 && (int64_t)nbytes > room)
        nbytes = (size_t)room;
    room -= room > 0 ? (int64_t)nbytes : 0;
    return __real_write(fd, from, nbytes);
}

static void open_noted(zt_rig_t *rig, const char *name) {
    zt_rig_start(rig, shapes, N_SHAPES);
    zt_rig_listen(rig, &warned, "[audit] file");
    zt_rig_open(rig, config_of(&(way_t){.name = name}), 0);
}

/* The disk is full for some steps, from a line's middle on; what is written before and behind is read. */
ZT_TEST(full_disk) {
    static zt_rig_t rig;
    train((way_t){.name = "whole"});
    for (int64_t most = 0; most < 1800; most += 333) {
        open_noted(&rig, "full");
        zt_rig_steps(&rig, 3);
        room = most;
        zt_rig_steps(&rig, 6);
        room = -1;
        zt_rig_steps(&rig, 1);
        zt_rig_end_flushed(&rig);
        ck_assert_int_eq(warned.n, 1);
        expect(0, "whole", "full", "the last of them 10");
        unlink(zt_path("full"));
    }
}

ZT_TEST(no_file) {
    static const char *const names[] = {"no/such/folder", "", "fifo", "link"};
    static zt_rig_t rig;
    ck_assert_int_eq(mkfifo(zt_path("fifo"), 0600), 0);
    ck_assert_int_eq(symlink("/etc/passwd", zt_path("link")), 0);
    for (int i = 0; i < 4; i++) {
        open_noted(&rig, names[i]);
        zt_rig_steps(&rig, 3);
        zt_rig_end_flushed(&rig);
        ck_assert_int_eq(warned.n, 1);
    }
}

/* A second instance is refused by name; a forked child that lives on keeps nobody from the file. */
ZT_TEST(two_instances) {
    static zt_rig_t rig, other;
    int ends[2];
    char byte;
    open_noted(&rig, "shared");
    zt_rig_start(&other, shapes, N_SHAPES);
    zt_rig_create(&other, config_of(&(way_t){.name = "shared"}), 0);
    zt_refused(&other.err, zt_rig_try_bind(&other), ZF_ERR_STORAGE, "shared: another instance writes it");
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0); /* until the parent has closed its end */
    }
    zt_rig_steps(&rig, 3);
    zt_rig_end(&rig);
    zt_rig_bind(&other);
    zt_rig_steps(&other, 3);
    zt_rig_end_flushed(&other);
    close(ends[1]);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

/* ---- the digest -------------------------------------------------------------------------------------------------- */

/* The sum by its definition, around 2^32; there the same bits count otherwise than 2^32 elements before. */
ZT_TEST(beyond_32_bits) {
    enum { N = 100 };
    const zfi_kernels_t *kernels = zfi_kernels_of(zfi_isa_best());
    uint64_t starts[] = {0, ((uint64_t)1 << 32) - 50, (uint64_t)1 << 32, ((uint64_t)7 << 32) - 1}, got[4];
    uint32_t bits[N];
    for (uint32_t i = 0; i < N; i++)
        bits[i] = (uint32_t)zt_hash(i);
    for (int k = 0; k < 4; k++) {
        uint64_t sum = 0;
        for (uint64_t i = 0; i < N; i++)
            sum += (2 * ((starts[k] + i) >> 32) * 0x9E3779B97F4A7C15u + 1) * zfi_digest_element(bits[i], starts[k] + i);
        got[k] = zfi_param_digest(kernels, bits, ZFI_F32, N, starts[k]);
        ck_assert(got[k] == sum);
    }
    ck_assert(got[0] != got[2]);
}

static void shard_small_ones(void) { ck_assert_int_eq(setenv("ZF_TEST_WHOLE_BYTES", "100", 1), 0); }

ZT_SUITE_WITH("audit", shard_small_ones, NULL)
