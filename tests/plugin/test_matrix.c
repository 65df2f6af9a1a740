/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_matrix.c - rules of whole matrices (zf.matrix/0): Muon beside double precision, edits, checkpoints,
 * other parameters and memory, and what is refused. The rule is the oracle's Muon on a step's matrices. */
#include "zf/ext/draft/matrix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "local_ranks.h"
#include "oracle/muon.h"
#include "oracle/state.h"
#include "state_rig.h"
#include "suite.h"

/* Groups 0 and 1 are Muon's, group 2 AdamW's. One is wide, one tall, one of several blocks and batches (STACKED), and
 * no number of elements is a multiple of 16. */
static const zt_shape_t shapes[] = {
    {.rows = 11, .cols = 17},
    {.rows = 19, .cols = 9, .is_bf16 = 1, .group = 1},
    {.rows = 3 * 23, .cols = 7, .is_bf16 = 1},
    {.rows = 3 * 23, .cols = 7, .group = 1},
    {.rows = 24, .cols = 40, .group = 2},
    {.rows = 17, .group = 2},
    {.rows = 9, .cols = 7, .group = 2, .home = ZF_HOME_HOST}, /* by the workers */
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_MUON = 4, STACKED = 2, N_BATCH = 3, MOST = 69 * 7, N_STEPS = 4 };
static const int64_t stacked_sizes[] = {N_BATCH, 23, 7};

static zt_rig_t rig, other;
static const zo_muon_t muon = {
    .momentum = 0.95, .a = 3.4445, .b = -4.7750, .c = 2.0315, .eps = 1e-7, .n_steps = 5, .nesterov = 1};

/* ---- the host's function ----------------------------------------------------------------------------------------- */

static int32_t code;
static _Thread_local uint32_t n_calls, n_matrices;
static _Thread_local uint64_t newest_n; /* number of the newest update */
static const void *lent;                /* the first gradient, where it is to be read; NULL: anywhere */

static zo_moments_t kept; /* the rounding of moments that is looked at; zero: none */

static float widened(const zf_matrix_update_t *u, uint64_t i) {
    return zo_widen(u->g, u->grad_dtype.code == ZF_DTYPE_CODE_BFLOAT ? ZO_BF16 : ZO_F32, i);
}

/* Moments in 16 bits are stored by two calls, the first of which ends inside of a strip. */
static void store(const zf_matrix_update_t *u, const float *m) {
    uint64_t n = u->rows * u->cols, first = u->batch * n;
    ck_assert_int_eq(u->moments_dtype.bits == 32, !u->store);
    if (!u->store) {
        memcpy(u->m, m, n * sizeof *m);
        return;
    }
    u->store(u, 0, 0, 5, m);
    u->store(u, 0, 5, n - 5, m + 5);
    for (uint64_t e = 0; e < n && kept; e++)
        ck_assert(
            zo_widen(u->m, ZO_BF16, e) ==
            zo_round_moment(m[e], kept, zo_random32(rig.step + 1, ((uint64_t)u->param << 40) + first + e) & 0xFFFF));
}

static int32_t update(void *ctx, const zf_matrix_update_t *updates, uint32_t n, uint32_t elem_size) {
    float g[MOST], m[MOST];
    (void)ctx;
    ck_assert_uint_eq(elem_size, sizeof *updates);
    n_calls++;
    n_matrices = n;
    ck_assert(!lent || updates->g == lent);
    for (uint32_t i = 0; i < n; i++) {
        const zf_matrix_update_t *u = &updates[i];
        zo_muon_t of = muon;
        of.lr = u->lr;
        of.weight_decay = u->weight_decay;
        newest_n = u->n;
        for (uint64_t e = 0; e < u->rows * u->cols; e++) {
            g[e] = widened(u, e) * (float)u->s;
            m[e] = zo_widen(u->m, u->moments_dtype.bits == 32 ? ZO_F32 : ZO_BF16, e);
        }
        zo_muon_update(&of, u->rows, u->cols, u->w, m, g);
        store(u, m);
    }
    return code;
}

static zf_matrix_rules_t rules = {
    .struct_size = sizeof rules, .flags = ZF_CHAINED_REQUIRED, .id = ZF_EXT_MATRIX, .update = update};
