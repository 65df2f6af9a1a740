/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/fuzz_hooks.c - hooks in any order with any arguments, as a state machine over one instance.
 *
 * Input: bytes, eaten one after another; the first of a call says which hook, the next its arguments. Pointers are
 * valid or NULL and sizes of memory are told as they are, everything else may be wrong. A call may succeed or fail with
 * a reason; it never crashes, hangs (libFuzzer's time limit; the instance's deadline) or leaks, and poisons the
 * instance only for weights that became Inf or NaN, as gradients near the end of fp32 make them. A model of what is
 * legal is not kept here: zf-conform exact compares what legal sequences compute. */
#include <math.h>
#include <string.h>

#include "../plugin/memory_store.h"
#include "fuzz.h"
#include "model.h"
#include "zf/ext/config.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/draft/shards.h"
#include "zf/ext/residency.h"
#include "zf/ext/stats.h"

enum { MOST_PARAMS = 4, MOST_CALLS = 200, MEMORY_NBYTES = 1024, MOST_ITEMS = 3 };

typedef struct param {
    char name[16];
    unsigned char *visible, *grad; /* [MEMORY_NBYTES], of their own, so that a touch outside is seen */
    int64_t shape[ZF_MAX_NDIM], strides[ZF_MAX_NDIM];
    zf_tensor_t tensor;
    uint64_t n_elems;
} param_t;

typedef struct machine {
    const zf_plugin_t *zf;
    const zf_state_ext_t *state;
    const zf_cpu_ext_t *cpu;
    zf_instance_t *instance;
    zf_cpu_queue_t *queue;
    zf_stream_t streams[2]; /* the host's thread, a queue */
    param_t params[MOST_PARAMS];
    uint32_t ids[MOST_PARAMS];
    uint32_t n_bound;
    int is_queue; /* the instance's usual stream */
    int has_diverged;
    zt_memory_store_t store;
    fuzz_bytes_t in;
    zf_error_t err;
} machine_t;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    setenv("ZF_TEST_BLOCK_ELEMS", "16", 1); /* cuts in tensors of a few elements */
    return 0;
}

/* Whether the instance ended because weights did. */
static int has_diverged(const machine_t *to) {
    zf_step_report_t report = {.struct_size = sizeof report};
    zf_error_t why = {.struct_size = sizeof why};
    (void)to->zf->poll(to->instance, &report, &why);
    return why.status == ZF_ERR_NONFINITE;
}

/* What any call may return: success, or an error that says why and is none of the engine's own faults. */
static void judge(machine_t *to, const char *what, zf_status_t st) {
    if (st >= 0)
        return;
    if (st == ZF_ERR_POISONED && has_diverged(to)) {
        to->has_diverged = 1;
        return;
    }
    FUZZ_CHECK(st != ZF_ERR_INTERNAL && st != ZF_ERR_POISONED && st != ZF_ERR_TIMEOUT && st != ZF_ERR_BUSY &&
                   st != ZF_ERR_MEMORY,
               "%s: %d %s: %s", what, st, to->err.origin, to->err.message);
    FUZZ_CHECK(to->err.status == st && strlen(to->err.message) > 4, "%s: %d with record %d \"%s\"", what, st,
               to->err.status, to->err.message);
}

