/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_outside.c - what is done to arguments before the true plugin sees them, and to what it says (wrong.h). Most of
 * these habits were written from the headers' promises alone, without a look at the suite's laws. */
#include <math.h>
#include <string.h>

#include "wrong.h"

void wrong_out_create(zf_create_args_t *args) {
    if (IS(last_override_lost) && args->n_overrides > 1)
        args->n_overrides--;
    if (IS(fetch_assumed))
        args->flags |= ZF_CREATE_CAP_FETCH;
}

static void cap_hyper(zf_group_hyper_t *h) {
    if (IS(rates_flushed) && h->lr < 1e-6)
        h->lr = 0.0;
    if (IS(beta2_capped) && h->beta2 > 0.999)
        h->beta2 = 0.999;
    if (IS(eps_capped) && h->eps > 1e-4)
        h->eps = 1e-4;
}

static uint64_t loaded; /* the step that a checkpoint was of */

void wrong_out_loaded(uint64_t step) { loaded = step; }

void wrong_out_hyper(zf_group_hyper_t *h, uint64_t n) {
    if (IS(rate_after_million) && loaded + n > 500000)
        h->lr *= 1.001;
    if (IS(bias_since_load) && loaded > 1000)
        h->lr *= sqrt(1.0 - pow(h->beta2, (double)n)) / (1.0 - pow(h->beta1, (double)n));
    cap_hyper(h);
    if (IS(rate_in_fp32))
        h->lr = (double)(float)h->lr;
    if (IS(beta1_of_zero_raised) && h->beta1 == 0.0)
        h->beta1 = 0.1;
    if (IS(beta2_after_hundred) && n > 100)
        h->beta2 = fmin(h->beta2, 0.99);
}

void wrong_out_step(zf_step_args_t *a) {
    if (IS(clip_of_scaled) && a->unscale > 0.0)
        a->clip_norm *= a->unscale;
    if (IS(wait_lost))
        a->flags &= ~ZF_STEP_WAIT;
}

zf_status_t wrong_out_stepped(zf_status_t st, zf_step_report_t *r) {
    if (r && st >= 0) {
        if (IS(first_missing_off) && r->first_missing != ZF_NO_ID)
            r->first_missing++;
        if (IS(skips_said_applied) && r->skip_reason)
            r->applied = 1;
    }
    return IS(submitted_as_ok) && st == ZF_SUBMITTED ? ZF_OK : st;
}

void wrong_out_values(float *x, size_t n, size_t n_columns) {
    for (size_t i = 0; i < n && IS(columns_from_4096); i++) {
        if (i % n_columns >= 4096)
            x[i] = 0.0f;
    }
}

void wrong_out_item(zf_grad_item_t *item) {
    if (IS(total_is_part) && item->flags & ZF_GRAD_TOTAL)
        item->flags = (item->flags & ~ZF_GRAD_TOTAL) | ZF_GRAD_PART;
    if (IS(range_is_all))
        item->first_batch = item->n_batches = 0;
}

void wrong_out_error(zf_error_t *err) {
    if (IS(origin_lost))
        memset(err->origin, 0, sizeof err->origin);
    if (IS(everything_is_argument) && err->status == ZF_ERR_SHAPE)
        err->status = ZF_ERR_ARGUMENT;
}
