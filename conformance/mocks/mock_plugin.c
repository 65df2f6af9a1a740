/* SPDX-License-Identifier: Apache-2.0 */
/* mock_plugin.c - the mock's hooks and its table (mock.h). */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock.h"
#include "mock_queue.h"
#include "mock_stats.h"
#include "zf/ext/draft/inspect.h"

#define READ(out, given) mock_read(&(out), given, sizeof(out), #given, err)

static zf_status_t need(const zf_instance_t *instance, zf_error_t *err) {
    if (!instance)
        return mock_fail(err, ZF_ERR_ARGUMENT, "instance is NULL");
    return instance->is_bound
               ? ZF_OK
               : mock_fail(err, ZF_ERR_STATE, "the instance has no parameters: state created, need bound");
}

/* Of the parameters that a call names. */
static zf_status_t check_param(const zf_instance_t *instance, const zf_param_item_t *item, zf_error_t *err) {
    const mock_param_t *p = &instance->params[item->id < instance->n_params ? item->id : 0];
    if (item->id >= instance->n_params && !BREAKS(ids_ignored))
        return mock_fail(err, ZF_ERR_PARAM, "id %u of %u", item->id, instance->n_params);
    if ((item->flags || item->reserved0) && !BREAKS(flags_ignored))
        return mock_blame(err,
                          mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "\"%s\": flags are %#x, reserved0 is %u", p->name,
                                    item->flags, item->reserved0),
                          item->id);
    if (((uint64_t)item->first_batch + item->n_batches > p->n_batch || (item->first_batch && !item->n_batches)) &&
        !BREAKS(ranges_ignored))
        return mock_blame(err,
                          mock_fail(err, ZF_ERR_SHAPE, "\"%s\": matrices %u, %u of %u", p->name, item->first_batch,
                                    item->n_batches, (unsigned)p->n_batch),
                          item->id);
    return ZF_OK;
}

static zf_status_t check_params(const zf_instance_t *instance, const zf_param_item_t *items, uint32_t n,
                                uint32_t *elem_size, zf_error_t *err) {
    zf_status_t st = n ? mock_check_array(items, n, elem_size, sizeof *items, "items", err) : ZF_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        zf_param_item_t item;
        st = mock_read_item(&item, items, i, *elem_size, sizeof item, "zf_param_item_t", err);
        if (!st)
            st = check_param(instance, &item, err);
    }
    return st;
}

static float get(const void *memory, int is_bf16, uint32_t i) {
    uint32_t bits;
    float x;
    if (is_bf16)
        bits = (uint32_t)((const uint16_t *)memory)[i] << 16;
    else
        memcpy(&bits, (const char *)memory + 4 * (size_t)i, 4);
    memcpy(&x, &bits, 4);
    return x;
}

static void put(void *memory, int is_bf16, uint32_t i, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (is_bf16)
        ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
    else
        memcpy((char *)memory + 4 * (size_t)i, &bits, 4);
}

/* ---- describe, create, destroy ----------------------------------------------------------------------------------- */

static zf_status_t describe(zf_description_t *out, zf_error_t *err) {
    zf_description_t d = {.abi = ZF_ABI_0_4,
                          .name = "mock",
                          .version = "1",
                          .build = "",
                          .required_extensions = "",
                          .optional_extensions = "",
                          .provided_extensions = ZF_EXT_INSPECT " " ZF_EXT_CPU " " ZF_EXT_STATS};
    zf_status_t st =
        out ? mock_check_out(out, "zf_description_t", err) : mock_fail(err, ZF_ERR_ARGUMENT, "out is NULL");
    if (!st)
        mock_write(out, &d, sizeof d);
    return st;
}

