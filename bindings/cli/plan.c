/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/plan.c - `zf plan MODEL`: bytes on host, device and disk, the timeline of a step, and a configuration.
 *
 * Bytes are the plugin's own (plan_bytes.c). Times are a simulation (timeline.h) of speeds that are given, measured by
 * `zf doctor --json`, or assumed; the output says which. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "progress.h"
#include "zf/ext/config.h"

enum { N_INTERVALS = 5, N_ROWS = 2 * N_INTERVALS, VALUE_NBYTES = 64 };
static const uint32_t intervals[N_INTERVALS] = {1, 2, 3, 4, 8};
static const double MAX_STALL = 0.03;
static const double MUCH_SPREAD = 1.25; /* what is less is said by `zf doctor` alone */

typedef struct plan {
    zf_cli_t *cli;
    plan_options_t options;
    plan_speeds_t speeds;
    model_t model;
    char *config_text; /* never NULL once read */
    zf_plan_t bytes;
    plan_balance_t balance;       /* several ranks */
    plan_row_t own, rows[N_ROWS]; /* of the configuration as it is, and of others */
    uint32_t stage;
    int is_own_given, has_measured_own; /* ns of the plugin's own passes: by --own, by the machine's file */
    int is_link_given, has_measured_link;
    double state_nbytes; /* of a parameter: its master and moments */
    double resident_elems;
    int has_windows; /* not mode = mean, some state on the host: there is a timeline */
} plan_t;

/* ---- options ----------------------------------------------------------------------------------------------------- */

typedef struct number_option {
    const char *name, *unit;
    size_t offset; /* of a double in plan_options_t */
    double deflt, least, most;
} number_option_t;

#define OPTION(name, unit, member, deflt, least, most)                                                                 \
    { name, unit, offsetof(plan_options_t, member), deflt, least, most }
static const number_option_t numbers[] = {
    OPTION("--tokens", "tokens per rank and step", tokens, 8192, 1, 1e12),
    OPTION("--sequence", "tokens per sequence", sequence, 2048, 0, 1e9),
    OPTION("--micro-batches", "micro-batches per step", n_micro_batches, 1, 1, 4096),
    OPTION("--tflops", "TFLOP/s of the device at its peak", tflops, 312, 1e-6, 1e9),
    OPTION("--efficiency", "of that peak", efficiency, 0.4, 1e-4, 1),
    OPTION("--link", "GB/s between host and device, each way, per rank", link_gbs, 25, 1e-3, 1e6),
    OPTION("--net", "GB/s of network per rank", net_gbs, 25, 1e-3, 1e6),
    OPTION("--latency", "us per collective", latency_us, 20, 0, 1e9),
    OPTION("--host", "GB/s of replays per machine", host_gbs, 50, 1e-3, 1e6),
    OPTION("--own", "ns per parameter and step of the plugin's own passes on the device", own_ns, 0, 0, 1e9),
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers, OWN = N_NUMBERS - 1, LINK = 5 };
_Static_assert(N_NUMBERS == 10, "LINK is the place of --link");

static double *number_at(plan_options_t *options, size_t i) {
    return (double *)(void *)((char *)options + numbers[i].offset);
}

/* 0: text is no number of that range (said), 1: taken. */
static int take_number(const char *name, const char *text, double least, double most, double *out) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x) || x < least || x > most) {
        fprintf(stderr, "zf plan: %s ", name);
        zf_cli_print(stderr, text);
        fprintf(stderr, ": need a number from %g to %g\n", least, most);
        return 0;
    }
    *out = x;
    return 1;
}

static int take_count(const char *name, const char *text, uint32_t most, uint32_t *out) {
    double x;
    if (!take_number(name, text, 1, most, &x))
        return 0;
    *out = (uint32_t)x;
    return 1;
}

