/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/lines.c - a file of lines (contract in lines.h). */
#include "base/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int take(int fd, zfi_lines_t *out) {
    struct stat info;
    char last = '\n';
    if (fstat(fd, &info) != 0)
        return errno;
    if (!S_ISREG(info.st_mode))
        return ENOTSUP;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return errno;
    if (info.st_size && pread(fd, &last, 1, info.st_size - 1) != 1)
        return errno ? errno : EIO;
    *out = (zfi_lines_t){.fd = fd, .is_torn = last != '\n'};
    return 0;
}

int zfi_lines_open(const char *path, zfi_lines_t *out) {
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666), rc;
    if (fd < 0)
        return errno;
    rc = take(fd, out);
    if (rc)
        close(fd);
    return rc;
}

void zfi_lines_close(zfi_lines_t *lines) {
    if (!lines)
        return;
    (void)flock(lines->fd, LOCK_UN); /* a forked child has the file open still */
    close(lines->fd);
}

static int add(zfi_lines_t *lines, const char *text, size_t nbytes) {
    while (nbytes) {
        ssize_t n = write(lines->fd, text, nbytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        text += n;
        nbytes -= (size_t)n;
        lines->is_torn = nbytes != 0;
    }
    return 0;
}

int zfi_lines_add(zfi_lines_t *lines, const char *text, size_t nbytes) {
    int rc = lines->is_torn ? add(lines, "\n", 1) : 0;
    return rc ? rc : add(lines, text, nbytes);
}