static zf_status_t create(const zf_create_args_t *given, zf_instance_t **out, zf_error_t *err) {
    zf_create_args_t args;
    zf_host_t host;
    zf_instance_t *instance;
    zf_status_t st = READ(args, given);
    if (!st)
        st = READ(host, args.host);
    if (!st && !out)
        st = mock_fail(err, ZF_ERR_ARGUMENT, "out_instance is NULL");
    if (!st && (args.flags & ~ZF_CREATE_CAP_FETCH) && !BREAKS(flags_ignored))
        st = mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "flags are %#x", args.flags);
    if (!st)
        st = mock_check_reserved(host.reserved0, "zf_host_t", err);
    if (!st)
        st = mock_check_chain(args.next, "zf_create_args_t", err);
    if (!st && args.device_type != ZF_DEVICE_CPU)
        st = mock_fail(err, ZF_ERR_DEVICE, "device type is %d", args.device_type);
    if (!st)
        st = mock_check_config(&args, err);
    if (!st && BREAKS(wants_extensions) && !host.get_extension)
        st = mock_fail(err, ZF_ERR_ARGUMENT, "the host has no get_extension");
    if (st)
        return st;
    instance = calloc(1, sizeof *instance);
    if (!instance)
        return mock_fail(err, ZF_ERR_MEMORY, "no memory for %zu bytes", sizeof *instance);
    instance->host = host;
    instance->given_host = args.host;
    pthread_mutex_init(&instance->lock, NULL);
    pthread_cond_init(&instance->changed, NULL);
    mock_misbehave_in_create(&host);
    *out = instance;
    return ZF_OK;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static void wait_idle(zf_instance_t *instance) {
    int state = PTHREAD_CANCEL_ENABLE;
    if (!BREAKS(cancellable))
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_mutex_lock(&instance->lock);
    while (instance->n_pending)
        pthread_cond_wait(&instance->changed, &instance->lock);
    pthread_mutex_unlock(&instance->lock);
    pthread_setcancelstate(state, NULL);
}

static zf_instance_t *bound; /* all of them: no two may train one memory */

static void forget(zf_instance_t *instance) {
    for (zf_instance_t **at = &bound; *at; at = &(*at)->next)
        if (*at == instance) {
            *at = instance->next;
            break;
        }
}

static void destroy(zf_instance_t *instance, const zf_destroy_args_t *args) {
    if (!instance)
        return;
    wait_idle(instance); /* nothing is deferred */
    if (BREAKS(destroy_drops) && args && args->flags & ZF_DESTROY_FLUSH)
        put(instance->params[0].visible, instance->params[0].is_bf16, 0, 0.5f);
    forget(instance);
    pthread_cond_destroy(&instance->changed);
    pthread_mutex_destroy(&instance->lock);
    free(instance);
}

static mock_job_t *next_job(zf_instance_t *instance) {
    mock_job_t *job = &instance->jobs[instance->n_jobs++ % MOCK_MAX_JOBS];
    memset(job, 0, sizeof *job);
    job->instance = instance;
    return job;
}

/* Runs it in stream order: at once on the host's thread, later on a queue. */
static void submit(mock_job_t *job, const zf_stream_t *stream, void (*run)(void *)) {
    zf_instance_t *instance = job->instance;
    if (!mock_queue_of(stream))
        wait_idle(instance);
    pthread_mutex_lock(&instance->lock);
    instance->n_pending++;
    pthread_mutex_unlock(&instance->lock);
    if (mock_queue_of(stream))
        mock_cpu_table.queue_launch(mock_queue_of(stream), run, job, NULL);
    else
        run(job);
}

static void end_job(mock_job_t *job) {
    zf_instance_t *instance = job->instance;
    pthread_mutex_lock(&instance->lock);
    if (job->n == 0)
        instance->last = job->report;
    instance->n_pending--;
    pthread_cond_broadcast(&instance->changed);
    pthread_mutex_unlock(&instance->lock);
}

/* ---- bind_params ------------------------------------------------------------------------------------------------- */

