/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/lifecycle.c - create, bind_params and destroy (contracts in zf/plugin.h). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/struct.h"
#include "device/device.h"
#include "hooks/audit.h"
#include "hooks/claims.h"
#include "hooks/drain.h"
#include "hooks/hooks.h"
#include "hooks/lost.h"
#include "hooks/reduce.h"
#include "hooks/step_record.h"
#include "hooks/trace.h"
#include "instance/instance.h"
#include "instance/memory.h"
#include "instance/rules.h"
#include "ranks/groups.h"
#include "ranks/nodes.h"
#include "ranks/shards.h"
#include "replay/team.h"
#include "replay/workers.h"
#include "state/make.h"
#include "state/together.h"
#include "zf/ext/draft/matrix.h"

enum { TOLERATED_PADDING = 1 << 20 /* elements */ };

/* ---- create ------------------------------------------------------------------------------------------------------ */

static zf_status_t check_host(const zf_host_t *host, zf_error_t *err) {
    zf_status_t st = ZFI_CHECK(host, zf_host_t, err);
    return st ? st : zfi_reserved_check(host->reserved0, "zf_host_t", err);
}

static const zfi_device_ops_t *find_backend(int32_t device_type) {
    for (uint32_t i = 0; i < zfi_n_backends; i++)
        if (zfi_backends[i]->device_type == device_type)
            return zfi_backends[i];
    return NULL;
}

/* The table was checked; it and its strings are the host's again when create returns. */
static void take_host(zfi_engine_t *engine, const zf_host_t *host) {
    (void)ZFI_READ(&engine->host_copy, host, zf_host_t, NULL);
    engine->host_copy.struct_size = sizeof engine->host_copy;
    snprintf(engine->host_name, sizeof engine->host_name, "%s", host->name ? host->name : "");
    snprintf(engine->host_version, sizeof engine->host_version, "%s", host->version ? host->version : "");
    engine->host_copy.name = engine->host_name;
    engine->host_copy.version = engine->host_version;
    engine->host = &engine->host_copy;
}

static zf_status_t check_args(const zf_create_args_t *args, zf_error_t *err) {
    const zfi_device_ops_t *backend = find_backend(args->device_type);
    if (args->flags & ~(ZF_CREATE_CAP_FETCH | ZF_CREATE_CAP_SHARDS | ZF_CREATE_CAP_RELEASE))
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "create", "unknown flags 0x%x", args->flags);
    if (!backend)
        return zfi_error(err, ZF_ERR_DEVICE, "create",
                         "device type %d; this version has backends for the CPU (%d) and CUDA (%d)", args->device_type,
                         ZF_DEVICE_CPU, ZF_DEVICE_CUDA);
    if ((args->flags & ZF_CREATE_CAP_RELEASE) && !backend->release)
        return zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "create",
                         "ZF_CREATE_CAP_RELEASE: the backend \"%s\" cannot give memory back for a while",
                         backend->name);
    if (args->config_text && args->config_path)
        return zfi_error(err, ZF_ERR_ARGUMENT, "create", "both config_text and config_path are given");
    if (args->n_overrides && !args->overrides)
        return zfi_error(err, ZF_ERR_ARGUMENT, "create", "overrides is NULL with n_overrides = %u", args->n_overrides);
    return check_host(args->host, err);
}

static zf_status_t choose_kernels(const zfi_kernels_t **out, zf_error_t *err) {
    const char *forced = getenv("ZF_FORCE_ISA");
    zfi_isa_t isa = zfi_isa_best();
    if (forced && *forced) {
        int wanted = zfi_isa_parse(forced);
        if (wanted < 0)
            return zfi_error(err, ZF_ERR_CONFIG, "create",
                             "ZF_FORCE_ISA = \"%.32s\"; allowed: generic, neon, avx2, avx512", forced);
        if (!zfi_kernels_of((zfi_isa_t)wanted))
            return zfi_error(err, ZF_ERR_CONFIG, "create",
                             "ZF_FORCE_ISA = %s, but this CPU (or this build) has %s at most", forced,
                             zfi_isa_name(isa));
        isa = (zfi_isa_t)wanted;
    }
    *out = zfi_kernels_of(isa);
    return ZF_OK;
}

