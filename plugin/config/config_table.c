/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/config/config_table.c - the table of configuration keys, and one value of it from and to text (contract in the
 * header).
 *
 * Model: one row per key drives parsing, ranges, defaults, printing and documents; nothing about a key is written
 * twice. Real numbers are read and printed in the C locale, with the fewest digits that read back to the same bits. */
#include "config/config_table.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "zf/plugin.h"

enum { NUMBER_MAX = 64, NAME_MAX_COMPARED = 48 };

static const zfi_choice_t strategies[] = {
    {"step", ZFI_SELECT_STEP}, {"epoch", ZFI_SELECT_EPOCH}, {"auto", ZFI_SELECT_AUTO}, {NULL, 0}};
static const zfi_choice_t auto_interval[] = {{"auto", ZFI_SELECT_INTERVAL_AUTO}, {NULL, 0}};
static const zfi_choice_t auto_lag[] = {{"auto", ZFI_PUBLISH_LAG_AUTO}, {NULL, 0}};
static const zfi_choice_t predicts[] = {
    {"auto", ZFI_PREDICT_AUTO}, {"off", ZFI_PREDICT_OFF}, {"0", ZFI_PREDICT_OFF}, {NULL, 0}};
static const zfi_choice_t auto_bucket[] = {{"auto", ZFI_BUCKET_AUTO}, {NULL, 0}};
static const zfi_choice_t transports[] = {{"host", ZFI_TRANSPORT_HOST},
                                          {"nccl", ZFI_TRANSPORT_NCCL},
                                          {"host_two_level", ZFI_TRANSPORT_HOST | ZFI_TRANSPORT_TWO_LEVEL},
                                          {"nccl_two_level", ZFI_TRANSPORT_NCCL | ZFI_TRANSPORT_TWO_LEVEL},
                                          {"nccl_native", ZFI_TRANSPORT_NCCL | ZFI_TRANSPORT_NATIVE},
                                          {NULL, 0}};
static const zfi_choice_t auto_window[] = {{"auto", ZFI_UPDATE_INTERVAL_AUTO}, {NULL, 0}};
static const zfi_choice_t modes[] = {
    {"exact", ZFI_MODE_EXACT}, {"windows", ZFI_MODE_WINDOWS}, {"mean", ZFI_MODE_MEAN}, {NULL, 0}};
static const zfi_choice_t states[] = {{"auto", ZFI_STATE_MIB_AUTO}, {"all", ZFI_STATE_MIB_ALL}, {NULL, 0}};
static const zfi_choice_t on_overwrites[] = {
    {"error", ZFI_OVERWRITE_ERROR}, {"ask", ZFI_OVERWRITE_ASK}, {"off", ZFI_OVERWRITE_OFF}, {NULL, 0}};
static const zfi_choice_t auto_early[] = {{"auto", ZFI_EARLY_MIB_AUTO}, {NULL, 0}};
static const zfi_choice_t moments[] = {{"float32", ZFI_MOMENTS_F32},
                                       {"bfloat16", ZFI_MOMENTS_BF16},
                                       {"bfloat16_stochastic", ZFI_MOMENTS_BF16_STOCHASTIC},
                                       {"int8", ZFI_MOMENTS_INT8},
                                       {"int8_bfloat16", ZFI_MOMENTS_INT8_BF16},
                                       {NULL, 0}};

#define MEMBER(m) offsetof(zfi_config_t, m), sizeof(((zfi_config_t *)0)->m)