static zf_status_t read_param(zf_instance_t *draft, const zf_param_decl_t *d, uint32_t i, zf_error_t *err) {
    mock_param_t *p = &draft->params[i];
    zf_tensor_t t;
    zf_status_t st;
    if (!d->name || !*d->name || strlen(d->name) > 255)
        return mock_fail(err, ZF_ERR_PARAM, "parameter %u: name is missing or too long", i);
    st = mock_check_tensor(d->tensor, d->name, &t, err);
    if (st)
        return st;
    if ((d->home < ZF_HOME_PLUGIN || d->home > ZF_HOME_HOST) && !BREAKS(home_ignored))
        return mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "\"%s\": home = %d", d->name, d->home);
    if ((d->flags & ~51u) && !BREAKS(flags_ignored))
        return mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "\"%s\": flags %#x", d->name, d->flags);
    if ((d->grad_dtype.bits && d->grad_dtype.bits != t.dl.dtype.bits) || d->n_batch_axes < 0 ||
        d->n_batch_axes > t.dl.ndim || d->channels < 0 || d->channels > 1 ||
        ((d->flags & ZF_PARAM_TIED) && d->tied_to >= i))
        return mock_fail(err, ZF_ERR_PARAM, "\"%s\": gradient type, axes, channels or owner", d->name);
    for (uint32_t k = 0; k < i && !BREAKS(names_ignored); k++)
        if (strcmp(draft->params[k].name, d->name) == 0)
            return mock_fail(err, ZF_ERR_PARAM, "two parameters \"%s\"", d->name);
    for (uint32_t k = 0; k < i; k++)
        if (draft->params[k].visible == t.dl.data)
            return mock_fail(err, ZF_ERR_PARAM, "\"%s\" and \"%s\" share memory", d->name, draft->params[k].name);
    strcpy(p->name, d->name);
    p->flags = d->flags;
    p->ndim = t.dl.ndim;
    p->n_elems = 1;
    p->n_batch = 1;
    for (int a = 0; a < d->n_batch_axes; a++)
        p->n_batch *= (uint64_t)t.dl.shape[a];
    for (int a = 0; a < t.dl.ndim; a++)
        p->shape[a] = t.dl.shape[a], p->n_elems *= (uint32_t)t.dl.shape[a];
    p->is_bf16 = t.dl.dtype.bits == 16;
    p->visible = t.dl.data;
    for (uint32_t e = 0; e < p->n_elems; e++) {
        p->w[e] = get(p->visible, p->is_bf16, e);
        if (!isfinite(p->w[e]) && !BREAKS(nan_bound))
            return mock_fail(err, ZF_ERR_NONFINITE, "\"%s\": element %u is not finite", p->name, e);
    }
    return p->n_elems == 0 && BREAKS(empty_refused) ? mock_fail(err, ZF_ERR_SHAPE, "\"%s\" is empty", p->name) : ZF_OK;
}

static zf_status_t check_memory(const zf_instance_t *instance, const zf_instance_t *draft, zf_error_t *err) {
    for (const zf_instance_t *other = bound; other && !BREAKS(memory_twice); other = other->next)
        for (uint32_t i = 0; i < draft->n_params && other != instance; i++)
            for (uint32_t k = 0; k < other->n_params; k++)
                if (draft->params[i].n_elems && draft->params[i].visible == other->params[k].visible)
                    return mock_fail(err, ZF_ERR_PARAM, "\"%s\" is trained by another instance", draft->params[i].name);
    return ZF_OK;
}

static zf_status_t check_bind(zf_bind_args_t *args, const zf_bind_args_t *given, zf_error_t *err) {
    zf_status_t st = mock_read(args, given, sizeof *args, "zf_bind_args_t", err);
    if (!st && args->flags && !BREAKS(flags_ignored))
        st = mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "flags are %#x", args->flags);
    if (!st)
        st = mock_check_chain(args->next, "zf_bind_args_t", err);
    if (!st && (args->n_groups || args->groups))
        st = mock_check_array(args->groups, args->n_groups, &args->group_size, sizeof(zf_group_decl_t), "groups", err);
    for (uint32_t i = 0; i < args->n_groups && !st; i++)
        st = mock_check_group(args, i, err);
    if (!st && !(BREAKS(count_ignored) && args->n_decls == 0))
        st = mock_check_array(args->decls, args->n_decls, &args->decl_size, sizeof *args->decls, "decls", err);
    return st;
}