static const zf_rule_callback_t named = {.struct_size = sizeof named, .n_moments = 1, .name = "Muon"};

static void start(zt_rig_t *of) {
    zt_rig_start(of, shapes, N_SHAPES);
    for (uint32_t i = STACKED; i < N_MUON; i++) {
        of->params[i].tensor.dl.ndim = of->params[i].grad_tensor.dl.ndim = 3;
        of->params[i].tensor.dl.shape = of->params[i].grad_tensor.dl.shape = (int64_t *)(uintptr_t)stacked_sizes;
        of->decls[i].n_batch_axes = 1;
    }
    of->rules[0].rule = of->rules[1].rule = ZF_RULE_CALLBACK;
    of->rules[0].callback = of->rules[1].callback = &named;
    of->groups[0].weight_decay = 0.1;
    of->bind_next = &rules;
}

#define EXACT "[zenflow]\nmode = exact\n[host]\nthreads = 2\n"

/* With blocks of a few rows, whole matrices are put together of several. */
static void open_as(zt_rig_t *of, const char *config, int are_small) {
    start(of);
    if (are_small)
        setenv("ZF_TEST_BLOCK_ELEMS", "64", 1);
    zt_rig_open(of, config, 0);
    unsetenv("ZF_TEST_BLOCK_ELEMS");
}

static void open_blocks(zt_rig_t *of, int are_small) { open_as(of, EXACT, are_small); }

/* ---- Muon in double precision ------------------------------------------------------------------------------------ */

/* Eigenvectors v (columns) and values of a symmetric a [n][n], by Jacobi's rotations; a becomes diagonal. */
static void diagonalise(double *a, double *v, int n) {
    for (int i = 0; i < n * n; i++)
        v[i] = i % (n + 1) == 0;
    for (int sweep = 0; sweep < 30; sweep++)
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++) {
                double angle = 0.5 * atan2(2 * a[p * n + q], a[q * n + q] - a[p * n + p]), c = cos(angle),
                       s = sin(angle);
                for (int k = 0; k < n; k++) {
                    double x = a[k * n + p], y = a[k * n + q];
                    a[k * n + p] = c * x - s * y, a[k * n + q] = s * x + c * y;
                    x = v[k * n + p], y = v[k * n + q];
                    v[k * n + p] = c * x - s * y, v[k * n + q] = s * x + c * y;
                }
                for (int k = 0; k < n; k++) {
                    double x = a[p * n + k], y = a[q * n + k];
                    a[p * n + k] = c * x - s * y, a[q * n + k] = s * x + c * y;
                }
            }
}

/* The factor by which the iterations change a singular value. */
static double stretched(double sigma) {
    double x = sigma;
    for (int s = 0; s < muon.n_steps; s++)
        x = muon.a * x + muon.b * x * x * x + muon.c * x * x * x * x * x;
    return sigma > 1e-9 ? x / sigma : pow(muon.a, muon.n_steps);
}

/* x [rows][cols] := x V f V' with x'x = V sigma^2 V': what the iterations make of it, by singular values. */
static void orthogonalise(double *x, int rows, int cols) {
    static double gram[40 * 40], v[40 * 40], f[40 * 40], out[MOST];
    double norm = 0;
    for (int i = 0; i < rows * cols; i++)
        norm += x[i] * x[i];
    for (int i = 0; i < rows * cols; i++)
        x[i] /= sqrt(norm);
    for (int i = 0; i < cols * cols; i++) {
        gram[i] = 0;
        for (int k = 0; k < rows; k++)
            gram[i] += x[k * cols + i / cols] * x[k * cols + i % cols];
    }
    diagonalise(gram, v, cols);
    for (int i = 0; i < cols * cols; i++) {
        f[i] = 0;
        for (int k = 0; k < cols; k++)
            f[i] += v[i / cols * cols + k] * stretched(sqrt(fmax(gram[k * cols + k], 0))) * v[i % cols * cols + k];
    }
    for (int i = 0; i < rows * cols; i++) {
        out[i] = 0;
        for (int k = 0; k < cols; k++)
            out[i] += x[i / cols * cols + k] * f[k * cols + i % cols];
    }
    memcpy(x, out, (size_t)(rows * cols) * sizeof *x);
}

typedef struct state {
    double w[MOST], m[MOST];
} state_t;
static state_t states[N_MUON];

