/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/ask.c - `zf ask WHAT ...`: what the commands in Python ask of the plugin, of CUDA's driver and of the
 * machine. The answer is a JSON object on stdout, but for the weights, which are float32. No command of a user's. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ask.h"
#include "lib/cgroup.h"
#include "zf/ext/state.h"

static int answer(json_t *out) {
    json_dumpf(out, stdout, JSON_COMPACT);
    json_decref(out);
    return 0;
}

static json_t *limit_or_null(uint64_t limit) {
    return limit == UINT64_MAX ? json_null() : json_integer((json_int_t)limit);
}

static int ask_plugin(zf_cli_t *cli, char **words) {
    zf_description_t about = {.struct_size = sizeof about};
    char abi[16];
    (void)words;
    if (zf_cli_open(cli))
        return 1;
    const zf_plugin_t *zf = zf_loader_plugin(cli->loader);
    zf->describe(&about, NULL);
    snprintf(abi, sizeof abi, "%u.%u", ZF_ABI_MAJOR(zf->abi), ZF_ABI_MINOR(zf->abi));
    return answer(json_pack("{s:s, s:s, s:s, s:s, s:s}", "file", zf_loader_file(cli->loader), "version",
                            about.version ? about.version : "", "abi", abi, "build", about.build ? about.build : "",
                            "extensions", about.provided_extensions ? about.provided_extensions : ""));
}

static int ask_cuda(zf_cli_t *cli, char **words) {
    (void)cli, (void)words;
    return answer(zf_ask_cuda());
}

/* ROOT: what control groups allow below that folder, "" being this machine; what they do not say is null. */
static int ask_limits(zf_cli_t *cli, char **words) {
    zf_cgroup_t found;
    (void)cli;
    zf_cgroup_read(words[0], &found);
    return answer(json_pack("{s:o, s:o, s:o}", "memory_nbytes", limit_or_null(found.memory_limit), "memory_left_nbytes",
                            limit_or_null(found.memory_left), "quota_cpus",
                            isinf(found.quota_cpus) ? json_null() : json_real(found.quota_cpus)));
}

/* DEVICE */
static int ask_image(zf_cli_t *cli, char **words) {
    return zf_cli_open(cli) ? 1 : answer(zf_ask_image(zf_loader_plugin(cli->loader), atoi(words[0])));
}

/* DEVICE */
static int ask_link(zf_cli_t *cli, char **words) {
    zf_link_speed_t speed;
    const char *why = zf_speed_link(atoi(words[0]), &speed);
    (void)cli;
    return answer(why ? json_pack("{s:s}", "why", why)
                      : json_pack("{s:f, s:f, s:f}", "up_gb_per_s", speed.up, "down_gb_per_s", speed.down,
                                  "both_gb_per_s", speed.both));
}

/* UPDATE_INTERVAL ELEMS */
static int ask_replay(zf_cli_t *cli, char **words) {
    zf_replay_speed_t speed;
    if (zf_cli_open(cli) || !zf_speed_replay(cli, (uint32_t)atoi(words[0]), strtoull(words[1], NULL, 10), &speed))
        return 1;
    return answer(json_pack("{s:f, s:i, s:s}", "elems_per_s", speed.elems_per_s, "workers", (int)speed.n_workers,
                            "kernels", speed.kernels));
}

/* ELEMS */
static int ask_own(zf_cli_t *cli, char **words) {
    double ns;
    if (zf_cli_open(cli) || !zf_speed_own(cli, strtoull(words[0], NULL, 10), &ns))
        return 1;
    return answer(json_pack("{s:f}", "ns_per_elem", ns));
}

/* DIR */
static int ask_verify(zf_cli_t *cli, char **words) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_state_args_t args = {.struct_size = sizeof args, .path = words[0]};
    const zf_state_ext_t *state = zf_cli_extension(cli, ZF_EXT_STATE);
    if (!state)
        return 1;
    if (state->verify(&args, &report, &err) < 0)
        return zf_cli_fail(&err);
    return answer(json_pack("{s:I, s:i, s:I}", "step", (json_int_t)report.step, "n_params", (int)report.n_params,
                            "nbytes", (json_int_t)report.nbytes));
}

static const struct {
    const char *what;
    int n_words;
    int (*ask)(zf_cli_t *cli, char **words);
} questions[] = {
    {"plugin", 0, ask_plugin}, {"cuda", 0, ask_cuda},    {"limits", 1, ask_limits},
    {"image", 1, ask_image},   {"link", 1, ask_link},    {"replay", 2, ask_replay},
    {"own", 1, ask_own},       {"plan", 0, zf_ask_plan}, {"verify", 1, ask_verify},
};

int zf_cli_ask(zf_cli_t *cli, int argc, char **argv) {
    for (size_t i = 0; i < sizeof questions / sizeof *questions && argc > 0; i++)
        if (strcmp(argv[0], questions[i].what) == 0 && argc == 1 + questions[i].n_words)
            return questions[i].ask(cli, argv + 1);
    return zf_cli_misuse("ask: no such question");
}