static const zfi_key_t keys[] = {
    {"zenflow", "mode", ZFI_KEY_CHOICE, MEMBER(mode), 0, 0, modes, "exact | windows | mean", "exact",
     "What is promised. exact: the weights are plain AdamW's at every step; it sets update_interval = 1 and "
     "publish_lag = 0, and selects no channels. windows, also where one of these two keys is given and this one is "
     "not: deferred channels take "
     "every step's update, but once per window, so that weights are late by a bounded number of steps. mean: ZenFlow's "
     "own rule, one update per window from the mean of its gradients."},
    {"zenflow", "topk_ratio", ZFI_KEY_REAL, MEMBER(topk_ratio), 0.0, 1.0, NULL, "[0, 1]", "0.1",
     "In windows: share of each matrix's channels that run ahead on the device, updated at every step. 1 is plain "
     "AdamW; with 0 nothing runs ahead, not even vectors, but what the trainer declares resident."},
    {"zenflow", "select_strategy", ZFI_KEY_CHOICE, MEMBER(select_strategy), 0, 0, strategies, "step | epoch | auto",
     "step",
     "When the selected channels are chosen again: every select_interval steps; at the end of each epoch, as the "
     "trainer tells it; or every select_interval steps where the current ones hold less than 0.8 of the squared "
     "importance that the best ones would."},
    {"zenflow", "select_interval", ZFI_KEY_INT, MEMBER(select_interval), 1, 1e6, auto_interval, "1..1000000 | auto",
     "16",
     "Steps between two choices of a cohort's channels; a choice falls on the first close of a window after them. "
     "auto: 4 windows."},
    {"zenflow", "update_interval", ZFI_KEY_INT, MEMBER(given_update_interval), 1, 64, auto_window, "1..64 | auto", "1",
     "S: steps per window; 2 where mode = windows or mean and this key is not given. Deferred channels are updated on "
     "the host once per window, with every step's gradient. auto: a cohort's window closes when the deferred channels "
     "of half of its matrices have gathered as much gradient as a selected one has per step, after 3 to 16 steps; "
     "slots are planned for 16. zf tune and zf plan say which S a machine hides."},
    {"zenflow", "full_warm_up_rounds", ZFI_KEY_INT, MEMBER(full_warm_up_rounds), 1, 1e6, NULL, "1..1000000", "50",
     "In windows: synchronous steps at the start, while weights move fastest; importance is collected for the first "
     "choice."},
    {"zenflow", "publish_lag", ZFI_KEY_INT, MEMBER(publish_lag), 0, 1, auto_lag, "0 | 1 | auto", "auto",
     "Steps between the close of a window and the moment its values become visible. 0: where the trainer fetches "
     "parameters, each becomes visible when it is fetched, and the replay runs meanwhile; elsewhere the closing step "
     "waits. auto: 0. With 0, replays begin in the backward pass before their step."},
    {"zenflow", "predict", ZFI_KEY_CHOICE, MEMBER(predict), 0, 0, predicts, "auto | off", "auto",
     "auto (AdamW, Adam; mode = windows): published weights are those that momentum will have reached update_interval "
     "- 1 + publish_lag steps on, at most 4. off: those of the window's last step."},
    {"zenflow", "on_overwrite", ZFI_KEY_CHOICE, MEMBER(on_overwrite), 0, 0, on_overwrites, "error | ask | off", "error",
     "Weights that the trainer writes without params_changed, found by a check of all of them before anything is "
     "overwritten. error: nothing of such a parameter is overwritten, and the next call names it. ask: no check but "
     "when the trainer asks for one (zf.digest/0). off: no check; such weights are lost in silence, or mixed with "
     "others. stage = 3: what is written where a parameter was fetched no check sees; announce it before "
     "param_release, or it is lost. mode = exact on a CPU, one rank: nothing is checked, an edit counts at the next "
     "step."},
    {"device", "state_mib", ZFI_KEY_INT, MEMBER(state_mib), 0, ZFI_STATE_MIB_MOST, states, "0..1073741824 | auto | all",
     "0",
     "MiB of masters and moments that the device keeps in place of the host. As many blocks as fit are resident: "
     "updated there at every step, exactly, without a copy, window or slot on the host. First vectors, then blocks in "
     "the order in which parameters are bound; what the trainer declares resident always is. auto: what bind_params "
     "finds free beside its own plan, less a quarter of the device's memory, on the rank with the least; on a CPU 0. "
     "Pin the number that the log says. all: nothing is on the host, and the keys of selection, windows and threads "
     "have no effect. Several ranks: of each; from stage 1 on a rank keeps its slices of the resident blocks."},
    {"shard", "stage", ZFI_KEY_INT, MEMBER(stage), 0, 3, NULL, "0 | 1 | 2 | 3", "0",
     "Several ranks (the trainer offers zf.collectives/0): what each of them keeps. 0: all of the optimizer's state. "
     "1: host state, slots and the work of replays of its slices: a share of the rows of every matrix. Gradients are "
     "summed over the ranks in either; from 1 on each rank gets and keeps the sums of its slices only, which is half "
     "of what travels. Their memory is that and a few buckets; best where gradients come with LAST, in the reversed "
     "order of parameters. 2: the same as 1. 3: the parameters as well: a rank keeps its slices, and the trainer reads "
     "a whole one between param_fetch and param_release, where zf.shards/0 says (ZF_CREATE_CAP_SHARDS), but those of "
     "at "
     "most 65,536 bytes and vectors, which stay whole; not with mode = mean."},
    {"shard", "bucket_bytes", ZFI_KEY_INT, MEMBER(bucket_bytes), 1, 4294967295.0, auto_bucket, "1..4294967295 | auto",
     "auto",
     "Several ranks: bytes of gradients that are exchanged at once, while the backward pass goes on. The same on every "
     "rank. auto: 1 million elements for each rank, at least 40 million, at most a sixteenth of the model and 512 MiB, "
     "and "
     "less towards the end of the backward pass: halves of what is left, down to a sixteenth of a bucket."},
    {"shard", "transport", ZFI_KEY_CHOICE, MEMBER(transport), 0, 0, transports,
     "host | nccl | host_two_level | nccl_two_level | nccl_native", "host",
     "Several ranks: by what gradients and values are exchanged. host: by the trainer's zf.collectives/0, on CUDA in "
     "page-locked memory. nccl: CUDA only, by libnccl.so.2, on the device; the trainer's collectives start it and "
     "carry the rest. ..._two_level: gradients are summed inside each machine first, then between machines, and values "
     "go the other way, so that a network card carries a share of them instead of all; machines have as many ranks "
     "each. The order of additions is another one, and does not depend on the transport; a machine's sum of float16 "
     "can "
     "overflow where the average of all would not, which skips the step. nccl_native: NCCL sums, in "
     "the gradients' data type and an order of its own (rings, trees, switches that add); other bits than the rest, "
     "within rounding. The same on every rank. nccl: emulated, never run on hardware."},
    {"host", "threads", ZFI_KEY_INT, MEMBER(threads), 0, 256, NULL, "0..256", "0",
     "Worker threads. 0 = physical cores of the affinity mask, or this rank's share of them, no more than the control "
     "groups' quota pays for, less one, at least 1. Each is pinned to a core of the mask that no other instance on the "
     "machine has; none where that cannot be known (a container that shares its CPUs)."},
    {"host", "memory_limit_mib", ZFI_KEY_INT, MEMBER(memory_limit_mib), 0, 1099511627776.0, NULL, "0..1099511627776",
     "0",
     "Most host memory the plan may use, in MiB. 0 = what the machine and its cgroup have, shared fairly with the "
     "other ranks on it."},
    {"host", "early_mib", ZFI_KEY_INT, MEMBER(early_mib), 0, ZFI_EARLY_MIB_MOST, auto_early, "0..1073741824 | auto",
     "auto",
     "Most host memory for replays that begin during backward, before their step: at most the 14 bytes per bf16 "
     "parameter that close at a step. auto: what leaves a quarter of the memory free. 0: every replay begins with its "
     "step."},
    {"host", "deadline_ms", ZFI_KEY_INT, MEMBER(deadline_ms), 100, 86400000, NULL, "100..86400000", "120000",
     "Every wait ends with an error after this many milliseconds."},
    {"host", "moments_dtype", ZFI_KEY_CHOICE, MEMBER(moments), 0, 0, moments,
     "float32 | bfloat16 | bfloat16_stochastic | int8 | int8_bfloat16", "float32",
     "How moments lie in memory, rounded once per window: in 4 bytes, 2, or 1.03 (int8_bfloat16: m in 1.03, v in 2). "
     "8 bits are for large matrices in host memory; the rest stays float32."},
    {"trace", "file", ZFI_KEY_TEXT, MEMBER(trace_text), 0, 0, NULL,
     "none | PATH | PATH steps N | PATH steps FIRST..LAST, up to 191 bytes", "none",
     "What each thread and stream did and waited for, and when, is written there as a timeline for Perfetto or "
     "chrome://tracing: of the first N steps, or of those from FIRST to LAST; without them 20. The file is written "
     "after the last of them, or when the instance is destroyed. 0: all, of which the first million events are kept. "
     "Several ranks write a file each, NAME.rank3.json."},
    {"audit", "file", ZFI_KEY_TEXT, MEMBER(audit_text), 0, 0, NULL,
     "none | PATH | PATH every N, of 1000000000; up to 191 bytes", "none",
     "At every N-th step, without N every 100th, digests of the visible weights, masters and moments are added there, "
     "by parameter; zf audit A B says where two runs part. Such a step waits until all that is in flight has ended. "
     "Several ranks write a file each, PATH.rank3."},
};
_Static_assert(sizeof keys / sizeof keys[0] == ZFI_N_KEYS, "ZFI_N_KEYS is the number of rows");

