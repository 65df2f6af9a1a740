/* options.c - the command line of zf-host, one table row per option (options.h). */
#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind { TEXT, COUNT, SEED, REAL, SWITCH, TASK, DTYPE, PRECISION, OPTIMIZER, OVERRIDE } option_kind_t;

typedef struct option {
    const char *name; /* without "--" */
    option_kind_t kind;
    size_t offset; /* in host_command_t */
    const char *argument, *help;
} option_t;

#define AT(member) offsetof(host_command_t, member)

static const option_t options[] = {
    {"task", TASK, AT(run.task), "NAME", "GLUE task: sst2, cola, mrpc, rte, qnli, wnli, stsb, qqp, mnli"},
    {"data", TEXT, AT(run.data_dir), "DIR",
     "folder of the official GLUE files (DIR/SST-2/train.tsv ... and vocab.txt)"},
    {"synthetic", TEXT, AT(run.synthetic_dir), "DIR", "instead: generated corpus, written into DIR when missing"},
    {"model", TEXT, AT(run.model_dir), "DIR",
     "fine-tune this BERT encoder: config.json, model.safetensors, vocab.txt (Hugging Face's layout)"},
    {"vocab", TEXT, AT(run.vocab_path), "FILE", "WordPiece vocabulary (default: the model's, else DIR/vocab.txt)"},
    {"full-vocab", SWITCH, AT(run.keeps_vocabulary), NULL, "keep vocabulary rows that no file uses"},
    {"max-tokens", COUNT, AT(run.max_tokens), "N", "cut longer texts; number of positions (128; --model: the task's)"},
    {"optimizer", OPTIMIZER, AT(run.optimizer), "KIND", "adamw (the host's own) or plugin"},
    {"plugin", TEXT, AT(run.plugin.plugin_path), "FILE", "libzfplugin.so (default: ZFPLUGIN_PATH, then the system's)"},
    {"config", TEXT, AT(run.plugin.config_path), "FILE", "the plugin's INI file"},
    {"set", OVERRIDE, 0, "S.KEY=VALUE", "override a key of the INI file; may be repeated"},
    {"seed", SEED, AT(run.train.seed), "N", "initial weights and data order"},
    {"steps", COUNT, AT(run.train.n_steps), "N", "optimizer steps (2000; --model: the task's)"},
    {"batch", COUNT, AT(run.train.batch), "N", "rows of a micro-batch"},
    {"accumulation", COUNT, AT(run.train.accumulation), "N", "micro-batches of a step"},
    {"parts", SWITCH, AT(run.train.deliver_parts), NULL, "deliver each micro-batch's share, not the total"},
    {"lr", REAL, AT(run.train.hyper.lr), "X", "peak learning rate (1e-3; --model: 1e-4)"},
    {"weight-decay", REAL, AT(run.train.hyper.weight_decay), "X", "of matrices; biases and LayerNorm have none"},
    {"clip", REAL, AT(run.train.clip_norm), "X", "global gradient norm; 0 = off"},
    {"warmup", REAL, AT(run.train.warmup_share), "X", "share of the steps"},
    {"dtype", DTYPE, AT(run.model.dtype), "TYPE", "of parameters and gradients: fp32 or bf16"},
    {"layers", COUNT, AT(run.model.n_layers), "N", "encoder layers"},
    {"hidden", COUNT, AT(run.model.hidden), "N", "width"},
    {"heads", COUNT, AT(run.model.n_heads), "N", "attention heads"},
    {"ffn", COUNT, AT(run.model.ffn), "N", "width of the feed-forward layer (default 4 * hidden)"},
    {"dropout", REAL, AT(run.model.dropout), "X", "probability, default 0"},
    {"init-std", REAL, AT(run.model.init_std), "X", "of initial matrices"},
    {"save", TEXT, AT(run.save_dir), "DIR",
     "leave checkpoints here, DIR/checkpoint-STEP, the last one after all steps"},
    {"save-every", COUNT, AT(run.save_every), "N", "steps from one checkpoint to the next (a tenth of all)"},
    {"keep", COUNT, AT(run.keep), "N", "newest checkpoints that stay (1)"},
    {"resume", TEXT, AT(run.resume_dir), "DIR",
     "go on from DIR/checkpoint-STEP, or from the newest in DIR, to the same bits; the other options as before"},
    {"products", PRECISION, AT(has_bf16_products), "TYPE",
     "what matrix products round their operands to: fp32 (default) or bf16, with sums in fp32"},
    {"threads", COUNT, AT(n_threads), "N", "of matrix products (1); results differ in the last digits"},
    {"out", TEXT, AT(out_path), "FILE", "JSON report (default: standard output)"},
    {"quiet", SWITCH, AT(is_quiet), NULL, "no progress on standard error"},
    {"help", SWITCH, AT(wants_help), NULL, "this text"},
};

enum { N_OPTIONS = sizeof options / sizeof options[0] };

static int parse_count(const char *text, uint64_t *out) {
    char *end = NULL;
    unsigned long long value;

    if (text[0] < '0' || text[0] > '9')
        return -1;
    errno = 0;
    value = strtoull(text, &end, 10);
    *out = value;
    return errno == 0 && *end == '\0' ? 0 : -1;
}

/* The program keeps the "C" locale, so strtod reads the same everywhere. */
static int parse_real(const char *text, double *out) {
    char *end = NULL;

    if (strspn(text, "0123456789.eE+-") != strlen(text) || text[0] == '\0')
        return -1;
    *out = strtod(text, &end);
    return *end == '\0' && *out >= 0.0 && *out < 1e30 ? 0 : -1;
}

