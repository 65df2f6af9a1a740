/* SPDX-License-Identifier: Apache-2.0 */
/* perf_main.c - the area "perf": options, one child process per setting, the formulas, tables and JSON (perf_area.h).
 *
 * The formulas, per parameter, with bfloat16 parameters, gradients of g bytes, windows of S steps, k = share of
 * selected elements (as bound: vectors are always selected):
 *   link per step   down g (every gradient once), up 2/S (every parameter once per window): 2M(1+1/S) with bfloat16
 *   host            12 (w, m, v) + g * slots + 2/S (what waits to be published), slots = (S+1)/2 + 1
 *   device          (12 + g) * k: w, m, v and the gradient of the selected channels
 * What is not in them - step records, entering channels, index maps, rings - stands in columns of its own. With
 * state_mib = all (rows "/none") the state is on the device: 12 there, nothing elsewhere. */
#define _POSIX_C_SOURCE 200809L
#include "perf_area.h"

#include "harness/json_file.h"
#include "harness/option_table.h"
#include "harness/progress.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONFORMS = 0, DOES_NOT = 1, COULD_NOT_RUN = 2, MAX_ROWS = 20, MAX_PATH = 4096, MAX_ARGS = 160 };

/* A published piece may cross the link on either side of the counted steps; planned memory is rounded up for alignment.
 */
#define LINK_TOLERANCE 1.005
#define HOST_TOLERANCE 1.05
/* Memory seen from outside beyond what the plugin says: stacks and allocator of its threads. */
#define OUTSIDE_TOLERANCE 1.05
#define OUTSIDE_ALLOWANCE_NBYTES (2.0 * 1024 * 1024)

typedef struct options {
    const char *plugin, *config, *out;
    zc_overrides_t sets;
    const char *millions;
    uint32_t child_interval, child_gradient_size; /* measure this one here */
    int wants_help;
} options_t;

typedef struct row {
    unsigned interval, gradient_size;
    int defers_nothing;
    json_t *json; /* what the child measured */
    char faults[256];
} row_t;

static double number(const row_t *r, const char *name) { return zj_number(r->json, name, NAN); }
static double down_formula(const row_t *r) { return r->defers_nothing ? 0.0 : r->gradient_size; }
static double up_formula(const row_t *r) { return r->defers_nothing ? 0.0 : 2.0 / r->interval; }
static double host_formula(const row_t *r) {
    if (r->defers_nothing)
        return 0.01; /* a count per matrix */
    return 12.0 + r->gradient_size * ((r->interval + 1.0) / 2.0 + 1.0) + 2.0 / r->interval;
}
static double device_formula(const row_t *r) {
    return r->defers_nothing ? 12.0 : (12.0 + r->gradient_size) * number(r, "selected_share");
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define AT(member) offsetof(options_t, member)

static const zc_option_t table[] = {
    ZC_OPTION("plugin", ZC_TEXT, AT(plugin), "FILE", "libzfplugin.so (default: ZFPLUGIN_PATH)"),
    ZC_OPTION("config", ZC_TEXT, AT(config), "FILE", "its INI file"),
    ZC_OPTION("set", ZC_OVERRIDE, AT(sets), "S.KEY=VALUE",
              "override a key; may be repeated (update_interval and deferred are this area's own)"),
    ZC_OPTION("millions", ZC_POSITIVE_TEXT, AT(millions), "X", "about so many million parameters, default 5",
              .least = 1, .most = 100000),
    ZC_OPTION("out", ZC_TEXT, AT(out), "FILE", "JSON too"),
    ZC_OPTION("child-interval", ZC_U32, AT(child_interval), "S", NULL, .least = 1, .most = 64),
    ZC_OPTION("child-gradient", ZC_U32, AT(child_gradient_size), "BYTES", NULL, .least = 2, .most = 4),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0] };

static int print_help(void) {
    return zc_options_help(
        "zf-conform perf - bytes moved and occupied, against the formulas; time is shown, never judged", table,
        N_OPTIONS, NULL, "0 conforms, 1 does not, 2 could not run");
}

