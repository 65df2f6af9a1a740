/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/audit.c - digests of the training state, and their lines (contract in audit.h). */
#include "state/audit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/config_table.h"
#include "ranks/groups.h"
#include "replay/state_arrays.h"
#include "state/text.h"
#include "step/exchange.h"

enum { HEX = 16, HEAD_NBYTES = 128 };

static const char *const names[ZFI_AUDIT_ARRAYS] = {"visible", "w", "m", "v"};

/* ---- digests ----------------------------------------------------------------------------------------------------- */

/* Adds what a rank digests of an array of a matrix. */
static zf_status_t add(const zfi_state_t *state, uint32_t number, int array, uint64_t *io_sum) {
    const zfi_matrix_t *matrix = &state->plan->matrices[number];
    const zfi_kernels_t *kernels = state->engine->kernels;
    int is_visible = array == ZFI_AUDIT_VISIBLE, is_made = is_visible && matrix->carries; /* a gradient may lie there */
    zfi_array_t of = is_visible ? ZFI_STATE_W : (zfi_array_t)(array - ZFI_AUDIT_W);
    uint64_t first = is_visible ? matrix->held_first : matrix->own.first;
    uint64_t n = is_visible ? matrix->held_rows * matrix->cols : matrix->own.n;
    zfi_dtype_t dtype = is_visible ? matrix->place.dtype : zfi_state_dtype(matrix, of);
    float *values = state->dev->exchange;
    const void *bits = values;
    if (!n || (!is_visible && of >= 1 + state->n_moments) || (array == ZFI_AUDIT_V && matrix->lacks_v))
        return ZF_OK;
    zf_status_t st = is_visible && !is_made ? zfi_exchange_get_visible(state, number, first, n, values)
                                            : zfi_state_get(state, of, number, first, n, values);
    if (st)
        return st;
    if ((!is_visible || is_made) && dtype != ZFI_F32) {
        bits = values + state->dev->exchange_elems;
        kernels->narrow((uint16_t *)(void *)(values + state->dev->exchange_elems), dtype, values, n);
    }
    *io_sum += zfi_param_digest(kernels, bits, dtype, n, matrix->param_offset + first);
    return ZF_OK;
}

static zf_status_t digest_all(const zfi_state_t *state, uint64_t (*sums)[ZFI_AUDIT_ARRAYS]) {
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < state->plan->n_matrices; i++)
        for (int array = 0; array < ZFI_AUDIT_ARRAYS && !st; array++)
            st = add(state, i, array, &sums[state->plan->matrices[i].param][array]);
    return st;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void print_settings(zfi_text_t *text, const zfi_config_t *config) {
    const char *before = "";
    for (uint32_t i = 0; i < zfi_config_n_keys(); i++) {
        const zfi_key_t *key = zfi_key_at(i);
        char value[64];
        if (zfi_key_is_free(key->section, key->name))
            continue;
        zfi_config_effect(config, i, value, sizeof value);
        zfi_text_add(text, "%s\"%s.%s\":", before, key->section, key->name);
        zfi_text_quote(text, value);
        before = ",";
    }
}

static const char *flag(int is_set) { return is_set ? "true" : "false"; }

/* The element types and the rule as numbers of the ABI's and the kernels', which only have to be the same. */
static void print_param(zfi_text_t *text, const zfi_plan_t *plan, const zfi_param_t *param) {
    zfi_text_add(text, "{\"name\":");
    zfi_text_quote(text, param->name);
    zfi_text_add(text, ",\"dtype\":%d,\"grad_dtype\":%d,\"rule\":%d,\"sharded\":%s,\"own\":%s,\"owned\":[",
                 (int)param->dtype, (int)param->grad_dtype, (int)param->rule->number, flag(param->is_sharded),
                 flag(param->reduce_group[0] != 0));
    for (uint32_t m = 0; m < param->n_matrices; m++) {
        const zfi_matrix_t *matrix = &plan->matrices[param->first_matrix + m];
        uint64_t first = matrix->param_offset + matrix->own.first;
        zfi_text_add(text, "%s[%" PRIu64 ",%" PRIu64 "]", m ? "," : "", first, first + matrix->own.n);
    }
    zfi_text_add(text, "],\"shape\":[");
    for (int i = 0; i < param->ndim; i++)
        zfi_text_add(text, "%s%" PRId64, i ? "," : "", param->shape[i]);
    zfi_text_add(text, "]}");
}

