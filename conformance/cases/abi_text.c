/* SPDX-License-Identifier: Apache-2.0 */
/* abi_text.c - the headers as text (abi_text.h). Comments are blanked first; then every typedef and every macro must be
 * what abi_signatures.def says, and every file under the directory must be a header that abi_table.h lists. */
#define _GNU_SOURCE /* getdelim, fts */
#include "abi_text.h"

#include <ctype.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>

#include "abi_table.h"

static void fail(abi_report_t *report, const char *format, const char *a, const char *b) {
    char detail[ABI_DETAIL_NBYTES];
    snprintf(detail, sizeof detail, format, a, b);
    abi_report_add(report, ABI_RULE_LAYOUT, ABI_FAIL, detail);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The whole file, NUL-terminated, for the caller to free; NULL if it cannot be read. */
static char *read_file(const char *path) {
    char *text = NULL;
    size_t nbytes = 0;
    FILE *f = fopen(path, "r");
    if (!f)
        return NULL;
    if (getdelim(&text, &nbytes, '\0', f) < 0) { /* a header has no NUL; an empty file gives no bytes */
        free(text);
        text = calloc(1, 1);
    }
    fclose(f);
    return text;
}

static void blank_comments(char *text) {
    for (char *open; (open = strstr(text, "/*")) != NULL;) {
        char *close = strstr(open + 2, "*/");
        memset(open, ' ', close ? (size_t)(close + 2 - open) : strlen(open));
    }
    for (char *line_end; (line_end = strstr(text, "\\\n")) != NULL;)
        line_end[0] = line_end[1] = ' ';
}

/* Copies [from, to) with each run of white space as one blank, none at the ends. */
static void squeeze(const char *from, const char *to, char *out, size_t nbytes) {
    size_t n = 0;
    for (; from < to && n + 2 < nbytes; from++) {
        if (!isspace((unsigned char)*from))
            out[n++] = *from;
        else if (n && out[n - 1] != ' ')
            out[n++] = ' ';
    }
    out[n - (n && out[n - 1] == ' ')] = '\0';
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static const abi_entry_t *find(abi_entry_kind_t kind, const char *name) {
    size_t n;
    const abi_entry_t *entries = abi_table(&n);
    for (size_t i = 0; i < n; i++)
        if (entries[i].kind == kind && strcmp(kind == ABI_STRUCT ? entries[i].owner : entries[i].name, name) == 0)
            return &entries[i];
    return NULL;
}

/* "struct zf_x {", "struct zf_x zf_x_t", "int32_t zf_status_t", "int32_t (*zf_x_fn)(...)": what follows "typedef". */
static void check_typedef(abi_report_t *report, const char *file, const char *said) {
    char a[128], b[128];
    const abi_entry_t *e = NULL;
    int n = 0;
    if (sscanf(said, "struct %120[A-Za-z0-9_] {%n", a, &n) == 1 && n > 0) {
        strcat(a, "_t");
        e = find(ABI_STRUCT, a);
    } else if (sscanf(said, "struct %*[A-Za-z0-9_] %127[A-Za-z0-9_]%n", a, &n) == 1 && said[n] == '\0') {
        e = find(ABI_OPAQUE, a);
    } else if (sscanf(said, "%127[A-Za-z0-9_] %127[A-Za-z0-9_]%n", a, b, &n) == 2 && said[n] == '\0') {
        e = find(ABI_TYPEDEF, b);
        if (e && strcmp(e->type, a) != 0)
            e = NULL;
    } else if (sscanf(said, "%127[A-Za-z0-9_] (*%127[A-Za-z0-9_])", b, a) == 2) {
        e = find(ABI_FUNCTION, a);
    }
    if (!e)
        fail(report, "%s: \"typedef %s\" is not in the table of signatures, or not so", file, said);
}

static void check_macro(abi_report_t *report, const char *file, const char *said) {
    char name[128];
    size_t n = strspn(said, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
    int has_params = said[n] == '(';
    if (n == 0 || n >= sizeof name || said[n] == '\0')
        return; /* no value: the guard of the file */
    snprintf(name, sizeof name, "%.*s", (int)n, said);
    if (has_params ? !find(ABI_MACRO, name) : !find(ABI_CONST, name) && !find(ABI_STRING, name))
        fail(report, "%s: macro %s is not in the table of signatures", file, name);
}

static void check_text(abi_report_t *report, const char *file, const char *text) {
    char said[512];
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        at += strspn(at, " \t");
        if (strncmp(at, "typedef ", 8) == 0) {
            const char *end = at + strcspn(at, ";{");
            squeeze(at + 8, end + (*end == '{'), said, sizeof said);
            check_typedef(report, file, said);
        } else if (strncmp(at, "#define ", 8) == 0) {
            squeeze(at + 8, at + strcspn(at, "\n"), said, sizeof said);
            check_macro(report, file, said);
        } else if (strncmp(at, "enum ", 5) == 0 || strncmp(at, "union ", 6) == 0) {
            squeeze(at, at + strcspn(at, ";{\n"), said, sizeof said);
            fail(report, "%s: \"%s\": no enum and no union in the ABI", file, said);
        }
    }
}

static int is_listed(const char *name) {
    for (size_t i = 0; abi_header_file(i); i++)
        if (strcmp(abi_header_file(i), name) == 0)
            return 1;
    return 0;
}

/* Every file below dir/zf is listed. */
static void check_files(abi_report_t *report, const char *dir) {
    char root[1200], *roots[] = {root, NULL};
    FTS *tree;
    snprintf(root, sizeof root, "%s/zf", dir);
    tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *e; tree && (e = fts_read(tree)) != NULL;) {
        const char *name = e->fts_path + strlen(dir) + 1;
        if (e->fts_info != FTS_D && e->fts_info != FTS_DP && !is_listed(name))
            fail(report, "%s: a file that the list of public headers lacks%s", name, "");
    }
    if (tree)
        fts_close(tree);
}

void abi_text_check(abi_report_t *report, const char *dir) {
    char path[1200];
    for (size_t i = 0; abi_header_file(i); i++) {
        char *text;
        snprintf(path, sizeof path, "%s/%s", dir, abi_header_file(i));
        text = read_file(path);
        if (text) {
            blank_comments(text);
            check_text(report, abi_header_file(i), text);
            abi_report_add(report, ABI_RULE_LAYOUT, ABI_PASS, NULL);
        } else {
            fail(report, "%s: a public header that is not in %s", abi_header_file(i), dir);
        }
        free(text);
    }
    check_files(report, dir);
}
