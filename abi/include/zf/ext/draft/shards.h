/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/draft/shards.h - "zf.shards/0": where a host finds the values of parameters that live as shards.
 *
 * Several ranks with [shard] stage = 3: each rank keeps its parts of the parameters, and a whole one is in memory of
 * the plugin's for as long as the host asks for. A host says that it goes by this with ZF_CREATE_CAP_SHARDS:
 *
 *   bind_params     reads the whole tensors once, on every rank. Those of sharded parameters are the host's again when
 * it returns; resident ones (of at most 65,536 bytes, or vectors) are read and written there for ever.
 *   param_fetch     brings whole buckets of parameters together, and the one that is expected next
 *   place           says where: between fetch and release
 *   param_release   the memory may be another parameter's; the address is void. Tied parameters share one memory,
 *                   which stays until each of them that was fetched is released
 *   step            nothing is held then (FLUSH, load: likewise): ZF_ERR_STATE names what is
 *
 * Every rank fetches and releases the same parameters in the same order. Gradients are the host's, as ever, and
 * delivered whole.
 * Draft: may change or go with any release. */
#ifndef ZF_EXT_DRAFT_SHARDS_H
#define ZF_EXT_DRAFT_SHARDS_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_SHARDS "zf.shards/0"

typedef struct zf_shard_place { /* output struct */
    uint32_t struct_size;
    int32_t is_sharded; /* 1: row-major and contiguous, here until param_release; 0: resident, as it was bound */
    void *data;         /* element 0 */
    uint64_t nbytes;    /* of its elements */
} zf_shard_place_t;

typedef struct zf_shards_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Says where a parameter can be read. Of a sharded parameter between param_fetch and param_release; else
     * ZF_ERR_STATE. The values are there in the order of the stream that it was fetched with (HOST_THREAD: when its
     * fence has come). What the host writes there counts if params_changed is called before the release, on every rank
     * with the same values; else it is lost.
     * [hook] State: bound, active, quiesced. */
    zf_status_t (*place)(zf_instance_t *instance, uint32_t id, zf_shard_place_t *out, zf_error_t *err);
    /* The host has finished reading these parameters, in stream order: their memory may be others'. Where none lives as
     * shards the list is checked and nothing happens.
     * [hook] State: bound, active, quiesced. */
    zf_status_t (*param_release)(zf_instance_t *instance, const zf_param_item_t *items, uint32_t n, uint32_t elem_size,
                                 const zf_stream_t *stream, zf_error_t *err);
} zf_shards_ext_t;

#ifdef __cplusplus
}
#endif
#endif
