/* SPDX-License-Identifier: Apache-2.0 */
/* param.c - parameters in their declared type, and the conversions of param.h. */
#include "param.h"

#include "bfloat16.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    size_t n = p->n_elems > 0 ? p->n_elems : 1;

    p->value = calloc(n, host_dtype_nbytes(p->dtype));
    p->grad = calloc(n, host_dtype_nbytes(p->dtype));
    p->wide = is_direct(p->dtype) ? p->value : p->is_table ? NULL : calloc(n, sizeof *p->wide);
    p->grad_sum = is_direct(p->dtype) ? p->grad : calloc(n, sizeof *p->grad_sum);
    return p->value != NULL && p->grad != NULL && (p->wide != NULL || p->is_table) && p->grad_sum != NULL ? 0 : -1;
}

static void release(host_param_t *p) {
    if (!is_direct(p->dtype)) {
        free(p->wide);
        free(p->grad_sum);
    }
    free(p->value);
    free(p->grad);
}

host_param_t *host_params_add(host_params_t *params, const char *name, size_t rows, size_t columns, int is_table) {
    host_param_t *p;

    if (params->n == params->capacity)
        return NULL;
    p = &params->list[params->n];
    (void)snprintf(p->name, sizeof p->name, "%s", name);
    p->n_dims = columns == 0 ? 1 : 2;
    p->shape[0] = (int64_t)rows;
    p->shape[1] = (int64_t)columns;
    p->n_elems = columns == 0 ? rows : rows * columns;
    p->dtype = params->dtype;
    p->group = columns == 0 ? HOST_GROUP_NO_DECAY : HOST_GROUP_DECAY;
    p->is_table = is_table;
    params->n++; /* counted before it is checked, so that host_params_free releases what there is */
    return params->is_outline || allocate(p) == 0 ? p : NULL;
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
    const uint16_t *narrow = p->value;

    if (p->is_table || is_direct(p->dtype))
        return;
    if (p->dtype == HOST_FLOAT32)
        for (size_t i = 0; i < p->n_elems; i++)
            p->wide[i] = (host_real_t)((const float *)p->value)[i];
    else
        for (size_t i = 0; i < p->n_elems; i++)
            p->wide[i] = (host_real_t)host_float_from_bfloat16(narrow[i]);
}

void host_param_add_row(const host_param_t *p, size_t row, host_real_t *out) {
    size_t width = (size_t)p->shape[1];

    if (p->dtype == HOST_FLOAT32)
        for (size_t i = 0; i < width; i++)
            out[i] += (host_real_t)((const float *)p->value)[row * width + i];
    else
        for (size_t i = 0; i < width; i++)
            out[i] += (host_real_t)host_float_from_bfloat16(((const uint16_t *)p->value)[row * width + i]);
}

void host_param_zero_grad(host_param_t *p) { memset(p->grad_sum, 0, p->n_elems * sizeof *p->grad_sum); }

void host_param_round_grad(host_param_t *p) {
    if (is_direct(p->dtype))
        return;
    if (p->dtype == HOST_FLOAT32)
        for (size_t i = 0; i < p->n_elems; i++)
            ((float *)p->grad)[i] = (float)p->grad_sum[i];
    else
        for (size_t i = 0; i < p->n_elems; i++)
            ((uint16_t *)p->grad)[i] = host_bfloat16_from_float((float)p->grad_sum[i]);
}
