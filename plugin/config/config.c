/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/config/config.c - reads the INI configuration (contract in config.h).
 *
 * Model: inih splits lines into section, key and value; everything that the packaged library does silently is taken
 * from it. Our line reader hands it one checked line at a time: without leading blanks (it would read an indented key
 * as the continuation of the one before), never cut, never binary; it looks at section headers itself (the library
 * reports only sections that have keys, and cuts their names), and notices a key line that never came back as one
 * without '='. Problems are collected in order and reported together; the caller's struct is written only when there is
 * none. Cost: no allocation for a text, one of 1 MiB for a file. */
#include "config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/utf8.h"
#include "config/config_table.h"

enum {
    TEXT_MAX_NBYTES = 1 << 20,
    LINE_MAX_NBYTES = 199,                      /* the library's buffer holds 200 with the final NUL */
    OVERRIDE_MAX_NBYTES = ZFI_TEXT_NBYTES + 64, /* the longest text behind its section and key */
    MESSAGE_NBYTES = sizeof(((zf_error_t *)0)->message),
    MORE_NBYTES = sizeof "; ... and 4294967295 more",
    EXCERPT_NBYTES = 48
};

typedef struct reading {
    const char *where;
    const char *next, *end;          /* what is left of the text */
    unsigned line;                   /* of the line read last, from 1; 0 outside the text */
    unsigned open_line;              /* a key line given to the library that has not come back as a pair; 0 = none */
    int is_skipping;                 /* inside a section that was refused as a whole */
    unsigned given_line[ZFI_N_KEYS]; /* where a key was given first; 0 = not given */
    int is_given[ZFI_N_KEYS];        /* in the text or by an override */
    zfi_config_t config;
    char message[MESSAGE_NBYTES];
    size_t used;
    unsigned n_problems, n_hidden;
} reading_t;

/* ---- problems ---------------------------------------------------------------------------------------------------- */

