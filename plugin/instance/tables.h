/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/tables.h - the tables that kernels read (kernels/launch.h), made of the plan and sent to the device.
 */
#ifndef ZFI_TABLES_H
#define ZFI_TABLES_H

#include "instance/run.h"

/* [control] All of them, after memory is bound; returns when they are there. */
zf_status_t zfi_tables_upload(const zfi_device_side_t *side);

/* [control] The table of matrices again: the visible memory has moved. */
zf_status_t zfi_tables_place(const zfi_device_side_t *side, zf_error_t *err);

#endif