static int take_word(plan_options_t *options, const char *name, const char *value) {
    if (strcmp(name, "--config") == 0)
        options->config_path = value;
    else if (strcmp(name, "--machine") == 0)
        options->machine_path = value;
    else if (strcmp(name, "--set") == 0 && options->n_overrides < PLAN_MAX_OVERRIDES)
        options->overrides[options->n_overrides++] = value;
    else if (strcmp(name, "--device") == 0 && (strcmp(value, "cpu") == 0 || strcmp(value, "cuda") == 0))
        options->is_cpu = strcmp(value, "cpu") == 0;
    else if (strcmp(name, "--dtype") == 0 && model_dtype_of(value) != MODEL_ANY_DTYPE)
        options->dtype = model_dtype_of(value);
    else if (strcmp(name, "--stage") == 0 && options->n_overrides < PLAN_MAX_OVERRIDES && strlen(value) < 8) {
        snprintf(options->stage, sizeof options->stage, "shard.stage=%s", value);
        options->overrides[options->n_overrides++] = options->stage;
    } else
        return 0;
    return 1;
}

/* 0: not called rightly. */
static int take_value(plan_options_t *options, const char *name, const char *value, int *given) {
    if (strcmp(name, "--ranks") == 0)
        return take_count(name, value, 65536, &options->n_ranks);
    if (strcmp(name, "--local-ranks") == 0)
        return take_count(name, value, 4096, &options->n_local_ranks);
    for (int i = 0; i < N_NUMBERS; i++)
        if (strcmp(name, numbers[i].name) == 0) {
            given[i] = 1;
            return take_number(name, value, numbers[i].least, numbers[i].most, number_at(options, (size_t)i));
        }
    return take_word(options, name, value);
}

static int read_options(plan_options_t *options, int argc, char **argv, int *given) {
    for (size_t i = 0; i < N_NUMBERS; i++)
        *number_at(options, i) = numbers[i].deflt;
    options->n_ranks = 1;
    options->dtype = MODEL_ANY_DTYPE;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            options->is_json = 1;
        else if (strcmp(argv[i], "--no-fetch") == 0)
            options->has_no_fetch = 1;
        else if (strcmp(argv[i], "--recompute") == 0)
            options->recomputes = 1;
        else if (argv[i][0] != '-' && !options->model_path)
            options->model_path = argv[i];
        else if (i + 1 < argc && take_value(options, argv[i], argv[i + 1], given))
            i++;
        else {
            zf_cli_misuse("plan: \"%s\" is no option, or it lacks its value", argv[i]);
            return 0;
        }
    }
    if (!options->n_local_ranks)
        options->n_local_ranks = options->n_ranks < 8 ? options->n_ranks : 8;
    if (options->n_local_ranks > options->n_ranks)
        options->n_local_ranks = options->n_ranks;
    if (!options->model_path)
        zf_cli_misuse("plan: MODEL is missing");
    return options->model_path != NULL;
}

/* ---- what the configuration says --------------------------------------------------------------------------------- */

/* What a key has: an instance on the CPU says it. 0 after a message. */
static int read_key(const plan_t *plan, zf_instance_t *inst, const char *section, const char *name, char *out) {
    const zf_config_ext_t *config = zf_loader_plugin(plan->cli->loader)->get_extension(ZF_EXT_CONFIG);
    for (uint32_t i = 0; i < config->n_keys(); i++) {
        zf_config_key_t key = {.struct_size = sizeof key};
        if (config->key(i, &key, NULL) >= 0 && strcmp(key.section, section) == 0 && strcmp(key.key, name) == 0)
            return config->value(inst, i, out, VALUE_NBYTES, NULL) >= 0;
    }
    return 0;
}

