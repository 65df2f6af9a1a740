/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/ckpt.c - `zf ckpt inspect` and `verify`. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "progress.h"
#include "zf/ext/state.h"

static void print_shape(const json_t *shape) {
    printf("[");
    for (size_t i = 0; i < json_array_size(shape); i++)
        printf("%s%" JSON_INTEGER_FORMAT, i ? ", " : "", json_integer_value(json_array_get(shape, i)));
    printf("]");
}

/* "string", or "?" where the member is missing. */
static const char *text(const json_t *from, const char *name) {
    const char *value = json_string_value(json_object_get(from, name));
    return value ? value : "?";
}

static void print_text(const json_t *from, const char *name) { zf_cli_print(stdout, text(from, name)); }

static void print_params(const json_t *params) {
    for (size_t i = 0; i < json_array_size(params); i++) {
        const json_t *param = json_array_get(params, i);
        json_t *tensors = json_object_get(param, "tensors"), *tensor;
        const char *name;
        printf("  ");
        print_text(param, "name");
        printf(" ");
        print_shape(json_object_get(param, "shape"));
        printf(" ");
        print_text(param, "dtype");
        printf(", gradient ");
        print_text(param, "grad_dtype");
        printf(":");
        json_object_foreach(tensors, name, tensor) {
            printf(" ");
            zf_cli_print(stdout, name);
        }
        printf("\n");
    }
}

static void print_map(json_t *from, const char *what) {
    const char *name;
    json_t *value;
    printf("%s:", what);
    json_object_foreach(from, name, value) {
        char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        printf(" ");
        zf_cli_print(stdout, name);
        printf("=");
        zf_cli_print(stdout, json_is_string(value) ? json_string_value(value) : shown ? shown : "?");
        free(shown);
    }
    printf("\n");
}

/* Several instances train a model: which one's part it is. */
static void print_part(const json_t *part) {
    if (json_array_size(part) == 2)
        printf("part %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " of a model, from 0\n",
               json_integer_value(json_array_get(part, 0)), json_integer_value(json_array_get(part, 1)));
}

int zf_cli_ckpt_inspect(zf_cli_t *cli, int argc, char **argv) {
    json_t *index;
    const json_t *files;
    if (argc != 1)
        return zf_cli_misuse("ckpt inspect: need one DIR, have %d words", argc);
    index = zf_cli_open_index(cli, argv[0]);
    if (!index)
        return 1;
    if (strcmp(text(index, "format"), "zf.state") != 0) {
        fprintf(stderr, "zf: %s is not a zf.state checkpoint\n", argv[0]);
        json_decref(index);
        return 1;
    }
    print_text(index, "kind");
    printf(" checkpoint, version %" JSON_INTEGER_FORMAT ", written by ",
           json_integer_value(json_object_get(index, "version")));
    print_text(index, "plugin");
    printf("\n");
    print_part(json_object_get(index, "part"));
    print_map(json_object_get(index, "clocks"), "clocks");
    print_map(json_object_get(index, "config"), "configuration");
    if (*text(index, "note")) {
        printf("note: ");
        print_text(index, "note");
        printf("\n");
    }
    files = json_object_get(index, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        printf("file: ");
        print_text(json_array_get(files, i), "name");
        printf(", %" JSON_INTEGER_FORMAT " bytes\n",
               json_integer_value(json_object_get(json_array_get(files, i), "nbytes")));
    }
    printf("%zu parameters:\n", json_array_size(json_object_get(index, "params")));
    print_params(json_object_get(index, "params"));
    json_decref(index);
    return 0;
}

int zf_cli_ckpt_verify(zf_cli_t *cli, int argc, char **argv) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_state_args_t args = {.struct_size = sizeof args};
    const zf_state_ext_t *state;
    if (argc != 1)
        return zf_cli_misuse("ckpt verify: need one DIR, have %d words", argc);
    args.path = argv[0];
    state = zf_cli_extension(cli, ZF_EXT_STATE);
    if (!state)
        return 1;
    zf_cli_progress_begin("verifying", argv[0]);
    if (state->verify(&args, &report, &err) < 0)
        return zf_cli_fail(&err);
    zf_cli_progress_end();
    printf("%s: sound; %s, step %" PRIu64 ", %u parameters, %" PRIu64 " bytes read\n", argv[0],
           report.is_exact ? "exact" : "compact", report.step, report.n_params, report.nbytes);
    return 0;
}
