/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/audit.c - `zf audit A B`: the first step, array, parameter and rank in which two runs part.
 *
 * What is whole on a rank has to be the same on all ranks of both runs; of what ranks have parts the sum has to be.
 * Where the parts are cut alike, they say which rank it was. Of one step the array that the others follow from is named
 * first: a wrong moment makes a wrong weight, and a wrong master a wrong visible value. */
#include "audit.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { SAME, DIFFERENT, UNREADABLE = ZF_CLI_UNREADABLE };

/* What one run has of one array of one parameter at a step. */
typedef struct side {
    uint32_t n; /* ranks that have the parameter */
    int is_part, is_own;
    uint64_t sum; /* of parts */
} side_t;

typedef struct audit_pair {
    audit_run_t runs[2]; /* A, B */
    json_t *names;
    const char **keys;    /* [names] */
    uint8_t *is_excluded; /* [names] declared otherwise, or in one of them only */
    uint32_t **places;    /* of the step at hand: [runs x processes][names] number of a parameter, + 1 */
    const audit_step_t *steps[2];
} audit_pair_t;

/* ---- settings and declarations ----------------------------------------------------------------------------------- */

static const audit_section_t *newest(const audit_run_t *run) { return run->steps[run->n_steps - 1].records[0].section; }

static void print_json(const json_t *value) {
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    zf_cli_print(stdout, text ? text : "nothing");
    free(text);
}

static void say_differs(const char *what, const char *name, const json_t *a, const json_t *b) {
    zf_cli_print(stdout, what);
    zf_cli_print(stdout, name);
    printf(": ");
    print_json(a);
    printf(" in A, ");
    print_json(b);
    printf(" in B\n");
}

/* Members of a that b has otherwise or not at all, and, both_ways, those of b that a has not; how many. */
static int compare_members(const char *what, json_t *a, json_t *b) {
    int n = 0;
    const char *name;
    json_t *value;
    json_object_foreach(a, name, value) if (!json_equal(value, json_object_get(b, name))) {
        n++;
        say_differs(what, name, value, json_object_get(b, name));
    }
    json_object_foreach(b, name, value) if (!json_object_get(a, name)) {
        n++;
        say_differs(what, name, NULL, value);
    }
    return n;
}

/* What is declared of a parameter and has to be the same, by its name. */
static json_t *declarations(const audit_pair_t *pair, const audit_run_t *run) {
    static const char *const members[] = {"dtype", "grad_dtype", "rule", "shape"};
    const audit_step_t *step = &run->steps[run->n_steps - 1];
    json_t *out = json_object();
    for (uint32_t p = 0; p < step->n; p++) {
        const audit_section_t *section = step->records[p].section;
        for (uint32_t i = 0; i < section->n_params; i++) {
            json_t *param = json_array_get(json_object_get(section->head, "params"), i), *of = json_object();
            for (size_t k = 0; k < sizeof members / sizeof *members; k++)
                json_object_set(of, members[k], json_object_get(param, members[k]));
            json_object_set_new(out, pair->keys[section->params[i].number], of);
        }
    }
    return out;
}

