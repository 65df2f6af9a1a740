/* SPDX-License-Identifier: Apache-2.0 */
/* abi_growth.c - proof 7, a long life: memory over many calls of each kind, taken and refused, memory and processor
 * time over four thousand steps; and proof 5, each of those calls on a thread that is cancelled. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "abi_probes.h"
#include "abi_watch.h"
#include "harness/clock.h"

static const double max_growth_nbytes = 100 * 1024, max_slower_ms = 60;

/* ---- steps ------------------------------------------------------------------------------------------------------- */

enum { N_SETTLED = 200, N_MEASURED = 300, N_BETWEEN = 3500 };

static double cpu_ms(void) { return 1e-6 * (double)zc_clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

/* Processor time of some steps, all threads together. */
static double time_steps(abi_rig_t *rig, unsigned n) {
    double before = cpu_ms();
    return abi_rig_train(rig, n, ABI_RULE_VALID) ? cpu_ms() - before : -1;
}

static void probe_long_run(abi_rig_t *rig) {
    if (!abi_rig_train(rig, N_SETTLED, ABI_RULE_VALID))
        return;
    double before = abi_data_nbytes(), early = time_steps(rig, N_MEASURED), grown;
    if (early < 0 || !abi_rig_train(rig, N_BETWEEN, ABI_RULE_VALID))
        return;
    double late = time_steps(rig, N_MEASURED);
    grown = abi_data_nbytes() - before;
    abi_check(rig->probe, ABI_RULE_GROWTH, grown <= max_growth_nbytes,
              "%d steps took %.0f bytes that were not given back, limit %.0f", N_BETWEEN + 2 * N_MEASURED, grown,
              max_growth_nbytes);
    abi_check(rig->probe, ABI_RULE_GROWTH, late <= 2 * early + max_slower_ms,
              "%d steps took %.0f ms of processor time early in a run, %.0f ms %d steps later", N_MEASURED, early, late,
              N_BETWEEN);
}

/* ---- other calls ------------------------------------------------------------------------------------------------- */

enum { N_FIRST = 20, N_CALLS = 60 };
static const double max_lost_nbytes = 100; /* by a call */
static abi_rig_t other;                    /* bound, of another model; and created */
static abi_rig_t unbound;

static const zf_state_ext_t *state_of(const abi_rig_t *rig) { return rig->table->get_extension(ZF_EXT_STATE); }

/* A place in the scratch directory. */
static zf_state_args_t place(const abi_rig_t *rig, const char *name) {
    static char path[4300];
    snprintf(path, sizeof path, "%s/%s", rig->probe->scratch, name);
    return (zf_state_args_t){.struct_size = sizeof(zf_state_args_t), .path = path};
}

static zf_status_t save_to(abi_rig_t *rig, const char *name) {
    zf_state_args_t args = place(rig, name);
    args.flags = ZF_STATE_NO_SYNC;
    return state_of(rig) ? ABI_CALL(rig, state_of(rig)->save(rig->instance, &args, NULL, &rig->err)) : ZF_DISABLED;
}

static zf_status_t load_from(abi_rig_t *rig, const char *name, uint32_t flags) {
    zf_state_args_t args = place(rig, name);
    args.flags = flags;
    return state_of(rig) ? ABI_CALL(rig, state_of(rig)->load(rig->instance, &args, NULL, &rig->err)) : ZF_DISABLED;
}

static zf_status_t save(abi_rig_t *rig) { return save_to(rig, "grown"); }

static zf_status_t load(abi_rig_t *rig) { return load_from(rig, "grown", 0); }

static zf_status_t verify(abi_rig_t *rig) {
    const zf_state_args_t args = place(rig, "grown");
    return state_of(rig) ? state_of(rig)->verify(&args, NULL, &rig->err) : ZF_DISABLED;
}

static zf_status_t note(abi_rig_t *rig) {
    const zf_state_args_t args = place(rig, "grown");
    char text[8];
    return state_of(rig) ? state_of(rig)->note(&args, text, sizeof text, &rig->err) : ZF_DISABLED;
}

static zf_status_t weights(abi_rig_t *rig) {
    const zf_state_args_t args = place(rig, "grown");
    float out[30];
    return state_of(rig) ? state_of(rig)->weights(&args, "a.weight", out, 30, &rig->err) : ZF_DISABLED;
}

static zf_status_t step(abi_rig_t *rig) {
    abi_rig_set_gradients(rig);
    return abi_rig_step(rig, ABI_RIG_TRAINED, NULL);
}

static zf_status_t rest(abi_rig_t *rig) { return abi_rig_quiesce(rig, ZF_QUIESCE_FLUSH); }

static zf_status_t bind(abi_rig_t *rig) { return abi_rig_bind(rig, NULL); }

static zf_status_t export(abi_rig_t *rig) {
    float out[30];
    const zf_export_item_t item = {.struct_size = sizeof item, .id = rig->ids[0], .dst = out, .dst_nbytes = sizeof out};
    return abi_rig_export(rig, &item);
}

static zf_status_t fetch(abi_rig_t *rig) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    zf_status_t st = ABI_CALL(rig, rig->table->param_fetch(rig->instance, NULL, 0, 0, &rig->stream, &fence, &rig->err));
    return st < 0 ? st : ABI_CALL(rig, rig->table->fence_wait(rig->instance, &fence, 10000000000u, &rig->err));
}

