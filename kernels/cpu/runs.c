/* SPDX-License-Identifier: Apache-2.0 */
/* runs.c - moments in 8 bits: a run of values and its codes, scalar (SCHEDULE.md, "Moments"). runs.h does the same by
 * vectors.
 *
 * Model. The bits of fp32 numbers without sign rise with the numbers. A grid has every 2^s-th of them, s <= 20, so that
 * none of its cells holds a power of two: in a cell the bits are linear in the number, and a number is rounded without
 * bias by adding s random bits to its own and cutting. A code counts cells of the grid. */
#include <string.h>

#include "../kernels.h"
#include "grids.h"

#define NEAREST 0x80000000u

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void zfi_run8_get(const zfi_run8_t *run, zfi_moment_t which, float *out) {
    for (uint32_t i = 0; i < ZFI_RUN; i++) {
        const uint32_t code = run->code[i], cell = code & 0x7fu;

        if (which == ZFI_V)
            out[i] = float_of(code ? zfi_grid_least(run->grid) + ((code - 1) << zfi_grid_shift(run->grid)) : 0);
        else
            out[i] = float_of(cell ? (code & 0x80u) << 24 | (run->grid + cell) << ZFI_GRID_COARSEST : 0);
    }
}

/* The largest of the bits without sign, and the smallest but 0, or 0. */
static zfi_grid_range_t range_of(const float *values) {
    zfi_grid_range_t range = {0, UINT32_MAX};
    for (uint32_t i = 0; i < ZFI_RUN; i++) {
        const uint32_t bits = bits_of(values[i]) & 0x7fffffffu;

        range.most = bits > range.most ? bits : range.most;
        range.least = bits && bits < range.least ? bits : range.least;
    }
    range.least = range.most ? range.least : 0;
    return range;
}

static uint8_t code_of_v(const zfi_grid_t *grid, float x, uint32_t random) {
    uint32_t bits = bits_of(x) & 0x7fffffffu;
    if (!bits)
        return 0;
    bits = bits < grid->least ? grid->least : bits;
    return (uint8_t)(((bits + (random >> (32 - grid->shift))) >> grid->shift) - grid->before);
}

static uint8_t code_of_m(const zfi_grid_t *grid, float x, uint32_t random) {
    const uint32_t sign = bits_of(x) >> 24 & 0x80u, bits = bits_of(x) & 0x7fffffffu, part = random >> 12;
    if (bits < grid->least)
        return (uint8_t)(sign | (float_of(bits) > (float)part * grid->least_share ? 1 : 0));
    return (uint8_t)(sign | (((bits + part) >> ZFI_GRID_COARSEST) - grid->before));
}

void zfi_run8_put(zfi_run8_t *run, zfi_moment_t which, const float *values, const uint32_t *random) {
    const zfi_grid_range_t range = range_of(values);
    const zfi_grid_t grid = which == ZFI_V ? zfi_grid_of_v(range) : zfi_grid_of_m(range.most);
    for (uint32_t i = 0; i < ZFI_RUN; i++) {
        const uint32_t r = grid.is_edge ? 0 : random ? random[i] : NEAREST;

        run->code[i] = which == ZFI_V ? code_of_v(&grid, values[i], r) : code_of_m(&grid, values[i], r);
    }
    run->grid = grid.kept;
}
