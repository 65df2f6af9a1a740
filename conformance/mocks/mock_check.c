/* SPDX-License-Identifier: Apache-2.0 */
/* mock_check.c - what the mock refuses. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mock.h"
#include "mock_queue.h"

zf_status_t mock_fail(zf_error_t *err, zf_status_t status, const char *format, ...) {
    va_list args;
    if (!err || (err->struct_size == 0 ? BREAKS(size_forgotten) : err->struct_size < sizeof *err))
        return status;
    err->status = BREAKS(wrong_status) ? -99 : status;
    err->scope = ZF_SCOPE_CALL;
    err->retryable = 0;
    err->param = err->rank = ZF_NO_ID;
    err->native_code = 0;
    memset(err->origin, 0, sizeof err->origin);
    memset(err->message, 0, sizeof err->message);
    strcpy(err->origin, "mock");
    va_start(args, format);
    if (!BREAKS(silent))
        vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return status;
}

zf_status_t mock_blame(zf_error_t *err, zf_status_t st, uint32_t param) {
    if (st < 0 && err && !BREAKS(blames_nobody))
        err->param = param;
    return st;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

zf_status_t mock_read(void *out, const void *given, uint32_t size, const char *name, zf_error_t *err) {
    uint32_t has, oldest = size - MOCK_APPENDED_NBYTES;
    if (!given)
        return mock_fail(err, ZF_ERR_ARGUMENT, "%s is NULL", name);
    memcpy(&has, given, sizeof has);
    if (has < (BREAKS(short_taken) ? oldest - 8 : oldest) || (has > 65536 && !BREAKS(absurd_read)))
        return mock_fail(err, ZF_ERR_ABI, "%s: struct_size is %u, need %u", name, has, oldest);
    for (uint32_t i = size; i < has && !BREAKS(tail_taken); i++)
        if (((const unsigned char *)given)[i])
            return mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "%s: byte %u is unknown", name, i);
    if (BREAKS(long_refused) && has > size)
        return mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "%s: struct_size is %u, need %u", name, has, size);
    memset(out, 0, size);
    memcpy(out, given, has < size ? has : size);
    return ZF_OK;
}

zf_status_t mock_read_item(void *out, const void *items, uint32_t i, uint32_t elem_size, uint32_t size,
                           const char *name, zf_error_t *err) {
    uint32_t has;
    memcpy(&has, (const char *)items + (size_t)i * elem_size, sizeof has);
    if (has > elem_size)
        return mock_fail(err, ZF_ERR_ABI, "%s %u: struct_size %u is above elem_size %u", name, i, has, elem_size);
    return mock_read(out, (const char *)items + (size_t)i * elem_size, size, name, err);
}

zf_status_t mock_check_array(const void *items, uint32_t n, uint32_t *elem_size, uint32_t size, const char *name,
                             zf_error_t *err) {
    if (n == 0)
        return mock_fail(err, ZF_ERR_ARGUMENT, "%s: n is 0", name);
    if (!items)
        return mock_fail(err, ZF_ERR_ARGUMENT, "%s is NULL, n is %u", name, n);
    if (BREAKS(elem_taken) && *elem_size == 0)
        *elem_size = size;
    if (*elem_size < size - MOCK_APPENDED_NBYTES || *elem_size % 8 || *elem_size > 4096)
        return mock_fail(err, ZF_ERR_ABI, "%s: elem_size is %u, need %u", name, *elem_size, size);
    return ZF_OK;
}

zf_status_t mock_check_out(const void *out, const char *name, zf_error_t *err) {
    uint32_t has;
    if (!out)
        return ZF_OK;
    memcpy(&has, out, sizeof has);
    return has < 8 || has > 65536 ? mock_fail(err, ZF_ERR_ABI, "%s: struct_size is %u", name, has) : ZF_OK;
}

void mock_write(void *out, const void *from, uint32_t size) {
    uint32_t has;
    if (!out)
        return;
    memcpy(&has, out, sizeof has);
    if (has > size || BREAKS(output_overrun))
        has = size;
    memcpy((char *)out + 4, (const char *)from + 4, has - 4);
}

zf_status_t mock_check_reserved(uint32_t reserved0, const char *name, zf_error_t *err) {
    return reserved0 && !BREAKS(reserved_taken)
               ? mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "%s: reserved0 is %u", name, reserved0)
               : ZF_OK;
}

zf_status_t mock_check_chain(const void *next, const char *name, zf_error_t *err) {
    const zf_chained_t *at = next;
    for (int i = 0; at && !BREAKS(chain_ignored); i++, at = at->next) {
        if (i == 64 || at->struct_size < sizeof *at || !at->id)
            return mock_fail(err, ZF_ERR_ARGUMENT, "%s: next: struct %d, size %u", name, i, at->struct_size);
        if (at->flags)
            return mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "%s: next: \"%s\" has flags %#x", name, at->id, at->flags);
    }
    return next && BREAKS(chain_refused) ? mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "%s: next is given", name) : ZF_OK;
}

static zf_status_t check_callback(const zf_rule_callback_t *given, zf_error_t *err) {
    zf_rule_callback_t callback;
    zf_status_t st = mock_read(&callback, given, sizeof callback, "zf_rule_callback_t", err);
    if (!st && callback.update_matrices)
        st = mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "callback: update_matrices is not in this version");
    if (!st && (!callback.update || !callback.name || callback.n_moments > 2))
        st =
            mock_fail(err, ZF_ERR_ARGUMENT, "callback: update or name is NULL, or n_moments is %u", callback.n_moments);
    return st;
}

zf_status_t mock_check_group(const zf_bind_args_t *args, uint32_t i, zf_error_t *err) {
    zf_group_decl_t decl;
    zf_status_t st = mock_read_item(&decl, args->groups, i, args->group_size, sizeof decl, "zf_group_decl_t", err);
    if (!st && decl.rule > ZF_RULE_CALLBACK && !BREAKS(rule_ignored))
        st = mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "group %u: rule = %u", i, decl.rule);
    if (!st && (decl.rule == ZF_RULE_CALLBACK) != (decl.callback != NULL))
        st = mock_fail(err, ZF_ERR_ARGUMENT, "group %u: rule = %u, callback is %s", i, decl.rule,
                       decl.callback ? "given" : "NULL");
    return !st && decl.callback ? check_callback(decl.callback, err) : st;
}

/* ---- configuration ----------------------------------------------------------------------------------------------- */