static zf_status_t change(abi_rig_t *rig) {
    return ABI_CALL(rig, rig->table->params_changed(rig->instance, NULL, 0, 0, 0, &rig->err));
}

/* One that does not come. */
static zf_status_t wait(abi_rig_t *rig) {
    zf_fence_t fence = {.struct_size = sizeof fence};
    zf_status_t st = ABI_CALL(rig, rig->table->param_fetch(rig->instance, NULL, 0, 0, &rig->stream, &fence, &rig->err));
    if (st < 0 || fence.kind != ZF_FENCE_HOST_COUNTER)
        return st;
    fence.value += 1000;
    st = ABI_CALL(rig, rig->table->fence_wait(rig->instance, &fence, 1000000, &rig->err));
    return st == ZF_ERR_TIMEOUT ? ZF_OK : ZF_ERR_INTERNAL;
}

static zf_status_t release_and_resume(abi_rig_t *rig) {
    const zf_residency_ext_t *ext = rig->table->get_extension(ZF_EXT_RESIDENCY);
    if (!ext)
        return ZF_DISABLED;
    zf_status_t st = ABI_CALL(rig, ext->release(rig->instance, ZF_RELEASE_DEVICE, &rig->stream, NULL, &rig->err));
    return st < 0 ? st : ABI_CALL(rig, ext->resume(rig->instance, &rig->stream, NULL, &rig->err));
}

/* ---- refused ones ------------------------------------------------------------------------------------------------ */

static zf_status_t refused(zf_status_t st) { return st == ZF_DISABLED ? st : st < 0 ? ZF_OK : ZF_ERR_INTERNAL; }

static zf_status_t refuse_export(abi_rig_t *rig) {
    const zf_export_item_t item = {.struct_size = sizeof item, .id = 77};
    return refused(abi_rig_export(rig, &item));
}

/* What another model's instance saved, and one that is damaged; nothing at all; one whose schedule cannot go on. */
static zf_status_t refuse_load(abi_rig_t *rig) { return refused(load_from(rig, "other", 0)); }

static zf_status_t refuse_damaged(abi_rig_t *rig) { return refused(load_from(rig, "damaged", ZF_STATE_PARTIAL)); }

static zf_status_t refuse_nothing(abi_rig_t *rig) { return refused(load_from(rig, "nothing", 0)); }

static zf_status_t refuse_other_schedule(abi_rig_t *rig) {
    return refused(load_from(rig, "unlike", ZF_STATE_CONTINUE));
}

static zf_status_t refuse_verify(abi_rig_t *rig) {
    const zf_state_args_t args = place(rig, "damaged");
    return state_of(rig) ? refused(state_of(rig)->verify(&args, NULL, &rig->err)) : ZF_DISABLED;
}

static zf_status_t refuse_weights(abi_rig_t *rig) {
    const zf_state_args_t args = place(rig, "grown");
    float out[30];
    return state_of(rig) ? refused(state_of(rig)->weights(&args, "no.weight", out, 30, &rig->err)) : ZF_DISABLED;
}

static zf_status_t refuse_save(abi_rig_t *rig) { return refused(save_to(rig, "nowhere/here")); }

/* A weight that is not finite is found late; a second parameter of the same name before that. */
static zf_status_t refuse_weight(abi_rig_t *rig) {
    uint64_t *at = &unbound.memory[1][0], kept = *at;
    (void)rig;
    *at = UINT64_MAX;
    zf_status_t st = refused(abi_rig_bind(&unbound, NULL));
    *at = kept;
    return st;
}

static zf_status_t refuse_name(abi_rig_t *rig) {
    const char *kept = rig->decls[2].name;
    rig->decls[2].name = rig->decls[0].name;
    zf_status_t st = refused(abi_rig_bind(rig, NULL));
    rig->decls[2].name = kept;
    return st;
}

