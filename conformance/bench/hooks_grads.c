/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_grads.c - what grads_ready costs the calling thread per small tensor.
 *
 * A repetition visits every row once, so that a busy moment of the machine meets all of them: the host writes its
 * gradients (they are in its caches, as after a backward pass), hands over BURST tensors, steps and waits until the
 * instance is idle. Only the handing over is timed. BURST is less than the plugin takes without making the host wait.
 *
 * Measured beside it, in the same repetition: copying the same bytes tensor by tensor into memory that no other thread
 * touches, and the smallest possible hook (poll). Their sum is the limit: a hook that keeps the gradients costs at
 * least one copy. Modes that do not copy have the hook alone as their limit. */
#include <string.h>

#include "harness/clock.h"
#include "harness/rig.h"
#include "hooks.h"
#include "table.h"

enum { BURST = 1024, N_DTYPES = 2, N_PER_CALL = 2 };

static const double bar_ns = 1000.0;
static const uint32_t per_call[N_PER_CALL] = {1, 64};

typedef struct cell {
    samples_t wall, cpu;
} cell_t;

typedef struct grads {
    rig_t rigs[N_DTYPES][RIG_N_MODES];
    void *copies[N_DTYPES];
    cell_t cells[N_DTYPES][RIG_N_MODES][N_PER_CALL];
    samples_t copy[N_DTYPES], poll, lost;
} grads_t;

static const char *const dtype_names[] = {"bf16", "fp32"}, *const mode_names[] = {"copy", "async", "queue"};

static void time_deliveries(rig_t *rig, uint32_t n_per_call, cell_t *cell) {
    rig_touch(rig);
    uint64_t cpu = zc_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    uint64_t wall = zc_now_ns();
    rig_deliver(rig, 0, BURST, n_per_call, NULL);
    wall = zc_now_ns() - wall;
    cpu = zc_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
    samples_add(&cell->wall, (double)wall / BURST);
    samples_add(&cell->cpu, (double)cpu / BURST);
    rig_step(rig, ZF_STEP_WAIT);
    rig_quiesce(rig, ZF_QUIESCE_DRAIN);
}

static void time_copy(rig_t *rig, void *to, samples_t *samples) {
    rig_touch(rig);
    uint64_t wall = zc_now_ns();
    for (uint32_t i = 0; i < BURST; i++)
        memcpy((char *)to + i * rig->tensor_nbytes, (char *)rig->grads + i * rig->tensor_nbytes, rig->tensor_nbytes);
    wall = zc_now_ns() - wall;
    samples_add(samples, (double)wall / BURST);
}

static void repeat(grads_t *grads, int is_warm) {
    static cell_t ignored;
    samples_add(&grads->poll, rig_poll_ns(&grads->rigs[0][0]));
    samples_add(&grads->lost, samples_lost_share(5000000));
    for (int d = 0; d < N_DTYPES; d++) {
        time_copy(&grads->rigs[d][RIG_COPY], grads->copies[d], &grads->copy[d]);
        for (int m = 0; m < RIG_N_MODES; m++)
            for (int c = 0; c < N_PER_CALL; c++) {
                ignored.wall.n = ignored.cpu.n = 0;
                time_deliveries(&grads->rigs[d][m], per_call[c], is_warm ? &grads->cells[d][m][c] : &ignored);
            }
    }
    if (!is_warm)
        grads->poll.n = grads->lost.n = grads->copy[0].n = grads->copy[1].n = 0;
}

static double limit_of(const grads_t *grads, int dtype, int mode, int call) {
    const double hook = samples_median(&grads->poll) / per_call[call];
    return mode == RIG_COPY ? hook + samples_median(&grads->copy[dtype]) : hook;
}

static void print_row(hooks_t *hooks, table_t *table, const grads_t *grads, int dtype, int mode, int call) {
    const cell_t *cell = &grads->cells[dtype][mode][call];
    const quartiles_t wall = samples_quartiles(&cell->wall);
    table_row(table, (const char *[]){dtype_names[dtype], mode_names[mode]},
              (const double[]){per_call[call], wall.median, wall.q1, wall.q3, samples_median(&cell->cpu),
                               limit_of(grads, dtype, mode, call)},
              hooks_verdict(hooks, wall.median <= bar_ns));
}

static void print_all(hooks_t *hooks, const grads_t *grads) {
    static const column_t columns[] = {{"dtype", -1},  {"mode", -1},      {"tensors_per_call", 0},
                                       {"wall_ns", 1}, {"wall_q1_ns", 1}, {"wall_q3_ns", 1},
                                       {"cpu_ns", 1},  {"limit_ns", 1},   {NULL, 0}};
    table_t table =
        table_begin(hooks->json, "grads", "grads_ready per tensor of 1,000 elements on the calling thread", columns);
    for (int d = 0; d < N_DTYPES; d++)
        for (int m = 0; m < RIG_N_MODES; m++)
            for (int c = 0; c < N_PER_CALL; c++)
                print_row(hooks, &table, grads, d, m, c);
    table_end(&table, (const figure_t[]){{"repeats", hooks->n_repeats},
                                         {"bar_ns", bar_ns},
                                         {"poll_ns", samples_median(&grads->poll)},
                                         {"copy_bf16_ns", samples_median(&grads->copy[0])},
                                         {"copy_fp32_ns", samples_median(&grads->copy[1])},
                                         {"cpu_lost_share", samples_median(&grads->lost)},
                                         {NULL, 0}});
}

void hooks_grads(hooks_t *hooks) {
    static grads_t grads;
    for (int d = 0; d < N_DTYPES; d++)
        for (int m = 0; m < RIG_N_MODES; m++) {
            const rig_spec_t spec = {.n_tensors = BURST,
                                     .ndim = 1,
                                     .shape = {HOOKS_SMALL_ELEMS},
                                     .dtype = d ? zf_dtype_float32() : zf_dtype_bfloat16(),
                                     .mode = (rig_mode_t)m,
                                     .config = hooks->config};
            rig_open(&grads.rigs[d][m], hooks->loader, &spec);
            if (m == 0)
                grads.copies[d] = rig_allocate(grads.rigs[d][0].nbytes);
        }
    for (int r = -1; r < hooks->n_repeats; r++)
        repeat(&grads, r >= 0);
    print_all(hooks, &grads);
    for (int d = 0; d < N_DTYPES; d++) {
        rig_free(grads.copies[d], grads.rigs[d][0].nbytes);
        for (int m = 0; m < RIG_N_MODES; m++)
            rig_close(&grads.rigs[d][m]);
    }
}
