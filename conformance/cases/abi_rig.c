/* SPDX-License-Identifier: Apache-2.0 */
/* abi_rig.c - a small trainer around the plugin under test (abi_rig.h). */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "abi_rig.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "zf_loader.h"

const char abi_rig_config[] =
    "[zenflow]\ntopk_ratio = 0.4\nselect_interval = 2\nupdate_interval = 2\nfull_warm_up_rounds = 2\n"
    "on_overwrite = ask\n"
    "[host]\nthreads = 1\n";

/* Of the second of two trainers. */
static const char other_config[] =
    "[zenflow]\ntopk_ratio = 0.6\nselect_interval = 3\nupdate_interval = 3\nfull_warm_up_rounds = 1\n"
    "on_overwrite = ask\n"
    "[host]\nthreads = 1\n";

/* ---- the library ------------------------------------------------------------------------------------------------- */

static const zf_plugin_t *negotiate(abi_probe_t *probe, zf_plugin_negotiate_fn entry) {
    uint32_t abis[] = {ZF_ABI_0_16};
    zf_error_t err = {.struct_size = sizeof err};
    zf_bootstrap_t boot = {
        .struct_size = sizeof boot, .magic = ZF_BOOTSTRAP_MAGIC, .abis = abis, .n_abis = 1, .error = &err};
    int32_t st = entry(&boot);
    if (!abi_check(probe, ABI_RULE_NEGOTIATE, st == 0 && boot.plugin != NULL, "status %d: %s", st, err.message))
        return NULL;
    abi_check(probe, ABI_RULE_NEGOTIATE, boot.chosen_abi == ZF_ABI_0_16, "chose %#x of %#x", boot.chosen_abi,
              ZF_ABI_0_16);
    return boot.plugin;
}

zf_plugin_negotiate_fn abi_open_entry(abi_probe_t *probe, const char *path) {
    zf_plugin_negotiate_fn entry = NULL;
    abi_try(probe, "dlopen");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!abi_check(probe, ABI_RULE_NEGOTIATE, library != NULL, "%s", library ? "" : dlerror()))
        return NULL;
    void *symbol = dlsym(library, ZF_PLUGIN_NEGOTIATE_SYMBOL);
    if (abi_check(probe, ABI_RULE_NEGOTIATE, symbol != NULL, "no symbol %s", ZF_PLUGIN_NEGOTIATE_SYMBOL))
        memcpy(&entry, &symbol, sizeof entry);
    return entry;
}

int abi_rig_open(abi_rig_t *rig, abi_probe_t *probe, const char *path) {
    memset(rig, 0, sizeof *rig);
    rig->probe = probe;
    zf_plugin_negotiate_fn entry = abi_open_entry(probe, path);
    abi_try(probe, "negotiate");
    rig->table = entry ? negotiate(probe, entry) : NULL;
    if (!rig->table)
        return 0;
    if (rig->table->struct_size >= offsetof(zf_plugin_t, get_extension) + sizeof(void *) && rig->table->get_extension)
        rig->inspect = rig->table->get_extension(ZF_EXT_INSPECT);
    if (rig->inspect && (rig->inspect->struct_size < sizeof *rig->inspect || !rig->inspect->read))
        rig->inspect = NULL;
    abi_rig_describe(rig, 1);
    return 1;
}

/* ---- the host table ---------------------------------------------------------------------------------------------- */

void abi_host_enter(abi_host_t *host) {
    host->thread = pthread_self();
    __atomic_store_n(&host->is_inside, 1, __ATOMIC_SEQ_CST);
}

zf_status_t abi_host_left(abi_host_t *host, zf_status_t st) {
    abi_check(host->probe, ABI_RULE_KINDS, st <= ZF_SUBMITTED, "a call returned the status %d", st);
    __atomic_store_n(&host->is_inside, 0, __ATOMIC_SEQ_CST);
    return st;
}

/* On which thread, and is a hook running there? NULL: it was called for nobody. */
static abi_host_t *check_call(void *ctx, const char *what) {
    abi_host_t *host = ctx;
    int is_inside = host && __atomic_load_n(&host->is_inside, __ATOMIC_SEQ_CST);
    if (!host || host->self != host)
        abort(); /* of another ctx than the host table's */
    abi_check(host->probe, ABI_RULE_HOST_THREAD, is_inside && pthread_equal(host->thread, pthread_self()),
              "%s was called %s", what, is_inside ? "on a thread of the plugin" : "outside of hooks");
    return host;
}