static int is_known(const char *key) {
    static const char *const keys[] = {"topk_ratio",      "on_overwrite",        "select_interval",
                                       "update_interval", "full_warm_up_rounds", "threads"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i], key) == 0)
            return 1;
    return BREAKS(config_ignored);
}

static int is_value(const char *key, const char *value) {
    char *end;
    double x = strtod(value, &end);
    if (strcmp(key, "on_overwrite") == 0)
        return strcmp(value, "ask") == 0;
    return *value && !*end && x > 0 && (strcmp(key, "topk_ratio") != 0 || x <= 1);
}

/* One problem, added to the list. */
static void add(char *list, size_t nbytes, const char *where, int line, const char *what, const char *key) {
    size_t n = strlen(list);
    snprintf(list + n, nbytes - n, "%s%s:%d: %s: %s; known: topk_ratio in [zenflow]", n ? "; " : "", where, line, key,
             what);
}

static zf_status_t check_text(const char *text, size_t nbytes, const char *where, zf_error_t *err) {
    char list[420] = "", line[201], key[100], value[100], seen[512] = " ";
    int number = 0;
    for (size_t at = 0; at < nbytes;) {
        size_t n = 0;
        number++;
        while (at + n < nbytes && text[at + n] != '\n')
            n++;
        if (memchr(text + at, 0, n))
            return mock_fail(err, ZF_ERR_CONFIG, "%s:%d: a NUL: not a text", where, number);
        if (n > 200)
            add(list, sizeof list, where, number, "line too long", "(line)");
        snprintf(line, sizeof line, "%.*s", n > 200 ? 0 : (int)n, text + at);
        at += n + 1;
        if (line[0] == '[') {
            if (strcmp(line, "[zenflow]") != 0 && strcmp(line, "[host]") != 0)
                add(list, sizeof list, where, number, "unknown section, nearest [zenflow]", line);
        } else if (sscanf(line, "%99[a-z_] = %99s", key, value) == 2) {
            char word[110];
            snprintf(word, sizeof word, " %s ", key);
            if (!is_known(key))
                add(list, sizeof list, where, number, "unknown key", key);
            else if (strstr(seen, word))
                add(list, sizeof list, where, number, "given twice", key);
            else if (!is_value(key, value))
                add(list, sizeof list, where, number, "wrong value", key);
            strncat(seen, word + 1, sizeof seen - strlen(seen) - 1);
        } else if (line[0])
            add(list, sizeof list, where, number, "no key = value", "(line)");
    }
    return *list ? mock_fail(err, ZF_ERR_CONFIG, "%s", list) : ZF_OK;
}

