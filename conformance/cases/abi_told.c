/* SPDX-License-Identifier: Apache-2.0 */
/* abi_told.c - proof 5, what a host is told beside its training: keys and their ranges, extensions by id, digests,
 * records of former steps; and proof 7, which environment variables are read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi_probes.h"
#include "harness/clock.h"
#include "zf_loader.h"

/* ---- configuration keys ------------------------------------------------------------------------------------------ */

typedef struct keys {
    abi_rig_t *rig;
    const zf_config_ext_t *ext;
    zf_config_key_t key;
} keys_t;

static void try_value(keys_t *k, const char *value, int is_right) {
    char text[400];
    zf_error_t err = {.struct_size = sizeof err};
    int n = snprintf(text, sizeof text, "[%s]\n%s = %s\n", k->key.section, k->key.key, value);
    abi_try(k->rig->probe, "check of \"%s = %s\"", k->key.key, value);
    zf_status_t st = k->ext->check(text, (uint64_t)n, NULL, 0, &err);
    abi_check(k->rig->probe, ABI_RULE_KEYS, is_right ? st == ZF_OK : st == ZF_ERR_CONFIG,
              "%s = %s, and its range is \"%s\": check returned %d: %.200s", k->key.key, value, k->key.range, st,
              st < 0 ? err.message : "");
}

static void try_number(keys_t *k, double value, int is_right) {
    char text[64];
    snprintf(text, sizeof text, value == floor(value) && fabs(value) < 1e15 ? "%.0f" : "%.9g", value);
    try_value(k, text, is_right);
}

/* One alternative of a range: "1..64", "(0, 1]", a number, or a word. What is neither is not tried. */
static void try_alternative(keys_t *k, const char *said) {
    const char *dots = strstr(said, "..");
    double least = strtod(said, NULL), most = dots ? strtod(dots + 2, NULL) : 0;
    char open, shut, word[320];
    if (dots && strchr("0123456789", *said)) {
        try_number(k, least, 1);
        try_number(k, most, 1);
        try_number(k, least - 1, 0);
        try_number(k, most + 1, 0);
    } else if (sscanf(said, "%c%lf, %lf%c", &open, &least, &most, &shut) == 4 && strchr("([", open)) {
        try_number(k, least, open == '[');
        try_number(k, most, shut == ']');
        try_number(k, least - 1e-6, 0);
        try_number(k, most + 1e-6, 0);
        try_number(k, (least + most) / 2, 1);
    } else if (strcmp(k->key.type, "text") != 0 && !strchr(said, ' ')) {
        snprintf(word, sizeof word, "%sx", said);
        try_value(k, said, 1);
        try_value(k, word, 0);
    }
}

static void try_key(keys_t *k) {
    char range[300], *rest = range, *end;
    snprintf(range, sizeof range, "%s", k->key.range);
    for (; rest; rest = end) {
        end = strstr(rest, " | ");
        if (end)
            *end = '\0', end += 3;
        try_alternative(k, rest);
    }
    try_value(k, k->key.default_value, 1);
}

static void probe_keys(abi_rig_t *rig) {
    keys_t k = {.rig = rig, .ext = rig->table->get_extension(ZF_EXT_CONFIG)};
    uint32_t n = k.ext ? k.ext->n_keys() : 0;
    if (!k.ext)
        abi_skip(rig->probe, ABI_RULE_KEYS, "no extension " ZF_EXT_CONFIG);
    for (uint32_t i = 0; i < n; i++) {
        k.key = (zf_config_key_t){.struct_size = sizeof k.key};
        zf_status_t st = k.ext->key(i, &k.key, NULL);
        if (abi_check(rig->probe, ABI_RULE_KEYS,
                      st == ZF_OK && k.key.section && k.key.key && k.key.range && k.key.default_value,
                      "key(%u) of %u returned %d, or gives no name", i, n, st))
            try_key(&k);
    }
    abi_check(rig->probe, ABI_RULE_KEYS, !k.ext || k.ext->key(n, &k.key, NULL) == ZF_ERR_ARGUMENT, "key(%u) of %u", n,
              n);
}

