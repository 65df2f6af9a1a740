/* plugin/interval.h - update_interval = auto: whether windows may close, from importance records (SCHEDULE.md). */
#ifndef ZFI_INTERVAL_H
#define ZFI_INTERVAL_H

#include "instance.h"

/* [own threads: control] Takes the record of the row's step t, before the choice of t, decides which windows may close
 * at t + 2, and signals decided. The record must be in host memory. */
void zfi_interval_take(zf_instance_t *inst, const zfi_step_row_t *row);

/* [hook] Fills the row's closes; waits for a decision where one is needed. */
zf_status_t zfi_interval_decide(zf_instance_t *inst, zfi_step_row_t *row);

/* [control] FLUSH: all windows open anew. */
void zfi_interval_restart(zf_instance_t *inst);

#endif
