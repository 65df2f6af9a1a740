/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_residency.c - zf.residency/1: what goes back, what it costs, what is refused meanwhile, and what
 * happens where memory does not come back. That bits stay the same is zf-conform exact's. */
#include <string.h>
#include <sys/mman.h>

#include "instance/instance.h"
#include "state_rig.h"
#include "suite.h"
#include "zf/ext/residency.h"

static const zt_shape_t shapes[] = {{.rows = 96, .cols = 130},
                                    {.rows = 17},
                                    {.rows = 64, .cols = 48, .is_bf16 = 1, .group = 1},
                                    {.rows = 9, .cols = 7, .channels = ZF_CHANNELS_ROWS, .group = 2},
                                    {.rows = 6, .cols = 9, .home = ZF_HOME_RESIDENT}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static const char config[] = "[zenflow]\ntopk_ratio = 0.1\nupdate_interval = 4\nfull_warm_up_rounds = 2\n"
                             "select_interval = 3\npublish_lag = 1\n[host]\nthreads = 2\n";

static zt_rig_t rig, other;

static void open_rig(zt_rig_t *to, uint32_t flags) { zt_rig_make(to, shapes, N_SHAPES, config, flags); }

static const zf_residency_ext_t *residency(void) { return zt_table()->get_extension(ZF_EXT_RESIDENCY); }
static zf_status_t release(uint32_t what) { return residency()->release(rig.inst, what, &rig.stream, NULL, &rig.err); }
static zf_status_t resume(void) { return residency()->resume(rig.inst, &rig.stream, NULL, &rig.err); }

/* ---- a device that counts, and fails on demand ------------------------------------------------------------------ */

static const zfi_device_ops_t *real;
static zfi_device_ops_t watched;
static struct {
    uint64_t down_nbytes, up_nbytes, n_copies; /* between the device and its images */
    int fails;
} seen;

static zf_status_t enqueue(zfi_device_t *device, zfi_stream_t *stream, const zfi_op_t *ops, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < ops[i].n_ranges; r++) {
            seen.n_copies++;
            *(ops[i].kind == ZFI_OP_UP ? &seen.up_nbytes : &seen.down_nbytes) += ops[i].ranges[r].nbytes;
        }
    return real->enqueue(device, stream, ops, n);
}

static zf_status_t failing_resume(zfi_device_t *device, const zfi_block_t *blocks, uint32_t n, zf_error_t *err) {
    if (seen.fails-- > 0) {
        err->status = ZF_ERR_MEMORY;
        strcpy(err->message, "planted: no memory");
        return ZF_ERR_MEMORY;
    }
    return real->resume(device, blocks, n, err);
}

static void nothing(void *args) { (void)args; }

/* The table is exchanged once the control thread, which reads it, has done all that it was told. */
static void use(const zfi_device_ops_t *ops) {
    ck_assert_int_eq(zfi_serial_call(rig.inst->engine.control, nothing, NULL, 0), ZF_OK);
    rig.inst->engine.ops = ops;
}

static void watch(void) {
    real = rig.inst->engine.ops;
    watched = *real;
    watched.enqueue = enqueue;
    watched.resume = failing_resume;
    use(&watched);
    memset(&seen, 0, sizeof seen);
}

static void unwatch(void) { use(real); }

/* ---- what it gives and costs ------------------------------------------------------------------------------------- */

/* Pages of the device's memory that exist. */
static uint64_t n_pages(void) {
    const zfi_residency_t *held = &rig.inst->engine.residency;
    uint64_t n = 0;
    for (uint32_t i = 0; i < held->n; i++)
        for (uint64_t at = 0; held->all[i].is_device && at < held->all[i].nbytes; at += 4096) {
            unsigned char is_there;
            ck_assert_int_eq(mincore(held->all[i].memory + at, 1, &is_there), 0);
            n += is_there & 1;
        }
    return n;
}

static uint64_t device_nbytes(void) {
    const zfi_residency_t *held = &rig.inst->engine.residency;
    uint64_t n = 0;
    for (uint32_t i = 0; i < held->n; i++)
        n += held->all[i].is_device ? held->all[i].nbytes : 0;
    return n;
}

ZT_TEST(all_of_it_goes_back_by_one_copy_in_each_direction) {
    open_rig(&rig, ZF_CREATE_CAP_RELEASE);
    zt_rig_steps(&rig, 9);
    ck_assert_uint_gt(n_pages(), 0);
    watch();
    ZT_OK(&rig, release(ZF_RELEASE_DEVICE));
    ck_assert_uint_eq(seen.up_nbytes, 0);
    ck_assert_uint_ge(seen.down_nbytes, device_nbytes());
    ck_assert_uint_le(seen.down_nbytes, device_nbytes() + 4096); /* counts of residents, which every DRAIN reads */
    ck_assert_uint_eq(n_pages(), 0);
    ck_assert_uint_eq(zt_rig_counter(&rig, "device_measured_nbytes"), 0);
    memset(&seen, 0, sizeof seen);
    ZT_OK(&rig, resume());
    ck_assert(seen.up_nbytes == device_nbytes() && seen.down_nbytes == 0);
    unwatch();
    ck_assert_uint_eq(zt_rig_counter(&rig, "device_measured_nbytes"), zt_rig_counter(&rig, "device_planned_nbytes"));
    zt_rig_steps(&rig, 3);
    zt_rig_end(&rig);
}

