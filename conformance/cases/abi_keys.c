/* SPDX-License-Identifier: Apache-2.0 */
/* abi_keys.c - proof 5, keys whose effect no schedule shows: threads, limits of memory, deadlines, files that a
 * configuration asks for. */
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "abi_probes.h"
#include "abi_watch.h"
#include "zf_loader.h"

static void configure(abi_rig_t *rig, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The rig's text, whatever it was. */
static void configure(abi_rig_t *rig, const char *format, ...) {
    static char text[5000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    rig->create.config_text = text;
    rig->create.config_text_nbytes = strlen(text);
}

/* ---- [host] ------------------------------------------------------------------------------------------------------ */

static void probe_threads(abi_rig_t *rig) {
    for (unsigned n = 1; n <= 5; n += 2) {
        uint64_t said = 0;
        abi_rig_describe(rig, 1);
        configure(rig, "[zenflow]\nmode = windows\n[host]\nthreads = %u\n", n);
        int before = abi_watch_threads(1);
        if (!abi_rig_start(rig, ABI_ACTIVE))
            return;
        (void)zf_counter_value(rig->table, rig->instance, "n_workers", &said, NULL);
        int grown = abi_watch_threads(INT_MAX) - before;
        abi_check(rig->probe, ABI_RULE_KEYS, said == n && grown >= (int)n,
                  "threads = %u: n_workers is %llu, %d started", n, (unsigned long long)said, grown);
        abi_rig_end(rig);
    }
}

/* A model of 8 MiB of state: refused under less, by the key's name. */
static void probe_limit(abi_rig_t *rig) {
    static float weights[1024 * 512];
    for (int mib = 4; mib <= 64; mib *= 16) {
        abi_rig_describe(rig, 1);
        rig->shapes[0][0] = 1024;
        rig->shapes[0][1] = 512;
        zf_tensor_contiguous(weights, zf_dtype_float32(), 2, rig->shapes[0], &rig->tensors[0]);
        rig->decls[0].home = ZF_HOME_HOST;
        configure(rig, "[host]\nthreads = 1\nmemory_limit_mib = %d\n", mib);
        zf_status_t st = abi_rig_create(rig);
        abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "create", st);
        st = abi_rig_bind(rig, NULL);
        abi_check(rig->probe, ABI_RULE_KEYS,
                  mib > 8 ? st == ZF_OK : st == ZF_ERR_MEMORY && strstr(rig->err.message, "memory_limit_mib"),
                  "memory_limit_mib = %d, of 8 MiB of state: returned %d: %.200s", mib, st,
                  st < 0 ? rig->err.message : "");
        abi_rig_end(rig);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* The whole of a file, or "". */
static char *text_of(const char *path) {
    char *text = calloc(1, 1 << 20);
    FILE *file = fopen(path, "re");
    if (!text)
        abort();
    size_t n = file ? fread(text, 1, (1 << 20) - 1, file) : 0;
    text[n] = '\0';
    if (file)
        fclose(file);
    return text;
}

static unsigned count(const char *text, const char *word) {
    unsigned n = 0;
    while ((text = strstr(text, word)))
        n++, text += strlen(word);
    return n;
}

/* Without a number every 100th. */
static void probe_audit(abi_rig_t *rig) {
    enum { STEPS = 230 };
    char path[4200];
    snprintf(path, sizeof path, "%s/audit", rig->probe->scratch);
    configure(rig, "[host]\nthreads = 1\n[audit]\nfile = %s\n", path);
    if (!abi_rig_start(rig, ABI_BOUND) || !abi_rig_train(rig, STEPS, ABI_RULE_VALID))
        return;
    abi_rig_end(rig);
    char *text = text_of(path);
    abi_check(rig->probe, ABI_RULE_KEYS,
              count(text, "{\"step\":") == 2 && strstr(text, "{\"step\":100,") && strstr(text, "{\"step\":200,"),
              "an audit of %d steps without a number has %u records, not those of 100 and 200", STEPS,
              count(text, "{\"step\":"));
    free(text);
}

/* The steps that were asked for: as many of the host's calls stand in the file. */
static void probe_trace(abi_rig_t *rig) {
    enum { STEPS = 26 };
    static const struct {
        const char *steps;
        unsigned n;
    } all[] = {{" steps 5..8", 4}, {" steps 3", 3}, {" steps 0", STEPS}, {"", 20}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/trace-%zu", rig->probe->scratch, i);
        abi_rig_describe(rig, 1);
        configure(rig, "[host]\nthreads = 1\n[trace]\nfile = %s%s\n", path, all[i].steps);
        if (!abi_rig_start(rig, ABI_BOUND) || !abi_rig_train(rig, STEPS, ABI_RULE_VALID))
            return;
        abi_rig_end(rig);
        char *text = text_of(path);
        unsigned n = count(text, "\"grads_ready\"");
        abi_check(rig->probe, ABI_RULE_KEYS, n == all[i].n, "[trace] file = PATH%s of %d steps has %u calls, not %u",
                  all[i].steps, STEPS, n, all[i].n);
        free(text);
    }
}

const abi_row_t abi_keys_rows[] = {{"threads", ABI_OPEN, 1, probe_threads},
                                   {"a limit of memory", ABI_OPEN, 1, probe_limit},
                                   {"steps that are audited", ABI_OPEN, 1, probe_audit},
                                   {"steps that are traced", ABI_OPEN, 1, probe_trace},
                                   {NULL, ABI_NOTHING, 0, NULL}};
