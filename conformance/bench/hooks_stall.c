/* SPDX-License-Identifier: Apache-2.0 */
/* hooks_stall.c - what a training loop waits for the plugin: by the host's own clock, and as the plugin counts it.
 *
 * The host is synthetic: N_LAYERS layers of four matrices; forward takes a third of the compute time of a step,
 * backward two thirds, both spent looking at the clock. It fetches a layer before its forward and hands over a layer's
 * gradients after its backward. Three hosts: alone   no plugin: what the machine itself costs async   computes on the
 * calling thread; exposed = time in hooks + time waiting for fences queue   computes on a queue of zf.cpu/1 and runs
 * ahead of it; exposed = time of the queue beyond its compute. There the pass over the gradient and the run-ahead
 * update are work of the stream by design, and are in it cpu is what the hooks themselves take of the calling thread's
 * time; where `hooks` is more, the thread was not running. late is compute that ended after its time because the thread
 * did not run: other programs, or the plugin's own threads where cores are few; compare with `alone`. It is not in
 * exposed. counted is stall_ns (replay + select + pool) of zf.stats/1, wait its host_wait_ns (for queue: the host was
 * 8 ahead, no loss). All in ms per window. */
#include <string.h>

#include "hooks.h"
#include "rig.h"
#include "samples.h"
#include "streams.h"

enum { N_LAYERS = 24, PER_LAYER = 4, N_COMPUTES = 3, N_WARM = 3, N_HOSTS = 3, MAX_WINDOWS = 64, FENCE_TIMEOUT_S = 60 };
enum { HOST_ALONE, HOST_ASYNC, HOST_QUEUE };

static const double bar = 0.05;
static const uint64_t computes_ns[N_COMPUTES] = {10000000, 30000000, 100000000};
static const char *const host_names[N_HOSTS] = {"alone", "async", "queue"};

/* What has been used up so far; on the queue, one written by its thread at every end of a window. */
typedef struct mark {
    uint64_t now_ns, late_ns, hooks_ns, hooks_cpu_ns, fences_ns, stall_ns, wait_ns, replay_ns;
} mark_t;

typedef struct row {
    samples_t exposed, hooks, hooks_cpu, fences, late, counted, wait, replay;
} row_t;

typedef struct stall {
    rig_t rig;
    int host;
    uint64_t compute_ns;
    mark_t sums; /* hooks and fences: of the calling thread; late: of the thread that computes */
    zf_fence_t done[N_LAYERS];
    mark_t marks[MAX_WINDOWS + 1];
    int n_marks;
} stall_t;

/* ---- the parts of a step ----------------------------------------------------------------------------------------- */

static void spin(stall_t *stall, uint64_t n_ns) {
    const uint64_t end = samples_now_ns() + n_ns;
    uint64_t now = 0;

    while (now < end)
        now = samples_now_ns();
    stall->sums.late_ns += now - end;
}

static void run_forward(void *arg) { spin(arg, ((stall_t *)arg)->compute_ns / 3 / N_LAYERS); }
static void run_backward(void *arg) { spin(arg, ((stall_t *)arg)->compute_ns * 2 / 3 / N_LAYERS); }

static void compute(stall_t *stall, void (*work)(void *arg)) {
    zf_error_t err = {.struct_size = sizeof err};

    if (stall->host == HOST_QUEUE)
        rig_check(stall->rig.cpu->queue_launch(stall->rig.queue, work, stall, &err), &err);
    else
        work(stall);
}

static void wait_for(stall_t *stall, const zf_fence_t *fence) {
    const uint64_t begin = samples_now_ns();
    zf_error_t err;

    err.struct_size = sizeof err;
    rig_check(zf_loader_fence_wait(stall->rig.loader, fence, FENCE_TIMEOUT_S * UINT64_C(1000000000), &err), &err);
    stall->sums.fences_ns += samples_now_ns() - begin;
}

/* Times what stands between the two, wall and CPU. */
static void enter_hook(mark_t *begin) {
    begin->hooks_cpu_ns = samples_thread_cpu_ns();
    begin->hooks_ns = samples_now_ns();
}

static void leave_hook(stall_t *stall, const mark_t *begin) {
    stall->sums.hooks_ns += samples_now_ns() - begin->hooks_ns;
    stall->sums.hooks_cpu_ns += samples_thread_cpu_ns() - begin->hooks_cpu_ns;
}

