/* SPDX-License-Identifier: Apache-2.0 */
/* abi_matrix.c - proof 5, zf.matrix/0: what the host's function of whole matrices is given, when, and what comes of
 * what it returns. */
#include <math.h>
#include <string.h>

#include "abi_probes.h"

typedef struct seen {
    abi_rig_t *rig;
    uint32_t n_calls, n_matrices, n_wanted; /* of this step */
    uint64_t n[ABI_RIG_TRAINED];            /* updates so far */
    float w[ABI_RIG_TRAINED][ABI_RIG_MAX_ELEMS], m[ABI_RIG_TRAINED][ABI_RIG_MAX_ELEMS];
    double s;
    int moment_bits;
    int32_t code; /* to be returned */
} seen_t;

static float widened(const void *from, zf_dtype_t dtype, size_t i) {
    uint32_t bits = 0;
    if (dtype.bits == 32)
        memcpy(&bits, (const char *)from + 4 * i, 4);
    else
        memcpy((char *)&bits + 2, (const char *)from + 2 * i, 2);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float as_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xFFFF0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Momentum over columns that are summed: no element depends on itself alone. What it writes is a bf16 in both types,
 * which no rounding changes. */
static void update_one(seen_t *seen, const zf_matrix_update_t *u) {
    float *m = seen->m[u->param];
    for (uint64_t r = 0; r < u->rows; r++)
        for (uint64_t c = 0; c < u->cols; c++) {
            uint64_t e = r * u->cols + c, other = r * u->cols + (c + 1) % u->cols;
            m[e] = as_bf16(0.5f * m[e] + (float)u->s * widened(u->g, u->grad_dtype, other));
            u->w[e] = seen->w[u->param][e] = (float)(int)(64 * (u->w[e] - (float)u->lr * m[e])) / 64;
        }
    if (u->store)
        u->store(u, 0, 0, u->rows * u->cols, m);
    else
        memcpy(u->m, m, u->rows * u->cols * sizeof *m);
}

static void check_one(seen_t *seen, const zf_matrix_update_t *u, uint32_t i) {
    abi_rig_t *rig = seen->rig;
    abi_probe_t *p = rig->probe;
    const zf_tensor_t *tensor = &rig->grad_tensors[i];
    uint64_t cols = tensor->dl.ndim > 1 ? (uint64_t)rig->shapes[i][1] : 1;
    abi_check(p, ABI_RULE_MATRICES,
              u->param == rig->ids[i] && u->batch == 0 && u->group == 0 && u->rows == (uint64_t)rig->shapes[i][0] &&
                  u->cols == cols && u->n == ++seen->n[i],
              "matrix %u of a step: parameter %u, batch %u, group %u, %llu x %llu, update %llu", i, u->param, u->batch,
              u->group, (unsigned long long)u->rows, (unsigned long long)u->cols, (unsigned long long)u->n);
    abi_check(p, ABI_RULE_MATRICES,
              u->lr == rig->hyper.lr && u->beta1 == rig->hyper.beta1 && u->beta2 == rig->hyper.beta2 &&
                  u->eps == rig->hyper.eps && u->weight_decay == rig->hyper.weight_decay && u->s == seen->s,
              "parameter %u: hyper-parameters are not the step's, or s = %g and not %g", u->param, u->s, seen->s);
    if (!abi_check(p, ABI_RULE_MATRICES, u->w && u->m && !u->v && u->g && !memcmp(&u->grad_dtype, &tensor->dl.dtype, 4),
                   "parameter %u: w %p, m %p, v %p, g %p, or another type of gradient", u->param, (void *)u->w, u->m,
                   u->v, u->g))
        return;
    if (!abi_check(p, ABI_RULE_MATRICES,
                   u->moments_dtype.bits == seen->moment_bits && !u->store == (seen->moment_bits == 32),
                   "parameter %u: moments of %d bits, not %d, or store is %s", u->param, u->moments_dtype.bits,
                   seen->moment_bits, u->store ? "there" : "NULL"))
        return;
    abi_check(p, ABI_RULE_MATRICES, !memcmp(u->g, rig->grads[i], u->rows * u->cols * tensor->dl.dtype.bits / 8),
              "parameter %u: g is not what was delivered", u->param);
    for (uint64_t e = 0; e < u->rows * u->cols; e++)
        if (!abi_check(p, ABI_RULE_MATRICES,
                       u->w[e] == seen->w[i][e] && widened(u->m, u->moments_dtype, e) == seen->m[i][e],
                       "parameter %u, element %llu: w %g and m %g, the last update left %g and %g", u->param,
                       (unsigned long long)e, (double)u->w[e], (double)widened(u->m, u->moments_dtype, e),
                       (double)seen->w[i][e], (double)seen->m[i][e]))
            return;
    update_one(seen, u);
}

static int32_t update(void *ctx, const zf_matrix_update_t *updates, uint32_t n, uint32_t elem_size) {
    seen_t *seen = ctx;
    abi_probe_t *p = seen->rig->probe;
    abi_check(p, ABI_RULE_MATRICES, seen->rig->host.is_inside && pthread_equal(pthread_self(), seen->rig->host.thread),
              "the function is not called on the thread that is in step");
    seen->n_calls++;
    seen->n_matrices = n;
    if (!abi_check(p, ABI_RULE_MATRICES, n == seen->n_wanted && elem_size >= 128 && elem_size % 8 == 0,
                   "%u matrices of %u bytes, and %u have a gradient", n, elem_size, seen->n_wanted))
        return 1;
    for (uint32_t i = 0; i < n; i++)
        check_one(seen, (const void *)((const char *)updates + (size_t)i * elem_size), i);
    return seen->code;
}

/* ---- probes ------------------------------------------------------------------------------------------------------ */

static seen_t seen;
static zf_matrix_rules_t rules;

/* A bound instance whose only group is the function's. Its status. */
static zf_status_t begin(abi_rig_t *rig, const char *config) {
    static const zf_rule_callback_t callback = {.struct_size = sizeof callback, .n_moments = 1, .name = "whole"};
    static const zf_group_decl_t group = {sizeof group, ZF_RULE_CALLBACK, &callback};
    seen = (seen_t){.rig = rig, .s = 1, .moment_bits = strstr(config, "moments_dtype") ? 16 : 32};
    rules = (zf_matrix_rules_t){
        .struct_size = sizeof rules, .flags = ZF_CHAINED_REQUIRED, .id = ZF_EXT_MATRIX, .ctx = &seen, .update = update};
    for (uint32_t i = 0; i < ABI_RIG_TRAINED; i++)
        for (size_t e = 0; e < ABI_RIG_MAX_ELEMS; e++)
            seen.w[i][e] = widened(rig->memory[i], rig->tensors[i].dl.dtype, e);
    rig->group = &group;
    rig->bind_next = &rules;
    rig->create.config_text = config;
    rig->create.config_text_nbytes = strlen(config);
    return abi_rig_create(rig);
}

static int has_extension(const abi_rig_t *rig) {
    if (rig->table->get_extension(ZF_EXT_MATRIX))
        return 1;
    abi_skip(rig->probe, ABI_RULE_MATRICES, "no extension " ZF_EXT_MATRIX);
    return 0;
}

static void check_step(abi_rig_t *rig, uint32_t n_present, zf_status_t want, uint32_t n_calls) {
    zf_step_report_t report;
    seen.n_calls = 0;
    seen.n_wanted = n_present;
    zf_status_t st = abi_rig_step(rig, n_present, &report);
    abi_rig_check(rig, ABI_RULE_MATRICES, st == want, "step with a function of whole matrices", st);
    abi_check(rig->probe, ABI_RULE_MATRICES, seen.n_calls == n_calls,
              "the function was called %u times in a step, not %u", seen.n_calls, n_calls);
    for (uint32_t i = 0; i < ABI_RIG_TRAINED && st >= 0; i++)
        for (size_t e = 0; e < (size_t)(rig->shapes[i][0] * (i < 2 ? rig->shapes[i][1] : 1)); e++)
            if (!abi_check(rig->probe, ABI_RULE_MATRICES,
                           widened(rig->memory[i], rig->tensors[i].dl.dtype, e) == seen.w[i][e],
                           "parameter %u, element %zu: the model does not read what the function wrote", i, e))
                return;
}

/* Steps of all and of some gradients, a clipped one, one that is skipped, and one that fails. */
static void run_matrices(abi_rig_t *rig) {
    zf_step_report_t report;
    zf_status_t st;
    if (!has_extension(rig))
        return;
    st = begin(rig, "[zenflow]\nmode = exact\n[host]\nthreads = 1\n");
    st = st < 0 ? st : abi_rig_bind(rig, NULL);
    if (!abi_rig_check(rig, ABI_RULE_MATRICES, st == ZF_OK, "bind_params with a function of whole matrices", st))
        return;
    for (int s = 0; s < 3; s++) {
        abi_rig_set_gradients(rig);
        check_step(rig, s == 1 ? 2 : ABI_RIG_TRAINED, ZF_OK, 1);
    }
    abi_rig_set_gradients(rig);
    ((float *)(void *)rig->grads[0])[3] = NAN;
    check_step(rig, ABI_RIG_TRAINED, ZF_SKIPPED, 0);
    abi_rig_set_gradients(rig);
    rig->step.unscale = seen.s = 0.25;
    check_step(rig, ABI_RIG_TRAINED, ZF_OK, 1);
    abi_rig_set_gradients(rig);
    seen.code = 77;
    st = abi_rig_step(rig, ABI_RIG_TRAINED, &report);
    abi_check(rig->probe, ABI_RULE_MATRICES,
              st == ZF_ERR_RULE && rig->err.native_code == 77 && rig->err.scope == ZF_SCOPE_INSTANCE,
              "the function returned 77: step returned %d, code %d, scope %d", st, (int)rig->err.native_code,
              rig->err.scope);
}

static void run_halves(abi_rig_t *rig) {
    if (!has_extension(rig))
        return;
    zf_status_t st = begin(rig, "[zenflow]\nmode = exact\n[host]\nmoments_dtype = bfloat16_stochastic\n");
    st = st < 0 ? st : abi_rig_bind(rig, NULL);
    if (!abi_rig_check(rig, ABI_RULE_MATRICES, st == ZF_OK, "bind_params with moments in 16 bits", st))
        return;
    for (int s = 0; s < 3; s++) {
        abi_rig_set_gradients(rig);
        check_step(rig, ABI_RIG_TRAINED, ZF_OK, 1);
    }
}

static void refuse(abi_rig_t *rig, const char *words, const char *what) {
    abi_try(rig->probe, "bind_params: %s", what);
    zf_status_t st = abi_rig_bind(rig, NULL);
    abi_check(rig->probe, ABI_RULE_MATRICES, st < 0 && strstr(rig->err.message, words), "%s: returned %d: %.200s", what,
              st, rig->err.message);
}

static void run_refusals(abi_rig_t *rig) {
    if (!has_extension(rig) || begin(rig, "[zenflow]\nmode = windows\n") < 0)
        return;
    refuse(rig, "a.weight", "whole matrices in windows");
    abi_rig_end(rig);
    if (begin(rig, "[zenflow]\nmode = exact\n") < 0)
        return;
    rules.update = NULL;
    refuse(rig, "update", "a chained struct without its function");
    rules.update = update;
    rules.struct_size = sizeof(zf_chained_t);
    refuse(rig, "struct_size", "a chained struct that is too short");
    rules.struct_size = sizeof rules;
    rules.id = "zf.matrix/1";
    refuse(rig, "zf.matrix/1", "another revision, which is required");
    rules.flags = 0;
    refuse(rig, "update", "another revision, which is passed over");
}

const abi_row_t abi_matrix_rows[] = {{"a function of whole matrices", ABI_OPEN, 0, run_matrices},
                                     {"whole matrices, momentum in 16 bits", ABI_OPEN, 0, run_halves},
                                     {"whole matrices, refused", ABI_OPEN, 0, run_refusals},
                                     {NULL, ABI_NOTHING, 0, NULL}};