/* ZF_TEST_BLOCK_ELEMS (SCHEDULE.md): tests cut small matrices as large ones are cut. */
static void choose_block_elems(zfi_engine_t *engine) {
    const char *wanted = getenv("ZF_TEST_BLOCK_ELEMS");
    unsigned long long n = 0;
    char rest;
    if (!wanted || !*wanted)
        return;
    if (wanted[0] >= '1' && wanted[0] <= '9' && sscanf(wanted, "%7llu%c", &n, &rest) == 1 && n <= ZFI_BLOCK_ELEMS)
        engine->config.block_elems = n;
    else
        zfi_log(engine, ZF_LOG_WARN, "create",
                "ZF_TEST_BLOCK_ELEMS = \"%.32s\" is ignored: need a whole number from 1 to %d", wanted,
                ZFI_BLOCK_ELEMS);
}

/* ZF_TEST_STATE_BYTES (SCHEDULE.md): bytes in place of a number of MiB. */
static void choose_state_bytes(zfi_engine_t *engine) {
    const char *wanted = getenv("ZF_TEST_STATE_BYTES");
    unsigned long long n = 0;
    if (!wanted || !*wanted || !engine->config.state_mib || engine->config.state_mib > ZFI_STATE_MIB_MOST)
        return;
    if (wanted[0] >= '1' && wanted[0] <= '9' && sscanf(wanted, "%18llu", &n) == 1)
        engine->config.resident_nbytes = n;
}

static void choose_sizes(zfi_engine_t *engine) {
    const char *whole = getenv("ZF_TEST_WHOLE_BYTES"); /* SCHEDULE.md: tests shard small parameters */
    choose_block_elems(engine);
    choose_state_bytes(engine);
    if (whole)
        engine->config.whole_nbytes = (uint32_t)strtoul(whole, NULL, 10);
}

static zf_status_t map_alive_page(zf_instance_t *inst, zf_error_t *err) {
    unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return zfi_error_scoped(err, ZF_ERR_MEMORY, ZF_SCOPE_CALL, errno, "create", "cannot map a page: %s",
                                strerror(errno));
    madvise(page, 4096, MADV_WIPEONFORK); /* where the kernel lacks it, a forked child is not noticed */
    *page = 1;
    inst->alive = page;
    return ZF_OK;
}

static void free_instance(zf_instance_t *inst) {
    int was_bound = inst->run != NULL;
    zfi_engine_stop(&inst->engine);
    zfi_claims_drop(inst->claims);
    zfi_run_free(inst->run);
    zfi_team_put(inst->engine.team);
    zfi_together_unmap(&inst->engine);
    zfi_engine_close(&inst->engine);
    zfi_rules_free(&inst->engine);
    zfi_auditing_end(&inst->engine);
    zfi_tracing_end(&inst->engine, was_bound);
    zfi_engine_free(&inst->engine);
    zfi_step_records_end(&inst->step_records);
    if (inst->alive)
        munmap((void *)(uintptr_t)inst->alive, 4096);
    inst->magic = 0;
    free(inst);
}

static zf_status_t read_config(const zf_create_args_t *args, zfi_config_t *out, zf_error_t *err) {
    if (args->config_path)
        return zfi_config_parse_file(args->config_path, args->overrides, args->n_overrides, out, err);
    return zfi_config_parse(args->config_text, args->config_text_nbytes, "config_text", args->overrides,
                            args->n_overrides, out, err);
}

static void warn_of_idle_keys(const zfi_engine_t *engine) {
    for (uint32_t i = 0; i < zfi_config_n_keys(); i++) {
        const char *need = zfi_config_idle(&engine->config, i);
        zf_config_key_t key;
        if (need && !zfi_config_key(i, &key, NULL))
            zfi_log(engine, ZF_LOG_WARN, "config", "[%s] %s has no effect without %s", key.section, key.key, need);
    }
}

/* A host with other ranks offers collectives. */
static zf_status_t find_transport(const zf_host_t *host, int32_t transport, const zfi_comm_ops_t **out,
                                  zf_error_t *err) {
    zf_collectives_ext_t table;
    int is_offered;
    zf_status_t st = zfi_comm_read_table(host, &table, &is_offered, err);
    if (!st && is_offered)
        *out = transport & ZFI_TRANSPORT_NCCL ? &zfi_comm_nccl : &zfi_comm_host;
    return st;
}

