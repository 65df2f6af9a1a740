/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/tables.h - the tables that kernels read (kernels/launch.h), made of the plan, sent to the device. */
#pragma once

#include "instance/run.h"

/* [control] All of them, after memory is bound; returns when they are there. */
zf_status_t zfi_tables_upload(const zfi_device_side_t *side);

/* Column maps of parameters that are not contiguous, in device memory of their own; is_kept: without those that are
 * about to become shards, which lie in one piece. */
uint64_t zfi_tables_columns_nbytes(const zfi_param_t *params, uint32_t n_params, int is_kept);

/* [control] The table of matrices again: the visible memory has moved. */
zf_status_t zfi_tables_place(const zfi_device_side_t *side, zf_error_t *err);

/* A slice as a matrix: what this rank has sums of. */
zfi_data_matrix_t zfi_tables_own_row(const zfi_param_t *param, const zfi_matrix_t *matrix);
