/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - the command line of zf-host, one table row per option (options.h). */
#include "options.h"

#include <stddef.h>
#include <string.h>

#define AT(member) offsetof(host_command_t, member)

static const zc_option_t options[] = {
    ZC_OPTION("examples", ZC_TEXT, AT(examples_path), "FILE",
              "what to train on, and an encoder to fine-tune: what \"zf-conform examples\" wrote"),
    ZC_OPTION("optimizer", ZC_CHOICE, AT(run.optimizer), "KIND", "adamw (the host's own), documented (its norm as SCHEDULE.md sums it) or plugin",
              .choices = "adamw documented plugin"),
    ZC_OPTION("plugin", ZC_TEXT, AT(run.plugin.plugin_path), "FILE",
              "libzfplugin.so (default: ZFPLUGIN_PATH, then the system's)"),
    ZC_OPTION("config", ZC_TEXT, AT(run.plugin.config_path), "FILE", "the plugin's INI file"),
    ZC_OPTION("set", ZC_OVERRIDE, AT(overrides), "S.KEY=VALUE", "override a key of the INI file; may be repeated"),
    ZC_OPTION("seed", ZC_U64, AT(run.train.seed), "N", "initial weights and data order"),
    ZC_OPTION("steps", ZC_COUNT, AT(run.train.n_steps), "N", "optimizer steps (2000)"),
    ZC_OPTION("batch", ZC_COUNT, AT(run.train.batch), "N", "rows of a micro-batch"),
    ZC_OPTION("accumulation", ZC_COUNT, AT(run.train.accumulation), "N", "micro-batches of a step"),
    ZC_OPTION("parts", ZC_SWITCH, AT(run.train.deliver_parts), NULL, "deliver each micro-batch's share, not the total"),
    ZC_OPTION("lr", ZC_REAL, AT(run.train.hyper.lr), "X", "peak learning rate (1e-3)"),
    ZC_OPTION("clip", ZC_REAL, AT(run.train.clip_norm), "X", "global gradient norm; 0 = off"),
    ZC_OPTION("warmup", ZC_REAL, AT(run.train.warmup_share), "X", "share of the steps"),
    ZC_OPTION("dtype", ZC_CHOICE, AT(run.model.dtype), "TYPE", "of parameters and gradients: fp32 or bf16",
              .choices = "fp32 bf16"),
    ZC_OPTION("layers", ZC_COUNT, AT(run.model.n_layers), "N", "encoder layers"),
    ZC_OPTION("hidden", ZC_COUNT, AT(run.model.hidden), "N", "width"),
    ZC_OPTION("heads", ZC_COUNT, AT(run.model.n_heads), "N", "attention heads"),
    ZC_OPTION("ffn", ZC_COUNT, AT(run.model.ffn), "N", "width of the feed-forward layer (default 4 * hidden)"),
    ZC_OPTION("dropout", ZC_REAL, AT(run.model.dropout), "X", "probability, default 0"),
    ZC_OPTION("products", ZC_CHOICE, AT(has_bf16_products), "TYPE",
              "of a device: what matrix products round their operands to: fp32 (default) or bf16, with sums in fp32",
              .choices = "fp32 bf16"),
    ZC_OPTION("device", ZC_CHOICE, AT(has_device), "NAME", "where the model is and computes: cpu (default) or cuda",
              .choices = "cpu cuda"),
    ZC_OPTION("out", ZC_TEXT, AT(out_path), "FILE", "JSON report (default: standard output)"),
    ZC_OPTION("quiet", ZC_SWITCH, AT(is_quiet), NULL, "no progress on standard error"),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof options / sizeof options[0] };

static void finish_defaults(host_command_t *c) {
    host_run_options_t *run = &c->run;
    run->plugin.overrides = c->overrides.list;
    run->plugin.n_overrides = c->overrides.n;
    run->model.ffn = run->model.ffn != 0 ? run->model.ffn : 4 * run->model.hidden;
    run->plugin.is_verbose = !c->is_quiet;
    run->train.progress = c->is_quiet ? NULL : stderr;
}

/* What an encoder in the examples decides is not to be said beside it. */
static const char *find_shape(int argc, char **argv) {
    static const char *const shape[] = {"--layers", "--hidden", "--heads", "--ffn"};
    for (int i = 1; i < argc; i++)
        for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
            if (strcmp(argv[i], shape[k]) == 0)
                return shape[k];
    return NULL;
}

int host_options_parse(int argc, char **argv, host_command_t *out, glue_error_t *err) {
    *out = (host_command_t){.examples_path = NULL};
    host_run_defaults(&out->run);
    out->run.model.ffn = 0;
    if (zc_options_parse(options, N_OPTIONS, argc, argv, out, err) != 0)
        return -1;
    finish_defaults(out);
    out->shape_option = find_shape(argc, argv);
    if (out->examples_path == NULL && !out->wants_help)
        return glue_fail(err, "--examples FILE is needed: \"zf-conform examples\" writes it");
    return out->has_bf16_products && !out->has_device
               ? glue_fail(err, "--products bf16 is for --device cuda, which is missing")
               : 0;
}

int host_options_help(void) {
    return zc_options_help(
        "zf-host: trains a BERT-family classifier once and reports predictions, loss curve and counters.", options,
        N_OPTIONS, "0 done, 1 training failed, 2 could not start");
}