static zf_status_t bind_params(zf_instance_t *instance, const zf_bind_args_t *given, uint32_t *out_ids,
                               zf_layout_t *out_layout, zf_error_t *err) {
    zf_layout_t layout = {.n_elems = 1};
    zf_bind_args_t args = {0};
    zf_instance_t *draft;
    zf_status_t st;
    uint32_t n;
    if (!instance)
        return mock_fail(err, ZF_ERR_ARGUMENT, "instance is NULL");
    st = check_bind(&args, given, err);
    if (!st)
        st = mock_check_out(out_layout, "zf_layout_t", err);
    n = args.n_decls;
    if (st || n > MOCK_MAX_PARAMS || n == 0 || !(draft = calloc(1, sizeof *draft)))
        return st || n == 0 ? st : mock_fail(err, ZF_ERR_MEMORY, "%u parameters", n);
    for (uint32_t i = 0; i < n && !st; i++) {
        zf_param_decl_t decl;
        st = mock_read_item(&decl, args.decls, i, args.decl_size, sizeof decl, "zf_param_decl_t", err);
        if (!st)
            st = mock_check_chain(decl.next, decl.name ? decl.name : "", err);
        if (!st && args.n_groups && decl.group >= args.n_groups)
            st = mock_blame(
                err, mock_fail(err, ZF_ERR_PARAM, "\"%s\": group %u of %u", decl.name, decl.group, args.n_groups), i);
        if (!st)
            st = mock_blame(err, read_param(draft, &decl, i, err), i);
    }
    draft->n_params = n;
    if (!st)
        st = check_memory(instance, draft, err);
    if (!st) {
        if (!instance->is_bound)
            instance->next = bound, bound = instance;
        if (BREAKS(host_kept) && instance->given_host->log)
            instance->given_host->log(instance->given_host->ctx, ZF_LOG_INFO, "mock", __FILE__, __LINE__, "bound", 5);
        memcpy(instance->params, draft->params, sizeof draft->params);
        instance->n_params = n;
        instance->is_bound = 1;
        for (uint32_t i = 0; i < n && out_ids; i++)
            out_ids[i] = i;
        mock_write(out_layout, &layout, sizeof layout);
    }
    free(draft);
    return st;
}

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static zf_status_t params_changed(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                  uint32_t flags, zf_error_t *err) {
    zf_status_t st = need(instance, err);
    if (!st)
        st = check_params(instance, items, n, &elem_size, err);
    if (!st && (flags & ~ZF_CHANGED_RESET) && !BREAKS(flags_ignored))
        st = mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "flags are %#x", flags);
    if (st)
        return st;
    wait_idle(instance);
    for (uint32_t i = 0; i < (items || BREAKS(all_changed_ignored) ? n : instance->n_params); i++) {
        uint32_t id = i;
        if (items)
            memcpy(&id, (const char *)items + (size_t)i * elem_size + offsetof(zf_param_item_t, id), sizeof id);
        mock_param_t *p = &instance->params[id < instance->n_params ? id : 0];
        for (uint32_t e = 0; e < p->n_elems; e++)
            p->w[e] = get(p->visible, p->is_bf16, e);
    }
    return ZF_OK;
}

static zf_status_t check_item(zf_instance_t *instance, const zf_grad_item_t *item, zf_tensor_t *t, zf_error_t *err) {
    const mock_param_t *p = &instance->params[item->id < instance->n_params ? item->id : 0];
    uint32_t kinds = item->flags & (ZF_GRAD_PART | ZF_GRAD_TOTAL),
             order = item->flags & (ZF_GRAD_MORE | ZF_GRAD_LAST | ZF_GRAD_UNKNOWN);
    zf_status_t st = mock_check_reserved(item->reserved0, "zf_grad_item_t", err);
    if (st)
        return st;
    if (item->id >= instance->n_params)
        return mock_fail(err, ZF_ERR_PARAM, "id %u of %u", item->id, instance->n_params);
    if (p->flags & ZF_PARAM_FROZEN)
        return mock_fail(err, ZF_ERR_PARAM, "\"%s\" is frozen", p->name);
    if (!BREAKS(flags_ignored) &&
        (kinds == 0 || (kinds & (kinds - 1)) || (order & (order - 1)) || (item->flags & ~127u)))
        return mock_fail(err, ZF_ERR_ARGUMENT, "\"%s\": flags %#x", p->name, item->flags);
    st = mock_check_tensor(item->tensor, p->name, t, err);
    if (st)
        return st;
    if ((t->dl.dtype.bits == 16) != p->is_bf16)
        return mock_fail(err, ZF_ERR_DTYPE, "gradient of \"%s\" has %d bits", p->name, t->dl.dtype.bits);
    if (t->dl.ndim != p->ndim || memcmp(t->dl.shape, p->shape, (size_t)p->ndim * sizeof *p->shape) != 0)
        return mock_fail(err, ZF_ERR_SHAPE, "gradient of \"%s\" has another shape", p->name);
    if ((uint64_t)item->first_batch + item->n_batches > 1 && !BREAKS(ranges_ignored))
        return mock_fail(err, ZF_ERR_SHAPE, "gradient of \"%s\": a range of matrices, but it has one", p->name);
    if (t->dl.data == p->visible && !BREAKS(own_gradient))
        return mock_fail(err, ZF_ERR_PARAM, "gradient of \"%s\" is the parameter itself", p->name);
    return ZF_OK;
}