zf_status_t mock_check_config(const zf_create_args_t *args, zf_error_t *err) {
    char buf[8192], key[100];
    ssize_t n;
    int fd;
    if (args->config_path && args->config_text)
        return mock_fail(err, ZF_ERR_CONFIG, "both a text and a path %s", args->config_path);
    if (!args->config_text && args->config_text_nbytes)
        return mock_fail(err, ZF_ERR_ARGUMENT, "config_text is NULL");
    if (args->n_overrides && !args->overrides)
        return mock_fail(err, ZF_ERR_ARGUMENT, "overrides is NULL");
    for (uint32_t i = 0; i < args->n_overrides; i++)
        if (sscanf(args->overrides[i], "zenflow.%99[a-z_]=", key) != 1 || !strchr(args->overrides[i], '=') ||
            !is_value(key, strchr(args->overrides[i], '=') + 1))
            return mock_fail(err, ZF_ERR_CONFIG, "override %u: %s: topk_ratio out of range?", i, args->overrides[i]);
    if (args->config_text)
        return check_text(args->config_text,
                          args->config_text_nbytes || BREAKS(text_ignored) ? (size_t)args->config_text_nbytes
                                                                           : strlen(args->config_text),
                          "text", err);
    if (!args->config_path)
        return ZF_OK;
    fd = open(args->config_path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, buf, sizeof buf);
    if (fd >= 0)
        close(fd);
    return n < 0 ? mock_fail(err, ZF_ERR_CONFIG, "%s: cannot be read", args->config_path)
                 : check_text(buf, (size_t)n, args->config_path, err);
}

/* ---- tensors, streams, numbers ----------------------------------------------------------------------------------- */

zf_status_t mock_check_stream(const zf_stream_t *given, zf_stream_t *out, zf_error_t *err) {
    zf_status_t st = mock_read(out, given, sizeof *out, "zf_stream_t", err);
    if (!st)
        st = mock_check_reserved(out->reserved0, "zf_stream_t", err);
    if (st || BREAKS(flags_ignored))
        return st;
    if (out->flags & ~7u)
        return mock_fail(err, ZF_ERR_UNSUPPORTED_FIELD, "stream: flags are %#x", out->flags);
    return out->kind == ZF_STREAM_HOST_THREAD ||
                   (out->kind == ZF_STREAM_CPU_QUEUE && (mock_queue_lives(out->handle) || BREAKS(handle_taken)))
               ? ZF_OK
               : mock_fail(err, ZF_ERR_DEVICE, "stream of kind %d, or a handle that is no queue", out->kind);
}

static zf_status_t check_extent(const zf_tensor_t *t, const char *name, zf_error_t *err) {
    int64_t n = 1;
    for (int i = 0; i < t->dl.ndim; i++) {
        if (t->dl.shape[i] < 0 || t->dl.shape[i] > 1000 || (t->dl.strides && t->dl.strides[i] < 0))
            return mock_fail(err, ZF_ERR_SHAPE, "\"%s\": shape or strides", name);
        n *= t->dl.shape[i];
    }
    if (t->dl.byte_offset > 4096)
        return mock_fail(err, ZF_ERR_SHAPE, "\"%s\": byte_offset is %llu", name, (unsigned long long)t->dl.byte_offset);
    if (t->dl.ndim == 2 && t->dl.strides && n > 0 && t->dl.strides[0] < t->dl.shape[1] && !BREAKS(strides_ignored))
        return mock_fail(err, ZF_ERR_SHAPE, "\"%s\": strides under which elements overlap", name);
    if (n > MOCK_MAX_ELEMS || t->nbytes < (uint64_t)n * t->dl.dtype.bits / 8)
        return mock_fail(err, ZF_ERR_SHAPE, "\"%s\": %lld elements in %llu bytes", name, (long long)n,
                         (unsigned long long)t->nbytes);
    return t->dl.data ? ZF_OK : mock_fail(err, ZF_ERR_ARGUMENT, "\"%s\": data is NULL", name);
}

