/* SPDX-License-Identifier: Apache-2.0 */
/* glue_probe.h - what a plugin makes of a configuration, asked before hours of training are spent on it. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_PROBE_H
#define ZF_CONFORMANCE_CASES_GLUE_PROBE_H

#include "glue/error.h"

#include <stddef.h>

typedef struct zg_probe {
    char version[64];
    char values[4096]; /* "section.key=value" lines of zf.config/1; empty where the plugin has no such table */
} zg_probe_t;

/* Opens the plugin and creates an instance in a process of its own. Fails with the plugin's or the loader's message. */
int zg_probe(const char *plugin_path, const char *config_path, const char *const *sets, size_t n_sets, zg_probe_t *out,
             glue_error_t *err);

/* The effective value of "section.key" as a number ("true" = 1); fallback where it is not known. */
double zg_probe_number(const zg_probe_t *probe, const char *key, double fallback);

#endif