static int parse(int argc, char **argv, options_t *o) {
    glue_error_t err = {""};

    *o = (options_t){.plugin = getenv("ZFPLUGIN_PATH"), .millions = "5"};
    if (zc_options_parse(table, N_OPTIONS, NULL, argc, argv, o, &err) == 0 && !o->wants_help &&
        (o->plugin == NULL || o->plugin[0] == '\0'))
        (void)glue_fail(&err, "--plugin FILE is needed (or ZFPLUGIN_PATH): the libzfplugin.so to judge");
    else if (err.text[0] == '\0')
        return 0;
    (void)fprintf(stderr, "zf-conform perf: %s\n", err.text);
    return -1;
}

/* ---- children ---------------------------------------------------------------------------------------------------- */

/* The folder of this program, without a slash at the end. */
static void find_self(char *out_self, char *out_folder) {
    ssize_t n = readlink("/proc/self/exe", out_self, MAX_PATH - 1);
    char *slash;

    out_self[n > 0 ? n : 0] = '\0';
    (void)strcpy(out_folder, out_self);
    slash = strrchr(out_folder, '/');
    if (slash != NULL)
        *slash = '\0';
}

static void preload_counter(const char *folder) {
    char path[MAX_PATH + 32];

    (void)snprintf(path, sizeof path, "%s/zf_count_alloc.so", folder);
    if (access(path, R_OK) == 0)
        (void)setenv("LD_PRELOAD", path, 1);
}

static void become(const options_t *o, const row_t *row, int out) {
    char self[MAX_PATH], folder[MAX_PATH], interval[16], gradient[16];
    const char *arguments[MAX_ARGS] = {self, "perf", "--plugin", o->plugin, "--millions", o->millions};
    size_t n = 6;

    find_self(self, folder);
    (void)snprintf(interval, sizeof interval, "%u", row->interval);
    (void)snprintf(gradient, sizeof gradient, "%u", row->gradient_size);
    arguments[n++] = "--child-interval";
    arguments[n++] = interval;
    arguments[n++] = "--child-gradient";
    arguments[n++] = gradient;
    if (o->config != NULL) {
        arguments[n++] = "--config";
        arguments[n++] = o->config;
    }
    for (size_t i = 0; i < o->sets.n; i++) {
        arguments[n++] = "--set";
        arguments[n++] = o->sets.list[i];
    }
    if (row->defers_nothing) {
        arguments[n++] = "--set";
        arguments[n++] = "device.state_mib=all";
    }
    arguments[n] = NULL;
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 1);
    preload_counter(folder);
    if (dup2(out, STDOUT_FILENO) >= 0)
        (void)execv(self, (char **)(size_t)arguments);
    _exit(127);
}