static zf_status_t settle_ranks(zfi_engine_t *engine, zf_error_t *err) {
    zfi_setting_t setting = {zfi_is_sharded(engine), zfi_n_ranks(engine), engine->flags};
    zf_status_t st = zfi_config_settle_ranks(&engine->config, &setting, err);
    engine->policy = zfi_config_policy(&engine->config);
    return st;
}

static zf_status_t read_args(const zf_create_args_t *given, zf_create_args_t *out, zf_error_t *err) {
    zf_status_t st = ZFI_READ_CHAINED(out, given, zf_create_args_t, err);
    return st ? st : check_args(out, err);
}

/* Takes what the arguments say of device and configuration. */
static zf_status_t configure(zfi_engine_t *engine, const zf_create_args_t *args, zf_error_t *err) {
    engine->flags = args->flags;
    engine->norm_group = args->norm_group;
    engine->device_type = args->device_type;
    engine->device_id = args->device_id;
    engine->ops = find_backend(args->device_type);
    zf_status_t st = read_config(args, &engine->config, err);
    if (st)
        return st;
    zfi_config_settle(&engine->config, (args->flags & ZF_CREATE_CAP_FETCH) != 0,
                      !engine->ops->has_own_memory && !engine->ops->lacks);
    return ZF_OK;
}

zf_status_t zfi_create_configure(const zf_create_args_t *given, zfi_engine_t *engine, zf_error_t *err) {
    zf_create_args_t args;
    zf_status_t st = read_args(given, &args, err);
    if (st)
        return st;
    take_host(engine, args.host);
    engine->host_copy.log = NULL; /* no instance comes of it: the host is not called */
    st = configure(engine, &args, err);
    if (st)
        return st;
    choose_sizes(engine);
    return settle_ranks(engine, err);
}

static zf_status_t create(const zf_create_args_t *given, zf_instance_t **out, zf_error_t *err) {
    zf_create_args_t args;
    zf_status_t st = read_args(given, &args, err);
    if (!st && !out)
        st = zfi_error(err, ZF_ERR_ARGUMENT, "create", "out_instance is NULL");
    if (st)
        return st;
    zf_instance_t *inst = calloc(1, sizeof *inst);
    if (!inst)
        return zfi_error(err, ZF_ERR_MEMORY, "create", "no memory for an instance");
    take_host(&inst->engine, args.host);
    inst->engine.ops = find_backend(args.device_type); /* free_instance needs it */
    inst->engine.comm_ops = &zfi_comm_self;            /* free_instance needs it, until the configuration is known */
    zfi_engine_init(&inst->engine);
    zfi_step_records_begin(&inst->step_records);
    st = configure(&inst->engine, &args, err);
    if (!st)
        st = find_transport(args.host, inst->engine.config.transport, &inst->engine.comm_ops, err);
    if (!st)
        st = choose_kernels(&inst->engine.kernels, err);
    if (!st)
        choose_sizes(&inst->engine);
    if (!st)
        st = map_alive_page(inst, err);
    inst->engine.timeout_ns = (uint64_t)inst->engine.config.deadline_ms * 1000000u;
    if (!st)
        st = zfi_engine_open(&inst->engine, err);
    if (!st)
        st = settle_ranks(&inst->engine, err);
    if (!st)
        st = zfi_together_map(&inst->engine, err);
    if (!st)
        st = zfi_tracing_begin(&inst->engine, err);
    if (st) {
        free_instance(inst);
        return st;
    }
    inst->magic = ZFI_INSTANCE_MAGIC;
    warn_of_idle_keys(&inst->engine);
    *out = inst;
    return ZF_OK;
}

/* A thread that is cancelled in here would leave streams and memory behind. */
zf_status_t zfi_create(const zf_create_args_t *given, zf_instance_t **out, zf_error_t *err) {
    int cancel_state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    zf_status_t st = create(given, out, err);
    pthread_setcancelstate(cancel_state, NULL);
    return st;
}

/* ---- bind -------------------------------------------------------------------------------------------------------- */

/* Instances share workers where the configuration leaves their number to us and none waits for another one's replays:
 * no rank exchanges, and no value waits for the host's next step. */
