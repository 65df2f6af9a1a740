/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/hooks.h - the functions behind the plugin table; their contracts stand in zf/plugin.h. */
#pragma once

#include "instance/engine.h"
#include "zf/ext/draft/inspect.h"
#include "zf/ext/draft/plan.h"
#include "zf/ext/draft/shards.h"
#include "zf/ext/residency.h"
#include "zf/ext/state.h"
#include "zf/ext/stats.h"
#include "zf/plugin.h"

/* lifecycle.c */
zf_status_t zfi_create(const zf_create_args_t *args, zf_instance_t **out, zf_error_t *err);
void zfi_destroy(zf_instance_t *inst, const zf_destroy_args_t *args);
/* Reads and checks the arguments of create into an engine, whose ranks (comm_ops, comm) are known: device table,
 * configuration. Nothing to free but the engine. */
zf_status_t zfi_create_configure(const zf_create_args_t *given, zfi_engine_t *engine, zf_error_t *err);
zf_status_t zfi_bind_params(zf_instance_t *inst, const zf_bind_args_t *args, uint32_t *out_ids,
                            zf_bind_report_t *out_report, zf_error_t *err);
/* Reads the arguments of bind_params, and checks what is not an array. */
zf_status_t zfi_bind_read(const zf_bind_args_t *given, zf_bind_args_t *out, zf_error_t *err);
/* rebind.c: bind_params where parameters are bound already; the hook has been entered */
zf_status_t zfi_rebind(zf_instance_t *inst, const zf_bind_args_t *args, zf_error_t *err);
/* deliver.c */
zf_status_t zfi_grads_ready(zf_instance_t *inst, const zf_grad_item_t *items, uint32_t n, uint32_t elem_size,
                            const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err);
/* stats.c: zf.stats/1. [any-thread] All counters now; and what they grew by, which of a level is what it is now. */
void zfi_stats_take(zfi_engine_t *engine, uint64_t out[ZFI_N_COUNTERS]);
void zfi_stats_grown(const uint64_t now[ZFI_N_COUNTERS], const uint64_t before[ZFI_N_COUNTERS],
                     uint64_t out[ZFI_N_COUNTERS]);
extern const zf_stats_ext_t zfi_stats_ext;
/* step.c */
zf_status_t zfi_step(zf_instance_t *inst, const zf_step_args_t *args, zf_step_report_t *out_report, zf_error_t *err);
zf_status_t zfi_announce(zf_instance_t *inst, const zf_step_args_t *args, zf_error_t *err);
zf_status_t zfi_poll(zf_instance_t *inst, zf_step_report_t *out_report, zf_error_t *err);
/* [hook] Records of steps (step_record.h) that the device has finished get what it has said of them. */
void zfi_step_look(zf_instance_t *inst);
/* fetch.c */
zf_status_t zfi_param_fetch(zf_instance_t *inst, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                            const zf_stream_t *stream, zf_fence_t *out_ready, zf_error_t *err);
zf_status_t zfi_param_release(zf_instance_t *inst, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                              const zf_stream_t *stream, zf_error_t *err);
zf_status_t zfi_shard_place(zf_instance_t *inst, uint32_t id, zf_shard_place_t *out, zf_error_t *err);
/* fence.c */
zf_status_t zfi_fence_wait(zf_instance_t *inst, const zf_fence_t *fence, uint64_t timeout_ns, zf_error_t *err);
/* fetch.c: parameters are about to change, so none may be held. */
zf_status_t zfi_fetch_check_released(const zf_instance_t *inst, const char *origin, zf_error_t *err);
/* quiesce.c */
zf_status_t zfi_quiesce(zf_instance_t *inst, const zf_quiesce_args_t *args, zf_error_t *err);
/* changed.c */
zf_status_t zfi_params_changed(zf_instance_t *inst, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                               uint32_t flags, zf_error_t *err);
/* export.c */
zf_status_t zfi_export_params(zf_instance_t *inst, const zf_export_item_t *items, uint32_t n, uint32_t elem_size,
                              zf_error_t *err);
zf_status_t zfi_inspect(zf_instance_t *inst, uint32_t id, zf_inspect_out_t *out, zf_error_t *err);
/* state.c: zf.state/1 */
extern const zf_state_ext_t zfi_state_ext;
/* dry_run.c: zf.plan/0 */
extern const zf_plan_ext_t zfi_plan_ext;
/* residency.c: zf.residency/1 */
extern const zf_residency_ext_t zfi_residency_ext;
/* ext.c: the extensions */
const void *zfi_get_extension(const char *id);
extern const char zfi_provided_extensions[];