zf_status_t mock_check_tensor(const zf_tensor_t *given, const char *name, zf_tensor_t *t, zf_error_t *err) {
    zf_status_t st;
    if (BREAKS(null_crash) && !given)
        return mock_fail(err, ZF_ERR_ARGUMENT, "\"%s\": %d axes", name, ((const volatile zf_tensor_t *)given)->dl.ndim);
    if (!given)
        return mock_fail(err, ZF_ERR_ARGUMENT, "\"%s\": tensor is NULL", name);
    st = mock_read(t, given, sizeof *t, "zf_tensor_t", err);
    if (st)
        return st;
    if (t->flags && !(BREAKS(flags_ignored) && t->flags != ZF_TENSOR_SPARSE))
        return mock_fail(err, ZF_ERR_SHAPE, "\"%s\": flags %#x (1 = sparse)", name, t->flags);
    if (t->dl.device_type != ZF_DEVICE_CPU)
        return mock_fail(err, ZF_ERR_DEVICE, "\"%s\": device type %d", name, t->dl.device_type);
    if (t->dl.dtype.lanes != 1 || !((t->dl.dtype.code == ZF_DTYPE_CODE_FLOAT && t->dl.dtype.bits == 32) ||
                                    (t->dl.dtype.code == ZF_DTYPE_CODE_BFLOAT && t->dl.dtype.bits == 16)))
        return mock_fail(err, ZF_ERR_DTYPE, "\"%s\": type %d of %d bits", name, t->dl.dtype.code, t->dl.dtype.bits);
    if (t->dl.ndim < 0 || t->dl.ndim > ZF_MAX_NDIM || (t->dl.ndim && !t->dl.shape))
        return mock_fail(err, ZF_ERR_SHAPE, "\"%s\": %d axes or no shape", name, t->dl.ndim);
    return check_extent(t, name, err);
}

zf_status_t mock_check_hyper(const zf_step_args_t *args, zf_group_hyper_t *out, zf_error_t *err) {
    uint32_t elem_size = args->elem_size;
    zf_status_t st = mock_check_array(args->groups, args->n_groups, &elem_size, sizeof *out, "groups", err);
    double beta1_end = BREAKS(numbers_ignored) ? 2.0 : 1.0;
    for (uint32_t i = 0; i < args->n_groups && !st; i++) {
        st = mock_read_item(out, args->groups, i, elem_size, sizeof *out, "zf_group_hyper_t", err);
        if (!st)
            st = mock_check_reserved(out->reserved0, "zf_group_hyper_t", err);
        if (st)
            break;
        if (!(out->lr >= 0 && out->lr <= 1e30))
            st = mock_fail(err, ZF_ERR_ARGUMENT, "group %u: lr is %g", i, out->lr);
        else if (!(out->beta1 >= 0 && out->beta1 < beta1_end))
            st = mock_fail(err, ZF_ERR_ARGUMENT, "group %u: beta1 is %g", i, out->beta1);
        else if (!(out->beta2 >= 0 && out->beta2 < 1))
            st = mock_fail(err, ZF_ERR_ARGUMENT, "group %u: beta2 is %g", i, out->beta2);
        else if (!(out->eps > 0 && out->eps <= 1e30))
            st = mock_fail(err, ZF_ERR_ARGUMENT, "group %u: eps is %g", i, out->eps);
        else if (!(out->weight_decay >= 0 && out->weight_decay <= 1e30))
            st = mock_fail(err, ZF_ERR_ARGUMENT, "group %u: weight_decay is %g", i, out->weight_decay);
    }
    if (!st && !(args->unscale >= 0 && isfinite(args->unscale)))
        st = mock_fail(err, ZF_ERR_ARGUMENT, "unscale is %g", args->unscale);
    if (!st && !(args->clip_norm >= 0 && isfinite(args->clip_norm)))
        st = mock_fail(err, ZF_ERR_ARGUMENT, "clip_norm is %g", args->clip_norm);
    return st;
}
