/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/utf8.h - is it text? Names and configurations come from the host and go into logs, errors and JSON. */
#pragma once

#include <stddef.h>

/* [any-thread] Length of the UTF-8 character at text (RFC 3629: no overlong forms, no surrogates) of which `left` bytes
 * may be read, 0 if there is none. left > 0. */
size_t zfi_utf8_nbytes(const char *text, size_t left);

/* [any-thread] Whether all nbytes are UTF-8; and none a control character, as a name that stands in one line. */
int zfi_utf8_is_text(const char *text, size_t nbytes);
int zfi_utf8_is_name(const char *text, size_t nbytes);

/* [any-thread] Takes out of a string what is no whole character: a text that was cut ends, or goes on, in the middle of
 * one. Returns the bytes that are left. */
size_t zfi_utf8_mend(char *text);
