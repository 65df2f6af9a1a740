/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/plan_times.c - from a model and a machine to a timeline (contract in plan.h).
 *
 * Work of training: 2 operations per parameter and token forward, twice that backward, once more forward where
 * activations are recomputed; attention adds 4 x layers x hidden x sequence per token to each forward (PaLM, appendix
 * B, arXiv 2204.02311). Memory traffic of a window of S steps: w and the moments read and written, S slots read, the
 * values written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum {
    USUAL_BUCKET_ELEMS = 40000000,
    BUCKET_ELEMS_PER_RANK = 1000000,
    STATE_TRAFFIC_NBYTES = 24,
    LEAST_BUCKETS = 32,
    LONGEST_CHOSEN = 4
};

/* ---- the machine ------------------------------------------------------------------------------------------------- */

/* Of the first device: a half of both ways at once, since gradients go down while values come up; 0: not measured. */
static double read_link(const json_t *found) {
    const json_t *device = json_array_get(json_object_get(json_object_get(found, "cuda"), "devices"), 0);
    double both = json_number_value(json_object_get(json_object_get(device, "link"), "both_gb_per_s"));
    return both / 2 > 1e-3 && both / 2 < 1e6 ? both / 2 : 0;
}

/* The most that doctor measured by the least; 0: an older file. */
static double spread_of(const json_t *row, const char *least_key, const char *most_key) {
    double least = json_number_value(json_object_get(row, least_key));
    double most = json_number_value(json_object_get(row, most_key));
    return least > 0 && most >= least && most < 1e18 ? most / least : 0;
}

int plan_read_machine(const char *path, plan_speeds_t *out) {
    size_t nbytes, i;
    json_error_t problem;
    char *text = zf_cli_read_file(path, 1 << 20, &nbytes);
    json_t *found = text ? json_loadb(text, nbytes, 0, &problem) : NULL, *row;
    free(text);
    if (!text)
        return 1;
    *out = (plan_speeds_t){.n = 0};
    json_array_foreach(json_object_get(json_object_get(found, "replay"), "windows"), i, row) {
        json_int_t interval = json_integer_value(json_object_get(row, "update_interval"));
        double speed = json_number_value(json_object_get(row, "elems_per_s"));
        if (out->n == PLAN_MAX_SPEEDS || interval < 1 || interval > 64 || !(speed > 0) || speed > 1e18)
            continue;
        out->spread = fmax(out->spread, spread_of(row, "least_elems_per_s", "most_elems_per_s"));
        out->intervals[out->n] = (uint32_t)interval;
        out->elems_per_s[out->n++] = speed;
    }
    out->available_nbytes = json_number_value(json_object_get(json_object_get(found, "memory"), "available_nbytes"));
    row = json_object_get(found, "own");
    out->own_ns = json_number_value(json_object_get(row, "ns_per_elem"));
    out->own_spread = spread_of(row, "least_ns_per_elem", "most_ns_per_elem");
    if (!(out->own_ns >= 0 && out->own_ns < 1e9))
        out->own_ns = 0;
    out->link_gbs = read_link(found);
    json_decref(found);
    if (out->n == 0)
        return zf_cli_complain(path, "has no speed of replays: make it with `zf doctor --json > %s`", path);
    return 0;
}

static double traffic_nbytes(uint32_t interval, double grad_nbytes) {
    return STATE_TRAFFIC_NBYTES + grad_nbytes * interval + grad_nbytes;
}

/* Between two measured windows: by the bytes per second of the nearest shorter one. */
double plan_replay_speed(const plan_options_t *options, const plan_speeds_t *speeds, uint32_t interval,
                         double grad_nbytes) {
    double nbytes_per_s = options->host_gbs * 1e9;
    uint32_t best = 0;
    for (uint32_t i = 0; i < speeds->n; i++)
        if (speeds->intervals[i] <= interval && speeds->intervals[i] >= best) {
            best = speeds->intervals[i];
            nbytes_per_s = speeds->elems_per_s[i] / best * traffic_nbytes(best, 2);
        }
    return nbytes_per_s / traffic_nbytes(interval, grad_nbytes) * interval / options->n_local_ranks;
}

double plan_forward_s(const plan_options_t *options, const model_t *model) {
    double per_token =
        2 * (double)model->n_elems + 4 * (double)model->n_layers * (double)model->hidden * options->sequence;
    return options->tokens / options->n_micro_batches * per_token / (options->tflops * 1e12 * options->efficiency);
}

double plan_backward_factor(const plan_options_t *options) { return options->recomputes ? 3 : 2; }

/* ---- buckets ----------------------------------------------------------------------------------------------------- */

/* As the plugin cuts them (plan/bucket.c), from the end of the model: larger parameters are one of their own; of
 * several ranks the last halve what is left, down to a sixteenth. */
