/* text.h - strings and numbers as the report and the JSON files need them: escaped, whatever bytes they hold. */
#ifndef ZF_CONFORMANCE_REPORT_TEXT_H
#define ZF_CONFORMANCE_REPORT_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* As text or attribute value of XHTML. Bytes that are no UTF-8 and control characters become "?". */
void zr_put_html(FILE *file, const char *text);

/* The same for a printf-like text of at most 2047 bytes; a longer one is cut. */
void zr_printf_html(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As a JSON string with its quotes. The same bytes become "?". */
void zr_put_json(FILE *file, const char *text);

enum { ZR_NUMBER_NBYTES = 48 };

/* Few digits for a reader: "0.2711", "12.3", "4 346 275" (thin spaces), "1.2e-07", "-" where it is not finite. Returns
 * out. */
const char *zr_number(double value, char out[ZR_NUMBER_NBYTES]);

/* A fixed number of decimals, the same spaces between thousands; "-" where it is not finite. */
const char *zr_fixed(double value, int n_decimals, char out[ZR_NUMBER_NBYTES]);

/* The same with its sign, and the unit behind it ("+2.3 %"). */
const char *zr_signed(double value, int n_decimals, const char *unit, char out[ZR_NUMBER_NBYTES]);

#endif