static zf_status_t refuse_text(abi_rig_t *rig) {
    static const char text[] = "[zenflow]\ntopk_ratio = 7\nno_such_key = 1\n[audit]\nfile = here every day\n";
    zf_create_args_t args = rig->create;
    zf_instance_t *none = NULL;
    args.config_text = text;
    args.config_text_nbytes = strlen(text);
    return refused(ABI_CALL(rig, rig->table->create(&args, &none, &rig->err)));
}

static zf_status_t refuse_create(abi_rig_t *rig) {
    static const zf_chained_t needed = {sizeof needed, ZF_CHAINED_REQUIRED, "zf-conform.needed/1", NULL};
    zf_create_args_t args = rig->create;
    zf_instance_t *none = NULL;
    args.next = &needed;
    return refused(ABI_CALL(rig, rig->table->create(&args, &none, &rig->err)));
}

static zf_status_t refuse_check(abi_rig_t *rig) {
    static const char text[] = "[zenflow]\ntopk_ratio = 7\nno_such_key = 1\n[shard]\nstage = 9\n";
    static const char *const overrides[] = {"zenflow.update_interval=0"};
    const zf_config_ext_t *ext = rig->table->get_extension(ZF_EXT_CONFIG);
    return ext ? refused(ext->check(text, strlen(text), overrides, 1, &rig->err)) : ZF_DISABLED;
}

static zf_status_t refuse_plan(abi_rig_t *rig) {
    const zf_plan_ext_t *ext = rig->table->get_extension(ZF_EXT_PLAN);
    zf_param_decl_t decls[2] = {rig->decls[0], rig->decls[0]};
    const zf_bind_args_t bind = {.struct_size = sizeof bind, .decls = decls, .n_decls = 2, .decl_size = sizeof *decls};
    const zf_plan_args_t args = {.struct_size = sizeof args, .create = &rig->create, .bind = &bind};
    zf_plan_t plan = {.struct_size = sizeof plan};
    return ext ? refused(ABI_CALL(rig, ext->plan(&args, &plan, &rig->err))) : ZF_DISABLED;
}

static zf_status_t refuse_gradient(abi_rig_t *rig) {
    rig->items[2].id = 77;
    zf_status_t st = refused(abi_rig_deliver(rig, 0, ABI_RIG_TRAINED));
    rig->items[2].id = rig->ids[2];
    return st;
}

static zf_status_t refuse_step(abi_rig_t *rig) {
    rig->hyper.beta2 = 1.0;
    zf_status_t st = refused(ABI_CALL(rig, rig->table->step(rig->instance, &rig->step, NULL, &rig->err)));
    rig->hyper.beta2 = 0.99;
    return st;
}

static const struct {
    const char *name;
    zf_status_t (*call)(abi_rig_t *);
} kinds[] = {{"save", save},
             {"load", load},
             {"verify", verify},
             {"note", note},
             {"weights", weights},
             {"step", step},
             {"quiesce", rest},
             {"bind_params", bind},
             {"export_params", export},
             {"param_fetch", fetch},
             {"fence_wait", wait},
             {"params_changed", change},
             {"release and resume", release_and_resume},
             {"a refused export", refuse_export},
             {"a load of another model", refuse_load},
             {"a load of what is damaged", refuse_damaged},
             {"a load of nothing", refuse_nothing},
             {"a load of another schedule", refuse_other_schedule},
             {"a refused verify", refuse_verify},
             {"weights of no parameter", refuse_weights},
             {"a refused save", refuse_save},
             {"bind_params with a weight that is not finite", refuse_weight},
             {"bind_params with a name twice", refuse_name},
             {"create with a wrong text", refuse_text},
             {"create with what is not known", refuse_create},
             {"a refused check", refuse_check},
             {"a refused plan", refuse_plan},
             {"grads_ready of no parameter", refuse_gradient},
             {"a refused step", refuse_step}};

/* The last byte of each file but the index is another one. */
static void damage(const char *path) {
    DIR *dir = opendir(path);
    struct stat info;
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        int fd = strcmp(e->d_name, ZF_STATE_INDEX) != 0 ? openat(dirfd(dir), e->d_name, O_RDWR | O_CLOEXEC) : -1;
        unsigned char byte;
        if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && pread(fd, &byte, 1, info.st_size - 1) == 1) {
            byte ^= 1;
            (void)!pwrite(fd, &byte, 1, info.st_size - 1);
        }
        if (fd >= 0)
            close(fd);
    }
    if (dir)
        closedir(dir);
}

