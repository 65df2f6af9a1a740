/* SPDX-License-Identifier: Apache-2.0 */
/* glue_options.c - one table row per option (glue_options.h). */
#include "glue_options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) offsetof(zg_options_t, member)

static const zc_option_t options[] = {
    ZC_OPTION("plugin", ZC_TEXT, AT(plugin), "FILE", "libzfplugin.so (default: ZFPLUGIN_PATH)"),
    ZC_OPTION("task", ZC_PARSED, AT(task), "NAME", "GLUE task, default sst2", .parse = glue_task_parse),
    ZC_OPTION("data", ZC_TEXT, AT(data), "DIR",
              "official GLUE files (DIR/SST-2/train.tsv ... vocab.txt); without: generated"),
    ZC_OPTION("model", ZC_TEXT, AT(model), "DIR",
              "fine-tune this BERT encoder (config.json, model.safetensors, vocab.txt); without: from scratch"),
    ZC_OPTION("seeds", ZC_COUNT, AT(n_seeds), "N",
              "seeds 1..N (glue: 12, --full 32; curves: 5, --full 12; ablation: 4, --quick 2)"),
    ZC_OPTION("sync-seeds", ZC_COUNT, AT(n_sync_seeds), "N", "seeds of the synchronous mode (2, --full 8)",
              .areas = "glue"),
    ZC_OPTION("config", ZC_TEXT, AT(config), "FILE", "the plugin's INI file"),
    ZC_OPTION("set", ZC_OVERRIDE, AT(sets), "S.KEY=VALUE", "override a key of the INI file; may be repeated"),
    ZC_OPTION("margin", ZC_POSITIVE, AT(margin), "X",
              "how much worse is still as good, points (default: the task's, 1.0)", .areas = "glue"),
    ZC_OPTION("full", ZC_SWITCH, AT(is_full), NULL, "more seeds and longer runs", .areas = "glue curves"),
    ZC_OPTION("quick", ZC_SWITCH, AT(is_quick), NULL,
              "2 seeds, 300 steps, one rate: shows that it works, decides nothing", .areas = "ablation"),
    ZC_OPTION("steps", ZC_COUNT, AT(n_steps), "N",
              "optimizer steps of a run, default 2000, --model the task's; --full doubles it; --quick 300"),
    ZC_OPTION("batch", ZC_COUNT, AT(batch), "N", "rows of a step, default 32"),
    ZC_OPTION("lr", ZC_POSITIVE_TEXT, AT(lr), "X",
              "peak learning rate, default 1e-3, --model 1e-4 (ablation: this and its half)"),
    ZC_OPTION("warmup", ZC_POSITIVE_TEXT, AT(warmup), "X", "share of the steps in which the rate rises, default 0.1"),
    ZC_OPTION("dropout", ZC_POSITIVE_TEXT, AT(dropout), "X", "probability, default none"),
    ZC_OPTION("max-tokens", ZC_POSITIVE_TEXT, AT(max_tokens), "N", "cut longer texts, default 128, --model the task's"),
    ZC_OPTION("dtype", ZC_CHOICE_TEXT, AT(dtype), "TYPE", "parameters and gradients: fp32 (default) or bf16",
              .choices = "fp32 bf16"),
    ZC_OPTION(
        "products", ZC_CHOICE_TEXT, AT(products), "TYPE",
        "zf-host's matrix products of fp32 (default) or of operands rounded to bf16, where the processor has such",
        .choices = "fp32 bf16"),
    ZC_OPTION("device", ZC_CHOICE_TEXT, AT(device), "NAME",
              "where zf-host trains, AdamW's runs too: cpu (default) or cuda, one process each", .choices = "cpu cuda"),
    ZC_OPTION("blas", ZC_CHOICE_TEXT, AT(blas), "NAME", "with --device cuda: zf-host's --blas",
              .choices = "auto cublas own"),
    ZC_OPTION("ranks", ZC_COUNT, AT(n_ranks), "N",
              "train through the plugin on N ranks of mpirun, which share each batch; AdamW stays one process",
              .areas = "glue"),
    ZC_OPTION("mpi", ZC_TEXT, AT(mpi), "FILE", "with --ranks: libzf_mpi.so (default: ZF_MPI_PATH)", .areas = "glue"),
    ZC_OPTION("jobs", ZC_COUNT, AT(n_jobs), "N", "runs at the same time, default 2"),
    ZC_OPTION("out", ZC_TEXT, AT(out), "DIR", "results and kept runs, default zf-conform-glue"),
    ZC_OPTION("host", ZC_TEXT, AT(host), "FILE", "zf-host (default: beside this program)"),
    ZC_OPTION("readme", ZC_TEXT, AT(readme), "FILE", "write the table between the markers of this file",
              .areas = "curves ablation"),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof options / sizeof options[0] };