static const char *const trainers[] = {"lr",
                                       "learning_rate",
                                       "betas",
                                       "beta1",
                                       "beta2",
                                       "eps",
                                       "weight_decay",
                                       "clip_norm",
                                       "max_grad_norm",
                                       "loss_scale",
                                       "gradient_clipping",
                                       "gradient_accumulation_steps",
                                       NULL};

/* ---- names ------------------------------------------------------------------------------------------------------- */

const zfi_key_t *zfi_key_at(uint32_t i) { return &keys[i]; }

const char *zfi_key_type_name(zfi_key_type_t type) {
    static const char *const names[] = {"real", "int", "choice", "text"};
    return names[type];
}

int zfi_key_find(const char *section, const char *name) {
    for (int i = 0; i < ZFI_N_KEYS; i++)
        if ((!section || strcmp(keys[i].section, section) == 0) && strcmp(keys[i].name, name) == 0)
            return i;
    return -1;
}

/* Levenshtein's distance of the first NAME_MAX_COMPARED bytes, one row at a time. */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[NAME_MAX_COMPARED + 1], na = strnlen(a, NAME_MAX_COMPARED), nb = strnlen(b, NAME_MAX_COMPARED);
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

const char *zfi_section_nearest(const char *name) {
    const char *nearest = keys[0].section;
    size_t least = SIZE_MAX;
    for (int i = 0; i < ZFI_N_KEYS; i++) {
        size_t distance = edit_distance(name, keys[i].section);
        if (distance < least)
            least = distance, nearest = keys[i].section;
    }
    return nearest;
}