/* What the calls need: an instance, two others, and checkpoints to refuse. */
static int prepare(abi_rig_t *rig) {
    static const char unlike[] =
        "[zenflow]\nmode = windows\ntopk_ratio = 0.8\nfull_warm_up_rounds = 2\n[host]\nthreads = 1\n";
    const char *plugin = rig->probe->plugin;
    rig->create.flags |= ZF_CREATE_CAP_RELEASE;
    if (!abi_rig_start(rig, ABI_ACTIVE) || !abi_rig_open(&other, rig->probe, plugin) ||
        !abi_rig_open(&unbound, rig->probe, plugin) || !abi_rig_start(&unbound, ABI_CREATED))
        return 0;
    if (!state_of(rig))
        return 1;
    other.create.config_text = unlike;
    other.create.config_text_nbytes = strlen(unlike);
    zf_status_t st = abi_rig_start(&other, ABI_ACTIVE) ? save_to(&other, "unlike") : ZF_ERR_INTERNAL;
    abi_rig_end(&other);
    other.decls[0].name = "another.weight";
    if (st >= 0)
        st = abi_rig_start(&other, ABI_ACTIVE) ? save_to(&other, "other") : ZF_ERR_INTERNAL;
    abi_rig_end(&other);
    if (st >= 0)
        st = save_to(rig, "damaged");
    damage(place(rig, "damaged").path);
    return abi_rig_check(rig, ABI_RULE_VALID, st >= 0 && save(rig) >= 0, "save", st);
}

/* The last steps of each kind with a step between: what a call prepares for the next one is used. */
static int repeat(abi_rig_t *rig, zf_status_t (*call)(abi_rig_t *), const char *name, int n) {
    for (int i = 0; i < n; i++) {
        zf_status_t st = call(rig);
        if (st == ZF_DISABLED || !abi_rig_check(rig, ABI_RULE_VALID, st >= 0, name, st) ||
            (i % 20 == 19 && !abi_rig_train(rig, 1, ABI_RULE_VALID)))
            return 0;
    }
    return 1;
}

static void probe_calls(abi_rig_t *rig) {
    if (!prepare(rig))
        return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!repeat(rig, kinds[i].call, kinds[i].name, N_FIRST))
            continue;
        double mapped = abi_data_nbytes(), heap = abi_heap_nbytes(), lost;
        if (!repeat(rig, kinds[i].call, kinds[i].name, N_CALLS))
            continue;
        lost = (abi_heap_nbytes() - heap) / N_CALLS;
        abi_check(rig->probe, ABI_RULE_GROWTH,
                  lost <= max_lost_nbytes && abi_data_nbytes() - mapped <= max_growth_nbytes,
                  "%d times %s took %.0f bytes each that were not given back, limit %.0f; %.0f more are mapped",
                  N_CALLS, kinds[i].name, lost, max_lost_nbytes, abi_data_nbytes() - mapped);
    }
}

/* ---- cancelled threads ------------------------------------------------------------------------------------------- */

static struct cancelled {
    abi_rig_t *rig;
    size_t kind;
    zf_status_t st;
    int has_returned;
} cancelled;

/* Its cancellation is asked for, and acted upon behind the call. */
static void *call_cancelled(void *unused) {
    (void)unused;
    pthread_cancel(pthread_self());
    cancelled.st = kinds[cancelled.kind].call(cancelled.rig);
    __atomic_store_n(&cancelled.has_returned, 1, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
    return NULL;
}

static void probe_cancelled(abi_rig_t *rig) {
    pthread_t thread;
    if (!prepare(rig))
        return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *name = kinds[i].name;
        abi_try(rig->probe, "%s on a cancelled thread", name);
        cancelled = (struct cancelled){.rig = rig, .kind = i};
        if (pthread_create(&thread, NULL, call_cancelled, NULL) != 0)
            return;
        pthread_join(thread, NULL);
        if (!abi_check(rig->probe, ABI_RULE_CANCEL, __atomic_load_n(&cancelled.has_returned, __ATOMIC_SEQ_CST),
                       "%s was left in its middle by a cancelled thread", name))
            _exit(0); /* whatever it held is held for ever */
        abi_rig_check(rig, ABI_RULE_CANCEL, cancelled.st >= 0, name, cancelled.st);
        zf_status_t st = kinds[i].call(rig);
        abi_rig_check(rig, ABI_RULE_CANCEL, st >= 0, name, st);
    }
    abi_rig_train(rig, 3, ABI_RULE_CANCEL);
}

const abi_row_t abi_growth_rows[] = {{"a long run", ABI_BOUND, 0, probe_long_run}, {NULL, ABI_NOTHING, 0, NULL}};

const abi_row_t abi_calls_rows[] = {{"many calls", ABI_OPEN, 0, probe_calls},
                                    {"calls of a cancelled thread", ABI_OPEN, 0, probe_cancelled},
                                    {NULL, ABI_NOTHING, 0, NULL}};