static int is_line(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 && s[i] != '\t')
            return 0;
    return 1;
}

static void on_log(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *text,
                   uint64_t n) {
    abi_probe_t *probe = check_call(ctx, "log")->probe;
    abi_check(probe, ABI_RULE_HOST_ARGS, level >= ZF_LOG_ERROR && level <= ZF_LOG_DEBUG, "log: level %d", level);
    abi_check(probe, ABI_RULE_HOST_ARGS, component && *component && file && line >= 0,
              "log: component is empty, file is NULL or line is negative");
    abi_check(probe, ABI_RULE_HOST_ARGS, text && n > 0 && n < 65536 && is_line(text, (size_t)n),
              "log: message of %llu bytes is no line", (unsigned long long)n);
}

static const void *on_get_extension(void *ctx, const char *id) {
    const abi_host_t *host = check_call(ctx, "get_extension");
    abi_check(host->probe, ABI_RULE_HOST_ARGS, id && strncmp(id, "zf.", 3) == 0 && strchr(id, '/'),
              "get_extension: id \"%s\"", id ? id : "NULL");
    return host->extension;
}

static void fill_host(abi_host_t *host, abi_probe_t *probe) {
    host->self = host;
    host->probe = probe;
    host->table = (zf_host_t){.struct_size = sizeof host->table,
                              .ctx = host,
                              .name = "zf-conform",
                              .version = "1",
                              .log = on_log,
                              .get_extension = on_get_extension};
}

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    int32_t ndim;
    int64_t shape[2];
    int is_bf16;
} params[ABI_RIG_PARAMS] = {
    {"a.weight", 2, {6, 5}, 0}, {"b.weight", 2, {4, 8}, 1}, {"c.bias", 1, {5, 1}, 0}, {"d.frozen", 1, {3, 1}, 0}};

static size_t n_elems(int i) { return (size_t)(params[i].shape[0] * params[i].shape[1]); }

/* Every plugin takes float32. */
static int is_bf16(const abi_rig_t *rig, size_t i) { return params[i].is_bf16 && !rig->probe->is_core; }

static void set_element(uint64_t *memory, int is_narrow, size_t i, float x) {
    const size_t size = is_narrow ? 2 : 4;
    memcpy((char *)memory + size * i, (const char *)&x + sizeof x - size, size);
}

static void fill_tensor(abi_rig_t *rig, int i, uint64_t *memory, zf_tensor_t *out) {
    zf_dtype_t dtype = {is_bf16(rig, (size_t)i) ? ZF_DTYPE_CODE_BFLOAT : ZF_DTYPE_CODE_FLOAT,
                        is_bf16(rig, (size_t)i) ? 16 : 32, 1};
    zf_tensor_contiguous(memory, dtype, params[i].ndim, rig->shapes[i], out);
}

/* Small multiples of 1/64: exact in both types. */
static float small(uint32_t seed, uint32_t step, int i, size_t k) {
    uint32_t x = seed * 2654435761u + step * 40503u + (uint32_t)i * 977u + (uint32_t)k * 131u;
    x ^= x >> 13;
    x *= 0x5bd1e995u;
    x ^= x >> 15;
    return (float)((int)(x % 127u) - 63) / 64.0f;
}

void abi_rig_set_gradients(abi_rig_t *rig) {
    for (int i = 0; i < ABI_RIG_TRAINED; i++)
        for (size_t k = 0; k < n_elems(i); k++)
            set_element(rig->grads[i], is_bf16(rig, (size_t)i), k, small(rig->seed, rig->n_steps + 1, i, k));
}

