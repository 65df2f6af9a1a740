/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/json.h - JSON that is whole or refused, also where memory runs out in the middle of it.
 *
 * jansson reports each failed allocation where it happens, but a list that lacks a value is still a list, and its
 * scanner drops the characters of a token for which it finds no memory and goes on. Here the first is kept in is_bad.
 * The second shows because what was read is as long as the text; a text that is refused is read once more, and where
 * that ends otherwise, memory was what it lacked. */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "zf/types.h"

typedef struct zfi_json {
    int is_bad; /* something could not be added: what was built must not be used */
} zfi_json_t;

/* [any-thread] Take the value over, also on failure; list, object and value may be NULL for want of memory. */
void zfi_json_append(zfi_json_t *json, json_t *list, json_t *value);
void zfi_json_set(zfi_json_t *json, json_t *object, const char *name, json_t *value);

/* [any-thread] The value as text, without space; NULL where memory ran out, here or in what was added. To be freed.
 * jansson may leave out a byte for which it finds no memory, so the text is read again and compared. */
char *zfi_json_print(const zfi_json_t *json, const json_t *value);

/* [any-thread] The value that the text holds, or NULL, ZF_ERR_MEMORY or ZF_ERR_CHECKPOINT, and a sentence. Two members
 * of one name are refused, and so is a text that json_dumps() would write with another length, but for white space
 * between tokens: an escape that is not needed, a number with zeros in front. */
enum { ZFI_JSON_PROBLEM = 200 };
json_t *zfi_json_parse(const char *text, size_t nbytes, zf_status_t *out_why, char problem[ZFI_JSON_PROBLEM]);
