/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_lists.c - habits that show in long lists, by a second name, and in numbers of more than 32 bits (wrong.h). */
#include <string.h>

#include "wrong.h"
#include "zf/ext/config.h"
#include "zf/ext/cpu.h"
#include "zf/ext/draft/digest.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/state.h"
#include "zf/ext/stats.h"

enum { FEW = 16, MOST = 2048 };
static const uint64_t low = 0xFFFFFFFFu;

static zf_plugin_t below; /* as the other files have made it */
static uint8_t is_tied[MOST];
static uint32_t n_bound;

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static zf_status_t create(const zf_create_args_t *args, zf_instance_t **out, zf_error_t *err) {
    zf_create_args_t mine;
    if (!args || args->struct_size != sizeof mine)
        return below.create(args, out, err);
    mine = *args;
    if (IS(overrides_from_17) && mine.n_overrides > FEW)
        mine.n_overrides = FEW;
    if (IS(text_of_4096) && mine.config_text_nbytes > 4096)
        mine.config_text_nbytes = 4096;
    return below.create(&mine, out, err);
}

static zf_status_t bind_short(zf_instance_t *x, const zf_bind_args_t *args, uint32_t *ids, zf_bind_report_t *out,
                              zf_error_t *err) {
    static zf_param_decl_t decls[MOST];
    static char names[MOST][128];
    zf_bind_args_t mine;
    if (!args || args->struct_size != sizeof mine || !args->decls || args->n_decls > MOST ||
        args->decl_size != sizeof *decls)
        return below.bind_params(x, args, ids, out, err);
    mine = *args;
    mine.decls = decls;
    memcpy(decls, args->decls, args->n_decls * sizeof *decls);
    for (uint32_t i = 0; i < args->n_decls; i++)
        if (decls[i].name && strlen(decls[i].name) < 256) {
            memcpy(names[i], decls[i].name, sizeof names[i] - 1);
            decls[i].name = names[i];
        }
    return below.bind_params(x, &mine, ids, out, err);
}

static zf_status_t bind_params(zf_instance_t *x, const zf_bind_args_t *args, uint32_t *ids, zf_bind_report_t *out,
                               zf_error_t *err) {
    zf_status_t st = below.bind_params(x, args, ids, out, err);
    n_bound = st == ZF_OK ? args->n_decls : n_bound;
    for (uint32_t i = 0; st == ZF_OK && i < args->n_decls; i++)
        if (ids[i] < MOST)
            is_tied[ids[i]] = (args->decls[i].flags & ZF_PARAM_TIED) != 0;
    return st;
}

static zf_status_t params_changed(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                  uint32_t flags, zf_error_t *err) {
    static const zf_param_item_t first = {.struct_size = sizeof first};
    if (x && !items && n == 0)
        return below.params_changed(x, &first, 1, sizeof first, flags, err);
    return below.params_changed(x, items, n, elem_size, flags, err);
}

static zf_status_t grads_ready(zf_instance_t *x, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out, zf_error_t *err) {
    static zf_grad_item_t mine[MOST];
    static zf_tensor_t tensors[MOST];
    if (!items || n > MOST || elem_size != sizeof *mine)
        return below.grads_ready(x, items, n, elem_size, stream, out, err);
    memcpy(mine, items, n * sizeof *mine);
    for (uint32_t i = 0; i < n; i++)
        if (items[i].tensor && items[i].tensor->struct_size == sizeof *tensors) {
            tensors[i] = *items[i].tensor;
            tensors[i].dl.byte_offset &= low;
            mine[i].tensor = &tensors[i];
        }
    return below.grads_ready(x, mine, n, elem_size, stream, out, err);
}

static zf_status_t param_fetch(zf_instance_t *x, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out, zf_error_t *err) {
    static zf_param_item_t mine[MOST];
    uint32_t kept = 0;
    if (!items || n > MOST || elem_size != sizeof *mine)
        return below.param_fetch(x, items, n, elem_size, stream, out, err);
    if (IS(fence_of_16) && n > FEW) {
        zf_status_t st = below.param_fetch(x, items + FEW, n - FEW, elem_size, stream, NULL, err);
        return st < 0 ? st : below.param_fetch(x, items, FEW, elem_size, stream, out, err);
    }
    for (uint32_t i = 0; i < n; i++)
        if (!IS(tied_fetch_lost) || items[i].id >= MOST || !is_tied[items[i].id])
            mine[kept++] = items[i];
    return below.param_fetch(x, mine, kept, elem_size, stream, out, err);
}