void abi_rig_describe(abi_rig_t *rig, uint32_t seed) {
    rig->seed = seed;
    rig->n_steps = 0;
    rig->err = (zf_error_t){.struct_size = sizeof rig->err};
    fill_host(&rig->host, rig->probe);
    memset(rig->memory, 0, sizeof rig->memory);
    for (int i = 0; i < ABI_RIG_PARAMS; i++) {
        memcpy(rig->shapes[i], params[i].shape, sizeof rig->shapes[i]);
        for (size_t k = 0; k < n_elems(i); k++)
            set_element(rig->memory[i], is_bf16(rig, (size_t)i), k, small(7, 0, i, k));
        fill_tensor(rig, i, rig->memory[i], &rig->tensors[i]);
        fill_tensor(rig, i, rig->grads[i], &rig->grad_tensors[i]);
        rig->decls[i] = (zf_param_decl_t){.struct_size = sizeof rig->decls[i],
                                          .name = params[i].name,
                                          .tensor = &rig->tensors[i],
                                          .flags = i == ABI_RIG_FROZEN ? ZF_PARAM_FROZEN : 0};
        rig->ids[i] = (uint32_t)i;
    }
    for (uint32_t i = 0; i < ABI_RIG_TRAINED; i++)
        rig->items[i] = (zf_grad_item_t){.struct_size = sizeof rig->items[i],
                                         .id = i,
                                         .flags = ZF_GRAD_PART | ZF_GRAD_LAST,
                                         .tensor = &rig->grad_tensors[i]};
    rig->stream =
        (zf_stream_t){.struct_size = sizeof rig->stream, .kind = ZF_STREAM_HOST_THREAD, .device_type = ZF_DEVICE_CPU};
    rig->hyper = (zf_group_hyper_t){.struct_size = sizeof rig->hyper,
                                    .lr = 0.01 * seed,
                                    .beta1 = 0.9,
                                    .beta2 = 0.99,
                                    .eps = 1e-8,
                                    .weight_decay = 0.01};
    rig->step = (zf_step_args_t){.struct_size = sizeof rig->step,
                                 .flags = ZF_STEP_WAIT,
                                 .groups = &rig->hyper,
                                 .n_groups = 1,
                                 .elem_size = sizeof rig->hyper,
                                 .stream = &rig->stream};
    const char *config = seed == 2 ? other_config : abi_rig_config;
    rig->create = (zf_create_args_t){.struct_size = sizeof rig->create,
                                     .host = &rig->host.table,
                                     .config_text = rig->probe->is_core ? NULL : config,
                                     .config_text_nbytes = rig->probe->is_core ? 0 : strlen(config),
                                     .device_type = ZF_DEVICE_CPU};
    abi_rig_set_gradients(rig);
}

/* ---- an instance in a state -------------------------------------------------------------------------------------- */

static int has_slots(const zf_plugin_t *t) {
    return t->struct_size >= offsetof(zf_plugin_t, poll) && t->create && t->destroy && t->bind_params &&
           t->grads_ready && t->step && t->quiesce;
}

zf_status_t abi_rig_create(abi_rig_t *rig) {
    return ABI_CALL(rig, rig->table->create(&rig->create, &rig->instance, &rig->err));
}

zf_status_t abi_rig_bind(abi_rig_t *rig, zf_bind_report_t *out) {
    zf_bind_args_t args = {.struct_size = sizeof args,
                           .decls = rig->decls,
                           .n_decls = ABI_RIG_PARAMS,
                           .decl_size = sizeof rig->decls[0],
                           .groups = rig->group,
                           .n_groups = rig->group != NULL,
                           .group_size = sizeof *rig->group,
                           .next = rig->bind_next};
    zf_status_t st = ABI_CALL(rig, rig->table->bind_params(rig->instance, &args, rig->ids, out, &rig->err));
    for (uint32_t i = 0; i < ABI_RIG_TRAINED; i++)
        rig->items[i].id = rig->ids[i];
    return st;
}

zf_status_t abi_rig_deliver(abi_rig_t *rig, uint32_t first, uint32_t n) {
    return ABI_CALL(rig, rig->table->grads_ready(rig->instance, rig->items + first, n, sizeof rig->items[0],
                                                 &rig->stream, NULL, &rig->err));
}

zf_status_t abi_rig_step(abi_rig_t *rig, uint32_t n, zf_step_report_t *report) {
    zf_status_t st = abi_rig_deliver(rig, 0, n);
    if (report)
        *report = (zf_step_report_t){.struct_size = sizeof *report};
    if (st < 0)
        return st;
    st = ABI_CALL(rig, rig->table->step(rig->instance, &rig->step, report, &rig->err));
    rig->n_steps += st >= 0;
    return st;
}

zf_status_t abi_rig_export(abi_rig_t *rig, const zf_export_item_t *item) {
    return ABI_CALL(rig, rig->table->export_params(rig->instance, item, 1, sizeof *item, &rig->err));
}

