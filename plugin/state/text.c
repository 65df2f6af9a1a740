/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/state/text.c - see state/text.h. */
#include "state/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static int make_room(zfi_text_t *text, size_t more) {
    size_t room = text->room ? text->room : 1024;
    char *grown;
    while (room <= text->n + more)
        room *= 2;
    if (room == text->room)
        return 0;
    grown = text->is_bad ? NULL : realloc(text->at, room);
    if (!grown) {
        text->is_bad = 1;
        return -1;
    }
    text->at = grown;
    text->room = room;
    return 0;
}

void zfi_text_add(zfi_text_t *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || make_room(text, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(text->at + text->n, text->room - text->n, format, args);
    va_end(args);
    text->n += (size_t)n;
}

/* The letters behind a backslash, and what they stand for. */
static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";

static void add_char(zfi_text_t *text, unsigned char c) {
    const char *found = c ? strchr(meanings, c) : NULL;
    if (found)
        zfi_text_add(text, "\\%c", letters[found - meanings]);
    else if (c < 0x20)
        zfi_text_add(text, "\\u%04x", (unsigned)c);
    else if (!make_room(text, 1)) {
        text->at[text->n++] = (char)c;
        text->at[text->n] = '\0';
    }
}

void zfi_text_quote(zfi_text_t *text, const char *value) {
    zfi_text_add(text, "\"");
    for (; *value; value++)
        add_char(text, (unsigned char)*value);
    zfi_text_add(text, "\"");
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

void zfi_scan_fail(zfi_scan_t *scan, const char *need) {
    if (scan->need)
        return;
    scan->need = need;
    scan->failed_at = (uint64_t)(scan->at - scan->begin);
}

int zfi_scan_has(zfi_scan_t *scan, const char *word) {
    size_t n = strlen(word);
    if (scan->need || (size_t)(scan->end - scan->at) < n || memcmp(scan->at, word, n) != 0)
        return 0;
    scan->at += n;
    return 1;
}

void zfi_scan_word(zfi_scan_t *scan, const char *word) {
    if (!zfi_scan_has(scan, word))
        zfi_scan_fail(scan, word);
}

uint64_t zfi_scan_number(zfi_scan_t *scan, uint64_t most) {
    const char *first = scan->at;
    uint64_t x = 0;
    for (; !scan->need && scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9'; scan->at++) {
        uint64_t digit = (uint64_t)(*scan->at - '0');
        if (x > (most - digit) / 10 || digit > most) {
            zfi_scan_fail(scan, "a smaller number");
            return 0;
        }
        x = 10 * x + digit;
    }
    if (scan->at == first || (*first == '0' && scan->at - first > 1))
        zfi_scan_fail(scan, "a whole number");
    return scan->need ? 0 : x;
}

/* The character behind a backslash; 0 where there is none. */
static char read_escape(zfi_scan_t *scan) {
    char c = scan->at < scan->end ? *scan->at++ : '\0', digits[5] = {0};
    const char *found = c ? strchr(letters, c) : NULL;
    if (found)
        return meanings[found - letters];
    if (c != 'u' || scan->end - scan->at < 4)
        return 0;
    memcpy(digits, scan->at, 4);
    scan->at += 4;
    return strspn(digits, "0123456789abcdef") == 4 && strncmp(digits, "00", 2) == 0 && digits[2] < '2'
               ? (char)strtoul(digits, NULL, 16)
               : '\0';
}

size_t zfi_scan_string(zfi_scan_t *scan, char *out, size_t room) {
    size_t n = 0;
    out[0] = '\0';
    zfi_scan_word(scan, "\"");
    while (!scan->need && scan->at < scan->end && *scan->at != '"') {
        char c = *scan->at++;
        if (c == '\\')
            c = read_escape(scan);
        else if ((unsigned char)c < 0x20)
            c = '\0';
        if (!c || n + 1 >= room) {
            zfi_scan_fail(scan, c ? "a shorter text" : "a text without such a character");
            break;
        }
        out[n++] = c;
    }
    zfi_scan_word(scan, "\"");
    if (!scan->need && !zfi_utf8_is_text(out, n))
        zfi_scan_fail(scan, "a text in UTF-8");
    out[scan->need ? 0 : n] = '\0';
    return scan->need ? 0 : n;
}
