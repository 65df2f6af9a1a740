/* SPDX-License-Identifier: Apache-2.0 */
/* adamw.h - plain AdamW over the flat arrays of mlp.h: what the trainer used before. */
#ifndef ADAMW_H
#define ADAMW_H

#include "mlp.h"

typedef struct adamw {
    float *w, *m, *v; /* [total] each; w is the model's, or a copy */
    unsigned n;       /* updates so far */
} adamw_t;

/* Moments of a model, zero; w is the model's own. The caller frees m and v. */
void init_adamw(adamw_t *opt, const model_t *model);

/* One update of opt->w from the model's gradients: betas 0.9 and 0.999, eps 1e-8, decay 0.01 in group DECAY. In
 * float32, scalars in double and rounded once: the plugin's arithmetic, operation by operation. */
void adamw_step(adamw_t *opt, const model_t *model, double lr);

#endif
