/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/audit.h - when the training state is audited ([audit] file; what is written: state/audit.h). */
#ifndef ZFI_HOOKS_AUDIT_H
#define ZFI_HOOKS_AUDIT_H

#include "instance/instance.h"

/* [control] Opens the file, once. ZF_ERR_STORAGE where another instance writes it. What else keeps it from being
 * written is a warning here and later, the first time: training goes on. */
zf_status_t zfi_auditing_begin(zfi_engine_t *engine, const zfi_config_t *config, zf_error_t *err);
/* [control] Parameters were bound. */
void zfi_auditing_bound(zf_instance_t *inst);
/* [hook] Step t was submitted and nothing of the next one has begun: if it is one to be audited, the instance comes to
 * rest and its record is written. The status is that of the drain. */
zf_status_t zfi_auditing_step(zf_instance_t *inst, uint64_t t, zf_error_t *err);
/* [control] No record any more; the file may be another instance's. */
void zfi_auditing_end(zfi_engine_t *engine);

#endif
