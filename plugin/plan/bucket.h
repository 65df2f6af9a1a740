/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/plan/bucket.h - buckets: gradients that several ranks exchange at once.
 *
 * Model. Parameters with state enter buckets in reversed registration order, which is about the order in which a
 * backward pass makes their gradients. A bucket holds parameters of one kind: one data type, one gradient data type,
 * one process group (and second one), summed or averaged. It is closed when it has reached the wanted size, and
 * numbered then; those that the last parameters leave open follow. Where the size is auto, the last buckets of a kind
 * halve in size, down to a sixteenth: no backward pass is left to hide them, and no forward pass yet for their values.
 * In a bucket's flat memory each parameter starts at a multiple of ZFI_BUCKET_ALIGN elements. What is exchanged is one
 * part per rank, equal and aligned. Where every rank keeps the whole state these are cut from the flat memory:
 *
 *   bucket 0 | layer9.bias | layer9.weight ........ | layer8.bias | pad |     flat memory, in gradient data type
 *            | part 0          | part 1          | part 2              |     of three ranks
 *
 * Else they are collected from it: a rank's part has its slice of every matrix (slice.h), one behind the other. Rank r
 * of the group sums part r. Where there is a second group, it then adds up what its members have summed: they have the
 * same part, each of another first group.
 *
 * Holders are ranks that hold the same parameters, and keep one state of them together: those of group 0, or of the
 * group that an expert has in its place. Other ranks of group 0 have other experts, of the same shapes under the same
 * numbers. So they cut and deal alike, and number everything alike; only who owns which slice each kind of holders says
 * for itself.
 *
 * All of it follows from the declarations, the wanted size and the number of ranks, so it is the same on every rank. */
#pragma once

#include "base/member.h"
#include "plan/params.h"

enum { ZFI_BUCKET_ALIGN = 64, ZFI_PART_ALIGN = 128 }; /* elements: of a parameter; a bucket's end: see part_elems */

typedef struct zfi_holders {
    uint32_t group; /* by the transport's number */
    zfi_member_t place;
} zfi_holders_t;

typedef struct zfi_bucket {
    uint32_t first, n_params; /* into zfi_buckets_t.params */
    zfi_dtype_t dtype;
    int is_average;
    uint32_t holders;       /* who sums it, by their number */
    uint32_t group, group2; /* among whom, by the transport's numbers; group2 = 0: there is none */
    zfi_member_t place, place2;
    uint32_t number2;       /* of the buckets of its second group */
    uint64_t n_elems;       /* of its flat memory, with padding */
    uint64_t part_elems;    /* of one rank */
    uint64_t own_elems;     /* of this rank's part, without what makes all parts equal */
    uint64_t offset_nbytes; /* of its flat memory, from that of bucket 0 */
    zfi_dtype_t value_dtype;
    uint64_t value_elems;          /* the most that a rank sends of published values */
    uint64_t values_offset_nbytes; /* of their place, [ranks][value_elems], in the memory of values */
    uint64_t first_move, n_moves;  /* is_owner: in the table of slices (zfi_run_memory_t.cut), which one more ends */
} zfi_bucket_t;

typedef struct zfi_buckets {
    uint32_t n;
    uint32_t n_holders;                    /* one, without experts: */
    zfi_holders_t holders[ZFI_MAX_GROUPS]; /* without experts one: the ranks of group 0 */
    uint32_t most_ranks;                   /* of any of them */
    int is_owner;                          /* each rank keeps a part of the state */
    zfi_bucket_t *all;                     /* [n] */
    uint32_t *params;                      /* ids, bucket by bucket */
    uint32_t *of_param;                    /* [n_params] bucket; ZF_NO_ID where it has no state */
    uint64_t *offset;                      /* [n_params] elements from the bucket's start */
    uint64_t *own_at;                      /* [n_params] is_owner: from that of this rank's part to its first slice */
    uint64_t nbytes;                       /* of all buckets */
    uint64_t most_nbytes;                  /* of the largest */
    uint64_t arriving_nbytes;              /* the most that one exchange of parts brings */
    uint64_t parts_nbytes;                 /* is_owner: the most that a bucket takes as parts */
    uint64_t values_nbytes;                /* of the memory of values, which has n_value_places */
    uint32_t n_value_places;               /* buckets b, b + n_value_places ... take turns; n: each has its own */
    int values_wait;        /* value memory is the host's: on the device one part at a time is on its way */
    uint64_t staged_nbytes; /* of the device's memory for values: all of theirs, or that part */
} zfi_buckets_t;

/* [control] places: of the transport's groups. wanted_nbytes = 0: ZFI_BUCKET_AUTO (config). ZF_ERR_MEMORY, nothing left
 * allocated. */
zf_status_t zfi_buckets_build(const zfi_param_t *params, uint32_t n_params, uint64_t wanted_nbytes,
                              const zfi_member_t *places, zfi_buckets_t *out);
void zfi_buckets_free(zfi_buckets_t *buckets);
/* [control] is_owner: the most that a rank owns of a bucket, and of its published values. Buckets in rising order. */
void zfi_bucket_cut(zfi_buckets_t *buckets, uint32_t number, uint64_t n_elems, uint64_t n_values);
/* [control] is_owner: then, where the values of each lie. */
void zfi_buckets_place_values(zfi_buckets_t *buckets);

static inline uint64_t zfi_part_nbytes(const zfi_bucket_t *bucket) {
    return bucket->part_elems * zfi_dtype_nbytes(bucket->dtype);
}
