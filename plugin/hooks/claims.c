/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/claims.c - the claimed memory of all instances (contract in claims.h).
 *
 * Model: a list of claims; each holds the extents of one instance, sorted by address, so two of them are compared in
 * one pass. Names are copied: parameters may be gone when another thread needs them for its message.
 *
 * After fork() the child has no instances: the list begins empty there. */
#include "hooks/claims.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork_lock.h"

typedef struct extent {
    const unsigned char *begin, *end;
    const char *name; /* in names */
    uint32_t id;
} extent_t;

struct zfi_claims {
    zfi_claims_t *next;
    const void *owner;
    const unsigned char *alive;
    uint32_t n;
    extent_t *extents; /* [n] by address */
    char *names;
};

static struct registry {
    zfi_fork_lock_t lock; /* guards the rest */
    int pid;              /* of the process that the list belongs to */
    zfi_claims_t *first;
} registry;

static void lock(void) {
    int pid = zfi_fork_lock_take(&registry.lock);
    if (registry.pid != pid)
        registry.first = NULL;
    registry.pid = pid;
}

static void unlock(void) { zfi_fork_lock_give(&registry.lock); }

static int by_address(const void *a, const void *b) {
    const extent_t *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void free_claims(zfi_claims_t *claims) {
    free(claims->extents);
    free(claims->names);
    free(claims);
}

/* NULL: no memory. */
static zfi_claims_t *make_claims(const zfi_param_t *params, uint32_t n) {
    zfi_claims_t *claims = calloc(1, sizeof *claims);
    size_t names_nbytes = 1, at = 0;
    for (uint32_t i = 0; i < n; i++)
        names_nbytes += strlen(params[i].name) + 1;
    if (!claims)
        return NULL;
    claims->extents = malloc((n + 1) * sizeof *claims->extents);
    claims->names = malloc(names_nbytes);
    if (!claims->extents || !claims->names) {
        free_claims(claims);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t elem = zfi_dtype_nbytes(params[i].dtype), length = strlen(params[i].name) + 1;
        if (!params[i].has_state || params[i].is_sharded) /* read once, by bind_params */
            continue;
        memcpy(claims->names + at, params[i].name, length);
        claims->extents[claims->n++] = (extent_t){
            params[i].visible, params[i].visible + (params[i].is_contiguous ? params[i].n_elems * elem : elem),
            claims->names + at, params[i].id};
        at += length;
    }
    qsort(claims->extents, claims->n, sizeof *claims->extents, by_address);
    return claims;
}

/* The first extent of a that b has too; *out_other is b's. */
static const extent_t *find_overlap(const zfi_claims_t *a, const zfi_claims_t *b, const extent_t **out_other) {
    uint32_t i = 0, k = 0;
    while (i < a->n && k < b->n) {
        *out_other = &b->extents[k];
        if (a->extents[i].end <= b->extents[k].begin)
            i++;
        else if (b->extents[k].end <= a->extents[i].begin)
            k++;
        else
            return &a->extents[i];
    }
    return NULL;
}

static zf_status_t check(const zfi_claims_t *claims, zf_error_t *err) {
    for (const zfi_claims_t *other = registry.first; other; other = other->next) {
        const extent_t *theirs = NULL, *ours;
        if (other->owner == claims->owner || !*other->alive)
            continue;
        ours = find_overlap(claims, other, &theirs);
        if (ours)
            return zfi_error_of(err, ZF_ERR_PARAM, ours->id, "bind_params",
                                "parameter \"%.100s\" lies at %p, which another live instance trains as \"%.100s\": "
                                "destroy that instance first, or declare the parameter ZF_PARAM_FROZEN here",
                                ours->name, (const void *)ours->begin, theirs->name);
    }
    return ZF_OK;
}

zf_status_t zfi_claims_take(const void *owner, const unsigned char *alive, const zfi_param_t *params, uint32_t n,
                            zfi_claims_t **out, zf_error_t *err) {
    zfi_claims_t *claims = make_claims(params, n);
    if (!claims)
        return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to compare %u parameters with other instances'",
                         n);
    claims->owner = owner;
    claims->alive = alive;
    lock();
    zf_status_t st = check(claims, err);
    if (!st) {
        claims->next = registry.first;
        registry.first = claims;
    }
    unlock();
    if (st)
        free_claims(claims);
    else
        *out = claims;
    return st;
}

void zfi_claims_drop(zfi_claims_t *claims) {
    if (!claims)
        return;
    lock();
    for (zfi_claims_t **at = &registry.first; *at; at = &(*at)->next)
        if (*at == claims) {
            *at = claims->next;
            break;
        }
    unlock();
    free_claims(claims);
}