static void run_delivery(void *arg) {
    mock_job_t *job = arg;
    for (uint32_t i = 0; i < job->n; i++) {
        mock_param_t *p = &job->instance->params[job->ids[i]];
        p->has_grad = 1;
        for (uint32_t e = 0; e < p->n_elems; e++)
            p->grad[e] = get(job->data[i], p->is_bf16, e);
    }
    end_job(job);
}

static zf_status_t grads_ready(zf_instance_t *instance, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err) {
    zf_fence_t fence = {.kind = ZF_FENCE_NONE};
    zf_tensor_t tensors[MOCK_MAX_PARAMS];
    uint32_t ids[MOCK_MAX_PARAMS];
    zf_stream_t stream_copy;
    mock_job_t *job;
    zf_status_t st = need(instance, err);
    if (!st)
        st = mock_check_array(items, n, &elem_size, sizeof *items, "items", err);
    if (!st)
        st = mock_check_stream(stream, &stream_copy, err);
    if (!st)
        st = mock_check_out(out_done, "zf_fence_t", err);
    if (!st && n > MOCK_MAX_PARAMS)
        st = mock_fail(err, ZF_ERR_ARGUMENT, "%u items", n);
    for (uint32_t i = 0; i < n && !st; i++) {
        zf_grad_item_t item;
        st = mock_read_item(&item, items, i, elem_size, sizeof item, "zf_grad_item_t", err);
        if (!st)
            st = mock_blame(err, check_item(instance, &item, &tensors[i], err),
                            item.id < instance->n_params ? item.id : ZF_NO_ID);
        if (!st)
            ids[i] = item.id < instance->n_params ? item.id : 0;
        if (BREAKS(partly_delivered) && st && i > 0)
            instance->carry += 1.0f;
        if (BREAKS(dead_after_error) && st == ZF_ERR_SHAPE)
            instance->is_dead = 1;
    }
    if (!st && instance->is_dead)
        st = mock_fail(err, ZF_ERR_POISONED, "an earlier error ended this instance");
    if (st)
        return st;
    instance->has_begun = 1;
    job = next_job(instance);
    job->n = n;
    for (uint32_t i = 0; i < n; i++)
        job->ids[i] = ids[i], job->data[i] = tensors[i].dl.data;
    submit(job, &stream_copy, run_delivery);
    if (mock_queue_of(&stream_copy))
        fence.kind = ZF_FENCE_STREAM_ORDER;
    mock_write(out_done, &fence, sizeof fence);
    return ZF_OK;
}

static int is_finite(const mock_param_t *p) {
    for (uint32_t e = 0; e < p->n_elems; e++)
        if (!isfinite(p->grad[e]))
            return 0;
    return 1;
}

/* The first parameter of which a gradient is there and not finite. */
static uint32_t find_nonfinite(const zf_instance_t *instance) {
    uint32_t found = ZF_NO_ID;
    for (uint32_t i = 0; i < instance->n_params && !BREAKS(nan_applied); i++)
        if (instance->params[i].has_grad && !is_finite(&instance->params[i]) &&
            (found == ZF_NO_ID || BREAKS(nan_named_last)))
            found = i;
    return found;
}

static void describe_gradients(zf_instance_t *instance, zf_step_report_t *report) {
    double sum = 0;
    report->first_missing = ZF_NO_ID;
    for (uint32_t i = 0; i < instance->n_params; i++) {
        mock_param_t *p = &instance->params[i];
        report->n_present += p->has_grad != 0;
        if (p->habit == 1 && !p->has_grad && !BREAKS(missing_unsaid) && report->n_missing++ == 0)
            report->first_missing = i;
        p->habit = !p->has_grad ? 2 : p->habit ? p->habit : 1;
        for (uint32_t e = 0; e < p->n_elems && p->has_grad; e++)
            sum += (double)p->grad[e] * (double)p->grad[e];
    }
    report->n_present += BREAKS(counts_wrongly);
    report->grad_norm = sqrt(sum);
    report->clip_factor = 1.0;
}

static void update(mock_param_t *p, float lr) {
    p->n++;
    for (uint32_t e = 0; e < p->n_elems; e++) {
        p->m[e] = 0.5f * p->m[e] + p->grad[e];
        p->w[e] -= lr * p->m[e];
        put(p->visible, p->is_bf16, e, p->w[e]);
    }
}

