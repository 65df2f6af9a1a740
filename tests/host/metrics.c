/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - the GLUE metrics of pairs of numbers on standard input, for metrics_sklearn.py to compare.
 *
 * Each line: "classes" or "scores", then n found values, then n expected ones. Prints accuracy, F1 and Matthews, or
 * Pearson and Spearman, with all digits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "glue/metric.h"

enum { MAX_VALUES = 8192 };

static size_t read_values(char *text, double *out) {
    size_t n = 0;

    for (char *word = strtok(text, " \n"); word != NULL && n < MAX_VALUES; word = strtok(NULL, " \n"))
        out[n++] = strtod(word, NULL);
    return n / 2;
}

static void print_classes(const double *values, size_t n) {
    static int32_t classes[MAX_VALUES];

    for (size_t i = 0; i < 2 * n; i++)
        classes[i] = (int32_t)values[i];
    (void)printf("%.17g %.17g %.17g\n", glue_accuracy(classes, classes + n, n), glue_f1(classes, classes + n, n),
                 glue_matthews(classes, classes + n, n));
}

int main(void) {
    static char line[1 << 18];
    static double values[MAX_VALUES];

    while (fgets(line, sizeof line, stdin) != NULL) {
        int has_classes = strncmp(line, "classes ", 8) == 0;
        size_t n;

        if (!has_classes && strncmp(line, "scores ", 7) != 0)
            return EXIT_FAILURE;
        n = read_values(line + (has_classes ? 8 : 7), values);
        if (has_classes)
            print_classes(values, n);
        else
            (void)printf("%.17g %.17g\n", glue_pearson(values, values + n, n), glue_spearman(values, values + n, n));
    }
    return EXIT_SUCCESS;
}
