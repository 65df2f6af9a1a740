/* plugin/offload/replay.h - one chunk of a closed window: its slots applied to w, m, v in one pass. */
#ifndef ZFI_REPLAY_H
#define ZFI_REPLAY_H

#include "instance.h"

/* Where the pass works: the chunk's own state, or copies of it (export). */
typedef struct zfi_replay_target {
    float *w;               /* [chunk elements] */
    void *m, *v;            /* [chunk elements] moments as in the host's state; NULL where the rule has none */
    unsigned char *visible; /* [chunk elements] round(w) in the parameter's type, or NULL */
    float *scratch;         /* mean mode, else unused: zfi_replay_columns_scratch() of the chunk */
    int is_rehearsal;       /* export: neither counts nor poisons */
    void *sum1, *sum2;      /* [chunk elements] moments mode: the window's sums, of ... */
    zfi_dtype_t sum_dtype;
} zfi_replay_target_t;

/* [own threads] Replays; slots and scalars of the window must be in host memory. Poisons and returns ZF_ERR_NONFINITE
 * with the parameter's name where a weight ends non-finite (a rehearsal only returns it). Does not count updates:
 * zfi_replay_count does. */
zf_status_t zfi_replay_chunk(zf_instance_t *inst, const zfi_close_t *close, uint32_t chunk,
                             const zfi_replay_target_t *target);

/* [own threads] Rehearsals in moments mode (else nothing): the sums of the open window as a close would read them.
 * Those of the device are copied to scratch, twice the chunk; everything is idle. */
void zfi_replay_open_sums(const zf_instance_t *inst, uint32_t chunk, zfi_replay_target_t *target);

/* [own threads] Adds the window's updates to n of the cohort's matrices; once per close, after its last chunk. */
void zfi_replay_count(zf_instance_t *inst, const zfi_close_t *close);

/* [control] What n of a matrix's channel will be once this window is counted. */
uint32_t zfi_replay_count_of(zf_instance_t *inst, const zfi_close_t *close, uint32_t matrix, uint32_t channel);

#endif
