/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/config.c - `zf config`: the keys as an INI file with comments, or what holds with a given file and why.
 *
 * Model: the plugin reads and judges the file; an instance that is created with it and bound to nothing says the
 * effective values. Only where a key stands is looked for here. What is printed is an INI file again. */
#include <ini.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "zf/ext/config.h"

enum { MOST_NBYTES = 1 << 20, MOST_KEYS = 256, VALUE_NBYTES = 128, MOST_NOTES = 32, NOTE_NBYTES = 400 };

/* Where keys were given: a line of the file, or a place among the overrides (negative). */
typedef struct origins {
    const zf_config_ext_t *config;
    const char *next; /* what is left of the text */
    int line;
    int of_key[MOST_KEYS]; /* 0: nowhere */
} origins_t;

static void note_origin(origins_t *origins, const char *section, const char *name, int origin) {
    uint32_t n = origins->config->n_keys();
    for (uint32_t i = 0; i < n && i < MOST_KEYS; i++) {
        zf_config_key_t key = {.struct_size = sizeof key};
        if (origins->config->key(i, &key, NULL) >= 0 && strcmp(key.section, section) == 0 && strcmp(key.key, name) == 0)
            origins->of_key[i] = origin;
    }
}

/* inih's fgets, which counts lines and takes leading blanks away: inih would take an indented key for a continuation.
 */
static char *next_line(char *buf, int nbytes, void *raw) {
    origins_t *origins = raw;
    size_t n = strcspn(origins->next, "\n"), blanks = strspn(origins->next, " \t\r\v\f");
    if (*origins->next == '\0')
        return NULL;
    origins->line++;
    snprintf(buf, (size_t)nbytes, "%.*s", (int)(n > blanks ? n - blanks : 0),
             origins->next + (n > blanks ? blanks : 0));
    origins->next += n + (origins->next[n] == '\n');
    return buf;
}

static int take_line(void *raw, const char *section, const char *name, const char *value) {
    origins_t *origins = raw;
    (void)value;
    note_origin(origins, section, name, origins->line);
    return 1;
}

/* text was found correct by the plugin. */
static void find_origins(const char *text, char **overrides, int n_overrides, origins_t *out) {
    out->next = strncmp(text, "\xEF\xBB\xBF", 3) == 0 ? text + 3 : text;
    ini_parse_stream(next_line, out, take_line, out);
    for (int i = 0; i < n_overrides; i++) {
        char section[64], name[64];
        if (sscanf(overrides[i], " %63[^. ] . %63[^= ]", section, name) == 2)
            note_origin(out, section, name, -1 - i);
    }
}

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

static void print_origin(const char *path, const char *const *overrides, const char *value, const char *deflt,
                         int origin) {
    if (origin > 0) {
        zf_cli_print(stdout, path);
        printf(":%d", origin);
    } else if (origin < 0) {
        zf_cli_print(stdout, overrides[-1 - origin]);
    } else if (strcmp(value, deflt) == 0) {
        printf("default");
    } else {
        printf("default %s", deflt);
    }
}

static int print_values(zf_instance_t *inst, const origins_t *origins, const char *path, const char *const *overrides) {
    const zf_config_ext_t *config = origins->config;
    const char *section = "";
    for (uint32_t i = 0; i < config->n_keys() && i < MOST_KEYS; i++) {
        zf_error_t err = {.struct_size = sizeof err};
        zf_config_key_t key = {.struct_size = sizeof key};
        char value[VALUE_NBYTES], pair[2 * VALUE_NBYTES];
        if (config->key(i, &key, &err) < 0 || config->value(inst, i, value, sizeof value, &err) < 0)
            return zf_cli_fail(&err);
        if (strcmp(section, key.section) != 0)
            printf("\n[%s]\n", key.section);
        section = key.section;
        snprintf(pair, sizeof pair, "%s = %s", key.key, value);
        printf("%-32s ; ", pair);
        print_origin(path, overrides, value, key.deflt, origins->of_key[i]);
        printf("\n");
    }
    return 0;
}

static int show(zf_cli_t *cli, const zf_config_ext_t *config, const char *path, const char *text, char **overrides,
                int n_overrides) {
    static notes_t notes;
    origins_t origins = {.config = config};
    zf_host_t host = {.struct_size = sizeof host, .name = "zf", .version = "1", .ctx = &notes, .log = take_note};
    zf_create_args_t args = {.struct_size = sizeof args,
                             .host = &host,
                             .config_text = text,
                             .overrides = (const char *const *)overrides,
                             .n_overrides = (uint32_t)n_overrides,
                             .device_type = ZF_DEVICE_CPU};
    zf_error_t err = {.struct_size = sizeof err};
    zf_instance_t *inst;
    int status;
    if (zf_loader_plugin(cli->loader)->create(&args, &inst, &err) < 0)
        return zf_cli_fail(&err);
    find_origins(text, overrides, n_overrides, &origins);
    printf("# ");
    zf_cli_print(stdout, path);
    printf(": correct. What holds on a CPU for a trainer that does not fetch:\n");
    for (int i = 0; i < notes.n; i++) {
        printf("# ");
        zf_cli_print(stdout, notes.all[i]);
        printf("\n");
    }
    status = print_values(inst, &origins, path, args.overrides);
    zf_loader_plugin(cli->loader)->destroy(inst, NULL);
    return status;
}

/* The plugin calls the text "config_text"; the user knows it by its path. */
static int refuse(const char *path, const char *message) {
    static const char own_name[] = "config_text:";
    fprintf(stderr, "zf: ");
    for (const char *at = message, *found; *at; at = found) {
        char part[512];
        found = strstr(at, own_name);
        if (!found)
            found = at + strlen(at);
        snprintf(part, sizeof part, "%.*s", (int)(found - at), at);
        zf_cli_print(stderr, part);
        if (*found) {
            zf_cli_print(stderr, path);
            found += sizeof own_name - 2; /* the colon stays */
        }
    }
    fprintf(stderr, "\n");
    return 1;
}

static int check_file(zf_cli_t *cli, const zf_config_ext_t *config, const char *path, char **overrides,
                      int n_overrides) {
    zf_error_t err = {.struct_size = sizeof err};
    size_t n;
    char *text = zf_cli_read_file(path, MOST_NBYTES, &n);
    int status = 1;
    if (!text)
        return 1;
    if (n == 0) /* a text of 0 bytes is NUL-terminated: the same */
        text[0] = '\0';
    if (config->check(text, n, (const char *const *)overrides, (uint32_t)n_overrides, &err) < 0)
        status = refuse(path, err.message);
    else
        status = show(cli, config, path, text, overrides, n_overrides);
    free(text);
    return status;
}

int zf_cli_config(zf_cli_t *cli, int argc, char **argv) {
    const zf_config_ext_t *config;
    const char *section = "";
    config = zf_cli_extension(cli, ZF_EXT_CONFIG);
    if (!config)
        return 1;
    if (argc >= 1)
        return check_file(cli, config, argv[0], argv + 1, argc - 1);
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
