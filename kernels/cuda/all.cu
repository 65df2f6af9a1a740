/* SPDX-License-Identifier: Apache-2.0 */
/* all.cu - every kernel, compiled once into one module. */
#include "collect.cu"
#include "digest.cu"
#include "enter.cu"
#include "ranks.cu"
#include "selected.cu"
#include "statistics.cu"
#include "step.cu"
#include "update.cu"
#include "visible.cu"
