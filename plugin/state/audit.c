/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/audit.c - digests of the training state, and their lines (contract in audit.h). */
#include "state/audit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/config_table.h"
#include "instance/device_memory.h"
#include "ranks/groups.h"
#include "replay/state_arrays.h"
#include "state/text.h"

enum { HEX = 16, HEAD_NBYTES = 128 };

static const char *const names[ZFI_AUDIT_ARRAYS] = {"visible", "w", "m", "v"};

/* ---- digests ----------------------------------------------------------------------------------------------------- */

/* Visible values on their way from the device: several stretches are read together. */
typedef struct reading {
    const zfi_state_t *state;
    uint64_t (*sums)[ZFI_AUDIT_ARRAYS];
    zfi_place_args_t places[ZFI_LIST_OPS];
    uint64_t at[ZFI_LIST_OPS], nbytes; /* in the scratch */
    uint32_t n;
    zf_status_t status;
} reading_t;

static void read_visible(reading_t *reading) {
    const zfi_state_t *state = reading->state;
    unsigned char *bits = (unsigned char *)state->dev->exchange;
    if (!reading->status && reading->n)
        reading->status = zfi_device_read(state->engine, bits, state->dev->scratch, reading->nbytes);
    for (uint32_t i = 0; i < reading->n && !reading->status; i++) {
        const zfi_placed_t *place = &reading->places[i].one;
        const zfi_matrix_t *matrix = &state->plan->matrices[place->matrix];
        reading->sums[matrix->param][ZFI_AUDIT_VISIBLE] +=
            zfi_param_digest(state->engine->kernels, bits + reading->at[i], matrix->place.dtype, place->n,
                             matrix->param_offset + matrix->held_first + place->first);
    }
    reading->n = 0;
    reading->nbytes = 0;
}

static void collect(reading_t *reading, uint32_t number, uint64_t first, uint64_t n) {
    const zfi_state_t *state = reading->state;
    uint64_t nbytes = (n * zfi_dtype_nbytes(state->plan->matrices[number].place.dtype) + HEX - 1) / HEX * HEX;
    if (reading->n == ZFI_LIST_OPS || reading->nbytes + nbytes > state->dev->exchange_elems * sizeof(float))
        read_visible(reading);
    zfi_place_args_t *place = &reading->places[reading->n];
    *place =
        (zfi_place_args_t){.data = state->dev->data,
                           .one = {.matrix = number, .first = first - state->plan->matrices[number].held_first, .n = n},
                           .bits = (unsigned char *)state->dev->scratch + reading->nbytes};
    reading->at[reading->n++] = reading->nbytes;
    reading->nbytes += nbytes;
    zfi_list_add(&state->engine->to_device, zfi_op_launch(ZFI_KERNEL_READ_PLACE, place, sizeof *place));
}

/* Digests a stretch in place, which the host's threads can read; first: of what is held. */
static uint64_t digest_here(const zfi_kernels_t *kernels, const zfi_matrix_t *matrix, uint64_t first, uint64_t n) {
    const zfi_place_t *place = &matrix->place;
    uint64_t sum = 0, m, base = matrix->param_offset + matrix->held_first;
    for (; n; first += m, n -= m) {
        uint64_t left = matrix->cols - first % matrix->cols;
        m = place->col_offset ? 1 : n < left || place->row_stride == (int64_t)matrix->cols ? n : left;
        sum += zfi_param_digest(kernels, zfi_place_at(place, first / matrix->cols, first % matrix->cols), place->dtype,
                                m, base + first);
    }
    return sum;
}

/* Elements [first, first + n) of a matrix. */
static void add_visible(reading_t *reading, uint32_t number, uint64_t first, uint64_t n) {
    const zfi_engine_t *engine = reading->state->engine;
    const zfi_matrix_t *matrix = &reading->state->plan->matrices[number];
    if (engine->ops->has_own_memory)
        collect(reading, number, first, n);
    else
        reading->sums[matrix->param][ZFI_AUDIT_VISIBLE] +=
            digest_here(engine->kernels, matrix, first - matrix->held_first, n);
}

static zf_status_t add_state(reading_t *reading, uint32_t number) {
    static const zfi_array_t arrays[] = {ZFI_STATE_W, ZFI_STATE_M, ZFI_STATE_V};
    const zfi_matrix_t *matrix = &reading->state->plan->matrices[number];
    uint64_t *sums = reading->sums[matrix->param];
    zf_status_t st = ZF_OK;
    for (int i = 0; i < ZFI_AUDIT_ARRAYS - ZFI_AUDIT_W && !st; i++)
        st = zfi_state_digest(reading->state, arrays[i], number, matrix->own.first, matrix->own.n,
                              &sums[ZFI_AUDIT_W + i]);
    return st;
}

static zf_status_t digest_all(const zfi_state_t *state, uint64_t (*sums)[ZFI_AUDIT_ARRAYS]) {
    const zfi_plan_t *plan = state->plan;
    reading_t reading = {.state = state, .sums = sums};
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        if (matrix->held_rows)
            add_visible(&reading, i, matrix->held_first, matrix->held_rows * matrix->cols);
    }
    read_visible(&reading);
    for (uint32_t i = 0; i < plan->n_matrices && !reading.status && !st; i++)
        st = add_state(&reading, i);
    return st ? st : reading.status;
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
