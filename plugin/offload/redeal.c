/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/offload/redeal.c - cohorts dealt again (contract in redeal.h).
 *
 * State, slots and the device's tables lie by blocks, so that only lists change: which matrices and chunks a cohort
 * has, how the pool is cut, and every array that is numbered by cohorts. */
#include "offload/redeal.h"

#include "base/error.h"
#include "offload/tables.h"
#include "offload/workers.h"
#include "schedule/window.h"

int zfi_redeal_fits(const zfi_run_t *run) {
    return (int)(run->plan.room.intervals >> (run->engine->config.update_interval - 1) & 1);
}

/* Our own stream takes the lists there: the host's may be held up, and all of its work for us is over. */
static zf_status_t send_lists(zfi_run_t *run) {
    zfi_stream_t *hosts = run->engine->stream;
    zf_status_t st;
    run->engine->stream = run->engine->own_stream;
    st = zfi_tables_list(run);
    run->engine->stream = hosts;
    return st;
}

/* The newest choice was of all cohorts, so last_choice stands; its row, too. */
static void begin_windows(zfi_run_t *run) {
    zfi_clock_t *clock = &run->clock;
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++) {
        clock->window_first[c] = clock->t + 1;
        clock->window_table[c] = 0;
        run->writes.publish[c] = run->writes.any;
    }
    zfi_window_clear_slots(run);
}

zf_status_t zfi_redeal(zfi_run_t *run) {
    zfi_engine_t *engine = run->engine;
    zf_error_t error = {.struct_size = sizeof error};
    zf_status_t st = zfi_plan_deal(&run->plan, &engine->config);
    if (!st)
        st = send_lists(run);
    if (st) {
        zfi_error_scoped(&error, st, ZF_SCOPE_INSTANCE, 0, "fit", "cohorts could not be dealt for windows of %u steps",
                         engine->config.update_interval);
        zfi_poison(engine, &error);
        return st;
    }
    begin_windows(run);
    zfi_workers_restart(run->workers, run->clock.next_job);
    zfi_meter_deal(&engine->meter, run->plan.n_cohorts, run->clock.t + run->clock.steps_before);
    for (uint32_t c = 0; c < run->plan.n_cohorts; c++)
        if (run->plan.cohorts[c].n_chunks == 0)
            zfi_meter_close(&engine->meter, c, UINT64_MAX);
    atomic_store(&engine->count.slots_peak, 0);
    atomic_store(&engine->count.slot_pieces, run->plan.n_pieces);
    zfi_window_prepare(run);
    return ZF_OK;
}