/* One update of all matrices of a parameter, whose gradients are times s. */
static void update_wide(const zt_param_t *p, state_t *state, const zf_group_hyper_t *hyper, double s) {
    int n_batch = p->id >= STACKED ? N_BATCH : 1, rows = (int)p->shape.rows / n_batch, cols = (int)p->shape.cols;
    double scale = hyper->lr * sqrt(rows > cols ? (double)rows / cols : 1.0), x[MOST];
    for (int b = 0; b < n_batch; b++) {
        double *w = state->w + b * rows * cols, *m = state->m + b * rows * cols;
        for (int e = 0; e < rows * cols; e++) {
            double g = s * (double)p->grad_values[b * rows * cols + e];
            m[e] = 0.95 * m[e] + 0.05 * g;
            x[e] = 0.05 * g + 0.95 * m[e];
        }
        orthogonalise(x, rows, cols);
        for (int e = 0; e < rows * cols; e++)
            w[e] = w[e] * (1 - hyper->lr * hyper->weight_decay) - scale * x[e];
    }
}

static void begin_wide(void) {
    for (uint32_t i = 0; i < N_MUON; i++)
        for (size_t e = 0; e < rig.params[i].n_elems; e++)
            states[i].w[e] = (double)zt_visible(&rig.params[i], e), states[i].m[e] = 0;
}

/* The masters, and what the model reads is their rounding. */
static void check_wide(void) {
    float w[MOST];
    for (uint32_t i = 0; i < N_MUON; i++) {
        ZT_OK(&rig, zt_try_export(&rig, i, w));
        for (size_t e = 0; e < rig.params[i].n_elems; e++) {
            ck_assert_msg(fabs((double)w[e] - states[i].w[e]) < 2e-6, "parameter %u, element %zu: %g, in double %g", i,
                          e, (double)w[e], states[i].w[e]);
            ck_assert(zt_visible(&rig.params[i], e) == zt_rounded(&rig.params[i], w[e]));
        }
    }
}

/* Clipped steps, whose norm is of every group's gradients; a skipped one; one in which a parameter has no gradient. */
ZT_TEST(muon_beside_double_precision) {
    for (int are_small = 0; are_small < 2; are_small++) {
        zf_step_report_t report;
        open_blocks(&rig, are_small);
        begin_wide();
        for (int s = 0; s < 2 * N_STEPS; s++) {
            int skips = s == 2;
            uint32_t has_hole = s == 5;
            zf_step_args_t args = zt_rig_step_args(&rig, ZF_STEP_WAIT);
            args.clip_norm = s % 2 ? 0.125 : 0;
            report = (zf_step_report_t){.struct_size = sizeof report};
            n_calls = 0;
            for (uint32_t i = has_hole; i < N_SHAPES; i++) {
                zt_rig_fill_grad(&rig, i, (uint64_t)s + 1);
                if (skips && i == 4)
                    zo_narrow(rig.params[i].grad, zt_dtype(&rig.params[i]), 0, NAN);
                ZT_OK(&rig, zt_rig_deliver(&rig, i, 0, NULL));
            }
            ZT_OK(&rig, rig.zf->step(rig.inst, &args, &report, &rig.err));
            ck_assert_int_eq(report.applied, !skips);
            ck_assert_uint_eq(n_calls, !skips);
            ck_assert(skips || (report.clip_factor < 1) == s % 2);
            for (uint32_t i = has_hole; i < N_SHAPES && !skips; i++)
                if (i < N_MUON)
                    update_wide(&rig.params[i], &states[i], &rig.groups[shapes[i].group], 0.5 * report.clip_factor);
                else
                    zt_serial_update(&rig.params[i].serial, &rig.groups[2], rig.params[i].grad_values,
                                     (float)(0.5 * report.clip_factor));
            ck_assert(skips || n_matrices == (has_hole ? 7 : 8));
            check_wide();
        }
        for (uint32_t i = N_MUON; i < N_SHAPES; i++) /* AdamW's bits do not know of the others */
            for (size_t e = 0; e < rig.params[i].n_elems; e++)
                ck_assert(zt_visible(&rig.params[i], e) == rig.params[i].serial.w[e]);
        zt_rig_end(&rig);
    }
}