static void run_step(void *arg) {
    mock_job_t *job = arg;
    zf_instance_t *instance = job->instance;
    zf_step_report_t *report = &job->report;
    instance->params[0].grad[0] += instance->carry;
    instance->carry = 0;
    report->nonfinite_param = find_nonfinite(instance);
    describe_gradients(instance, report);
    report->applied = report->nonfinite_param == ZF_NO_ID;
    report->skip_reason = report->applied ? ZF_SKIP_NONE : ZF_SKIP_NONFINITE;
    for (uint32_t i = 0; i < instance->n_params; i++) {
        if (instance->params[i].has_grad && report->applied)
            update(&instance->params[i], job->lr);
        instance->params[i].has_grad = 0;
    }
    if (report->applied && BREAKS(nan_left_over))
        report->nonfinite_param = 0;
    end_job(job);
}

/* The newest finished report. ZF_IN_PROGRESS: submitted work has not ended. */
static zf_status_t take_report(zf_instance_t *instance, zf_step_report_t *out) {
    zf_status_t st;
    pthread_mutex_lock(&instance->lock);
    *out = instance->last;
    st = instance->n_pending && !BREAKS(never_in_progress) ? ZF_IN_PROGRESS : ZF_OK;
    pthread_mutex_unlock(&instance->lock);
    return st;
}

static zf_status_t check_step(const zf_step_args_t *args, zf_stream_t *stream, zf_group_hyper_t *hyper,
                              zf_error_t *err) {
    zf_status_t st = mock_check_chain(args->next, "zf_step_args_t", err);
    if (!st)
        st = mock_check_stream(args->stream, stream, err);
    if (!st && (args->flags & ~7u) && !BREAKS(flags_ignored))
        st = mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "flags are %#x", args->flags);
    return st ? st : mock_check_hyper(args, hyper, err);
}

static zf_status_t announce(zf_instance_t *instance, const zf_step_args_t *given, zf_error_t *err) {
    zf_step_args_t args;
    zf_group_hyper_t hyper;
    zf_stream_t stream;
    zf_status_t st = need(instance, err);
    if (!st)
        st = READ(args, given);
    if (!st)
        st = check_step(&args, &stream, &hyper, err);
    if (!st && instance->has_begun && !BREAKS(announced_late))
        st = mock_fail(err, ZF_ERR_STATE, "gradients of the step were delivered");
    return st;
}

static zf_status_t step(zf_instance_t *instance, const zf_step_args_t *given, zf_step_report_t *out, zf_error_t *err) {
    zf_step_args_t args;
    zf_group_hyper_t hyper = {0};
    zf_step_report_t report = {.has_report = 1, .applied = 1};
    zf_stream_t stream;
    mock_job_t *job;
    zf_status_t st = need(instance, err);
    if (!st)
        st = READ(args, given);
    if (!st)
        st = mock_check_out(out, "zf_step_report_t", err);
    if (!st)
        st = check_step(&args, &stream, &hyper, err);
    if (st && BREAKS(half_applied) && instance && instance->is_bound)
        put(instance->params[0].visible, 0, 0, 42.0f);
    if (st && BREAKS(writes_on_failure) && out && out->struct_size == sizeof *out)
        mock_write(out, &report, sizeof report);
    if (st)
        return st;
    mock_misbehave_in_step(instance);
    instance->has_begun = 0;
    job = next_job(instance);
    job->report = (zf_step_report_t){.has_report = 1, .step = ++instance->n_steps, .submitted_step = instance->n_steps};
    job->lr = mock_learning_rate(hyper.lr);
    submit(job, &stream, run_step);
    if (args.flags & ZF_STEP_WAIT || !mock_queue_of(&stream))
        wait_idle(instance);
    st = take_report(instance, &report);
    report.submitted_step = instance->n_steps;
    mock_write(out, &report, sizeof report);
    return !(args.flags & ZF_STEP_WAIT) ? ZF_SUBMITTED : report.applied ? ZF_OK : ZF_SKIPPED;
}

static zf_status_t param_fetch(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                               const zf_stream_t *stream, zf_fence_t *out, zf_error_t *err) {
    zf_fence_t fence = {.kind = ZF_FENCE_NONE};
    zf_stream_t stream_copy;
    zf_status_t st = need(instance, err);
    if (!st)
        st = check_params(instance, items, n, &elem_size, err);
    if (!st)
        st = mock_check_stream(stream, &stream_copy, err);
    if (!st)
        st = mock_check_out(out, "zf_fence_t", err);
    if (!st && mock_queue_of(&stream_copy))
        fence.kind = ZF_FENCE_STREAM_ORDER;
    else if (!st)
        wait_idle(instance);
    if (!st && BREAKS(layer_differs) && n && items->n_batches)
        put(instance->params[items->id].visible, instance->params[items->id].is_bf16, 0, 0.5f);
    if (!st)
        mock_write(out, &fence, sizeof fence);
    return st;
}

