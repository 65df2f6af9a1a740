/* SPDX-License-Identifier: Apache-2.0 */
/* abi_written.c - proof 5, what the host writes without a word ([zenflow] on_overwrite = ask), holds and is told of,
 * beside the host's own notes; and audited steps, whose digests move with every array and every part of it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi_extent.h"
#include "abi_probes.h"
#include "harness/rig.h"
#include "zf/ext/draft/digest.h"

static uint32_t draw(uint32_t *seed, uint32_t n) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static int open_rig(abi_rig_t *rig, const rig_spec_t *spec, rig_t *out) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader;
    zf_status_t st = zf_loader_open(rig->probe->plugin, &loader, &err);
    if (!abi_check(rig->probe, ABI_RULE_VALID, st >= 0, "%s", err.message))
        return 0;
    rig_open(out, loader, spec);
    out->hyper.lr = 0.01;
    return 1;
}

/* ---- held -------------------------------------------------------------------------------------------------------- */

enum { N_PARAMS = 24, N_ELEMS = 6, N_ROUNDS = 60 };

typedef struct held {
    rig_t rig;
    const zf_digest_ext_t *digest;
    abi_probe_t *probe;
    uint32_t seed;
    float kept[N_PARAMS][N_ELEMS]; /* what the plugin left, where is_edited */
    int is_edited[N_PARAMS];
} held_t;

static float *weights(const held_t *h, uint32_t i) { return (float *)h->rig.params + i * N_ELEMS; }

static void edit(held_t *h, uint32_t i) {
    if (!h->is_edited[i])
        memcpy(h->kept[i], weights(h, i), sizeof h->kept[i]);
    weights(h, i)[draw(&h->seed, N_ELEMS)] += 1.0f;
    h->is_edited[i] = 1;
}

static void write_back(held_t *h, uint32_t i) {
    if (h->is_edited[i])
        memcpy(weights(h, i), h->kept[i], sizeof h->kept[i]);
    h->is_edited[i] = 0;
}

/* Of a list in any order, or of all. */
static uint32_t draw_list(held_t *h, uint32_t ids[N_PARAMS]) {
    uint32_t n = 0, skips = draw(&h->seed, 3);
    for (uint32_t i = 0; i < N_PARAMS; i++)
        if (draw(&h->seed, 3) >= skips) {
            uint32_t at = draw(&h->seed, n + 1);
            ids[n] = ids[at];
            ids[at] = i;
            n++;
        }
    return n;
}

static void ask(held_t *h, uint32_t flags) {
    uint32_t ids[N_PARAMS], n = draw_list(h, ids), is_all = n == N_PARAMS || n == 0 || flags == ZF_WRITTEN_HOLD;
    uint8_t out[N_PARAMS];
    memset(out, 9, sizeof out);
    zf_status_t st = h->digest->written(h->rig.instance, flags, is_all ? NULL : ids, is_all ? 0 : n, out, NULL);
    abi_check(h->probe, ABI_RULE_WRITTEN, st == ZF_OK, "written returned %d", st);
    for (uint32_t k = 0; k < (is_all ? N_PARAMS : n) && st == ZF_OK; k++) {
        uint32_t i = is_all ? k : ids[k];
        if (!abi_check(h->probe, ABI_RULE_WRITTEN, out[k] == h->is_edited[i],
                       "parameter %u, which is %s, is answered by %u", i,
                       h->is_edited[i] ? "edited" : "as the plugin left it", out[k]))
            return;
    }
}

static void announce(held_t *h) {
    uint32_t ids[N_PARAMS], n = draw_list(h, ids), adopts = draw(&h->seed, 2);
    zf_param_item_t items[N_PARAMS];
    zf_error_t err = {.struct_size = sizeof err};
    for (uint32_t k = 0; k < n; k++)
        items[k] = (zf_param_item_t){.struct_size = sizeof *items, .id = ids[k]};
    if (n == 0)
        return;
    ask(h, ZF_WRITTEN_HOLD); /* adopt shows the others */
    zf_status_t st = adopts ? h->digest->adopt(h->rig.instance, ids, n, &err)
                            : h->rig.zf->params_changed(h->rig.instance, items, n, sizeof *items, 0, &err);
    abi_check(h->probe, ABI_RULE_WRITTEN, st == ZF_OK, "%s returned %d: %.200s", adopts ? "adopt" : "params_changed",
              st, err.message);
    for (uint32_t k = 0; k < n; k++)
        h->is_edited[ids[k]] = 0;
}

/* Of what is edited nothing is shown. */
static void train(held_t *h) {
    float was[N_PARAMS][N_ELEMS];
    memcpy(was, h->rig.params, sizeof was);
    abi_extent_fill(h->rig.grads, N_PARAMS * N_ELEMS, h->seed);
    rig_deliver(&h->rig, 0, N_PARAMS, N_PARAMS, NULL);
    rig_step(&h->rig, ZF_STEP_WAIT);
    for (uint32_t i = 0; i < N_PARAMS; i++) {
        abi_check(h->probe, ABI_RULE_WRITTEN,
                  (memcmp(was[i], weights(h, i), sizeof was[i]) == 0) == (h->is_edited[i] != 0),
                  "parameter %u, which is %s, shows %s the step", i, h->is_edited[i] ? "edited" : "not edited",
                  h->is_edited[i] ? "something of" : "nothing of");
    }
}