zf_status_t abi_rig_quiesce(abi_rig_t *rig, int32_t mode) {
    const zf_quiesce_args_t args = {.struct_size = sizeof args, .mode = mode};
    return ABI_CALL(rig, rig->table->quiesce(rig->instance, &args, &rig->err));
}

int abi_rig_check(abi_rig_t *rig, abi_rule_t rule, int is_ok, const char *call, zf_status_t st) {
    return abi_check(rig->probe, rule, is_ok, "%s returned %d: %s", call, st, rig->err.message);
}

int abi_rig_train(abi_rig_t *rig, unsigned n_steps, abi_rule_t rule) {
    for (unsigned s = 0; s < n_steps; s++) {
        zf_step_report_t report;
        abi_rig_set_gradients(rig);
        abi_try(rig->probe, "step %u of a right training", rig->n_steps + 1);
        zf_status_t st = abi_rig_step(rig, ABI_RIG_TRAINED, &report);
        if (!abi_rig_check(rig, rule, st == ZF_OK || (st == ZF_SUBMITTED && !(rig->step.flags & ZF_STEP_WAIT)),
                           "a right step", st))
            return 0;
    }
    return 1;
}

int abi_rig_rest(abi_rig_t *rig) {
    zf_status_t st = abi_rig_quiesce(rig, ZF_QUIESCE_DRAIN);
    return abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "quiesce(DRAIN)", st);
}

static int release(abi_rig_t *rig) {
    const zf_residency_ext_t *residency = rig->table->get_extension(ZF_EXT_RESIDENCY);
    abi_try(rig->probe, "release with right arguments");
    zf_status_t st = ABI_CALL(rig, residency->release(rig->instance, ZF_RELEASE_DEVICE, &rig->stream, NULL, &rig->err));
    return abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "release", st);
}

int abi_rig_start(abi_rig_t *rig, abi_stage_t stage) {
    zf_bind_report_t layout = {.struct_size = sizeof layout};
    if (!has_slots(rig->table))
        return 0; /* reported under TABLE */
    if (stage == ABI_RELEASED)
        rig->create.flags |= ZF_CREATE_CAP_RELEASE;
    abi_try(rig->probe, "create and bind with right arguments");
    zf_status_t st = abi_rig_create(rig);
    if (st >= 0 && stage >= ABI_BOUND)
        st = abi_rig_bind(rig, &layout);
    if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "create or bind_params", st))
        return 0;
    rig->stage = stage;
    if (stage >= ABI_ACTIVE && !abi_rig_train(rig, ABI_RIG_STEPS, ABI_RULE_VALID))
        return 0;
    if (stage == ABI_RELEASED)
        return release(rig);
    return stage < ABI_QUIESCED || abi_rig_rest(rig);
}

zf_cpu_queue_t *abi_rig_queue(abi_rig_t *rig, abi_rule_t rule) {
    const zf_cpu_ext_t *cpu = rig->table->get_extension(ZF_EXT_CPU);
    zf_cpu_queue_t *queue;
    if (!cpu) {
        abi_skip(rig->probe, rule, "no extension %s: no stream that can be held up", ZF_EXT_CPU);
        return NULL;
    }
    rig->stream = (zf_stream_t){.struct_size = sizeof rig->stream};
    if (cpu->queue_create(&queue, &rig->stream, &rig->err) >= 0 && abi_rig_start(rig, ABI_BOUND))
        return queue;
    abi_check(rig->probe, ABI_RULE_VALID, 0, "a queue and an instance: %s", rig->err.message);
    return NULL;
}

void abi_rig_end(abi_rig_t *rig) {
    if (!rig->instance)
        return;
    abi_try(rig->probe, "destroy");
    ABI_CALL(rig, (rig->table->destroy(rig->instance, NULL), ZF_OK));
    rig->instance = NULL;
}

