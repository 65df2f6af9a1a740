/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/residency.h - "zf.residency/1": a trainer that shares the device with something else by turns (it trains, then
 * generates) gets the plugin's memory there back for a while, with all of the training state kept on the host.
 *
 * The host says at create, by ZF_CREATE_CAP_RELEASE, that it will release: then bind_params maps as many bytes of
 * page-locked host memory as it maps on the device, and what bind_params and zf.plan/0 report counts them. Without the
 * flag nothing is paid and release is refused. Each direction is one copy of the plugin's device memory over the link,
 * and addresses stay reserved. Parameters and gradients are the host's: the plugin neither moves nor frees them. */
#ifndef ZF_EXT_RESIDENCY_H
#define ZF_EXT_RESIDENCY_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_RESIDENCY "zf.residency/1"

#define ZF_RELEASE_DEVICE 1u /* all device memory of the instance goes back to the driver */
/* With DEVICE: the plugin's host memory is no longer page-locked either; to lock it again takes seconds per 10 GiB. */
#define ZF_RELEASE_PINNED 2u

typedef struct zf_residency_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Ends what is in flight, as DRAIN does, copies, and gives memory back; all of it is over when the call returns,
     * and out_done says so. what: ZF_RELEASE_... The work of `stream` so far comes first. Each rank releases by itself,
     * between steps: while gradients are on their way to other ranks it is ZF_ERR_STATE.
     * Until resume, save of zf.state/1, export_params, zf.inspect/0, zf.stats/1, written(LOOK) of zf.digest/0 and
     * destroy work; for save and export the parameters stay readable where they lie. Every other call on the instance
     * is ZF_ERR_STATE with the word "released". With [shard] stage = 3 nothing may be fetched. What NCCL and the
     * context keep on the device stays. [control] State: bound, active, quiesced. */
    zf_status_t (*release)(zf_instance_t *instance, uint32_t what, const zf_stream_t *stream, zf_fence_t *out_done,
                           zf_error_t *err);
    /* Takes the memory again and copies into it. ZF_ERR_MEMORY where there is no room: then all is released as
     * before, and it may be called again. Training goes on with the same bits as if nothing had happened.
     * [control] State: released. */
    zf_status_t (*resume)(zf_instance_t *instance, const zf_stream_t *stream, zf_fence_t *out_done, zf_error_t *err);
} zf_residency_ext_t;

#ifdef __cplusplus
}
#endif
#endif
