/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/text.c - what comes out of a file and goes to a terminal: shown, never obeyed. */
#include <stdio.h>

#include "cli.h"

/* Bytes of a UTF-8 sequence that a terminal could take for a command or that turns the direction of the text: controls
 * of ISO 6429 (U+0080 to U+009F), marks, embeddings and isolates (U+200E, U+200F, U+202A to 202E, U+2066 to 2069). */
static int hidden_nbytes(const unsigned char *c) {
    if (c[0] == 0xC2 && c[1] >= 0x80 && c[1] <= 0x9F)
        return 2;
    if (c[0] != 0xE2)
        return 0;
    if (c[1] == 0x80 && (c[2] == 0x8E || c[2] == 0x8F || (c[2] >= 0xAA && c[2] <= 0xAE)))
        return 3;
    return c[1] == 0x81 && c[2] >= 0xA6 && c[2] <= 0xA9 ? 3 : 0;
}

/* Bytes of a whole UTF-8 sequence that begins here, 0 where there is none: it may be a control of an 8-bit terminal. */
static int sequence_nbytes(const unsigned char *c) {
    int n = c[0] >= 0xF0 && c[0] <= 0xF4 ? 4 : c[0] >= 0xE0 ? 3 : c[0] >= 0xC2 ? 2 : 0;
    if (c[0] > 0xF4)
        return 0;
    for (int i = 1; i < n; i++)
        if ((c[i] & 0xC0) != 0x80)
            return 0;
    return n;
}

void zf_cli_print(FILE *to, const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    while (*c) {
        int n = *c < 0x80 ? 1 : sequence_nbytes(c),
            n_hidden = n > 1 ? hidden_nbytes(c) : n == 0 || *c < ' ' || *c == 0x7F;
        if (n_hidden)
            for (int i = 0; i < n_hidden; i++)
                fprintf(to, "\\x%02x", c[i]);
        else
            fwrite(c, 1, (size_t)n, to);
        c += n_hidden ? n_hidden : n;
    }
}
