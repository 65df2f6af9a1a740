/* SPDX-License-Identifier: Apache-2.0 */
/* abi_extent.h - what long and large runs are given: gradients, and rates that move. */
#pragma once

#include <stddef.h>

#include "oracle/oracle.h"
#include "zf/plugin.h"

/* In [-0.5, 0.5). */
void abi_extent_fill(float *out, size_t n, uint32_t seed);
/* Each of them changes in the course of a run, also late in a long one. */
zo_hyper_t abi_extent_hyper(zf_group_hyper_t *h, uint32_t step);