static int read_config(plan_t *plan) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_host_t host = {.struct_size = sizeof host, .name = "zf", .version = "1"};
    zf_create_args_t create = {.struct_size = sizeof create,
                               .host = &host,
                               .overrides = plan->options.overrides,
                               .n_overrides = plan->options.n_overrides,
                               .device_type = ZF_DEVICE_CPU};
    char mode[VALUE_NBYTES] = "", stage[VALUE_NBYTES] = "", state[VALUE_NBYTES] = "", moments[VALUE_NBYTES] = "";
    zf_instance_t *inst;
    size_t n;
    plan->config_text =
        plan->options.config_path ? zf_cli_read_file(plan->options.config_path, 1 << 20, &n) : calloc(1, 1);
    if (!plan->config_text || !zf_cli_extension(plan->cli, ZF_EXT_CONFIG))
        return 1;
    create.config_text = plan->config_text;
    if (zf_loader_plugin(plan->cli->loader)->create(&create, &inst, &err) < 0)
        return zf_cli_fail(&err);
    read_key(plan, inst, "zenflow", "mode", mode);
    read_key(plan, inst, "device", "state_mib", state);
    read_key(plan, inst, "host", "moments_dtype", moments);
    read_key(plan, inst, "shard", "stage", stage);
    zf_loader_plugin(plan->cli->loader)->destroy(inst, NULL);
    plan->has_windows = strcmp(mode, "mean") != 0 && strcmp(state, "all") != 0;
    plan->stage = (uint32_t)strtoul(stage, NULL, 10);
    plan->state_nbytes = strcmp(moments, "float32") == 0 ? 12 : 8;
    plan->resident_elems = strtod(state, NULL) * (1 << 20) / plan->state_nbytes; /* auto: what nobody knows here */
    return 0;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static int make_row(plan_t *plan, uint32_t interval, uint32_t lag, plan_row_t *row) {
    char window[64], late[64];
    const char *const overrides[] = {"zenflow.mode=windows", window, late, NULL};
    snprintf(window, sizeof window, "zenflow.update_interval=%u", interval);
    snprintf(late, sizeof late, "zenflow.publish_lag=%u", lag);
    *row = (plan_row_t){.update_interval = interval, .publish_lag = lag, .resident_elems = plan->resident_elems};
    row->is_possible = !plan_ask(plan->cli, &plan->options, &plan->model, plan->balance.slowest, plan->config_text,
                                 overrides, 1, &row->bytes);
    return row->is_possible ? plan_time(&plan->options, &plan->speeds, &plan->model, plan->stage, row) : 0;
}

static int make_plan(plan_t *plan) {
    static const char *const none[] = {NULL};
    if (read_config(plan) ||
        (plan->options.machine_path && plan_read_machine(plan->options.machine_path, &plan->speeds)))
        return 1;
    plan->has_measured_own = plan->options.is_cpu && !plan->is_own_given && plan->speeds.own_ns > 0;
    if (plan->has_measured_own)
        plan->options.own_ns = plan->speeds.own_ns;
    plan->has_measured_link = !plan->options.is_cpu && !plan->is_link_given && plan->speeds.link_gbs > 0;
    if (plan->has_measured_link)
        plan->options.link_gbs = plan->speeds.link_gbs;
    plan->model.dtype = plan->options.dtype;
    if (model_read(plan->options.model_path, &plan->model))
        return 1;
    zf_cli_progress_begin("planning", plan->options.model_path);
    if (plan_ask(plan->cli, &plan->options, &plan->model, 0, plan->config_text, none, 0, &plan->bytes))
        return 1;
    if (plan->options.n_ranks > 1 &&
        plan_ask_balance(plan->cli, &plan->options, &plan->model, plan->config_text, &plan->balance))
        return 1;
    if (!plan->has_windows)
        return 0;
    plan->own = (plan_row_t){.update_interval = plan->bytes.update_interval,
                             .publish_lag = plan->bytes.publish_lag,
                             .is_possible = 1,
                             .resident_elems = plan->resident_elems};
    if (plan_ask(plan->cli, &plan->options, &plan->model, plan->balance.slowest, plan->config_text, none, 0,
                 &plan->own.bytes) ||
        plan_time(&plan->options, &plan->speeds, &plan->model, plan->stage, &plan->own))
        return 1;
    for (int i = 0; i < N_ROWS; i++) {
        zf_cli_progress_count((uint64_t)i + 1, N_ROWS + 1);
        if (make_row(plan, intervals[i % N_INTERVALS], (uint32_t)(i / N_INTERVALS), &plan->rows[i]))
            return 1;
    }
    return 0;
}