static void fetch(stall_t *stall, uint32_t layer) {
    zf_fence_t ready = {.struct_size = sizeof ready};
    mark_t begin;
    zf_param_item_t items[PER_LAYER];
    zf_error_t err;

    err.struct_size = sizeof err;
    for (uint32_t i = 0; i < PER_LAYER; i++)
        items[i] = (zf_param_item_t){.struct_size = sizeof *items, .id = layer * PER_LAYER + i};
    enter_hook(&begin);
    rig_check(stall->rig.zf->param_fetch(stall->rig.instance, items, PER_LAYER, sizeof *items, &stall->rig.stream,
                                         &ready, &err),
              &err);
    leave_hook(stall, &begin);
    if (stall->host == HOST_ASYNC)
        wait_for(stall, &ready);
}

static void hand_over(stall_t *stall, uint32_t layer) {
    mark_t begin;

    enter_hook(&begin);
    rig_deliver(&stall->rig, layer * PER_LAYER, PER_LAYER, PER_LAYER, &stall->done[layer]);
    leave_hook(stall, &begin);
}

static void make_step(stall_t *stall) {
    const int has_plugin = stall->host != HOST_ALONE;
    mark_t begin;

    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        if (has_plugin)
            fetch(stall, layer);
        compute(stall, run_forward);
    }
    for (uint32_t layer = N_LAYERS; layer-- > 0;) {
        if (stall->host == HOST_ASYNC) /* its gradients of the step before are about to be overwritten */
            wait_for(stall, &stall->done[layer]);
        compute(stall, run_backward);
        if (has_plugin)
            hand_over(stall, layer);
    }
    enter_hook(&begin);
    if (has_plugin)
        rig_step(&stall->rig, 0);
    leave_hook(stall, &begin);
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

static void run_mark(void *arg) {
    stall_t *stall = arg;
    mark_t *mark = &stall->marks[stall->n_marks++];

    *mark = stall->sums; /* queue: hooks_ns runs on meanwhile, and is not used as a mark's */
    if (stall->host != HOST_ALONE) {
        mark->stall_ns = rig_counter(&stall->rig, "stall_replay_ns") + rig_counter(&stall->rig, "stall_select_ns") +
                         rig_counter(&stall->rig, "stall_pool_ns");
        mark->wait_ns = rig_counter(&stall->rig, "host_wait_ns");
        mark->replay_ns = rig_counter(&stall->rig, "replay_ns");
    }
    mark->now_ns = samples_now_ns();
}

static double ms(uint64_t end_ns, uint64_t begin_ns) { return 1e-6 * (double)(end_ns - begin_ns); }

static void add_window(const stall_t *stall, const mark_t *a, const mark_t *b, row_t *row) {
    const double beyond = ms(b->now_ns, a->now_ns) - 1e-6 * (double)(stall->compute_ns * HOOKS_WINDOW);
    const double hooks = ms(b->hooks_ns, a->hooks_ns), fences = ms(b->fences_ns, a->fences_ns);
    const double late = ms(b->late_ns, a->late_ns);

    samples_add(&row->exposed, stall->host == HOST_QUEUE ? beyond - late : hooks + fences);
    samples_add(&row->hooks, hooks);
    samples_add(&row->hooks_cpu, ms(b->hooks_cpu_ns, a->hooks_cpu_ns));
    samples_add(&row->fences, fences);
    samples_add(&row->late, late);
    samples_add(&row->counted, ms(b->stall_ns, a->stall_ns));
    samples_add(&row->wait, ms(b->wait_ns, a->wait_ns));
    samples_add(&row->replay, ms(b->replay_ns, a->replay_ns));
}

static void measure(stall_t *stall, int n_windows, row_t *row) {
    zf_error_t err = {.struct_size = sizeof err};

    for (int w = -N_WARM; w < n_windows; w++) {
        if (w == 0)
            compute(stall, run_mark);
        for (int s = 0; s < HOOKS_WINDOW; s++)
            make_step(stall);
        if (w >= 0)
            compute(stall, run_mark);
    }
    if (stall->host == HOST_QUEUE)
        rig_check(stall->rig.cpu->queue_sync(stall->rig.queue, FENCE_TIMEOUT_S * UINT64_C(1000000000), &err), &err);
    for (int w = 0; w < n_windows; w++)
        add_window(stall, &stall->marks[w], &stall->marks[w + 1], row);
}

