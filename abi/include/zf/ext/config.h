/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/config.h - "zf.config/1": the table of configuration keys, and the effective values of an instance. */
#ifndef ZF_EXT_CONFIG_H
#define ZF_EXT_CONFIG_H

#include "zf/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZF_EXT_CONFIG "zf.config/1"

typedef struct zf_config_key { /* output struct; strings live as long as the library */
    uint32_t struct_size;
    uint32_t reserved0;
    const char *section;       /* "zenflow" */
    const char *key;           /* "topk_ratio" */
    const char *type;          /* "real", "int", "bool", "choice", "text" */
    const char *range;         /* "(0, 1]", "1..64", "replay | mean" */
    const char *default_value; /* default, as it would be written in a file */
    const char *doc;           /* one or two sentences */
} zf_config_key_t;

typedef struct zf_config_ext {
    uint32_t struct_size;
    uint32_t reserved0;
    /* Number of keys.
     * [any-thread] */
    uint32_t (*n_keys)(void);
    /* Describes key i; ZF_ERR_ARGUMENT past the end.
     * [any-thread] */
    zf_status_t (*key)(uint32_t i, zf_config_key_t *out, zf_error_t *err);
    /* Effective value of key i of an instance, as INI text, NUL-terminated, cut to nbytes.
     * [any-thread] */
    zf_status_t (*value)(zf_instance_t *instance, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err);
    /* Checks a text as create() would, without an instance.
     * [any-thread] */
    zf_status_t (*check)(const char *text, uint64_t nbytes, const char *const *overrides, uint32_t n_overrides,
                         zf_error_t *err);
} zf_config_ext_t;

#ifdef __cplusplus
}
#endif
#endif
