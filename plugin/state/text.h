/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/text.h - JSON that is written and read from one end to the other, without a tree: memory is that of the
 * text, whatever it holds.
 *
 * A reader knows what comes next. What is written otherwise is refused: with spaces, or with members in another order.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct zfi_text {
    char *at; /* NUL-terminated; to be freed */
    size_t n, room;
    int is_bad; /* memory ran out: what is there must not be used */
} zfi_text_t;

/* [any-thread] */
void zfi_text_add(zfi_text_t *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* [any-thread] A string: quotes, backslashes and control characters are escaped, as Python's json writes them with
 * ensure_ascii=False. */
void zfi_text_quote(zfi_text_t *text, const char *value);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct zfi_scan {
    const char *begin, *at, *end;
    const char *need;   /* the first thing that was not there, at failed_at; NULL: all was. Nothing is read behind it */
    uint64_t failed_at; /* byte */
} zfi_scan_t;

/* [any-thread] The next characters are these; else it fails. */
void zfi_scan_word(zfi_scan_t *scan, const char *word);
/* [any-thread] Whether they are; then they are read. */
int zfi_scan_has(zfi_scan_t *scan, const char *word);
/* [any-thread] A whole number in [0, most]; 0 where it fails. */
uint64_t zfi_scan_number(zfi_scan_t *scan, uint64_t most);
/* [any-thread] A string into out, NUL-terminated; it has fewer than `room` bytes, is UTF-8 and holds no NUL. */
size_t zfi_scan_string(zfi_scan_t *scan, char *out, size_t room);
/* [any-thread] Says what is wrong with what was read last. */
void zfi_scan_fail(zfi_scan_t *scan, const char *need);
