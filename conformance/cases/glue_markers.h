/* SPDX-License-Identifier: Apache-2.0 */
/* glue_markers.h - text that a command writes into a document, between two comment lines that name it:
 * "<!-- NAME:begin -->" and "<!-- NAME:end -->". What stands outside is not touched. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_MARKERS_H
#define ZF_CONFORMANCE_CASES_GLUE_MARKERS_H

#include "glue/error.h"

/* Replaces what lies between the markers of the file at path. Fails, and changes nothing, where one is missing. */
int zg_markers_replace(const char *path, const char *name, const char *text, glue_error_t *err);

#endif
