/* plugin/select.h - which channels run ahead: importance records, choices, and the state of channels that enter. */
#ifndef ZFI_SELECT_H
#define ZFI_SELECT_H

#include "instance.h"

/* A rectangle of entering state: rows [a0, a0 + na) and columns [b0, b0 + nb) of a matrix, where the channel axis
 * counts entries of the matrix's list of entering channels. Rectangles are packed into blocks of ZFI_ENTER_ELEMS
 * elements, the unit of handing over: this one starts at element `at` of its block, all of its w first, then m, v. */
typedef struct zfi_enter_rect {
    uint32_t matrix, at;
    int opens_block; /* its block is the next one, with nothing before it */
    uint64_t a0, na, b0, nb;
} zfi_enter_rect_t;

/* Walks the rectangles of a choice in one fixed order; producer (control) and consumer (device) walk it alike. */
typedef struct zfi_enter_walk {
    const zf_instance_t *inst;
    const zfi_step_row_t *row;
    uint32_t cohort, at; /* matrix number `at` of the cohort's list */
    uint32_t fill;       /* elements of the newest block that are taken */
    uint64_t a, b;
} zfi_enter_walk_t;

void zfi_enter_walk_start(zfi_enter_walk_t *walk, const zf_instance_t *inst, const zfi_step_row_t *row);
int zfi_enter_walk_next(zfi_enter_walk_t *walk, zfi_enter_rect_t *out);

/* [hook] Enqueues the control work of step t on the control stream. */
zf_status_t zfi_select_push(zf_instance_t *inst, uint64_t t);

#endif
