/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/config/config_table.h - the table of configuration keys, and one value of it from and to text.
 *
 * config.c reads files and texts; this module knows what a key is. Nothing allocates, or reads a locale or a global. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "config/settings.h"

enum { ZFI_N_KEYS = 20 };

typedef enum { ZFI_KEY_REAL, ZFI_KEY_INT, ZFI_KEY_CHOICE, ZFI_KEY_TEXT } zfi_key_type_t;

typedef enum { /* why a text is not a value of a key */
               ZFI_VALUE_OK,
               ZFI_VALUE_MALFORMED, /* not of the key's type */
               ZFI_VALUE_RANGE      /* of the type, but outside the range */
} zfi_value_result_t;

typedef struct zfi_choice {
    const char *name; /* NULL ends a list */
    int32_t value;
} zfi_choice_t;

typedef struct zfi_key {
    const char *section;
    const char *name;
    zfi_key_type_t type;
    size_t offset; /* of the member of zfi_config_t: double, int32_t (choice), uint32_t, uint64_t or char[] */
    size_t nbytes; /* of that member */
    double min, max;
    const zfi_choice_t *choices; /* a number may have words, too: each stands for a value outside its range */
    const char *range;           /* as the user reads it */
    const char *default_value;
    const char *doc;
} zfi_key_t;

/* [any-thread] Key i < ZFI_N_KEYS. */
const zfi_key_t *zfi_key_at(uint32_t i);

/* [any-thread] "real", "int", "choice" or "text". */
const char *zfi_key_type_name(zfi_key_type_t type);

/* [any-thread] Index of a key, or -1. section = NULL finds it in any section. */
int zfi_key_find(const char *section, const char *name);

/* [any-thread] Name with the smallest edit distance: of a section, or of a key in a known section. Never NULL. */
const char *zfi_section_nearest(const char *name);
const char *zfi_key_nearest(const char *section, const char *name);

/* [any-thread] Is there such a section? */
int zfi_section_is_known(const char *name);

/* [any-thread] The key changes neither the schedule nor the arithmetic: audits of two runs may differ in it. */
int zfi_key_is_free(const char *section, const char *name);

/* [any-thread] 1 for lr, betas, eps, clip ...: what the trainer says at every step and a file must not repeat. */
int zfi_key_is_trainers(const char *name);

/* [any-thread] Writes the value of text into its member of *out, or leaves *out alone and says why not. */
zfi_value_result_t zfi_key_set(const zfi_key_t *key, const char *text, zfi_config_t *out);

/* [any-thread] The member's value as INI text that zfi_key_set reads back to the same bits; cut to nbytes >= 1. */
void zfi_key_print(const zfi_key_t *key, const zfi_config_t *config, char *buf, size_t nbytes);
