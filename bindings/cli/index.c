/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/index.c - the index of a checkpoint, read as what it is: a file that anybody may have made. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "progress.h"
#include "zf/ext/state.h"

static const off_t LARGEST = (off_t)1 << 30;

static json_t *complain(const char *dir, const char *what) {
    zf_cli_progress_end();
    fprintf(stderr, "zf: %s/%s: ", dir, ZF_STATE_INDEX);
    zf_cli_print(stderr, what);
    fprintf(stderr, "\n");
    return NULL;
}

static json_t *parse(const char *dir, int fd) {
    struct stat info;
    json_error_t problem;
    json_t *out;
    char *text;
    if (fstat(fd, &info))
        return complain(dir, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return complain(dir, "is not a regular file");
    if (info.st_size > LARGEST)
        return complain(dir, "has more than 1 GiB: no index of a checkpoint");
    text = zf_cli_read_fd(fd, (size_t)info.st_size);
    if (!text)
        return complain(dir, strerror(errno));
    out = json_loadb(text, (size_t)info.st_size, JSON_REJECT_DUPLICATES, &problem);
    free(text);
    return out ? out : complain(dir, problem.text);
}

json_t *zf_cli_read_index(const char *dir) {
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;
    json_t *out;
    if (dir_fd < 0)
        return complain(dir, strerror(errno));
    fd = openat(dir_fd, ZF_STATE_INDEX, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close(dir_fd);
    if (fd < 0)
        return complain(dir, errno == ELOOP ? "is a symbolic link" : strerror(errno));
    out = parse(dir, fd);
    close(fd);
    return out;
}

json_t *zf_cli_open_index(zf_cli_t *cli, const char *dir) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_args_t args = {.struct_size = sizeof args, .path = dir};
    const zf_state_ext_t *state = access(dir, F_OK) ? zf_cli_extension(cli, ZF_EXT_STATE) : NULL;
    if (state && state->verify(&args, NULL, &err) < 0) {
        zf_cli_fail(&err);
        return NULL;
    }
    return zf_cli_read_index(dir);
}
