/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/hostile_rig.h - a sound checkpoint, one made of it to do harm, and an instance that is asked to load it
 * and must stay as it is. */
#pragma once

#include "state_rig.h"

#define ZT_DATA_BLOB "zf_state-00001.safetensors"

typedef struct zt_hostile {
    zt_rig_t rig, victim; /* rig has saved `good` after seven steps */
    zt_memory_store_t good, bad;
} zt_hostile_t;
extern zt_hostile_t zt_hostile;

void zt_hostile_start(const char *zenflow);
/* bad becomes what good is. */
void zt_hostile_copy(void);
/* bad is refused by load and, where the checkpoint itself is wrong, by verify; for a reason. */
void zt_hostile_refused(const char *what);
void zt_hostile_refused_for(const char *what, const char *why);
/* The victim is as it was at the start, or when it was last remembered. */
void zt_hostile_check_unchanged(const char *what);
void zt_hostile_remember(void);
/* ... and goes on, and takes the good checkpoint. */
void zt_hostile_end(void);

/* The index of a store, and another one with its checksum made right. */
char *zt_index_text(zt_memory_store_t *store);
void zt_index_seal(zt_memory_store_t *store, char *text);
/* Replaces the first `from` at or after `behind` (NULL: anywhere). */
void zt_index_replace(zt_memory_store_t *store, const char *behind, const char *from, const char *to);
/* Where the first tensor of this name lies, of the parameter or what else begins with these words. */
typedef struct zt_range {
    unsigned long long offset, nbytes, crc;
} zt_range_t;
zt_range_t zt_index_range(zt_memory_store_t *store, const char *param, const char *tensor);
/* Puts a value into element `at` of a parameter's tensor in bad, which becomes cut_off bytes too short; both checksums
 * are right. */
void zt_plant(uint64_t cut_off, const char *param, const char *tensor, uint64_t at, const void *value, size_t nbytes);
