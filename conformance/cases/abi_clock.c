/* SPDX-License-Identifier: Apache-2.0 */
/* abi_clock.c - proof 5, a late run: a checkpoint whose counts of updates are set to 10^6, and its clock to 3 * 10^9,
 * as abi/CHECKPOINT.md says that a tool may do; the steps behind its load are AdamW's, with bias corrections of then,
 * and moments in bfloat16 are rounded by the random numbers of then. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi_probes.h"
#include "harness/rig.h"
#include "oracle/state.h"

static const uint64_t clock_then = 3000000000u; /* beyond 31 bits; no checkpoint has more than 3 * 2^30 */
enum { COUNT = 1000000, N_BEFORE = 2, N_BEHIND = 5, N_ELEMS = 12, MOST = 8192 };

#define CONFIG(mode) "[zenflow]\n" mode "\n[log]\nlevel = error\n[host]\nthreads = 1\n"
static const char exact[] = CONFIG("mode = exact"),
                  stochastic[] = CONFIG("mode = exact") "moments_dtype = bfloat16_stochastic\n";
static const char deferred[] =
    CONFIG("mode = windows\ntopk_ratio = 0\nupdate_interval = 1\npublish_lag = 0\npredict = off");

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Of zlib. */
static uint32_t crc32_of(const void *data, size_t nbytes) {
    const unsigned char *bytes = data;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < nbytes; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

/* The text behind a name becomes `to`, as far as `end`. 0: it is not there. */
static int replace(char *text, const char *name, const char *end, const char *to) {
    static char rest[MOST];
    char *at = strstr(text, name), *until = at ? strstr(at + strlen(name), end) : NULL;
    if (!until)
        return 0;
    snprintf(rest, sizeof rest, "%s", until);
    snprintf(at + strlen(name), MOST - (size_t)(at + strlen(name) - text), "%s%s", to, rest);
    return 1;
}

static int write_at(const char *dir, const char *name, const void *data, size_t nbytes, off_t at, int is_cut) {
    char path[4600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC | (is_cut ? O_TRUNC : 0));
    int is_written = fd >= 0 && pwrite(fd, data, nbytes, at) == (ssize_t)nbytes;
    return fd >= 0 && close(fd) == 0 && is_written;
}

/* 0: the index is not as CHECKPOINT.md says. */
static int set_clock(const char *dir) {
    static char text[MOST];
    char path[4600], now[120], data[80];
    const uint32_t count = COUNT;
    const unsigned long long clock = clock_then;
    snprintf(path, sizeof path, "%s/%s", dir, ZF_STATE_INDEX);
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, MOST - 1, file) : 0;
    if (file)
        fclose(file);
    text[n] = '\0';
    char *counts = strstr(text, "\"n\":["), *files = strstr(text, "\"files\":[{\"name\":\"");
    if (!files || sscanf(files, "\"files\":[{\"name\":\"%79[^\"]", data) != 1)
        return 0;
    long first = counts ? strtol(counts + 5, NULL, 10) : 0;
    snprintf(now, sizeof now, "%llu,\"submitted\":%llu,\"applied\":%llu", clock, clock, clock);
    if (!counts || !replace(text, "\"step\":", ",\"skipped\"", now))
        return 0;
    snprintf(now, sizeof now, "%ld,4,%u", first, crc32_of(&count, sizeof count));
    if (!replace(text, "\"n\":[", "]", now))
        return 0;
    char *second = strchr(text, '\n');
    snprintf(now, sizeof now, "%08x", second ? crc32_of(second + 1, strcspn(second + 1, "\n")) : 0);
    return second && replace(text, "\"crc32\":\"", "\"", now) &&
           write_at(dir, data, &count, sizeof count, (off_t)first, 0) &&
           write_at(dir, ZF_STATE_INDEX, text, strlen(text), 0, 1);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

typedef struct late {
    float w[N_ELEMS], m[N_ELEMS], v[N_ELEMS];
    zo_moments_t moments;
} late_t;

static void fill(rig_t *rig, uint32_t step) {
    float *g = rig->grads;
    for (uint32_t i = 0; i < N_ELEMS; i++)
        g[i] = (float)((step * 7 + i * 5) % 31) / 16.0f - 0.9f;
}

static void step(rig_t *rig, uint32_t number) {
    fill(rig, number);
    rig_deliver(rig, 0, 1, 1, NULL);
    rig_step(rig, ZF_STEP_WAIT);
    rig_fetch(rig, 0, 0);
}

/* "Update rules" and "Moments" of plugin/SCHEDULE.md: update n, in this step. */
static void update(late_t *l, const float *g, const zf_group_hyper_t *h, uint32_t n, uint64_t at) {
    const float c1 = (float)(1.0 - h->beta1), c2 = (float)(1.0 - h->beta2), b1 = (float)h->beta1, b2 = (float)h->beta2;
    const float root = (float)(1.0 / sqrt(1.0 - zo_power(h->beta2, n)));
    const float rate = (float)(-h->lr / (1.0 - zo_power(h->beta1, n))), keep = (float)(1.0 - h->lr * h->weight_decay);
    for (uint32_t i = 0; i < N_ELEMS; i++) {
        const uint32_t r = zo_random32(at, i);
        l->m[i] = fmaf(b1, l->m[i], c1 * g[i]);
        l->v[i] = fmaf(b2, l->v[i], c2 * g[i] * g[i]);
        l->w[i] = fmaf(rate, l->m[i] / fmaf(sqrtf(l->v[i]), root, (float)h->eps), l->w[i] * keep);
        l->m[i] = zo_round_moment(l->m[i], l->moments, r & 0xFFFFu);
        l->v[i] = zo_round_moment(l->v[i], l->moments, r >> 16);
    }
}

static int open_rig(rig_t *rig, const zf_loader_t *loader, const char *config) {
    const rig_spec_t spec = {
        .n_tensors = 1, .ndim = 2, .shape = {3, 4}, .dtype = zf_dtype_float32(), .config = config, .does_not_clip = 1};
    rig_open(rig, loader, &spec);
    rig->hyper.lr = 0.01;
    return 1;
}

/* What the first steps leave. */
static void begin(late_t *l, rig_t *rig) {
    memcpy(l->w, rig->params, sizeof l->w);
    for (uint32_t s = 0; s < N_BEFORE; s++) {
        fill(rig, s);
        update(l, rig->grads, &rig->hyper, 1 + s, 1 + s);
    }
}

static void go_on(abi_rig_t *own, rig_t *rig, late_t *l) {
    const float *w = rig->params;
    for (uint32_t s = 0; s < N_BEHIND; s++) {
        const unsigned long long now = clock_then + 1 + s;
        zf_step_report_t report = {.struct_size = sizeof report};
        step(rig, N_BEFORE + s);
        update(l, rig->grads, &rig->hyper, COUNT + 1 + s, now);
        zf_status_t st = rig->zf->poll(rig->instance, &report, NULL);
        abi_check(own->probe, ABI_RULE_EXTENT, st == ZF_OK && report.step == now && report.submitted_step == now,
                  "step %llu: poll returned %d, step %llu, submitted %llu", now, st, (unsigned long long)report.step,
                  (unsigned long long)report.submitted_step);
        for (int i = 0; i < N_ELEMS; i++)
            if (!abi_check(own->probe, ABI_RULE_EXTENT, w[i] == l->w[i], "step %llu: weight %d is %.9g, AdamW's %.9g",
                           now, i, (double)w[i], (double)l->w[i]))
                return;
    }
}

static void run(abi_rig_t *own, const char *config, zo_moments_t moments) {
    const zf_state_ext_t *ext = own->table->get_extension(ZF_EXT_STATE);
    zf_error_t err = {.struct_size = sizeof err};
    zf_state_report_t report = {.struct_size = sizeof report};
    zf_loader_t *loader;
    char path[4200];
    const zf_state_args_t args = {.struct_size = sizeof args, .flags = ZF_STATE_NO_SYNC, .path = path};
    rig_t rig, late;
    late_t expected = {.moments = moments};
    snprintf(path, sizeof path, "%s/late", own->probe->scratch);
    if (zf_loader_open(own->probe->plugin, &loader, &err) < 0 || !open_rig(&rig, loader, config) ||
        !open_rig(&late, loader, config))
        return;
    begin(&expected, &late);
    for (uint32_t s = 0; s < N_BEFORE; s++)
        step(&rig, s);
    zf_status_t st = ext->save(rig.instance, &args, NULL, &err);
    abi_check(own->probe, ABI_RULE_VALID, st == ZF_OK && set_clock(path),
              "save returned %d, or its index is not as CHECKPOINT.md says", st);
    st = ext->load(late.instance, &(zf_state_args_t){.struct_size = sizeof args, .path = path}, &report, &err);
    if (abi_check(own->probe, ABI_RULE_EXTENT, st == ZF_OK && report.step == clock_then,
                  "load of a checkpoint of step %llu: returned %d, step %llu: %.200s", (unsigned long long)clock_then,
                  st, (unsigned long long)report.step, err.message))
        go_on(own, &late, &expected);
    rig_close(&rig);
    rig_close(&late);
}

static void probe_clock(abi_rig_t *own) {
    run(own, exact, ZO_MOMENTS_F32);
    run(own, deferred, ZO_MOMENTS_F32);
    run(own, stochastic, ZO_MOMENTS_STOCHASTIC);
}

const abi_row_t abi_clock_rows[] = {{"a late step", ABI_OPEN, 1, probe_clock}, {NULL, ABI_NOTHING, 0, NULL}};
