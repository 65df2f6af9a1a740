/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/config.c - `zf config`: the keys as an INI file with comments, or what holds with a given file.
 *
 * Model: the plugin reads and judges the file; an instance that is created with it and bound to nothing says the
 * effective values. What is printed is an INI file again. */
#include <string.h>

#include "cli.h"
#include "zf/ext/config.h"

enum { VALUE_NBYTES = 256, LINE_MAX_NBYTES = 199, MOST_NOTES = 32, NOTE_NBYTES = 400 };

/* ---- what create says -------------------------------------------------------------------------------------------- */

typedef struct notes {
    int n;
    char all[MOST_NOTES][NOTE_NBYTES];
} notes_t;

static void take_note(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *text,
                      uint64_t nbytes) {
    notes_t *notes = ctx;
    (void)component, (void)file, (void)line;
    if (level <= ZF_LOG_WARN && notes->n < MOST_NOTES)
        snprintf(notes->all[notes->n++], NOTE_NBYTES, "%.*s", (int)nbytes, text);
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

/* A file takes what is behind it for a comment. */
static int has_comment(const char *value) {
    const char *at = strchr(value, ';');
    while (at && at != value && at[-1] != ' ' && at[-1] != '\t')
        at = strchr(at + 1, ';');
    return at != NULL;
}

/* Each key with its value, and where a line has room its default, if that is another one. */
static int print_values(const zf_config_ext_t *config, zf_instance_t *inst) {
    const char *section = "";
    for (uint32_t i = 0; i < config->n_keys(); i++) {
        zf_error_t err = {.struct_size = sizeof err};
        zf_config_key_t key = {.struct_size = sizeof key};
        char value[VALUE_NBYTES];
        if (config->key(i, &key, &err) < 0 || config->value(inst, i, value, sizeof value, &err) < 0)
            return zf_cli_fail(&err);
        if (has_comment(value))
            return zf_cli_complain(key.key, "no file can say \"%s\": \" ;\" begins a comment", value);
        if (strcmp(section, key.section) != 0)
            printf("\n[%s]\n", key.section);
        section = key.section;
        printf("%s = %s", key.key, value);
        if (strcmp(value, key.default_value) != 0 &&
            snprintf(NULL, 0, "%s = %s ; default %s", key.key, value, key.default_value) <= LINE_MAX_NBYTES)
            printf(" ; default %s", key.default_value);
        printf("\n");
    }
    return 0;
}

/* Shows a file, which the plugin reads and judges. */
static int show(zf_cli_t *cli, const zf_config_ext_t *config, const char *path, char **overrides, int n_overrides) {
    static notes_t notes;
    zf_host_t host = {.struct_size = sizeof host, .name = "zf", .version = "1", .ctx = &notes, .log = take_note};
    zf_create_args_t args = {.struct_size = sizeof args,
                             .host = &host,
                             .config_path = path,
                             .overrides = (const char *const *)overrides,
                             .n_overrides = (uint32_t)n_overrides,
                             .device_type = ZF_DEVICE_CPU};
    zf_error_t err = {.struct_size = sizeof err};
    zf_instance_t *inst;
    if (zf_loader_plugin(cli->loader)->create(&args, &inst, &err) < 0)
        return zf_cli_fail(&err);
    printf("# ");
    zf_cli_print(stdout, path);
    printf(": correct. What holds on a CPU for a trainer that does not fetch:\n");
    for (int i = 0; i < notes.n; i++) {
        printf("# ");
        zf_cli_print(stdout, notes.all[i]);
        printf("\n");
    }
    int status = print_values(config, inst);
    zf_loader_plugin(cli->loader)->destroy(inst, NULL);
    return status;
}

int zf_cli_config(zf_cli_t *cli, int argc, char **argv) {
    const char *section = "";
    const zf_config_ext_t *config = zf_cli_extension(cli, ZF_EXT_CONFIG);
    if (!config)
        return 1;
    if (argc >= 1)
        return show(cli, config, argv[0], argv + 1, argc - 1);
    for (uint32_t i = 0; i < config->n_keys(); i++) {
        zf_error_t err = {.struct_size = sizeof err};
        zf_config_key_t key = {.struct_size = sizeof key};
        if (config->key(i, &key, &err) < 0)
            return zf_cli_fail(&err);
        if (strcmp(section, key.section) != 0)
            printf("%s[%s]\n", i ? "\n" : "", key.section);
        section = key.section;
        printf("# %s\n# %s: %s\n%s = %s\n", key.doc, key.type, key.range, key.key, key.default_value);
    }
    return 0;
}
