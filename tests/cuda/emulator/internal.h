/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/emulator/internal.h - one launch, as the emulator's own files see it. */
#pragma once

#include "emu.h"

enum { EMU_WARP_SIZE = 32, EMU_MAX_THREADS = 1024 };
enum { EMU_PAGE = 1024, EMU_PART = 16, EMU_N_PLACES = 256, EMU_PLACES_OF_LINE = 4 };

typedef struct emu_races emu_races_t;     /* race.c */
typedef struct emu_traffic emu_traffic_t; /* traffic.c */

/* When the last of each began, by the clock of race.c. */
typedef struct emu_order {
    uint64_t launch, block, barrier;
    uint64_t warps[EMU_MAX_THREADS / EMU_WARP_SIZE]; /* meetings of all lanes of the warp */
} emu_order_t;

/* The cells of a page of memory (race.c), by its parts. */
typedef struct emu_page {
    uint64_t key;    /* address / EMU_PAGE */
    uint64_t launch; /* that last touched it */
    struct emu_cell *cells;
    uint32_t least;                     /* there is memory for cells of 1 << least bytes */
    uint8_t shift[EMU_PAGE / EMU_PART]; /* a part's cells have 1 << shift bytes */
} emu_page_t;

/* Where instructions were last: threads run through the same ones, one after the other, and neighbours touch
 * neighbouring memory. What of one page is of one range. */
typedef struct emu_place {
    uint64_t lo, nbytes; /* 0 bytes: nothing */
    unsigned char *bytes;
    emu_page_t *page;
    int is_shared;
} emu_place_t;

struct emu_launch {
    const emu_kernel_t *kernel;
    const emu_config_t *config;
    const unsigned char *params;
    unsigned char *shared;
    emu_races_t *races;
    emu_order_t order;
    uint64_t touched_nbytes; /* of global memory, read and written for the first time */
    emu_traffic_t *traffic;  /* NULL: not wanted */
    emu_place_t places[EMU_N_PLACES];
    int is_watched; /* by the thread sanitizer */
    int has_failed;
    uint64_t random;
    unsigned char nowhere[64]; /* what a bad address reads and writes */
};

/* A finding about thread x, once per kernel and PTX line. */
void emu_complain(emu_thread_t *x, const char *what, uint64_t a, int line);

/* race.c: races, and reads of shared memory that was never written. */
void emu_races_begin(emu_launch_t *l);
void emu_races_new_block(emu_launch_t *l);
void emu_races_barrier(emu_launch_t *l);
void emu_races_warp(emu_launch_t *l, uint32_t warp);
emu_page_t *emu_races_page(emu_launch_t *l, uint64_t a, uint32_t nbytes);
void emu_races_access(emu_thread_t *x, const emu_place_t *place, uint64_t a, uint32_t nbytes, emu_kind_t kind,
                      int line);

/* traffic.c */
emu_traffic_t *emu_traffic_start(const emu_kernel_t *kernel); /* NULL unless it is wanted */
void emu_traffic_add(emu_traffic_t *t, const emu_thread_t *x, uint64_t a, uint32_t nbytes, int line);
void emu_traffic_end_block(emu_traffic_t *t);
void emu_traffic_finish(emu_traffic_t *t, uint64_t least_nbytes);

/* tsan.c: global accesses as the thread sanitizer sees them, where there is one. */
int emu_tsan_is_there(void);
void emu_tsan_access(const unsigned char *p, uint32_t nbytes, emu_kind_t kind);
