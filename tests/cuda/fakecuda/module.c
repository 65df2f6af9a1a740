/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/module.c - modules and launches: PTX that is loaded is looked up among the translated kernels.
 *
 * An image is PTX text; a cubin cannot run here. The text has to be, byte for byte, what ptx2c translated into this
 * library: a module built from other sources is refused. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>

static const uint64_t magic = 0x66616b656d6f64ull;

struct CUfunc_st {
    struct CUmod_st *module;
    const emu_kernel_t *kernel;
    uint32_t most_blocks; /* of a launch, where calls are counted */
    int is_loaded;
};

struct CUmod_st {
    uint64_t magic;
    fc_context_t *context;
    const emu_module_t *found;
    int is_plugin;
    struct CUfunc_st functions[];
};

/* ---- images ------------------------------------------------------------------------------------------------------ */

static uint64_t hash_of(const char *text) {
    uint64_t h = 0xcbf29ce484222325ull;
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n\f\v", text[n - 1]))
        n--;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3ull;
    return h;
}

/* PTX 9.0 came with CUDA 13.0, 8.4 with 12.4: an older driver does not know it. */
static int is_too_new(const char *ptx) {
    const char *at = strstr(ptx, "\n.version ");
    unsigned major, minor;
    return at && sscanf(at, " .version %u.%u", &major, &minor) == 2 &&
           (major + 4) * 1000 + minor * 10 > fc_config.driver_version;
}

static CUresult find_image(const void *image, const emu_module_t **out) {
    if (memcmp(image, "\177ELF", 4) == 0)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (is_too_new(image))
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    *out = emu_find_module(hash_of(image));
    if (*out == NULL)
        fprintf(stderr, "fakecuda: a module is loaded whose PTX was not translated into this libcuda.so.1\n");
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

static CUresult load(CUmodule *out, const void *image, const void *caller) {
    const emu_module_t *found = NULL;
    CUresult st = find_image(image, &found);
    if (st)
        return st;
    CUmodule m = calloc(1, sizeof *m + found->n_kernels * sizeof m->functions[0]);
    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->magic = magic;
    m->context = fc_current();
    m->found = found;
    for (uint32_t i = 0; i < found->n_kernels; i++)
        m->functions[i] = (struct CUfunc_st){.module = m, .kernel = found->kernels[i]};
    m->is_plugin = fc_is_plugin(caller);
    fc_count(m->context, m->is_plugin, 1);
    *out = m;
    return CUDA_SUCCESS;
}

FC_API cuModuleLoadData(CUmodule *out, const void *image) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    st = st ? st : fc_drain(FC_CALL_LOAD);
    return st ? st : load(out, image, __builtin_return_address(0));
}

FC_API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int n, CUjit_option *options, void **values) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    (void)n, (void)options, (void)values;
    st = st ? st : fc_drain(FC_CALL_LOAD);
    return st ? st : load(out, image, __builtin_return_address(0));
}

static CUresult enter_module(const char *function, CUmodule m) {
    CUresult st = fc_enter(function, FC_NEEDS_CONTEXT);
    return st ? st : m && m->magic == magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FC_API cuModuleUnload(CUmodule m) {
    CUresult st = enter_module(__func__, m);
    if (st)
        return st;
    fc_hold(FC_CALL_LOAD);
    st = fc_synchronise_context(m->context);
    fc_let_go(FC_CALL_LOAD);
    fc_count(m->context, m->is_plugin, -1);
    m->magic = 0;
    free(m);
    return st;
}

FC_API cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
    CUresult st = enter_module(__func__, m);
    if (st)
        return st;
    for (uint32_t i = 0; i < m->found->n_kernels; i++)
        if (strcmp(m->found->kernels[i]->name, name) == 0) {
            *out = &m->functions[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

enum { SOME_REGISTERS = 32, REGISTERS = 65536, SHARED_NBYTES = 164 << 10 /* of a processor */ };

/* What the gate's table has for the architecture at hand, or for 8.0, which the PTX is for. */
static uint32_t n_registers_of(CUfunction f) {
    static const uint32_t architectures[] = {80, 90, 100, 120};
    static const struct {
        const char *kernel;
        uint32_t n[4];
    } table[] = {
#include "registers.inc"
        {"", {0}}};
    uint32_t at = 3;
    while (at > 0 && architectures[at] != fc_config.compute)
        at--;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].kernel, f->kernel->name) == 0)
            return table[i].n[at];
    return SOME_REGISTERS;
}

