/* SPDX-License-Identifier: Apache-2.0 */
/* unicode.h - what the uncased WordPiece tokenizer must know about characters. Pure functions, no locale.
 *
 * Classes follow Unicode's general categories as BERT's basic tokenizer uses them: in ASCII every printable character
 * that is no letter, digit or space counts as punctuation. Folding is lower case, then canonical decomposition, then
 * dropping marks, for Latin, Greek and Cyrillic (final sigma is not set apart); other scripts stay as they are. */
#ifndef ZF_CONFORMANCE_HOST_UNICODE_H
#define ZF_CONFORMANCE_HOST_UNICODE_H

#include <stdint.h>

int host_is_space(uint32_t c);
int host_is_control(uint32_t c); /* no spaces among them */
int host_is_punctuation(uint32_t c);
int host_is_cjk(uint32_t c);

/* The lower-case base letter; 0 for a mark, which is dropped. */
uint32_t host_fold(uint32_t c);

/* Decodes one character of zero-terminated UTF-8 and returns where the next one starts. A bad byte is U+FFFD. */
const char *host_utf8_next(const char *text, uint32_t *out_c);

/* Encodes c (<= 0x10ffff); returns the number of bytes, 1 to 4. */
int host_utf8_put(uint32_t c, char out[4]);

#endif