static zf_status_t fence_wait(zf_instance_t *x, const zf_fence_t *fence, uint64_t timeout_ns, zf_error_t *err) {
    zf_fence_t mine;
    if (IS(timeout_of_32_bits))
        timeout_ns &= low;
    if (!IS(fence_of_32_bits) || !fence || fence->struct_size != sizeof mine)
        return below.fence_wait(x, fence, timeout_ns, err);
    mine = *fence;
    mine.value &= low;
    return below.fence_wait(x, &mine, timeout_ns, err);
}

static zf_status_t quiesce(zf_instance_t *x, const zf_quiesce_args_t *args, zf_error_t *err) {
    zf_quiesce_args_t mine;
    if (!args || args->struct_size != sizeof mine || !args->deadline_ms)
        return below.quiesce(x, args, err);
    mine = *args;
    mine.deadline_ms = 1 + mine.deadline_ms * 1000000u / 1000000u;
    return below.quiesce(x, &mine, err);
}

static zf_status_t export_params(zf_instance_t *x, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                 zf_error_t *err) {
    static zf_export_item_t mine[MOST];
    if (!items || n > MOST || elem_size != sizeof *mine)
        return below.export_params(x, items, n, elem_size, err);
    memcpy(mine, items, n * sizeof *mine);
    for (uint32_t i = 0; i < n; i++)
        mine[i].dst_nbytes &= low;
    return below.export_params(x, mine, n, elem_size, err);
}

static zf_status_t poll_once(zf_instance_t *x, zf_step_report_t *out, zf_error_t *err) {
    zf_status_t st = below.poll(x, out, err);
    if (st >= 0 && out && out->struct_size == sizeof *out)
        out->step &= low >> 1;
    return st;
}

void wrong_break_lists(zf_plugin_t *table) {
    below = *table;
    table->create = create;
    if (IS(tied_fetch_lost) || IS(written_all_from_17))
        table->bind_params = bind_params;
    if (IS(names_of_127))
        table->bind_params = bind_short;
    if (IS(all_changed_is_first))
        table->params_changed = params_changed;
    if (IS(offset_of_32_bits))
        table->grads_ready = grads_ready;
    if (IS(fence_of_16) || IS(tied_fetch_lost))
        table->param_fetch = param_fetch;
    table->fence_wait = fence_wait;
    if (IS(deadline_of_32_bits))
        table->quiesce = quiesce;
    if (IS(nbytes_of_32_bits))
        table->export_params = export_params;
    if (IS(step_of_31_bits))
        table->poll = poll_once;
}

/* ---- extensions -------------------------------------------------------------------------------------------------- */

static const zf_digest_ext_t *digest;
static const zf_state_ext_t *state;
static const zf_stats_ext_t *stats;
static const zf_inspect_ext_t *inspect;
static const zf_config_ext_t *config;
static const zf_cpu_ext_t *cpu;

static zf_status_t digest_few(zf_instance_t *x, const zf_tensor_t *const *tensors, uint32_t n, uint64_t *out,
                              zf_error_t *err) {
    zf_status_t st = digest->digest(x, tensors, n > FEW ? FEW : n, out, err);
    for (uint32_t i = FEW; st == ZF_OK && i < n; i++)
        out[i] = out[FEW - 1];
    return st;
}

static zf_status_t written_few(zf_instance_t *x, uint32_t flags, const uint32_t *ids, uint32_t n, uint8_t *out,
                               zf_error_t *err) {
    if (n > FEW)
        memset(out + FEW, 0, n - FEW);
    return digest->written(x, flags, ids, n > FEW ? FEW : n, out, err);
}

static zf_status_t written_all(zf_instance_t *x, uint32_t flags, const uint32_t *ids, uint32_t n, uint8_t *out,
                               zf_error_t *err) {
    zf_status_t st = digest->written(x, flags, ids, n, out, err);
    if (st == ZF_OK && !ids && n_bound > FEW)
        memset(out + FEW, 0, n_bound - FEW);
    return st;
}

static zf_status_t adopt_few(zf_instance_t *x, const uint32_t *ids, uint32_t n, zf_error_t *err) {
    if (IS(adopt_all_lost) && !ids)
        return ZF_OK;
    if (IS(adopt_none_is_all) && n == 0)
        return digest->adopt(x, NULL, 0, err);
    if (!IS(adopt_from_17))
        return digest->adopt(x, ids, n, err);
    return digest->adopt(x, ids, n > FEW ? FEW : n, err);
}

