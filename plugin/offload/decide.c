/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/decide.c - the choice of update_interval = fit (contract in decide.h).
 *
 * Warm-up replays windows of one slot. Longer ones are slower by what they read more, or by what they compute: a short
 * trial of the kernel in the cache says how fast that is, and the slower of the two counts (a roofline). */
#include "offload/decide.h"

#include <stdlib.h>
#include <string.h>

#include "offload/pace.h"
#include "offload/program.h"
#include "offload/redeal.h"

enum { LEAST_STEPS = 3, TRIAL_ELEMS = 8192, N_TRIALS = 5 };

/* ---- longer windows ---------------------------------------------------------------------------------------------- */

/* Bytes per element that a window of n_slots steps moves to and from memory. */
static double nbytes_of(const zfi_run_t *run, uint32_t n_slots) {
    const zfi_config_t *config = &run->engine->config;
    const zfi_chunk_t *chunk = &run->plan.chunks[0];
    double slots = n_slots * (double)zfi_dtype_nbytes(chunk->grad_dtype);
    double state = 2.0 * (sizeof(float) + zfi_n_moments(run->engine) * (double)zfi_moment_nbytes(config));
    return state + slots + (double)zfi_dtype_nbytes(chunk->dtype);
}

/* Memory of a trial: masters, moments, one gradient, what is published. */
typedef struct trial {
    float w[TRIAL_ELEMS], m[TRIAL_ELEMS], v[TRIAL_ELEMS], grad[TRIAL_ELEMS], visible[TRIAL_ELEMS];
} trial_t;

/* Seconds per element of one thread in its cache. */
static double try_slots(const zfi_run_t *run, trial_t *trial, uint32_t n_slots) {
    const zfi_chunk_t *chunk = &run->plan.chunks[0];
    zfi_rule_t rule = (zfi_rule_t)run->engine->rule;
    zfi_hyper_t hyper = {1e-6, 0.9, 0.999, 1e-8, 0.0};
    zfi_scalars_t scalars[ZFI_FIT_MOST];
    const void *grads[ZFI_FIT_MOST];
    uint64_t best = UINT64_MAX;
    zfi_replay_t job = {.w = trial->w,
                        .m = trial->m,
                        .v = zfi_n_moments(run->engine) > 1 ? trial->v : NULL,
                        .grads = grads,
                        .scalars = scalars,
                        .n_slots = n_slots,
                        .grad_dtype = chunk->grad_dtype,
                        .visible = trial->visible,
                        .visible_dtype = chunk->dtype,
                        .n_elems = TRIAL_ELEMS,
                        .moments = (zfi_moments_t)run->engine->config.moments};
    for (uint32_t k = 0; k < n_slots; k++) {
        scalars[k] = zfi_rule_scalars(rule, &hyper, 1.0f, k + 1);
        grads[k] = trial->grad;
    }
    for (int i = 0; i < N_TRIALS; i++) {
        uint64_t start = zfi_now_ns(), ns;
        run->engine->kernels->replay[rule](&job);
        ns = zfi_now_ns() - start;
        best = ns < best ? ns : best;
    }
    return 1e-9 * (double)best / TRIAL_ELEMS;
}

