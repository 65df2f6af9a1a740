/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/main.c - the table of commands (contract in cli.h). */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const zf_cli_command_t commands[] = {
    {"doctor", NULL, "[--json] [--quick] [--need cuda]",
     "what this machine has for the plugin and what is missing; measures unless --quick",
     "  --json             one JSON object, which `zf plan --machine FILE` reads\n"
     "  --quick            nothing is measured (a measurement takes about ten seconds)\n"
     "  --need cuda        exit status 1 where no device takes the plugin's kernels; without it only the plugin is "
     "needed\n",
     NULL},
    {"plan", NULL, "[MODEL] [OPTIONS]",
     "what of a model fits a machine, with which setting, bytes and times; plan --help says more",
     "  MODEL                a folder as the Hub has it, a config.json (Llama, Mistral, Qwen2, Qwen3; any other where\n"
     "                       transformers is installed), a safetensors file (its header is read), a *.index.json, or\n"
     "                       a list of shapes: [COUNT *] [NAME] [MATRICES |] SIZE x SIZE ... [bf16]\n"
     "                       Without it the largest of some models that fits --gpu and --ram\n"
     "  --gpu GIB            memory of the card, --ram GIB of the machine; exit status 1 where nothing fits\n"
     "  --activations GIB    on the card (estimated)\n"
     "  --config FILE        configuration; --set SECTION.KEY=VALUE changes a key of it, --stage N that one\n"
     "  --device cuda|cpu    where the parameters live (cuda)\n"
     "  --rule adamw|muon    muon: of the matrices of hidden layers; AdamW trains the rest (adamw)\n"
     "  --dtype bf16|f16|f32 of weights and gradients (what MODEL says, else bf16)\n"
     "  --ranks N            of the job (1); --local-ranks N of them on a machine (8 at most)\n"
     "  --expert-parallel N  a layer's experts are spread over N of the ranks (1)\n"
     "  --machine FILE       speed of replays, and of the first GPU's link, as `zf doctor --json > FILE` measured it\n"
     "  --no-fetch           the trainer does not call param_fetch\n"
     "  --recompute          activations are computed again in the backward pass\n"
     "  --json               for programs\n"
     "  --tokens N           per rank and step (8192); --sequence N of a sequence (2048)\n"
     "  --micro-batches N    per step (1)\n"
     "  --tflops N           of the device at its peak (312)\n"
     "  --efficiency N       of that peak (0.4)\n"
     "  --link N             GB/s between host and device, each way, per rank (25)\n"
     "  --net N              GB/s of network per rank (25); --latency N us per collective (20)\n"
     "  --inside N           GB/s between the ranks of a machine, where they sum there first: ..._two_level (100)\n"
     "  --host N             GB/s of replays per machine (50)\n"
     "  --own N              ns per parameter and step of the plugin's own passes on the device (0)\n",
     NULL},
    {"ask", NULL, "", NULL, NULL, zf_cli_ask}, /* what the commands in Python ask: no command of a user's */
    {"config", NULL, "[FILE [SECTION.KEY=VALUE ...]]",
     "every configuration key with range, default and meaning; with FILE: check it, show what holds",
     "  Each key is printed with its effective value, and with its default where that is another one. The output is a\n"
     "  configuration file again.\n",
     zf_cli_config},
    {"tune", NULL, "--command COMMAND [OPTIONS]",
     "runs your own trainer under each of several settings and writes the best one that it hardly waits for",
     "  --command COMMAND    the trainer, for sh -c; in it {config} becomes the path of the INI file of a setting, "
     "which\n"
     "                       ZF_TUNE_CONFIG holds too. It has to end by itself, well behind warm-up, and to destroy\n"
     "                       the plugin's instance at its end\n"
     "  --config FILE        your INI file; the keys of a setting and [trace] are put in (none: the defaults)\n"
     "  --settings LIST      what is tried, each exact, S:LAG or SECTION.KEY=VALUE, joined by +, such as\n"
     "                       exact,exact+device.state_mib=2048,2:0 (exact,2:0,4:0,1:1,2:1)\n"
     "  --rounds N           every setting is run so often, in turn; what differs by less than rounds do is no "
     "difference (3)\n"
     "  --max-stall SHARE    of a step that the device may wait for the plugin (0.03)\n"
     "  --loss WORDS         the trainer prints its loss behind these (a regular expression): the least last one is "
     "best.\n"
     "                       Without it the setting whose values are youngest is\n"
     "  --timeout SECONDS    a setting that takes longer is ended and counts as failed (3600)\n"
     "  --output FILE        what is chosen, as an INI file (zf-tuned.ini); --force overwrites it\n"
     "  --folder DIR         for the files and logs of the runs (a temporary one, kept only where a setting failed)\n",
     NULL},
    {"audit", NULL, "A B", "the first step, array, parameter and rank in which two runs with [audit] file part",
     "  A and B are the paths of [audit] file, without .rankN. Settings and shapes that differ are named first.\n"
     "  exit status  0: no difference in the steps that both have; 1: they part; 2: nothing could be compared\n",
     NULL},
    {"ckpt", "inspect", "DIR", "what a checkpoint holds", NULL, NULL},
    {"ckpt", "verify", "DIR", "check every byte and value of a checkpoint", NULL, NULL},
    {"ckpt", "consolidate", "DIR FILE", "the weights of a checkpoint as one safetensors file of float32", NULL, NULL},
    {"ckpt", "export", "DIR FILE", "moments and counts of a checkpoint, for AdamW.load_state_dict() of PyTorch", NULL,
     NULL},
    {"page", NULL, "man|configuration|counters", "the manual page of this command, or the page of all keys or counters",
     NULL, zf_cli_page},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

const zf_cli_command_t *zf_cli_commands(size_t *out_n) {
    *out_n = N_COMMANDS;
    return commands;
}

static int usage(void) {
    printf("usage: zf [--plugin FILE] COMMAND ...\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        char head[64];
        if (!commands[i].what)
            continue;
        snprintf(head, sizeof head, "%s%s%s %s", commands[i].group, commands[i].name ? " " : "",
                 commands[i].name ? commands[i].name : "", commands[i].args);
        printf("  %-40s %s\n", head, commands[i].what);
    }
    printf("the plugin: --plugin FILE, else ZFPLUGIN_PATH, else libzfplugin.so.0; `zf --version` is that of this "
           "command\n");
    return 0;
}

static void print_usage(FILE *to, const zf_cli_command_t *command) {
    fprintf(to, "usage: zf [--plugin FILE] %s%s%s %s\n", command->group, command->name ? " " : "",
            command->name ? command->name : "", command->args);
}

static int help(const zf_cli_command_t *command) {
    print_usage(stdout, command);
    printf("%s\n%s", command->what, command->more ? command->more : "");
    return 0;
}

/* "zf: PATH: TEXT"; path = NULL: "zf: TEXT" */
__attribute__((format(printf, 2, 0))) static void say(const char *path, const char *format, va_list args) {
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "zf: ");
    if (path) {
        zf_cli_print(stderr, path);
        fprintf(stderr, ": ");
    }
    zf_cli_print(stderr, text);
    fprintf(stderr, "\n");
}

