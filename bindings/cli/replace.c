/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/replace.c - a file that appears under its name when it is whole (contract in cli.h). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

enum { SUFFIX_NBYTES = 1 + 16 + 1 }; /* .0123456789abcdef */

/* Nothing is at the path, or a regular file; 1 after a message. out_mode: of that file, 0: there is none. */
static int check_target(const char *path, mode_t *out_mode) {
    struct stat info;
    *out_mode = 0;
    if (lstat(path, &info))
        return errno == ENOENT ? 0 : zf_cli_complain(path, "%s", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return zf_cli_complain(path, "is not a regular file, and nothing else is replaced: name another file");
    *out_mode = info.st_mode & 07777;
    return 0;
}

/* A name beside the path that nobody could have prepared; NULL: errno says why. */
static char *name_beside(const char *path) {
    size_t n = strlen(path) + SUFFIX_NBYTES;
    char *out = malloc(n);
    uint64_t number;
    if (!out || getrandom(&number, sizeof number, 0) != sizeof number) {
        free(out);
        return NULL;
    }
    snprintf(out, n, "%s.%016" PRIx64, path, number);
    return out;
}

static FILE *open_new(const char *name, mode_t mode) {
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    FILE *out = NULL;
    if (fd >= 0 && (!mode || fchmod(fd, mode) == 0))
        out = fdopen(fd, "wb");
    if (!out && fd >= 0) {
        int code = errno;
        close(fd);
        unlink(name);
        errno = code;
    }
    return out;
}

int zf_cli_replace_begin(const char *path, zf_cli_replace_t *out) {
    mode_t mode;
    *out = (zf_cli_replace_t){.path = path};
    if (check_target(path, &mode))
        return 1;
    out->name = name_beside(path);
    out->to = out->name ? open_new(out->name, mode) : NULL;
    if (out->to)
        return 0;
    zf_cli_complain(path, "%s", strerror(errno));
    free(out->name);
    return 1;
}

int zf_cli_replace_end(zf_cli_replace_t *file, int is_whole) {
    mode_t mode;
    int is_bad = ferror(file->to) || fflush(file->to) || fsync(fileno(file->to)), code = errno;
    if (fclose(file->to) != 0 && !is_bad) {
        is_bad = 1;
        code = errno;
    }
    if (is_whole && is_bad)
        zf_cli_complain(file->path, "%s", strerror(code ? code : EIO));
    is_bad = is_bad || !is_whole || check_target(file->path, &mode); /* again: time has passed */
    if (!is_bad && rename(file->name, file->path) != 0)
        is_bad = zf_cli_complain(file->path, "%s", strerror(errno));
    if (is_bad)
        unlink(file->name);
    free(file->name);
    return is_bad;
}
