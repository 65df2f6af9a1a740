/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/consolidate.c - `zf ckpt consolidate`: the weights that FLUSH would leave, as one safetensors file.
 *
 * Memory: one parameter. The plugin replays what is open (zf.state/1, weights). A checkpoint that a trainer replaces
 * meanwhile is noticed by its index: weights of two steps are never mixed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "progress.h"
#include "zf/ext/state.h"

typedef struct job {
    const zf_state_ext_t *state;
    const char *dir;
    json_t *params;
    FILE *out;
} job_t;

/* perror, with the reason of the call before, on a line of its own. */
static void say_error(const char *what) {
    int reason = errno;
    zf_cli_progress_end();
    errno = reason;
    perror(what);
}

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
    int is_written, is_whole = 1;
    for (size_t i = 0; i < json_array_size(job->params); i++) {
        const json_t *param = json_array_get(job->params, i);
        uint64_t end = at + 4 * n_elems(param);
        is_whole &= !json_object_set_new(header, json_string_value(json_object_get(param, "name")),
                                         json_pack("{s:s, s:O, s:[I,I]}", "dtype", "F32", "shape",
                                                   json_object_get(param, "shape"), "data_offsets", (json_int_t)at,
                                                   (json_int_t)end));
        at = end;
    }
    text = is_whole ? json_dumps(header, JSON_COMPACT) : NULL;
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
        zf_cli_progress_end();
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
        say_error("zf: writing");
    free(w);
    return is_written ? 0 : -1;
}

static int write_all(const job_t *job) {
    if (write_header(job)) {
        say_error("zf: writing the header");
        return -1;
    }
    zf_cli_progress_begin("writing weights of", job->dir);
    for (size_t i = 0; i < json_array_size(job->params); i++) {
        zf_cli_progress_count(i, json_array_size(job->params));
        if (write_param(job, json_array_get(job->params, i)))
            return -1;
    }
    zf_cli_progress_begin("bringing to the disk the weights of", job->dir);
    return 0;
}

/* Whether the checkpoint is still the one whose index was read first. */
static int is_same(const job_t *job, json_t *index) {
    json_t *now = zf_cli_read_index(job->dir);
    int same = now && json_equal(index, now);
    json_decref(now);
    if (!same)
        zf_cli_progress_end();
    if (!same)
        fprintf(stderr, "zf: %s was replaced while it was read: run it again\n", job->dir);
    return same;
}

static int write_file(job_t *job, json_t *index, const char *name) {
    zf_cli_replace_t file;
    if (zf_cli_replace_begin(name, &file))
        return 1;
    job->out = file.to;
    return zf_cli_replace_end(&file, write_all(job) == 0 && is_same(job, index));
}

int zf_cli_ckpt_consolidate(zf_cli_t *cli, int argc, char **argv) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_args_t args = {.struct_size = sizeof args};
    job_t job = {0};
    json_t *index;
    int status;
    if (argc != 2)
        return zf_cli_misuse("ckpt consolidate: need DIR and FILE, have %d words", argc);
    args.path = job.dir = argv[0];
    job.state = zf_cli_extension(cli, ZF_EXT_STATE);
    if (!job.state)
        return 1;
    index = zf_cli_open_index(cli, argv[0]);
    if (!index)
        return 1;
    job.params = json_object_get(index, "params");
    zf_cli_progress_begin("verifying", argv[0]);
    if (job.state->verify(&args, NULL, &err) < 0) /* also: what the index says may be trusted from here on */
        status = zf_cli_fail(&err);
    else
        status = write_file(&job, index, argv[1]);
    zf_cli_progress_end();
    if (status == 0)
        printf("%s: %zu weights, float32\n", argv[1], json_array_size(job.params));
    json_decref(index);
    return status;
}
