/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/state.h - "zf.state/1": the whole training state of an instance, saved and loaded.
 *
 * A checkpoint is a small set of named blobs: one JSON index, ZF_STATE_INDEX, and safetensors files that hold plain
 * tensors by parameter: w, m, v in fp32, n, the counts of updates, and which channels are selected. No pickle, no rank
 * or bucket layout. abi/CHECKPOINT.md says how to read it. It lives in a directory, or wherever the host keeps the
 * blobs (zf_state_store_t). Every tensor carries a checksum (CRC-32, the one of zlib).
 *
 * Save between steps. In mode = exact nothing is open then, and a save changes nothing. Windows that are open end
 * first, as by FLUSH: visible weights are the newest after the save, and the run goes on as the one that loads it, bit
 * for bit. A save that fails while it writes (a full disk, a store that refuses) has ended them too; one that is
 * refused for its arguments or its path has changed nothing. With ZF_STATE_KEEP_OPEN the same is saved, and the
 * instance stays as it is. While memory is released (zf.residency/1) the windows end with resume.
 *
 * Any checkpoint is loaded into any cut, number of ranks, stage, mode and moments_dtype of the same parameters. The
 * schedule goes on where it was, if the selected channels fit: blocks of the same rows, and as many channels as
 * topk_ratio takes. Else it begins again with its warm-up, and the log says why. Moments of fp32 that are loaded into
 * an instance that keeps bfloat16 are rounded to nearest even once. Update rules must be those of the save.
 *
 * Gradients that were delivered but not yet stepped are not part of a checkpoint; load() drops them. Load checks
 * everything before it changes anything, and what it reads again it checks again. Memory: a load into
 * an instance that has trained needs its host memory a second time while it lasts; into a fresh one only buffers.
 *
 * Directory. It is made where there is none, and what else is in it stays; the names zf_state* in it are the plugin's.
 * A save writes files of new names and an index of its own, syncs them, reads index and headers back, and renames its
 * index to ZF_STATE_INDEX. So what is at `path` is whole at any moment, and a process killed at any moment leaves the
 * former checkpoint or the new one. Then files that no index needs are removed, also those that killed saves left. The
 * file system needs: mkdir, and in `path` rename and unlink of files, and fsync of files unless ZF_STATE_NO_SYNC is
 * given. It may lack fsync of directories (a warning says so once) and flock. Loads and saves of several processes do
 * not disturb each other: a load reads the checkpoint that it began with, of saves to one path the last one stays, and
 * what is read or on its way meanwhile is left to the next save. Where the file system has no locks (flock), a load
 * that lost its files begins again, and of saves on their way what killed processes left stays.
 *
 * Several ranks call save and load together, with the same flags and note and with a path to one directory that all of
 * them see. The blobs are those that one rank would write. Each rank writes what it keeps and syncs it; then rank 0
 * writes the index. A load reads on each rank what it will keep; the check of all tensors is shared. Any
 * number of ranks loads what any number has saved. Whatever fails on one rank fails on all,
 * with its message. A rank that is at work for longer than [host] deadline_ms is waited for, one that is gone is not;
 * a single write, read, want or sync must not take as long. Reports count the bytes of the rank itself. Ranks that save
 * into a store each, all of them together, each get all of the state, the same bytes; each loads from a store by
 * itself. With ZF_STATE_OWN a store gets of w, m and v only what its rank keeps, and none of it travels:
 * index, headers and all else are the same in each, and NULL stands for the bytes of others. Put together they are
 * those of a save without it. What several ranks keep (stage 0) each of them may get.
 *
 * A load with ZF_STATE_OWN takes a checkpoint from such stores. Each has all but w, m and v, and of these what its rank
 * will read, which `want` names before anything is changed: what the rank keeps, here and now. A last
 * call of `want`, behind a meeting in which no rank has failed, is for the host to fetch what its store lacks; there it
 * may exchange bytes with the other ranks' hosts. What was named is read twice: it is checked, and, joined over the
 * ranks, is what the index's checksums are of; then it is loaded. Where a host has put its own values into a tensor, it
 * writes null for its checksum into the index: then it vouches for them. Other calls refuse such an index. What is not
 * bound here (ZF_STATE_PARTIAL) is not read. Without the flag each rank's store needs all of the checkpoint.
 *
 * Where several instances train one model (zf_create_args_t.norm_group), ranks that hold the same parameters have a
 * checkpoint together, in a directory of their own, which says which part of the model it holds. All ranks of the norm
 * group call save and load together. A load of another part, of parts of different steps, or of parts that differ in
 * what they share beside their experts, is refused before anything is changed; with ZF_STATE_PARTIAL it is not, but
 * for parts of other steps in one group 0. What one rank refuses for its arguments, or an index that it cannot read,
 * all of them refuse. What fails later (a full disk, a damaged tensor) fails on the ranks of that part alone, while
 * others have saved or loaded theirs: save every time to new directories, and keep the former ones until all parts are
 * saved. */
