/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_late_signal.c - a worker that has replayed its chunk is slow to say so, while another one has said
 * it for both: a load in between is of another clock, which the late word must not move.
 *
 * zfi_timeline_signal is wrapped (-Wl,--wrap): the first word of a worker is held for as long as a load takes. */
#include <check.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "instance/instance.h"
#include "state_rig.h"
#include "suite.h"

enum { HELD_US = 400000 };

static _Atomic int holds;

void __real_zfi_timeline_signal(zfi_timeline_t *timeline, uint64_t value);
void __wrap_zfi_timeline_signal(zfi_timeline_t *timeline, uint64_t value);

void __wrap_zfi_timeline_signal(zfi_timeline_t *timeline, uint64_t value) {
    if (strcmp(timeline->name, "jobs") == 0 && atomic_exchange(&holds, 0))
        usleep(HELD_US);
    __real_zfi_timeline_signal(timeline, value);
}

START_TEST(a_load_waits_for_it) {
    static zt_rig_t rig;
    static zt_memory_store_t store;
    zt_state_saved(&rig, &store, zt_state_configs[0], 1, 0);
    zt_state_steps(&rig, 9);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
    atomic_store(&holds, 1);
    zt_state_steps(&rig, 1);
    ZT_OK(&rig, zt_load(&rig, &store.table, NULL, 0, NULL));
    ck_assert_int_eq(atomic_load(&holds), 0);
    ck_assert_uint_eq(zfi_timeline_now(&rig.inst->engine.lines.jobs), rig.inst->run->clock.next_job);
    zt_rig_end(&rig);
    zt_memory_store_end(&store);
}
END_TEST

ZT_MAIN("late_signal", a_load_waits_for_it)