/* Masters and both moments of all ranks, in fp32 however they lie in memory. */
static double disk_nbytes(const plan_t *plan) { return 12 * (double)plan->bytes.n_elems; }

/* What a save in mid-window adds: the slots that are open then, and visible values, which differ from the masters. */
static double window_nbytes(const plan_t *plan) {
    double n_slots = ((double)plan->bytes.update_interval - 1) / 2;
    return plan->has_windows ? (double)plan->model.nbytes * (n_slots + 1) : 0;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static double gib(double nbytes) { return nbytes / (1 << 30); }
/* Share of a step; what is less than nothing is rounding. */
static double stall(const timeline_t *time) { return fmax(0, plan_waits_s(time)) / time->step_s; }

static const plan_row_t *choose(const plan_t *plan) {
    double room = plan->speeds.available_nbytes / plan->options.n_local_ranks;
    return plan_choose(plan->rows, N_ROWS, MAX_STALL, room > 0 ? room : INFINITY);
}

/* Which type weights and gradients have, and who says so. */
static void print_dtypes(const plan_t *plan) {
    static const char *const names[] = {"bf16", "f16", "f32"};
    const char *separator = ": ";
    for (int dtype = MODEL_BF16; dtype < MODEL_ANY_DTYPE; dtype++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < plan->model.n; i++)
            n += plan->model.params[i].dtype == (model_dtype_t)dtype;
        if (n)
            printf("%s%s", separator, names[dtype]);
        separator = n ? " and " : separator;
    }
    if (plan->options.dtype != MODEL_ANY_DTYPE)
        printf(" (--dtype)");
    else if (plan->model.dtype_said)
        printf(" (its \"%s\")", plan->model.dtype_said);
    else
        printf(plan->model.n_assumed ? " (assumed where it says none)" : " (of its tensors)");
}

static void print_model(const plan_t *plan) {
    const plan_options_t *options = &plan->options;
    printf("model      ");
    zf_cli_print(stdout, options->model_path);
    printf(": %u tensors, %.4g M parameters, %.2f GiB", plan->model.n, (double)plan->model.n_elems / 1e6,
           gib((double)plan->model.nbytes));
    print_dtypes(plan);
    if (plan->model.n_not_trained)
        printf("; %u of other data types left out", plan->model.n_not_trained);
    printf("\njob        %u rank%s, %u on a machine, stage %u, %s; the trainer %s\n", options->n_ranks,
           options->n_ranks > 1 ? "s" : "", options->n_local_ranks, plan->stage, options->is_cpu ? "CPU" : "CUDA",
           options->has_no_fetch ? "does not fetch" : "fetches");
}

static void print_bytes(const plan_t *plan) {
    const zf_plan_t *b = &plan->bytes;
    double n = (double)(b->n_owned_elems ? b->n_owned_elems : 1);
    int is_whole = plan->stage < 3 || plan->options.n_ranks == 1;
    printf("\nhost       %9.3f GiB per rank, %.3f on a machine: %.2f bytes per parameter that the rank keeps\n",
           gib((double)b->host_nbytes), gib((double)b->host_nbytes) * plan->options.n_local_ranks,
           (double)b->host_nbytes / n);
    printf("           state %.3f, slots %.3f (S = %u), published values %.3f, ", gib((double)b->host_state_nbytes),
           gib((double)b->host_slots_nbytes), b->update_interval, gib((double)b->host_publish_nbytes));
    if (b->host_exchange_nbytes)
        printf("copies of what ranks exchange %.3f, ", gib((double)b->host_exchange_nbytes));
    printf("the rest %.3f GiB\n", gib((double)(b->host_nbytes - b->host_state_nbytes - b->host_slots_nbytes -
                                               b->host_publish_nbytes - b->host_exchange_nbytes)));
    if (!plan->options.is_cpu)
        printf("           all of it is page-locked when parameters are bound: tens of seconds for tens of GiB\n");
    printf(is_whole ? "device     %9.3f GiB per rank beside weights and gradients of %.3f each\n"
                    : "device     %9.3f GiB per rank beside gradients of %.3f\n",
           gib((double)b->device_nbytes), gib((double)plan->model.nbytes));
    printf("           %.3f more %s; %.3f more where a step's gradient comes in parts\n",
           gib((double)b->staging_nbytes),
           plan->options.n_ranks == 1 ? "where gradients are only lent, or strided"
           : is_whole                 ? "for what ranks exchange"
                                      : "for what ranks exchange, and the rank's part of the weights",
           gib((double)b->sums_nbytes));
    if (!plan->options.is_cpu)
        printf(
            "           not in it, and there after a release, too: CUDA's context with the kernels%s\n"
            "           of a host that releases: all of it in pieces of 2 MiB, and as much more page-locked memory\n",
            plan->options.n_ranks > 1 ? ", the buffers of NCCL" : "");
    printf("disk       %9.3f GiB for a compact checkpoint of all ranks; about %.3f more for one in mid-window\n",
           gib(disk_nbytes(plan)), gib(window_nbytes(plan)));
    if (plan->speeds.available_nbytes > 0 &&
        (double)b->host_nbytes * plan->options.n_local_ranks > plan->speeds.available_nbytes)
        printf("           that machine has %.3f GiB available: it does not fit\n", gib(plan->speeds.available_nbytes));
}

