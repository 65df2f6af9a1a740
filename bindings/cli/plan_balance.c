/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/plan_balance.c - how evenly several ranks, and the steps of a window, share the work (contract in
 * plan.h). */
#include "plan.h"

enum { MOST_ASKED = 8 }; /* they differ by a few rows */

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

int plan_ask_balance(zf_cli_t *cli, const plan_options_t *options, const model_t *model, const char *config_text,
                     plan_balance_t *out) {
    static const char *const none[] = {NULL};
    uint32_t n = options->n_ranks < MOST_ASKED ? options->n_ranks : MOST_ASKED;
    *out = (plan_balance_t){.n_asked = n, .least_owned = UINT64_MAX, .least_close = UINT64_MAX};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rank = n == 1 ? 0 : (uint32_t)((uint64_t)i * (options->n_ranks - 1) / (n - 1)); /* the last one too */
        zf_plan_t plan;
        if (plan_ask(cli, options, model, rank, config_text, none, 0, &plan))
            return 1;
        out->least_owned = smaller(out->least_owned, plan.n_owned_elems);
        out->most_owned = larger(out->most_owned, plan.n_owned_elems);
        out->least_close = smaller(out->least_close, plan.least_close_elems);
        if (plan.most_close_elems > out->most_close)
            out->slowest = rank;
        out->most_close = larger(out->most_close, plan.most_close_elems);
    }
    return 0;
}
