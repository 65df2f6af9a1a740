/* SPDX-License-Identifier: Apache-2.0 */
/* glue_file.c - reads a file into memory (glue_file.h). */
#include "glue_file.h"

#include <stdio.h>
#include <stdlib.h>

char *zg_read_whole(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    long size;

    if (file == NULL)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        text = malloc((size_t)size + 1);
        if (text != NULL)
            text[fread(text, 1, (size_t)size, file)] = '\0';
    }
    (void)fclose(file);
    return text;
}