static zf_status_t hire(zfi_engine_t *engine, const zfi_config_t *config, zf_error_t *err) {
    const zfi_policy_t *policy = &engine->policy;
    uint32_t n = policy->is_whole ? 0 : zfi_workers_count(config); /* else there never is anything to replay */
    int waits_for_none = !policy->selects && policy->interval == 1 && policy->lag == 0 && !zfi_has_peers(engine);
    engine->n_workers = n;
    return zfi_team_get(n, n && waits_for_none && !config->threads, &engine->team, err);
}

static zf_status_t bind(zf_instance_t *inst, const zf_bind_args_t *args, zf_error_t *err) {
    zfi_param_t *params = NULL;
    zfi_rules_t rules = {0};
    uint32_t n = args->n_decls;
    zf_status_t st = zfi_params_build(args->decls, n, args->decl_size, inst->engine.device_type, &params, err);
    if (!st)
        st = zfi_groups_join(&inst->engine, &inst->engine.config, params, n, err);
    if (!st)
        zfi_shards_mark(&inst->engine, inst->engine.config.whole_nbytes, params, n);
    if (!st)
        st = zfi_rules_take(&inst->engine, &inst->engine.config, args, params, &rules, err);
    st = zfi_reduce_compare(inst, params, n, st, err);
    if (!st)
        st = zfi_nodes_open(&inst->engine, err);
    if (!st)
        st = zfi_claims_take(inst, inst->alive, params, n, &inst->claims, err);
    if (!st) /* an instance that this one follows is gone by now */
        st = zfi_auditing_begin(&inst->engine, &inst->engine.config, err);
    if (!st && !inst->engine.team)
        st = hire(&inst->engine, &inst->engine.config, err);
    if (st) {
        zfi_claims_drop(inst->claims);
        inst->claims = NULL;
        zfi_params_free(params, n);
        zfi_rules_drop(&inst->engine, &rules);
        return st;
    }
    st = zfi_run_new(&inst->engine, params, n, 1, "bind_params", &inst->run, err);
    if (!st) {
        zfi_rules_keep(&inst->engine, &rules);
        zfi_memory_bound(&inst->run->ranks);
        return ZF_OK;
    }
    zfi_rules_drop(&inst->engine, &rules);
    zfi_claims_drop(inst->claims);
    inst->claims = NULL;
    return st;
}

static void log_plan(const zf_instance_t *inst, const char *rules, double seconds) {
    const zfi_layout_t *layout = &inst->run->mem.layout;
    double per = (double)layout->n_elems;
    uint64_t named_nbytes = layout->host_state_nbytes + layout->host_slots_nbytes + layout->host_publish_nbytes;
    const char *device = inst->engine.device_type == ZF_DEVICE_CPU ? "as a device's, in host memory too," : "device";
    char selects[48] = "", window[48];
    const zfi_config_t *config = &inst->engine.config;
    static const char *const modes[] = {"windows", "exact", "mean"};
    snprintf(window, sizeof window, "window %u, lag %u", inst->engine.policy.interval, inst->engine.policy.lag);
    if (inst->engine.policy.selects)
        snprintf(selects, sizeof selects, ", topk %.3g, predict %u", config->topk_ratio,
                 (unsigned)zfi_config_predict(config));
    zfi_log(&inst->engine, ZF_LOG_INFO, "bind",
            "ZenFlow %s of %s: %" PRIu64 " elements in %u tensors, %s; %s%s%s; kernels %s, %u "
            "worker(s); host %.1f MiB (%.2f bytes per parameter: state %.2f, slots %.2f, "
            "publish %.2f, all else %.2f), %s %.1f MiB, with the state of %.1f %% of the elements; in %.1f s",
            modes[config->mode], rules, layout->n_elems, inst->run->n_params, inst->engine.ops->name, window,
            inst->engine.policy.published == ZFI_PUBLISHED_AT_FETCH ? " (at fetch)" : "", selects,
            inst->engine.kernels->name, inst->engine.n_workers, (double)layout->host_nbytes / 1048576,
            (double)layout->host_nbytes / per, (double)layout->host_state_nbytes / per,
            (double)layout->host_slots_nbytes / per, (double)layout->host_publish_nbytes / per,
            (double)(layout->host_nbytes - named_nbytes) / per, device, (double)layout->device_nbytes / 1048576,
            100.0 * (double)layout->n_resident_elems / per, seconds);
}

