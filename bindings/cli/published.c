/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/published.c - the simulator beside measurements that others have published (`zf plan --published`).
 *
 * Megatron-LLaMA (README of github.com/alibaba/Megatron-LLaMA): LLaMA-13B on 8 x A100-80GB machines with 4 x 200 Gb/s,
 * tokens per second and GPU, with Megatron-LM's DistributedOptimizer (nothing hidden) and with
 * OverlappedDistributedOptimizer. The batch is taken as LLaMA's, 2048 sequences of 2048 tokens whatever the number of
 * GPUs, in one micro-batch; gradients are exchanged in fp32, weights in bf16, buckets have 5e8 elements (the default of
 * --reduce-bucket-size).
 *
 * Two numbers are not published: the speed of compute and the bandwidth of the network that a GPU sees. Both follow
 * from the two measurements in which nothing is hidden: a step is tokens x seconds per token + bytes / bandwidth, two
 * equations. The other two, which hide their exchanges, are then predictions. */
#include <stdio.h>

#include "plan.h"

static const double N_ELEMS = 13015864320.0, BATCH_TOKENS = 2048.0 * 2048.0, BUCKET_ELEMS = 5e8, LATENCY_S = 20e-6;
static const double N_LAYERS = 40, HIDDEN = 5120, SEQUENCE = 2048, A100_FLOPS = 312e12;
static const double LINK_GBS = 20, HOST_GBS = 200, RANKS_OF_HOST = 8; /* of a machine with offload, assumed */
enum { N_BUCKETS = 27, N_POINTS = 4 };

static const struct {
    uint32_t n_ranks;
    timeline_schedule_t schedule;
    double tokens_per_s; /* of a GPU */
} points[N_POINTS] = {{256, TIMELINE_SERIAL, 1630},
                      {512, TIMELINE_SERIAL, 1430},
                      {256, TIMELINE_OVERLAPPED, 1890},
                      {512, TIMELINE_OVERLAPPED, 1845}};

typedef struct calibration {
    double token_s, net_nbytes_per_s;
} calibration_t;

static double exchanged_nbytes(uint32_t n_ranks) { return N_ELEMS * (4 + 2) * (n_ranks - 1) / n_ranks; }

/* tokens * token_s + nbytes / bandwidth = step - latencies, twice. */
static calibration_t calibrate(void) {
    double tokens[2], nbytes[2], step[2], determinant;
    for (int i = 0; i < 2; i++) {
        tokens[i] = BATCH_TOKENS / points[i].n_ranks;
        nbytes[i] = exchanged_nbytes(points[i].n_ranks);
        step[i] = tokens[i] / points[i].tokens_per_s - 2 * N_BUCKETS * LATENCY_S;
    }
    determinant = tokens[0] * nbytes[1] - tokens[1] * nbytes[0];
    return (calibration_t){.token_s = (step[0] * nbytes[1] - step[1] * nbytes[0]) / determinant,
                           .net_nbytes_per_s = determinant / (tokens[0] * step[1] - tokens[1] * step[0])};
}

static timeline_args_t args_of(const calibration_t *known, uint32_t n_ranks, double tokens, const double *elems) {
    return (timeline_args_t){.n_buckets = N_BUCKETS,
                             .bucket_elems = elems,
                             .forward_s = tokens * known->token_s / 3,
                             .backward_s = tokens * known->token_s * 2 / 3,
                             .n_micro_batches = 1,
                             .update_interval = 1,
                             .n_ranks = n_ranks,
                             .is_sharded = 1,
                             .grad_nbytes = 4,
                             .value_nbytes = 2,
                             .reduce_factor = 1,
                             .net_nbytes_per_s = known->net_nbytes_per_s,
                             .net_latency_s = LATENCY_S};
}

static int predict(const calibration_t *known, timeline_schedule_t schedule, uint32_t n_ranks, double tokens,
                   double *out_tokens_per_s) {
    double elems[N_BUCKETS];
    timeline_args_t args = args_of(known, n_ranks, tokens, elems);
    timeline_t time;
    for (int b = 0; b < N_BUCKETS; b++)
        elems[b] = b + 1 < N_BUCKETS ? BUCKET_ELEMS : N_ELEMS - (N_BUCKETS - 1) * BUCKET_ELEMS;
    args.schedule = schedule;
    if (schedule == TIMELINE_OFFLOAD) { /* this version of the plugin, S = 2 and lag 1 */
        args.update_interval = 2;
        args.publish_lag = 1;
        args.grad_nbytes = 2;
        args.reduce_factor = 2;
        args.down_nbytes_per_s = args.up_nbytes_per_s = LINK_GBS * 1e9;
        args.replay_elems_per_s = HOST_GBS * 1e9 / RANKS_OF_HOST / (26 + 2 * 2) * 2;
    }
    if (!timeline_run(&args, &time))
        return 0;
    *out_tokens_per_s = tokens / time.step_s;
    return 1;
}

static int print_points(const calibration_t *known) {
    for (int i = 0; i < N_POINTS; i++) {
        double tokens_per_s;
        if (!predict(known, points[i].schedule, points[i].n_ranks, BATCH_TOKENS / points[i].n_ranks, &tokens_per_s))
            return 1;
        printf("%4u  %-30s %9.0f %9.0f  %+5.1f %%  %s\n", points[i].n_ranks,
               points[i].schedule == TIMELINE_SERIAL ? "DistributedOptimizer" : "OverlappedDistributedOptimizer",
               points[i].tokens_per_s, tokens_per_s,
               100 * (tokens_per_s / points[i].tokens_per_s - 1) + 1e-9, /* no -0.0 */
               i < 2 ? "calibration" : "prediction");
    }
    return 0;
}

static int print_growth(const calibration_t *known) {
    static const uint32_t ranks[] = {8, 64, 512, 4096};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        double serial, overlapped, plugin;
        if (!predict(known, TIMELINE_SERIAL, ranks[i], BATCH_TOKENS / 512, &serial) ||
            !predict(known, TIMELINE_OVERLAPPED, ranks[i], BATCH_TOKENS / 512, &overlapped) ||
            !predict(known, TIMELINE_OFFLOAD, ranks[i], BATCH_TOKENS / 512, &plugin))
            return 1;
        printf("%5u  %8.0f  %10.0f  %8.0f\n", ranks[i], serial, overlapped, plugin);
    }
    return 0;
}

int plan_published(void) {
    calibration_t known = calibrate();
    double flops = 6 * N_ELEMS + 12 * N_LAYERS * HIDDEN * SEQUENCE;
    printf("LLaMA-13B on A100-80GB, 4,194,304 tokens per step, tokens per second and GPU\n\n");
    printf("GPUs  optimizer                      published     model    error\n");
    if (print_points(&known))
        return 1;
    printf("\none calibration, from the two rows in which nothing is hidden: compute at %.1f %% of 312 TFLOP/s, "
           "network %.1f GB/s for each GPU\n\n",
           100 * flops / known.token_s / A100_FLOPS, known.net_nbytes_per_s / 1e9);
    printf("the same machines with 8,192 tokens per GPU and step, one network bandwidth for all (no congestion); the "
           "last column: this plugin at stage 1, S = 2,\nlag 1, sums in bf16, with a link of %.0f GB/s and replays at "
           "%.0f GB/s for 8 GPUs (assumed)\n\n"
           "ranks    serial  overlapped    plugin\n",
           LINK_GBS, HOST_GBS);
    return print_growth(&known);
}
