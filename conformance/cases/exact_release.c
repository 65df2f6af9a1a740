/* SPDX-License-Identifier: Apache-2.0 */
/* exact_release.c - zf.residency/1: the plugin's device memory goes and comes back between calls, on one rank also in
 * the middle of a step, and nothing else changes. What is allowed meanwhile is done at times: export, inspect, save,
 * destroy. */
#include "exact_run.h"

#include <string.h>

#include "exact_device.h"
#include "zf/ext/residency.h"

static const zf_residency_ext_t *extension(const zx_run_t *run) {
    return run->is_dry ? NULL : run->host.zf->get_extension(ZF_EXT_RESIDENCY);
}

/* Any other call is refused by name. */
static void try_in_vain(zx_run_t *run) {
    zx_where_t where = {.law = run->c->law, .what = "param_fetch while released", .element = UINT64_MAX};
    zf_error_t err = {.struct_size = sizeof err};
    zf_status_t st =
        run->host.zf->param_fetch(run->host.instance, NULL, 0, sizeof(zf_param_item_t), &run->host.stream, NULL, &err);
    if (st != ZF_ERR_STATE || !strstr(err.message, "released"))
        zx_fails(run->result, &where, "status %d: %.200s", st, err.message);
}

/* On the tests' double, where one rank trains: nothing of the device is kept, and with PINNED little but the words that
 * streams wait for is locked. */
static void check_given(zx_run_t *run, uint32_t what) {
    enum { MOST_LOCKED = 32768 };
    zx_where_t where = {.law = run->c->law, .what = "released memory", .element = UINT64_MAX};
    zx_given_t left;
    if (run->c->ranks || !zx_device_given(&left))
        return;
    if (left.device || (what & ZF_RELEASE_PINNED && left.host > MOST_LOCKED))
        zx_fails(run->result, &where, "%llu bytes of the device are kept, %llu bytes of the host are page-locked",
                 (unsigned long long)left.device, (unsigned long long)left.host);
}

int zx_run_release(zx_run_t *run, uint32_t chance) {
    uint32_t what = ZF_RELEASE_DEVICE | (zx_chance(&run->releases, 30) ? ZF_RELEASE_PINNED : 0);
    int is_due = zx_chance(&run->releases, chance), is_asked = zx_chance(&run->releases, 20);
    if (!run->c->is_releasing || !is_due)
        return 0;
    zx_count_drawn(run->result, ZX_RELEASED, 1);
    run->is_released = 1;
    zo_rest(run->oracle);
    if (!extension(run))
        return 1;
    zx_is_call_bad(&run->host, "release",
                   extension(run)->release(run->host.instance, what, &run->host.stream, NULL, &run->host.err));
    check_given(run, what);
    if (is_asked)
        try_in_vain(run);
    return 1;
}

void zx_run_resume(zx_run_t *run) {
    run->host.is_quiet = 1;
    run->is_released = 0;
    if (extension(run))
        zx_is_call_bad(&run->host, "resume",
                       extension(run)->resume(run->host.instance, &run->host.stream, NULL, &run->host.err));
}

void zx_run_release_point(zx_run_t *run) {
    int is_exported = zx_chance(&run->releases, 30), is_inspected = zx_chance(&run->releases, 30);
    if (!zx_run_release(run, 15))
        return;
    if (is_exported)
        zx_run_export(run);
    if (is_inspected)
        zx_run_inspect(run);
    zx_run_ask_released(run);
    zx_run_resume(run);
}