static void run_held(abi_rig_t *rig) {
    static held_t h;
    const rig_spec_t spec = {.n_tensors = N_PARAMS,
                             .ndim = 2,
                             .shape = {2, N_ELEMS / 2},
                             .dtype = zf_dtype_float32(),
                             .config = "[zenflow]\nmode = windows\nupdate_interval = 1\npublish_lag = 0\n"
                                       "topk_ratio = 0\npredict = off\non_overwrite = ask\n",
                             .does_not_clip = 1,
                             .cannot_fetch = 1};
    if (!open_rig(rig, &spec, &h.rig))
        return;
    h.probe = rig->probe;
    h.seed = 7;
    h.digest = h.rig.zf->get_extension(ZF_EXT_DIGEST);
    if (!h.digest) {
        abi_skip(rig->probe, ABI_RULE_WRITTEN, "no extension " ZF_EXT_DIGEST);
        return;
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        for (uint32_t k = draw(&h.seed, 4); k > 0; k--)
            edit(&h, draw(&h.seed, N_PARAMS));
        if (draw(&h.seed, 2))
            ask(&h, ZF_WRITTEN_LOOK);
        ask(&h, ZF_WRITTEN_HOLD);
        train(&h);
        for (uint32_t k = draw(&h.seed, 4); k > 0; k--)
            write_back(&h, draw(&h.seed, N_PARAMS));
        if (draw(&h.seed, 3))
            ask(&h, ZF_WRITTEN_LOOK);
        if (draw(&h.seed, 4) == 0)
            announce(&h);
    }
    rig_close(&h.rig);
}

/* ---- audited ----------------------------------------------------------------------------------------------------- */

enum { ROWS = 300, COLS = 301, N_AUDITED = 3, STEPS = 3 }; /* a parameter is more than one block */

typedef struct audited {
    const char *what;
    double lr, beta1, beta2; /* of the last step */
    uint64_t element;        /* whose gradient is another one; 0: none */
} audited_t;

/* The time of a record says nothing of it. */
static void drop_times(char *text) {
    for (char *at = text; (at = strstr(at, "\"ms\":"));)
        memmove(at, at + 5 + strspn(at + 5, "0123456789"), strlen(at + 5 + strspn(at + 5, "0123456789")) + 1);
}

/* The audit of a run, whole; to be freed. */
static char *audit_of(abi_rig_t *rig, const audited_t *a, const char *moments) {
    static rig_t r;
    char path[64] = "/tmp/zf-conform-audit-XXXXXX", config[300], *text = calloc(1, 1 << 20);
    int fd = mkstemp(path);
    snprintf(config, sizeof config, "[host]\nmoments_dtype = %s\n[audit]\nfile = %s every 1\n", moments, path);
    const rig_spec_t spec = {.n_tensors = N_AUDITED,
                             .ndim = 2,
                             .shape = {ROWS, COLS},
                             .dtype = zf_dtype_float32(),
                             .config = config,
                             .does_not_clip = 1};
    unlink(path); /* the plugin makes it */
    if (fd < 0 || !text || !open_rig(rig, &spec, &r))
        return text;
    for (uint32_t s = 0; s < STEPS; s++) {
        abi_extent_fill(r.grads, N_AUDITED * ROWS * COLS, s);
        if (s + 1 == STEPS) {
            r.hyper.lr = a->lr;
            r.hyper.beta1 = a->beta1;
            r.hyper.beta2 = a->beta2;
            ((float *)r.grads)[a->element] += a->element ? 0.25f : 0.0f;
        }
        rig_deliver(&r, 0, N_AUDITED, N_AUDITED, NULL);
        rig_step(&r, ZF_STEP_WAIT);
    }
    rig_close(&r);
    close(fd);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    abi_check(rig->probe, ABI_RULE_AUDITS, fd >= 0 && read(fd, text, (1 << 20) - 1) > 0, "no audit was written");
    close(fd);
    unlink(path);
    drop_times(text);
    return text;
}

/* Nothing but w, m or v is another one, or nothing at all; in the first and the last block, of each parameter. */
static void run_audited(abi_rig_t *rig) {
    static const char *const moments[] = {"float32", "bfloat16"};
    static const audited_t same = {"nothing", 0.0, 0.9, 0.999, 0};
    static const audited_t all[] = {{"nothing", 0.0, 0.9, 0.999, 0},
                                    {"every w", 0.5, 0.9, 0.999, 0},
                                    {"every m", 0.0, 0.8, 0.999, 0},
                                    {"every v", 0.0, 0.9, 0.99, 0},
                                    {"an element of the first block", 0.0, 0.9, 0.999, 5},
                                    {"an element of a middle parameter", 0.0, 0.9, 0.999, ROWS * COLS + 9},
                                    {"the last element", 0.0, 0.9, 0.999, N_AUDITED * ROWS * COLS - 1}};
    for (size_t t = 0; t < sizeof moments / sizeof *moments; t++) {
        char *base = audit_of(rig, &same, moments[t]);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            char *text = audit_of(rig, &all[i], moments[t]);
            abi_check(rig->probe, ABI_RULE_AUDITS, base && text && (strcmp(base, text) == 0) == (i == 0),
                      "where %s differs, the audit of %s moments %s", all[i].what, moments[t],
                      i ? "is the same" : "is another one");
            free(text);
        }
        free(base);
    }
}

const abi_row_t abi_written_rows[] = {{"edits that are held", ABI_OPEN, 1, run_held},
                                      {"audited steps", ABI_OPEN, 1, run_audited},
                                      {NULL, ABI_NOTHING, 0, NULL}};
