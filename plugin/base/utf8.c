/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/base/utf8.c - see utf8.h. */
#include "base/utf8.h"

#include <string.h>

size_t zfi_utf8_nbytes(const char *text, size_t left) {
    const unsigned char *s = (const unsigned char *)text;
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    if (n == 0 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if (n == 3 && ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F)))
        return 0;
    if (n == 4 && ((s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F)))
        return 0;
    return n;
}

int zfi_utf8_is_text(const char *text, size_t nbytes) {
    for (size_t i = 0, n; i < nbytes; i += n) {
        n = zfi_utf8_nbytes(text + i, nbytes - i);
        if (n == 0)
            return 0;
    }
    return 1;
}

int zfi_utf8_is_name(const char *text, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F)
            return 0;
    return zfi_utf8_is_text(text, nbytes);
}

size_t zfi_utf8_mend(char *text) {
    size_t nbytes = strlen(text), kept = 0;
    for (size_t i = 0, n; i < nbytes; i += n ? n : 1) {
        n = zfi_utf8_nbytes(text + i, nbytes - i);
        memmove(text + kept, text + i, n);
        kept += n;
    }
    text[kept] = '\0';
    return kept;
}
