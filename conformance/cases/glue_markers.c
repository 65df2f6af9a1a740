/* SPDX-License-Identifier: Apache-2.0 */
/* glue_markers.c - replaces a marked part of a file, by a rename (glue_markers.h). */
#include "glue_markers.h"

#include "glue_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int write_parts(const char *path, const char *head, size_t head_nbytes, const char *text, const char *tail,
                       glue_error_t *err) {
    char part_path[4096];
    FILE *file;
    int is_written;

    if (snprintf(part_path, sizeof part_path, "%s.part", path) >= (int)sizeof part_path)
        return glue_fail(err, "%s: the path is too long", path);
    file = fopen(part_path, "wb");
    if (file == NULL)
        return glue_fail(err, "%s: cannot write: %s", part_path, strerror(errno));
    is_written = fwrite(head, 1, head_nbytes, file) == head_nbytes && fprintf(file, "\n%s%s", text, tail) >= 0;
    if (fclose(file) != 0 || !is_written || rename(part_path, path) != 0)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}

int zg_markers_replace(const char *path, const char *name, const char *text, glue_error_t *err) {
    char begin[64], end[64], *whole = zg_read_whole(path), *from, *to;
    int st;

    if (whole == NULL)
        return glue_fail(err, "%s: cannot read: %s", path, strerror(errno));
    (void)snprintf(begin, sizeof begin, "<!-- %s:begin -->", name);
    (void)snprintf(end, sizeof end, "<!-- %s:end -->", name);
    from = strstr(whole, begin);
    to = from != NULL ? strstr(from, end) : NULL;
    if (to == NULL)
        st = glue_fail(err, "%s: the lines \"%s\" and \"%s\" are needed", path, begin, end);
    else
        st = write_parts(path, whole, (size_t)(from - whole) + strlen(begin), text, to, err);
    free(whole);
    return st;
}
