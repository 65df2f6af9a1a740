/* SPDX-License-Identifier: Apache-2.0 */
/* tests/device/shuffled_memory.h - what the shuffling backend (shuffle.c) has given, pinned, released and freed, and
 * whether operations keep to it. All that is wrong ends the process with a message. */
#pragma once

#include <pthread.h>

#include "device/device.h"

enum { SHUFFLED_POISON = 0xA5 }; /* what released and freed memory is filled with */

typedef enum shuffled_kind { SHUFFLED_DEVICE, SHUFFLED_RELEASED, SHUFFLED_FREED, SHUFFLED_PINNED } shuffled_kind_t;

typedef struct shuffled {
    pthread_mutex_t lock;
    struct shuffled_memory *first;
} shuffled_t;

void shuffled_init(shuffled_t *shuffled);
/* Everything must be freed or unpinned. Whoever wrote freed memory is caught here. */
void shuffled_free(shuffled_t *shuffled);
void shuffled_add(shuffled_t *shuffled, shuffled_kind_t kind, void *base, uint64_t nbytes);
/* what: said where there is no such memory. */
void shuffled_end(shuffled_t *shuffled, shuffled_kind_t kind, void *base, uint64_t nbytes, const char *what);
/* Release or resume: it comes back with something else in it. */
void shuffled_turn(shuffled_t *shuffled, const zfi_block_t *blocks, uint32_t n, shuffled_kind_t from,
                   shuffled_kind_t to);
/* Both sides of a copy, or the target of a fill. */
void shuffled_check(shuffled_t *shuffled, const zfi_op_t *op);

_Noreturn void shuffled_fail(const char *what, const void *at, uint64_t nbytes);
/* Zeroed, and never NULL. */
void *shuffled_allocate(size_t nbytes);