/* What an instance shows of a key is cut to its buffer; overrides are checked with the text. */
static void probe_values(abi_rig_t *rig) {
    static const char *const wrong = "zenflow.topk_ratio=7";
    const zf_config_ext_t *ext = rig->table->get_extension(ZF_EXT_CONFIG);
    char whole[300], cut[300];
    for (uint32_t i = 0; ext && i < ext->n_keys(); i++) {
        if (ext->value(rig->instance, i, whole, sizeof whole, NULL) != ZF_OK)
            continue;
        size_t n = strlen(whole);
        memset(cut, '#', sizeof cut);
        zf_status_t st = ext->value(rig->instance, i, cut, n, &rig->err); /* one byte too small */
        abi_check(rig->probe, ABI_RULE_KEYS, n == 0 || (st == ZF_OK && strnlen(cut, n) == n - 1 && cut[n] == '#'),
                  "value of key %u in a buffer of %zu bytes for \"%s\": returned %d, or wrote behind it", i, n, whole,
                  st);
    }
    abi_check(rig->probe, ABI_RULE_KEYS, !ext || ext->check("", 0, &wrong, 1, NULL) == ZF_ERR_CONFIG,
              "check takes the override %s", wrong);
}

/* A list of more problems than fit: the first ones by name, and how many more there are. */
static void probe_long_list(abi_rig_t *rig) {
    enum { N = 400 };
    const zf_config_ext_t *ext = rig->table->get_extension(ZF_EXT_CONFIG);
    zf_error_t err = {.struct_size = sizeof err};
    char text[10000] = "[zenflow]\n", word[40];
    int n_named = 0;
    for (int i = 0; i < N; i++) {
        snprintf(word, sizeof word, "no_such_key_%d = 1\n", i);
        strcat(text, word);
    }
    zf_status_t st = ext ? ext->check(text, strlen(text), NULL, 0, &err) : ZF_ERR_CONFIG;
    for (; ext && n_named < N; n_named++) {
        snprintf(word, sizeof word, "\"no_such_key_%d\"", n_named);
        if (!strstr(err.message, word))
            break;
    }
    snprintf(word, sizeof word, "%d more", N - n_named);
    abi_check(rig->probe, ABI_RULE_CONFIG,
              !ext || (st == ZF_ERR_CONFIG && n_named > 2 && (n_named == N || strstr(err.message, word))),
              "%d keys are wrong: the message names the first %d, and not \"%s\": %s", N, n_named, word, err.message);
}

/* ---- extensions -------------------------------------------------------------------------------------------------- */

static void expect_none(abi_rig_t *rig, const char *id) {
    abi_try(rig->probe, "get_extension(\"%s\")", id);
    abi_check(rig->probe, ABI_RULE_TABLE, !rig->table->get_extension(id), "get_extension knows \"%s\"", id);
}

/* An id is compared whole, and is the host's memory: what lies there later is another one. */
static void probe_ids(abi_rig_t *rig) {
    static const char *const ids[] = {ZF_EXT_CONFIG, ZF_EXT_CPU, ZF_EXT_STATS, ZF_EXT_STATE, ZF_EXT_RESIDENCY};
    char id[64];
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        size_t n = strlen(ids[i]);
        snprintf(id, sizeof id, "%s", ids[i]);
        const void *table = rig->table->get_extension(id);
        if (!table)
            continue;
        memset(id, 'x', n);
        expect_none(rig, id);
        snprintf(id, sizeof id, "%s0", ids[i]);
        expect_none(rig, id);
        id[n - 1] = '\0';
        expect_none(rig, id);
        snprintf(id, sizeof id, "%s", ids[i]);
        id[0] = 'Z';
        expect_none(rig, id);
        snprintf(id, sizeof id, "%s", ids[i]);
        id[3] = (char)(id[3] + 1);
        expect_none(rig, id);
        abi_check(rig->probe, ABI_RULE_TABLE, rig->table->get_extension(ids[i]) == table,
                  "get_extension gives another table of %s than before", ids[i]);
    }
}

