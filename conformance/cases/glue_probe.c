/* SPDX-License-Identifier: Apache-2.0 */
/* glue_probe.c - creates an instance in a child process and sends its effective configuration back (glue_probe.h). */
#define _POSIX_C_SOURCE 200809L
#include "glue_probe.h"

#include "zf/ext/config.h"
#include "zf_loader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_S = 60 };

/* What the child sends, whole, through the pipe. */
typedef struct answer {
    int has_failed;
    char text[sizeof((glue_error_t *)0)->text];
    zg_probe_t probe;
} answer_t;

static void read_values(const zf_plugin_t *zf, zf_instance_t *instance, char *out, size_t nbytes) {
    const zf_config_ext_t *config = zf->get_extension(ZF_EXT_CONFIG);
    size_t used = 0;

    for (uint32_t i = 0; config != NULL && i < config->n_keys(); i++) {
        zf_config_key_t key;
        char value[256] = "";

        memset(&key, 0, sizeof key);
        key.struct_size = sizeof key;
        if (config->key(i, &key, NULL) < 0 || config->value(instance, i, value, sizeof value, NULL) < 0)
            continue;
        if (used + strlen(key.section) + strlen(key.key) + strlen(value) + 4 < nbytes)
            used += (size_t)snprintf(out + used, nbytes - used, "%s.%s=%s\n", key.section, key.key, value);
    }
}

static void probe_here(const char *plugin_path, const zf_create_args_t *args, answer_t *out) {
    zf_error_t error;
    zf_loader_t *loader = NULL;
    zf_instance_t *instance = NULL;
    zf_description_t description;
    const zf_plugin_t *zf;

    memset(&error, 0, sizeof error);
    error.struct_size = sizeof error;
    memset(&description, 0, sizeof description);
    description.struct_size = sizeof description;
    out->has_failed = 1;
    if (zf_loader_open(plugin_path, &loader, &error) >= 0) {
        zf = zf_loader_plugin(loader);
        if (zf->describe(&description, &error) >= 0 && zf->create(args, &instance, &error) >= 0) {
            out->has_failed = 0;
            (void)snprintf(out->probe.version, sizeof out->probe.version, "%s",
                           description.version != NULL ? description.version : "?");
            read_values(zf, instance, out->probe.values, sizeof out->probe.values);
            zf->destroy(instance);
        }
    }
    if (out->has_failed)
        (void)snprintf(out->text, sizeof out->text, "%s", error.message);
}

static void run_child(int fd, const char *plugin_path, const zf_create_args_t *args) {
    static answer_t answer;
    const char *p = (const char *)&answer;
    size_t left = sizeof answer;
    ssize_t n;

    (void)alarm(DEADLINE_S);
    probe_here(plugin_path, args, &answer);
    while (left > 0 && (n = write(fd, p, left)) > 0) {
        p += n;
        left -= (size_t)n;
    }
    _exit(0);
}

static size_t read_answer(int fd, answer_t *out) {
    size_t used = 0;
    ssize_t n;

    while (used < sizeof *out && (n = read(fd, (char *)out + used, sizeof *out - used)) > 0)
        used += (size_t)n;
    return used;
}

int zg_probe(const char *plugin_path, const char *config_path, const char *const *sets, size_t n_sets, zg_probe_t *out,
             glue_error_t *err) {
    static answer_t answer;
    int fds[2], status = 0;
    size_t n_read;
    zf_host_t host;
    zf_create_args_t args;
    pid_t pid;

    zf_host_stderr("zf-conform", "0.1", ZF_LOG_WARN, &host);
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.flags = ZF_CREATE_CAP_FETCH;
    args.host = &host;
    args.config_path = config_path;
    args.overrides = sets;
    args.n_overrides = (uint32_t)n_sets;
    args.device_type = ZF_DEVICE_CPU;
    if (pipe(fds) != 0 || (pid = fork()) < 0)
        return glue_fail(err, "cannot start a process: %s", strerror(errno));
    if (pid == 0)
        run_child(fds[1], plugin_path, &args);
    (void)close(fds[1]);
    n_read = read_answer(fds[0], &answer);
    (void)close(fds[0]);
    (void)waitpid(pid, &status, 0);
    if (n_read != sizeof answer)
        return glue_fail(err, "%s: creating an instance ended the process (%s %d)", plugin_path,
                         WIFSIGNALED(status) ? "signal" : "status",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    if (answer.has_failed)
        return glue_fail(err, "%s", answer.text);
    *out = answer.probe;
    return 0;
}

double zg_probe_number(const zg_probe_t *probe, const char *key, double fallback) {
    size_t length = strlen(key);

    for (const char *line = probe->values; *line != '\0'; line += strcspn(line, "\n") + 1) {
        const char *value = line + length + 1;
        char *end = NULL;
        double number;

        if (strncmp(line, key, length) != 0 || line[length] != '=')
            continue;
        if (strncmp(value, "true", 4) == 0)
            return 1.0;
        number = strtod(value, &end);
        return end != value ? number : fallback;
    }
    return fallback;
}
