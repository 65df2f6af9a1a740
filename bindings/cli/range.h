/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/range.h - what was measured several times: the middle, and how far the times lie apart. */
#pragma once

#include <stddef.h>

typedef struct zf_cli_range {
    double least, median, most;
} zf_cli_range_t;

/* Sorts the values; n > 0. */
zf_cli_range_t zf_cli_range(double *values, size_t n);