/* ---- digests ----------------------------------------------------------------------------------------------------- */

/* Of every single element that changes the digest changes; over some hundred changes each bit of it does. */
static void check_digest(abi_rig_t *rig, const zf_digest_ext_t *ext, zf_dtype_t dtype, int64_t n_elems) {
    static uint32_t memory[256];
    const int64_t shape[] = {n_elems};
    const uint32_t size = dtype.bits / 8u;
    zf_tensor_t tensor;
    const zf_tensor_t *list[] = {&tensor};
    uint64_t first, now, moved = 0;
    memset(memory, 0, sizeof memory);
    zf_tensor_contiguous(memory, dtype, 1, shape, &tensor);
    zf_status_t st = ABI_CALL(rig, ext->digest(rig->instance, list, 1, &first, &rig->err));
    abi_rig_check(rig, ABI_RULE_DIGEST, st == ZF_OK, "digest", st);
    for (uint32_t i = 0; i < n_elems && st == ZF_OK; i++) {
        uint8_t *at = (uint8_t *)memory + i * size + i / 8 % size;
        *at ^= (uint8_t)(1u << i % 8);
        st = ABI_CALL(rig, ext->digest(rig->instance, list, 1, &now, &rig->err));
        abi_check(rig->probe, ABI_RULE_DIGEST, now != first,
                  "a change of element %u of %lld of %u bits keeps the digest", i, (long long)n_elems,
                  (unsigned)dtype.bits);
        moved |= now ^ first;
        *at ^= (uint8_t)(1u << i % 8);
    }
    abi_check(rig->probe, ABI_RULE_DIGEST, moved == UINT64_MAX, "bits 0x%016llx of a digest do not move",
              (unsigned long long)~moved);
}

static void probe_digest(abi_rig_t *rig) {
    const zf_digest_ext_t *ext = rig->table->get_extension(ZF_EXT_DIGEST);
    if (!ext) {
        abi_skip(rig->probe, ABI_RULE_DIGEST, "no extension " ZF_EXT_DIGEST);
        return;
    }
    check_digest(rig, ext, zf_dtype_float32(), 256);
    check_digest(rig, ext, zf_dtype_bfloat16(), 255);
    check_digest(rig, ext, zf_dtype_float16(), 129);
}

/* A change anywhere in a large one is seen. */
static void probe_large_digest(abi_rig_t *rig) {
    enum { N_ELEMS = (9 << 20) / 4 + 3, N_PLACES = 16 };
    const zf_digest_ext_t *ext = rig->table->get_extension(ZF_EXT_DIGEST);
    static float memory[N_ELEMS];
    const int64_t shape[] = {N_ELEMS};
    zf_tensor_t tensor;
    const zf_tensor_t *list[] = {&tensor};
    uint64_t first, now;
    zf_tensor_contiguous(memory, zf_dtype_float32(), 1, shape, &tensor);
    if (!ext || ABI_CALL(rig, ext->digest(rig->instance, list, 1, &first, &rig->err)) < 0)
        return;
    for (size_t i = 0; i <= N_PLACES; i++) {
        size_t at = (N_ELEMS - 1) * i / N_PLACES;
        memory[at] = 1.0f;
        zf_status_t st = ABI_CALL(rig, ext->digest(rig->instance, list, 1, &now, &rig->err));
        memory[at] = 0.0f;
        abi_check(rig->probe, ABI_RULE_DIGEST, st == ZF_OK && now != first,
                  "a change of element %zu of %d keeps the digest", at, N_ELEMS);
    }
}