static void log_shards(const zf_instance_t *inst) {
    const zfi_run_t *run = inst->run;
    uint64_t n_sharded = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < run->n_params; i++) {
        n += run->params[i].is_sharded && run->params[i].has_state;
        n_sharded += run->params[i].is_sharded && run->params[i].has_state ? run->params[i].n_elems : 0;
    }
    if (run->shards.all)
        zfi_log(&inst->engine, ZF_LOG_INFO, "bind",
                "parameters are sharded: %" PRIu64
                " elements in %u tensors; this rank keeps %.1f MiB of them, %u buffers of %.1f MiB for what is "
                "fetched, and %.1f MiB for what is on its way; the others stay whole",
                n_sharded, n, (double)run->shards.nbytes / 1048576, run->shards.n_buffers,
                (double)run->shards.buffer_nbytes / 1048576, (double)run->shards.parts_nbytes / 1048576);
}

/* A row is never cut (plan/slice.h), and all parts of a bucket are as long as the longest. */
static void warn_of_padding(const zf_instance_t *inst) {
    const zfi_buckets_t *buckets = &inst->run->buckets;
    const zfi_plan_t *plan = &inst->run->plan;
    const zfi_matrix_t *worst = NULL;
    uint64_t n_ranks = buckets->most_ranks, n_sent = 0, n_elems = 0;
    for (uint32_t i = 0; i < buckets->n && buckets->is_owner; i++) {
        n_sent += buckets->all[i].part_elems * buckets->all[i].place.n_ranks;
        n_elems += buckets->all[i].n_elems;
    }
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        if (plan->matrices[i].rows < n_ranks && (!worst || plan->matrices[i].cols > worst->cols))
            worst = &plan->matrices[i];
    if (worst && n_sent > n_elems + n_elems / 4 && n_sent - n_elems > TOLERATED_PADDING)
        zfi_log(&inst->engine, ZF_LOG_WARN, "bind",
                "%" PRIu64 " ranks exchange %.1f times the elements of gradients and values: a row is never cut, and "
                "\"%s\" has %" PRIu64 " of %" PRIu64 " elements; declare its leading axes as n_batch_axes",
                n_ranks, (double)n_sent / (double)n_elems, inst->run->params[worst->param].name, worst->rows,
                worst->cols);
}

static void log_bound(const zf_instance_t *inst, zfi_run_clock_t *clock) {
    char rules[128];
    zfi_rules_text(&inst->engine.rules, rules, sizeof rules);
    log_plan(inst, rules, (double)zfi_run_ns(clock) * 1e-9);
    log_shards(inst);
}

zf_status_t zfi_bind_read(const zf_bind_args_t *given, zf_bind_args_t *out, zf_error_t *err) {
    zf_status_t st = ZFI_READ(out, given, zf_bind_args_t, err);
    st = zfi_chain_check(st, &out->next, ZF_EXT_MATRIX, "zf_bind_args_t", err);
    if (!st && out->flags)
        st = zfi_error(err, ZF_ERR_UNSUPPORTED_FIELD, "bind_params", "unknown flags 0x%x", out->flags);
    return st;
}

zf_status_t zfi_bind_params(zf_instance_t *inst, const zf_bind_args_t *given, uint32_t *out_ids,
                            zf_bind_report_t *out_report, zf_error_t *err) {
    zf_bind_args_t args;
    zf_bind_report_t report;
    zfi_run_clock_t clock = zfi_run_clock();
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_CREATED | ZFI_IN_TRAINING, "bind_params", err);
    if (st)
        return st;
    st = zfi_struct_check_out(out_report, "zf_bind_report_t", err);
    if (!st)
        st = zfi_bind_read(given, &args, err);
    if (!st)
        st = (inst->state == ZFI_STATE_CREATED ? bind : zfi_rebind)(inst, &args, err);
    if (!st) {
        if (inst->state == ZFI_STATE_CREATED)
            inst->state = ZFI_STATE_BOUND;
        for (uint32_t i = 0; i < args.n_decls && out_ids; i++)
            out_ids[i] = i;
        zfi_memory_planned(&inst->run->ranks, &report);
        zfi_struct_write(out_report, &report, sizeof report);
        log_bound(inst, &clock);
        zfi_auditing_bound(inst);
        warn_of_padding(inst);
    }
    return zfi_hook_end(inst, st, err);
}

