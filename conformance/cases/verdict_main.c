/* verdict_main.c - the area "verdict" of zf-conform: the paired non-inferiority test of glue/verdict.h over scores that
 * another program has made (the PyTorch host does), so that every host is judged by the same code.
 *
 * Input: one line per seed, "SEED BASELINE PLUGIN" in points of 100, '#' starts a comment. */
#include "verdict_area.h"

#include "glue/verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEEDS = 1000 };

typedef struct scores {
    size_t n;
    double baseline[MOST_SEEDS], plugin[MOST_SEEDS];
} scores_t;

static const char usage[] = "zf-conform verdict [--margin POINTS] [--json] FILE\n"
                            "  FILE     lines \"SEED BASELINE PLUGIN\" in points of 100; - reads standard input\n"
                            "  --margin how much worse the plugin may be (default 1.0)\n"
                            "  --json   the verdict as one JSON object\n"
                            "exit status: 0 pass, 1 fail, 2 could not run, 3 inconclusive\n";

static int read_scores(FILE *file, const char *name, scores_t *out) {
    char line[256];
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        long seed;
        int used = 0;
        double baseline, plugin;
        line[strcspn(line, "#\r\n")] = '\0';
        if (line[strspn(line, " \t")] == '\0')
            continue;
        if (out->n == MOST_SEEDS) {
            fprintf(stderr, "%s:%d: more than %d seeds\n", name, number, MOST_SEEDS);
            return -1;
        }
        if (sscanf(line, "%ld %lf %lf %n", &seed, &baseline, &plugin, &used) != 3 || line[used] != '\0') {
            fprintf(stderr, "%s:%d: found \"%s\"; need SEED BASELINE PLUGIN\n", name, number, line);
            return -1;
        }
        out->baseline[out->n] = baseline;
        out->plugin[out->n++] = plugin;
    }
    return ferror(file) ? -1 : 0;
}

static void print_number(const char *name, double x) {
    if (x - x == 0.0)
        printf(", \"%s\": %.6g", name, x);
    else
        printf(", \"%s\": null", name);
}

static void print_json(const glue_verdict_t *v, const char *sentence) {
    printf("{\"verdict\": \"%s\", \"n_seeds\": %zu, \"n_seeds_needed\": %zu", glue_verdict_name(v->kind), v->n_seeds,
           v->n_seeds_needed);
    print_number("mean_difference", v->mean_difference);
    print_number("standard_deviation", v->standard_deviation);
    print_number("lower", v->lower);
    print_number("upper", v->upper);
    print_number("margin", v->margin);
    printf(", \"sentence\": \"%s\"}\n", sentence);
}

static int judge(const scores_t *scores, double margin, int as_json) {
    static const int status[] = {[GLUE_PASS] = 0, [GLUE_FAIL] = 1, [GLUE_INCONCLUSIVE] = 3};
    glue_verdict_t verdict;
    glue_error_t err;
    char sentence[256];
    if (glue_verdict(scores->plugin, scores->baseline, scores->n, margin, &verdict, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    (void)glue_verdict_print(&verdict, sentence, sizeof sentence);
    if (as_json)
        print_json(&verdict, sentence);
    else
        printf("%s\n", sentence);
    return status[verdict.kind];
}

int zv_verdict_main(int argc, char **argv) {
    static scores_t scores;
    const char *path = NULL;
    double margin = 1.0;
    int as_json = 0, st;
    FILE *file;
    for (int i = 1; i < argc; i++) {
        char *end;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        } else if (strcmp(argv[i], "--json") == 0) {
            as_json = 1;
        } else if (strcmp(argv[i], "--margin") == 0 && i + 1 < argc) {
            margin = strtod(argv[++i], &end);
            if (*end != '\0' || end == argv[i] || !(margin > 0.0)) {
                fprintf(stderr, "verdict: --margin %s; a number above 0 is needed\n", argv[i]);
                return 2;
            }
        } else if (!path && (argv[i][0] != '-' || argv[i][1] == '\0')) {
            path = argv[i];
        } else {
            fprintf(stderr, "verdict: unexpected %s\n%s", argv[i], usage);
            return 2;
        }
    }
    if (!path) {
        fputs(usage, stderr);
        return 2;
    }
    file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (!file) {
        perror(path);
        return 2;
    }
    scores.n = 0;
    st = read_scores(file, path, &scores);
    if (file != stdin)
        fclose(file);
    return st ? 2 : judge(&scores, margin, as_json);
}