/* Several in one call, in their order; strides and shapes do not count. */
static void probe_digests(abi_rig_t *rig) {
    enum { ROWS = 6, COLUMNS = 5 };
    const zf_digest_ext_t *ext = rig->table->get_extension(ZF_EXT_DIGEST);
    static float apart[ROWS][2 * COLUMNS], together[ROWS * COLUMNS], other[3] = {1, 2, 3};
    const int64_t shape[] = {ROWS, COLUMNS}, strides[] = {2 * COLUMNS, 1}, n[] = {ROWS * COLUMNS}, three[] = {3};
    zf_tensor_t tensors[3];
    const zf_tensor_t *list[] = {&tensors[0], &tensors[1], &tensors[2]};
    uint64_t all[3], one;
    if (!ext)
        return;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        together[i] = apart[i / COLUMNS][i % COLUMNS] = (float)i + 0.5f;
    zf_tensor_contiguous(apart, zf_dtype_float32(), 2, shape, &tensors[0]);
    tensors[0].dl.strides = strides;
    tensors[0].nbytes = sizeof apart - COLUMNS * sizeof(float);
    zf_tensor_contiguous(together, zf_dtype_float32(), 1, n, &tensors[1]);
    zf_tensor_contiguous(other, zf_dtype_float32(), 1, three, &tensors[2]);
    zf_status_t st = ABI_CALL(rig, ext->digest(rig->instance, list, 3, all, &rig->err));
    if (!abi_rig_check(rig, ABI_RULE_DIGEST, st == ZF_OK, "digest of three tensors", st))
        return;
    abi_check(rig->probe, ABI_RULE_DIGEST, all[0] == all[1], "a digest of equal elements differs with their strides");
    for (int i = 0; i < 3; i++) {
        st = ABI_CALL(rig, ext->digest(rig->instance, &list[i], 1, &one, &rig->err));
        abi_check(rig->probe, ABI_RULE_DIGEST, st == ZF_OK && one == all[i],
                  "tensor %d of three has another digest than alone", i);
    }
}

/* ---- records of former steps ------------------------------------------------------------------------------------- */

enum { N_STEPS = 150, N_KEPT = 128 };
static const double max_off_share = 0.4; /* the program may be held up at either end */

static void check_record(abi_rig_t *rig, const zf_stats_ext_t *stats, uint64_t step, const zf_step_report_t *want) {
    zf_step_record_t r = {.struct_size = sizeof r};
    zf_status_t st = stats->step_record(rig->instance, step, &r, NULL);
    int is_kept = step > N_STEPS - N_KEPT;
    if (!is_kept)
        abi_check(rig->probe, ABI_RULE_RECORDS, st == ZF_IN_PROGRESS && r.step == 0,
                  "the record of step %llu of %d, which is not kept: returned %d, step %llu", (unsigned long long)step,
                  N_STEPS, st, (unsigned long long)r.step);
    else
        abi_check(rig->probe, ABI_RULE_RECORDS,
                  st == ZF_OK && r.is_finished && r.step == step && r.applied == want->applied &&
                      r.skip_reason == want->skip_reason && r.n_present == want->n_present &&
                      r.grad_norm == want->grad_norm && r.clip_factor == want->clip_factor,
                  "the record of step %llu: returned %d, step %llu, applied %d, n_present %u, norm %.9g, factor %.9g, "
                  "its report had %d, %u, %.9g, %.9g",
                  (unsigned long long)step, st, (unsigned long long)r.step, r.applied, r.n_present, r.grad_norm,
                  r.clip_factor, want->applied, want->n_present, want->grad_norm, want->clip_factor);
}

