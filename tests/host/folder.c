/* SPDX-License-Identifier: Apache-2.0 */
/* tests/host/folder.c - see folder.h. */
#define _POSIX_C_SOURCE 200809L
#include "folder.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[] = "/tmp/zf_test_host_XXXXXX";

void zt_folder_make(void) { ck_assert_ptr_nonnull(mkdtemp(folder)); }

void zt_folder_remove(void) {
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
    memcpy(folder + sizeof folder - 7, "XXXXXX", 6);
}

const char *zt_path(const char *name) {
    static char paths[2][256];
    static int turn;
    turn = !turn;
    (void)snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}

void zt_write(const char *name, const void *bytes, size_t nbytes) {
    FILE *file = fopen(zt_path(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, nbytes, file), nbytes);
    ck_assert_int_eq(fclose(file), 0);
}

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