int zf_cli_misuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(NULL, format, args);
    va_end(args);
    return 2;
}

int zf_cli_complain(const char *path, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(path, format, args);
    va_end(args);
    return 1;
}

/* The commands of a group; 0 where there is none. */
static int print_group(FILE *to, const char *group) {
    int n = 0;
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].group, group) == 0 && ++n && to)
            print_usage(to, &commands[i]);
    return n;
}

/* No command is called so. */
static int misuse_command(const char *word, const char *second) {
    int is_group = word && print_group(NULL, word);
    if (is_group && second && strcmp(second, "--help") == 0)
        return print_group(stdout, word), 0;
    if (!word)
        zf_cli_misuse("a command is missing");
    else if (is_group)
        zf_cli_misuse("%s: %s%s", word, second ? "there is no command " : "a command is missing", second ? second : "");
    else
        zf_cli_misuse("there is no command %s", word);
    fprintf(stderr, "usage: zf [--plugin FILE] COMMAND ...; zf --help lists the commands\n");
    return 2;
}

static int run_command(zf_cli_t *cli, const zf_cli_command_t *command, int argc, char **argv) {
    if (argc > 0 && strcmp(argv[0], "--help") == 0)
        return help(command);
    if (!command->run)
        return zf_cli_run_script(cli, command, argc, argv);
    int status = command->run(cli, argc, argv);
    if (status == 2)
        print_usage(stderr, command);
    if (status == 2 && command->more)
        fprintf(stderr, "zf %s --help says more\n", command->group);
    return status;
}

int zf_cli_fail(const zf_error_t *err) {
    fprintf(stderr, "zf: ");
    zf_cli_print(stderr, err->message); /* it may name what a file holds */
    fprintf(stderr, "\n");
    return 1;
}

int zf_cli_open(zf_cli_t *cli) {
    zf_error_t err = {.struct_size = sizeof err};
    return !cli->loader && zf_loader_open(cli->plugin, &cli->loader, &err) < 0 ? zf_cli_fail(&err) : 0;
}

const void *zf_cli_extension(zf_cli_t *cli, const char *id) {
    if (zf_cli_open(cli))
        return NULL;
    const void *table = zf_loader_plugin(cli->loader)->get_extension(id);
    if (!table)
        fprintf(stderr, "zf: %s has no extension %s: use a newer plugin\n", zf_loader_file(cli->loader), id);
    return table;
}

static int run(zf_cli_t *cli, int argc, char **argv) {
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "help") == 0))
        return usage();
    if (argc > 0 && strcmp(argv[0], "--version") == 0)
        return printf("zf %s\n", ZF_VERSION) < 0;
    for (size_t i = 0; i < N_COMMANDS && argc > 0; i++) {
        int n = commands[i].name ? 2 : 1;
        if (strcmp(argv[0], commands[i].group) == 0 &&
            (!commands[i].name || (argc > 1 && strcmp(argv[1], commands[i].name) == 0)))
            return run_command(cli, &commands[i], argc - n, argv + n);
    }
    return misuse_command(argc > 0 ? argv[0] : NULL, argc > 1 ? argv[1] : NULL);
}

int main(int argc, char **argv) {
    zf_cli_t cli = {0};
    int at = 1;
    if (argc > at + 1 && strcmp(argv[at], "--plugin") == 0) {
        cli.plugin = argv[at + 1];
        at += 2;
    }
    int status = run(&cli, argc - at, argv + at);
    zf_loader_close(cli.loader);
    if (fflush(stdout) != 0 || ferror(stdout)) /* of what was written last, or of something before */
        return zf_cli_complain("stdout", "not all of it could be written");
    return status;
}