/* Step 0 stands for the newest; without an instance counters are 0. */
static void check_newest(abi_rig_t *rig, const zf_stats_ext_t *stats) {
    zf_step_record_t r = {.struct_size = sizeof r};
    zf_status_t st = stats->step_record(rig->instance, 0, &r, NULL);
    abi_check(rig->probe, ABI_RULE_RECORDS, st == ZF_OK && r.step == N_STEPS,
              "the newest step's record: returned %d, step %llu of %d", st, (unsigned long long)r.step, N_STEPS);
    zf_counter_t far = {.struct_size = sizeof far};
    const uint64_t beyond = N_STEPS + (UINT64_C(1) << 32);
    st = stats->step_record(rig->instance, beyond, &r, NULL);
    abi_check(rig->probe, ABI_RULE_RECORDS,
              st == ZF_IN_PROGRESS && r.step == 0 &&
                  stats->step_counter(rig->instance, beyond, 0, &far, NULL) == ZF_IN_PROGRESS && far.value == 0,
              "the record of step %llu, which is not submitted: returned %d, step %llu", (unsigned long long)beyond, st,
              (unsigned long long)r.step);
    for (uint32_t i = 0; i < stats->n_counters(); i++) {
        zf_counter_t c = {.struct_size = sizeof c};
        stats->counter(rig->instance, i, &c, NULL);
        st = stats->counter(NULL, i, &c, NULL);
        abi_check(rig->probe, ABI_RULE_RECORDS, st == ZF_OK && c.value == 0, "counter %u without an instance is %llu",
                  i, (unsigned long long)c.value);
    }
}

/* Times of steps add up to the time between two returns, whatever the machine does between. */
static void check_times(abi_rig_t *rig, const zf_stats_ext_t *stats, double wall_ms) {
    double sum_ms = 0;
    for (uint64_t step = N_STEPS - N_KEPT + 2; step <= N_STEPS; step++) {
        zf_step_record_t r = {.struct_size = sizeof r};
        if (stats->step_record(rig->instance, step, &r, NULL) == ZF_OK)
            sum_ms += 1e-6 * (double)r.step_ns;
    }
    abi_check(rig->probe, ABI_RULE_RECORDS, fabs(sum_ms - wall_ms) <= max_off_share * wall_ms,
              "step_ns of %d steps is %.1f ms, the host's clock says %.1f", N_KEPT - 1, sum_ms, wall_ms);
}

static double host_norm(const abi_rig_t *rig, uint32_t n_present, double unscale) {
    double sum = 0;
    for (uint32_t i = 0; i < n_present; i++)
        for (size_t k = 0; k < rig->grad_tensors[i].nbytes / (i == 1 ? 2 : 4); k++) {
            float g = 0;
            memcpy((char *)&g + (i == 1 ? 2 : 0), (const char *)rig->grads[i] + (i == 1 ? 2 : 4) * k, i == 1 ? 2 : 4);
            sum += (double)g * (double)g;
        }
    return unscale * sqrt(sum);
}

static zf_status_t step_once(abi_rig_t *rig, uint32_t s, zf_step_report_t *out) {
    uint32_t n_present = ABI_RIG_TRAINED - (s % 5 == 4);
    rig->step.unscale = s % 3 ? 0.25 : 1.0;
    rig->step.clip_norm = s % 2 ? 0.5 : 0.0;
    abi_rig_set_gradients(rig);
    if (s % 7 == 6)
        ((float *)(void *)rig->grads[0])[3] = INFINITY;
    zf_status_t st = abi_rig_step(rig, n_present, out);
    double norm = host_norm(rig, n_present, rig->step.unscale);
    double factor = rig->step.clip_norm > 0 ? fmin(1.0, rig->step.clip_norm / (norm + 1e-6)) : 1.0;
    abi_check(rig->probe, ABI_RULE_RECORDS,
              st < 0 || s % 7 == 6 ||
                  (fabs(out->grad_norm - norm) <= 1e-4 * norm && fabs(out->clip_factor - factor) <= 1e-4 * factor),
              "step %u: grad_norm %.9g, clip_factor %.9g; the host computes %.9g, %.9g", rig->n_steps, out->grad_norm,
              out->clip_factor, norm, factor);
    return st;
}