static void print_balance(const plan_t *plan) {
    const plan_balance_t *b = &plan->balance;
    if (plan->options.n_ranks == 1)
        return;
    printf("work       ranks keep %.4g to %.4g M parameters", (double)b->least_owned / 1e6,
           (double)b->most_owned / 1e6);
    if (plan->has_windows)
        printf("; at a step, windows of %.4g to %.4g M of them close on a rank", (double)b->least_close / 1e6,
               (double)b->most_close / 1e6);
    printf(b->n_asked < plan->options.n_ranks ? " (of %u ranks)\n" : "\n", b->n_asked);
}

static void print_speeds(const plan_t *plan, const int *given) {
    printf("\ntimes are a simulation of\n");
    if (plan->stage == 3 && plan->options.n_ranks > 1)
        printf("           stage 2: what a step waits for weights that are gathered is not in them\n");
    for (size_t i = 0; i < N_NUMBERS; i++) {
        plan_options_t options = plan->options;
        int is_own = plan->has_measured_own && strcmp(numbers[i].name, "--own") == 0;
        int is_link = plan->has_measured_link && i == LINK;
        int is_measured = (strcmp(numbers[i].name, "--host") == 0 && plan->speeds.n > 0) || is_own || is_link;
        if (is_own)
            printf("           the plugin's own passes, %.3g ns per parameter and step, as measured in ",
                   options.own_ns);
        else if (is_link)
            printf("           %.3g %s, as measured in ", options.link_gbs, numbers[i].unit);
        else if (is_measured)
            printf("           replays as measured in ");
        else
            printf("           %g %s", *number_at(&options, i), numbers[i].unit);
        if (is_measured)
            zf_cli_print(stdout, plan->options.machine_path);
        if (is_measured && !is_link && (is_own ? plan->speeds.own_spread : plan->speeds.spread) > MUCH_SPREAD)
            printf(", which differed by a factor of %.1f: so may these times",
                   is_own ? plan->speeds.own_spread : plan->speeds.spread);
        printf("%s\n", is_measured || given[i] ? "" : " (assumed)");
    }
}