static row_t measure_host(const hooks_t *hooks, int host, uint64_t compute_ns, int n_windows) {
    static stall_t stall;
    const rig_spec_t spec = {.n_tensors = N_LAYERS * PER_LAYER,
                             .ndim = 2,
                             .shape = {256, 400},
                             .dtype = zf_dtype_bfloat16(),
                             .mode = host == HOST_QUEUE ? RIG_QUEUE : RIG_ASYNC,
                             .config = hooks->config};
    row_t row = {0};

    memset(&stall, 0, sizeof stall);
    stall.host = host;
    stall.compute_ns = compute_ns;
    for (int i = 0; i < N_LAYERS; i++)
        stall.done[i] = (zf_fence_t){.struct_size = sizeof stall.done[i], .kind = ZF_FENCE_NONE};
    if (host != HOST_ALONE)
        rig_open(&stall.rig, hooks->loader, &spec);
    measure(&stall, n_windows, &row);
    if (host != HOST_ALONE)
        rig_close(&stall.rig);
    return row;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void print_row(hooks_t *hooks, int host, uint64_t compute_ns, const row_t *row, int is_first) {
    const quartiles_t exposed = samples_quartiles(&row->exposed);
    const double share = exposed.median / (1e-6 * (double)(compute_ns * HOOKS_WINDOW));
    const char *verdict = host == HOST_ALONE ? "" : hooks_verdict(hooks, share <= bar);

    printf("%-6s %8.0f | %8.2f %6.2f..%-6.2f %7.2f %6.2f %7.2f | %7.2f %7.2f %7.2f | %7.2f | %6.1f %4.0f %s\n",
           host_names[host], 1e-6 * (double)compute_ns, exposed.median, exposed.q1, exposed.q3,
           samples_median(&row->hooks), samples_median(&row->hooks_cpu), samples_median(&row->fences),
           samples_median(&row->counted), samples_median(&row->wait), samples_median(&row->replay),
           samples_median(&row->late), 100.0 * share, 100.0 * bar, verdict);
    fflush(stdout);
    if (hooks->json)
        fprintf(
            hooks->json,
            "%s\n  {\"host\": \"%s\", \"compute_ms_per_step\": %.0f, \"exposed_ms\": %.3f, \"q1_ms\": %.3f, \"q3_ms\": "
            "%.3f, \"hooks_ms\": %.3f, \"hooks_cpu_ms\": %.3f, \"fences_ms\": %.3f, \"counted_ms\": %.3f, "
            "\"host_wait_ms\": %.3f, "
            "\"replay_ms\": %.3f, \"late_ms\": %.3f, \"exposed_share\": %.4f, \"bar\": %.2f}",
            is_first ? "" : ",", host_names[host], 1e-6 * (double)compute_ns, exposed.median, exposed.q1, exposed.q3,
            samples_median(&row->hooks), samples_median(&row->hooks_cpu), samples_median(&row->fences),
            samples_median(&row->counted), samples_median(&row->wait), samples_median(&row->replay),
            samples_median(&row->late), share, bar);
}

/* Time to read the gradients of a window once: the least that the pass over them costs the stream. */
static double read_once_ms(void) {
    const size_t nbytes = (size_t)N_LAYERS * PER_LAYER * 256 * 400 * sizeof(uint16_t);
    void *grads = rig_allocate(nbytes);
    samples_t samples = {0};
    volatile uint32_t sink = 0;

    memset(grads, 1, nbytes);
    for (int r = 0; r < 9; r++) {
        const uint64_t begin = samples_now_ns();

        for (int s = 0; s < HOOKS_WINDOW; s++)
            sink ^= streams_read(grads, nbytes);
        samples_add(&samples, ms(samples_now_ns(), begin));
    }
    (void)sink;
    rig_free(grads, nbytes);
    return samples_median(&samples);
}

void hooks_stall(hooks_t *hooks) {
    const int half = (hooks->n_repeats + 1) / 2, n_windows = half < MAX_WINDOWS ? half : MAX_WINDOWS;
    const double read_ms = read_once_ms();
    int is_first = 1;

    printf(
        "stall: ms per window of %d steps, %.1f M parameters, bf16, medians of %d windows; reading the gradients of a "
        "window once takes %.2f ms\n",
        HOOKS_WINDOW, 1e-6 * N_LAYERS * PER_LAYER * 256 * 400, n_windows, read_ms);
    printf("%-6s %8s | %8s %14s %7s %6s %7s | %7s %7s %7s | %7s | %6s %4s\n", "host", "ms/step", "exposed", "quartiles",
           "hooks", "cpu", "fences", "counted", "wait", "replay", "late", "%", "bar");
    if (hooks->json)
        fprintf(hooks->json,
                "\"stall\": {\"steps_per_window\": %d, \"params\": %d, \"windows\": %d, \"read_once_ms\": "
                "%.3f, \"rows\": [",
                HOOKS_WINDOW, N_LAYERS * PER_LAYER * 256 * 400, n_windows, read_ms);
    for (int c = 0; c < N_COMPUTES; c++)
        for (int host = 0; host < N_HOSTS; host++) {
            const row_t row = measure_host(hooks, host, computes_ns[c], n_windows);

            print_row(hooks, host, computes_ns[c], &row, is_first);
            is_first = 0;
        }
    if (hooks->json)
        fprintf(hooks->json, "\n]}");
}