static void probe_records(abi_rig_t *rig) {
    static zf_step_report_t reports[N_STEPS];
    const zf_stats_ext_t *stats = rig->table->get_extension(ZF_EXT_STATS);
    uint64_t began = 0, ended = 0;
    if (!stats || stats->struct_size < offsetof(zf_stats_ext_t, step_counter)) {
        abi_skip(rig->probe, ABI_RULE_RECORDS, "no step_record of " ZF_EXT_STATS);
        return;
    }
    for (uint32_t s = 0; s < N_STEPS; s++) {
        zf_status_t st = step_once(rig, s, &reports[s]);
        if (!abi_rig_check(rig, ABI_RULE_VALID, st >= 0, "a right step", st))
            return;
        if (s == N_STEPS - N_KEPT)
            began = zc_now_ns();
        ended = zc_now_ns();
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    double wall_ms = 1e-6 * (double)(ended - began);
    for (uint32_t s = 0; s < N_STEPS; s++)
        check_record(rig, stats, s + 1, &reports[s]);
    check_newest(rig, stats);
    check_times(rig, stats, wall_ms);
}

/* ---- text that is cut -------------------------------------------------------------------------------------------- */

enum { NAME_NBYTES = 256, MOST_NAMED = 3 };

static const abi_rig_t *named; /* whose log is read */

/* Whole characters of UTF-8, and nothing else. */
static int is_utf8(const char *text, size_t nbytes) {
    for (size_t i = 0, n = 0; i < nbytes; i += n) {
        unsigned char c = (unsigned char)text[i];
        n = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
        if (n == 0 || n > nbytes - i)
            return 0;
        for (size_t k = 1; k < n; k++)
            if ((text[i + k] & 0xC0) != 0x80)
                return 0;
    }
    return 1;
}

static void on_named(void *ctx, int32_t level, const char *component, const char *file, int32_t line, const char *msg,
                     uint64_t len) {
    (void)ctx, (void)level, (void)component, (void)file, (void)line;
    abi_check(named->probe, ABI_RULE_MESSAGE, is_utf8(msg, (size_t)len), "a line of the log is not UTF-8: \"%.*s\"",
              (int)len, msg);
}

/* Refused, in whole characters. */
static void is_told(abi_rig_t *rig, const char *call, zf_status_t st) {
    const char *text = rig->err.message;
    abi_check(rig->probe, ABI_RULE_MESSAGE, st < 0, "%s with long names: returned %d", call, st);
    abi_check(rig->probe, ABI_RULE_MESSAGE, st >= 0 || is_utf8(text, strlen(text)),
              "%s with long names: the message is cut within a character: \"%s\"", call, text);
}

/* A letter, some bytes of one each, and characters of some bytes up to an end that depends on both. */
static void make_name(char out[NAME_NBYTES], char first, int n_single, int width) {
    static const char *const characters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9d\x84\x9e"};
    size_t n = (size_t)snprintf(out, NAME_NBYTES, "%c%.*s", first, n_single, "....");
    while (n + (size_t)width < NAME_NBYTES)
        n += (size_t)snprintf(out + n, NAME_NBYTES - n, "%s", characters[width - 2]);
}

/* Of bind_params, into an instance that was created. */
static void refuse_binding(abi_rig_t *rig) {
    const uint64_t kept = rig->memory[1][0];
    const char *name = rig->decls[2].name;
    rig->decls[2].name = rig->decls[0].name;
    is_told(rig, "bind_params of one name twice", abi_rig_bind(rig, NULL));
    rig->decls[2].name = name;
    rig->memory[1][0] = UINT64_MAX;
    is_told(rig, "bind_params of a weight that is not finite", abi_rig_bind(rig, NULL));
    rig->memory[1][0] = kept;
    rig->tensors[1].dl.dtype.bits = 64;
    is_told(rig, "bind_params of another data type", abi_rig_bind(rig, NULL));
    rig->tensors[1].dl.dtype.bits = 16;
}

/* Of an instance that trains; the warning of a gradient that is missing, too. */
static void refuse_calls(abi_rig_t *rig) {
    zf_param_item_t item = {.struct_size = sizeof item, .id = rig->ids[0], .n_batches = 2};
    const zf_export_item_t export = {.struct_size = sizeof export, .id = rig->ids[1], .dst = (float *)rig->memory};
    is_told(rig, "params_changed",
            ABI_CALL(rig, rig->table->params_changed(rig->instance, &item, 1, sizeof item, 0, &rig->err)));
    is_told(rig, "export_params", abi_rig_export(rig, &export));
    rig->grad_tensors[1].dl.ndim = 1;
    is_told(rig, "grads_ready", abi_rig_deliver(rig, 0, ABI_RIG_TRAINED));
    rig->grad_tensors[1].dl.ndim = 2;
    zf_status_t st = abi_rig_step(rig, ABI_RIG_TRAINED - 2, NULL);
    abi_rig_check(rig, ABI_RULE_VALID, st >= 0, "a step without two gradients", st);
}

/* Of checkpoints: at a place that is not there, of other names, of another rule. */
static void refuse_checkpoints(abi_rig_t *rig, const char *name) {
    static const zf_group_decl_t lion = {sizeof lion, ZF_RULE_LION, NULL};
    static abi_rig_t other;
    const zf_state_ext_t *ext = rig->table->get_extension(ZF_EXT_STATE);
    char nowhere[4600], path[4600];
    float out[30];
    zf_state_args_t args = {.struct_size = sizeof args, .path = nowhere};
    snprintf(nowhere, sizeof nowhere, "%s/%.200s/%s", rig->probe->scratch, name, name);
    snprintf(path, sizeof path, "%s/named", rig->probe->scratch);
    if (!ext)
        return;
    is_told(rig, "save", ABI_CALL(rig, ext->save(rig->instance, &args, NULL, &rig->err)));
    is_told(rig, "load", ABI_CALL(rig, ext->load(rig->instance, &args, NULL, &rig->err)));
    is_told(rig, "verify", ext->verify(&args, NULL, &rig->err));
    args.path = path;
    zf_status_t st = ABI_CALL(rig, ext->save(rig->instance, &args, NULL, &rig->err));
    abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "save", st);
    is_told(rig, "weights of another size", ext->weights(&args, rig->decls[0].name, out, 3, &rig->err));
    is_told(rig, "weights of no parameter", ext->weights(&args, name + 1, out, 30, &rig->err));
    for (int i = 0; i < 2 && abi_rig_open(&other, rig->probe, rig->probe->plugin); i++) {
        for (int k = 0; k < MOST_NAMED; k++)
            other.decls[k].name = rig->decls[k].name + (i == 0 && k == 1);
        other.group = i ? &lion : NULL;
        if (abi_rig_start(&other, ABI_BOUND))
            is_told(&other, "a load of another model",
                    ABI_CALL(&other, ext->load(other.instance, &args, NULL, &other.err)));
        abi_rig_end(&other);
    }
}

