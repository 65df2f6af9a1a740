/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/select.c - the host's side of a choice (contract in select.h; rules in SCHEDULE.md, steps 4, 8 and
 * 9).
 *
 * The control thread is the only writer of importance and of the host's maps. */
#include "schedule/select.h"

#include "instance/moments.h"

/* ---- records and maps -------------------------------------------------------------------------------------------- */

void zfi_select_add_record(const zfi_plan_t *plan, zfi_selection_t *sel, const zfi_step_row_t *row, uint32_t part) {
    const double *record = zfi_record_part(plan, sel, zfi_first_record_part(plan, row->t) + part);
    uint64_t first = part * plan->record_sums, end = first + plan->record_sums;
    if (!row->scalars.applied)
        return;
    for (uint32_t i = 0; i < plan->n_matrices; i++) {
        const zfi_matrix_t *matrix = &plan->matrices[i];
        uint64_t from = matrix->sum_base > first ? matrix->sum_base : first, to = matrix->sum_base + matrix->n_channels;
        if (!matrix->is_choosable || !row->present[matrix->param] || !zfi_select_counts(sel, i))
            continue;
        for (uint64_t c = from; c < (to < end ? to : end); c++)
            sel->importance[c] += row->scalars.s_exact * record[c - first];
    }
}

static void update_map(const zfi_host_state_t *hs, zfi_selection_t *sel, const zfi_matrix_t *matrix, uint32_t n_enter) {
    const uint32_t *position = sel->enter_pos + matrix->index_base, *channel = sel->enter_channel + matrix->index_base;
    uint8_t *mask = sel->mask + matrix->channel_base;
    for (uint32_t e = 0; e < n_enter; e++) {
        uint32_t *held = &sel->index[matrix->index_base + position[e]];
        if (sel->last_choice)
            mask[*held] = 0;
        *held = channel[e];
        if (sel->enter_n)
            sel->enter_n[matrix->index_base + e] = hs->n[zfi_count_at(matrix, channel[e])];
    }
    for (uint32_t e = 0; e < n_enter; e++)
        mask[channel[e]] = 1;
}

void zfi_select_update_maps(const zfi_state_t *state) {
    const zfi_plan_t *plan = state->plan;
    for (uint32_t i = 0; i < plan->n_matrices; i++)
        update_map(state->host, state->sel, &plan->matrices[i], state->sel->n_enter[i]);
}

/* ---- blocks of entering state ------------------------------------------------------------------------------------ */

static void gather_rect(const zfi_state_t *state, const zfi_enter_rect_t *rect, float *out) {
    const zfi_plan_t *plan = state->plan;
    const zfi_matrix_t *matrix = &plan->matrices[rect->matrix];
    zfi_moments_t kind = matrix->moments;
    const uint32_t *channels = state->sel->enter_channel + matrix->index_base;
    uint64_t n = rect->na * rect->nb, at = 0, first_row = matrix->held_first / matrix->cols;
    uint32_t n_moments = state->n_moments, chunk = 0;
    for (uint64_t i = rect->a0; i < rect->a0 + rect->na; i++)
        for (uint64_t j = rect->b0; j < rect->b0 + rect->nb; j++, at++) {
            uint64_t r = matrix->channels_are_rows ? channels[i] : first_row + i;
            uint64_t c = matrix->channels_are_rows ? j : channels[j];
            uint64_t from = zfi_state_find(matrix, r * matrix->cols + c);
            if (from == ZFI_NOT_OWNED) { /* another rank's: its bits are joined to these */
                out[at] = 0.0f;
                for (uint32_t k = 1; k <= n_moments; k++)
                    out[k * n + at] = 0.0f;
                continue;
            }
            chunk = zfi_state_chunk(plan, from, chunk);
            const zfi_chunk_state_t *of = &state->host->chunks[chunk];
            from -= plan->chunks[chunk].state_base;
            out[at] = of->w[from];
            if (n_moments > 0)
                zfi_moments_get(kind, ZFI_M, of->m, from, 1, &out[n + at]);
            if (n_moments > 1)
                zfi_moments_get(kind, ZFI_V, of->v, from, 1, &out[2 * n + at]);
        }
}

/* The rest of the present matrix, as far as a block with `fill` elements takes it; 0 where not even one row fits. */
static int take_rect(zfi_enter_walk_t *walk, uint64_t rows, uint64_t cols, uint32_t fill, zfi_enter_rect_t *out) {
    uint64_t nb = cols - walk->b < ZFI_ENTER_ELEMS ? cols - walk->b : ZFI_ENTER_ELEMS;
    uint64_t na = (ZFI_ENTER_ELEMS - fill) / nb;
    if (na == 0)
        return 0;
    if (na > rows - walk->a)
        na = rows - walk->a;
    *out = (zfi_enter_rect_t){walk->matrix, fill, walk->a, na, walk->b, nb};
    walk->a += na;
    if (walk->a >= rows) {
        walk->a = 0;
        walk->b += nb;
    }
    return 1;
}

uint32_t zfi_enter_walk_fill(zfi_enter_walk_t *walk, zfi_enter_block_t *block) {
    const zfi_plan_t *plan = walk->state->plan;
    uint32_t fill = 0;
    block->n_rects = 0;
    while (walk->matrix < plan->n_matrices && block->n_rects < ZFI_ENTER_RECTS) {
        const zfi_matrix_t *matrix = &plan->matrices[walk->matrix];
        uint32_t n_enter = walk->state->sel->n_enter[walk->matrix];
        uint64_t per_channel = matrix->is_sharded == walk->is_sharded ? zfi_channel_elems(matrix) : 0;
        uint64_t rows = matrix->channels_are_rows ? n_enter : per_channel;
        uint64_t cols = matrix->channels_are_rows ? per_channel : n_enter;
        zfi_enter_rect_t *rect = &block->rects[block->n_rects];
        if (rows == 0 || walk->b >= cols) {
            walk->matrix++;
            walk->a = walk->b = 0;
            continue;
        }
        if (!take_rect(walk, rows, cols, fill, rect))
            break;
        gather_rect(walk->state, rect, block->values + (uint64_t)fill * zfi_enter_arrays(walk->state->n_moments));
        fill += (uint32_t)(rect->na * rect->nb);
        block->n_rects++;
    }
    return fill;
}
