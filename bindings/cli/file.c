/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/file.c - files that anybody may have made, read without waiting for them (contract in cli.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

int zf_cli_complain(const char *path, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "zf: ");
    zf_cli_print(stderr, path);
    fprintf(stderr, ": ");
    zf_cli_print(stderr, text);
    fprintf(stderr, "\n");
    return 1;
}

/* Opens a regular file, waiting for nothing; -1 after a message. */
static int open_file(const char *path, uint64_t *out_nbytes) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info)) {
        zf_cli_complain(path, "%s", strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        zf_cli_complain(path, "is not a regular file");
    } else {
        *out_nbytes = (uint64_t)info.st_size;
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The next nbytes of a file with a NUL behind them, to be freed; NULL: errno says why. */
static char *read_bytes(int fd, size_t nbytes) {
    char *out = malloc(nbytes + 1);
    size_t done = 0;
    while (out && done < nbytes) {
        ssize_t n = read(fd, out + done, nbytes - done);
        if (n <= 0) {
            errno = n < 0 ? errno : EIO;
            free(out);
            return NULL;
        }
        done += (size_t)n;
    }
    if (out)
        out[nbytes] = '\0';
    return out;
}

char *zf_cli_read_file(const char *path, uint64_t most_nbytes, size_t *out_nbytes) {
    uint64_t nbytes;
    char *out;
    int fd = open_file(path, &nbytes);
    if (fd < 0)
        return NULL;
    if (nbytes > most_nbytes) {
        zf_cli_complain(path, "has %llu bytes; at most %llu are read", (unsigned long long)nbytes,
                        (unsigned long long)most_nbytes);
        close(fd);
        return NULL;
    }
    out = read_bytes(fd, (size_t)nbytes);
    if (out)
        *out_nbytes = (size_t)nbytes;
    else
        zf_cli_complain(path, "%s", strerror(errno));
    close(fd);
    return out;
}
