/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/draft/digest.h - "zf.digest/0": for a host that must notice writes which move no version counter: digests of
 * memory (gradients that travelled early), and whether weights are what the plugin wrote.
 * Draft: may change or go with any release. */
#ifndef ZF_EXT_DRAFT_DIGEST_H
#define ZF_EXT_DRAFT_DIGEST_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_DIGEST "zf.digest/0"

#define ZF_WRITTEN_LOOK 0u /* nothing changes */
/* Nothing is written over those that are found, until they are asked for again before the next step, or params_changed.
 * Its selected channels miss the updates of every step over which a parameter is held: announce it then. */
#define ZF_WRITTEN_HOLD 1u
#define ZF_WRITTEN_ACCEPT 2u /* what all of them show counts as the plugin's from now on; their masters stay */

typedef struct zf_digest_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Out[i] = digest of the contents of *tensors[i], i < n; n = 0 is fine. CPU memory; any data type of one lane and
     * 8, 16, 32 or 64 bits. Reads on the calling thread, at about memory bandwidth where a tensor is contiguous;
     * allocates nothing, waits for nothing. Nobody may write the memory meanwhile, or the digest is one of neither
     * state.
     *
     * * A digest is of the elements' bytes in row-major order: data type, shape and strides do not count. Equal bytes
     * have equal digests; a change of one element always changes the digest; any other change goes unseen with a chance
     * of about 2^-64. Not cryptographic: who wants two contents with one digest finds them. To be compared within one
     * process only: another version or machine may compute others.
     * [any-thread] while the instance lives, in every state. */
    zf_status_t (*digest)(zf_instance_t *instance, const zf_tensor_t *const *tensors, uint32_t n, uint64_t *out,
                          zf_error_t *err);
    /* Finds parameters that the host wrote unannounced, after bind_params. out[i] = 1 where some element of parameter
     * ids[i] is not what the plugin put there last, else 0, i < n; NULL and n = 0: all, by id. flags: one of
     * ZF_WRITTEN_... All elements are compared, on the device, behind what the host's stream has been given so far;
     * returns when that is done. A parameter whose values were written back as they were is as the plugin left it. An
     * edit that the plugin writes over goes on to be found: announce it (params_changed), hold it or accept what came
     * of it. With [zenflow] on_overwrite = ask these are the only checks; with off ZF_ERR_STATE. With error, what is
     * found stays found, here too, until it is announced or accepted.
     * [control] */
    zf_status_t (*written)(zf_instance_t *instance, uint32_t flags, const uint32_t *ids, uint32_t n, uint8_t *out,
                           zf_error_t *err);
    /* Takes over what the host wrote of parameters ids[i], i < n (NULL and n = 0: of all; a list of no ids: of none).
     * An edit that is not finite is refused by name. Closes all windows, as FLUSH does; what the host wrote shows none
     * of it. Then each of these parameters of which something is not what the plugin put there last is taken over as by
     * params_changed: an element that does not show its master is a weight that the host gave. Where each step shows
     * its own updates (mode = exact), and after FLUSH, those are the elements that the host wrote. In open windows, and
     * beside values that wait to be fetched, the whole parameter goes on from what it shows: call quiesce(FLUSH) before
     * you write. Legal where params_changed is; the host's writes are over. On several ranks all make this call, and
     * have written the same; where some fetched between the write and a question with HOLD, what counts is what the
     * rank sees that owns the element. Needs [zenflow] on_overwrite = ask; else ZF_ERR_STATE.
     *
     * * [shard] stage = 3: nothing may be fetched, as for FLUSH. Of a parameter that lives as shards the host writes a
     * copy, which is compared with nothing: its id, or a question about all, is ZF_ERR_STATE here, and in written while
     * it is fetched. Call quiesce(FLUSH), fetch it, write, and call params_changed before param_release: then nothing
     * is in store that the edit could take from other elements, but what rounding hides of masters of 16-bit
     * parameters.
     * [control] */
    zf_status_t (*adopt)(zf_instance_t *instance, const uint32_t *ids, uint32_t n, zf_error_t *err);
} zf_digest_ext_t;

#ifdef __cplusplus
}
#endif
#endif
