/* SPDX-License-Identifier: Apache-2.0 */
/* param.c - parameters in their declared type, and the conversions of param.h. */
#include "param.h"

#include "bfloat16.h"

#include <stdio.h>
#include <stdlib.h>

size_t host_dtype_nbytes(host_dtype_t dtype) { return dtype == HOST_FLOAT32 ? 4 : 2; }

const char *host_dtype_name(host_dtype_t dtype) { return dtype == HOST_FLOAT32 ? "fp32" : "bf16"; }

int host_params_init(host_params_t *params, size_t capacity, host_dtype_t dtype, glue_error_t *err) {
    *params = (host_params_t){.capacity = capacity, .dtype = dtype};
    params->list = calloc(capacity, sizeof *params->list);
    return params->list != NULL ? 0 : glue_fail(err, "model: out of memory for %zu parameters", capacity);
}

/* The computing type equals the declared type: wide and grad_sum need no memory of their own. */
static int is_direct(host_dtype_t dtype) { return dtype == HOST_FLOAT32 && sizeof(host_real_t) == sizeof(float); }

static int allocate(host_param_t *p) {
    host_compute_t *c = p->compute;
    const host_compute_ops_t *ops = c->ops;
    p->value = ops->allocate(c, p->n_elems * host_dtype_nbytes(p->dtype));
    p->grad = ops->allocate(c, p->n_elems * host_dtype_nbytes(p->dtype));
    p->wide = is_direct(p->dtype) ? p->value : p->is_table ? NULL : ops->allocate(c, p->n_elems * sizeof *p->wide);
    p->grad_sum = is_direct(p->dtype) ? p->grad : ops->allocate(c, p->n_elems * sizeof *p->grad_sum);
    return p->value != NULL && p->grad != NULL && (p->wide != NULL || p->is_table) && p->grad_sum != NULL ? 0 : -1;
}

static void release(host_param_t *p) {
    host_compute_t *c = p->compute;
    if (!is_direct(p->dtype)) {
        c->ops->release(c, p->wide);
        c->ops->release(c, p->grad_sum);
    }
    c->ops->release(c, p->value);
    c->ops->release(c, p->grad);
}

host_param_t *host_params_add(host_params_t *params, const char *name, size_t rows, size_t columns, int is_table) {
    if (params->n == params->capacity)
        return NULL;
    host_param_t *p = &params->list[params->n];
    (void)snprintf(p->name, sizeof p->name, "%s", name);
    p->n_dims = columns == 0 ? 1 : 2;
    p->shape[0] = (int64_t)rows;
    p->shape[1] = (int64_t)columns;
    p->n_elems = columns == 0 ? rows : rows * columns;
    p->dtype = params->dtype;
    p->group = columns == 0 ? HOST_GROUP_NO_DECAY : HOST_GROUP_DECAY;
    p->is_table = is_table;
    p->compute = host_compute_processor();
    params->n++; /* counted before it is checked, so that host_params_free releases what there is */
    return allocate(p) == 0 ? p : NULL;
}

void host_params_free(host_params_t *params) {
    for (size_t i = 0; i < params->n; i++)
        release(&params->list[i]);
    free(params->list);
    *params = (host_params_t){.list = NULL};
}

size_t host_params_n_elems(const host_params_t *params) {
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++)
        n += params->list[i].n_elems;
    return n;
}

float host_param_get(const host_param_t *p, size_t i) {
    if (p->dtype == HOST_FLOAT32)
        return ((const float *)p->value)[i];
    return host_float_from_bfloat16(((const uint16_t *)p->value)[i]);
}

void host_param_set(host_param_t *p, size_t i, float value) {
    if (p->dtype == HOST_FLOAT32)
        ((float *)p->value)[i] = value;
    else
        ((uint16_t *)p->value)[i] = host_bfloat16_from_float(value);
}

void host_param_widen(host_param_t *p) {
    if (!p->is_table && !is_direct(p->dtype))
        p->compute->ops->widen(p->compute, p->value, p->dtype, p->n_elems, p->wide);
}

void host_param_zero_grad(host_param_t *p) {
    p->compute->ops->zero(p->compute, p->grad_sum, p->n_elems * sizeof *p->grad_sum);
}

void host_param_round_grad(host_param_t *p) {
    if (!is_direct(p->dtype))
        p->compute->ops->narrow(p->compute, p->grad_sum, p->dtype, p->n_elems, p->grad);
}

/* ---- elsewhere --------------------------------------------------------------------------------------------------- */

static int move(host_param_t *p, host_compute_t *compute, glue_error_t *err) {
    host_param_t there = *p;
    there.compute = compute;
    if (allocate(&there) != 0) {
        release(&there);
        return glue_fail(err, "%s: out of memory on the device for parameter %s of %zu elements", compute->ops->name,
                         p->name, p->n_elems);
    }
    compute->ops->copy_in(compute, there.value, p->value, p->n_elems * host_dtype_nbytes(p->dtype));
    release(p);
    *p = there;
    return host_compute_check(compute, err);
}

int host_params_move(host_params_t *params, host_compute_t *compute, glue_error_t *err) {
    for (size_t i = 0; i < params->n; i++)
        if (move(&params->list[i], compute, err) != 0)
            return -1;
    return 0;
}

int host_params_copy(const host_params_t *params, host_params_t *out, glue_error_t *err) {
    if (host_params_init(out, params->n, params->dtype, err) != 0)
        return -1;
    for (size_t i = 0; i < params->n; i++) {
        const host_param_t *from = &params->list[i];
        host_param_t *to =
            host_params_add(out, from->name, (size_t)from->shape[0], (size_t)from->shape[1], from->is_table);
        if (to == NULL) {
            host_params_free(out);
            return glue_fail(err, "model: out of memory for a copy of parameter %s", from->name);
        }
        from->compute->ops->copy_out(from->compute, to->value, from->value,
                                     from->n_elems * host_dtype_nbytes(from->dtype));
    }
    return 0;
}
