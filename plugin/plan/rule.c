/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/rule.c - rules of groups, checks and prediction of update rules (contract in rule.h). */
#include "plan/rule.h"

#include <string.h>

#include "base/error.h"

const zfi_group_rule_t *zfi_rule_builtin(uint32_t number) {
    static const zfi_group_rule_t rules[] = {
        {.number = ZF_RULE_ADAMW, .n_moments = 2, .name = "AdamW"},
        {.number = ZF_RULE_ADAM, .n_moments = 2, .name = "Adam"},
        {.number = ZF_RULE_SGD, .n_moments = 1, .name = "SGD"},
        {.number = ZF_RULE_SGD_NESTEROV, .n_moments = 1, .name = "SGD with Nesterov's momentum"},
        {.number = ZF_RULE_LION, .n_moments = 1, .name = "Lion"},
    };
    return &rules[number];
}

int zfi_rule_is_alike(const zfi_group_rule_t *a, const zfi_group_rule_t *b) {
    return a->number == b->number && a->n_moments == b->n_moments && strcmp(a->name, b->name) == 0;
}

float zfi_rule_predict(const zfi_hyper_t *h, uint32_t n, uint32_t x) {
    double b1 = h->beta1, ahead = b1 * (1.0 - zfi_power(b1, x)) / (1.0 - b1);
    return (float)(ahead * (-h->lr / (1.0 - zfi_power(b1, n))));
}

uint64_t zfi_rounding_key(uint64_t t) {
    uint64_t z = t * 0x9E3779B97F4A7C15u + 0x7A666D6F6D656E74u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Weights are fp32: a factor near its end makes them Inf, or moves nothing (eps). */
static const double most = 1e30;

zf_status_t zfi_rule_check(const zf_group_hyper_t *h, uint32_t group, const char *origin, zf_error_t *err) {
    const struct {
        const char *name;
        double value;
        int is_ok;
        const char *range;
    } checks[] = {
        {"lr", h->lr, h->lr >= 0 && h->lr <= most, "[0, 1e30]"},
        {"beta1", h->beta1, h->beta1 >= 0 && h->beta1 < 1, "[0, 1)"},
        {"beta2", h->beta2, h->beta2 >= 0 && h->beta2 < 1, "[0, 1)"},
        {"eps", h->eps, (float)h->eps > 0 && h->eps <= most, "> 0 as float32, at most 1e30"},
        {"weight_decay", h->weight_decay, h->weight_decay >= 0 && h->weight_decay <= most, "[0, 1e30]"},
        {"lr * weight_decay", h->lr * h->weight_decay, h->lr * h->weight_decay <= most, "at most 1e30"},
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (!checks[i].is_ok)
            return zfi_error(err, ZF_ERR_ARGUMENT, origin, "group %u: %s = %g; allowed: %s", group, checks[i].name,
                             checks[i].value, checks[i].range);
    return ZF_OK;
}