#ifndef ZF_EXT_STATE_H
#define ZF_EXT_STATE_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_STATE "zf.state/1"
#define ZF_STATE_INDEX "zf_state.json"

/* A store for blobs that the host keeps itself. Every function is a [callback] inside save() or load(), returns 0 or a
 * negative value, which ends the call with ZF_ERR_STORAGE; names are plain file names of [A-Za-z0-9._-]. */
typedef struct zf_state_store {
    uint32_t struct_size;
    uint32_t reserved0;
    void *ctx;
    /* save: begin(name, nbytes), write() until nbytes are written, end(); one blob at a time, the index last. data is
     * NULL only with ZF_STATE_OWN: nbytes that others keep.
     * [callback] */
    int32_t (*begin)(void *ctx, const char *name, uint64_t nbytes);
    int32_t (*write)(void *ctx, const void *data, uint64_t nbytes);
    int32_t (*end)(void *ctx);
    /* load: size of a blob (negative: there is none), and a range of it.
     * [callback] */
    int32_t (*size)(void *ctx, const char *name, uint64_t *out_nbytes);
    int32_t (*read)(void *ctx, const char *name, uint64_t offset, void *out, uint64_t nbytes);
    /* load with ZF_STATE_OWN, which needs it: a range of a blob that will be read. Then once with NULL, 0, 0: that
     * was all. From then on it is read, in pieces.
     * [callback] */
    int32_t (*want)(void *ctx, const char *name, uint64_t offset, uint64_t nbytes);
} zf_state_store_t;

#define ZF_STATE_KEEP_OPEN 1u /* save: what FLUSH would leave; the instance stays as it is */
#define ZF_STATE_PARTIAL 2u   /* load: parameters that the checkpoint lacks keep what they have; without it: an error */
#define ZF_STATE_NO_SYNC 4u   /* save: no fsync (tests, memory file systems) */
#define ZF_STATE_CONTINUE 8u  /* load: the schedule goes on, or ZF_ERR_CHECKPOINT says why it would begin again */
#define ZF_STATE_OWN 16u      /* a store has only this rank's part of what the ranks share out */

typedef struct zf_state_args {
    uint32_t struct_size;
    uint32_t flags;                /* ZF_STATE_... */
    const char *path;              /* directory; exactly one of path and store */
    const zf_state_store_t *store; /* borrowed for the call */
    const char *note;              /* save: up to 64 KiB of UTF-8 kept in the index for the host; NULL = none */
    const void *next;              /* zf_chained_t, or NULL */
} zf_state_args_t;

typedef struct zf_state_report { /* output struct */
    uint32_t struct_size;
    int32_t continues;    /* load: 1: the schedule goes on where it was; 0: it begins again with its warm-up */
    uint64_t step;        /* submitted steps at the save */
    uint64_t nbytes;      /* written or read */
    uint32_t n_params;    /* trainable parameters saved or loaded */
    uint32_t n_missing;   /* load, PARTIAL: parameters that the checkpoint lacks */
    uint32_t n_extra;     /* load: parameters of the checkpoint that are not bound, ignored with PARTIAL */
    uint32_t note_nbytes; /* length of the checkpoint's note */
    uint64_t drain_ns;    /* save: time spent waiting for work in flight */
} zf_state_report_t;

typedef struct zf_state_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Saves; windows end first (above). ZF_ERR_STORAGE names file, errno and bytes; an older checkpoint at path is
     * then still whole; only where the message says so the new one is in its place. out_report may be NULL.
     * [control] State: bound, active, quiesced. */
    zf_status_t (*save)(zf_instance_t *instance, const zf_state_args_t *args, zf_state_report_t *out_report,
                        zf_error_t *err);
    /* Loads into an instance whose parameters are bound by the same names and shapes; visible values are written too.
     * On any error the instance is as it was, but for one case: where there is no room for the new state beside the
     * old, the old is freed once all of the checkpoint is checked, and an error after that ends the instance.
     * ZF_ERR_CHECKPOINT says what is wrong with the checkpoint and where.
     * [control] State: bound, active, quiesced. */
    zf_status_t (*load)(zf_instance_t *instance, const zf_state_args_t *args, zf_state_report_t *out_report,
                        zf_error_t *err);
    /* Reads a checkpoint's note without an instance; buf gets it NUL-terminated, cut to nbytes.
     * [any-thread] */
    zf_status_t (*note)(const zf_state_args_t *args, char *buf, uint64_t nbytes, zf_error_t *err);
    /* Makes all the checks that load() makes of a checkpoint by itself, without an instance.
     * [any-thread] */
    zf_status_t (*verify)(const zf_state_args_t *args, zf_state_report_t *out_report, zf_error_t *err);
    /* The fp32 weights of one parameter, row-major, without an instance; n_elems must be the parameter's. Checks what
     * it reads. [any-thread] */
    zf_status_t (*weights)(const zf_state_args_t *args, const char *param, float *out, uint64_t n_elems,
                           zf_error_t *err);
} zf_state_ext_t;

#ifdef __cplusplus
}
#endif
#endif