static void print_rows(const plan_t *plan) {
    const timeline_t *time = &plan->own.time;
    double forward = plan_forward_s(&plan->options, &plan->model) * plan->options.n_micro_batches;
    printf("\nstep       %.1f ms with S = %u, lag %u: forward %.1f, backward %.1f, waiting %.1f (%.1f %%)\n",
           time->step_s * 1e3, plan->own.update_interval, plan->own.publish_lag, forward * 1e3,
           (time->compute_s - forward) * 1e3, stall(time) * time->step_s * 1e3, 100 * stall(time));
    printf("           beside it: sums over ranks %.1f, down %.1f, replay %.1f, up %.1f, values to ranks %.1f ms\n",
           time->reduce_s * 1e3, time->down_s * 1e3, time->replay_s * 1e3, time->up_s * 1e3, time->gather_s * 1e3);
    if (time->own_s > 0)
        printf("           and on the device the plugin's own passes, %.1f ms\n", time->own_s * 1e3);
    printf("\n");
    printf("  S  lag   host GiB   step ms   waiting   step without / with\n");
    for (int i = 0; i < N_ROWS; i++) {
        const plan_row_t *row = &plan->rows[i];
        if (row->is_possible)
            printf("%3u  %3u  %9.3f  %8.1f  %6.1f %%   %.2f\n", row->update_interval, row->publish_lag,
                   gib((double)row->bytes.host_nbytes), row->time.step_s * 1e3, 100 * stall(&row->time),
                   row->time.compute_s / row->time.step_s);
    }
}

/* The least state on the device with which the exact setting waits for at most MAX_STALL of a step; 0: it does without,
 * or nobody can say. */
static double exact_state_mib(const plan_t *plan) {
    double least = 0, most = 1;
    plan_row_t row = plan->rows[0];
    if (plan->options.n_ranks > 1 || plan->options.is_cpu || !row.is_possible || stall(&row.time) <= MAX_STALL)
        return 0;
    for (int i = 0; i < 12; i++) {
        double share = (least + most) / 2;
        row.resident_elems = share * (double)plan->model.n_elems;
        if (plan_time(&plan->options, &plan->speeds, &plan->model, plan->stage, &row))
            return 0;
        *(stall(&row.time) <= MAX_STALL ? &most : &least) = share;
    }
    return ceil(most * (double)plan->model.n_elems * plan->state_nbytes / (1 << 20));
}