/* Of texts: a key, a value, a section, a file, an override. */
static void refuse_texts(abi_rig_t *rig, const char *name) {
    static const char *const forms[] = {"[zenflow]\n%s = 1\n", "[zenflow]\ntopk_ratio = %s\n", "[%s]\nx = 1\n",
                                        "[zenflow]\ntopk_ratio = %s\nselect_strategy = %s\nmode = %s\n"};
    const zf_config_ext_t *ext = rig->table->get_extension(ZF_EXT_CONFIG);
    zf_instance_t *none = NULL;
    char text[1000];
    zf_create_args_t args = rig->create;
    args.config_text = text;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        snprintf(text, sizeof text, forms[i], name, name + 1, name + 1);
        args.config_text_nbytes = strlen(text);
        is_told(rig, "create", ABI_CALL(rig, rig->table->create(&args, &none, &rig->err)));
        if (ext)
            is_told(rig, "check", ext->check(text, strlen(text), &name, 1, &rig->err));
    }
    args.config_text = NULL;
    args.config_text_nbytes = 0;
    args.config_path = name;
    is_told(rig, "create from a file", ABI_CALL(rig, rig->table->create(&args, &none, &rig->err)));
}

/* Where a message ends depends on what stands before a name: names of characters of each width begin at each place. */
static void probe_cut(abi_rig_t *rig) {
    char names[MOST_NAMED][NAME_NBYTES];
    named = rig;
    for (int width = 2; width <= 4; width++)
        for (int n_single = 0; n_single < width; n_single++) {
            abi_rig_describe(rig, 1);
            rig->host.table.log = on_named;
            for (int i = 0; i < MOST_NAMED; i++) {
                make_name(names[i], (char)('a' + i), n_single, width);
                rig->decls[i].name = names[i];
            }
            refuse_texts(rig, names[0]);
            if (!abi_rig_start(rig, ABI_CREATED))
                return;
            refuse_binding(rig);
            zf_status_t st = abi_rig_bind(rig, NULL);
            if (!abi_rig_check(rig, ABI_RULE_VALID, st == ZF_OK, "bind_params with long names", st) ||
                !abi_rig_train(rig, 1, ABI_RULE_VALID))
                return;
            refuse_calls(rig);
            refuse_checkpoints(rig, names[1]);
            abi_rig_end(rig);
        }
}

