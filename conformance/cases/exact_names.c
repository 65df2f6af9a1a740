/* SPDX-License-Identifier: Apache-2.0 */
/* exact_names.c - a case in words, for the message of a failure. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "exact_case.h"

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
    for (uint32_t i = 0; i < c->n_groups; i++)
        printf(", %s", rules[c->config.groups[i].rule]);
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
