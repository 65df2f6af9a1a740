/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/audit.h - audits of training ([audit] file), read back: which digests each rank left of each step. The
 * format is described in docs/tools.md. Anybody may have made the files. */
#ifndef ZF_CLI_AUDIT_H
#define ZF_CLI_AUDIT_H

#include <jansson.h>
#include <stdint.h>

enum { AUDIT_M, AUDIT_V, AUDIT_W, AUDIT_VISIBLE, AUDIT_ARRAYS };
extern const char *const audit_arrays[AUDIT_ARRAYS];

/* A parameter as one process describes it. */
typedef struct audit_param {
    uint32_t number; /* among the names of both runs */
    uint64_t owned_first, owned_end;
    int is_sharded, is_own; /* visible values are parts; each process has others of this name */
} audit_param_t;

/* The parameters that records of one process are of, from one bind_params on. */
typedef struct audit_section {
    json_t *head;
    uint32_t process, n_processes;
    int has_parts; /* masters and moments are parts */
    uint32_t n_params;
    audit_param_t *params;
} audit_section_t;

typedef struct audit_record {
    uint64_t step, ms;
    const audit_section_t *section;
    uint64_t *digests; /* [AUDIT_ARRAYS][n_params] */
} audit_record_t;

/* The newest records of one step, of all processes. */
typedef struct audit_step {
    uint64_t step;
    uint32_t n;
    const audit_record_t *records; /* [n] by process */
} audit_step_t;

typedef struct audit_run {
    const char *path;
    audit_section_t **sections;
    size_t n_sections;
    audit_record_t *records;
    size_t n_records;
    audit_step_t *steps; /* rising */
    size_t n_steps;
} audit_run_t;

/* Reads a run's file, or those of its ranks. names: numbers of the parameters seen so far, by "part/name". 0 after a
 * message. */
int audit_read(const char *path, json_t *names, audit_run_t *out);
void audit_free(audit_run_t *run);

#endif