/* Runs one setting and takes what it prints, up to nbytes - 1. Returns its exit status, or 128 + signal. */
static int run_setting(const options_t *o, const row_t *row, char *text, size_t nbytes) {
    size_t used = 0;
    int fds[2], status = 0;
    ssize_t n;
    pid_t pid;

    (void)fflush(stdout);
    if (pipe(fds) != 0 || (pid = fork()) < 0) {
        (void)fprintf(stderr, "zf-conform perf: cannot start a process: %s\n", strerror(errno));
        return COULD_NOT_RUN;
    }
    if (pid == 0)
        become(o, row, fds[1]);
    (void)close(fds[1]);
    while (used < nbytes - 1 && (n = read(fds[0], text + used, nbytes - 1 - used)) > 0)
        used += (size_t)n;
    text[used] = '\0';
    (void)close(fds[0]);
    (void)waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run_child_here(const options_t *o) {
    zp_setting_t s = {.plugin = o->plugin,
                      .config = o->config,
                      .sets = o->sets.list,
                      .n_sets = o->sets.n,
                      .interval = o->child_interval,
                      .gradient_size = o->child_gradient_size,
                      .millions = strtod(o->millions, NULL)};

    return zp_perf_child(&s);
}

/* ---- judgement --------------------------------------------------------------------------------------------------- */

static void add_fault(row_t *r, int is_fault, const char *text) {
    size_t used = strlen(r->faults);

    if (is_fault)
        (void)snprintf(r->faults + used, sizeof r->faults - used, "%s%s", used > 0 ? ", " : "", text);
}

static void judge(row_t *r) {
    double m = number(r, "n_elems"), inside = number(r, "mapped") + number(r, "device_mapped");

    add_fault(r, !(number(r, "down") <= down_formula(r) * LINK_TOLERANCE), "gradients");
    add_fault(r, !(number(r, "up") <= up_formula(r) * LINK_TOLERANCE), "published");
    add_fault(r, !(number(r, "mapped") <= number(r, "planned")), "mapped more than planned");
    add_fault(r, !(number(r, "state") + number(r, "slots") + number(r, "publish") <= host_formula(r) * HOST_TOLERANCE),
              "host formula");
    add_fault(r, !(number(r, "outside") <= inside * OUTSIDE_TOLERANCE + OUTSIDE_ALLOWANCE_NBYTES / m), "from outside");
    add_fault(r, number(r, "hook_allocations") > 0.0, "allocations in hooks");
    add_fault(r, number(r, "growth") > 0.0, "growth");
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

static const char *name_of(const row_t *r) {
    static const char *const names[2][2] = {{"bf16", "fp32"}, {"bf16/none", "fp32/none"}};

    return names[r->defers_nothing][r->gradient_size == 4];
}

static void print_link(const row_t *rows, size_t n) {
    (void)printf(
        "\nlink, bytes per parameter and step (over whole windows, after warm-up)\n"
        "  gradient      S      down  formula      up  formula    total  formula   ratio   records  entering\n");
    for (size_t i = 0; i < n; i++) {
        const row_t *r = &rows[i];
        double total = number(r, "down") + number(r, "up"), formula = down_formula(r) + up_formula(r);

        (void)printf("  %-11s %3u  %8.4f %8.4f %7.4f %8.4f %8.4f %8.4f %7.4f %9.4f %9.4f\n", name_of(r), r->interval,
                     number(r, "down"), down_formula(r), number(r, "up"), up_formula(r), total, formula,
                     formula > 0.0 ? total / formula : 1.0, number(r, "records"), number(r, "enter"));
    }
}

static void print_count(double count, int width) {
    if (count < 0.0)
        (void)printf(" %*s", width, "?");
    else
        (void)printf(" %*.0f", width, count);
}

static void print_memory(const row_t *rows, size_t n) {
    (void)printf(
        "\nhost memory, bytes per parameter\n  gradient   S   formula   state   slots  publish     sum  beside  "
        "planned  mapped  slots: mean  peak\n");
    for (size_t i = 0; i < n; i++) {
        const row_t *r = &rows[i];
        double sum = number(r, "state") + number(r, "slots") + number(r, "publish");

        (void)printf("  %-11s %3u  %8.2f %7.2f %7.2f %8.2f %7.2f %7.2f %8.2f %7.2f  %11.2f %5.2f\n", name_of(r),
                     r->interval, host_formula(r), number(r, "state"), number(r, "slots"), number(r, "publish"), sum,
                     number(r, "planned") - sum, number(r, "planned"), number(r, "mapped"), number(r, "slots_mean"),
                     number(r, "slots_peak"));
    }
    (void)printf(
        "\ndevice memory (host memory here), and all of it seen from outside (growth of RssAnon), bytes per "
        "parameter;\nallocations of all steady steps by the thread that calls hooks and by others; time per step\n"
        "  gradient      S   formula  planned  mapped  host+device  from outside  hooks  others  stall us  step us\n");
    for (size_t i = 0; i < n; i++) {
        const row_t *r = &rows[i];
        (void)printf("  %-11s %3u  %8.2f %8.2f %7.2f %12.2f %13.2f", name_of(r), r->interval, device_formula(r),
                     number(r, "device_planned"), number(r, "device_mapped"),
                     number(r, "mapped") + number(r, "device_mapped"), number(r, "outside"));
        print_count(number(r, "hook_allocations"), 6);
        print_count(number(r, "worker_allocations"), 7);
        (void)printf(" %9.0f %8.0f\n", number(r, "stall_us"), number(r, "step_us"));
    }
}

static int print_verdict(const row_t *rows, size_t n) {
    int status = CONFORMS;

    (void)putchar('\n');
    for (size_t i = 0; i < n; i++)
        if (rows[i].faults[0] != '\0') {
            (void)printf("FAIL: gradients in %s, S = %u: %s\n", name_of(&rows[i]), rows[i].interval, rows[i].faults);
            status = DOES_NOT;
        }
    if (status == CONFORMS)
        (void)printf("PASS: link bytes within the formula, memory as planned and within the formula, no allocation in "
                     "hooks\n");
    return status;
}

static json_t *json_of(const row_t *r) {
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:s, s:O}", "gradient", name_of(r), "interval", (int)r->interval,
                     "down_formula", zj_real(down_formula(r)), "up_formula", zj_real(up_formula(r)), "host_formula",
                     zj_real(host_formula(r)), "device_formula", zj_real(device_formula(r)), "faults", r->faults,
                     "measured", r->json);
}