/* A line, to be freed; NULL without memory. */
static char *header_of(const zfi_state_t *state, const zfi_config_t *config, zfi_member_t process) {
    const zfi_engine_t *engine = state->engine;
    zfi_text_t text = {0};
    const char *before = "";
    zfi_text_add(&text,
                 "{\"zf_audit\":1,\"process\":%" PRIu32 ",\"n_processes\":%" PRIu32 ",\"part\":%" PRIu32
                 ",\"rank\":%" PRIu32 ",\"n_ranks\":%" PRIu32 ",\"parts\":%s,\"settings\":{",
                 process.rank, process.n_ranks, zfi_is_grouped(engine) ? engine->firsts[0] : 0, zfi_rank(engine),
                 zfi_n_ranks(engine), flag(zfi_is_sharded(engine)));
    print_settings(&text, config);
    zfi_text_add(&text, "},\"params\":[");
    for (uint32_t i = 0; i < state->side->n_params; i++) {
        if (!state->side->params[i].has_state)
            continue;
        zfi_text_add(&text, "%s", before);
        print_param(&text, state->plan, &state->side->params[i]);
        before = ",";
    }
    zfi_text_add(&text, "]}\n");
    if (!text.is_bad)
        return text.at;
    free(text.at);
    return NULL;
}

void zfi_audit_forget(zfi_audit_t *audit) {
    free(audit->sums);
    free(audit->header);
    free(audit->text);
    audit->sums = NULL;
    audit->header = audit->text = NULL;
}

int zfi_audit_describe(zfi_audit_t *audit, const zfi_state_t *state, const zfi_config_t *config, zfi_member_t process) {
    uint64_t n = state->side->n_params;
    zfi_audit_forget(audit);
    audit->header = header_of(state, config, process);
    audit->sums = calloc(n + 1, sizeof *audit->sums);
    audit->text = malloc(HEAD_NBYTES + ZFI_AUDIT_ARRAYS * (n * HEX + HEX));
    if (audit->header && audit->sums && audit->text)
        return 1;
    zfi_audit_forget(audit);
    return 0;
}

static void put_hex(char *to, uint64_t value) {
    for (int i = 0; i < HEX; i++)
        to[i] = "0123456789abcdef"[value >> 4 * (HEX - 1 - i) & 15];
}

static size_t write_record(const zfi_audit_t *audit, const zfi_device_side_t *side, uint64_t step) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    size_t n = (size_t)snprintf(audit->text, HEAD_NBYTES, "{\"step\":%" PRIu64 ",\"ms\":%" PRIu64, step,
                                (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
    for (int array = 0; array < ZFI_AUDIT_ARRAYS; array++) {
        n += (size_t)sprintf(audit->text + n, ",\"%s\":\"", names[array]);
        for (uint32_t i = 0; i < side->n_params; i++) {
            if (!side->params[i].has_state)
                continue;
            put_hex(audit->text + n, audit->sums[i][array]);
            n += HEX;
        }
        audit->text[n++] = '"';
    }
    memcpy(audit->text + n, "}\n", 2);
    return n + 2;
}

zf_status_t zfi_audit_take(zfi_audit_t *audit, const zfi_state_t *state, uint64_t step, size_t *out_nbytes) {
    memset(audit->sums, 0, state->side->n_params * sizeof *audit->sums);
    zf_status_t st = digest_all(state, audit->sums);
    if (!st)
        *out_nbytes = write_record(audit, state->side, step);
    return st;
}
