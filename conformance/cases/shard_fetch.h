/* SPDX-License-Identifier: Apache-2.0 */
/* shard_fetch.h - what a host does differently at stage 3, where parameters live as shards.
 *
 * Model. Once it is bound, the memory that it bound is spoilt. To look at parameters it fetches them, copies what
 * zf.shards/0 shows into that memory, and releases them: one by one in the order of a forward or a backward pass, or in
 * any order, up to three of them held at a time, or the first one all the while, or all together. The order is drawn,
 * the same on every rank. */
#pragma once

#include "exact_calls.h"

/* The instance has bound the parameters. */
void zs_fetch_bound(zx_host_t *h);
/* The parameters that are looked at are in the host's memory, in stream order. */
void zs_fetch_look(zx_host_t *h, const uint8_t *is_looked_at);
/* Where a rank does something wrong, an error of the instance's comes before what it has left unwritten. */
void zs_look_for_errors(zx_host_t *h);
/* Fetches and releases n items (0: all). */
void zs_fetch_some(zx_host_t *h, const zf_param_item_t *items, uint32_t n);
/* Writes a parameter and says so. */
void zs_fetch_overwrite(zx_host_t *h, uint32_t param, const void *values, int is_reset);