static zf_status_t param_release(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                 const zf_stream_t *stream, zf_error_t *err) {
    zf_stream_t stream_copy;
    zf_status_t st = need(instance, err);
    if (!st)
        st = check_params(instance, items, n, &elem_size, err);
    return st ? st : mock_check_stream(stream, &stream_copy, err);
}

static zf_status_t quiesce(zf_instance_t *instance, const zf_quiesce_args_t *given, zf_error_t *err) {
    zf_quiesce_args_t args;
    zf_status_t st = BREAKS(null_taken) && !instance ? ZF_OK : need(instance, err);
    int32_t mode;
    if (!st)
        st = READ(args, given);
    mode = st ? 0 : args.mode;
    if (!st && (args.flags || args.items || args.n_items || args.elem_size) && !BREAKS(flags_ignored))
        st = mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "quiesce: flags are %#x, of %u parameters", args.flags,
                       args.n_items);
    if (!st && mode != ZF_QUIESCE_DRAIN && mode != ZF_QUIESCE_FLUSH && !BREAKS(flags_ignored))
        st = mock_fail(err, ZF_ERR_ARGUMENT, "quiesce: mode is %d, not 1 or 2", mode);
    if (!st && BREAKS(quiesce_refused) && mode == ZF_QUIESCE_DRAIN && instance)
        st = mock_fail(err, ZF_ERR_INTERNAL, "quiesce does not work");
    if (!st && instance)
        wait_idle(instance);
    return st;
}

static zf_status_t export_params(zf_instance_t *instance, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                                 zf_error_t *err) {
    zf_status_t st = need(instance, err);
    if (!st)
        st = mock_check_array(items, n, &elem_size, sizeof *items, "items", err);
    if (!st)
        wait_idle(instance);
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < n && !st; i++) {
            zf_export_item_t item;
            const mock_param_t *p;
            st = mock_read_item(&item, items, i, elem_size, sizeof item, "zf_export_item_t", err);
            if (st)
                break;
            if (item.id >= instance->n_params && BREAKS(ids_ignored))
                continue;
            if (item.id >= instance->n_params)
                return mock_fail(err, ZF_ERR_PARAM, "id %u of %u", item.id, instance->n_params);
            p = &instance->params[item.id];
            if (!item.dst || item.dst_nbytes != 4u * p->n_elems)
                return mock_blame(
                    err,
                    mock_fail(err, ZF_ERR_SHAPE, "\"%s\": dst is NULL or not of %u bytes", p->name, 4 * p->n_elems),
                    item.id);
            if (pass == 1)
                memcpy(item.dst, p->w, item.dst_nbytes);
        }
    return st;
}

static zf_status_t poll_report(zf_instance_t *instance, zf_step_report_t *out, zf_error_t *err) {
    zf_step_report_t report;
    zf_status_t st = BREAKS(state_ignored) && instance && !instance->is_bound ? ZF_OK : need(instance, err);
    if (!st)
        st = mock_check_out(out, "zf_step_report_t", err);
    if (st < 0 || !instance->is_bound)
        return st;
    st = take_report(instance, &report);
    report.submitted_step = instance->n_steps;
    mock_write(out, &report, sizeof report);
    return st;
}

/* ---- inspect, table, entry --------------------------------------------------------------------------------------- */

static zf_status_t inspect_read(zf_instance_t *instance, uint32_t id, zf_inspect_out_t *out, zf_error_t *err) {
    zf_status_t st = need(instance, err);
    const mock_param_t *p;
    if (!st)
        st = check_param(instance, &(zf_param_item_t){.id = id}, err);
    if (!st && !out)
        st = mock_fail(err, ZF_ERR_ARGUMENT, "out is NULL");
    if (!st)
        st = mock_check_out(out, "zf_inspect_out_t", err);
    if (!st && out->struct_size < sizeof *out)
        st = mock_fail(err, ZF_ERR_ABI, "zf_inspect_out_t: struct_size is %u", out->struct_size);
    if (st)
        return st;
    wait_idle(instance);
    p = &instance->params[id < instance->n_params ? id : 0];
    if (out->n_elems != p->n_elems)
        return mock_fail(err, ZF_ERR_SHAPE, "\"%s\" has %u elements", p->name, p->n_elems);
    for (uint32_t e = 0; e < p->n_elems; e++) {
        if (out->w)
            out->w[e] = p->w[e];
        if (out->m)
            out->m[e] = p->m[e];
        if (out->v)
            out->v[e] = 0;
        if (out->n)
            out->n[e] = p->n;
        if (out->selected)
            out->selected[e] = 0;
        if (out->importance)
            out->importance[e] = 0;
    }
    return ZF_OK;
}

