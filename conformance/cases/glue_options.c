/* glue_options.c - one table row per option (glue_options.h). */
#include "glue_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { TEXT, COUNT, REAL, NUMBER_TEXT, SWITCH, TASK, SET } kind_t;

typedef struct option {
    const char *name;  /* without "--" */
    const char *areas; /* that have it, separated by spaces; NULL = all */
    kind_t kind;
    size_t offset; /* in zg_options_t */
    const char *argument, *help;
} option_t;

#define AT(member) offsetof(zg_options_t, member)

static const option_t options[] = {
    {"plugin", NULL, TEXT, AT(plugin), "FILE", "libzfplugin.so (default: ZFPLUGIN_PATH)"},
    {"task", NULL, TASK, AT(task), "NAME", "GLUE task, default sst2"},
    {"data", NULL, TEXT, AT(data), "DIR",
     "official GLUE files (DIR/SST-2/train.tsv ... vocab.txt); without: generated"},
    {"model", NULL, TEXT, AT(model), "DIR",
     "fine-tune this BERT encoder (config.json, model.safetensors, vocab.txt); without: from scratch"},
    {"seeds", NULL, COUNT, AT(n_seeds), "N",
     "seeds 1..N (glue: 16, --full 32; curves: 5, --full 12; ablation: 4, --quick 2)"},
    {"sync-seeds", "glue", COUNT, AT(n_sync_seeds), "N", "seeds of the synchronous mode (4, --full 8)"},
    {"config", NULL, TEXT, AT(config), "FILE", "the plugin's INI file"},
    {"set", NULL, SET, 0, "S.KEY=VALUE", "override a key of the INI file; may be repeated"},
    {"margin", "glue", REAL, AT(margin), "X", "how much worse is still as good, points (default: the task's, 1.0)"},
    {"full", "glue curves", SWITCH, AT(is_full), NULL, "more seeds and longer runs"},
    {"quick", "ablation", SWITCH, AT(is_quick), NULL,
     "2 seeds, 300 steps, one rate: shows that it works, decides nothing"},
    {"steps", NULL, COUNT, AT(n_steps), "N",
     "optimizer steps of a run, default 2000, --model the task's; --full doubles it; --quick 300"},
    {"batch", NULL, COUNT, AT(batch), "N", "rows of a step, default 32"},
    {"lr", NULL, NUMBER_TEXT, AT(lr), "X",
     "peak learning rate, default 1e-3, --model 1e-4 (ablation: this and its half)"},
    {"warmup", NULL, NUMBER_TEXT, AT(warmup), "X", "share of the steps in which the rate rises, default 0.1"},
    {"dropout", NULL, NUMBER_TEXT, AT(dropout), "X", "probability, default none"},
    {"max-tokens", NULL, NUMBER_TEXT, AT(max_tokens), "N", "cut longer texts, default 128, --model the task's"},
    {"dtype", NULL, TEXT, AT(dtype), "TYPE", "parameters and gradients: fp32 (default) or bf16"},
    {"products", NULL, TEXT, AT(products), "TYPE",
     "zf-host's matrix products of fp32 (default) or of operands rounded to bf16, where the processor has such"},
    {"jobs", NULL, COUNT, AT(n_jobs), "N", "runs at the same time, default 2"},
    {"out", NULL, TEXT, AT(out), "DIR", "results, plot and kept runs, default zf-conform-glue"},
    {"host", NULL, TEXT, AT(host), "FILE", "zf-host (default: beside this program)"},
    {"readme", "curves ablation", TEXT, AT(readme), "FILE", "write the table between the markers of this file"},
    {"svg", "curves", TEXT, AT(svg), "FILE", "write the plot here too"},
    {"help", NULL, SWITCH, AT(wants_help), NULL, "this text"},
};

enum { N_OPTIONS = sizeof options / sizeof options[0] };

static int parse_count(const char *text, size_t *out) {
    char *end = NULL;
    unsigned long long value;

    if (text[0] < '0' || text[0] > '9')
        return -1;
    errno = 0;
    value = strtoull(text, &end, 10);
    *out = (size_t)value;
    return errno == 0 && *end == '\0' && value >= 1 && value <= 1000000000u ? 0 : -1;
}

