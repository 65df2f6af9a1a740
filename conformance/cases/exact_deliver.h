/* SPDX-License-Identifier: Apache-2.0 */
/* exact_deliver.h - work in stream order, and the memory of gradients. */
#pragma once

#include "exact_host.h"

/* Runs fn(arg) on the queue after everything launched before, or at once on a host's thread. */
void zx_launch(zx_host_t *h, void (*fn)(void *arg), void *arg);
void zx_buffers_free(zx_host_t *h);
