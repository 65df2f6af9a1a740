/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/rule.h - what the engine asks about the update rule: names, checks, prediction. The scalars of an update
 * are made in kernels/cpu/scalars.c; a new rule is a case there, a name here and a row in each kernel table. */
#ifndef ZFI_RULE_H
#define ZFI_RULE_H

#include <stdint.h>

#include "kernels.h"
#include "zf/plugin.h"

/* [any-thread] "AdamW" ... of ZF_RULE_ADAMW .. ZF_RULE_CALLBACK. */
const char *zfi_rule_name(uint32_t rule);

/* [own threads] SCHEDULE.md, "Prediction": the factor on m/d after update number n >= 1, x steps ahead. */
float zfi_rule_predict(const zfi_hyper_t *hyper, uint32_t n, uint32_t x);

/* [any-thread] SCHEDULE.md, "Moments": the key of the stochastic rounding at the closes of step t. */
uint64_t zfi_rounding_key(uint64_t t);

/* [any-thread] Ranges of hyper-parameters; group is for the message. */
zf_status_t zfi_rule_check(const zf_group_hyper_t *hyper, uint32_t group, zf_error_t *err);

#endif
