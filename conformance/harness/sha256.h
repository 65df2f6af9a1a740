/* SPDX-License-Identifier: Apache-2.0 */
/* harness/sha256.h - which file it was (FIPS 180-4). */
#pragma once

/* 64 hexadecimal digits and NUL, of a file's contents. 0, or -1: it cannot be read. */
int zc_sha256_file(const char *path, char out[65]);