/* A quoted excerpt: long texts are cut at a character's border, control bytes shown as '?'. */
static const char *excerpt(const char *text, char out[EXCERPT_NBYTES]) {
    size_t n = strnlen(text, EXCERPT_NBYTES);
    int is_cut = n >= EXCERPT_NBYTES - 3;
    if (is_cut)
        n = EXCERPT_NBYTES - 6;
    while (is_cut && n && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7F ? '?' : text[i];
    memcpy(out + n, is_cut ? "..." : "", is_cut ? 4 : 1);
    return out;
}

/* Adds one problem to the list: "where:line: ..." or, outside of lines, "where: ...". A first one too long is cut. */
__attribute__((format(printf, 4, 5))) static void add_problem(reading_t *r, const char *where, unsigned line,
                                                              const char *format, ...) {
    size_t room = MESSAGE_NBYTES - MORE_NBYTES - r->used, n;
    char *at = r->message + r->used;
    va_list args;
    r->n_problems++;
    if (r->n_hidden) {
        r->n_hidden++;
        return;
    }
    n = (size_t)snprintf(at, room, "%s%.120s", r->used ? "; " : "", where);
    if (line && n < room)
        n += (size_t)snprintf(at + n, room - n, ":%u", line);
    if (n < room)
        n += (size_t)snprintf(at + n, room - n, ": ");
    va_start(args, format);
    if (n < room)
        n += (size_t)vsnprintf(at + n, room - n, format, args);
    va_end(args);
    if (n < room) {
        r->used += n;
    } else if (r->used == 0) {
        r->used = strlen(r->message);
    } else {
        *at = '\0';
        r->n_hidden = 1;
    }
}

static zf_status_t report_problems(reading_t *r, zf_error_t *err) {
    if (r->n_hidden)
        snprintf(r->message + r->used, MESSAGE_NBYTES - r->used, "; ... and %u more", r->n_hidden);
    return zfi_error(err, ZF_ERR_CONFIG, "config", "%s", r->message);
}

/* ---- keys and values --------------------------------------------------------------------------------------------- */

static void report_value(reading_t *r, const char *where, unsigned line, const zfi_key_t *key, const char *value,
                         zfi_value_result_t result) {
    char shown[EXCERPT_NBYTES];
    excerpt(value, shown);
    if (result == ZFI_VALUE_RANGE)
        add_problem(r, where, line, "[%s] %s = %s is out of range; allowed: %s", key->section, key->name, shown,
                    key->range);
    else
        add_problem(r, where, line, "[%s] %s = \"%s\" is no %s; allowed: %s%s", key->section, key->name, shown,
                    zfi_key_type_name(key->type), key->range,
                    key->type == ZFI_KEY_REAL && strchr(value, ',') ? " (the decimal sign is a point)" : "");
}

static void report_unknown_key(reading_t *r, const char *where, unsigned line, const char *section, const char *name) {
    char shown[EXCERPT_NBYTES];
    int elsewhere = zfi_key_find(NULL, name);
    excerpt(name, shown);
    if (zfi_key_is_trainers(name))
        add_problem(r, where, line, "[%s] %s is no key: it comes from the trainer with every step", section, shown);
    else if (elsewhere >= 0)
        add_problem(r, where, line, "[%s] %s: this key belongs to [%s]", section, shown,
                    zfi_key_at((uint32_t)elsewhere)->section);
    else
        add_problem(r, where, line, "[%s] has no key \"%s\"; nearest: %s", section, shown,
                    zfi_key_nearest(section, name));
}

static void report_unknown_section(reading_t *r, const char *where, unsigned line, const char *section) {
    char shown[EXCERPT_NBYTES];
    excerpt(section, shown);
    add_problem(r, where, line, "no section [%s]; nearest: [%s]", shown, zfi_section_nearest(section));
}

/* Takes one pair, from a line of the text (line > 0: may be given once) or from an override (the last one counts). */
static void take_pair(reading_t *r, const char *where, unsigned line, const char *section, const char *name,
                      const char *value) {
    int i = zfi_key_find(section, name);
    if (i < 0) {
        report_unknown_key(r, where, line, section, name);
        return;
    }
    if (line && r->given_line[i]) {
        add_problem(r, where, line, "[%s] %s is given again, first in line %u", section, name, r->given_line[i]);
        return;
    }
    if (line)
        r->given_line[i] = line;
    r->is_given[i] = 1;
    zfi_value_result_t result = zfi_key_set(zfi_key_at((uint32_t)i), value, &r->config);
    if (result != ZFI_VALUE_OK)
        report_value(r, where, line, zfi_key_at((uint32_t)i), value, result);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }

static void close_open_line(reading_t *r) {
    if (r->open_line)
        add_problem(r, r->where, r->open_line, "neither [section], key = value nor a comment");
    r->open_line = 0;
}

/* "[name]", a comment may follow. Decides whether the keys below are read. */
static void take_header(reading_t *r, const char *line) {
    char name[LINE_MAX_NBYTES + 1];
    const char *end = strchr(line, ']'), *rest;
    r->is_skipping = 1;
    if (!end) {
        add_problem(r, r->where, r->line, "no ']' after '['");
        return;
    }
    for (rest = end + 1; is_blank(*rest); rest++) {
    }
    if (*rest && *rest != ';' && *rest != '#')
        add_problem(r, r->where, r->line, "text after ']'");
    memcpy(name, line + 1, (size_t)(end - line - 1));
    name[end - line - 1] = '\0';
    if (zfi_section_is_known(name))
        r->is_skipping = 0;
    else
        report_unknown_section(r, r->where, r->line, name);
}

/* The library's fgets: one line without blanks at its ends, empty where there is nothing for the library to do. */
static char *read_line(char *buf, int nbytes, void *stream) {
    reading_t *r = stream;
    const char *start = r->next, *end;
    size_t n;
    close_open_line(r);
    if (start == r->end || nbytes < 2)
        return NULL;
    end = memchr(start, '\n', (size_t)(r->end - start));
    r->next = end ? end + 1 : r->end;
    r->line++;
    if (!end)
        end = r->end;
    while (start < end && is_blank(*start))
        start++;
    while (end > start && is_blank(end[-1]))
        end--;
    n = (size_t)(end - start);
    buf[0] = '\0';
    if (n == 0 || *start == ';' || *start == '#')
        return buf;
    if (n > LINE_MAX_NBYTES || n >= (size_t)nbytes) {
        add_problem(r, r->where, r->line, "line of %zu bytes, at most %d are read", n, LINE_MAX_NBYTES);
        return buf;
    }
    memcpy(buf, start, n);
    buf[n] = '\0';
    if (*buf == '[')
        take_header(r, buf);
    else
        r->open_line = r->line;
    return buf;
}

/* The library's handler: one pair of the line read last. */
static int take_line(void *user, const char *section, const char *name, const char *value) {
    reading_t *r = user;
    r->open_line = 0;
    if (r->is_skipping)
        return 1;
    if (!*section)
        add_problem(r, r->where, r->line, "key before the first [section]");
    else if (!*name)
        add_problem(r, r->where, r->line, "no key before '='");
    else
        take_pair(r, r->where, r->line, section, name, value);
    return 1;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Is every byte text? The first that is not is reported. */
static int check_bytes(reading_t *r, const char *where, const char *text, size_t nbytes) {
    const unsigned char *s = (const unsigned char *)text;
    unsigned line = 1;
    for (size_t i = 0, n; i < nbytes; i += n) {
        n = zfi_utf8_nbytes(text + i, nbytes - i);
        if (n == 0 || (s[i] < 0x20 && s[i] != '\n' && !is_blank((char)s[i])) || s[i] == 0x7F) {
            add_problem(r, where, line, "byte 0x%02x: this is not UTF-8 text", s[i]);
            return 0;
        }
        if (s[i] == '\n')
            line++;
    }
    return 1;
}

static void take_text(reading_t *r, const char *text, uint64_t nbytes) {
    if (nbytes > TEXT_MAX_NBYTES) {
        add_problem(r, r->where, 0, "%llu bytes, at most %d are read", (unsigned long long)nbytes, TEXT_MAX_NBYTES);
        return;
    }
    if (!check_bytes(r, r->where, text, (size_t)nbytes))
        return;
    if (nbytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        text += 3, nbytes -= 3;
    r->next = text;
    r->end = text + nbytes;
    int rc = ini_parse_stream(read_line, r, take_line, r);
    close_open_line(r);
    if (rc < 0)
        add_problem(r, r->where, 0, "the INI library failed with %d", rc);
    else if (r->next != r->end)
        add_problem(r, r->where, r->line, "the INI library stopped early");
}

/* "section.key=value"; blanks around the parts do not count. */
static void take_override(reading_t *r, uint32_t i, const char *text) {
    char where[32], copy[OVERRIDE_MAX_NBYTES + 1], shown[EXCERPT_NBYTES], *dot, *equals, *key_end, *value;
    snprintf(where, sizeof where, "override %lu", (unsigned long)i + 1);
    if (!text || strlen(text) > OVERRIDE_MAX_NBYTES) {
        add_problem(r, where, 0,
                    text ? "more than %d bytes: need section.key=value" : "is NULL: need section.key=value",
                    OVERRIDE_MAX_NBYTES);
        return;
    }
    if (!check_bytes(r, where, text, strlen(text)))
        return;
    snprintf(copy, sizeof copy, "%s", text);
    equals = strchr(copy, '=');
    dot = strchr(copy, '.');
    if (!equals || !dot || dot > equals) {
        add_problem(r, where, 0, "\"%s\" is not section.key=value: %s", excerpt(text, shown),
                    equals ? "no section before its key" : "it has no \"=\" and no value");
        return;
    }
    for (key_end = equals; key_end > dot && is_blank(key_end[-1]); key_end--) {
    }
    for (value = equals + 1; is_blank(*value); value++) {
    }
    for (size_t n = strlen(value); n && is_blank(value[n - 1]); n--)
        value[n - 1] = '\0';
    *dot = *key_end = '\0';
    if (zfi_section_is_known(copy))
        take_pair(r, where, 0, copy, dot + 1, value);
    else
        report_unknown_section(r, where, 0, copy);
}

static void take_interval(zfi_config_t *config) {
    int defers_nothing = zfi_config_defers_nothing(config);
    config->is_interval_auto = config->given_update_interval == ZFI_UPDATE_INTERVAL_AUTO && !defers_nothing;
    config->resident_nbytes = defers_nothing                            ? ZFI_RESIDENT_ALL
                              : config->state_mib == ZFI_STATE_MIB_AUTO ? 0
                                                                        : (uint64_t)config->state_mib << 20;
    config->is_auto_resident = config->state_mib == ZFI_STATE_MIB_AUTO;
    config->update_interval = defers_nothing             ? 1
                              : config->is_interval_auto ? ZFI_AUTO_LONGEST
                                                         : config->given_update_interval;
}

/* A decimal number from least to most at *at, which moves behind it. */
static int read_number(const char **at, uint32_t least, uint32_t most, uint32_t *out) {
    uint64_t n = 0;
    const char *s = *at;
    for (; *s >= '0' && *s <= '9' && n <= most; s++)
        n = 10 * n + (uint64_t)(*s - '0');
    if (s == *at || n < least || n > most)
        return 0;
    *at = s;
    *out = (uint32_t)n;
    return 1;
}

static void report_text(reading_t *r, const char *section, const char *name, const char *value) {
    int key = zfi_key_find(section, name);
    add_problem(r, r->where, r->given_line[key], "[%s] %s = \"%s\"; allowed: %s", section, name, value,
                zfi_key_at((uint32_t)key)->range);
}

/* PATH, or PATH WORD and what is said behind it: NULL, or that. */
static const char *take_path(const char *text, const char *word, char path[ZFI_TEXT_NBYTES]) {
    const char *at = NULL;
    memcpy(path, text, ZFI_TEXT_NBYTES);
    for (const char *next = strstr(text, word); next; next = strstr(next + 1, word))
        at = next;
    if (!at || at == text)
        return NULL;
    path[at - text] = '\0';
    return at + strlen(word);
}

enum { MOST_STEPS = 1000000000 };

/* N, or FIRST..LAST. */
static void take_trace(reading_t *r) {
    enum { DEFAULT_STEPS = 20 };
    zfi_config_t *config = &r->config;
    const char *at = take_path(config->trace_text, " steps ", config->trace_file);
    uint32_t last;
    config->trace_first_step = 1;
    config->trace_steps = DEFAULT_STEPS;
    if (!at)
        return;
    config->trace_steps = 0;
    if (read_number(&at, 0, MOST_STEPS, &config->trace_steps) && !*at)
        return;
    config->trace_first_step = config->trace_steps;
    if (strncmp(at, "..", 2) != 0 || config->trace_first_step == 0 ||
        (at += 2, !read_number(&at, config->trace_first_step, MOST_STEPS, &last)) || *at)
        report_text(r, "trace", "file", config->trace_text);
    else
        config->trace_steps = last - config->trace_first_step + 1;
}

static void take_audit(reading_t *r) {
    enum { DEFAULT_EVERY = 100 };
    zfi_config_t *config = &r->config;
    const char *at = take_path(config->audit_text, " every ", config->audit_file);
    config->audit_every = DEFAULT_EVERY;
    if (at && (!read_number(&at, 1, MOST_STEPS, &config->audit_every) || *at))
        report_text(r, "audit", "file", config->audit_text);
}

/* A key that `mode = exact` sets, and its one value there. */
static void pin(reading_t *r, const char *name, uint32_t *value, uint32_t pinned) {
    int i = zfi_key_find("zenflow", name);
    if (r->is_given[i] && *value != pinned)
        add_problem(r, r->where, r->given_line[i],
                    "[zenflow] mode = exact sets %s = %u: leave %s out, or write mode = windows", name, pinned, name);
    *value = pinned;
}

/* A length or a lag of windows asks for windows, where no mode is given. */
static void take_mode(reading_t *r) {
    enum { STEPS_OF_WINDOWS = 2 };
    zfi_config_t *config = &r->config;
    int has_interval = r->is_given[zfi_key_find("zenflow", "update_interval")];
    int has_lag = config->publish_lag != ZFI_PUBLISH_LAG_AUTO, has_mode = r->is_given[zfi_key_find("zenflow", "mode")];
    if (!has_mode && (has_interval || has_lag))
        config->mode = ZFI_MODE_WINDOWS;
    config->deferred = config->mode == ZFI_MODE_MEAN ? ZFI_DEFERRED_MEAN : ZFI_DEFERRED_REPLAY;
    if (config->mode != ZFI_MODE_EXACT) {
        if (!has_interval)
            config->given_update_interval = STEPS_OF_WINDOWS;
        return;
    }
    pin(r, "update_interval", &config->given_update_interval, 1);
    if (has_lag)
        pin(r, "publish_lag", &config->publish_lag, 0);
}

/* Runs have no part of what is selected: their moments would not be those of the device. */
static void take_moments(reading_t *r) {
    const zfi_config_t *config = &r->config;
    if (!zfi_has_runs((zfi_moments_t)config->moments) || config->mode == ZFI_MODE_EXACT)
        return;
    if (config->mode == ZFI_MODE_MEAN)
        add_problem(r, r->where, 0, "[host] moments_dtype in 8 bits with [zenflow] mode = mean: take exact or windows");
    else if (config->topk_ratio > 0)
        add_problem(
            r, r->where, 0,
            "[host] moments_dtype in 8 bits with selected channels: take [zenflow] mode = exact, or windows with "
            "topk_ratio = 0");
}

/* Values that are right alone and wrong together; and the defaults that depend on another key. */
static void take_together(reading_t *r) {
    r->config.is_publish_lag_given = r->is_given[zfi_key_find("zenflow", "publish_lag")];
    take_mode(r);
    if (r->config.deferred == ZFI_DEFERRED_MEAN) /* the one update of a window is not the last step's */
        r->config.predict = ZFI_PREDICT_OFF;
    take_interval(&r->config);
    take_trace(r);
    take_audit(r);
    take_moments(r);
}

static void set_defaults(zfi_config_t *config) {
    memset(config, 0, sizeof *config);
    config->block_elems = ZFI_BLOCK_ELEMS;
    config->whole_nbytes = ZFI_WHOLE_NBYTES;
    for (uint32_t i = 0; i < ZFI_N_KEYS; i++)
        zfi_key_set(zfi_key_at(i), zfi_key_at(i)->default_value, config);
}

zf_status_t zfi_config_parse(const char *text, uint64_t text_nbytes, const char *where, const char *const *overrides,
                             uint32_t n_overrides, zfi_config_t *out, zf_error_t *err) {
    reading_t r = {.where = where ? where : "config"};
    if (!out)
        return zfi_error(err, ZF_ERR_ARGUMENT, "config", "out is NULL");
    if (n_overrides && !overrides)
        return zfi_error(err, ZF_ERR_ARGUMENT, "config", "n_overrides is %lu, overrides is NULL",
                         (unsigned long)n_overrides);
    if (!text && text_nbytes)
        return zfi_error(err, ZF_ERR_ARGUMENT, "config", "%llu bytes of configuration text, the text is NULL",
                         (unsigned long long)text_nbytes);
    set_defaults(&r.config);
    if (text)
        take_text(&r, text, text_nbytes ? text_nbytes : strlen(text));
    for (uint32_t i = 0; i < n_overrides; i++)
        take_override(&r, i, overrides[i]);
    take_together(&r);
    if (r.n_problems)
        return report_problems(&r, err);
    *out = r.config;
    return ZF_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Reads up to nbytes; returns how many, or -1 with errno set. */
static ssize_t read_all(int fd, char *buf, size_t nbytes) {
    size_t n = 0;
    while (n < nbytes) {
        ssize_t got = read(fd, buf + n, nbytes - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

static zf_status_t fail_errno(zf_error_t *err, const char *path, const char *what) {
    int native = errno;
    char text[96];
    snprintf(text, sizeof text, "%m"); /* the words for errno, safe among threads */
    return zfi_error_scoped(err, ZF_ERR_CONFIG, ZF_SCOPE_CALL, native, "config", "%.300s: %s: %s (errno %d)", path,
                            what, text, native);
}

zf_status_t zfi_config_parse_file(const char *path, const char *const *overrides, uint32_t n_overrides,
                                  zfi_config_t *out, zf_error_t *err) {
    struct stat info;
    zf_status_t st;
    if (!path || !*path)
        return zfi_error(err, ZF_ERR_CONFIG, "config", "the path of the configuration file is empty");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return fail_errno(err, path, "cannot open");
    if (fstat(fd, &info) != 0) {
        st = fail_errno(err, path, "cannot stat");
        goto err_close;
    }
    if (!S_ISREG(info.st_mode)) {
        st = zfi_error(err, ZF_ERR_CONFIG, "config", "%.300s: not a regular file", path);
        goto err_close;
    }
    char *text = malloc(TEXT_MAX_NBYTES + 1);
    if (!text) {
        st = zfi_error(err, ZF_ERR_MEMORY, "config", "no memory to read %.300s: %d bytes", path, TEXT_MAX_NBYTES + 1);
        goto err_close;
    }
    ssize_t n = read_all(fd, text, TEXT_MAX_NBYTES + 1);
    if (n < 0)
        st = fail_errno(err, path, "cannot read");
    else if (n > TEXT_MAX_NBYTES)
        st = zfi_error(err, ZF_ERR_CONFIG, "config", "%.300s: more than %d bytes", path, TEXT_MAX_NBYTES);
    else
        st = zfi_config_parse(n ? text : NULL, (uint64_t)n, path, overrides, n_overrides, out, err);
    free(text);
err_close:
    close(fd);
    return st;
}

uint32_t zfi_config_select_interval(const zfi_config_t *config) {
    enum { AUTO_WINDOWS = 4 };
    if (config->select_interval == ZFI_SELECT_INTERVAL_AUTO)
        return AUTO_WINDOWS * config->update_interval;
    return config->select_interval;
}

/* ---- the table, for zf.config/1 ---------------------------------------------------------------------------------- */

uint32_t zfi_config_n_keys(void) { return ZFI_N_KEYS; }

zf_status_t zfi_config_key(uint32_t i, zf_config_key_t *out, zf_error_t *err) {
    if (i >= ZFI_N_KEYS)
        return zfi_error(err, ZF_ERR_ARGUMENT, "config", "key %lu of %d", (unsigned long)i, ZFI_N_KEYS);
    const zfi_key_t *key = zfi_key_at(i);
    *out = (zf_config_key_t){.struct_size = sizeof *out,
                             .section = key->section,
                             .key = key->name,
                             .type = zfi_key_type_name(key->type),
                             .range = key->range,
                             .default_value = key->default_value,
                             .doc = key->doc};
    return ZF_OK;
}

zf_status_t zfi_config_value(const zfi_config_t *config, uint32_t i, char *buf, uint64_t nbytes, zf_error_t *err) {
    if (!buf || !nbytes)
        return zfi_error(err, ZF_ERR_ARGUMENT, "config", "buf is NULL or empty");
    if (i >= ZFI_N_KEYS)
        return zfi_error(err, ZF_ERR_ARGUMENT, "config", "key %lu of %d", (unsigned long)i, ZFI_N_KEYS);
    zfi_key_print(zfi_key_at(i), config, buf, (size_t)nbytes);
    return ZF_OK;
}
