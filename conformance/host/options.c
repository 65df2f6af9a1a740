/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - the command line of zf-host, one table row per option (options.h). */
#include "options.h"

#include <stddef.h>
#include <string.h>

#define AT(member) offsetof(host_command_t, member)

static const zc_option_t options[] = {
    ZC_OPTION("task", ZC_PARSED, AT(run.task), "NAME", "GLUE task: sst2, cola, mrpc, rte, qnli, wnli, stsb, qqp, mnli",
              .parse = glue_task_parse),
    ZC_OPTION("data", ZC_TEXT, AT(run.data_dir), "DIR",
              "folder of the official GLUE files (DIR/SST-2/train.tsv ... and vocab.txt)"),
    ZC_OPTION("synthetic", ZC_TEXT, AT(run.synthetic_dir), "DIR",
              "instead: generated corpus, written into DIR when missing"),
    ZC_OPTION("model", ZC_TEXT, AT(run.model_dir), "DIR",
              "fine-tune this BERT encoder: config.json, model.safetensors, vocab.txt (Hugging Face's layout)"),
    ZC_OPTION("vocab", ZC_TEXT, AT(run.vocab_path), "FILE",
              "WordPiece vocabulary (default: the model's, else DIR/vocab.txt)"),
    ZC_OPTION("full-vocab", ZC_SWITCH, AT(run.keeps_vocabulary), NULL, "keep vocabulary rows that no file uses"),
    ZC_OPTION("max-tokens", ZC_COUNT, AT(run.max_tokens), "N",
              "cut longer texts; number of positions (128; --model: the task's)"),
    ZC_OPTION("optimizer", ZC_CHOICE, AT(run.optimizer), "KIND", "adamw (the host's own) or plugin",
              .choices = "adamw plugin"),
    ZC_OPTION("plugin", ZC_TEXT, AT(run.plugin.plugin_path), "FILE",
              "libzfplugin.so (default: ZFPLUGIN_PATH, then the system's)"),
    ZC_OPTION("mpi", ZC_TEXT, AT(mpi_path), "FILE",
              "libzf_mpi.so: this is one of mpirun's ranks, which share each batch; --optimizer plugin"),
    ZC_OPTION("config", ZC_TEXT, AT(run.plugin.config_path), "FILE", "the plugin's INI file"),
    ZC_OPTION("set", ZC_OVERRIDE, AT(overrides), "S.KEY=VALUE", "override a key of the INI file; may be repeated"),
    ZC_OPTION("seed", ZC_U64, AT(run.train.seed), "N", "initial weights and data order"),
    ZC_OPTION("steps", ZC_COUNT, AT(run.train.n_steps), "N", "optimizer steps (2000; --model: the task's)"),
    ZC_OPTION("batch", ZC_COUNT, AT(run.train.batch), "N", "rows of a micro-batch"),
    ZC_OPTION("accumulation", ZC_COUNT, AT(run.train.accumulation), "N", "micro-batches of a step"),
    ZC_OPTION("parts", ZC_SWITCH, AT(run.train.deliver_parts), NULL, "deliver each micro-batch's share, not the total"),
    ZC_OPTION("lr", ZC_REAL, AT(run.train.hyper.lr), "X", "peak learning rate (1e-3; --model: 1e-4)"),
    ZC_OPTION("weight-decay", ZC_REAL, AT(run.train.hyper.weight_decay), "X",
              "of matrices; biases and LayerNorm have none"),
    ZC_OPTION("clip", ZC_REAL, AT(run.train.clip_norm), "X", "global gradient norm; 0 = off"),
    ZC_OPTION("warmup", ZC_REAL, AT(run.train.warmup_share), "X", "share of the steps"),
    ZC_OPTION("dtype", ZC_CHOICE, AT(run.model.dtype), "TYPE", "of parameters and gradients: fp32 or bf16",
              .choices = "fp32 bf16"),
    ZC_OPTION("layers", ZC_COUNT, AT(run.model.n_layers), "N", "encoder layers"),
    ZC_OPTION("hidden", ZC_COUNT, AT(run.model.hidden), "N", "width"),
    ZC_OPTION("heads", ZC_COUNT, AT(run.model.n_heads), "N", "attention heads"),
    ZC_OPTION("ffn", ZC_COUNT, AT(run.model.ffn), "N", "width of the feed-forward layer (default 4 * hidden)"),
    ZC_OPTION("dropout", ZC_REAL, AT(run.model.dropout), "X", "probability, default 0"),
    ZC_OPTION("init-std", ZC_REAL, AT(run.model.init_std), "X", "of initial matrices"),
    ZC_OPTION("products", ZC_CHOICE, AT(has_bf16_products), "TYPE",
              "what matrix products round their operands to: fp32 (default) or bf16, with sums in fp32",
              .choices = "fp32 bf16"),
    ZC_OPTION("device", ZC_CHOICE, AT(has_device), "NAME", "where the model is and computes: cpu (default) or cuda",
              .choices = "cpu cuda"),
    ZC_OPTION("device-number", ZC_U64, AT(device), "N", "which of them (0)"),
    ZC_OPTION("blas", ZC_CHOICE, AT(products_by), "NAME",
              "products on a device: cublas, zf-host's own kernel (slow), or auto (default): cublas where it is found",
              .choices = "auto cublas own"),
    ZC_OPTION("threads", ZC_COUNT, AT(n_threads), "N", "of matrix products (1); results differ in the last digits"),
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

/* What a pretrained encoder decides is not to be said beside it. */
static int check_shape(int argc, char **argv, glue_error_t *err) {
    static const char *const shape[] = {"--layers", "--hidden", "--heads", "--ffn", "--init-std"};

    for (int i = 1; i < argc; i++)
        for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
            if (strcmp(argv[i], shape[k]) == 0)
                return glue_fail(err, "%s: --model decides it; leave one of them out", shape[k]);
    return 0;
}

static int check_device(const host_command_t *c, glue_error_t *err) {
    if (!c->has_device)
        return c->device != 0 || c->products_by != 0
                   ? glue_fail(err, "--device-number and --blas are for --device cuda, which is missing")
                   : 0;
    return c->mpi_path != NULL ? glue_fail(err, "--device cuda: trains in one process; leave --mpi out") : 0;
}

/* What ranks do not do is said before MPI is opened. */
static int check_ranks(const host_command_t *c, glue_error_t *err) {
    if (c->mpi_path == NULL)
        return 0;
    if (c->run.optimizer != HOST_OPTIMIZER_PLUGIN)
        return glue_fail(err, "--mpi: the host's own AdamW trains in one process; --optimizer plugin is needed");
    return 0;
}

/* Twice with --model: defaults follow from it and the task, and what is said beside it comes on top. */
int host_options_parse(int argc, char **argv, host_command_t *out, glue_error_t *err) {
    host_command_t defaults = {.n_threads = 1};

    host_run_defaults(&defaults.run);
    defaults.run.model.ffn = 0;
    *out = defaults;
    if (zc_options_parse(options, N_OPTIONS, NULL, argc, argv, out, err) != 0)
        return -1;
    if (out->run.model_dir != NULL) {
        defaults.run.task = out->run.task;
        defaults.run.model_dir = out->run.model_dir;
        host_run_fine_tune_defaults(&defaults.run);
        *out = defaults;
        if (check_shape(argc, argv, err) != 0 || zc_options_parse(options, N_OPTIONS, NULL, argc, argv, out, err) != 0)
            return -1;
    }
    finish_defaults(out);
    return check_device(out, err) != 0 ? -1 : check_ranks(out, err);
}

int host_options_help(void) {
    return zc_options_help("zf-host: trains a BERT-family classifier once and reports metric, loss curve and counters.",
                           options, N_OPTIONS, NULL, "0 done, 1 training failed, 2 could not start");
}
