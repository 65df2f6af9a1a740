/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/audit_read.c - reads the files of an audit (contract in audit.h).
 *
 * What is not a whole line is passed over: a killed process or a full disk left it. Of a step that was made twice the
 * later record counts, for training was resumed before it. */
#include "audit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { HEX = 16, MOST_PROCESSES = 65536, MOST_PATH = 4096 };

const char *const audit_arrays[AUDIT_ARRAYS] = {"m", "v", "w", "visible"};

static uint64_t number_in(const json_t *object, const char *name) {
    json_int_t value = json_integer_value(json_object_get(object, name));
    return value > 0 ? (uint64_t)value : 0;
}

/* One more element; NULL: no memory. */
static void *grow(void *list, size_t n, size_t nbytes) {
    return n & (n + 1) ? list : realloc(list, 2 * (n + 1) * nbytes);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static uint32_t number_of_name(json_t *names, uint64_t part, const char *name) {
    char *key = NULL;
    json_t *number;
    if (asprintf(&key, "%llu/%s", (unsigned long long)part, name) < 0)
        return UINT32_MAX;
    number = json_object_get(names, key);
    if (!number) {
        number = json_integer((json_int_t)json_object_size(names));
        json_object_set_new(names, key, number);
    }
    free(key);
    return number ? (uint32_t)json_integer_value(number) : UINT32_MAX;
}

static void free_section(audit_section_t *section) {
    json_decref(section->head);
    free(section->params);
    free(section);
}

/* NULL: the line does not say what it should. */
static audit_section_t *read_section(json_t *head, json_t *names) {
    audit_section_t *out = calloc(1, sizeof *out);
    json_t *params = json_object_get(head, "params"), *param;
    size_t i;
    if (!out)
        return NULL;
    *out = (audit_section_t){.head = json_incref(head),
                             .process = (uint32_t)number_in(head, "process"),
                             .n_processes = (uint32_t)number_in(head, "n_processes"),
                             .has_parts = json_is_true(json_object_get(head, "parts")),
                             .n_params = (uint32_t)json_array_size(params),
                             .params = calloc(json_array_size(params) + 1, sizeof *out->params)};
    if (!out->params || !json_is_array(params) || number_in(head, "zf_audit") != 1 ||
        out->process >= out->n_processes || out->n_processes > MOST_PROCESSES) {
        free_section(out);
        return NULL;
    }
    json_array_foreach(params, i, param) {
        const char *name = json_string_value(json_object_get(param, "name"));
        json_t *owned = json_object_get(param, "owned");
        out->params[i] = (audit_param_t){.number = number_of_name(names, number_in(head, "part"), name ? name : ""),
                                         .owned_first = (uint64_t)json_integer_value(json_array_get(owned, 0)),
                                         .owned_end = (uint64_t)json_integer_value(json_array_get(owned, 1)),
                                         .is_sharded = json_is_true(json_object_get(param, "sharded")),
                                         .is_own = json_is_true(json_object_get(param, "own"))};
    }
    return out;
}

static int read_hex(const char *text, size_t n, uint64_t *out) {
    for (size_t i = 0; i < n * HEX; i++) {
        const char *digits = "0123456789abcdef", *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit)
            return 0;
        out[i / HEX] = out[i / HEX] << 4 | (uint64_t)(digit - digits);
    }
    return text[n * HEX] == '\0';
}

/* 0: it is no record of this section. */
static int read_record(const json_t *line, const audit_section_t *section, audit_record_t *out) {
    *out = (audit_record_t){.step = number_in(line, "step"), .ms = number_in(line, "ms"), .section = section};
    out->digests = calloc(AUDIT_ARRAYS * (size_t)section->n_params + 1, sizeof *out->digests);
    for (int i = 0; i < AUDIT_ARRAYS && out->digests && out->step; i++) {
        const char *text = json_string_value(json_object_get(line, audit_arrays[i]));
        if (!text || !read_hex(text, section->n_params, out->digests + (size_t)i * section->n_params))
            out->step = 0;
    }
    if (out->digests && out->step)
        return 1;
    free(out->digests);
    return 0;
}

static int take_line(const json_t *line, json_t *names, audit_run_t *run) {
    audit_section_t *section = run->n_sections ? run->sections[run->n_sections - 1] : NULL;
    if (json_object_get(line, "zf_audit")) {
        void *more = grow(run->sections, run->n_sections, sizeof(audit_section_t *));
        section = more ? read_section((json_t *)(uintptr_t)line, names) : NULL;
        run->sections = more ? more : run->sections;
        if (section)
            run->sections[run->n_sections++] = section;
        return section != NULL;
    }
    if (section) {
        void *more = grow(run->records, run->n_records, sizeof *run->records);
        if (!more)
            return 0;
        run->records = more;
        run->n_records += (size_t)read_record(line, section, &run->records[run->n_records]);
    }
    return 1;
}

