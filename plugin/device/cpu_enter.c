/* plugin/device/cpu_enter.c - channels that enter the selection: their state comes up from the host block by block,
 * then they become visible (enter_state, enter_visible of device.h). */
#include <string.h>

#include "device/cpu.h"
#include "fault.h"
#include "select.h"
#include "tensor.h"

typedef struct enter_args {
    zf_instance_t *inst;
    uint64_t choice_step;
} enter_args_t;

static uint64_t compact_index(const zfi_matrix_t *matrix, const uint32_t *pos, uint64_t i, uint64_t j) {
    return matrix->sel_base + (matrix->channels_are_rows ? pos[i] * matrix->cols + j : i * matrix->k + pos[j]);
}

/* Address of an element in the visible parameter. */
static void *visible_at(const zfi_place_t *place, uint64_t r, uint64_t c) {
    int64_t offset = (int64_t)r * place->row_stride + (place->col_offset ? place->col_offset[c] : (int64_t)c);
    return (unsigned char *)place->visible + offset * (int64_t)zfi_dtype_nbytes(place->dtype);
}

float zfi_cpu_read_element(const zfi_place_t *place, uint64_t r, uint64_t c) {
    const void *at = visible_at(place, r, c);
    uint16_t bits;
    float value;
    if (place->dtype == ZFI_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&bits, at, sizeof bits);
    return place->dtype == ZFI_BF16 ? zfi_bf16_to_f32(bits) : zfi_f16_to_f32(bits);
}

static void write_visible(const zfi_place_t *place, uint64_t r, uint64_t c, float value) {
    void *at = visible_at(place, r, c);
    uint16_t bits;
    if (place->dtype == ZFI_F32) {
        memcpy(at, &value, sizeof value);
        return;
    }
    bits = place->dtype == ZFI_BF16 ? zfi_f32_to_bf16(value) : zfi_f32_to_f16(value);
    memcpy(at, &bits, sizeof bits);
}

static void take_rect(zf_instance_t *inst, const zfi_enter_rect_t *rect, const float *from, uint64_t choice_step) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[rect->matrix];
    const uint32_t *pos = inst->sel.enter_pos + matrix->index_base;
    const uint32_t *channel = inst->sel.enter_channel + matrix->index_base;
    uint64_t n = rect->na * rect->nb, at = 0;
    for (uint64_t i = rect->a0; i < rect->a0 + rect->na; i++)
        for (uint64_t j = rect->b0; j < rect->b0 + rect->nb; j++, at++) {
            uint64_t to = compact_index(matrix, pos, i, j);
            inst->dev.w[to] = from[at];
            if (inst->dev.m)
                inst->dev.m[to] = from[n + at];
            if (inst->dev.v)
                inst->dev.v[to] = from[2 * n + at];
            if (ZFI_FAULT_ENTERING_MISSES_REPLAY && choice_step > inst->config.full_warm_up_rounds)
                inst->dev.w[to] = zfi_cpu_read_element(&matrix->place, matrix->channels_are_rows ? channel[i] : i,
                                                       matrix->channels_are_rows ? j : channel[j]);
        }
}

static void run_enter_state(void *raw) {
    const enter_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_step_row_t *row = zfi_row(inst, args->choice_step);
    zfi_enter_walk_t walk;
    zfi_enter_rect_t rect;
    int has_block = 0;
    zfi_enter_walk_start(&walk, inst, row);
    while (zfi_enter_walk_next(&walk, &rect)) {
        if (rect.opens_block && has_block)
            zfi_timeline_signal(&inst->enter_done, ++inst->dev.enter_block);
        if (rect.opens_block &&
            zfi_wait(inst, &inst->enter_up, inst->dev.enter_block + 1, &inst->count.stall_select_ns))
            return;
        has_block = 1;
        take_rect(inst, &rect,
                  inst->dev.enter +
                      (inst->dev.enter_block % ZFI_ENTER_BLOCKS * ZFI_ENTER_ELEMS + rect.at) * zfi_enter_arrays(inst),
                  args->choice_step);
    }
    if (has_block)
        zfi_timeline_signal(&inst->enter_done, ++inst->dev.enter_block);
    for (uint32_t i = 0; zfi_is_mean(inst) && i < inst->plan.n_matrices; i++) {
        const zfi_matrix_t *matrix = &inst->plan.matrices[i];
        if (!row->chooses[matrix->cohort])
            continue;
        for (uint32_t e = 0; e < inst->sel.n_enter[i]; e++)
            inst->dev.n[matrix->index_base + inst->sel.enter_pos[matrix->index_base + e]] =
                inst->sel.enter_n[matrix->index_base + e];
    }
}

zf_status_t zfi_cpu_enter_state(zf_instance_t *inst, uint64_t choice_step) {
    enter_args_t args = {inst, choice_step};
    return zfi_cpu_push(inst, run_enter_state, &args, sizeof args);
}

static void show_entering(zf_instance_t *inst, uint32_t number) {
    const zfi_matrix_t *matrix = &inst->plan.matrices[number];
    const uint32_t *pos = inst->sel.enter_pos + matrix->index_base;
    const uint32_t *channel = inst->sel.enter_channel + matrix->index_base;
    uint32_t n = inst->sel.n_enter[number];
    uint64_t rows = matrix->channels_are_rows ? n : matrix->rows, cols = matrix->channels_are_rows ? matrix->cols : n;
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < cols; j++)
            write_visible(&matrix->place, matrix->channels_are_rows ? channel[i] : i,
                          matrix->channels_are_rows ? j : channel[j], inst->dev.w[compact_index(matrix, pos, i, j)]);
}

static void run_enter_visible(void *raw) {
    const enter_args_t *args = raw;
    zf_instance_t *inst = args->inst;
    const zfi_step_row_t *row = zfi_row(inst, args->choice_step);
    if (atomic_load(&inst->is_poisoned))
        return;
    for (uint32_t i = 0; i < inst->plan.n_matrices; i++)
        if (row->chooses[inst->plan.matrices[i].cohort])
            show_entering(inst, i);
    zfi_timeline_signal(&inst->entered, args->choice_step + 1);
}

zf_status_t zfi_cpu_enter_visible(zf_instance_t *inst, uint64_t choice_step) {
    enter_args_t args = {inst, choice_step};
    return zfi_cpu_push(inst, run_enter_visible, &args, sizeof args);
}
