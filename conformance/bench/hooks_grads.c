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

#include "hooks.h"
#include "rig.h"
#include "samples.h"

enum { BURST = 1024, N_DTYPES = 2, N_PER_CALL = 2, N_CALLS = 10000 };

static const double bar_ns = 1000.0;
static const uint32_t per_call[N_PER_CALL] = {1, 64};

typedef struct cell {
    samples_t wall, cpu;
} cell_t;

typedef struct grads {
    rig_t rigs[N_DTYPES][RIG_N_MODES];
    void *copies[N_DTYPES];
    cell_t cells[N_DTYPES][RIG_N_MODES][N_PER_CALL];
    samples_t copy[N_DTYPES];
    samples_t clock, poll, lost;
} grads_t;

static const char *dtype_name(int dtype) { return dtype ? "fp32" : "bf16"; }

static void time_deliveries(rig_t *rig, uint32_t n_per_call, cell_t *cell) {
    uint64_t wall, cpu;

    rig_touch(rig);
    cpu = samples_thread_cpu_ns();
    wall = samples_now_ns();
    rig_deliver(rig, 0, BURST, n_per_call, NULL);
    wall = samples_now_ns() - wall;
    cpu = samples_thread_cpu_ns() - cpu;
    samples_add(&cell->wall, (double)wall / BURST);
    samples_add(&cell->cpu, (double)cpu / BURST);
    rig_step(rig, ZF_STEP_WAIT);
    rig_drain(rig);
}

static void time_copy(rig_t *rig, void *to, samples_t *samples) {
    uint64_t wall;

    rig_touch(rig);
    wall = samples_now_ns();
    for (uint32_t i = 0; i < BURST; i++)
        memcpy((char *)to + i * rig->tensor_nbytes, (char *)rig->grads + i * rig->tensor_nbytes, rig->tensor_nbytes);
    wall = samples_now_ns() - wall;
    samples_add(samples, (double)wall / BURST);
}

static void time_clock(samples_t *samples) {
    const uint64_t begin = samples_now_ns();

    for (int i = 0; i < N_CALLS; i++)
        (void)samples_now_ns();
    samples_add(samples, (double)(samples_now_ns() - begin) / N_CALLS);
}

static void time_poll(const rig_t *rig, samples_t *samples) {
    zf_step_report_t report = {.struct_size = sizeof report};
    zf_error_t err;
    uint64_t wall;

    err.struct_size = sizeof err;
    wall = samples_now_ns();
    for (int i = 0; i < N_CALLS; i++)
        rig_check(rig->zf->poll(rig->instance, &report, &err), &err);
    samples_add(samples, (double)(samples_now_ns() - wall) / N_CALLS);
}

static void repeat(grads_t *grads, int is_warm) {
    static cell_t ignored;

    time_clock(&grads->clock);
    time_poll(&grads->rigs[0][0], &grads->poll);
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
        grads->clock.n = grads->poll.n = grads->lost.n = grads->copy[0].n = grads->copy[1].n = 0;
}

static double limit_of(const grads_t *grads, int dtype, int mode, int call) {
    const double hook = samples_median(&grads->poll) / per_call[call];

    return mode == RIG_COPY ? hook + samples_median(&grads->copy[dtype]) : hook;
}

static void print_row(hooks_t *hooks, const grads_t *grads, int dtype, int mode, int call) {
    const cell_t *cell = &grads->cells[dtype][mode][call];
    const quartiles_t wall = samples_quartiles(&cell->wall);
    const double cpu = samples_median(&cell->cpu), limit = limit_of(grads, dtype, mode, call);
    const int is_first = dtype == 0 && mode == 0 && call == 0;

    printf("%-5s %-5s %8u | %7.0f %6.0f..%-6.0f %7.0f | %8.1f %6.1f | %5.0f %s\n", dtype_name(dtype),
           rig_mode_name((rig_mode_t)mode), per_call[call], wall.median, wall.q1, wall.q3, cpu, limit,
           wall.median / limit, bar_ns, hooks_verdict(hooks, wall.median <= bar_ns));
    if (hooks->json)
        fprintf(
            hooks->json,
            "%s\n  {\"dtype\": \"%s\", \"mode\": \"%s\", \"tensors_per_call\": %u, \"wall_ns\": %.1f, \"wall_q1_ns\": "
            "%.1f, \"wall_q3_ns\": %.1f, \"cpu_ns\": %.1f, \"limit_ns\": %.2f, \"bar_ns\": %.0f}",
            is_first ? "" : ",", dtype_name(dtype), rig_mode_name((rig_mode_t)mode), per_call[call], wall.median,
            wall.q1, wall.q3, cpu, limit, bar_ns);
}

static void print_limits(const hooks_t *hooks, const grads_t *grads) {
    const double clock = samples_median(&grads->clock), poll = samples_median(&grads->poll);
    const double bf16 = samples_median(&grads->copy[0]), fp32 = samples_median(&grads->copy[1]);
    const double lost = samples_median(&grads->lost);

    printf("  in the same run: clock read %.0f ns, empty hook (poll) %.0f ns, plain copy of one tensor %.0f ns (bf16) "
           "%.0f ns (fp32); others took %.0f %% of this CPU\n",
           clock, poll, bf16, fp32, 100.0 * lost);
    if (hooks->json)
        fprintf(hooks->json,
                "\"limits\": {\"clock_ns\": %.1f, \"poll_ns\": %.1f, \"copy_bf16_ns\": %.1f, \"copy_fp32_ns\": %.1f, "
                "\"cpu_lost_share\": %.4f}, \"rows\": [",
                clock, poll, bf16, fp32, lost);
}

static void print_all(hooks_t *hooks, const grads_t *grads) {
    printf("grads_ready: ns per tensor of %d elements on the calling thread, bursts of %d, medians of %d\n",
           HOOKS_SMALL_ELEMS, BURST, hooks->n_repeats);
    if (hooks->json)
        fprintf(hooks->json, "\"grads\": {\"elems\": %d, \"burst\": %d, \"repeats\": %d, ", HOOKS_SMALL_ELEMS, BURST,
                hooks->n_repeats);
    print_limits(hooks, grads);
    printf("%-5s %-5s %8s | %7s %14s %7s | %8s %6s | %5s\n", "dtype", "mode", "per call", "wall", "quartiles", "cpu",
           "limit", "ratio", "bar");
    for (int d = 0; d < N_DTYPES; d++)
        for (int m = 0; m < RIG_N_MODES; m++)
            for (int c = 0; c < N_PER_CALL; c++)
                print_row(hooks, grads, d, m, c);
    if (hooks->json)
        fprintf(hooks->json, "\n]}");
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
