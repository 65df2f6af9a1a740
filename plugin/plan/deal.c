/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/deal.c - lots into cohorts, and the slot pool that their windows need (contract in plan.h; rules in
 * SCHEDULE.md). */
#include <stdlib.h>

#include "plan/plan.h"

static void give(zfi_plan_t *plan, const zfi_lot_t *lot, uint32_t number) {
    zfi_cohort_plan_t *cohort = &plan->cohorts[number];
    for (uint32_t i = lot->first_matrix; i < lot->first_matrix + lot->n_matrices; i++)
        plan->matrices[i].cohort = number;
    cohort->n_matrices += lot->n_matrices;
    cohort->nbytes += lot->nbytes;
}

static void deal_lots(zfi_plan_t *plan) {
    for (uint32_t i = 0; i < plan->n_lots; i++) {
        uint32_t least = 0;
        for (uint32_t c = 1; c < plan->n_cohorts; c++)
            if (plan->cohorts[c].nbytes < plan->cohorts[least].nbytes)
                least = c;
        give(plan, &plan->lots[i], least);
    }
}

static void deal_chunks(zfi_plan_t *plan) {
    for (uint32_t k = 0; k < plan->n_lots; k++) {
        const zfi_lot_t *lot = &plan->lots[k];
        uint32_t number = plan->matrices[lot->first_matrix].cohort;
        for (uint32_t i = lot->first_chunk; i < lot->first_chunk + lot->n_chunks; i++) {
            plan->chunks[i].cohort = number;
            plan->chunks[i].place = plan->cohorts[number].n_chunks++;
        }
    }
}

/* The resident matrices come last. */
static void list_cohorts(zfi_plan_t *plan) {
    uint32_t matrices = 0, chunks = 0;
    plan->max_close_chunks = 0;
    plan->cohorts[plan->n_cohorts].n_matrices = plan->n_resident;
    for (uint32_t c = 0; c <= plan->n_cohorts; c++) {
        zfi_cohort_plan_t *cohort = &plan->cohorts[c];
        cohort->first_matrix = matrices;
        cohort->first_chunk = chunks;
        matrices += cohort->n_matrices;
        chunks += cohort->n_chunks;
        cohort->n_matrices = 0;
        if (cohort->n_chunks > plan->max_close_chunks)
            plan->max_close_chunks = cohort->n_chunks;
    }
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        zfi_cohort_plan_t *cohort = &plan->cohorts[zfi_listed_cohort(plan, matrix)];
        plan->cohort_matrices[cohort->first_matrix + cohort->n_matrices++] = i;
    }
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        plan->cohort_chunks[plan->cohorts[plan->chunks[i].cohort].first_chunk + plan->chunks[i].place] = i;
}

/* ---- the slot pool ----------------------------------------------------------------------------------------------- */

enum { SLOT_ALIGN = 64, CACHE_SETS = 4096 };

/* One rank whose every step is exact: a step's replays are over before the next gradients come, as the host has read
 * the values, or waited. Where they are not (a parameter that was not fetched), the gradient waits where it was
 * delivered. Several ranks do not wait for one another's replays. */
static int has_one_slot(const zfi_plan_t *plan, const zfi_config_t *config) {
    return zfi_config_is_each_step_exact(config) && !plan->slices;
}

/* Slots that a cohort holds while the gradients of a step arrive, in the steady state, when the cohort that closed at
 * the step before is still being replayed: cohort c, which closed last `age` steps ago, holds age slots; the youngest
 * also its old window. */
static uint32_t slots_at(uint32_t interval, uint32_t phase, uint32_t c) {
    uint32_t age = (phase + interval - c % interval) % interval + 1; /* 1..S slots, this step's included */
    return age + (age == 1 ? interval : 0);
}

/* The most slots that cohorts hold at once, each counted weight[c] times, and the mean over the steps of the steady
 * state. */
