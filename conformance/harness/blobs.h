/* SPDX-License-Identifier: Apache-2.0 */
/* harness/blobs.h - a host's store of checkpoint blobs (zf_state_store_t): files of a directory. One blob at a time is
 * written. */
#pragma once

#include <stdio.h>

#include "zf/ext/state.h"

typedef struct blobs {
    zf_state_store_t table;
    const char *dir; /* borrowed; there before a blob is */
    FILE *open;      /* that is being written */
} blobs_t;

/* The store must stay where it is: the table refers to it. */
void blobs_init(blobs_t *blobs, const char *dir);

/* Removes a file, or a directory with all that is in it, where there is one. */
void blobs_remove(const char *path);