/* ---- the training state ------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t elem_nbytes;
} arrays[] = {{"w", 4}, {"m", 4}, {"v", 4}, {"n", 4}, {"selected", 1}, {"importance", 8}};
enum { N_ARRAYS = sizeof arrays / sizeof arrays[0] };

static void read_inspect(abi_rig_t *rig, int i, unsigned char *at) {
    uint64_t buf[N_ARRAYS][ABI_RIG_MAX_ELEMS];
    zf_inspect_out_t out = {.struct_size = sizeof out,
                            .n_elems = n_elems(i),
                            .w = (float *)buf[0],
                            .m = (float *)buf[1],
                            .v = (float *)buf[2],
                            .n = (uint32_t *)buf[3],
                            .selected = (uint8_t *)buf[4],
                            .importance = (double *)buf[5]};
    memset(buf, 0, sizeof buf);
    zf_status_t st = ABI_CALL(rig, rig->inspect->read(rig->instance, rig->ids[i], &out, &rig->err));
    abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "zf.inspect/0", st);
    for (int a = 0; a < N_ARRAYS; a++) {
        memcpy(at, buf[a], n_elems(i) * arrays[a].elem_nbytes);
        at += n_elems(i) * arrays[a].elem_nbytes;
    }
}

unsigned char *abi_rig_state(abi_rig_t *rig, size_t *out_nbytes) {
    size_t nbytes = sizeof rig->memory, at = 0;
    for (int i = 0; i < ABI_RIG_TRAINED; i++)
        for (int a = 0; a < N_ARRAYS; a++)
            nbytes += n_elems(i) * arrays[a].elem_nbytes;
    unsigned char *state = calloc(1, nbytes);
    if (!state)
        abort();
    if (rig->inspect && rig->instance && rig->stage >= ABI_BOUND) /* first: it waits for what is in flight */
        for (int i = 0; i < ABI_RIG_TRAINED; i++) {
            read_inspect(rig, i, state + sizeof rig->memory + at);
            for (int a = 0; a < N_ARRAYS; a++)
                at += n_elems(i) * arrays[a].elem_nbytes;
        }
    memcpy(state, rig->memory, sizeof rig->memory);
    *out_nbytes = nbytes;
    return state;
}

void abi_rig_describe_byte(const abi_rig_t *rig, size_t byte, char *out, size_t nbytes) {
    if (byte < sizeof rig->memory) {
        size_t i = byte / sizeof rig->memory[0];
        snprintf(out, nbytes, "visible value %zu of %s", byte % sizeof rig->memory[0] / (is_bf16(rig, i) ? 2 : 4),
                 params[i].name);
        return;
    }
    byte -= sizeof rig->memory;
    for (int i = 0; i < ABI_RIG_TRAINED; i++)
        for (int a = 0; a < N_ARRAYS; a++) {
            size_t n = n_elems(i) * arrays[a].elem_nbytes;
            if (byte < n) {
                snprintf(out, nbytes, "%s %zu of %s", arrays[a].name, byte / arrays[a].elem_nbytes, params[i].name);
                return;
            }
            byte -= n;
        }
    snprintf(out, nbytes, "?");
}

uint64_t abi_rig_hash(abi_rig_t *rig) { /* FNV-1a */
    size_t nbytes;
    unsigned char *state = abi_rig_state(rig, &nbytes);
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < nbytes; i++)
        hash = (hash ^ state[i]) * 0x100000001b3u;
    free(state);
    return hash | 1;
}

uint64_t abi_rig_hash_alone(abi_probe_t *p, uint32_t seed, unsigned n_steps) {
    uint64_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = shared == MAP_FAILED ? -1 : fork();
    if (pid < 0)
        return 0;
    if (pid == 0) {
        static abi_rig_t rig;
        if (abi_rig_open(&rig, p, p->plugin)) {
            abi_rig_describe(&rig, seed);
            if (abi_rig_start(&rig, ABI_BOUND) && abi_rig_train(&rig, n_steps, ABI_RULE_VALID))
                *shared = abi_rig_hash(&rig);
        }
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    return *shared;
}

/* ---- probes ------------------------------------------------------------------------------------------------------ */

static const abi_row_t *current; /* that the child runs; set before the fork */

static void run_current(abi_probe_t *probe) {
    static abi_rig_t rig;
    rig.probe = probe;
    if (current->stage > ABI_NOTHING && !abi_rig_open(&rig, probe, probe->plugin))
        return;
    if ((current->is_of_engine &&
         !(rig.table->get_extension(ZF_EXT_STATS) && rig.table->get_extension(ZF_EXT_STATE))) ||
        (current->stage > ABI_OPEN && !abi_rig_start(&rig, current->stage)))
        return;
    current->fn(&rig);
    abi_rig_end(&rig);
}

void abi_row_run(abi_probe_t *probe, const abi_row_t *row) {
    current = row;
    abi_probe_run(probe, row->name, run_current);
}