const char *zfi_key_nearest(const char *section, const char *name) {
    const char *nearest = "";
    size_t least = SIZE_MAX;
    for (int i = 0; i < ZFI_N_KEYS; i++) {
        size_t distance = strcmp(keys[i].section, section) == 0 ? edit_distance(name, keys[i].name) : SIZE_MAX;
        if (distance < SIZE_MAX && *name && strncmp(keys[i].name, name, strlen(name)) == 0)
            distance = 0; /* it begins so */
        if (distance < least)
            least = distance, nearest = keys[i].name;
    }
    return nearest;
}

int zfi_section_is_known(const char *name) {
    for (int i = 0; i < ZFI_N_KEYS; i++)
        if (strcmp(keys[i].section, name) == 0)
            return 1;
    return 0;
}

int zfi_key_is_free(const char *section, const char *name) {
    static const char *const sections[] = {"shard", "trace", "audit"};
    static const char *const of_host[] = {"threads", "memory_limit_mib", "early_mib", "deadline_ms"};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        if (strcmp(section, sections[i]) == 0)
            return 1;
    for (size_t i = 0; i < sizeof of_host / sizeof *of_host && strcmp(section, "host") == 0; i++)
        if (strcmp(name, of_host[i]) == 0)
            return 1;
    return strcmp(section, "zenflow") == 0 && strcmp(name, "on_overwrite") == 0;
}

