/* SPDX-License-Identifier: Apache-2.0 */
/* tests/host/folder.h - a folder of the test's own, removed with all that is in it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

void zt_folder_make(void);
void zt_folder_remove(void);

/* Of a file there; good until the next but one call. */
const char *zt_path(const char *name);
void zt_write(const char *name, const void *bytes, size_t nbytes);
/* A safetensors file that says its header has so many bytes. */
void zt_write_tensors(const char *name, const char *header, uint64_t claimed, const void *data, size_t nbytes);
