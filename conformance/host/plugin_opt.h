/* SPDX-License-Identifier: Apache-2.0 */
/* plugin_opt.h - a libzfplugin behind the training loop's optimizer interface.
 *
 * The example for the author of a C trainer: everything that a host does with the plugin is in plugin_opt.c, and it
 * knows no header but abi/include/zf and bindings/c/zf_loader.h. */
#pragma once

#include "optimizer.h"

typedef struct host_plugin_options {
    const char *plugin_path;      /* NULL: as zf_loader_open finds it */
    const char *config_path;      /* INI file; NULL: the plugin's defaults */
    const char *const *overrides; /* "section.key=value" */
    size_t n_overrides;
    const host_compute_t *compute; /* where the parameters lie; NULL: on the processor. */
    int is_verbose;                /* the plugin's messages on stderr, not only warnings */
} host_plugin_options_t;

/* Opens the plugin, creates an instance and binds every parameter. Release with (*out)->ops->destroy. */
int host_plugin_create(host_params_t *params, const host_plugin_options_t *options, host_optimizer_t **out,
                       glue_error_t *err);

/* Name and version of the plugin behind an optimizer made by host_plugin_create; lives as long as the process. */
const char *host_plugin_version(const host_optimizer_t *optimizer);
