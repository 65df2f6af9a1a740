/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_crash.c - the machine stops at any moment of a save: a load finds the former checkpoint or
 * the new one, whole, and after the save the new one. A save instead leaves nothing but its own checkpoint. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "crash_disk.h"
#include "state_rig.h"
#include "suite.h"

static const char config[] = "topk_ratio = 0.2\nupdate_interval = 4\nselect_interval = 3\nfull_warm_up_rounds = 2";
static zt_rig_t rig, copy;
static char path[160];
static uint64_t former, newer; /* steps of what is saved; former 0: nothing was there */

static void report_state(const char *dir, const char *what, const zf_error_t *err) {
    if (zt_shell("cd %s && ls -la . ckpt* >&2", dir))
        fprintf(stderr, "(not all of it could be listed)\n");
    ck_abort_msg("%s: %s", what, err->message);
}

static void check_load(const char *dir, int is_over) {
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_status_t st = zt_load(&copy, NULL, path, 0, &report);
    if (st && former)
        report_state(dir, "a load finds nothing", &copy.err);
    if (is_over && (st || report.step != newer))
        report_state(dir, "the save was over, and what it saved is not there", &copy.err);
    if (!st && report.step != former && report.step != newer)
        report_state(dir, "a load finds something else", &copy.err);
}

static void check_save(const char *dir) {
    if (zt_save(&copy, NULL, path, 0, NULL))
        report_state(dir, "a save fails", &copy.err);
    if (zt_shell("test \"$(ls -A %s)\" = ckpt && test $(ls -A %s | wc -l) = 2", dir, path))
        report_state(dir, "a save has left something", &copy.err);
}

static void look(const char *dir, int is_over) {
    snprintf(path, sizeof path, "%s/ckpt", dir);
    check_load(dir, is_over);
    zt_crash_make_again();
    check_save(dir);
}

static void stop(int n_before, int least) {
    char dir[128], made[140];
    snprintf(dir, sizeof dir, "%s/saved", zt_dir());
    snprintf(made, sizeof made, "%s/made", zt_dir());
    ck_assert_int_eq(zt_shell("mkdir %s", dir), 0);
    snprintf(path, sizeof path, "%s/ckpt", dir);
    zt_state_open(&rig, config);
    zt_state_open(&copy, config);
    zt_state_steps(&rig, 3);
    if (n_before)
        ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    former = n_before ? rig.step : 0;
    zt_state_steps(&rig, 1);
    newer = rig.step;
    zf_state_args_t args = {.struct_size = sizeof args, .path = path};
    zt_crash_begin(dir);
    ZT_OK(&rig, zt_state(&rig)->save(rig.inst, &args, NULL, &rig.err));
    zt_crash_end();
    int n = zt_crash_each(made, look);
    printf("%d states\n", n);
    ck_assert_int_gt(n, least);
    zt_rig_end(&copy);
    zt_rig_end(&rig);
}

ZT_TEST(the_first_save) { stop(0, 10); }

ZT_TEST(a_save_over_a_checkpoint) { stop(1, 10); }

ZT_SUITE("state_crash")