/* ---- edits, fences, memory --------------------------------------------------------------------------------------- */

/* What the host writes counts by element from its next update on; all other masters keep what rounding hides. */
ZT_TEST(edits_count_by_element) {
    float w[MOST];
    open_blocks(&rig, 1);
    begin_wide();
    for (int s = 0; s < N_STEPS; s++) {
        for (uint32_t i = 0; i < N_MUON; i++) {
            size_t e = (size_t)(13 * s + 5);
            zo_narrow(rig.params[i].visible, zt_dtype(&rig.params[i]), e, 0.75f);
            states[i].w[e] = 0.75;
            ZT_OK(&rig, zt_try_export(&rig, i, w));
            ck_assert(w[e] == 0.75f);
        }
        zt_rig_steps(&rig, 1);
        for (uint32_t i = 0; i < N_MUON; i++)
            update_wide(&rig.params[i], &states[i], &rig.groups[shapes[i].group], rig.unscale);
        check_wide();
    }
    zt_rig_end(&rig);
}

/* A lent gradient is read where it lies; one whose fence is over may be written before the step. A host that fetches,
 * or has a queue, is served as well. */
ZT_TEST(gradients_are_read_where_they_lie) {
    for (int k = 0; k < 3; k++) {
        zf_fence_t fence = {.struct_size = sizeof fence};
        start(&rig);
        if (k == 2)
            zt_rig_use_queue(&rig);
        zt_rig_open(&rig, EXACT, k == 1 ? ZF_CREATE_CAP_FETCH : 0);
        begin_wide();
        for (uint32_t i = 0; i < N_SHAPES; i++) {
            zt_rig_fill_grad(&rig, i, 1);
            ZT_OK(&rig, zt_rig_deliver(&rig, i, ZF_GRAD_TOTAL | ZF_GRAD_LAST | ZF_GRAD_LENT, k ? &fence : NULL));
        }
        if (k)
            zt_rig_wait(&rig, &fence);
        for (uint32_t i = 0; i < N_SHAPES && k; i++)
            memset(rig.params[i].grad, 0xFF, zt_nbytes(&rig.params[i]));
        lent = k ? NULL : rig.params[0].grad;
        ZT_OK(&rig, zt_rig_submit(&rig, 0, NULL));
        lent = NULL;
        for (uint32_t i = 0; i < N_MUON; i++)
            update_wide(&rig.params[i], &states[i], &rig.groups[shapes[i].group], rig.unscale);
        check_wide();
        zt_rig_end(&rig);
    }
}

/* Bytes that each element of Muon's takes, beside a parameter of AdamW. */
static double nbytes_of_each(int is_bf16, const char *config) {
    double n[2];
    for (int k = 0; k < 2; k++) {
        zt_shape_t many[9] = {{.rows = 300, .cols = 200, .group = 2}};
        for (int i = 1; i < 9; i++)
            many[i] = (zt_shape_t){.rows = 512, .cols = 512, .is_bf16 = is_bf16};
        zt_rig_start(&rig, many, k ? 9 : 5);
        rig.rules[0] = (zf_group_decl_t){sizeof rig.rules[0], ZF_RULE_CALLBACK, &named};
        rig.bind_next = &rules;
        zt_rig_open(&rig, config, 0);
        n[k] = (double)(zt_rig_counter(&rig, "host_measured_nbytes") + zt_rig_counter(&rig, "device_measured_nbytes"));
        zt_rig_end(&rig);
    }
    return (n[1] - n[0]) / (4 * 512 * 512);
}

/* Momentum alone beside fp32 weights, a master too beside bf16: no second moment, though AdamW has one. */
ZT_TEST(state_is_all_that_there_is) {
    double f32 = nbytes_of_each(0, ""), bf16 = nbytes_of_each(1, "");
    double half = nbytes_of_each(1, "[host]\nmoments_dtype = bfloat16_stochastic\n");
    ck_assert_msg(half >= 6 && half < 6.05, "%g bytes per bf16 element with momentum in bf16", half);
    ck_assert_msg(f32 >= 4 && f32 < 4.05, "%g bytes per fp32 element", f32);
    ck_assert_msg(bf16 >= 8 && bf16 < 8.05, "%g bytes per bf16 element", bf16);
}

