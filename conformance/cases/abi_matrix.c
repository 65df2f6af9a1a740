/* SPDX-License-Identifier: Apache-2.0 */
/* abi_matrix.c - proof 5, zf.matrix/0: when the host's function of whole matrices is called, on which thread, with how
 * many matrices, what comes of its code, and what is refused. What it is given, and what it leaves, is compared by
 * exact. */
#include <math.h>
#include <string.h>

#include "abi_probes.h"

static struct seen {
    abi_rig_t *rig;
    uint32_t n_calls, n_matrices; /* of this step */
    int32_t code;                 /* to be returned */
} seen;
static zf_matrix_rules_t rules;

static int32_t update(void *ctx, const zf_matrix_update_t *updates, uint32_t n, uint32_t elem_size) {
    abi_host_t *host = &seen.rig->host;
    abi_check(seen.rig->probe, ABI_RULE_MATRICES,
              host->is_inside && pthread_equal(pthread_self(), host->thread) && ctx == &seen && updates,
              "the function is not called on the thread that is in step, or with another ctx");
    abi_check(seen.rig->probe, ABI_RULE_MATRICES, elem_size >= 128 && elem_size % 8 == 0, "matrices of %u bytes",
              elem_size);
    seen.n_calls++;
    seen.n_matrices += n;
    return seen.code;
}

/* ---- probes ------------------------------------------------------------------------------------------------------ */

/* A bound instance whose only group is the function's. Its status. */
static zf_status_t begin(abi_rig_t *rig, const char *config) {
    static const zf_rule_callback_t callback = {.struct_size = sizeof callback, .n_moments = 1, .name = "whole"};
    static const zf_group_decl_t group = {sizeof group, ZF_RULE_CALLBACK, &callback};
    seen = (struct seen){.rig = rig};
    rules = (zf_matrix_rules_t){
        .struct_size = sizeof rules, .flags = ZF_CHAINED_REQUIRED, .id = ZF_EXT_MATRIX, .ctx = &seen, .update = update};
    rig->group = &group;
    rig->bind_next = &rules;
    rig->create.config_text = config;
    rig->create.config_text_nbytes = strlen(config);
    return abi_rig_create(rig);
}

static int has_extension(const abi_rig_t *rig) {
    if (rig->table->get_extension(ZF_EXT_MATRIX))
        return 1;
    abi_skip(rig->probe, ABI_RULE_MATRICES, "no extension " ZF_EXT_MATRIX);
    return 0;
}

static void check_step(abi_rig_t *rig, uint32_t n_present, zf_status_t want) {
    zf_step_report_t report;
    uint32_t n_calls = want == ZF_OK;
    seen.n_calls = seen.n_matrices = 0;
    zf_status_t st = abi_rig_step(rig, n_present, &report);
    abi_rig_check(rig, ABI_RULE_MATRICES, st == want, "step with a function of whole matrices", st);
    abi_check(rig->probe, ABI_RULE_MATRICES, seen.n_calls == n_calls && seen.n_matrices == n_calls * n_present,
              "the function was called %u times in a step, with %u matrices; not %u with %u", seen.n_calls,
              seen.n_matrices, n_calls, n_calls * n_present);
}

/* Steps of all and of some gradients, one that is skipped, and one that fails. */
static void run_matrices(abi_rig_t *rig) {
    zf_step_report_t report;
    zf_status_t st;
    if (!has_extension(rig))
        return;
    st = begin(rig, "[zenflow]\nmode = exact\n[host]\nthreads = 1\n");
    st = st < 0 ? st : abi_rig_bind(rig, NULL);
    if (!abi_rig_check(rig, ABI_RULE_MATRICES, st == ZF_OK, "bind_params with a function of whole matrices", st))
        return;
    for (int s = 0; s < 3; s++) {
        abi_rig_set_gradients(rig);
        check_step(rig, s == 1 ? 2 : ABI_RIG_TRAINED, ZF_OK);
    }
    abi_rig_set_gradients(rig);
    ((float *)(void *)rig->grads[0])[3] = NAN;
    check_step(rig, ABI_RIG_TRAINED, ZF_SKIPPED);
    abi_rig_set_gradients(rig);
    seen.code = 77;
    st = abi_rig_step(rig, ABI_RIG_TRAINED, &report);
    abi_check(rig->probe, ABI_RULE_MATRICES,
              st == ZF_ERR_RULE && rig->err.native_code == 77 && rig->err.scope == ZF_SCOPE_INSTANCE,
              "the function returned 77: step returned %d, code %d, scope %d", st, (int)rig->err.native_code,
              rig->err.scope);
}

static void refuse(abi_rig_t *rig, const char *words, const char *what) {
    abi_try(rig->probe, "bind_params: %s", what);
    zf_status_t st = abi_rig_bind(rig, NULL);
    abi_check(rig->probe, ABI_RULE_MATRICES, st < 0 && strstr(rig->err.message, words), "%s: returned %d: %.200s", what,
              st, rig->err.message);
}

static void run_refusals(abi_rig_t *rig) {
    if (!has_extension(rig) || begin(rig, "[zenflow]\nmode = windows\n") < 0)
        return;
    refuse(rig, "a.weight", "whole matrices in windows");
    abi_rig_end(rig);
    if (begin(rig, "[zenflow]\nmode = exact\n") < 0)
        return;
    rules.update = NULL;
    refuse(rig, "update", "a chained struct without its function");
    rules.update = update;
    rules.struct_size = sizeof(zf_chained_t);
    refuse(rig, "struct_size", "a chained struct that is too short");
    rules.struct_size = sizeof rules;
    rules.id = "zf.matrix/1";
    refuse(rig, "zf.matrix/1", "another revision, which is required");
    rules.flags = 0;
    refuse(rig, "update", "another revision, which is passed over");
}

const abi_row_t abi_matrix_rows[] = {{"a function of whole matrices", ABI_OPEN, 0, run_matrices},
                                     {"whole matrices, refused", ABI_OPEN, 0, run_refusals},
                                     {NULL, ABI_NOTHING, 0, NULL}};