ZT_TEST(who_asks_pays) {
    uint64_t planned[2];
    open_rig(&rig, 0);
    uint64_t host = rig.layout.host_nbytes, device = rig.layout.device_nbytes;
    ck_assert_uint_eq(rig.inst->engine.residency.n, 0);
    zt_rig_end(&rig);
    open_rig(&rig, ZF_CREATE_CAP_RELEASE);
    ck_assert_uint_eq(rig.layout.device_nbytes, device);
    ck_assert_uint_eq(rig.layout.host_nbytes, host + device);
    ck_assert_uint_eq(zt_rig_counter(&rig, "host_planned_nbytes"), zt_rig_counter(&rig, "host_measured_nbytes"));
    for (int i = 0; i < 2; i++) {
        zf_plan_t plan = zt_rig_plan(&rig, config, i ? ZF_CREATE_CAP_RELEASE : 0, 0, 0);
        planned[i] = plan.host_nbytes;
    }
    ck_assert(planned[0] == host && planned[1] == host + device);
    zt_rig_end(&rig);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

/* What hooks say meanwhile, zf-conform abi asks. */
ZT_TEST(refused_by_name) {
    static zt_memory_store_t store;
    zt_memory_store_start(&store);
    open_rig(&rig, 0);
    zt_refused(&rig.err, release(ZF_RELEASE_DEVICE), ZF_ERR_STATE, "ZF_CREATE_CAP_RELEASE");
    zt_rig_end(&rig);
    open_rig(&rig, ZF_CREATE_CAP_RELEASE);
    zt_rig_steps(&rig, 5);
    zt_refused(&rig.err, release(0), ZF_ERR_UNSUPPORTED_FIELD, "DEVICE");
    zt_refused(&rig.err, release(ZF_RELEASE_PINNED), ZF_ERR_UNSUPPORTED_FIELD, "DEVICE");
    zt_refused(&rig.err, release(4 | ZF_RELEASE_DEVICE), ZF_ERR_UNSUPPORTED_FIELD, "what = 0x5");
    zt_refused(&rig.err, resume(), ZF_ERR_STATE, "nothing is released");
    ZT_OK(&rig, release(ZF_RELEASE_DEVICE | ZF_RELEASE_PINNED));
    zt_refused(&rig.err, release(ZF_RELEASE_DEVICE), ZF_ERR_STATE, "released");
    zt_refused(&rig.err, zt_load(&rig, &store.table, NULL, 0, NULL), ZF_ERR_STATE, "released");
    ZT_OK(&rig, resume());
    zt_refused(&rig.err, resume(), ZF_ERR_STATE, "nothing is released");
    zt_rig_steps(&rig, 3);
    ZT_OK(&rig, release(ZF_RELEASE_DEVICE)); /* destroyed as it is */
    zt_rig_end(&rig);
}

/* An edit that nobody announced would be lost by a load. */
ZT_TEST(an_edit_meanwhile_is_found) {
    static float masters[96 * 130];
    open_rig(&rig, ZF_CREATE_CAP_RELEASE);
    zt_rig_steps(&rig, 5);
    ZT_OK(&rig, release(ZF_RELEASE_DEVICE));
    ZT_OK(&rig, zt_try_export(&rig, 0, masters));
    ((float *)(void *)rig.params[0].visible)[77] += 1;
    zt_refused(&rig.err, zt_try_export(&rig, 0, masters), ZF_ERR_OVERWRITTEN, rig.params[0].name);
    ZT_OK(&rig, resume());
    ck_assert_int_eq(zt_rig_try_step(&rig), ZF_ERR_OVERWRITTEN); /* it is known after that, too */
    zt_rig_end(&rig);
}

/* ---- where it does not come back --------------------------------------------------------------------------------- */

ZT_TEST(a_resume_that_fails_may_be_called_again) {
    open_rig(&rig, ZF_CREATE_CAP_RELEASE);
    open_rig(&other, 0);
    zt_rig_steps(&rig, 6);
    zt_rig_steps(&other, 6);
    for (uint32_t what = ZF_RELEASE_DEVICE; what <= 3; what += 2) {
        ZT_OK(&rig, release(what));
        watch();
        seen.fails = 2;
        zt_refused(&rig.err, resume(), ZF_ERR_MEMORY, "planted");
        zt_refused(&rig.err, resume(), ZF_ERR_MEMORY, "planted");
        zt_refused(&rig.err, zt_rig_submit(&rig, 0, NULL), ZF_ERR_STATE, "released");
        ZT_OK(&rig, resume());
        unwatch();
        zt_rig_steps(&rig, 3);
        zt_rig_steps(&other, 3);
        zt_state_check_equal(&rig, &other, "after a resume that failed twice");
    }
    zt_rig_end(&rig);
    zt_rig_end(&other);
}

ZT_SUITE("residency")
