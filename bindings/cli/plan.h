/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/plan.h - what `zf plan` is asked, and its two parts: bytes and times. */
#ifndef ZF_CLI_PLAN_H
#define ZF_CLI_PLAN_H

#include "cli.h"
#include "model.h"
#include "timeline.h"
#include "zf/ext/draft/plan.h"

enum { PLAN_MAX_OVERRIDES = 64, PLAN_MAX_SPEEDS = 16 };

typedef struct plan_options {
    const char *model_path, *config_path, *machine_path;
    const char *overrides[PLAN_MAX_OVERRIDES];
    uint32_t n_overrides;
    char stage[32]; /* the override that --stage makes */
    int is_json, is_cpu, has_no_fetch, recomputes;
    model_dtype_t dtype;
    uint32_t n_ranks, n_local_ranks; /* n_local_ranks: on one machine */
    double tokens;                   /* of a rank and step, all micro-batches together */
    double sequence;                 /* tokens of a sequence; 0: attention's own work is left out */
    double n_micro_batches;
    double tflops, efficiency;          /* peak of the device, and the share of it that training reaches */
    double link_gbs, net_gbs, host_gbs; /* 10^9 bytes per second: of a rank, of a rank, of a machine's workers */
    double latency_us;                  /* of a collective */
    double own_ns;                      /* of the plugin's own passes on the device, per parameter and step */
} plan_options_t;

/* plan_bytes.c: asks the plugin. overrides: on top of the configuration and the options', ended by NULL. 0, or 1 after
 * a message; is_quiet: without one. */
int plan_ask(zf_cli_t *cli, const plan_options_t *options, const model_t *model, uint32_t rank, const char *config_text,
             const char *const *overrides, int is_quiet, zf_plan_t *out);

/* plan_balance.c: parameters that ranks keep, and those of them whose windows close at one step, each the fewest and
 * the most over the ranks (some of them where there are many) and steps. 0, or 1 after a message. */
typedef struct plan_balance {
    uint32_t n_asked;
    uint64_t least_owned, most_owned, least_close, most_close;
    uint32_t slowest; /* the rank of most_close */
} plan_balance_t;
int plan_ask_balance(zf_cli_t *cli, const plan_options_t *options, const model_t *model, const char *config_text,
                     plan_balance_t *out);

/* What the times are made from. */
typedef struct plan_speeds {
    uint32_t n; /* measured windows; 0: host_gbs counts */
    uint32_t intervals[PLAN_MAX_SPEEDS];
    double elems_per_s[PLAN_MAX_SPEEDS];
    double spread;           /* of a window's runs, the fastest by the slowest; 0: not measured */
    double own_spread;       /* of the own passes */
    double available_nbytes; /* of the machine; 0: unknown */
    double own_ns;           /* of the plugin's own passes, where the device is the CPU; 0: not measured */
    double link_gbs;         /* of the first CUDA device, each way while the other is in use; 0: not measured */
} plan_speeds_t;

typedef struct plan_row {
    uint32_t update_interval, publish_lag;
    int is_possible; /* the plugin takes it */
    double resident_elems;
    zf_plan_t bytes;
    timeline_t time;
} plan_row_t;

/* plan_times.c: reads `zf doctor --json`; 0, or 1 after a message. */
int plan_read_machine(const char *path, plan_speeds_t *out);
/* Elements x steps per second of one rank's workers, for windows of S steps. */
double plan_replay_speed(const plan_options_t *options, const plan_speeds_t *speeds, uint32_t interval,
                         double grad_nbytes);
/* Seconds of a forward pass of one micro-batch; its backward takes plan_backward_factor times as long. */
double plan_forward_s(const plan_options_t *options, const model_t *model);
double plan_backward_factor(const plan_options_t *options);
/* Fills row->time of its update_interval and publish_lag. 0, or 1 after a message. */
int plan_time(const plan_options_t *options, const plan_speeds_t *speeds, const model_t *model, uint32_t stage,
              plan_row_t *row);
/* What a step waits, in seconds: what is beyond compute and the plugin's own passes. */
double plan_waits_s(const timeline_t *time);
/* The least late of the rows that costs at most max_stall of a step: lag 0 before lag 1, then small S; where none does,
 * the quickest. Windows of more than four steps are for those who measured what they lose, and are not chosen, nor is
 * what takes more than most_host_nbytes of a rank. NULL: nothing is left. */
const plan_row_t *plan_choose(const plan_row_t *rows, uint32_t n, double max_stall, double most_host_nbytes);

#endif
