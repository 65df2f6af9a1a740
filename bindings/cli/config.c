/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/config.c - `zf config`: the keys as an INI file with comments, or the check of a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "zf/ext/config.h"

enum { MOST_NBYTES = 1 << 20 };

static int check_file(const zf_config_ext_t *config, const char *path) {
    zf_error_t err = {.struct_size = sizeof err};
    FILE *file = fopen(path, "rb");
    char *text = malloc(MOST_NBYTES + 1);
    size_t n = file && text ? fread(text, 1, MOST_NBYTES + 1, file) : 0;
    int is_read = file && text && !ferror(file), status = 1;
    if (!is_read)
        perror(path);
    else if (config->check(text, n, NULL, 0, &err) < 0)
        zf_cli_fail(&err);
    else
        status = 0;
    if (status == 0)
        printf("%s: correct\n", path);
    if (file)
        fclose(file);
    free(text);
    return status;
}

int zf_cli_config(zf_cli_t *cli, int argc, char **argv) {
    const zf_config_ext_t *config;
    const char *section = "";
    if (argc > 1)
        return 2;
    config = zf_cli_extension(cli, ZF_EXT_CONFIG);
    if (!config)
        return 1;
    if (argc == 1)
        return check_file(config, argv[0]);
    for (uint32_t i = 0; i < config->n_keys(); i++) {
        zf_error_t err = {.struct_size = sizeof err};
        zf_config_key_t key = {.struct_size = sizeof key};
        if (config->key(i, &key, &err) < 0)
            return zf_cli_fail(&err);
        if (strcmp(section, key.section) != 0)
            printf("%s[%s]\n", i ? "\n" : "", key.section);
        section = key.section;
        printf("# %s\n# %s: %s\n%s = %s\n", key.doc, key.type, key.range, key.key, key.deflt);
    }
    return 0;
}