ZT_TEST(what_it_takes_is_planned) {
    zf_plan_t plan;
    start(&rig);
    plan = zt_rig_plan(&rig, EXACT, 0, 0, 1);
    zt_rig_open(&rig, EXACT, 0);
    ck_assert_uint_eq(plan.host_nbytes, rig.layout.host_nbytes);
    ck_assert_uint_eq(plan.device_nbytes, rig.layout.device_nbytes);
    zt_rig_end(&rig);
}

/* ---- checkpoints, other sets ------------------------------------------------------------------------------------- */

#define MOMENTS(type) EXACT "moments_dtype = " type "\n"

/* Into another cut, too. Moments are rounded as the oracle rounds them; with the types of 8 bits not at all. */
ZT_TEST(resumed_to_the_bit) {
    static const char *const configs[] = {EXACT, MOMENTS("bfloat16"), MOMENTS("bfloat16_stochastic"), MOMENTS("int8")};
    for (uint32_t i = 0; i < 4; i++) {
        int are_small = i < 3;
        zt_memory_store_t store;
        zt_memory_store_start(&store);
        open_as(&rig, configs[i], 0);
        kept = i < ZO_MOMENTS_INT8 ? (zo_moments_t)i : ZO_MOMENTS_F32;
        zt_rig_steps(&rig, N_STEPS);
        kept = 0;
        ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
        open_as(&other, configs[i], are_small);
        ZT_OK(&other, zt_load(&other, &store.table, NULL, 0, NULL));
        other.step = rig.step;
        zt_rig_steps(&rig, N_STEPS);
        zt_rig_steps(&other, N_STEPS);
        ck_assert_uint_eq(newest_n, 2 * N_STEPS);
        for (uint32_t k = 0; k < N_SHAPES; k++)
            ck_assert(zt_shows(&other.params[k], rig.params[k].visible));
        if (!are_small)
            zt_state_check_equal(&rig, &other, "after a load");
        zt_state_end(&rig, &other, &store);
    }
}

/* A checkpoint names its rules, and one of another name's moments is refused. */
ZT_TEST(another_rule_is_refused_at_load) {
    static const zf_rule_callback_t shampoo = {.struct_size = sizeof shampoo, .n_moments = 1, .name = "Shampoo"};
    zt_memory_store_t store;
    zt_memory_store_start(&store);
    open_blocks(&rig, 0);
    zt_rig_steps(&rig, 1);
    ZT_OK(&rig, zt_save(&rig, &store.table, NULL, 0, NULL));
    start(&other);
    other.rules[0].callback = other.rules[1].callback = &shampoo;
    zt_rig_open(&other, EXACT, 0);
    zf_status_t st = zt_load(&other, &store.table, NULL, 0, NULL);
    ck_assert_int_lt(st, 0);
    zt_contains(other.err.message, "Muon");
    zt_state_end(&rig, &other, &store);
}

/* Binding again keeps w, m and n: in other memory as it is, with a parameter less by name. */
ZT_TEST(bound_again) {
    open_blocks(&rig, 1);
    open_blocks(&other, 1);
    for (int s = 0; s < 3; s++) {
        zt_rig_steps(&rig, 2);
        zt_rig_steps(&other, 2);
        if (s == 1)
            other.n_params--;
        zt_param_t *param = &other.params[s];
        void *moved = malloc(zt_nbytes(param)), *was = param->visible;
        memcpy(moved, was, zt_nbytes(param));
        param->visible = param->tensor.dl.data = moved;
        zt_rig_bind(&other);
        free(was);
        for (uint32_t i = 0; i < N_MUON; i++)
            ck_assert(zt_shows(&other.params[i], rig.params[i].visible));
    }
    other.n_params = N_SHAPES;
    zt_rig_end(&rig);
    zt_rig_end(&other);
}

/* ---- several ranks ----------------------------------------------------------------------------------------------- */

typedef struct job {
    ZT_JOB;
    const char *save_to, *load_from;
    uint32_t most; /* matrices of one step */
    float w[19 * 9];
} job_t;

static job_t jobs[4];
static zt_ranks_t ranks;

