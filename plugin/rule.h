/* plugin/rule.h - the scalars of one update from its hyper-parameters: the one place where update rules differ outside
 * the kernels. A new rule is a case in rule.c and a row in each kernel table. */
#ifndef ZFI_RULE_H
#define ZFI_RULE_H

#include <stdint.h>

#include "config.h"
#include "kernels.h"
#include "zf/plugin.h"

/* Hyper-parameters of one parameter group at one step, as the host passed them. */
typedef struct zfi_hyper {
    double lr, beta1, beta2, eps, weight_decay;
} zfi_hyper_t;

/* [any-thread] "AdamW" ... of ZF_RULE_ADAMW .. ZF_RULE_CALLBACK. */
const char *zfi_rule_name(uint32_t rule);

/* b^n by repeated squaring, low bit first: the same bits on every machine, unlike libm's pow. */
double zfi_power(double b, uint32_t n);

/* [own threads] Scalars of update number n (from 1) with gradient factor s. Computed in double, rounded once. */
zfi_scalars_t zfi_rule_scalars(zfi_rule_t rule, const zfi_hyper_t *hyper, float s, uint32_t n);

/* [own threads] SCHEDULE.md, "Prediction": the factor on m/d after update number n >= 1, x steps ahead. */
float zfi_rule_predict(const zfi_hyper_t *hyper, uint32_t n, uint32_t x);

/* [any-thread] SCHEDULE.md, "Moments": the key of the stochastic rounding at the closes of step t, and what is added to
 * an element's row-major index in its parameter to number it. */
uint64_t zfi_rounding_key(uint64_t t);
static inline uint64_t zfi_rounding_base(uint32_t param) { return (uint64_t)param << 40; }

/* [any-thread] Whether the configuration can be had with this rule. */
zf_status_t zfi_rule_check_config(uint32_t rule, const zfi_config_t *config, zf_error_t *err);

/* [any-thread] Ranges of hyper-parameters; group is for the message. */
zf_status_t zfi_rule_check(const zf_group_hyper_t *hyper, uint32_t group, zf_error_t *err);

#endif
