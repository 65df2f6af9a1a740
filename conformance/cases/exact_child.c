/* SPDX-License-Identifier: Apache-2.0 */
/* exact_child.c - a child of the run: its cases one by one, results as lines on stdout.
 *
 *   hello QUEUE INSPECT FILE      the plugin was loaded; 1 where it has zf.cpu/1, zf.inspect/0
 *   begin LAW CASE
 *   done LAW CASE BROKEN N1 .. N6 BROKEN = 0 or the broken law; values compared under laws 1 to 6
 *   | text                        lines of a failure, before its `done`
 * After a failure the child ends: the plugin may be in any state. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exact.h"
#include "exact_damage.h"
#include "exact_device.h"
#include "exact_steps.h"
#include "exact_store.h"
#include "zf_loader.h"

void zx_print_repeat(const char *margin, const zx_options_t *o, int law, uint64_t index, const char *isa) {
    printf("%srepeat: zf-conform exact%s%s --seed %" PRIu64 " --law %d --only %" PRIu64 " --isa %s%s%s", margin,
           o->plugin ? " --plugin " : "", o->plugin ? o->plugin : "", o->seed, law, index, isa && *isa ? isa : "plugin",
           zx_device_is_gpu() ? " --device cuda" : "", zx_device_is_plain() ? " --plain" : "");
    if (o->threads)
        printf(" --threads %u", o->threads);
    putchar('\n');
}

static void print_failure(const zx_options_t *options, const zx_case_t *c, const zx_result_t *result) {
    printf("| %s\n", result->text);
    zx_case_print(c, "|   ");
    zx_print_repeat("|   ", options, c->law, c->index, getenv("ZF_FORCE_ISA"));
}

/* Of this case; removed with the checkpoint in it. */
static void make_state_path(const zx_options_t *options, char *out, size_t nbytes) {
    const char *tmp = getenv("TMPDIR");
    if (options->state)
        snprintf(out, nbytes, "%s", options->state);
    else
        snprintf(out, nbytes, "%s/zf-conform-state-%ld", tmp && *tmp ? tmp : "/tmp", (long)getpid());
}

static int run_case(const zx_options_t *options, const zf_loader_t *loader, int law, uint64_t index, int has_queue) {
    char state_path[4096];
    zx_resume_t resume = {options->plugin, state_path, options->resume, options->threads};
    zx_case_t *c = zx_alloc(sizeof *c);
    zx_result_t *result = zx_alloc(sizeof *result);
    printf("begin %d %" PRIu64 "\n", law, index);
    fflush(stdout);
    make_state_path(options, state_path, sizeof state_path);
    zx_case_make(c, options->seed, law, index, options->threads,
                 ZX_IS_ALONE | (has_queue ? ZX_HAS_QUEUE : 0) |
                     (zf_loader_plugin(loader)->get_extension(ZF_EXT_MATRIX) ? ZX_HAS_MATRICES : 0));
    zx_result_init(result);
    zx_run_case(c, result, loader, &resume);
    int is_bad = zx_is_bad(result);
    if (!options->state) {
        zx_store_remove(state_path);
        zx_damage_remove(state_path);
    }
    if (is_bad && !result->is_told)
        print_failure(options, c, result);
    printf("done %d %" PRIu64 " %d", law, index, is_bad ? result->law : 0);
    for (int i = 1; i <= ZX_N_LAWS; i++)
        printf(" %" PRIu64, result->n_values[i]);
    for (int i = 0; i < ZX_N_DRAWN; i++)
        printf(" %" PRIu64, result->n_drawn[i]);
    printf("\n");
    fflush(stdout);
    if (is_bad)
        _exit(0); /* no destructors: threads of the plugin may still run */
    zx_case_free(c);
    zx_result_free(result);
    free(c);
    free(result);
    return 0;
}

int zx_child_main(const zx_options_t *options) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader;
    const char *list = options->child;
    int has_queue, used, law;
    uint64_t index;
    if (zf_loader_open(options->plugin, &loader, &err) < 0) {
        fprintf(stderr, "zf-conform exact: %s\n", err.message);
        return 2;
    }
    has_queue = zf_loader_plugin(loader)->get_extension(ZF_EXT_CPU) != NULL;
    printf("hello %d %d %s\n", has_queue, zf_loader_plugin(loader)->get_extension(ZF_EXT_INSPECT) != NULL,
           zf_loader_file(loader));
    fflush(stdout);
    while (sscanf(list, "%d:%" SCNu64 "%n", &law, &index, &used) == 2) {
        run_case(options, loader, law, index, has_queue);
        list += used;
        list += *list == ',';
    }
    zf_loader_close(loader);
    return 0;
}

/* ---- how a child begins and ends --------------------------------------------------------------------------------- */

int zx_read_done(const char *line, zx_done_t *out) {
    int used;
    if (sscanf(line, "done %d %*u %d%n", &out->law, &out->broken, &used) != 2 || out->law < 1 || out->law > ZX_N_LAWS)
        return -1;
    for (int i = 0; i < ZX_N_LAWS + ZX_N_DRAWN; i++) {
        uint64_t *n = i < ZX_N_LAWS ? &out->n_values[i + 1] : &out->n_drawn[i - ZX_N_LAWS];
        line += used;
        if (sscanf(line, " %" SCNu64 "%n", n, &used) != 1)
            return -1;
    }
    return 0;
}

pid_t zx_fork(int *out_fd) {
    int fds[2];
    fflush(stdout);
    if (pipe(fds) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        dup2(fds[1], STDOUT_FILENO);
    if (pid <= 0)
        close(fds[0]);
    close(fds[1]);
    *out_fd = fds[0];
    return pid;
}

/* In an emulated process /proc/self/exe runs on the machine itself, or is the emulator: ZF_EMULATOR is the command that
 * the program's path is put behind. */
static void exec_self(char *const *argv) {
    char self[4096], words[4096], *all[64], *rest = NULL;
    const char *emulator = getenv("ZF_EMULATOR");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    size_t used = 0;
    if (!emulator || !*emulator || n < 0 || strlen(emulator) >= sizeof words) {
        (void)execv("/proc/self/exe", argv);
        return;
    }
    self[n] = '\0';
    strcpy(words, emulator);
    for (char *word = strtok_r(words, " ", &rest); word && used < 32; word = strtok_r(NULL, " ", &rest))
        all[used++] = word;
    all[used++] = self;
    for (size_t i = 1; argv[i] && used < 63; i++)
        all[used++] = argv[i];
    all[used] = NULL;
    (void)execvp(all[0], all);
}

void zx_become_child(const zx_options_t *options, const char *list) {
    char seed[32], threads[16], resume[16];
    char *argv[16] = {"zf-conform", "exact", "--child", (char *)(uintptr_t)list, "--seed", seed, "--threads", threads};
    int n = 8;
    snprintf(seed, sizeof seed, "%" PRIu64, options->seed);
    snprintf(threads, sizeof threads, "%u", options->threads);
    snprintf(resume, sizeof resume, "%u", options->resume);
    if (options->resume) {
        argv[n++] = "--resume";
        argv[n++] = resume;
        argv[n++] = "--state";
        argv[n++] = (char *)(uintptr_t)options->state;
    }
    if (options->plugin) {
        argv[n++] = "--plugin";
        argv[n++] = (char *)(uintptr_t)options->plugin;
    }
    exec_self(argv);
    perror("zf-conform exact: cannot start a child");
    _exit(2);
}
