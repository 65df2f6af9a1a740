/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/step/guard.c - checks of what is overwritten (contract in guard.h). */
#include "step/guard.h"

int zfi_guard_is_on(const zfi_device_state_t *dev) { return dev->head.digests != NULL; }

int zfi_guard_checks(const zfi_device_state_t *dev) { return dev->checks_itself; }

enum { LOOKS, SEALS };

/* Matrices listed_matrices[first, first + n). */
static void add_check(zfi_engine_t *engine, zfi_device_state_t *dev, uint32_t first, uint32_t n, int how) {
    zfi_check_args_t args = {dev->data, first, n, how == SEALS};
    if (n && zfi_guard_is_on(dev))
        zfi_list_add(&engine->to_device, zfi_op_launch(ZFI_KERNEL_CHECK, &args, sizeof args));
}

/* The first of a cohort's list that is numbered `matrix` or higher. */
static uint32_t lower_bound(const zfi_plan_t *plan, uint32_t cohort, uint32_t matrix) {
    uint32_t first = plan->cohorts[cohort].first_matrix;
    return first + zfi_first_of(plan->cohort_matrices + first, 1, plan->cohorts[cohort].n_matrices, matrix);
}

/* Matrices [first, end), those of one cohort. */
static void check_cohort(const zfi_device_side_t *side, uint32_t cohort, uint32_t first, uint32_t end, int how) {
    const zfi_plan_t *plan = side->plan;
    uint32_t from = lower_bound(plan, cohort, first), to = lower_bound(plan, cohort, end);
    add_check(side->engine, side->dev, from, to - from, how);
}

void zfi_guard_check(const zfi_device_side_t *side) {
    if (zfi_guard_checks(side->dev))
        add_check(side->engine, side->dev, 0, side->plan->n_matrices, LOOKS);
}

void zfi_guard_check_closes(const zfi_device_side_t *side, const zfi_close_t *closes, uint32_t n, uint32_t first,
                            uint32_t end) {
    for (uint32_t i = 0; i < n && zfi_guard_checks(side->dev); i++)
        check_cohort(side, closes[i].cohort, first, end, LOOKS);
}

uint64_t zfi_guard_n_foreign(zfi_engine_t *engine) {
    return __atomic_load_n(&engine->totals->n_params_overwritten, __ATOMIC_ACQUIRE);
}

uint32_t zfi_guard_next_foreign(const uint8_t *overwritten, uint32_t n_params, uint32_t from) {
    while (from < n_params && !__atomic_load_n(&overwritten[from], __ATOMIC_RELAXED))
        from++;
    return from;
}

/* ---- accepted ---------------------------------------------------------------------------------------------------- */

static void check_matrices(const zfi_device_side_t *side, uint32_t first, uint32_t end, int how) {
    if (first == 0 && end == side->plan->n_matrices) {
        add_check(side->engine, side->dev, 0, side->plan->n_matrices, how);
        return;
    }
    for (uint32_t c = 0; c <= side->plan->n_cohorts && first < end; c++)
        check_cohort(side, c, first, end, how);
}

/* The first matrix of a parameter, or of one that follows; param = side->n_params: behind all. */
static uint32_t first_matrix(const zfi_device_side_t *side, uint32_t param) {
    return param < side->n_params ? side->params[param].first_matrix : side->plan->n_matrices;
}

void zfi_guard_forget(const zfi_device_side_t *side, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++)
        if (__atomic_exchange_n(&side->dev->overwritten[i], 0, __ATOMIC_RELAXED))
            __atomic_fetch_sub(&side->engine->totals->n_params_overwritten, 1, __ATOMIC_RELAXED);
    zfi_list_end_copy(&side->engine->to_device);
    zfi_list_add(&side->engine->to_device, zfi_op_fill(side->dev->head.is_foreign + first, end - first));
}

void zfi_guard_look(const zfi_device_side_t *side, uint32_t first, uint32_t end) {
    if (!zfi_guard_checks(side->dev))
        zfi_guard_forget(side, first, end); /* what is known to be foreign would not be read */
    check_matrices(side, first_matrix(side, first), first_matrix(side, end), LOOKS);
}

void zfi_guard_accept(const zfi_device_side_t *side, uint32_t first, uint32_t end) {
    zfi_guard_forget(side, first, end);
    check_matrices(side, first_matrix(side, first), first_matrix(side, end), SEALS);
}

void zfi_guard_accept_matrices(const zfi_device_side_t *side, uint32_t param, uint32_t first, uint32_t end) {
    int looks = zfi_guard_checks(side->dev) || side->dev->overwritten[param];
    zfi_guard_forget(side, param, param + 1);
    check_matrices(side, first, end, SEALS);
    if (!looks)
        return;
    check_matrices(side, first_matrix(side, param), first, LOOKS);
    check_matrices(side, end, first_matrix(side, param + 1), LOOKS);
}

zf_status_t zfi_guard_start(const zfi_device_side_t *side) {
    zfi_engine_t *engine = side->engine;
    if (side->dev->head.found)
        zfi_list_add(&engine->to_device,
                     zfi_op_fill(side->dev->head.found, side->plan->n_matrices * sizeof *side->dev->head.found));
    zfi_guard_accept(side, 0, side->n_params);
    return zfi_synchronise(engine, 0);
}
