/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fuzz/replay.c - a fuzzer without libFuzzer: runs the files that are named, and those of the folders. Every
 * build has it, so that the corpora are ordinary tests too. */
#define _GNU_SOURCE
#include <dirent.h>

#include "fuzz.h"

static int n_inputs;

static int run_file(const char *path) {
    FILE *file = fopen(path, "rb");
    static uint8_t bytes[1 << 20];
    if (!file) {
        perror(path);
        return 2;
    }
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    uint8_t *copy = fuzz_copy(bytes, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
    n_inputs++;
    return 0;
}

static int run_folder(DIR *dir, const char *path) {
    const struct dirent *entry;
    int st = 0;
    while ((entry = readdir(dir)) && !st) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.')
            st = run_file(name);
    }
    closedir(dir);
    return st;
}

int main(int argc, char **argv) {
    int st = 0;
    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc && !st; i++) {
        DIR *dir = opendir(argv[i]);
        st = dir ? run_folder(dir, argv[i]) : run_file(argv[i]);
    }
    printf("%d inputs\n", n_inputs);
    return st ? st : n_inputs == 0;
}