/* ---- destroy ----------------------------------------------------------------------------------------------------- */

/* Work on the host's streams refers to this memory; poisoned, it ends as soon as it runs. 0 if some did not. */
static int wait_for_host_streams(zf_instance_t *inst) {
    const zfi_engine_t *engine = &inst->engine;
    for (uint32_t i = 0; i < inst->n_host_streams; i++) {
        zfi_stream_t *stream = inst->host_streams[i];
        if (engine->ops->synchronise(stream, engine->ops->mark(stream), engine->timeout_ns, NULL))
            return 0;
    }
    return 1;
}

/* What waits to be fetched stays away: the parameters keep what they show, or what the host wrote there since. */
static zf_status_t end_what_is_in_flight(zf_instance_t *inst, zf_error_t *err) {
    zf_status_t st = zfi_hook_begin(inst, ZFI_IN_CREATED | ZFI_IN_TRAINING | ZFI_IN_RELEASED, "destroy", err);
    if (st)
        return st;
    st = zfi_drain_but_unfetched(inst, err);
    return zfi_hook_end(inst, st, err);
}

static uint32_t read_flags(const zf_instance_t *inst, const zf_destroy_args_t *given) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_destroy_args_t args;
    if (!given)
        return 0;
    if (ZFI_READ(&args, given, zf_destroy_args_t, &err)) {
        zfi_log(&inst->engine, ZF_LOG_ERROR, "destroy", "%s", err.message);
        return 0;
    }
    if (args.flags & ~ZF_DESTROY_FLUSH)
        zfi_log(&inst->engine, ZF_LOG_ERROR, "destroy", "unknown flags 0x%x", args.flags);
    return args.flags;
}

/* What was under way ends, seen or, with a warning, unseen. */
static void end_training(zf_instance_t *inst, uint32_t flags) {
    zf_quiesce_args_t flush = {.struct_size = sizeof flush, .mode = ZF_QUIESCE_FLUSH};
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st = flags & ZF_DESTROY_FLUSH ? zfi_quiesce(inst, &flush, &err) : ZF_OK;
    if (st < 0)
        zfi_log(&inst->engine, ZF_LOG_ERROR, "destroy", "%s", err.message);
    if (zfi_is_poisoned(&inst->engine))
        return;
    st = end_what_is_in_flight(inst, &err);
    if (st < 0)
        zfi_log(&inst->engine, ZF_LOG_ERROR, "destroy", "%s", err.message);
    else
        zfi_lost_warn(inst);
}

static void destroy(zf_instance_t *inst, const zf_destroy_args_t *args) {
    if (!inst || inst->magic != ZFI_INSTANCE_MAGIC)
        return;
    if (!*inst->alive)
        return; /* a forked child: the threads that use this memory are the parent's */
    if (inst->state != ZFI_STATE_CREATED && !zfi_is_poisoned(&inst->engine))
        end_training(inst, read_flags(inst, args));
    if (!zfi_is_poisoned(
            &inst->engine)) { /* what only a next step would have released: publishes that were still due */
        zf_error_t end = {.struct_size = sizeof end, .status = ZF_ERR_STATE, .message = "the instance was destroyed"};
        zfi_poison(&inst->engine, &end);
    }
    if (wait_for_host_streams(inst)) {
        free_instance(inst);
        return;
    }
    zfi_log(&inst->engine, ZF_LOG_ERROR, "destroy",
            "a stream of the host's still holds work of this instance after %u ms ([host] deadline_ms): its memory is "
            "left to them",
            inst->engine.config.deadline_ms);
    zfi_auditing_end(&inst->engine);
    zfi_claims_drop(inst->claims);
    inst->claims = NULL;
    inst->magic = 0;
}

void zfi_destroy(zf_instance_t *inst, const zf_destroy_args_t *args) {
    int cancel_state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    destroy(inst, args);
    pthread_setcancelstate(cancel_state, NULL);
}