/* Before a step, of parameters that are their own masters and of others; some are announced. */
static zf_status_t edit_some(zt_rig_t *of) {
    zf_status_t st = zt_quiesce(of, ZF_QUIESCE_DRAIN); /* who fetches has fetched */
    for (uint32_t i = 0; i < N_MUON; i++)
        zo_narrow(of->params[i].visible, zt_dtype(&of->params[i]), of->step, 0.75f);
    return st < 0 || of->step % 2 ? st : zt_changed(of, of->params[STACKED].id, 0);
}

/* Each gradient comes from one of n ranks, so that sums are exact; one comes from none. */
static zf_status_t train(zt_rig_t *of, uint32_t rank, uint32_t n, uint32_t *out_most) {
    zf_status_t st = ZF_OK;
    for (uint64_t until = of->step + N_STEPS; of->step < until && st >= 0;) {
        if (of->step % 3 == 2)
            st = edit_some(of);
        for (uint32_t i = 0; i < N_SHAPES && st >= 0; i++) {
            if ((i + of->step) % n != rank || (i == 3 && of->step % 4 == 3))
                continue;
            zt_rig_fill_grad(of, i, of->step + 1);
            st = zt_rig_deliver(of, i, 0, NULL);
        }
        n_matrices = 0;
        st = st >= 0 ? zt_rig_submit(of, 0, NULL) : st;
        *out_most = n_matrices > *out_most ? n_matrices : *out_most;
    }
    return st;
}

static void *run_rank(void *raw) {
    job_t *job = raw;
    zt_rig_t *of = &job->rig;
    start(of);
    job->st = zt_ranks_try_open(job->rank, of, job->config, 0);
    if (job->st >= 0 && job->load_from) {
        job->st = zt_load(of, NULL, zt_path(job->load_from), 0, NULL);
        of->step = N_STEPS;
    }
    if (job->st >= 0)
        job->st = train(of, job->rank->rank, job->rank->all->size, &job->most);
    if (job->st >= 0 && job->save_to)
        job->st = zt_save(of, NULL, zt_path(job->save_to), 0, NULL);
    if (job->st >= 0)
        job->st = zt_quiesce(of, ZF_QUIESCE_FLUSH);
    if (job->st >= 0)
        job->st = zt_try_export(of, 1, job->w);
    return NULL;
}

/* n ranks end where one rank is, `rig`, which has made as many steps. */
static void check_ranks(uint32_t n, const job_t *as) {
    uint32_t stage = (uint32_t)(strstr(as->config, "stage = ")[8] - '0'), most = 0;
    float w[19 * 9];
    ZT_OK(&rig, zt_try_export(&rig, 1, w));
    setenv("ZF_TEST_BLOCK_ELEMS", "64", 1);
    zt_jobs_start(&ranks, n, jobs, sizeof *jobs, as);
    for (uint32_t r = 0; r < n; r++)
        ranks.ranks[r].flags = stage == 2 ? ZF_CREATE_CAP_FETCH : 0;
    zt_jobs_run(&ranks, run_rank, 0);
    for (uint32_t r = 0; r < n; r++) {
        zf_plan_t plan = zt_rig_plan(&jobs[r].rig, as->config, ranks.ranks[r].flags, r, n);
        ck_assert_uint_eq(plan.host_nbytes, jobs[r].rig.layout.host_nbytes);
        ck_assert_uint_eq(plan.device_nbytes + plan.staging_nbytes, jobs[r].rig.layout.device_nbytes);
        for (uint32_t i = 0; i < N_SHAPES; i++)
            ck_assert_msg(zt_shows(&jobs[r].rig.params[i], rig.params[i].visible), "stage %u, %u ranks: %u on rank %u",
                          stage, n, i, r);
        ck_assert(memcmp(jobs[r].w, w, sizeof w) == 0);
        most = jobs[r].most > most ? jobs[r].most : most;
    }
    ck_assert_uint_eq(most, stage ? (8 + n - 1) / n : 8); /* by cost; these are about as large */
    unsetenv("ZF_TEST_BLOCK_ELEMS");
    zt_jobs_end(&ranks);
}

#define ON_RANKS(stage) EXACT "deadline_ms = 60000\n[shard]\nbucket_bytes = 1000\nstage = " stage "\n"

/* The bits of one rank, each matrix by one of them; where the host fetches, too (stage 2). Audited alike, resumed by
 * fewer; also with momentum in 16 bits. */
