/* SPDX-License-Identifier: Apache-2.0 */
/* verdict_main.c - the area "verdict" of zf-conform: the paired non-inferiority test of glue/verdict.h over scores that
 * another program has made (the PyTorch host does), so that every host is judged by the same code.
 *
 * Input: one line per seed, "SEED BASELINE PLUGIN" in points of 100, '#' starts a comment. */
#include "verdict_area.h"

#include "glue/verdict.h"
#include "json_file.h"
#include "option_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEEDS = 1000 };

typedef struct scores {
    size_t n;
    double baseline[MOST_SEEDS], plugin[MOST_SEEDS];
} scores_t;

typedef struct options {
    const char *path;
    double margin;
    int as_json, wants_help;
} options_t;

#define AT(member) offsetof(options_t, member)

static const zc_option_t table[] = {
    ZC_OPTION("FILE", ZC_OPERAND, AT(path), NULL,
              "lines \"SEED BASELINE PLUGIN\" in points of 100; - reads standard input"),
    ZC_OPTION("margin", ZC_POSITIVE, AT(margin), "POINTS", "how much worse the plugin may be, default 1.0"),
    ZC_OPTION("json", ZC_SWITCH, AT(as_json), NULL, "the verdict as one JSON object"),
    ZC_OPTION("help", ZC_SWITCH, AT(wants_help), NULL, "this text"),
};

enum { N_OPTIONS = sizeof table / sizeof table[0] };

static int print_help(void) {
    return zc_options_help("zf-conform verdict - scores of another host, judged by the test that glue uses", table,
                           N_OPTIONS, NULL, "0 pass, 1 fail, 2 could not run, 3 inconclusive");
}

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

static int print_json(const glue_verdict_t *v, const char *sentence, int exit_status) {
    return zj_put(json_pack("{s:s, s:i, s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:f, s:s}", "area", "verdict", "exit_status",
                            exit_status, "verdict", glue_verdict_name(v->kind), "n_seeds", (int)v->n_seeds,
                            "n_seeds_needed", (int)v->n_seeds_needed, "mean_difference", zj_real(v->mean_difference),
                            "standard_deviation", zj_real(v->standard_deviation), "lower", zj_real(v->lower), "upper",
                            zj_real(v->upper), "margin", v->margin, "sentence", sentence),
                  stdout);
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
    if (!as_json)
        printf("%s\n", sentence);
    else if (print_json(&verdict, sentence, status[verdict.kind]) != 0)
        return 2;
    return status[verdict.kind];
}

static int judge_file(const options_t *o) {
    static scores_t scores;
    FILE *file = strcmp(o->path, "-") == 0 ? stdin : fopen(o->path, "r");
    int st;

    if (!file) {
        fprintf(stderr, "zf-conform verdict: %s: cannot open: %s\n", o->path, strerror(errno));
        return 2;
    }
    scores.n = 0;
    st = read_scores(file, o->path, &scores);
    if (file != stdin)
        fclose(file);
    return st ? 2 : judge(&scores, o->margin, o->as_json);
}

int zv_verdict_main(int argc, char **argv) {
    options_t o = {.margin = 1.0};
    glue_error_t err = {""};

    if (zc_options_parse(table, N_OPTIONS, NULL, argc, argv, &o, &err) == 0) {
        if (o.wants_help)
            return print_help();
        if (o.path)
            return judge_file(&o);
        glue_fail(&err, "FILE is needed, with lines SEED BASELINE PLUGIN; - reads standard input");
    }
    fprintf(stderr, "zf-conform verdict: %s\n", err.text);
    return 2;
}
