/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/range.c - what was measured several times (contract in range.h). */
#include "range.h"

#include <stdlib.h>

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

zf_cli_range_t zf_cli_range(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_size);
    return (zf_cli_range_t){values[0], values[n / 2], values[n - 1]};
}
