/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_extensions.c - habits of zf.state/1, zf.stats/1 and zf.config/1 (wrong.h). */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wrong.h"
#include "zf/ext/config.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/state.h"
#include "zf/ext/stats.h"

static const zf_plugin_t *real;
static const zf_state_ext_t *real_state;
static const zf_stats_ext_t *real_stats;
static const zf_config_ext_t *real_config;
static const zf_digest_ext_t *real_digest;
static zf_state_ext_t state;
static zf_stats_ext_t stats;
static zf_config_ext_t config;
static zf_digest_ext_t digest;

/* ---- zf.state/1 -------------------------------------------------------------------------------------------------- */

static zf_status_t told(zf_status_t st, zf_error_t *err) {
    if (st < 0 && err && IS(native_lost))
        err->native_code = 0;
    if (st == ZF_ERR_STORAGE && err && IS(storage_final))
        err->retryable = 0;
    return st;
}

static void spoil_saved(zf_state_report_t *r) {
    if (IS(saved_bytes_wrong))
        r->nbytes--;
}

static void spoil_loaded(zf_state_report_t *r) {
    wrong_out_loaded(r->step);
    if (IS(missing_zero))
        r->n_missing = 0;
    if (IS(continues_always_zero))
        r->continues = 0;
}

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
    if (IS(note_cut) && mine.note && *mine.note && strlen(mine.note) < sizeof cut) {
        strcpy(cut, mine.note);
        cut[strlen(cut) - 1] = '\0';
        mine.note = cut;
    }
    if (IS(save_unsynced))
        mine.flags |= ZF_STATE_NO_SYNC;
    size_t n = mine.note ? strlen(mine.note) : 0, most = IS(note_cut_long) ? 40000 : 65536;
    if ((IS(note_cut_long) || IS(note_too_long_taken)) && n > most) {
        memcpy(cut, mine.note, most);
        cut[most] = '\0';
        mine.note = cut;
    }
    wrong_lose(IS(leak_per_save));
    if (wrong_save_order() && mine.path)
        return save_in_order(instance, &mine, out_report, err);
    int fd = IS(file_inherited) ? open("/dev/null", O_RDONLY) : -1;
    zf_status_t st = told(real_state->save(instance, &mine, out_report, err), err);
    if (fd >= 0)
        close(fd);
    if (st == ZF_OK && out_report && out_report->struct_size == sizeof *out_report)
        spoil_saved(out_report);
    return st;
}

static zf_status_t load(zf_instance_t *instance, const zf_state_args_t *args, zf_state_report_t *out_report,
                        zf_error_t *err) {
    zf_status_t st = told(real_state->load(instance, args, out_report, err), err);
    if (st == ZF_OK && out_report && out_report->struct_size == sizeof *out_report)
        spoil_loaded(out_report);
    return st;
}

/* A file of more than 64 KiB lies there. */
static int is_large(const char *path) {
    struct stat info;
    char name[4300];
    snprintf(name, sizeof name, "%s/zf_state-00001.safetensors", path);
    return stat(name, &info) == 0 && info.st_size > 65536;
}

static zf_status_t verify(const zf_state_args_t *args, zf_state_report_t *out_report, zf_error_t *err) {
    static char whole[4300];
    const char *path = args && args->struct_size == sizeof *args ? args->path : NULL;
    if (IS(verify_blind) || (IS(verify_blind_to_large) && path && is_large(path)))
        return ZF_OK;
    zf_status_t st =
        IS(verify_remembers) && path && strcmp(path, whole) == 0 ? ZF_OK : real_state->verify(args, out_report, err);
    if (st == ZF_OK && path)
        snprintf(whole, sizeof whole, "%s", path);
    return st;
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
        uint64_t by;
    } wrong[] = {{WRONG_down_halved, "down_grad_nbytes", 2},
                 {WRONG_skipped_zero, "steps_skipped", UINT64_MAX},
                 {WRONG_closes_zero, "window_closes", UINT64_MAX}};
    zf_status_t st = real_stats->counter(instance, IS(counter_twice) && i == 1 ? 0 : i, out, err);
    if (st != ZF_OK || out->struct_size != sizeof *out)
        return st;
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
        if (wrong_habit == wrong[k].habit && strcmp(out->name, wrong[k].name) == 0)
            out->value /= wrong[k].by;
    if (IS(counter_falls) && strcmp(out->name, "steps") == 0)
        out->value = 1000000 - out->value;
    return st;
}

static zf_status_t step_counter(zf_instance_t *instance, uint64_t step, uint32_t i, zf_counter_t *out,
                                zf_error_t *err) {
    zf_status_t st = real_stats->step_counter(instance, step, i, out, err);
    if (IS(counter_grows_twice) && st == ZF_OK)
        out->value = 2 * out->value + 1;
    return st;
}