int zfi_key_is_trainers(const char *name) {
    for (size_t i = 0; trainers[i]; i++)
        if (strcmp(trainers[i], name) == 0)
            return 1;
    return 0;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* [+-] digits [. digits] [e [+-] digits], at least one digit before the exponent; no hex, no inf, no nan. */
static int read_real(const char *text, double *out) {
    locale_t c_locale = text[strspn(text, "+-0123456789.eE")] ? (locale_t)0 : newlocale(LC_ALL_MASK, "C", (locale_t)0);
    char *end;
    if (c_locale == (locale_t)0)
        return 0;
    *out = strtod_l(text, &end, c_locale);
    freelocale(c_locale);
    return end != text && !*end;
}

static zfi_value_result_t set_real(const zfi_key_t *key, const char *text, void *member) {
    double x;
    if (!read_real(text, &x))
        return ZFI_VALUE_MALFORMED;
    if (!(x >= key->min && x <= key->max))
        return ZFI_VALUE_RANGE;
    memcpy(member, &x, sizeof x);
    return ZFI_VALUE_OK;
}

/* Digits only, with an optional sign; what does not fit 64 bits is out of every range. */
static zfi_value_result_t set_int(const zfi_key_t *key, const char *text, void *member) {
    int is_negative = *text == '-', is_huge = 0;
    uint64_t x = 0;
    uint32_t narrow;
    if (*text == '+' || *text == '-')
        text++;
    if (!*text)
        return ZFI_VALUE_MALFORMED;
    for (; *text; text++) {
        if (!is_digit(*text))
            return ZFI_VALUE_MALFORMED;
        if (x > (UINT64_MAX - 9) / 10)
            is_huge = 1;
        else
            x = 10 * x + (uint64_t)(*text - '0');
    }
    if (is_huge || (is_negative && x) || (double)x < key->min || (double)x > key->max)
        return ZFI_VALUE_RANGE;
    narrow = (uint32_t)x;
    if (key->nbytes == sizeof x)
        memcpy(member, &x, sizeof x);
    else
        memcpy(member, &narrow, sizeof narrow);
    return ZFI_VALUE_OK;
}

static zfi_value_result_t set_choice(const zfi_key_t *key, const char *text, void *member) {
    for (const zfi_choice_t *c = key->choices; c->name; c++) {
        if (strcmp(text, c->name) != 0)
            continue;
        memcpy(member, &c->value, sizeof c->value);
        return ZFI_VALUE_OK;
    }
    return ZFI_VALUE_MALFORMED;
}

/* The default is a word that stands for no text. */
static zfi_value_result_t set_text(const zfi_key_t *key, const char *text, char *member) {
    if (strlen(text) >= key->nbytes)
        return ZFI_VALUE_RANGE;
    memset(member, 0, key->nbytes); /* configurations are compared as bytes */
    if (strcmp(text, key->default_value) != 0)
        memcpy(member, text, strlen(text));
    return ZFI_VALUE_OK;
}

/* A word in place of a number. */
static int set_word(const zfi_key_t *key, const char *text, void *member) {
    for (const zfi_choice_t *c = key->choices; c && c->name; c++) {
        double real = c->value;
        uint32_t narrow = (uint32_t)c->value;
        if (strcmp(text, c->name) != 0)
            continue;
        memcpy(member, key->type == ZFI_KEY_REAL ? (const void *)&real : &narrow, key->nbytes);
        return 1;
    }
    return 0;
}

zfi_value_result_t zfi_key_set(const zfi_key_t *key, const char *text, zfi_config_t *out) {
    void *member = (char *)out + key->offset;
    if ((key->type == ZFI_KEY_REAL || key->type == ZFI_KEY_INT) && set_word(key, text, member))
        return ZFI_VALUE_OK;
    if (key->type == ZFI_KEY_REAL)
        return set_real(key, text, member);
    if (key->type == ZFI_KEY_INT)
        return set_int(key, text, member);
    if (key->type == ZFI_KEY_TEXT)
        return set_text(key, text, member);
    return set_choice(key, text, member);
}

/* Fewest digits that read back. */
static void print_real(double x, char *buf, size_t nbytes) {
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0), callers = uselocale(c_locale);
    char text[NUMBER_MAX];
    double back = 0;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (read_real(text, &back) && back == x)
            break;
    }
    uselocale(callers);
    if (c_locale != (locale_t)0)
        freelocale(c_locale);
    snprintf(buf, nbytes, "%s", text);
}

static const char *choice_name(const zfi_key_t *key, int32_t value) {
    for (const zfi_choice_t *c = key->choices; c && c->name; c++)
        if (c->value == value)
            return c->name;
    return "";
}

void zfi_key_print(const zfi_key_t *key, const zfi_config_t *config, char *buf, size_t nbytes) {
    const void *member = (const char *)config + key->offset;
    double real;
    uint64_t wide;
    uint32_t narrow;
    if (key->type == ZFI_KEY_REAL) {
        memcpy(&real, member, sizeof real);
        if (real < key->min && *choice_name(key, (int32_t)real))
            snprintf(buf, nbytes, "%s", choice_name(key, (int32_t)real));
        else
            print_real(real, buf, nbytes);
    } else if (key->type == ZFI_KEY_TEXT) {
        snprintf(buf, nbytes, "%s", *(const char *)member ? (const char *)member : key->default_value);
    } else if (key->type == ZFI_KEY_INT && key->nbytes == sizeof wide) {
        memcpy(&wide, member, sizeof wide);
        snprintf(buf, nbytes, "%llu", (unsigned long long)wide);
    } else {
        memcpy(&narrow, member, sizeof narrow);
        if (key->type == ZFI_KEY_INT &&
            !((narrow < key->min || narrow > key->max) && *choice_name(key, (int32_t)narrow)))
            snprintf(buf, nbytes, "%lu", (unsigned long)narrow);
        else
            snprintf(buf, nbytes, "%s", choice_name(key, (int32_t)narrow));
    }
}