static void print_choice(const plan_t *plan) {
    const plan_row_t *row = choose(plan);
    double exact_mib = exact_state_mib(plan);
    if (!row) {
        printf("\n# no window of at most 4 steps fits that machine's memory: [device] state_mib = all keeps the state "
               "on the "
               "device\n");
        return;
    }
    printf("\n# the least late setting that waits for less than %.0f %% of a step%s\n", 100 * MAX_STALL,
           stall(&row->time) > MAX_STALL ? ": none does, this one is the quickest" : "");
    if (row->update_interval == 1 && row->publish_lag == 0)
        printf("[zenflow]\nmode = exact\n");
    else
        printf("[zenflow]\nmode = windows\nupdate_interval = %u\npublish_lag = %u\n", row->update_interval,
               row->publish_lag);
    if (exact_mib > 0)
        printf("\n# mode = exact waits no longer than that from [device] state_mib = %.0f on: %.1f %% of the state\n",
               exact_mib, 100 * exact_mib * (1 << 20) / (plan->state_nbytes * (double)plan->model.n_elems));
    if (plan->options.n_ranks > 1)
        printf("\n[shard]\nstage = %u\n\n[host]\n; local_rank = R/%u where the launcher does not say it: R counts "
               "from 0\n",
               plan->stage, plan->options.n_local_ranks);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *row_of(const plan_row_t *row) {
    return json_pack("{s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "update_interval",
                     (int)row->update_interval, "publish_lag", (int)row->publish_lag, "host_nbytes",
                     (json_int_t)row->bytes.host_nbytes, "step_s", row->time.step_s, "compute_s", row->time.compute_s,
                     "reduce_s", row->time.reduce_s, "down_s", row->time.down_s, "replay_s", row->time.replay_s, "up_s",
                     row->time.up_s, "gather_s", row->time.gather_s, "own_s", row->time.own_s);
}

static int print_json(const plan_t *plan) {
    const zf_plan_t *b = &plan->bytes;
    const plan_row_t *choice = plan->has_windows ? choose(plan) : NULL;
    json_t *rows = json_array(), *out;
    for (int i = 0; i < N_ROWS; i++)
        if (plan->rows[i].is_possible)
            json_array_append_new(rows, row_of(&plan->rows[i]));
    out = json_pack("{s:i, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:[I,I], s:[I,I], "
                    "s:f, s:o, s:o, s:o}",
                    "tensors", (int)plan->model.n, "n_elems", (json_int_t)b->n_elems, "n_owned_elems",
                    (json_int_t)b->n_owned_elems, "ranks", (int)plan->options.n_ranks, "buckets", (int)b->n_buckets,
                    "host_nbytes", (json_int_t)b->host_nbytes, "host_state_nbytes", (json_int_t)b->host_state_nbytes,
                    "host_slots_nbytes", (json_int_t)b->host_slots_nbytes, "host_publish_nbytes",
                    (json_int_t)b->host_publish_nbytes, "host_exchange_nbytes", (json_int_t)b->host_exchange_nbytes,
                    "device_nbytes", (json_int_t)b->device_nbytes, "staging_nbytes", (json_int_t)b->staging_nbytes,
                    "sums_nbytes", (json_int_t)b->sums_nbytes, "weights_nbytes", (json_int_t)plan->model.nbytes,
                    "checkpoint_nbytes", (json_int_t)disk_nbytes(plan), "owned_of_ranks",
                    (json_int_t)plan->balance.least_owned, (json_int_t)plan->balance.most_owned, "closes_of_ranks",
                    (json_int_t)plan->balance.least_close, (json_int_t)plan->balance.most_close, "exact_state_mib",
                    plan->has_windows ? exact_state_mib(plan) : 0, "configured",
                    plan->has_windows ? row_of(&plan->own) : json_null(), "choices", rows, "recommended",
                    choice ? row_of(choice) : json_null());
    if (!out)
        return zf_cli_complain(plan->options.model_path, "no memory for its plan");
    json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(out);
    return 0;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static void print_help(void) {
    printf("usage: zf plan MODEL [options]\n"
           "\n"
           "MODEL: a safetensors file (its header is read), a *.index.json, a config.json (Llama, Mistral, Qwen2,\n"
           "Qwen3, GPT-2, BERT, RoBERTa, OPT, T5), or a list of shapes: [COUNT *] [NAME] SIZE x SIZE ... [bf16]\n\n"
           "  --config FILE            configuration; --set SECTION.KEY=VALUE changes a key of it, --stage N that one\n"
           "  --device cuda|cpu        where the parameters live (cuda)\n"
           "  --dtype bf16|f16|f32     of weights and gradients (what MODEL says, else bf16)\n"
           "  --ranks N                of the job (1); --local-ranks N of them on a machine (8 at most)\n"
           "  --machine FILE           speed of replays, and of the first GPU's link, as `zf doctor --json > FILE` "
           "measured it\n"
           "  --no-fetch               the trainer does not call param_fetch\n"
           "  --recompute              activations are computed again in the backward pass\n"
           "  --json                   for programs\n");
    for (size_t i = 0; i < N_NUMBERS; i++)
        printf("  %-15s N        %s (%g)\n", numbers[i].name, numbers[i].unit, numbers[i].deflt);
}

int zf_cli_plan(zf_cli_t *cli, int argc, char **argv) {
    static plan_t plan;
    int given[N_NUMBERS] = {0}, status;
    if (argc == 1 && strcmp(argv[0], "--help") == 0) {
        print_help();
        return 0;
    }
    plan.cli = cli;
    if (!read_options(&plan.options, argc, argv, given))
        return 2;
    plan.is_own_given = given[OWN];
    plan.is_link_given = given[LINK];
    status = make_plan(&plan);
    zf_cli_progress_end();
    if (!status && plan.options.is_json) {
        status = print_json(&plan);
    } else if (!status) {
        print_model(&plan);
        print_bytes(&plan);
        print_balance(&plan);
        if (plan.has_windows) {
            print_speeds(&plan, given);
            print_rows(&plan);
            print_choice(&plan);
        } else {
            printf("\ntimes are simulated for mode = exact and windows, with state on the host\n");
        }
    }
    free(plan.config_text);
    model_free(&plan.model);
    return status;
}
