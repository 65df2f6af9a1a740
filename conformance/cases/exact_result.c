/* SPDX-License-Identifier: Apache-2.0 */
/* exact_result.c - the first difference of a case. */
#include "exact_result.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void zx_result_init(zx_result_t *r) {
    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
}

void zx_result_free(zx_result_t *r) { pthread_mutex_destroy(&r->lock); }

int zx_is_bad(zx_result_t *r) {
    pthread_mutex_lock(&r->lock);
    int is_bad = r->is_bad;
    pthread_mutex_unlock(&r->lock);
    return is_bad;
}

void zx_count(zx_result_t *r, int law, uint64_t n_values) {
    pthread_mutex_lock(&r->lock);
    if (!r->is_muted)
        r->n_values[law] += n_values;
    pthread_mutex_unlock(&r->lock);
}

void zx_count_drawn(zx_result_t *r, int what, uint64_t n) {
    pthread_mutex_lock(&r->lock);
    if (!r->is_muted)
        r->n_drawn[what] += n;
    pthread_mutex_unlock(&r->lock);
}

static void describe(const zx_where_t *where, char *out, size_t nbytes) {
    int used = snprintf(out, nbytes, "law %d: step %llu, parameter %s, %s", where->law, (unsigned long long)where->step,
                        where->param ? where->param : "-", where->what);
    if (where->element != UINT64_MAX && used > 0 && (size_t)used < nbytes)
        snprintf(out + used, nbytes - (size_t)used, "[%llu]", (unsigned long long)where->element);
}

static void keep(zx_result_t *r, const zx_where_t *where, const char *detail) {
    char place[512];
    describe(where, place, sizeof place);
    pthread_mutex_lock(&r->lock);
    if (!r->is_bad && !r->is_muted) {
        r->is_bad = 1;
        r->law = where->law;
        snprintf(r->text, sizeof r->text, "%s: %s", place, detail);
    }
    pthread_mutex_unlock(&r->lock);
}

void zx_differs(zx_result_t *r, const zx_where_t *where, uint64_t expected, uint64_t found, unsigned n_digits) {
    char detail[96];
    snprintf(detail, sizeof detail, "expected 0x%0*llx, found 0x%0*llx", (int)n_digits, (unsigned long long)expected,
             (int)n_digits, (unsigned long long)found);
    keep(r, where, detail);
}

void zx_fails(zx_result_t *r, const zx_where_t *where, const char *format, ...) {
    char detail[700];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    keep(r, where, detail);
}
