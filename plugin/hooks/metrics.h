/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/metrics.h - the counters of an instance as a text file for Prometheus: [stats] prometheus. */
#ifndef ZFI_HOOKS_METRICS_H
#define ZFI_HOOKS_METRICS_H

#include "instance/instance.h"
#include "zf/ext/stats.h"

/* [control] Writes the first file, so that a path that cannot be written is found out at create(). */
zf_status_t zfi_metrics_begin(zf_instance_t *inst, zf_error_t *err);
/* [hook] A step was taken: it is counted and its time taken; where it is time the control thread writes the file. */
void zfi_metrics_step(zf_instance_t *inst);
/* [control] Once no thread of the instance is left, while its counters are. */
void zfi_metrics_end(zf_instance_t *inst);

/* [any-thread] What zf.stats/1 reads (ext.c). */
void zfi_stats_fill(zf_instance_t *inst, zf_stats_t *out);

#endif
