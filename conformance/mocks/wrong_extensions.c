/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_extensions.c - habits of zf.state/1, zf.stats/1 and zf.config/1 (wrong.h). */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "wrong.h"
#include "zf/ext/config.h"
#include "zf/ext/state.h"
#include "zf/ext/stats.h"

static const zf_plugin_t *real;
static const zf_state_ext_t *real_state;
static const zf_stats_ext_t *real_stats;
static const zf_config_ext_t *real_config;
static zf_state_ext_t state;
static zf_stats_ext_t stats;
static zf_config_ext_t config;

/* ---- zf.state/1 -------------------------------------------------------------------------------------------------- */

static zf_status_t save_in_order(zf_instance_t *instance, zf_state_args_t *args, zf_state_report_t *out_report,
                                 zf_error_t *err) {
    const char *path = args->path;
    char beside[4200];
    snprintf(beside, sizeof beside, "%s.wrong", path);
    args->path = beside;
    args->flags |= ZF_STATE_NO_SYNC;
    zf_status_t st = real_state->save(instance, args, out_report, err);
    if (st == ZF_OK)
        wrong_save_finish(path, beside);
    return st;
}

static zf_status_t save(zf_instance_t *instance, const zf_state_args_t *args, zf_state_report_t *out_report,
                        zf_error_t *err) {
    static char cut[70000];
    zf_state_args_t mine;
    if (!args || args->struct_size != sizeof mine)
        return real_state->save(instance, args, out_report, err);
    mine = *args;
    if (IS(note_lost))
        mine.note = NULL;
    if (IS(note_cut) && mine.note && *mine.note && strlen(mine.note) < sizeof cut) {
        strcpy(cut, mine.note);
        cut[strlen(cut) - 1] = '\0';
        mine.note = cut;
    }
    if (IS(save_unsynced))
        mine.flags |= ZF_STATE_NO_SYNC;
    if (wrong_save_order() && mine.path)
        return save_in_order(instance, &mine, out_report, err);
    int fd = IS(file_inherited) ? open("/dev/null", O_RDONLY) : -1;
    zf_status_t st = real_state->save(instance, &mine, out_report, err);
    if (fd >= 0)
        close(fd);
    return st;
}

static zf_status_t load(zf_instance_t *instance, const zf_state_args_t *args, zf_state_report_t *out_report,
                        zf_error_t *err) {
    return IS(load_ignored) ? real_state->verify(args, out_report, err)
                            : real_state->load(instance, args, out_report, err);
}

static zf_status_t verify(const zf_state_args_t *args, zf_state_report_t *out_report, zf_error_t *err) {
    return IS(verify_blind) ? ZF_OK : real_state->verify(args, out_report, err);
}

static zf_status_t weights(const zf_state_args_t *args, const char *param, float *out, uint64_t n_elems,
                           zf_error_t *err) {
    zf_status_t st = real_state->weights(args, param, out, n_elems, err);
    if (IS(weights_ulp) && st == ZF_OK && n_elems)
        out[n_elems - 1] = nextafterf(out[n_elems - 1], INFINITY);
    return st;
}

/* ---- zf.stats/1, zf.config/1 ------------------------------------------------------------------------------------- */

static zf_status_t counter(zf_instance_t *instance, uint32_t i, zf_counter_t *out, zf_error_t *err) {
    static const struct {
        int habit;
        const char *name;
        uint64_t times, by;
    } wrong[] = {{WRONG_down_halved, "down_grad_nbytes", 1, 2}, {WRONG_publish_halved, "up_publish_nbytes", 1, 2},
                 {WRONG_reselects_zero, "reselects", 0, 1},     {WRONG_steps_double, "steps", 2, 1},
                 {WRONG_skipped_zero, "steps_skipped", 0, 1},   {WRONG_closes_zero, "window_closes", 0, 1}};
    zf_status_t st = real_stats->counter(instance, IS(counter_twice) && i == 1 ? 0 : i, out, err);
    if (st != ZF_OK || out->struct_size != sizeof *out)
        return st;
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
        if (wrong_habit == wrong[k].habit && strcmp(out->name, wrong[k].name) == 0)
            out->value = out->value * wrong[k].times / wrong[k].by;
    if (IS(counter_falls) && strcmp(out->name, "steps") == 0)
        out->value = 1000000 - out->value;
    if (IS(counter_unit) && strcmp(out->name, "down_grad_nbytes") == 0)
        out->unit = "ns";
    return st;
}

static zf_status_t step_counter(zf_instance_t *instance, uint64_t step, uint32_t i, zf_counter_t *out,
                                zf_error_t *err) {
    zf_status_t st = real_stats->step_counter(instance, step, i, out, err);
    if (IS(counter_grows_twice) && st == ZF_OK)
        out->value = 2 * out->value + 1;
    return st;
}

static zf_status_t show_value(zf_instance_t *instance, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = real_config->value(instance, i, buf, nbytes, err);
    if (IS(config_wrong) && st == ZF_OK && nbytes > 1 && buf[0] >= '0' && buf[0] <= '8')
        buf[0]++;
    return st;
}

/* ---- the tables -------------------------------------------------------------------------------------------------- */

void wrong_wrap_extensions(const zf_plugin_t *plugin) {
    real = plugin;
    real_state = real->get_extension(ZF_EXT_STATE);
    state = *real_state;
    state.save = save, state.load = load, state.verify = verify, state.weights = weights;
    real_stats = real->get_extension(ZF_EXT_STATS);
    stats = *real_stats;
    stats.counter = counter, stats.step_counter = step_counter;
    real_config = real->get_extension(ZF_EXT_CONFIG);
    config = *real_config;
    config.value = show_value;
}

const void *wrong_extension(const char *id) {
    const void *found = real->get_extension(id);
    if (!found || !id)
        return found;
    if (strcmp(id, ZF_EXT_STATE) == 0)
        return IS(stateless) ? NULL : &state;
    if (strcmp(id, ZF_EXT_STATS) == 0)
        return &stats;
    return strcmp(id, ZF_EXT_CONFIG) == 0 ? &config : found;
}
