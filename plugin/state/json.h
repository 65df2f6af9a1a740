/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/json.h - JSON that is whole or refused, also where memory runs out in the middle of it.
 *
 * jansson reports each failed allocation where it happens, but a list that lacks a value is still a list, and its
 * scanner drops the characters of a token for which it finds no memory and goes on. Here the first is kept in is_bad;
 * the second shows because what was read, written again, is shorter than the text. */
#ifndef ZFI_STATE_JSON_H
#define ZFI_STATE_JSON_H

#include <jansson.h>
#include <stddef.h>

typedef struct zfi_json {
    int is_bad; /* something could not be added: what was built must not be used */
} zfi_json_t;

/* [any-thread] Take the value over, also on failure; list, object and value may be NULL for want of memory. */
void zfi_json_append(zfi_json_t *json, json_t *list, json_t *value);
void zfi_json_set(zfi_json_t *json, json_t *object, const char *name, json_t *value);

/* [any-thread] The value that the text holds, or NULL and a sentence. Two members of one name are refused, and so is a
 * text that is not written as json_dumps() writes it (white space between tokens may differ): a number in another
 * notation, an escape that is not needed. */
enum { ZFI_JSON_PROBLEM = 200 };
json_t *zfi_json_parse(const char *text, size_t nbytes, char problem[ZFI_JSON_PROBLEM]);

#endif
