/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/digest.h - 64-bit digests of tensors (what they promise: zf/ext/draft/digest.h). */
#pragma once

#include <stdint.h>

#include "base/tensor.h"

/* [any-thread] Of the elements' bytes in row-major order. No allocation. */
uint64_t zfi_digest(const zfi_view_t *view);
