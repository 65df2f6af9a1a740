/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/schedule/expect.c - gradients that a step has, and those it misses (contract in expect.h).
 *
 * Every step goes through all parameters here: bytes alone, and loops without a branch. */
#include "schedule/expect.h"

static uint32_t count_present(const uint8_t *present, uint32_t n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += present[i];
    return count;
}

/* Present ones of which no delivery ended the sum. */
static uint32_t count_open(const uint8_t *present, const uint8_t *is_shipped, uint32_t n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += present[i] & (is_shipped[i] ^ 1);
    return count;
}

static uint32_t count_missing(const uint8_t *present, const uint8_t *is_expected, uint32_t n) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += (is_expected[i] == ZFI_EXPECT_ALWAYS) & (present[i] ^ 1);
    return count;
}

static void note_expected(const uint8_t *restrict present, uint8_t *restrict is_expected, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint8_t now = is_expected[i] == ZFI_EXPECT_UNKNOWN ? ZFI_EXPECT_ALWAYS : is_expected[i];
        is_expected[i] = present[i] ? now : ZFI_EXPECT_NOT;
    }
}

uint32_t zfi_expect_note(zfi_incoming_t *incoming, uint32_t n_params, zfi_step_row_t *row) {
    uint8_t *is_expected = incoming->is_expected;
    row->n_present = count_present(row->present, n_params);
    row->n_missing = count_missing(row->present, is_expected, n_params);
    row->first_missing = 0;
    while (row->n_missing && (row->present[row->first_missing] || is_expected[row->first_missing] != ZFI_EXPECT_ALWAYS))
        row->first_missing++;
    note_expected(row->present, is_expected, n_params); /* missing once, it is not missed again */
    return count_open(row->present, incoming->is_shipped, n_params);
}
