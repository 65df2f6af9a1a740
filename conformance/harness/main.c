/* SPDX-License-Identifier: Apache-2.0 */
/* harness/main.c - zf-conform: what a user runs before deployment. One subcommand per area; each area owns its options,
 * its output and its files (cases/<area>_*.c; glue, ablation and examples are Python, accuracy/), and returns the exit
 * status: 0 conforms, 1 does not, 2 could not run, 3 inconclusive, 77 skipped. */
#include <stdio.h>
#include <string.h>

#include "abi_probes.h"
#include "cost.h"
#include "exact.h"
#include "judge.h"
#include "near.h"
#include "python_command.h"
#include "shard.h"

typedef struct area {
    const char *name;
    int (*main)(int argc, char **argv); /* argv[0] is the area's name */
    const char *what;
} area_t;

static const area_t areas[] = {
    {"judge", zj_judge_main, "may this library be deployed on this machine? the areas that its profile asks for"},
    {"abi", zfc_abi_main, "the contract of the tables: symbols, bad calls, isolation; against any .so"},
    {"exact", zx_exact_main, "the laws of the engine: the plugin against the oracle, bit for bit"},
    {"near", zn_near_main, "any vendor's plugin against AdamW in double, to a tolerance"},
    {"cost", zk_cost_main, "processor time and memory of a step, with a bar each"},
    {"shard", zs_shard_main, "law 4: P ranks, under mpirun, against the oracle of one rank, bit for bit"},
    {"glue", zc_accuracy_main, "accuracy parity: does training through the plugin reach what AdamW reaches?"},
    {"ablation", zc_accuracy_main, "training loss of the plugin's settings beside AdamW's, on unlike tasks"},
    {"examples", zc_accuracy_main,
     "what zf-host trains on, as a file: the pieces of a task's files, an encoder's weights"},
};

static void print_usage(FILE *out) {
    fprintf(out, "zf-conform AREA [options]; zf-conform AREA --help\n");
    for (size_t i = 0; i < sizeof areas / sizeof *areas; i++)
        fprintf(out, "  %-8s %s\n", areas[i].name, areas[i].what);
    fprintf(out, "exit status: 0 conforms, 1 does not, 2 could not run, 3 inconclusive, 77 skipped\n");
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        print_usage(stdout);
        return 0;
    }
    for (size_t i = 0; argc > 1 && i < sizeof areas / sizeof *areas; i++)
        if (strcmp(argv[1], areas[i].name) == 0)
            return areas[i].main(argc - 1, argv + 1);
    print_usage(stderr);
    return 2;
}