static int parse_real(const char *text, double *out) {
    char *end = NULL;

    if (text[0] == '\0' || strspn(text, "0123456789.eE+-") != strlen(text))
        return -1;
    *out = strtod(text, &end);
    return *end == '\0' && *out > 0.0 && *out < 1e6 ? 0 : -1;
}

/* Reads text into its member. Returns what was needed instead, or NULL. */
static const char *store(zg_options_t *o, const option_t *option, const char *text) {
    void *place = (char *)o + option->offset;
    double number;

    switch (option->kind) {
    case TEXT:
        *(const char **)place = text;
        return NULL;
    case SWITCH:
        *(int *)place = 1;
        return NULL;
    case COUNT:
        return parse_count(text, place) == 0 ? NULL : "a whole number from 1";
    case REAL:
        return parse_real(text, place) == 0 ? NULL : "a number above 0";
    case NUMBER_TEXT:
        *(const char **)place = text;
        return parse_real(text, &number) == 0 ? NULL : "a number above 0";
    case TASK:
        o->task = glue_task_find(text);
        return o->task != NULL ? NULL : "the name of a GLUE task, such as sst2";
    case SET:
        if (o->n_sets + 8 > ZG_MAX_SETS || strchr(text, '=') == NULL)
            return "section.key=value, at most 64 times";
        o->sets[o->n_sets++] = text;
        return NULL;
    }
    return "something else";
}

static int is_of_area(const option_t *option, const char *area) {
    size_t length = strlen(area);

    for (const char *at = option->areas; at != NULL && *at != '\0'; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, area, length) == 0 && (at[length] == ' ' || at[length] == '\0'))
            return 1;
    return option->areas == NULL;
}

static const option_t *find_option(const char *area, const char *argument) {
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (strncmp(argument, "--", 2) == 0 && strcmp(options[i].name, argument + 2) == 0 &&
            is_of_area(&options[i], area))
            return &options[i];
    return NULL;
}

int zg_options_parse(int argc, char **argv, zg_options_t *out, glue_error_t *err) {
    *out = (zg_options_t){.task = glue_task_find("sst2"), .plugin = getenv("ZFPLUGIN_PATH")};
    for (int i = 1; i < argc; i++) {
        const option_t *option = find_option(argv[0], argv[i]);
        const char *text = "", *needed;

        if (option == NULL)
            return glue_fail(err, "found \"%.60s\"; an option is needed, --help lists them", argv[i]);
        if (option->kind != SWITCH) {
            if (i + 1 == argc)
                return glue_fail(err, "--%s: nothing follows; %s is needed", option->name, option->argument);
            text = argv[++i];
        }
        needed = store(out, option, text);
        if (needed != NULL)
            return glue_fail(err, "--%s: found \"%.60s\"; %s is needed", option->name, text, needed);
    }
    if (out->wants_help)
        return 0;
    if (out->plugin == NULL || out->plugin[0] == '\0')
        return glue_fail(err, "--plugin FILE is needed (or ZFPLUGIN_PATH): the libzfplugin.so to judge");
    if (out->dtype != NULL && strcmp(out->dtype, "fp32") != 0 && strcmp(out->dtype, "bf16") != 0)
        return glue_fail(err, "--dtype: found \"%.60s\"; fp32 or bf16 is needed", out->dtype);
    if (out->products != NULL && strcmp(out->products, "fp32") != 0 && strcmp(out->products, "bf16") != 0)
        return glue_fail(err, "--products: found \"%.60s\"; fp32 or bf16 is needed", out->products);
    return 0;
}

void zg_options_print_help(const char *area) {
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (is_of_area(&options[i], area))
            (void)printf("  --%-11s %-12s %s\n", options[i].name,
                         options[i].argument != NULL ? options[i].argument : "", options[i].help);
    (void)puts("exit status: 0 conforms, 1 does not, 2 could not run, 3 inconclusive");
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
                           .n_jobs = o->n_jobs != 0 ? o->n_jobs : 2,
                           .lr = o->lr != NULL      ? o->lr
                                 : o->model != NULL ? "1e-4"
                                                    : "1e-3",
                           .dtype = o->dtype != NULL ? o->dtype : "fp32",
                           .products = o->products != NULL ? o->products : "fp32"};
    return zg_find_host(o->host, host_path, ZG_MAX_PATH, err);
}
