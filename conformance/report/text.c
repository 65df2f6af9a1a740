/* text.c - escaping and formatting (text.h). */
#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* Bytes of the UTF-8 character at s (RFC 3629, no overlong forms, no surrogates); 0 where there is none. */
static size_t character_nbytes(const unsigned char *s) {
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;

    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF0 && s[1] < 0x90) ||
        (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    if (s[0] == 0xEF && s[1] == 0xBF && s[2] >= 0xBE) /* U+FFFE, U+FFFF: not in XML */
        return 0;
    return n;
}

static int is_control(unsigned char c) { return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F; }

void zr_put_html(FILE *file, const char *text) {
    const unsigned char *s = (const unsigned char *)text;

    while (*s != '\0') {
        size_t n = character_nbytes(s);

        if (n == 0 || is_control(*s))
            (void)fputc('?', file);
        else if (*s == '&')
            (void)fputs("&amp;", file);
        else if (*s == '<')
            (void)fputs("&lt;", file);
        else if (*s == '>')
            (void)fputs("&gt;", file);
        else if (*s == '"')
            (void)fputs("&quot;", file);
        else
            (void)fwrite(s, 1, n, file);
        s += n > 0 ? n : 1;
    }
}

void zr_printf_html(FILE *file, const char *format, ...) {
    char text[2048];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    zr_put_html(file, text);
}

void zr_put_json(FILE *file, const char *text) {
    const unsigned char *s = (const unsigned char *)text;

    (void)fputc('"', file);
    while (*s != '\0') {
        size_t n = character_nbytes(s);

        if (*s == '\n' || *s == '\t')
            (void)fputs(*s == '\n' ? "\\n" : "\\t", file);
        else if (n == 0 || is_control(*s))
            (void)fputc('?', file);
        else if (*s == '"' || *s == '\\')
            (void)fprintf(file, "\\%c", *s);
        else
            (void)fwrite(s, 1, n, file);
        s += n > 0 ? n : 1;
    }
    (void)fputc('"', file);
}

/* Puts a narrow space (U+202F) between thousands of the whole part. */
static const char *space_thousands(const char *digits, char out[ZR_NUMBER_NBYTES]) {
    size_t n_whole = strcspn(digits, ".e"), first = digits[0] == '-', used = 0;

    for (size_t i = 0; digits[i] != '\0' && used + 4 < ZR_NUMBER_NBYTES; i++) {
        if (i > first && i < n_whole && (n_whole - i) % 3 == 0 && n_whole - first > 4) {
            memcpy(out + used, "\xE2\x80\xAF", 3);
            used += 3;
        }
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

const char *zr_fixed(double value, int n_decimals, char out[ZR_NUMBER_NBYTES]) {
    char digits[ZR_NUMBER_NBYTES];

    if (!isfinite(value))
        return strcpy(out, "-");
    if (fabs(value) >= 1e12)
        (void)snprintf(digits, sizeof digits, "%.3e", value);
    else
        (void)snprintf(digits, sizeof digits, "%.*f", n_decimals, value);
    return space_thousands(digits, out);
}

const char *zr_signed(double value, int n_decimals, const char *unit, char out[ZR_NUMBER_NBYTES]) {
    char digits[ZR_NUMBER_NBYTES];

    if (!isfinite(value))
        return strcpy(out, "-");
    (void)snprintf(out, ZR_NUMBER_NBYTES, "%s%.30s%.8s", value < 0.0 ? "" : "+", zr_fixed(value, n_decimals, digits),
                   unit);
    return out;
}

const char *zr_number(double value, char out[ZR_NUMBER_NBYTES]) {
    double size = fabs(value);

    if (size > 0.0 && size < 1.0)
        (void)snprintf(out, ZR_NUMBER_NBYTES, size < 1e-4 ? "%.1e" : "%.4g", value);
    else
        (void)zr_fixed(value, size >= 1000.0 || value == floor(value) ? 0 : size >= 100.0 ? 1 : 2, out);
    return out;
}