static int compare_heads(audit_pair_t *pair) {
    json_t *a = declarations(pair, &pair->runs[0]), *b = declarations(pair, &pair->runs[1]);
    int n = compare_members("setting ", json_object_get(newest(&pair->runs[0])->head, "settings"),
                            json_object_get(newest(&pair->runs[1])->head, "settings"));
    n += compare_members("parameter ", a, b);
    for (size_t i = 0; i < json_object_size(pair->names); i++)
        pair->is_excluded[i] = !json_equal(json_object_get(a, pair->keys[i]), json_object_get(b, pair->keys[i]));
    json_decref(a);
    json_decref(b);
    return n;
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

static uint32_t *place_of(const audit_pair_t *pair, int run, uint32_t process, size_t number) {
    return &pair->places[run][process * json_object_size(pair->names) + number];
}

static int index_step(audit_pair_t *pair, int run, const audit_step_t *step) {
    size_t n = json_object_size(pair->names);
    uint32_t *places = calloc(step->n * n + 1, sizeof *places);
    free(pair->places[run]);
    pair->places[run] = places;
    pair->steps[run] = step;
    for (uint32_t p = 0; places && p < step->n; p++)
        for (uint32_t i = 0; i < step->records[p].section->n_params; i++)
            *place_of(pair, run, p, step->records[p].section->params[i].number) = i + 1;
    return places != NULL;
}

/* What a process has; NULL: not this parameter. */
static const audit_param_t *param_at(const audit_pair_t *pair, int run, uint32_t process, size_t number) {
    uint32_t place = *place_of(pair, run, process, number);
    return place ? &pair->steps[run]->records[process].section->params[place - 1] : NULL;
}
static uint64_t value_at(const audit_pair_t *pair, int run, uint32_t process, size_t number, int array) {
    const audit_record_t *record = &pair->steps[run]->records[process];
    uint32_t place = *place_of(pair, run, process, number);
    return record->digests[(size_t)array * record->section->n_params + place - 1];
}

static side_t side_of(const audit_pair_t *pair, int run, size_t number, int array) {
    side_t side = {0};
    for (uint32_t p = 0; p < pair->steps[run]->n; p++) {
        const audit_param_t *param = param_at(pair, run, p, number);
        if (!param)
            continue;
        side.n++;
        side.is_own = param->is_own;
        side.is_part = array == AUDIT_VISIBLE ? param->is_sharded : pair->steps[run]->records[p].section->has_parts;
        side.sum += value_at(pair, run, p, number, array);
        if (!side.is_part)
            side.sum = value_at(pair, run, p, number, array);
    }
    return side;
}

/* Whole values of a run are all this one. */
static int all_are(const audit_pair_t *pair, int run, size_t number, int array, uint64_t value) {
    int is_equal = 1;
    for (uint32_t p = 0; p < pair->steps[run]->n; p++)
        is_equal &= !param_at(pair, run, p, number) || value_at(pair, run, p, number, array) == value;
    return is_equal;
}

/* Process p of A and of B have the same part of the parameter, or both the whole, and not the same digest. */
static int parts_at(const audit_pair_t *pair, uint32_t p, size_t number, int array) {
    return param_at(pair, 0, p, number) && param_at(pair, 1, p, number) &&
           value_at(pair, 0, p, number, array) != value_at(pair, 1, p, number, array);
}

static int is_cut_alike(const audit_pair_t *pair, size_t number) {
    int is_alike = pair->steps[0]->n == pair->steps[1]->n;
    for (uint32_t p = 0; p < pair->steps[0]->n && is_alike; p++) {
        const audit_param_t *a = param_at(pair, 0, p, number), *b = param_at(pair, 1, p, number);
        is_alike = !a == !b && (!a || (a->owned_first == b->owned_first && a->owned_end == b->owned_end));
    }
    return is_alike;
}

static int differs(const audit_pair_t *pair, size_t number, int array) {
    side_t a = side_of(pair, 0, number, array), b = side_of(pair, 1, number, array);
    int n = 0;
    if (pair->is_excluded[number] || !a.n || !b.n)
        return 0;
    for (uint32_t p = 0; a.is_own && is_cut_alike(pair, number) && p < pair->steps[0]->n; p++)
        n += parts_at(pair, p, number, array);
    if (a.is_own)
        return n; /* other ranks have others: nothing to compare with another number of them */
    return a.sum != b.sum || (!a.is_part && !all_are(pair, 0, number, array, b.sum)) ||
           (!b.is_part && !all_are(pair, 1, number, array, a.sum));
}

/* ---- which rank -------------------------------------------------------------------------------------------------- */

static void print_ranks(const audit_pair_t *pair, int run, size_t number, int array, uint64_t right) {
    for (uint32_t p = 0; p < pair->steps[run]->n; p++)
        if (param_at(pair, run, p, number) && value_at(pair, run, p, number, array) != right)
            printf(", rank %u of %c", p, 'A' + run);
}

static void say_ranks(const audit_pair_t *pair, size_t number, int array) {
    side_t a = side_of(pair, 0, number, array), b = side_of(pair, 1, number, array);
    if (pair->steps[0]->n == 1 && pair->steps[1]->n == 1)
        return;
    if (a.is_own || (a.is_part && b.is_part)) {
        for (uint32_t p = 0; is_cut_alike(pair, number) && p < pair->steps[0]->n; p++)
            if (parts_at(pair, p, number, array))
                printf(", rank %u", p);
        if (!is_cut_alike(pair, number))
            printf(", on any rank: their parts are cut otherwise");
    } else if (!a.is_part && !all_are(pair, 0, number, array, a.sum)) {
        print_ranks(pair, 0, number, array, b.sum);
    } else if (!b.is_part && !all_are(pair, 1, number, array, b.sum)) {
        print_ranks(pair, 1, number, array, a.sum);
    } else {
        printf(", every rank");
    }
}

static void say_parted(const audit_pair_t *pair, size_t number, int array) {
    size_t n_params = 0;
    printf("they part at step %llu: %s of \"", (unsigned long long)pair->steps[0]->step, audit_arrays[array]);
    zf_cli_print(stdout, strchr(pair->keys[number], '/') + 1);
    printf("\"");
    say_ranks(pair, number, array);
    printf("\n");
    for (int i = 0; i < AUDIT_ARRAYS; i++)
        if (i != array && differs(pair, number, i))
            printf("  there too: %s of the same parameter\n", audit_arrays[i]);
    for (size_t i = number + 1; i < json_object_size(pair->names); i++) {
        int is_other = 0;
        for (int k = 0; k < AUDIT_ARRAYS; k++)
            is_other |= differs(pair, i, k);
        n_params += (size_t)is_other;
    }
    if (n_params)
        printf("  there too: %zu other parameter%s\n", n_params, n_params > 1 ? "s" : "");
}

/* Whether the runs part at the step at hand, after a message. */
static int compare_step(const audit_pair_t *pair) {
    for (size_t i = 0; i < json_object_size(pair->names); i++)
        for (int array = 0; array < AUDIT_ARRAYS; array++)
            if (differs(pair, i, array)) {
                say_parted(pair, i, array);
                return 1;
            }
    return 0;
}

/* ---- two runs ---------------------------------------------------------------------------------------------------- */

static void say_run(const audit_pair_t *pair, int run) {
    const audit_run_t *of = &pair->runs[run];
    const audit_step_t *last = &of->steps[of->n_steps - 1];
    printf("%c  ", 'A' + run);
    zf_cli_print(stdout, of->path);
    printf(": steps %llu to %llu, %zu records, %u rank%s\n", (unsigned long long)of->steps[0].step,
           (unsigned long long)last->step, of->n_steps, last->n, last->n > 1 ? "s" : "");
}

static int compare_steps(audit_pair_t *pair) {
    size_t i = 0, k = 0, n = 0;
    uint64_t equal = 0;
    int has_parted = 0;
    while (!has_parted && i < pair->runs[0].n_steps && k < pair->runs[1].n_steps) {
        const audit_step_t *a = &pair->runs[0].steps[i], *b = &pair->runs[1].steps[k];
        i += a->step <= b->step;
        k += b->step <= a->step;
        if (a->step != b->step)
            continue;
        if (!index_step(pair, 0, a) || !index_step(pair, 1, b))
            return UNREADABLE;
        has_parted = compare_step(pair);
        if (!has_parted)
            equal = a->step, n++;
    }
    if (n)
        printf("%zu step%s %s the same, the last of them %llu\n", n, n > 1 ? "s" : "", n > 1 ? "are" : "is",
               (unsigned long long)equal);
    else if (!has_parted)
        printf("no step is in both\n");
    return has_parted ? DIFFERENT : n ? SAME : UNREADABLE;
}

static int compare_runs(audit_pair_t *pair) {
    size_t n = json_object_size(pair->names);
    const char *key;
    json_t *number;
    int n_heads, status;
    pair->keys = calloc(n + 1, sizeof *pair->keys);
    pair->is_excluded = calloc(n + 1, 1);
    pair->places = calloc(2, sizeof *pair->places);
    if (!pair->keys || !pair->is_excluded || !pair->places)
        return UNREADABLE;
    json_object_foreach(pair->names, key, number) pair->keys[json_integer_value(number)] = key;
    say_run(pair, 0);
    say_run(pair, 1);
    n_heads = compare_heads(pair);
    status = compare_steps(pair);
    return n_heads ? DIFFERENT : status;
}

int zf_cli_audit(zf_cli_t *cli, int argc, char **argv) {
    audit_pair_t pair = {.names = json_object()};
    int status = UNREADABLE;
    (void)cli;
    if (argc != 2)
        return zf_cli_misuse("audit: two runs are compared, %d given", argc);
    if (audit_read(argv[0], pair.names, &pair.runs[0]) && audit_read(argv[1], pair.names, &pair.runs[1]))
        status = compare_runs(&pair);
    for (int i = 0; i < 2; i++) {
        audit_free(&pair.runs[i]);
        free(pair.places ? pair.places[i] : NULL);
    }
    free(pair.places);
    free(pair.is_excluded);
    free(pair.keys);
    json_decref(pair.names);
    return status;
}