/* ---- the environment --------------------------------------------------------------------------------------------- */

/* What libzfplugin says that it reads, and what launchers set. */
static int may_be_read(const char *name) {
    static const char *const known[] = {"ZF_FORCE_ISA",
                                        "ZF_TEST_BLOCK_ELEMS",
                                        "ZF_TEST_STATE_BYTES",
                                        "ZF_TEST_WHOLE_BYTES",
                                        "ZF_STATE_FILE_NBYTES", /* its own */
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALRANKID",
                                        "MPI_LOCALNRANKS",
                                        "SLURM_LOCALID",
                                        "SLURM_STEP_TASKS_PER_NODE"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i]) == 0)
            return 1;
    return 0;
}

static void probe_environment(abi_rig_t *rig) {
    abi_probe_t *p = rig->probe;
    if (!abi_environment_begin) {
        abi_skip(p, ABI_RULE_ENVIRONMENT, "sanitizers look at the environment themselves");
        return;
    }
    abi_environment_begin();
    if (!abi_rig_open(rig, p, p->plugin) || !abi_rig_start(rig, ABI_ACTIVE))
        return;
    abi_rig_end(rig);
    const char *name;
    for (uint32_t i = 0; (name = abi_environment_read(i)); i++)
        abi_check(p, ABI_RULE_ENVIRONMENT, may_be_read(name), "reads the environment variable %s", name);
    abi_check(p, ABI_RULE_ENVIRONMENT, 1, "read");
}

const abi_row_t abi_told_rows[] = {{"keys and their ranges", ABI_OPEN, 0, probe_keys},
                                   {"values of keys", ABI_BOUND, 0, probe_values},
                                   {"a long list", ABI_OPEN, 0, probe_long_list},
                                   {"ids of extensions", ABI_OPEN, 0, probe_ids},
                                   {"digests", ABI_BOUND, 0, probe_digest},
                                   {"digest of 9 MiB", ABI_BOUND, 0, probe_large_digest},
                                   {"digests of several", ABI_BOUND, 0, probe_digests},
                                   {"text that is cut", ABI_OPEN, 0, probe_cut},
                                   {"records of steps", ABI_BOUND, 0, probe_records},
                                   {"environment", ABI_NOTHING, 0, probe_environment},
                                   {NULL, ABI_NOTHING, 0, NULL}};
