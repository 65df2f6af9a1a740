/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/fuzz.c - see fuzz.h. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *fuzz_copy(const void *data, size_t nbytes) {
    void *out = malloc(nbytes ? nbytes : 1);
    FUZZ_CHECK(out != NULL, "no memory for %zu bytes", nbytes);
    if (nbytes)
        memcpy(out, data, nbytes);
    return out;
}

void fuzz_file_start(fuzz_file_t *file, const void *data, size_t nbytes) {
    size_t done = 0;
    file->fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(file->fd >= 0, "memfd_create failed");
    while (done < nbytes) {
        ssize_t n = write(file->fd, (const char *)data + done, nbytes - done);
        FUZZ_CHECK(n > 0, "cannot write a file in memory");
        done += (size_t)n;
    }
    snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
}

void fuzz_file_end(fuzz_file_t *file) { close(file->fd); }
