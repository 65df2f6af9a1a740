/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/rule.h - what the engine asks about the update rule: rules of groups, checks, prediction. The scalars of
 * an update are made in kernels/cpu/scalars.c; a new rule is a case there, a name here, a row in each kernel table. */
#pragma once

#include <stdint.h>

#include "kernels.h"
#include "zf/ext/draft/matrix.h"

struct zfi_engine;

/* How the parameters of an optimizer group are updated. It does not change, and lives as long as the instance. */
typedef struct zfi_group_rule {
    uint32_t number;             /* ZF_RULE_... */
    uint32_t n_moments;          /* 0, 1 (m) or 2 (m, v) */
    char name[64];               /* for the log, checkpoints and other ranks */
    zf_rule_callback_t callback; /* of ZF_RULE_CALLBACK */
    zf_matrix_rules_t matrices;  /* whose update, unless NULL, takes whole matrices in place of the callback's */
    uint32_t group;              /* the group whose callback it is */
    struct zfi_engine *engine;   /* the engine that its failure ends */
} zfi_group_rule_t;

/* [any-thread] The rule of a number below ZF_RULE_CALLBACK. */
const zfi_group_rule_t *zfi_rule_builtin(uint32_t number);

/* [any-thread] Whether the moments of one mean the same to the other. */
int zfi_rule_is_alike(const zfi_group_rule_t *a, const zfi_group_rule_t *b);

/* [own threads] SCHEDULE.md, "Prediction": the factor on m/d after update number n >= 1, x steps ahead. */
float zfi_rule_predict(const zfi_hyper_t *hyper, uint32_t n, uint32_t x);

/* [any-thread] SCHEDULE.md, "Moments": the key of the stochastic rounding at the closes of step t. */
uint64_t zfi_rounding_key(uint64_t t);

/* [any-thread] Ranges of hyper-parameters; group and origin are for the message. */
zf_status_t zfi_rule_check(const zf_group_hyper_t *hyper, uint32_t group, const char *origin, zf_error_t *err);