/* 0 after a message. */
static int read_file(const char *path, json_t *names, audit_run_t *run) {
    uint64_t nbytes;
    int fd = zf_cli_open_file(path, &nbytes), is_good = 1;
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    size_t room = 0, n_before = run->n_sections;
    char *text = NULL;
    ssize_t n;
    while (file && is_good && (n = getline(&text, &room, file)) > 0) {
        json_t *line = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(line))
            is_good = take_line(line, names, run);
        json_decref(line);
    }
    free(text);
    if (file)
        fclose(file);
    if (!file)
        return 0;
    if (!is_good || run->n_sections == n_before)
        zf_cli_complain(path, "is no audit of [audit] file that this version reads");
    return is_good && run->n_sections > n_before;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static int compare_u64(uint64_t a, uint64_t b) { return a < b ? -1 : a > b; }

/* By step, then processes that belong together, each one's newest first. */
static int compare_records(const void *a, const void *b) {
    const audit_record_t *x = a, *y = b;
    int by = compare_u64(x->step, y->step);
    by = by ? by : compare_u64(x->section->n_processes, y->section->n_processes);
    by = by ? by : compare_u64(x->section->process, y->section->process);
    return by ? by : compare_u64(y->ms, x->ms);
}

/* Of each process the newest record stays, in place; the rest is freed. */
static void drop_older(audit_run_t *run) {
    size_t n = 0;
    for (size_t i = 0; i < run->n_records; i++) {
        const audit_record_t *last = n ? &run->records[n - 1] : NULL, *next = &run->records[i];
        if (last && last->step == next->step && last->section->n_processes == next->section->n_processes &&
            last->section->process == next->section->process)
            free(run->records[i].digests);
        else
            run->records[n++] = run->records[i];
    }
    run->n_records = n;
}

/* Of a step, with one number of processes and with another, the later. */
static void add_step(audit_run_t *run, const audit_record_t *records) {
    audit_step_t *last = run->n_steps ? &run->steps[run->n_steps - 1] : NULL;
    if (last && last->step == records->step) {
        if (records->ms <= last->records->ms)
            return;
        run->n_steps--;
    }
    run->steps[run->n_steps++] = (audit_step_t){records->step, records->section->n_processes, records};
}

static int find_steps(audit_run_t *run) {
    run->steps = calloc(run->n_records + 1, sizeof *run->steps);
    if (!run->steps)
        return 0;
    if (run->n_records)
        qsort(run->records, run->n_records, sizeof *run->records, compare_records);
    drop_older(run);
    for (size_t i = 0, end; i < run->n_records; i = end) {
        const audit_record_t *first = &run->records[i];
        for (end = i; end < run->n_records && run->records[end].step == first->step &&
                      run->records[end].section->n_processes == first->section->n_processes;
             end++) {
        }
        if (end - i == first->section->n_processes)
            add_step(run, first);
    }
    return 1;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static uint32_t most_processes(const audit_run_t *run) {
    uint32_t most = 0;
    for (size_t i = 0; i < run->n_sections; i++)
        if (run->sections[i]->n_processes > most)
            most = run->sections[i]->n_processes;
    return most;
}

int audit_read(const char *path, json_t *names, audit_run_t *out) {
    char ranks[MOST_PATH];
    int is_good = 1, is_there = access(path, F_OK) == 0;
    *out = (audit_run_t){.path = path};
    snprintf(ranks, sizeof ranks, "%s.rank0", path);
    if (is_there || access(ranks, F_OK) != 0)
        is_good = read_file(path, names, out);
    for (uint32_t i = 0; is_good && (i == 0 ? access(ranks, F_OK) == 0 : i < most_processes(out)); i++) {
        snprintf(ranks, sizeof ranks, "%s.rank%u", path, i);
        is_good = read_file(ranks, names, out);
        if (most_processes(out) < 2)
            break;
    }
    if (is_good && !find_steps(out))
        is_good = !zf_cli_complain(path, "no memory for its steps");
    if (is_good && !out->n_steps)
        is_good = !zf_cli_complain(path, "has no step of which every rank has left a record%s",
                                   most_processes(out) > 1 ? "; name it without .rankN" : "");
    return is_good;
}

void audit_free(audit_run_t *run) {
    for (size_t i = 0; i < run->n_records; i++)
        free(run->records[i].digests);
    for (size_t i = 0; i < run->n_sections; i++)
        free_section(run->sections[i]);
    free(run->records);
    free(run->sections);
    free(run->steps);
}