static int parse_choice(const char *text, const char *first, const char *second, int *out) {
    *out = strcmp(text, second) == 0;
    return *out || strcmp(text, first) == 0 ? 0 : -1;
}

static int add_override(host_command_t *c, const char *text) {
    if (c->run.plugin.n_overrides == HOST_MAX_OVERRIDES || strchr(text, '=') == NULL)
        return -1;
    c->run.overrides[c->run.plugin.n_overrides++] = text;
    return 0;
}

/* Reads text into the member at `place`. Returns what was needed instead, or NULL. */
static const char *store(host_command_t *c, const option_t *option, const char *text, void *place) {
    uint64_t count;
    int second;

    switch (option->kind) {
    case TEXT:
        *(const char **)place = text;
        return NULL;
    case SWITCH:
        *(int *)place = 1;
        return NULL;
    case SEED:
        return parse_count(text, (uint64_t *)place) == 0 ? NULL : "a whole number";
    case COUNT:
        if (parse_count(text, &count) != 0 || count == 0 || count > 1000000000u)
            return "a whole number from 1";
        *(size_t *)place = (size_t)count;
        return NULL;
    case REAL:
        return parse_real(text, (double *)place) == 0 ? NULL : "a number, 0 or more";
    case TASK:
        *(const glue_task_t **)place = glue_task_find(text);
        return c->run.task != NULL ? NULL : "the name of a GLUE task, such as sst2";
    case DTYPE:
        if (parse_choice(text, "fp32", "bf16", &second) != 0)
            return "fp32 or bf16";
        *(host_dtype_t *)place = second ? HOST_BFLOAT16 : HOST_FLOAT32;
        return NULL;
    case PRECISION:
        return parse_choice(text, "fp32", "bf16", (int *)place) == 0 ? NULL : "fp32 or bf16";
    case OPTIMIZER:
        if (parse_choice(text, "adamw", "plugin", &second) != 0)
            return "adamw or plugin";
        *(host_optimizer_kind_t *)place = second ? HOST_OPTIMIZER_PLUGIN : HOST_OPTIMIZER_ADAMW;
        return NULL;
    case OVERRIDE:
        return add_override(c, text) == 0 ? NULL : "section.key=value, at most 64 times";
    }
    return "something else";
}

static const option_t *find_option(const char *argument) {
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (strncmp(argument, "--", 2) == 0 && strcmp(options[i].name, argument + 2) == 0)
            return &options[i];
    return NULL;
}

static void finish_defaults(host_command_t *c) {
    host_run_options_t *run = &c->run;

    run->plugin.overrides = run->overrides;
    run->model.ffn = run->model.ffn != 0 ? run->model.ffn : 4 * run->model.hidden;
    run->plugin.is_verbose = !c->is_quiet;
    run->train.progress = c->is_quiet ? NULL : stderr;
}

/* What a pretrained encoder decides. */
static int is_shape(const option_t *option) {
    static const size_t places[] = {AT(run.model.n_layers), AT(run.model.hidden), AT(run.model.n_heads),
                                    AT(run.model.ffn), AT(run.model.init_std)};

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (option->offset == places[i])
            return 1;
    return 0;
}

static int parse_all(int argc, char **argv, host_command_t *out, glue_error_t *err) {
    for (int i = 1; i < argc; i++) {
        const option_t *option = find_option(argv[i]);
        const char *text = NULL, *needed;

        if (option == NULL)
            return glue_fail(err, "found \"%.60s\"; an option is needed, --help lists them", argv[i]);
        if (option->kind != SWITCH) {
            if (i + 1 == argc)
                return glue_fail(err, "--%s: nothing follows; %s is needed", option->name, option->argument);
            text = argv[++i];
        }
        if (is_shape(option) && out->run.model_dir != NULL)
            return glue_fail(err, "--%s: --model decides it; leave one of them out", option->name);
        needed = store(out, option, text, (char *)out + option->offset);
        if (needed != NULL)
            return glue_fail(err, "--%s: found \"%.60s\"; %s is needed", option->name, text, needed);
    }
    return 0;
}

/* Twice with --model: defaults follow from it and the task, and what is said beside it comes on top. */
int host_options_parse(int argc, char **argv, host_command_t *out, glue_error_t *err) {
    host_command_t defaults = {.n_threads = 1};

    host_run_defaults(&defaults.run);
    defaults.run.model.ffn = 0;
    *out = defaults;
    if (parse_all(argc, argv, out, err) != 0)
        return -1;
    if (out->run.model_dir != NULL) {
        defaults.run.task = out->run.task;
        defaults.run.model_dir = out->run.model_dir;
        host_run_fine_tune_defaults(&defaults.run);
        *out = defaults;
        if (parse_all(argc, argv, out, err) != 0)
            return -1;
    }
    finish_defaults(out);
    return 0;
}

void host_options_print_help(FILE *file) {
    (void)fputs("zf-host: trains a BERT-family classifier once and reports metric, loss curve and counters.\n\n", file);
    for (size_t i = 0; i < N_OPTIONS; i++)
        (void)fprintf(file, "  --%-13s %-12s %s\n", options[i].name,
                      options[i].argument != NULL ? options[i].argument : "", options[i].help);
    (void)fputs("\nExit status: 0 done, 1 training failed, 2 could not start.\n", file);
}