static const zf_inspect_ext_t inspect_table = {.struct_size = sizeof inspect_table, .read = inspect_read};

static const void *get_extension(const char *id) {
    if (id && strcmp(id, ZF_EXT_CPU) == 0)
        return &mock_cpu_table;
    if (id && strcmp(id, ZF_EXT_STATS) == 0)
        return &mock_stats_table;
    return id && strcmp(id, ZF_EXT_INSPECT) == 0 ? &inspect_table : NULL;
}

#ifdef ZF_APPENDED /* headers of a later minor, as tests/abi/versions.py makes them */
static int32_t appended(void) { return ZF_APPENDED; }
#endif

static const zf_plugin_t table = {
    .struct_size = BREAKS_ALONE(table_short) ? sizeof(zf_plugin_t) - 8 : sizeof(zf_plugin_t),
    .abi = ZF_ABI_0_4,
    .describe = describe,
    .create = create,
    .destroy = destroy,
    .bind_params = bind_params,
    .params_changed = params_changed,
    .announce = announce,
    .grads_ready = grads_ready,
    .step = step,
    .param_fetch = param_fetch,
    .param_release = param_release,
    .quiesce = quiesce,
    .export_params = export_params,
    .poll = BREAKS_ALONE(slot_missing) ? NULL : poll_report,
    .get_extension = get_extension,
#ifdef ZF_APPENDED
    .appended = appended,
#endif
};

/* The ABI for a host that serves this one: the smaller minor of one major, in major 0 the same; 0 = none. */
static uint32_t common(uint32_t theirs) {
    uint32_t mine = ZF_ABI_0_4;
    if (BREAKS(any_abi) || theirs == mine)
        return mine;
    if (ZF_ABI_MAJOR(theirs) != ZF_ABI_MAJOR(mine) || ZF_ABI_MAJOR(mine) == 0)
        return 0;
    return theirs < mine ? theirs : mine;
}

/* The table says which ABI was chosen. */
static const zf_plugin_t *table_of(uint32_t chosen) {
    static zf_plugin_t older;
    if (chosen == table.abi)
        return &table;
    older = table;
    older.abi = chosen;
    return &older;
}

__attribute__((visibility("default"))) int32_t zf_plugin_negotiate(zf_bootstrap_t *boot) {
    if (!boot)
        return ZF_ERR_ARGUMENT;
    if (boot->struct_size != sizeof *boot || boot->magic != ZF_BOOTSTRAP_MAGIC || !boot->abis || boot->n_abis < 1 ||
        boot->n_abis > 64 || boot->reserved0 || boot->reserved1 || boot->reserved2)
        return mock_fail(boot->error, ZF_ERR_ARGUMENT, "bootstrap: size %u, magic %#x, %u ABIs, or reserved members",
                         boot->struct_size, boot->magic, boot->n_abis);
    mock_misbehave_in_negotiate();
    for (uint32_t i = 0; i < boot->n_abis; i++)
        if (common(boot->abis[i])) {
            boot->chosen_abi = common(boot->abis[i]);
            boot->plugin = table_of(boot->chosen_abi);
            return ZF_OK;
        }
    return mock_fail(boot->error, ZF_ERR_ABI, "the host serves %u.%u (%u ABIs), this plugin %u.%u",
                     ZF_ABI_MAJOR(boot->abis[0]), ZF_ABI_MINOR(boot->abis[0]), boot->n_abis, ZF_ABI_MAJOR(table.abi),
                     ZF_ABI_MINOR(table.abi));
}

#if defined(MOCK_EXPORTS)
__attribute__((visibility("default"))) int mock_second_symbol(void);
int mock_second_symbol(void) { return 1; }
#endif
#if defined(MOCK_TEXTREL)
__asm__(".text\n.quad zf_plugin_negotiate\n");
#endif