#define CALL(to, name, ...)                                                                                            \
    do {                                                                                                               \
        memset(&(to)->err, 0, sizeof(to)->err);                                                                        \
        (to)->err.struct_size = sizeof(to)->err;                                                                       \
        judge(to, #name, __VA_ARGS__);                                                                                 \
    } while (0)

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static uint32_t wrong_size(fuzz_bytes_t *in, uint32_t right) {
    static const uint32_t sizes[] = {0, 4, 7, 8, 9, 0xFFFFFFFFu};
    return fuzz_seldom(in, 64) ? sizes[fuzz_below(in, 6)] < right ? sizes[fuzz_below(in, 5)] : right : right;
}

static zf_dtype_t draw_dtype(fuzz_bytes_t *in) {
    static const zf_dtype_t dtypes[] = {{ZF_DTYPE_CODE_FLOAT, 32, 1},
                                        {ZF_DTYPE_CODE_BFLOAT, 16, 1},
                                        {ZF_DTYPE_CODE_FLOAT, 16, 1},
                                        {ZF_DTYPE_CODE_FLOAT, 32, 1},
                                        {ZF_DTYPE_CODE_FLOAT, 64, 1},
                                        {ZF_DTYPE_CODE_INT, 8, 1},
                                        {0, 0, 0},
                                        {ZF_DTYPE_CODE_FLOAT, 32, 2}};
    return dtypes[fuzz_seldom(in, 24) ? fuzz_below(in, 8) : fuzz_below(in, 4)];
}

static double draw_number(fuzz_bytes_t *in, double usual) {
    static const double odd[] = {0, -1, 1e308, 1e-308, 1, 2, 0.999999, NAN, INFINITY, -INFINITY};
    return fuzz_seldom(in, 24) ? odd[fuzz_below(in, 10)] : usual * (1 + fuzz_below(in, 4));
}

static const zf_stream_t *draw_stream(machine_t *to) {
    static const zf_stream_t odd = {.struct_size = sizeof odd, .kind = 77, .device_type = ZF_DEVICE_CPU};
    if (fuzz_seldom(&to->in, 48))
        return fuzz_below(&to->in, 2) ? NULL : &odd;
    return &to->streams[fuzz_seldom(&to->in, 24) ? !to->is_queue : to->is_queue];
}

static uint32_t draw_id(machine_t *to) {
    static const uint32_t odd[] = {MOST_PARAMS, 77, ZF_NO_ID};
    return fuzz_seldom(&to->in, 32) ? odd[fuzz_below(&to->in, 3)]
                                    : to->ids[fuzz_below(&to->in, to->n_bound ? to->n_bound : MOST_PARAMS)];
}

/* Shape and strides; seldom more than the memory holds, which the call must see. */
static void draw_tensor(fuzz_bytes_t *in, param_t *param) {
    uint64_t n = 1;
    int ndim = (int)fuzz_below(in, 4), is_transposed;
    param->tensor = (zf_tensor_t){.struct_size = wrong_size(in, sizeof param->tensor), .nbytes = MEMORY_NBYTES};
    for (int i = 0; i < ndim; i++) {
        param->shape[i] = fuzz_seldom(in, 32) ? (int64_t)fuzz_byte(in) - 2 : 1 + fuzz_below(in, 6);
        n *= (uint64_t)param->shape[i];
    }
    param->n_elems = n;
    is_transposed = ndim == 2 && fuzz_seldom(in, 5);
    param->strides[0] = 1;
    param->strides[1] = fuzz_seldom(in, 16) ? (int64_t)fuzz_byte(in) - 1 : param->shape[0];
    param->tensor.dl = (zf_dl_tensor_t){.data = param->visible,
                                        .device_type = fuzz_seldom(in, 64) ? 2 : ZF_DEVICE_CPU,
                                        .ndim = fuzz_seldom(in, 64) ? (int32_t)fuzz_below(in, 16) - 4 : ndim,
                                        .dtype = draw_dtype(in),
                                        .shape = param->shape,
                                        .strides = is_transposed ? param->strides : NULL};
    if (param->tensor.dl.ndim > ndim)
        for (int i = ndim; i < ZF_MAX_NDIM; i++)
            param->shape[i] = 1;
    if (fuzz_seldom(in, 64)) {
        param->tensor.dl.byte_offset = fuzz_below(in, 9);
        param->tensor.nbytes -= param->tensor.dl.byte_offset;
    }
}

static void fill(fuzz_bytes_t *in, unsigned char *memory) {
    static const uint32_t words[] = {0,          0x3F803F80, 0xBE80BE80, 0x3C003C00,
                                     0x7FC07FC0, 0x7F807F80, 0xFF7FFF7F, 0x00010001};
    uint32_t seed = fuzz_byte(in), odd = fuzz_seldom(in, 24) ? words[fuzz_below(in, 8)] : 0x3D003D00;
    for (size_t i = 0; i < MEMORY_NBYTES / 4; i++) {
        uint32_t word =
            i % 7 == seed % 7 ? odd : 0x3D003D00u + (seed * 0x00050003u + (uint32_t)i * 0x00030007u) % 0x00800080u;
        memcpy(memory + 4 * i, &word, 4);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void close_all(machine_t *to) {
    to->zf->destroy(to->instance, NULL);
    to->cpu->queue_destroy(to->queue); /* after the instances that used it */
    to->instance = NULL;
    to->queue = NULL;
    to->streams[1] = (zf_stream_t){0};
}

static void create(machine_t *to) {
    static const char *const keys[] = {"topk_ratio=0.5",
                                       "topk_ratio=1",
                                       "topk_ratio=0",
                                       "update_interval=1",
                                       "update_interval=3",
                                       "update_interval=auto",
                                       "publish_lag=0",
                                       "publish_lag=1",
                                       "mode=mean",
                                       "predict=auto",
                                       "select_interval=2",
                                       "predict=off",
                                       "select_strategy=epoch",
                                       "select_strategy=auto",
                                       "on_overwrite=ask",
                                       ""};
    static const zf_host_t host = {.struct_size = sizeof host, .name = "fuzz", .version = "1"};
    char text[1024] = "[zenflow]\nfull_warm_up_rounds=1\n";
    zf_create_args_t args = {.struct_size = wrong_size(&to->in, sizeof args), .host = &host, .config_text = text};
    uint32_t n = fuzz_below(&to->in, 6), used = 0;
    zf_instance_t *made = NULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = fuzz_below(&to->in, (uint32_t)(sizeof keys / sizeof *keys));
        if (!(used & 1u << key)) {
            strcat(text, keys[key]);
            strcat(text, "\n");
        }
        used |= 1u << key;
    }
    if (used & 1u << 16)
        strcat(text, "[device]\nstate_mib=all\n");
    strcat(text, "[host]\ndeadline_ms=20000\nthreads=");
    strcat(text, fuzz_below(&to->in, 2) ? "1\n" : "2\n");
    strcat(text, fuzz_seldom(&to->in, 4) ? "moments_dtype=bfloat16_stochastic\n" : "");
    args.flags = fuzz_below(&to->in, 4) == 1 ? ZF_CREATE_CAP_FETCH : fuzz_seldom(&to->in, 64) ? 0x80u : 0;
    args.flags |= fuzz_below(&to->in, 2) ? ZF_CREATE_CAP_RELEASE : 0;
    args.device_type = fuzz_seldom(&to->in, 64) ? 2 : ZF_DEVICE_CPU;
    if (to->instance)
        close_all(to);
    to->is_queue = fuzz_below(&to->in, 3) == 1;
    to->streams[1] = (zf_stream_t){.struct_size = sizeof to->streams[1]};
    CALL(to, queue_create, to->cpu->queue_create(&to->queue, &to->streams[1], &to->err));
    CALL(to, create, to->zf->create(&args, &made, &to->err));
    to->instance = made;
    to->n_bound = 0;
}

static void draw_groups(machine_t *to, zf_bind_args_t *args, zf_group_decl_t groups[4]) {
    for (uint32_t i = 0; i < 4; i++)
        groups[i] = (zf_group_decl_t){.struct_size = wrong_size(&to->in, sizeof groups[i]),
                                      .rule = fuzz_below(&to->in, 2) ? fuzz_below(&to->in, 7) : 0};
    args->groups = groups;
    args->n_groups = 1 + fuzz_below(&to->in, 4);
    args->group_size = sizeof groups[0];
}

static void bind(machine_t *to) {
    zf_param_decl_t decls[MOST_PARAMS];
    zf_group_decl_t groups[4];
    zf_bind_args_t args = {.struct_size = wrong_size(&to->in, sizeof args), .decl_size = sizeof decls[0]};
    zf_bind_report_t layout = {.struct_size = wrong_size(&to->in, sizeof layout)};
    uint32_t n = 1 + fuzz_below(&to->in, MOST_PARAMS), ids[MOST_PARAMS];
    int is_again = fuzz_below(&to->in, 3) == 1, is_listed = !fuzz_seldom(&to->in, 64);
    for (uint32_t i = 0; i < n; i++) {
        param_t *param = &to->params[i];
        if (!is_again)
            draw_tensor(&to->in, param);
        decls[i] = (zf_param_decl_t){.struct_size = wrong_size(&to->in, sizeof decls[i]),
                                     .name = fuzz_seldom(&to->in, 48) ? to->params[0].name : param->name,
                                     .tensor = fuzz_seldom(&to->in, 64) ? NULL : &param->tensor,
                                     .flags = fuzz_seldom(&to->in, 4) ? fuzz_byte(&to->in) & 0x3Fu : 0,
                                     .group = fuzz_seldom(&to->in, 8) ? fuzz_below(&to->in, 4) : 0,
                                     .n_batch_axes = fuzz_seldom(&to->in, 4) ? (int32_t)fuzz_below(&to->in, 4) - 1 : 0,
                                     .channels = fuzz_seldom(&to->in, 8) ? (int32_t)fuzz_below(&to->in, 3) : 0,
                                     .tied_to = fuzz_below(&to->in, 3),
                                     .home = fuzz_seldom(&to->in, 8) ? (int32_t)fuzz_below(&to->in, 5) - 1 : 0};
        if (fuzz_seldom(&to->in, 8))
            decls[i].grad_dtype = draw_dtype(&to->in);
    }
    args.decls = is_listed ? decls : NULL;
    args.n_decls = n;
    if (fuzz_seldom(&to->in, 3))
        draw_groups(to, &args, groups);
    memset(&to->err, 0, sizeof to->err);
    to->err.struct_size = sizeof to->err;
    zf_status_t st = to->zf->bind_params(to->instance, &args, ids, &layout, &to->err);
    judge(to, "bind_params", st);
    for (uint32_t i = 0; i < n && st == ZF_OK; i++)
        to->ids[i] = ids[i], to->n_bound = n;
}

static void deliver(machine_t *to) {
    zf_grad_item_t items[MOST_ITEMS];
    zf_tensor_t tensors[MOST_ITEMS];
    zf_fence_t fence = {.struct_size = sizeof fence};
    const zf_stream_t *stream = draw_stream(to);
    uint32_t n = fuzz_seldom(&to->in, 4) ? 1 + fuzz_below(&to->in, MOST_ITEMS) : 1;
    for (uint32_t i = 0; i < n; i++) {
        static const uint32_t flags[] = {ZF_GRAD_TOTAL | ZF_GRAD_LAST,    ZF_GRAD_TOTAL,
                                         ZF_GRAD_PART | ZF_GRAD_MORE,     ZF_GRAD_PART | ZF_GRAD_LAST,
                                         ZF_GRAD_TOTAL | ZF_GRAD_REPLACE, ZF_GRAD_PART | ZF_GRAD_REPLACE,
                                         ZF_GRAD_TOTAL | ZF_GRAD_UNKNOWN, 0};
        uint32_t id = draw_id(to);
        param_t *param = &to->params[id < MOST_PARAMS ? id : 0];
        fill(&to->in, param->grad);
        tensors[i] = param->tensor;
        tensors[i].dl.data = param->grad;
        if (fuzz_seldom(&to->in, 8))
            tensors[i].dl.strides = NULL;
        if (fuzz_seldom(&to->in, 32))
            tensors[i].dl.dtype = draw_dtype(&to->in);
        items[i] =
            (zf_grad_item_t){.struct_size = wrong_size(&to->in, sizeof items[i]),
                             .id = id,
                             .flags = fuzz_seldom(&to->in, 48) ? fuzz_byte(&to->in) : flags[fuzz_below(&to->in, 8)],
                             .tensor = fuzz_seldom(&to->in, 64) ? NULL : &tensors[i]};
        if (fuzz_seldom(&to->in, 6)) {
            items[i].first_batch = fuzz_below(&to->in, 4);
            items[i].n_batches = fuzz_below(&to->in, 4);
        }
    }
    memset(&to->err, 0, sizeof to->err);
    to->err.struct_size = sizeof to->err;
    zf_status_t st = to->zf->grads_ready(to->instance, items, n, sizeof items[0], stream, &fence, &to->err);
    judge(to, "grads_ready", st);
    if (st >= 0 && fence.kind == ZF_FENCE_HOST_COUNTER) /* the memory is filled again */
        CALL(to, fence_wait, to->zf->fence_wait(to->instance, &fence, 20000000000u, &to->err));
    else if (st >= 0 && to->queue)
        CALL(to, queue_sync, to->cpu->queue_sync(to->queue, 20000000000u, &to->err));
}

static void step(machine_t *to) {
    zf_group_hyper_t groups[4];
    double norm = draw_number(&to->in, 1);
    zf_step_report_t report = {.struct_size = wrong_size(&to->in, sizeof report)};
    zf_step_args_t args = {.struct_size = wrong_size(&to->in, sizeof args),
                           .flags = fuzz_seldom(&to->in, 64) ? fuzz_byte(&to->in) : fuzz_below(&to->in, 8) & 5u,
                           .groups = fuzz_seldom(&to->in, 64) ? NULL : groups,
                           .n_groups = fuzz_seldom(&to->in, 16) ? fuzz_below(&to->in, 5) : 4,
                           .elem_size = sizeof groups[0],
                           .unscale = fuzz_seldom(&to->in, 4) ? draw_number(&to->in, 0.5) : 0,
                           .clip_norm = fuzz_seldom(&to->in, 4) ? draw_number(&to->in, 1) : 0,
                           .host_norm = fuzz_seldom(&to->in, 8) ? &norm : NULL,
                           .stream = draw_stream(to)};
    if (fuzz_seldom(&to->in, 8))
        args.flags |= ZF_STEP_DISCARD;
    for (int i = 0; i < 4; i++)
        groups[i] = (zf_group_hyper_t){.struct_size = wrong_size(&to->in, sizeof groups[i]),
                                       .lr = draw_number(&to->in, 1e-3),
                                       .beta1 = draw_number(&to->in, 0.2),
                                       .beta2 = draw_number(&to->in, 0.24),
                                       .eps = draw_number(&to->in, 1e-8),
                                       .weight_decay = draw_number(&to->in, 0.01)};
    CALL(to, step, to->zf->step(to->instance, &args, &report, &to->err));
    if (args.host_norm && to->queue) /* it lives until the step's report */
        CALL(to, queue_sync, to->cpu->queue_sync(to->queue, 20000000000u, &to->err));
}

static zf_param_item_t draw_item(machine_t *to) {
    zf_param_item_t item = {.struct_size = wrong_size(&to->in, sizeof item), .id = draw_id(to)};
    if (fuzz_seldom(&to->in, 4)) {
        item.first_batch = fuzz_below(&to->in, 4);
        item.n_batches = fuzz_below(&to->in, 4);
        item.flags = (uint32_t)fuzz_seldom(&to->in, 64);
        item.reserved0 = (uint32_t)fuzz_seldom(&to->in, 64);
    }
    return item;
}

static void fetch(machine_t *to) {
    zf_param_item_t items[2] = {draw_item(to), draw_item(to)};
    uint32_t n = fuzz_below(&to->in, 3), elem_size = wrong_size(&to->in, sizeof *items);
    zf_fence_t fence = {.struct_size = sizeof fence};
    const zf_stream_t *stream = draw_stream(to);
    const zf_shards_ext_t *shards = to->zf->get_extension(ZF_EXT_SHARDS);
    if (fuzz_below(&to->in, 3) == 1) {
        CALL(to, param_release, shards->param_release(to->instance, items, n, elem_size, stream, &to->err));
        return;
    }
    CALL(to, param_fetch, to->zf->param_fetch(to->instance, items, n, elem_size, stream, &fence, &to->err));
    if (fence.kind == ZF_FENCE_HOST_COUNTER)
        CALL(to, fence_wait, to->zf->fence_wait(to->instance, &fence, 20000000000u, &to->err));
}

static void changed(machine_t *to) {
    const zf_quiesce_args_t drain = {.struct_size = sizeof drain, .mode = ZF_QUIESCE_DRAIN};
    zf_param_item_t item = draw_item(to);
    uint32_t flags = fuzz_below(&to->in, 3) == 1 ? ZF_CHANGED_RESET : fuzz_seldom(&to->in, 64) ? 8 : 0;
    if (to->queue)
        CALL(to, queue_sync, to->cpu->queue_sync(to->queue, 20000000000u, &to->err));
    if (fuzz_below(&to->in, 3) == 1 && to->zf->quiesce(to->instance, &drain, NULL) == ZF_OK)
        fill(&to->in, to->params[item.id < MOST_PARAMS ? item.id : 0].visible);
    CALL(to, params_changed,
         to->zf->params_changed(to->instance, &item, fuzz_seldom(&to->in, 8) ? 0 : 1, sizeof item, flags, &to->err));
}

/* Gives the device's memory back, or takes it again; seldom something that is no such call now. */
static void move_out_or_in(machine_t *to) {
    const zf_residency_ext_t *residency = to->zf->get_extension(ZF_EXT_RESIDENCY);
    const zf_stream_t *stream = draw_stream(to);
    uint32_t what = fuzz_seldom(&to->in, 32) ? fuzz_byte(&to->in) : ZF_RELEASE_DEVICE | fuzz_below(&to->in, 2) << 1;
    zf_fence_t fence = {.struct_size = sizeof fence};
    if (fuzz_below(&to->in, 2))
        CALL(to, resume, residency->resume(to->instance, stream, &fence, &to->err));
    else
        CALL(to, release, residency->release(to->instance, what, stream, &fence, &to->err));
}

/* Asks what was written, or has it taken over by element. */
static void ask(machine_t *to) {
    const zf_digest_ext_t *digest = to->zf->get_extension(ZF_EXT_DIGEST);
    uint32_t ids[2] = {draw_id(to), draw_id(to)}, n = fuzz_below(&to->in, 3);
    uint8_t found[MOST_PARAMS];
    if (fuzz_below(&to->in, 3) == 1)
        CALL(to, adopt, digest->adopt(to->instance, n ? ids : NULL, n, &to->err));
    else
        CALL(to, written, digest->written(to->instance, fuzz_below(&to->in, 4), n ? ids : NULL, n, found, &to->err));
}

static void read_out(machine_t *to) {
    const zf_inspect_ext_t *inspect = to->zf->get_extension(ZF_EXT_INSPECT);
    const zf_stats_ext_t *stats = to->zf->get_extension(ZF_EXT_STATS);
    const zf_config_ext_t *config = to->zf->get_extension(ZF_EXT_CONFIG);
    static float values[MEMORY_NBYTES];
    uint32_t id = draw_id(to), which = fuzz_below(&to->in, 5);
    uint64_t n = fuzz_seldom(&to->in, 16) ? fuzz_byte(&to->in) : to->params[id < MOST_PARAMS ? id : 0].n_elems;
    zf_export_item_t item = {.struct_size = wrong_size(&to->in, sizeof item), .id = id, .dst = values};
    zf_inspect_out_t out = {.struct_size = sizeof out, .n_elems = n, .w = values};
    zf_counter_t counter = {.struct_size = sizeof counter};
    zf_step_report_t report = {.struct_size = sizeof report};
    char text[16];
    if (n > MEMORY_NBYTES)
        n = out.n_elems = 0;
    item.dst_nbytes = 4 * n;
    if (which == 0)
        CALL(to, export, to->zf->export_params(to->instance, &item, 1, sizeof item, &to->err));
    else if (which == 1)
        CALL(to, inspect, inspect->read(to->instance, id, &out, &to->err));
    else if (which == 2)
        CALL(to, stats, stats->counter(to->instance, fuzz_below(&to->in, 40), &counter, &to->err));
    else if (which == 3)
        CALL(to, poll, to->zf->poll(to->instance, &report, &to->err));
    else
        CALL(to, value, config->value(to->instance, fuzz_below(&to->in, 40), text, sizeof text, &to->err));
}

static void save(machine_t *to) {
    zf_state_args_t args = {.struct_size = wrong_size(&to->in, sizeof args),
                            .flags = fuzz_below(&to->in, 3) == 1 ? ZF_STATE_KEEP_OPEN
                                     : fuzz_seldom(&to->in, 64)  ? 128
                                                                 : 0,
                            .store = fuzz_seldom(&to->in, 64) ? NULL : &to->store.table};
    zt_memory_store_clear(&to->store);
    to->store.fail_at = fuzz_seldom(&to->in, 6) ? (int)fuzz_below(&to->in, 40) : 0;
    CALL(to, save, to->state->save(to->instance, &args, NULL, &to->err));
    to->store.fail_at = 0;
}

static void load(machine_t *to) {
    zf_state_args_t args = {.struct_size = wrong_size(&to->in, sizeof args),
                            .flags = fuzz_below(&to->in, 16) & (ZF_STATE_PARTIAL | ZF_STATE_CONTINUE),
                            .store = &to->store.table};
    if (to->store.n_blobs > 0 && fuzz_seldom(&to->in, 4)) {
        zt_blob_t *blob = &to->store.blobs[fuzz_below(&to->in, (uint32_t)to->store.n_blobs)];
        uint64_t at = (uint64_t)fuzz_byte(&to->in) << 8 | fuzz_byte(&to->in);
        if (blob->nbytes)
            blob->data[at % blob->nbytes] ^= (unsigned char)(1u << fuzz_below(&to->in, 8));
    }
    to->store.n_calls = 0;
    to->store.fail_at = fuzz_seldom(&to->in, 6) ? (int)fuzz_below(&to->in, 40) : 0;
    CALL(to, load, to->state->load(to->instance, &args, NULL, &to->err));
    to->store.fail_at = 0;
}

static void quiesce(machine_t *to) {
    int32_t mode = fuzz_seldom(&to->in, 48) ? fuzz_byte(&to->in) : 1 + (int32_t)fuzz_below(&to->in, 2);
    zf_quiesce_args_t args = {.struct_size = wrong_size(&to->in, sizeof args), .mode = mode};
    if (fuzz_seldom(&to->in, 8))
        args.deadline_ms = fuzz_byte(&to->in);
    if (fuzz_seldom(&to->in, 64))
        args.flags = fuzz_byte(&to->in);
    CALL(to, quiesce, to->zf->quiesce(to->instance, &args, &to->err));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    static void (*const calls[])(machine_t *) = {deliver, step,    deliver,  step,          deliver, step,
                                                 fetch,   changed, read_out, save,          load,    bind,
                                                 create,  quiesce, ask,      move_out_or_in};
    machine_t to = {.in = {data, nbytes}};
    to.zf = fuzz_plugin();
    to.state = to.zf->get_extension(ZF_EXT_STATE);
    to.cpu = to.zf->get_extension(ZF_EXT_CPU);
    to.streams[0] =
        (zf_stream_t){.struct_size = sizeof to.streams[0], .kind = ZF_STREAM_HOST_THREAD, .device_type = ZF_DEVICE_CPU};
    zt_memory_store_start(&to.store);
    for (uint32_t i = 0; i < MOST_PARAMS; i++) {
        param_t *param = &to.params[i];
        snprintf(param->name, sizeof param->name, "p%u", i);
        param->visible = malloc(MEMORY_NBYTES);
        param->grad = malloc(MEMORY_NBYTES);
        FUZZ_CHECK(param->visible && param->grad, "no memory");
        fill(&to.in, param->visible);
        fill(&to.in, param->grad);
        draw_tensor(&to.in, param);
        to.ids[i] = i;
    }
    create(&to);
    for (int i = 0; i < 4 && to.instance && to.n_bound == 0; i++)
        bind(&to);
    for (int i = 0; i < MOST_CALLS && to.in.left > 0 && !to.has_diverged; i++)
        calls[fuzz_below(&to.in, 16)](&to);
    close_all(&to);
    for (uint32_t i = 0; i < MOST_PARAMS; i++) {
        free(to.params[i].visible);
        free(to.params[i].grad);
    }
    zt_memory_store_clear(&to.store);
    return 0;
}
