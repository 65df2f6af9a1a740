/* SPDX-License-Identifier: Apache-2.0 */
/* adamw_there.c - the host's own AdamW on copies of a device's parameters (adamw_there.h). */
#include "adamw_there.h"

#include "adamw.h"

#include <stdlib.h>

typedef struct there {
    host_optimizer_t base;
    host_params_t here;      /* copies, which `inner` trains */
    host_optimizer_t *inner; /* of which every call is one of this */
    host_optimizer_ops_t ops;
} there_t;

static host_compute_t *compute_of(const there_t *self) { return self->base.params->list[0].compute; }

static int send_values(there_t *self, glue_error_t *err) {
    host_compute_t *c = compute_of(self);

    for (size_t i = 0; i < self->here.n; i++) {
        const host_param_t *p = &self->here.list[i];

        c->ops->copy_in(c, self->base.params->list[i].value, p->value, p->n_elems * host_dtype_nbytes(p->dtype));
    }
    return host_compute_check(c, err);
}

static int there_grads_ready(host_optimizer_t *base, size_t param, unsigned flags, glue_error_t *err) {
    there_t *self = (there_t *)base;
    host_compute_t *c = compute_of(self);
    const host_param_t *p = &self->here.list[param];

    c->ops->copy_out(c, p->grad, base->params->list[param].grad, p->n_elems * host_dtype_nbytes(p->dtype));
    if (host_compute_check(c, err) != 0)
        return -1;
    return self->inner->ops->grads_ready(self->inner, param, flags, err);
}

static int there_step(host_optimizer_t *base, const host_step_args_t *args, glue_error_t *err) {
    there_t *self = (there_t *)base;

    return self->inner->ops->step(self->inner, args, err) != 0 ? -1 : send_values(self, err);
}

static size_t there_counters(host_optimizer_t *base, host_counter_t out[HOST_MAX_COUNTERS]) {
    there_t *self = (there_t *)base;

    return self->inner->ops->counters(self->inner, out);
}

static void there_destroy(host_optimizer_t *base) {
    there_t *self = (there_t *)base;

    if (self->inner != NULL)
        self->inner->ops->destroy(self->inner);
    host_params_free(&self->here);
    free(self);
}

int host_adamw_there_create(host_params_t *params, host_optimizer_t **out, glue_error_t *err) {
    there_t *self = calloc(1, sizeof *self);

    if (self == NULL)
        return glue_fail(err, "adamw: out of memory");
    self->ops = (host_optimizer_ops_t){
        .grads_ready = there_grads_ready, .step = there_step, .counters = there_counters, .destroy = there_destroy};
    self->base = (host_optimizer_t){.ops = &self->ops, .params = params};
    if (host_params_copy(params, &self->here, err) != 0 || host_adamw_create(&self->here, &self->inner, err) != 0) {
        there_destroy(&self->base);
        return -1;
    }
    self->ops.name = self->inner->ops->name;
    *out = &self->base;
    return 0;
}