static uint64_t clocked_peak(const zfi_plan_t *plan, uint32_t interval, const uint32_t *weight, uint64_t least,
                             double *mean) {
    uint64_t peak = least, sum = 0;
    for (uint32_t phase = 0; phase < interval; phase++) {
        uint64_t held = 0;
        for (uint32_t c = 0; c < plan->n_cohorts; c++)
            held += (uint64_t)weight[c] * slots_at(interval, phase, c);
        peak = held > peak ? held : peak;
        sum += held;
    }
    *mean = (double)sum / interval;
    return peak;
}

static uint64_t peak_of(const zfi_plan_t *plan, const zfi_config_t *config, const uint32_t *weight, double *mean) {
    uint64_t all = 0, always;
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        all += weight[c];
    *mean = (double)all;
    if (has_one_slot(plan, config))
        return all;
    if (!config->is_interval_auto)
        return clocked_peak(plan, config->update_interval, weight, 2 * all, mean); /* 2: warm-up */
    always = (config->update_interval + 1) * all; /* windows that data closes: all of them full, and one step more */
    *mean = (double)always;
    return always;
}

static uint64_t slot_nbytes(const zfi_chunk_t *chunk) {
    uint64_t n = chunk->n_elems * zfi_dtype_nbytes(chunk->grad_dtype);
    return (n + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

/* How far the cohorts have been spread over layers. */
typedef struct spread {
    uint32_t *next;  /* [n_cohorts] the first chunk of a cohort's list that is in no layer */
    uint64_t *rest;  /* [n_cohorts] bytes from there on */
    uint32_t *is_in; /* [n_cohorts] in the layer being filled */
} spread_t;

/* Bytes of a layer: as many as the cohort with the least left has. 0: nothing is left. */
static uint64_t least_rest(const zfi_plan_t *plan, const spread_t *spread) {
    uint64_t least = 0;
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        if (spread->rest[c] && (!least || spread->rest[c] < least))
            least = spread->rest[c];
    return least;
}

/* Moves what fits of a cohort's next chunks into a layer. Returns their bytes. */
static uint64_t fill_layer(zfi_plan_t *plan, uint32_t layer, uint32_t c, uint64_t most, spread_t *spread) {
    uint64_t at = 0;
    for (; spread->next[c] < plan->cohorts[c].n_chunks; spread->next[c]++) {
        zfi_chunk_t *chunk = &plan->chunks[zfi_cohort_chunk(plan, c, spread->next[c])];
        if (at + slot_nbytes(chunk) > most)
            break;
        chunk->layer = layer;
        chunk->slot_offset = at;
        at += slot_nbytes(chunk);
    }
    spread->rest[c] -= at;
    spread->is_in[c] = at > 0;
    return at;
}

static void add_layer(zfi_plan_t *plan, const zfi_config_t *config, uint64_t most, spread_t *spread) {
    zfi_layer_t *layer = &plan->layers[plan->n_layers];
    uint64_t nbytes = 0;
    double mean;
    for (uint32_t c = 0; c < plan->n_cohorts; c++) {
        uint64_t filled = fill_layer(plan, plan->n_layers, c, most, spread);
        nbytes = filled > nbytes ? filled : nbytes;
    }
    layer->piece_nbytes = nbytes + (nbytes % CACHE_SETS < 5 * SLOT_ALIGN ? 5 * SLOT_ALIGN : 0);
    layer->first_piece = plan->n_pieces;
    layer->n_pieces = (uint32_t)peak_of(plan, config, spread->is_in, &mean);
    layer->pool_offset = plan->pool_nbytes;
    plan->n_pieces += layer->n_pieces;
    plan->pool_nbytes += layer->n_pieces * layer->piece_nbytes;
    plan->n_layers++;
}

static void spread_chunks(zfi_plan_t *plan, const zfi_config_t *config, spread_t *spread) {
    uint64_t most;
    double mean;
    plan->n_layers = plan->n_pieces = 0;
    plan->pool_nbytes = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        spread->rest[plan->chunks[i].cohort] += slot_nbytes(&plan->chunks[i]);
    while ((most = least_rest(plan, spread)) > 0)
        add_layer(plan, config, most, spread);
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        spread->is_in[c] = plan->cohorts[c].n_chunks;
    plan->slots_peak = (double)peak_of(plan, config, spread->is_in, &mean) / (plan->n_chunks ? plan->n_chunks : 1);
    plan->slots_mean = mean / (plan->n_chunks ? plan->n_chunks : 1);
}

/* Every layer takes all that is left of one cohort, so there are no more of them than cohorts. */
static zf_status_t plan_pool(zfi_plan_t *plan, const zfi_config_t *config) {
    uint32_t n = plan->n_cohorts;
    spread_t spread = {calloc(n, sizeof *spread.next), calloc(n, sizeof *spread.rest), calloc(n, sizeof *spread.is_in)};
    zf_status_t st = ZF_ERR_MEMORY;
    plan->layers = calloc(n, sizeof *plan->layers);
    if (spread.next && spread.rest && spread.is_in && plan->layers) {
        spread_chunks(plan, config, &spread);
        st = ZF_OK;
    }
    free(spread.next);
    free(spread.rest);
    free(spread.is_in);
    return st;
}

/* ---- values on their way up -------------------------------------------------------------------------------------- */

enum { PASSING_NBYTES = 64 << 20, PASSING_SHARE = 4, PASSING_BUCKETS = 4 };

/* Whether nobody reads or checks a visible value between a close and its replay, which waits for its step's scalars:
 * they come behind all that the host did before. */
static int is_shown_by_workers(const zfi_plan_t *plan, const zfi_config_t *config) {
    const int looks = config->on_overwrite == ZFI_OVERWRITE_ERROR;
    return config->sees_edits && !plan->slices &&
           (plan->carries || (zfi_config_policy(config).published == ZFI_PUBLISHED_AT_STEP && !looks));
}

/* Places for the values of a close, until they have gone up. Where they go up in their own step, in order and waiting
 * for nothing but replays, a part of all is enough: a worker waits for a place, and no bucket for one that comes after
 * it. */
static void count_places(zfi_plan_t *plan, const zfi_config_t *config) {
    uint64_t least = (uint64_t)PASSING_BUCKETS * plan->bucket_chunks, n = plan->max_close_chunks / PASSING_SHARE;
    plan->n_value_places = plan->shown_by_workers ? 0 : plan->max_close_chunks;
    if (plan->shown_by_workers || zfi_config_policy(config).published != ZFI_PUBLISHED_AT_STEP ||
        !plan->publish_piece_nbytes)
        return;
    if (n > PASSING_NBYTES / plan->publish_piece_nbytes)
        n = PASSING_NBYTES / plan->publish_piece_nbytes;
    n = n > least ? n : least;
    plan->n_value_places = n < plan->max_close_chunks ? (uint32_t)n : plan->max_close_chunks;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

zf_status_t zfi_plan_deal(zfi_plan_t *plan, const zfi_config_t *config) {
    plan->n_cohorts = config->update_interval;
    plan->cohorts = calloc(plan->n_cohorts + 1u, sizeof *plan->cohorts);
    if (!plan->cohorts)
        return ZF_ERR_MEMORY;
    deal_lots(plan);
    return ZF_OK;
}

zf_status_t zfi_plan_deal_chunks(zfi_plan_t *plan, const zfi_config_t *config) {
    deal_chunks(plan);
    list_cohorts(plan);
    if (config->is_interval_auto)
        plan->max_close_chunks = plan->n_chunks; /* all cohorts may be ready at one step */
    plan->shown_by_workers = is_shown_by_workers(plan, config);
    count_places(plan, config);
    return plan->carries ? ZF_OK : plan_pool(plan, config);
}