int zg_options_parse(int argc, char **argv, zg_options_t *out, glue_error_t *err) {
    *out =
        (zg_options_t){.task = glue_task_find("sst2"), .plugin = getenv("ZFPLUGIN_PATH"), .mpi = getenv("ZF_MPI_PATH")};
    if (zc_options_parse(options, N_OPTIONS, argv[0], argc, argv, out, err) != 0)
        return -1;
    if (out->wants_help)
        return 0;
    if (out->plugin == NULL || out->plugin[0] == '\0')
        return glue_fail(err, "--plugin FILE is needed (or ZFPLUGIN_PATH): the libzfplugin.so to judge");
    if (out->device != NULL && strcmp(out->device, "cpu") == 0)
        out->device = NULL;
    if (out->device == NULL && out->blas != NULL)
        return glue_fail(err, "--blas is for --device cuda, which is missing");
    if (out->device != NULL && out->n_ranks != 0)
        return glue_fail(err, "--device %s: zf-host trains there in one process; leave --ranks out", out->device);
    if (out->n_ranks != 0 && (out->mpi == NULL || out->mpi[0] == '\0'))
        return glue_fail(err, "--ranks: --mpi FILE is needed (or ZF_MPI_PATH): the libzf_mpi.so of bindings/mpi");
    return 0;
}

int zg_options_help(const char *area, const char *what) {
    return zc_options_help(what, options, N_OPTIONS, area, "0 conforms, 1 does not, 2 could not run, 3 inconclusive");
}

static size_t default_steps(const zg_options_t *o) {
    size_t n = o->model != NULL ? o->task->fine_tune_steps : 2000;

    return o->is_full ? 2 * n : n;
}

int zg_options_campaign(const zg_options_t *o, char *host_path, zg_campaign_t *out, glue_error_t *err) {
    *out = (zg_campaign_t){.task = o->task,
                           .data_dir = o->data,
                           .plugin_path = o->plugin,
                           .config_path = o->config,
                           .host_path = host_path,
                           .out_dir = o->out != NULL ? o->out : "zf-conform-glue",
                           .model_dir = o->model,
                           .max_tokens = o->max_tokens,
                           .warmup = o->warmup,
                           .dropout = o->dropout,
                           .n_steps = o->n_steps != 0 ? o->n_steps : default_steps(o),
                           .batch = o->batch != 0 ? o->batch : 32,
                           .device = o->device,
                           .blas = o->blas,
                           .n_ranks = o->n_ranks,
                           .mpi_path = o->mpi,
                           .n_jobs = o->n_jobs != 0 ? o->n_jobs : 2,
                           .lr = o->lr != NULL      ? o->lr
                                 : o->model != NULL ? "1e-4"
                                                    : "1e-3",
                           .dtype = o->dtype != NULL ? o->dtype : "fp32",
                           .products = o->products != NULL ? o->products : "fp32"};
    return zg_find_host(o->host, host_path, ZG_MAX_PATH, err);
}