static zf_status_t step_record(zf_instance_t *instance, uint64_t step, zf_step_record_t *out, zf_error_t *err) {
    zf_status_t st = real_stats->step_record(instance, IS(record_newest) ? 0 : step, out, err);
    if (st != ZF_OK || out->struct_size != sizeof *out)
        return st;
    if (IS(record_time_in_us))
        out->step_ns /= 1000;
    return st;
}

static zf_status_t key(uint32_t i, zf_config_key_t *out, zf_error_t *err) {
    zf_status_t st = real_config->key(i, out, err);
    if (st == ZF_OK && out->struct_size == sizeof *out && IS(key_range_wide) &&
        strcmp(out->key, "update_interval") == 0)
        out->range = "1..128 | auto";
    if (st == ZF_OK && out->struct_size == sizeof *out && IS(key_default_wrong) && strcmp(out->key, "topk_ratio") == 0)
        out->default_value = "10 %";
    return st;
}

static zf_status_t check(const char *text, uint64_t nbytes, const char *const *overrides, uint32_t n_overrides,
                         zf_error_t *err) {
    zf_status_t st = real_config->check(text, nbytes, overrides, n_overrides, err);
    char *more = err ? strstr(err->message, " more") : NULL;
    if (IS(list_cut) && st < 0 && err)
        err->message[150] = '\0';
    if (IS(list_miscounted) && st < 0 && more && more > err->message)
        more[-1] = more[-1] == '9' ? '1' : (char)(more[-1] + 1);
    if (st == ZF_ERR_CONFIG && (IS(check_blind) || (IS(check_blind_to_keys) && strstr(err->message, "has no key"))))
        return ZF_OK;
    return st;
}

static zf_status_t show_value(zf_instance_t *instance, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_status_t st = real_config->value(instance, i, buf, nbytes, err);
    if (IS(config_wrong) && st == ZF_OK && nbytes > 1 && buf[0] >= '0' && buf[0] <= '8')
        buf[0]++;
    return st;
}

/* ---- zf.digest/0 --------------------------------------------------------------------------------- */

static zf_status_t digest_of(zf_instance_t *instance, const zf_tensor_t *const *tensors, uint32_t n, uint64_t *out,
                             zf_error_t *err) {
    static const int64_t few[] = {200};
    zf_tensor_t mine;
    if (IS(digest_of_head) && n == 1 && tensors && tensors[0]->dl.ndim == 1 && tensors[0]->dl.shape[0] > few[0]) {
        mine = *tensors[0];
        mine.dl.shape = few;
        return real_digest->digest(instance, &(const zf_tensor_t *){&mine}, 1, out, err);
    }
    if (IS(digest_of_pairs) && n == 1 && tensors && tensors[0]->dl.ndim == 1 && tensors[0]->dl.dtype.bits == 16 &&
        tensors[0]->dl.shape[0] % 2) {
        const int64_t even[] = {tensors[0]->dl.shape[0] - 1};
        mine = *tensors[0];
        mine.dl.shape = even;
        return real_digest->digest(instance, &(const zf_tensor_t *){&mine}, 1, out, err);
    }
    zf_status_t st = real_digest->digest(instance, tensors, n, out, err);
    for (uint32_t i = 0; IS(digest_of_32_bits) && st == ZF_OK && i < n; i++)
        out[i] &= 0xFFFFFFFFu;
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
    stats.counter = counter, stats.step_counter = step_counter, stats.step_record = step_record;
    real_config = real->get_extension(ZF_EXT_CONFIG);
    config = *real_config;
    config.value = show_value, config.key = key, config.check = check;
    real_digest = real->get_extension(ZF_EXT_DIGEST);
    digest = *real_digest;
    digest.digest = digest_of;
}

/* The true plugin's, or what stands for it. */
static const void *find(const char *id) {
    const struct {
        const char *id;
        const void *table;
    } own[] = {{ZF_EXT_STATE, IS(stateless) ? NULL : &state},
               {ZF_EXT_STATS, &stats},
               {ZF_EXT_CONFIG, &config},
               {ZF_EXT_DIGEST, &digest}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (IS(ids_by_prefix) ? strncmp(id, own[i].id, strlen(own[i].id)) == 0 : strcmp(id, own[i].id) == 0)
            return own[i].table;
    return real->get_extension(id);
}

const void *wrong_extension(const char *id) {
    static const char *last_id;
    static const void *last;
    if (IS(ids_by_address) && id && id == last_id)
        return last;
    last_id = id;
    if (!id)
        return last = NULL;
    last = wrong_break_table_again(id, wrong_break_table(id, find(id)));
    return last = wrong_break_table_late(id, wrong_break_table_drawn(id, wrong_break_table_lists(id, last)));
}
