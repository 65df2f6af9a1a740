/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - the JSON report of one run. */
#pragma once

#include "options.h"

/* Writes the report to command->out_path, or to standard output. */
int host_report_write(const host_command_t *command, const host_examples_t *examples, const host_run_result_t *result,
                      glue_error_t *err);