ZT_TEST(ranks_share_matrices) {
    char one[400], four[500];
    uint32_t most;
    open_blocks(&rig, 1);
    ZT_OK(&rig, train(&rig, 0, 1, &most));
    check_ranks(2, &(job_t){.config = ON_RANKS("0")});
    check_ranks(3, &(job_t){.config = ON_RANKS("2")});
    zt_rig_end(&rig);
    snprintf(one, sizeof one, MOMENTS("bfloat16_stochastic") "[audit]\nfile = %s every 1\n", zt_path("one"));
    snprintf(four, sizeof four,
             ON_RANKS("1") "[audit]\nfile = %s every 1\n[host]\nmoments_dtype = bfloat16_stochastic\n",
             zt_path("four"));
    open_as(&rig, one, 1);
    ZT_OK(&rig, train(&rig, 0, 1, &most));
    check_ranks(4, &(job_t){.config = four, .save_to = "of_ranks"});
    ck_assert_int_eq(zt_shell("'%s' audit '%s' '%s' >&2", ZF, zt_path("one"), zt_path("four")), 0);
    ZT_OK(&rig, train(&rig, 0, 1, &most));
    check_ranks(
        2, &(job_t){.config = ON_RANKS("1") "[host]\nmoments_dtype = bfloat16_stochastic\n", .load_from = "of_ranks"});
    zt_rig_end(&rig);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static int32_t another(void *ctx, const zf_matrix_update_t *updates, uint32_t n, uint32_t elem_size) {
    return update(ctx, updates, n, elem_size);
}

static void refuse(const char *config, int32_t home, const char *words) {
    start(&rig);
    rig.decls[1].home = home;
    zt_rig_create(&rig, config, 0);
    zf_status_t st = zt_rig_try_bind(&rig);
    zt_refused(&rig.err, st, ZF_ERR_PARAM, words);
    zt_contains(rig.err.message, "\"Muon\"");
    zt_rig_end(&rig);
}

ZT_TEST(refused_by_name) {
    refuse("[zenflow]\nmode = windows\n", 0, "mode = exact");
    refuse("[zenflow]\nmode = mean\n", 0, "mode = exact");
    refuse("", ZF_HOME_HOST, "\"layer.1.weight\"");
    start(&rig);
    zt_rig_create(&rig, "", 0);
    int64_t strides[] = {18, 1};
    rig.params[0].visible = realloc(rig.params[0].visible, 11 * 18 * sizeof(float));
    memset(rig.params[0].visible, 0, 11 * 18 * sizeof(float));
    rig.params[0].tensor.dl.data = rig.params[0].visible;
    rig.params[0].tensor.dl.strides = strides;
    rig.params[0].tensor.nbytes = 11 * 18 * sizeof(float);
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_PARAM, "contiguous");
    zt_rig_end(&rig);
    open_blocks(&rig, 0);
    rules.update = another;
    zt_refused(&rig.err, zt_rig_try_bind(&rig), ZF_ERR_PARAM, "another function");
    rules.update = update;
    zt_rig_steps(&rig, 1);
    zt_rig_end(&rig);
}

ZT_TEST(a_code_ends_the_instance) {
    open_blocks(&rig, 0);
    zt_rig_steps(&rig, 2);
    code = -5;
    zf_status_t st = zt_rig_try_step(&rig);
    code = 0;
    zt_refused(&rig.err, st, ZF_ERR_RULE, "returned -5 for 8 matrices");
    ck_assert_int_eq(rig.err.native_code, -5);
    ck_assert_int_eq(rig.zf->poll(rig.inst, NULL, &rig.err), ZF_ERR_RULE);
    zt_rig_end(&rig);
}

/* As an update by element that leaves a weight that is not finite. */
ZT_TEST(a_weight_that_is_not_finite_is_named) {
    open_blocks(&rig, 0);
    rig.groups[1].lr = 1e30;
    rig.groups[1].weight_decay = 1;
    zf_status_t st = ZF_OK;
    for (int i = 0; i < 4 && st >= 0; i++)
        st = zt_rig_try_step(&rig);
    zt_refused(&rig.err, st, ZF_ERR_NONFINITE, "\"layer.1.weight\"");
    zt_rig_end(&rig);
}

ZT_SUITE("matrix")
