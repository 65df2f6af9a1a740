/* SPDX-License-Identifier: Apache-2.0 */
/* exact_names.c - names of parameters, and a case in words, for the message of a failure. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "exact_case.h"

/* In one case of three as long as names may be, and with what JSON escapes. */
void zx_case_name(const zx_case_t *c, zx_param_t *p, uint32_t number) {
    static const char odd[] = "block \"\xc3\xa9\\/", last[] = "weight";
    size_t n = (size_t)snprintf(p->name, sizeof p->name, "layer%u.", number);
    while (c->index / 8 % 3 == 1 && n + sizeof odd + sizeof last < sizeof p->name)
        n += (size_t)snprintf(p->name + n, sizeof p->name - n, "%s", odd);
    snprintf(p->name + n, sizeof p->name - n, "%s", number % 3 ? last : "bias");
}

uint32_t zx_case_name_for(const zx_case_t *c, zx_rng_t *r, uint32_t i) {
    for (uint32_t k = 0; k < c->n_params; k++)
        if (c->params[k].flags & ZF_PARAM_TIED && c->params[k].tied_to == i && zx_chance(r, 60))
            return k;
    return i;
}

static void print_config(const char *text) {
    for (const char *p = text; *p; p++) {
        if (p == text || p[-1] == '\n')
            putchar(' ');
        if (*p != '\n')
            putchar(*p);
        else if (p[1])
            putchar(';');
    }
    putchar('\n');
}

static void print_flags(const zx_param_t *p) {
    static const char *const names[] = {"FROZEN", "TIED", NULL, NULL, "NOT_IN_NORM"};
    static const char *const homes[] = {"", " RESIDENT", " HOST"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (p->flags & (1u << i))
            printf(" %s", names[i]);
    printf("%s", homes[p->home]);
}

static void print_param(const zx_param_t *p) {
    static const char *const dtypes[ZO_N_DTYPES] = {"f32", "bf16", "f16"};
    printf("parameter %s: [", p->name);
    for (uint32_t i = 0; i < p->decl.ndim; i++)
        printf("%s%" PRId64, i ? ", " : "", p->decl.shape[i]);
    printf("] %s, gradient %s, %u batch axes, channels are %s, group %u%s%s", dtypes[p->decl.dtype],
           dtypes[p->decl.grad_dtype], p->decl.n_batch_axes, p->decl.channels_are_rows ? "rows" : "columns",
           p->decl.group, p->array->tensor.dl.strides ? ", strided" : "",
           p->is_grad_strided ? ", gradient strided" : "");
    print_flags(p);
    putchar('\n');
}

void zx_case_print(const zx_case_t *c, const char *margin) {
    static const char *const modes[ZX_N_MODES] = {"host thread", "host thread + FETCH", "cpu queue",
                                                  "cpu queue + FETCH"};
    static const char *const rules[ZO_N_RULES] = {"AdamW", "Adam", "SGD", "Nesterov", "Lion", "callback"};
    const char *isa = getenv("ZF_FORCE_ISA");
    printf("%scase: seed %" PRIu64 ", law %d, case %" PRIu64 ", instruction set %s, %s%s", margin, c->seed, c->law,
           c->index, isa ? isa : "best", modes[c->mode], c->is_async_read && c->mode < ZX_QUEUE ? ", ASYNC_READ" : "");
    printf("%s", c->is_carrying ? ", memory that carries" : "");
    for (uint32_t i = 0; i < c->n_groups; i++)
        printf(", %s%s", rules[c->config.groups[i].rule], c->config.groups[i].whole ? " of whole matrices" : "");
    putchar('\n');
    if (c->config.block_elems)
        printf("%sblocks of at most %" PRIu64 " elements, or total / 1024\n", margin, c->config.block_elems);
    if (c->config.resident_nbytes && c->config.resident_nbytes != ZO_ALL_RESIDENT)
        printf("%sstate_mib stands for %" PRIu64 " bytes\n", margin, c->config.resident_nbytes);
    printf("%sconfig:", margin);
    print_config(c->config_text);
    for (uint32_t i = 0; i < c->n_params; i++) {
        printf("%s", margin);
        print_param(&c->params[i]);
    }
}
