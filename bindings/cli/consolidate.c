/* bindings/cli/consolidate.c - `zf ckpt consolidate`: the weights that FLUSH would leave, as one safetensors file.
 *
 * Memory: one parameter. The plugin replays what is open (zf.state/1, weights). The file appears under its name when it
 * is whole. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "zf/ext/state.h"

typedef struct job {
    const zf_state_ext_t *state;
    const char *dir;
    json_t *params;
    FILE *out;
} job_t;

static uint64_t n_elems(const json_t *param) {
    const json_t *shape = json_object_get(param, "shape");
    uint64_t n = 1;
    for (size_t i = 0; i < json_array_size(shape); i++)
        n *= (uint64_t)json_integer_value(json_array_get(shape, i));
    return n;
}

/* Length, JSON, padding to eight bytes. */
static int write_header(const job_t *job) {
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t at = 0, n;
    unsigned char length[8];
    char *text;
    int is_written;
    for (size_t i = 0; i < json_array_size(job->params); i++) {
        const json_t *param = json_array_get(job->params, i);
        uint64_t end = at + 4 * n_elems(param);
        json_object_set_new(header, json_string_value(json_object_get(param, "name")),
                            json_pack("{s:s, s:O, s:[I,I]}", "dtype", "F32", "shape", json_object_get(param, "shape"),
                                      "data_offsets", (json_int_t)at, (json_int_t)end));
        at = end;
    }
    text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (!text)
        return -1;
    n = (strlen(text) + 7) / 8 * 8;
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(n >> 8 * i);
    is_written = fwrite(length, 1, 8, job->out) == 8 && fprintf(job->out, "%-*s", (int)n, text) == (int)n;
    free(text);
    return is_written ? 0 : -1;
}

static int write_param(const job_t *job, const json_t *param) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_args_t args = {.struct_size = sizeof args, .path = job->dir};
    uint64_t n = n_elems(param);
    float *w = malloc(n * sizeof *w);
    int is_written;
    if (!w) {
        fprintf(stderr, "zf: no memory for a parameter of %llu elements\n", (unsigned long long)n);
        return -1;
    }
    if (job->state->weights(&args, json_string_value(json_object_get(param, "name")), w, n, &err) < 0) {
        zf_cli_fail(&err);
        free(w);
        return -1;
    }
    is_written = fwrite(w, sizeof *w, n, job->out) == n;
    if (!is_written)
        perror("zf: writing");
    free(w);
    return is_written ? 0 : -1;
}

static int write_all(const job_t *job) {
    if (write_header(job)) {
        perror("zf: writing the header");
        return -1;
    }
    for (size_t i = 0; i < json_array_size(job->params); i++)
        if (write_param(job, json_array_get(job->params, i)))
            return -1;
    if (fflush(job->out) || fsync(fileno(job->out))) {
        perror("zf: writing");
        return -1;
    }
    return 0;
}

int zf_cli_ckpt_consolidate(zf_cli_t *cli, int argc, char **argv) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_args_t args = {.struct_size = sizeof args};
    job_t job = {0};
    char path[4096], tmp[4112];
    json_error_t problem;
    json_t *index;
    int status = 1;
    if (argc != 2)
        return 2;
    args.path = job.dir = argv[0];
    job.state = zf_cli_extension(cli, ZF_EXT_STATE);
    if (!job.state)
        return 1;
    if (job.state->verify(&args, NULL, &err) < 0) /* also: what the index says may be trusted from here on */
        return zf_cli_fail(&err);
    snprintf(path, sizeof path, "%s/%s", argv[0], ZF_STATE_INDEX);
    snprintf(tmp, sizeof tmp, "%.4090s.tmp", argv[1]);
    index = json_load_file(path, 0, &problem);
    job.params = json_object_get(index, "params");
    job.out = index ? fopen(tmp, "wb") : NULL;
    if (!job.out) {
        perror(index ? tmp : path);
        json_decref(index);
        return 1;
    }
    if (write_all(&job) == 0)
        status = 0;
    if (fclose(job.out) != 0 || (status == 0 && rename(tmp, argv[1]) != 0)) {
        perror(argv[1]);
        status = 1;
    }
    if (status)
        remove(tmp);
    else
        printf("%s: %zu weights, float32\n", argv[1], json_array_size(job.params));
    json_decref(index);
    return status;
}