static void find_replays(const zfi_run_t *run, zfi_fit_times_t *times) {
    int has_trial = run->engine->rule != ZF_RULE_CALLBACK && !zfi_is_mean(&run->engine->config);
    trial_t *trial = has_trial ? calloc(1, sizeof *trial) : NULL;
    double per_worker = (double)run->plan.n_elems / run->engine->n_workers;
    if (trial)
        memset(trial->grad, 0x3c, sizeof trial->grad); /* no zeros, no denormals, in any type */
    for (uint32_t k = 2; k <= ZFI_FIT_MOST; k++) {
        double read = times->replay_s[1] * nbytes_of(run, k) / nbytes_of(run, 1);
        double compute = trial ? try_slots(run, trial, k) * per_worker : 0;
        if (run->engine->rule == ZF_RULE_CALLBACK && !zfi_is_mean(&run->engine->config))
            compute = k * times->replay_s[1];
        times->replay_s[k] = read > compute ? read : compute;
    }
    free(trial);
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

typedef struct decision {
    zfi_run_t *run;
    zfi_fit_times_t times;
    zfi_fit_cost_t costs[ZFI_FIT_CHOICES];
    uint32_t n_steps, number;
    uint32_t most; /* steps of the longest window that has room */
    zf_status_t st;
} decision_t;

/* Every rank has all ranks' costs, and takes the largest of each: so all choose alike. A rank that measured nothing
 * leaves all without; a rank whose memory admits shorter windows only (state/make.c) bounds all. */
static zf_status_t agree(decision_t *decision) {
    const zfi_engine_t *engine = decision->run->engine;
    zfi_member_t place = zfi_norm_member(engine);
    uint32_t n_ranks = place.n_ranks, rank = place.rank;
    typedef struct part {
        double n_steps, most;
        double costs[2 * ZFI_FIT_CHOICES];
    } part_t;
    part_t *all = calloc(n_ranks, sizeof *all);
    zfi_exchange_t what = {.purpose = ZF_COLLECTIVE_FOR_STEP,
                           .bucket = ZF_NO_ID,
                           .nbytes = sizeof *all,
                           .lane = ZFI_LANE_ENTERING,
                           .group = engine->norm_index};
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st;
    if (!all)
        return ZF_ERR_MEMORY;
    all[rank].n_steps = decision->n_steps;
    all[rank].most = decision->most;
    memcpy(all[rank].costs, decision->costs, sizeof decision->costs);
    what.recv = all;
    st = engine->comm_ops->exchange(engine->comm, &what, &err);
    if (st && st != ZF_ERR_POISONED)
        zfi_poison(decision->run->engine, &err);
    for (uint32_t r = 0; r < n_ranks && !st; r++) {
        decision->n_steps = all[r].n_steps < decision->n_steps ? (uint32_t)all[r].n_steps : decision->n_steps;
        decision->most = all[r].most < decision->most ? (uint32_t)all[r].most : decision->most;
        for (uint32_t i = 0; i < ZFI_FIT_CHOICES; i++) {
            zfi_fit_cost_t *cost = &decision->costs[i];
            cost->stall = all[r].costs[2 * i] > cost->stall ? all[r].costs[2 * i] : cost->stall;
            cost->extra = all[r].costs[2 * i + 1] > cost->extra ? all[r].costs[2 * i + 1] : cost->extra;
        }
    }
    if (!st || !engine->comm_ops->holds_memory(engine->comm))
        free(all);
    return st;
}

/* Tests give the choice themselves (SCHEDULE.md). */
static void take_given(const zfi_engine_t *engine, decision_t *decision) {
    for (uint32_t i = 0; i < ZFI_FIT_CHOICES; i++)
        if (zfi_fit_choices[i].interval == engine->given_fit.interval &&
            zfi_fit_choices[i].lag == engine->given_fit.lag)
            decision->number = i;
}

static void choose(void *raw) {
    decision_t *decision = *(decision_t **)raw;
    zfi_run_t *run = decision->run;
    const zfi_config_t *config = &run->engine->config;
    zfi_fp_mode_ieee();
    decision->n_steps = zfi_pace_times(run, &decision->times);
    if (decision->n_steps < LEAST_STEPS || !(decision->times.step_s > 0))
        decision->n_steps = 0;
    if (decision->n_steps && run->plan.n_chunks) { /* a rank that keeps nothing costs nothing */
        find_replays(run, &decision->times);
        zfi_fit_costs(&decision->times, config->can_fetch, decision->costs);
    }
    decision->most = config->update_interval;
    decision->st = agree(decision);
    decision->number = zfi_fit_choose(config, decision->most, decision->n_steps ? decision->costs : NULL);
    if (run->engine->given_fit.interval && run->engine->given_fit.interval <= decision->most)
        take_given(run->engine, decision);
}

static void report(const zfi_run_t *run, const decision_t *decision) {
    zfi_engine_t *engine = run->engine;
    const zfi_config_t *config = &engine->config;
    const zfi_fit_times_t *times = &decision->times;
    if (!decision->n_steps) {
        zfi_log(
            engine, ZF_LOG_INFO, "fit",
            "update_interval = %u, publish_lag = %u (fit: warm-up of %u steps is too short to measure; it takes %d)",
            config->update_interval, config->publish_lag, config->full_warm_up_rounds, LEAST_STEPS + 1);
        return;
    }
    zfi_log(engine, ZF_LOG_INFO, "fit",
            "update_interval = %u, publish_lag = %u (fit: expects the trainer to wait %.1f %% of a step; step %.2f ms, "
            "gradients down +%.2f ms, replay of all %.2f ms with 1 slot, %.2f ms with %u, on the device after %.2f ms, "
            "merged in %.2f ms)",
            config->update_interval, config->publish_lag, 100 * decision->costs[decision->number].stall,
            1e3 * times->step_s, 1e3 * times->down_s, 1e3 * times->replay_s[1],
            1e3 * times->replay_s[config->update_interval], config->update_interval, 1e3 * times->travel_s,
            1e3 * times->merge_s);
}

zf_status_t zfi_decide(zfi_run_t *run) {
    zfi_engine_t *engine = run->engine;
    decision_t decision = {.run = run}, *args = &decision;
    zfi_fit_choice_t choice;
    zf_status_t st;
    if (!engine->config.is_interval_fit || run->clock.t < engine->config.full_warm_up_rounds)
        return ZF_OK;
    st = zfi_program_rest(run);
    if (!st)
        st = zfi_serial_call(engine->control, choose, &args, sizeof args);
    if (!st)
        st = decision.st;
    if (st)
        return st;
    choice = zfi_fit_choices[decision.number];
    pthread_mutex_lock(&engine->config_lock);
    zfi_config_pin(&engine->config, choice.interval, choice.lag);
    pthread_mutex_unlock(&engine->config_lock);
    st = zfi_redeal(run);
    if (st)
        return st;
    if (decision.n_steps) {
        double step_ns = 1e9 * decision.times.step_s;
        atomic_store(&engine->count.fit_step_ns, (uint64_t)step_ns);
        atomic_store(&engine->count.fit_stall_ns, (uint64_t)(step_ns * decision.costs[decision.number].stall));
    }
    report(run, &decision);
    return ZF_OK;
}
