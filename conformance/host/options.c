/* options.c - the command line of zf-host, one table row per option (options.h). */
#include "options.h"

#include <stddef.h>
#include <string.h>

#define AT(member) offsetof(host_command_t, member)

static const glue_option_t options[] = {
    GLUE_OPTION("task", GLUE_TASK, AT(run.task), "NAME",
                "GLUE task: sst2, cola, mrpc, rte, qnli, wnli, stsb, qqp, mnli"),
    GLUE_OPTION("data", GLUE_TEXT, AT(run.data_dir), "DIR",
                "folder of the official GLUE files (DIR/SST-2/train.tsv ... and vocab.txt)"),
    GLUE_OPTION("synthetic", GLUE_TEXT, AT(run.synthetic_dir), "DIR",
                "instead: generated corpus, written into DIR when missing"),
    GLUE_OPTION("model", GLUE_TEXT, AT(run.model_dir), "DIR",
                "fine-tune this BERT encoder: config.json, model.safetensors, vocab.txt (Hugging Face's layout)"),
    GLUE_OPTION("vocab", GLUE_TEXT, AT(run.vocab_path), "FILE",
                "WordPiece vocabulary (default: the model's, else DIR/vocab.txt)"),
    GLUE_OPTION("full-vocab", GLUE_SWITCH, AT(run.keeps_vocabulary), NULL, "keep vocabulary rows that no file uses"),
    GLUE_OPTION("max-tokens", GLUE_COUNT, AT(run.max_tokens), "N",
                "cut longer texts; number of positions (128; --model: the task's)"),
    GLUE_OPTION("optimizer", GLUE_CHOICE, AT(run.optimizer), "KIND", "adamw (the host's own) or plugin",
                .choices = "adamw plugin"),
    GLUE_OPTION("plugin", GLUE_TEXT, AT(run.plugin.plugin_path), "FILE",
                "libzfplugin.so (default: ZFPLUGIN_PATH, then the system's)"),
    GLUE_OPTION("config", GLUE_TEXT, AT(run.plugin.config_path), "FILE", "the plugin's INI file"),
    GLUE_OPTION("set", GLUE_OVERRIDE, AT(overrides), "S.KEY=VALUE", "override a key of the INI file; may be repeated"),
    GLUE_OPTION("seed", GLUE_SEED, AT(run.train.seed), "N", "initial weights and data order"),
    GLUE_OPTION("steps", GLUE_COUNT, AT(run.train.n_steps), "N", "optimizer steps (2000; --model: the task's)"),
    GLUE_OPTION("batch", GLUE_COUNT, AT(run.train.batch), "N", "rows of a micro-batch"),
    GLUE_OPTION("accumulation", GLUE_COUNT, AT(run.train.accumulation), "N", "micro-batches of a step"),
    GLUE_OPTION("parts", GLUE_SWITCH, AT(run.train.deliver_parts), NULL,
                "deliver each micro-batch's share, not the total"),
    GLUE_OPTION("lr", GLUE_REAL, AT(run.train.hyper.lr), "X", "peak learning rate (1e-3; --model: 1e-4)"),
    GLUE_OPTION("weight-decay", GLUE_REAL, AT(run.train.hyper.weight_decay), "X",
                "of matrices; biases and LayerNorm have none"),
    GLUE_OPTION("clip", GLUE_REAL, AT(run.train.clip_norm), "X", "global gradient norm; 0 = off"),
    GLUE_OPTION("warmup", GLUE_REAL, AT(run.train.warmup_share), "X", "share of the steps"),
    GLUE_OPTION("dtype", GLUE_CHOICE, AT(run.model.dtype), "TYPE", "of parameters and gradients: fp32 or bf16",
                .choices = "fp32 bf16"),
    GLUE_OPTION("layers", GLUE_COUNT, AT(run.model.n_layers), "N", "encoder layers"),
    GLUE_OPTION("hidden", GLUE_COUNT, AT(run.model.hidden), "N", "width"),
    GLUE_OPTION("heads", GLUE_COUNT, AT(run.model.n_heads), "N", "attention heads"),
    GLUE_OPTION("ffn", GLUE_COUNT, AT(run.model.ffn), "N", "width of the feed-forward layer (default 4 * hidden)"),
    GLUE_OPTION("dropout", GLUE_REAL, AT(run.model.dropout), "X", "probability, default 0"),
    GLUE_OPTION("init-std", GLUE_REAL, AT(run.model.init_std), "X", "of initial matrices"),
    GLUE_OPTION("save", GLUE_TEXT, AT(run.save_dir), "DIR",
                "leave checkpoints here, DIR/checkpoint-STEP, the last one after all steps"),
    GLUE_OPTION("save-every", GLUE_COUNT, AT(run.save_every), "N",
                "steps from one checkpoint to the next (a tenth of all)"),
    GLUE_OPTION("keep", GLUE_COUNT, AT(run.keep), "N", "newest checkpoints that stay (1)"),
    GLUE_OPTION(
        "resume", GLUE_TEXT, AT(run.resume_dir), "DIR",
        "go on from DIR/checkpoint-STEP, or from the newest in DIR, to the same bits; the other options as before"),
    GLUE_OPTION("products", GLUE_CHOICE, AT(has_bf16_products), "TYPE",
                "what matrix products round their operands to: fp32 (default) or bf16, with sums in fp32",
                .choices = "fp32 bf16"),
    GLUE_OPTION("threads", GLUE_COUNT, AT(n_threads), "N", "of matrix products (1); results differ in the last digits"),
    GLUE_OPTION("out", GLUE_TEXT, AT(out_path), "FILE", "JSON report (default: standard output)"),
    GLUE_OPTION("quiet", GLUE_SWITCH, AT(is_quiet), NULL, "no progress on standard error"),
    GLUE_OPTION("help", GLUE_SWITCH, AT(wants_help), NULL, "this text"),
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

/* Twice with --model: defaults follow from it and the task, and what is said beside it comes on top. */
int host_options_parse(int argc, char **argv, host_command_t *out, glue_error_t *err) {
    host_command_t defaults = {.n_threads = 1};

    host_run_defaults(&defaults.run);
    defaults.run.model.ffn = 0;
    *out = defaults;
    if (glue_options_parse(options, N_OPTIONS, NULL, argc, argv, out, err) != 0)
        return -1;
    if (out->run.model_dir != NULL) {
        defaults.run.task = out->run.task;
        defaults.run.model_dir = out->run.model_dir;
        host_run_fine_tune_defaults(&defaults.run);
        *out = defaults;
        if (check_shape(argc, argv, err) != 0 ||
            glue_options_parse(options, N_OPTIONS, NULL, argc, argv, out, err) != 0)
            return -1;
    }
    finish_defaults(out);
    return 0;
}

void host_options_print_help(FILE *file) {
    (void)fputs("zf-host: trains a BERT-family classifier once and reports metric, loss curve and counters.\n\n", file);
    glue_options_print(file, options, N_OPTIONS, NULL);
    (void)fputs("\nExit status: 0 done, 1 training failed, 2 could not start.\n", file);
}
