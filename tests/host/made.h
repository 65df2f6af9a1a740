/* SPDX-License-Identifier: Apache-2.0 */
/* tests/host/made.h - examples without a file: rows of random pieces, whose class says which of two pieces is among
 * them. */
#pragma once

#include "host/examples.h"

enum { ZT_MADE_TRAIN = 2000, ZT_MADE_DEV = 300, ZT_MADE_PIECES = 40, ZT_MADE_TOKENS = 16 };

/* Release with host_examples_close. */
void zt_examples_make(host_examples_t *out);