static int is_enough(double open, double left, double next, double wanted, int halves) {
    return open >= wanted ||
           (halves && open * 16 >= wanted && (open >= left || (next > open && (next >= wanted || left <= wanted))));
}

static uint32_t cut_buckets(const model_t *model, double wanted_elems, int halves, double *out_elems) {
    uint32_t n = 0;
    double least = (double)model->n_elems / (TIMELINE_MAX_BUCKETS / 4.0), open = 0, left = (double)model->n_elems;
    if (wanted_elems < least)
        wanted_elems = least;
    for (uint32_t i = model->n; i-- > 0;) {
        double next = i > 0 ? (double)model->params[i - 1].n_elems : 0;
        open += (double)model->params[i].n_elems;
        left -= (double)model->params[i].n_elems;
        if (i > 0 && !is_enough(open, left, next, wanted_elems, halves))
            continue;
        out_elems[n++] = open;
        open = 0;
    }
    for (uint32_t i = 0; i < n / 2; i++) { /* to forward order */
        double elems = out_elems[i];
        out_elems[i] = out_elems[n - 1 - i];
        out_elems[n - 1 - i] = elems;
    }
    return n;
}

static double bucket_elems(const plan_options_t *options, const model_t *model) {
    double wanted = (double)BUCKET_ELEMS_PER_RANK * options->n_ranks;
    if (options->n_ranks == 1) /* no exchange: gradients and values travel in much smaller pieces */
        return (double)model->n_elems / LEAST_BUCKETS / 8;
    return wanted > USUAL_BUCKET_ELEMS ? wanted : USUAL_BUCKET_ELEMS;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static double share_of(uint64_t part, uint64_t whole) { return whole ? (double)part / (double)whole : 0; }

int plan_time(const plan_options_t *options, const plan_speeds_t *speeds, const model_t *model, uint32_t stage,
              plan_row_t *row) {
    static double elems[TIMELINE_MAX_BUCKETS];
    double nbytes = (double)model->nbytes / (double)model->n_elems, forward = plan_forward_s(options, model);
    double selected = (double)row->bytes.n_selected_elems / (double)model->n_elems;
    int is_sharded = stage > 0 && options->n_ranks > 1;
    double own = (double)model->n_elems / (is_sharded ? options->n_ranks : 1);
    timeline_args_t args = {.n_buckets = cut_buckets(model, bucket_elems(options, model), options->n_ranks > 1, elems),
                            .bucket_elems = elems,
                            .forward_s = forward,
                            .backward_s = forward * plan_backward_factor(options),
                            .n_micro_batches = (uint32_t)options->n_micro_batches,
                            .update_interval = row->update_interval,
                            .publish_lag = row->publish_lag,
                            .fetches = !options->has_no_fetch && !is_sharded,
                            .n_ranks = options->n_ranks,
                            .is_sharded = is_sharded,
                            .grad_nbytes = nbytes,
                            .value_nbytes = nbytes,
                            .reduce_factor = is_sharded ? 1 + selected : 2,
                            .down_nbytes_per_s = options->link_gbs * 1e9,
                            .up_nbytes_per_s = options->link_gbs * 1e9,
                            .most_close =
                                is_sharded ? share_of(row->bytes.most_close_elems, row->bytes.n_owned_elems) : 0,
                            .replay_elems_per_s = plan_replay_speed(options, speeds, row->update_interval, nbytes),
                            /* as plugin/instance/layout.c has it */
                            .spare_elems = row->publish_lag ? 0 : fmax(own - row->resident_elems, 0) * 2 / 3,
                            .resident_elems = row->resident_elems,
                            .net_nbytes_per_s = options->net_gbs * 1e9,
                            .net_latency_s = options->latency_us * 1e-6,
                            .own_s = options->own_ns * 1e-9 * (double)model->n_elems};
    return timeline_run(&args, &row->time) ? 0 : zf_cli_complain(model->path, "no memory for its timeline");
}

double plan_waits_s(const timeline_t *time) { return time->step_s - time->compute_s - time->own_s; }

const plan_row_t *plan_choose(const plan_row_t *rows, uint32_t n, double max_stall, double most_host_nbytes) {
    const plan_row_t *quickest = NULL;
    for (uint32_t lag = 0; lag <= 1; lag++)
        for (uint32_t i = 0; i < n; i++) {
            const plan_row_t *row = &rows[i];
            if (!row->is_possible || row->publish_lag != lag || row->update_interval > LONGEST_CHOSEN ||
                (double)row->bytes.host_nbytes > most_host_nbytes)
                continue;
            if (plan_waits_s(&row->time) <= max_stall * row->time.step_s)
                return row;
            if (!quickest || row->time.step_s < quickest->time.step_s)
                quickest = row;
        }
    return quickest;
}
