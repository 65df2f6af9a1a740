/* SPDX-License-Identifier: Apache-2.0 */
/* tests/host/tensors.c - see tensors.h. */
#include "tensors.h"

#include <stdlib.h>
#include <string.h>

#include "suite.h"

void zt_write_tensors(const char *name, const char *header, uint64_t claimed, const void *data, size_t nbytes) {
    size_t n = strlen(header);
    unsigned char *bytes = malloc(8 + n + nbytes);
    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(claimed >> (8 * i));
    memcpy(bytes + 8, header, n);
    if (nbytes > 0)
        memcpy(bytes + 8 + n, data, nbytes);
    zt_write(name, bytes, 8 + n + nbytes);
    free(bytes);
}