/* The index is whole where its note can be read. */
static zf_status_t verify(const zf_state_args_t *args, zf_state_report_t *out, zf_error_t *err) {
    char note[8];
    zf_status_t st = state->verify(args, out, err);
    return st < 0 && args && args->struct_size == sizeof *args && args->store && !args->path &&
                   state->note(args, note, sizeof note, NULL) == ZF_OK
               ? ZF_OK
               : st;
}

static zf_status_t weights(const zf_state_args_t *args, const char *param, float *out, uint64_t n_elems,
                           zf_error_t *err) {
    return state->weights(args, param, out, n_elems & low, err);
}

static zf_status_t step_record(zf_instance_t *x, uint64_t step, zf_step_record_t *out, zf_error_t *err) {
    return stats->step_record(x, step & low, out, err);
}

static zf_status_t step_counter(zf_instance_t *x, uint64_t step, uint32_t i, zf_counter_t *out, zf_error_t *err) {
    return stats->step_counter(x, step & low, i, out, err);
}

static zf_status_t read_state(zf_instance_t *x, uint32_t id, zf_inspect_out_t *out, zf_error_t *err) {
    if (IS(inspect_of_256))
        return inspect->read(x, id & 255u, out, err);
    zf_inspect_out_t mine;
    if (!out || out->struct_size != sizeof mine)
        return inspect->read(x, id, out, err);
    mine = *out;
    mine.n_elems &= low;
    return inspect->read(x, id, &mine, err);
}

static zf_status_t check(const char *text, uint64_t nbytes, const char *const *overrides, uint32_t n, zf_error_t *err) {
    return config->check(text, nbytes > 4096 ? 4096 : nbytes, overrides, n, err);
}

/* Those behind are shown as they are by default. */
static zf_status_t value(zf_instance_t *x, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err) {
    zf_config_key_t key = {.struct_size = sizeof key};
    zf_status_t st = config->value(x, i, buf, nbytes, err);
    if (i >= FEW && st == ZF_OK && nbytes && config->key(i, &key, NULL) == ZF_OK) {
        strncpy(buf, key.default_value, nbytes - 1);
        buf[nbytes - 1] = '\0';
    }
    return st;
}

static zf_status_t queue_sync(zf_cpu_queue_t *queue, uint64_t timeout_ns, zf_error_t *err) {
    return cpu->queue_sync(queue, timeout_ns & low, err);
}

const void *wrong_break_table_lists(const char *id, const void *table) {
    static zf_digest_ext_t my_digest;
    static zf_state_ext_t my_state;
    static zf_stats_ext_t my_stats;
    static zf_inspect_ext_t my_inspect;
    static zf_config_ext_t my_config;
    static zf_cpu_ext_t my_cpu;
    if (!table)
        return NULL;
    if (strcmp(id, ZF_EXT_DIGEST) == 0) {
        my_digest = *(digest = table);
        if (IS(digest_from_17))
            my_digest.digest = digest_few;
        if (IS(written_from_17))
            my_digest.written = written_few;
        if (IS(written_all_from_17))
            my_digest.written = written_all;
        if (IS(adopt_from_17) || IS(adopt_all_lost) || IS(adopt_none_is_all))
            my_digest.adopt = adopt_few;
        return &my_digest;
    }
    if ((IS(verify_of_index) || IS(weights_of_32_bits)) && strcmp(id, ZF_EXT_STATE) == 0) {
        my_state = *(state = table);
        if (IS(verify_of_index))
            my_state.verify = verify;
        else
            my_state.weights = weights;
        return &my_state;
    }
    if (IS(records_of_32_bits) && strcmp(id, ZF_EXT_STATS) == 0) {
        my_stats = *(stats = table);
        my_stats.step_record = step_record, my_stats.step_counter = step_counter;
        return &my_stats;
    }
    if ((IS(inspect_of_256) || IS(inspect_of_32_bits)) && strcmp(id, ZF_EXT_INSPECT) == 0) {
        my_inspect = *(inspect = table);
        my_inspect.read = read_state;
        return &my_inspect;
    }
    if ((IS(check_of_4096) || IS(values_from_17)) && strcmp(id, ZF_EXT_CONFIG) == 0) {
        my_config = *(config = table);
        if (IS(check_of_4096))
            my_config.check = check;
        else
            my_config.value = value;
        return &my_config;
    }
    if (IS(sync_of_32_bits) && strcmp(id, ZF_EXT_CPU) == 0) {
        my_cpu = *(cpu = table);
        my_cpu.queue_sync = queue_sync;
        return &my_cpu;
    }
    return table;
}
