/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_late_seal.c - the device is slow to take the digests of weights that the host accepts: a host that
 * writes as soon as the hook has returned must be found all the same.
 *
 * The kernel that takes them is wrapped (-Wl,--wrap). It is held until the test has made its edit, or, where the hook
 * waits for it as it should, for as long as HELD_US. */
#define _GNU_SOURCE
#include <check.h>
#include <stdatomic.h>
#include <unistd.h>

#include "kernels.h"
#include "launch.h"
#include "state_rig.h"
#include "suite.h"
#include "zf/ext/draft/digest.h"

enum { HELD_US = 300000, POLL_US = 500 };

static const zt_shape_t shapes[] = {{.rows = 24, .cols = 40}, {.rows = 17, .cols = 30}};
static const char config[] = "[zenflow]\nfull_warm_up_rounds = 1\nupdate_interval = 3\non_overwrite = ask\n";

static zt_rig_t rig;
static _Atomic int holds, is_edited;

void __real_zfi_cpu_check(const zfi_kernels_t *kernels, const void *raw);
void __wrap_zfi_cpu_check(const zfi_kernels_t *kernels, const void *raw);

void __wrap_zfi_cpu_check(const zfi_kernels_t *kernels, const void *raw) {
    const zfi_check_args_t *args = raw;
    if (args->seals && atomic_exchange(&holds, 0))
        for (int us = 0; us < HELD_US && !atomic_load(&is_edited); us += POLL_US)
            usleep(POLL_US);
    __real_zfi_cpu_check(kernels, raw);
}

static uint8_t is_written(uint32_t flags) {
    const zf_digest_ext_t *ext = rig.zf->get_extension(ZF_EXT_DIGEST);
    uint8_t found = 0;
    ZT_OK(&rig, ext->written(rig.inst, flags, &rig.params[0].id, 1, &found, &rig.err));
    return found;
}

static void hold_next(void) {
    atomic_store(&is_edited, 0);
    atomic_store(&holds, 1);
}

/* One bit of one element; then it must be found. */
static void edit_and_ask(void) {
    rig.params[0].visible[0] ^= 1;
    atomic_store(&is_edited, 1);
    ck_assert_int_eq(atomic_load(&holds), 0);
    ck_assert_uint_eq(is_written(ZF_WRITTEN_LOOK), 1);
}

static void open_rig(int has_queue) {
    zt_rig_start(&rig, shapes, 2);
    if (has_queue)
        zt_rig_use_queue(&rig);
    zt_rig_open(&rig, config, has_queue ? 0 : ZF_CREATE_CAP_FETCH);
    zt_rig_step(&rig);
    zt_rig_sync(&rig);
    ZT_OK(&rig, zt_quiesce(&rig, ZF_QUIESCE_DRAIN));
}

static void end_written(int has_queue) {
    open_rig(has_queue);
    hold_next();
    ck_assert_uint_eq(is_written(ZF_WRITTEN_ACCEPT), 0);
    edit_and_ask();
    zt_rig_end(&rig);
}

START_TEST(written) {
    end_written(0);
    end_written(1);
}
END_TEST

START_TEST(params_changed) {
    open_rig(0);
    hold_next();
    ZT_OK(&rig, zt_changed(&rig, rig.params[0].id, 0));
    edit_and_ask();
    zt_rig_end(&rig);
}
END_TEST

/* The first set, and another one. */
START_TEST(bind_params) {
    zt_rig_start(&rig, shapes, 2);
    zt_rig_create(&rig, config, ZF_CREATE_CAP_FETCH);
    hold_next();
    zt_rig_bind(&rig);
    edit_and_ask();
    ck_assert_uint_eq(is_written(ZF_WRITTEN_ACCEPT), 1);
    rig.decls[1].home = ZF_HOME_HOST;
    hold_next();
    zt_rig_bind(&rig);
    edit_and_ask();
    zt_rig_end(&rig);
}
END_TEST

START_TEST(load) {
    open_rig(0);
    ZT_OK(&rig, zt_save(&rig, NULL, zt_state_dir(), 0, NULL));
    hold_next();
    ZT_OK(&rig, zt_load(&rig, NULL, zt_state_dir(), 0, NULL));
    edit_and_ask();
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("late_seal", written, params_changed, bind_params, load)