/* Registers are given to warps, 256 at a time (gate.py counts alike). */
static uint32_t n_blocks_at_once(CUfunction f, uint32_t n_threads) {
    uint32_t n_warps = (n_threads + 31) / 32, per_warp = (n_registers_of(f) * 32 + 255) / 256 * 256;
    uint64_t shared = f->kernel->shared_nbytes;
    uint32_t n = 2048 / n_threads, by_registers = REGISTERS / (per_warp * n_warps);
    if (by_registers < n)
        n = by_registers;
    if (shared && SHARED_NBYTES / (shared + 1024) < n)
        n = (uint32_t)(SHARED_NBYTES / (shared + 1024));
    return n < 32 ? n : 32;
}

FC_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction f, int block_size, size_t dynamic_nbytes) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    if (st)
        return st;
    if (block_size < 1 || block_size > 1024 || dynamic_nbytes)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (int)n_blocks_at_once(f, (uint32_t)block_size);
    return CUDA_SUCCESS;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static void run_kernel(fc_op_t *op) {
    emu_config_t config = {.n_blocks = op->n_blocks,
                           .n_threads = op->n_threads,
                           .seed = fc_config.seed ? fc_random() | 1 : 0,
                           .find = fc_find_for_kernel};
    if (emu_run(op->function->kernel, &config, op->params))
        fc_fail_context(op->stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* Work is dealt out to blocks that run at once; with more of them some would begin when others are over. */
static void check_grid(struct CUfunc_st *f, uint32_t n, uint32_t n_threads) {
    uint64_t most = fc_config.n_multiprocessors * n_blocks_at_once(f, n_threads);
    if (f->module->is_plugin && n > 1 && n != most)
        fc_finding("%s is launched with %u blocks; the device runs %llu at once", f->kernel->name, n,
                   (unsigned long long)most);
    if (fc_config.counts && n > f->most_blocks) /* calls for one function come from one thread at a time */
        fprintf(stderr, "grid %s %u\n", f->kernel->name, f->most_blocks = n);
}

/* A kernel is loaded when it is first launched. */
static CUresult load_lazily(struct CUfunc_st *f) {
    if (__atomic_exchange_n(&f->is_loaded, 1, __ATOMIC_RELAXED))
        return CUDA_SUCCESS;
    fc_count_make(f->module->is_plugin);
    return fc_drain(FC_CALL_LOAD);
}

static unsigned char *copy_params(const emu_kernel_t *k, void **params) {
    unsigned char *p = emu_zeros(k->params_nbytes + 1, 1);
    for (uint32_t i = 0; i < k->n_params; i++)
        memcpy(p + k->param_offset[i], params[i], k->param_nbytes[i]);
    return p;
}

FC_API cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned dynamic_nbytes, CUstream given, void **params, void **extra) {
    CUresult st = fc_enter(__func__, FC_NEEDS_CONTEXT);
    if (st)
        return st;
    CUstream s = fc_stream_of(given);
    if (s == NULL || f == NULL || f->module->magic != magic || f->module->context != s->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (extra || (params == NULL && f->kernel->n_params) || gx == 0 || gx > 0x7fffffff || bx == 0 ||
        bx > f->kernel->max_threads || gy != 1 || gz != 1 || by != 1 || bz != 1 || dynamic_nbytes)
        return CUDA_ERROR_INVALID_VALUE; /* what is not modelled, too */
    check_grid(f, gx, bx);
    st = load_lazily(f);
    if (st)
        return st;
    fc_op_t op = {
        .run = run_kernel, .function = f, .n_blocks = gx, .n_threads = bx, .params = copy_params(f->kernel, params)};
    st = fc_enqueue(s, &op);
    if (st)
        free(op.params);
    return st;
}
