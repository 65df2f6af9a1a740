/* SPDX-License-Identifier: Apache-2.0 */
/* tests/host/tensors.h - a safetensors file in the test's folder that says its header has so many bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

void zt_write_tensors(const char *name, const char *header, uint64_t claimed, const void *data, size_t nbytes);
