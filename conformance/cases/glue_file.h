/* SPDX-License-Identifier: Apache-2.0 */
/* glue_file.h - small text files, whole. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_FILE_H
#define ZF_CONFORMANCE_CASES_GLUE_FILE_H

/* The whole file, zero-terminated; NULL where it cannot be read (errno says why). Release with free. */
char *zg_read_whole(const char *path);

#endif
