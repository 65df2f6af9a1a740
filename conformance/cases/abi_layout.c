/* SPDX-License-Identifier: Apache-2.0 */
/* abi_layout.c - proof 1 (abi_layout.h).
. The layout is of LP64 machines; the golden file is compared there only. */
#define _GNU_SOURCE /* open_memstream */
#include "abi_layout.h"

#include <stdlib.h>
#include <string.h>

#include "abi_golden.h"
#include "abi_table.h"
#include "zf/types.h"

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static void fail(abi_report_t *report, const char *format, const char *a, const char *b) {
    char detail[ABI_DETAIL_NBYTES];
    snprintf(detail, sizeof detail, format, a, b);
    abi_report_add(report, ABI_RULE_LAYOUT, ABI_FAIL, detail);
}

/* Copies the next line that says something; 0 at the end. */
static int next_line(const char **text, char *out, size_t nbytes) {
    while (**text) {
        size_t n = strcspn(*text, "\n");
        snprintf(out, nbytes, "%.*s", (int)n, *text);
        *text += n + ((*text)[n] == '\n');
        if (n && *out != '#')
            return 1;
    }
    return 0;
}

/* Start of the line after the one that begins with `head` and a blank or line end; NULL if there is none. */
static const char *find_line(const char *text, const char *head) {
    size_t n = strlen(head);
    for (const char *at = text; (at = strstr(at, head)) != NULL; at += n)
        if ((at == text || at[-1] == '\n') && (at[n] == ' ' || at[n] == '\n' || at[n] == '\0'))
            return at + strcspn(at, "\n") + 1;
    return NULL;
}

static void compare_exact(abi_report_t *report, const char *golden, const char *now) {
    char want[256], have[256];
    for (;;) {
        int is_want = next_line(&golden, want, sizeof want), is_have = next_line(&now, have, sizeof have);
        if (!is_want && !is_have)
            break;
        if (!is_want || !is_have || strcmp(want, have) != 0) {
            fail(report, "golden \"%s\", headers \"%s\"", is_want ? want : "(end)", is_have ? have : "(end)");
            return;
        }
        abi_report_add(report, ABI_RULE_LAYOUT, ABI_PASS, NULL);
    }
}

/* The golden members of one struct must be the first ones of the headers'. Returns where the golden text goes on. */
static const char *compare_members(abi_report_t *report, const char *golden, const char *members, const char *name) {
    char want[256], have[256];
    const char *before = golden;
    while (next_line(&golden, want, sizeof want) && want[0] == ' ') {
        before = golden;
        if (members && next_line(&members, have, sizeof have) && strcmp(want, have) == 0) {
            abi_report_add(report, ABI_RULE_LAYOUT, ABI_PASS, NULL);
        } else if (members) {
            fail(report, "%s: \"%s\" was changed, moved or removed", name, want);
            members = NULL;
        }
    }
    return before;
}

static void compare_appends(abi_report_t *report, const char *golden, const char *now) {
    char want[256], head[256];
    while (next_line(&golden, want, sizeof want)) {
        int is_struct = strncmp(want, "struct ", 7) == 0;
        const char *found;
        snprintf(head, sizeof head, "%s", want);
        if (is_struct && strrchr(head, ' '))
            *strrchr(head, ' ') = '\0'; /* the size may grow */
        found = find_line(now, head);
        if (found)
            abi_report_add(report, ABI_RULE_LAYOUT, ABI_PASS, NULL);
        else
            fail(report, "\"%s\" is gone or has changed%s", want, "");
        if (is_struct)
            golden = compare_members(report, golden, found, want);
    }
}

void abi_layout_compare(abi_report_t *report, const char *golden, const char *now, unsigned major) {
    if (major == 0)
        compare_exact(report, golden, now);
    else
        compare_appends(report, golden, now);
}

/* ---- rules of every version -------------------------------------------------------------------------------------- */

static int is_allowed_type(const char *type, size_t size) {
    static const char *const allowed[] = {"uint8_t",  "uint16_t", "int32_t",     "uint32_t",   "int64_t",
                                          "uint64_t", "double",   "zf_status_t", "zf_dtype_t", "zf_dl_tensor_t"};
    if (strchr(type, '*'))
        return size == sizeof(void *);
    if (strncmp(type, "char[", 5) == 0)
        return 1;
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
        if (strcmp(type, allowed[i]) == 0)
            return 1;
    return 0;
}

/* No gap between members, none at the end, struct_size first, sizes of 8 bytes. */
static void check_struct(abi_report_t *report, const abi_entry_t *e) {
    const abi_entry_t *first = e + 1;
    int is_value = strcmp(e->name, "value") == 0;
    size_t end = 0;
    if (!is_value && (strcmp(first->name, "struct_size") != 0 || first->offset != 0))
        fail(report, "%s does not begin with struct_size%s", e->owner, "");
    if (e->size % (is_value ? 4 : 8))
        fail(report, "%s: its size is no multiple of 8%s", e->owner, "");
    for (e++; e->kind != ABI_END; e++) {
        if (e->offset != end)
            fail(report, "%s.%s: a gap before it, or a member that the table lacks", e->owner, e->name);
        if (e->kind == ABI_MEMBER && !is_allowed_type(e->type, e->size))
            fail(report, "%s: type %s is not allowed", e->owner, e->type);
        end = e->offset + e->size;
    }
    if (end != e->size)
        fail(report, "%s: a gap at its end, or a member that the table lacks%s", e->owner, "");
    else
        abi_report_add(report, ABI_RULE_LAYOUT, ABI_PASS, NULL);
}

void abi_layout_check(abi_report_t *report) {
    char *now = NULL;
    size_t nbytes = 0, n;
    const abi_entry_t *entries = abi_table(&n);
    FILE *f = open_memstream(&now, &nbytes);
    if (!f) {
        abi_report_add(report, ABI_RULE_LAYOUT, ABI_FAIL, "no memory");
        return;
    }
    abi_layout_dump(f);
    fclose(f);
    for (size_t i = 0; i < n; i++)
        if (entries[i].kind == ABI_STRUCT)
            check_struct(report, &entries[i]);
    if (sizeof(void *) == 8)
        abi_layout_compare(report, abi_golden_layout(), now, ZF_ABI_MAJOR(ZF_ABI_0_5));
    else
        abi_report_add(report, ABI_RULE_LAYOUT, ABI_SKIP, "the golden layout is of 64-bit machines");
    free(now);
}