static int write_json(const options_t *o, const row_t *rows, size_t n, int exit_status) {
    json_t *document = json_pack("{s:s, s:i, s:s, s:[]}", "area", "perf", "exit_status", exit_status, "unit",
                                 "bytes per parameter", "rows");
    glue_error_t err;

    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(json_object_get(document, "rows"), json_of(&rows[i]));
    if (zj_write(document, o->out, &err) == 0)
        return 0;
    (void)fprintf(stderr, "zf-conform perf: %s\n", err.text);
    return -1;
}

/* The settings: replay with four windows, then nothing deferred. */
static size_t list_rows(row_t *rows) {
    size_t n = 0;

    for (int defers_nothing = 0; defers_nothing < 2; defers_nothing++)
        for (unsigned size = 2; size <= 4; size += 2)
            for (unsigned interval = 1; interval <= (defers_nothing ? 1 : 8); interval *= 2)
                rows[n++] = (row_t){.interval = interval, .gradient_size = size, .defers_nothing = defers_nothing};
    return n;
}

/* Measures all settings; 0, or the exit status of what went wrong. */
static int run_all(const options_t *o, row_t *rows, size_t *out_n) {
    zc_progress_t progress = {.area = "perf"};

    *out_n = progress.n_all = list_rows(rows);
    for (size_t i = 0; i < *out_n; i++) {
        row_t *r = &rows[i];
        char text[2048], what[64];
        int status;

        (void)snprintf(what, sizeof what, "gradients in %s, S = %u", name_of(r), r->interval);
        progress.n_done = i;
        zc_progress_show(&progress, what);
        status = run_setting(o, r, text, sizeof text);
        if (status != 0) {
            zc_progress_end(&progress);
            (void)fprintf(stderr, "zf-conform perf: gradients in %s, S = %u: ended with status %d\n", name_of(r),
                          r->interval, status);
            return status > 128 ? DOES_NOT : COULD_NOT_RUN;
        }
        r->json = zj_parse(text);
        judge(r);
    }
    zc_progress_end(&progress);
    return 0;
}

int zp_perf_main(int argc, char **argv) {
    static row_t rows[MAX_ROWS];
    options_t o;
    size_t n = 0;
    int status, has_failed = 0;

    if (parse(argc, argv, &o) != 0)
        return COULD_NOT_RUN;
    if (o.wants_help)
        return print_help();
    if (o.child_interval > 0)
        return run_child_here(&o);
    status = run_all(&o, rows, &n);
    if (status != 0)
        return status;
    (void)printf("%.2f million parameters in bfloat16, %.1f %% of them in selected channels\n",
                 number(rows, "n_elems") * 1e-6, 100.0 * number(rows, "selected_share"));
    print_link(rows, n);
    print_memory(rows, n);
    status = print_verdict(rows, n);
    if (o.out != NULL)
        has_failed = write_json(&o, rows, n, status) != 0;
    for (size_t i = 0; i < n; i++)
        json_decref(rows[i].json);
    return has_failed ? COULD_NOT_RUN : status;
}
