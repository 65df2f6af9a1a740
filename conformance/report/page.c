/* page.c - the frame of the page: style, table of verdicts, the order of the sections (page.h). */
#include "page.h"

#include "glue_json.h"
#include "plot.h"
#include "text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct section {
    const char *area, *title, *question;
    void (*put)(FILE *file, const json_t *json);
    void (*say)(const json_t *json, char out[ZR_SUMMARY_NBYTES]);
} section_t;

static const section_t sections[] = {
    {"abi", "ABI", "Does the library keep the contract of its tables, whatever a host does?", zr_put_checks,
     zr_say_checks},
    {"exact", "Exact laws", "Is every value the oracle's, bit for bit?", zr_put_checks, zr_say_checks},
    {"shard", "Ranks", "Are P ranks one rank?", zr_put_checks, zr_say_checks},
    {"glue", "Accuracy parity", "Does training through the plugin reach what AdamW reaches?", zr_put_glue, zr_say_glue},
    {"curves", "Loss curves", "What does the training loss lose to staleness, from scratch?", zr_put_curves,
     zr_say_curves},
    {"ablation", "Ablation", "What is each idea worth, and which defaults follow?", zr_put_ablation, zr_say_ablation},
    {"perf", "Bytes, memory, time", "Are bytes moved and occupied those of the formulas, and what do the threads do?",
     zr_put_perf, zr_say_perf},
};

enum { N_SECTIONS = sizeof sections / sizeof *sections };

const char *zr_area_name(size_t i) { return i < N_SECTIONS ? sections[i].area : NULL; }

/* ---- style ------------------------------------------------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light dark;--page:#fff;--ink:#1d1d1f;--quiet:#5a5a60;--grid:#e4e4e8;--area:#f4f4f6;"
    "--good:#00694b;--bad:#a83200;--open:#6b5200;--c0:#1a1a1a}\n"
    "@media (prefers-color-scheme:dark){:root{--page:#16171a;--ink:#e8e8ea;--quiet:#a5a6ad;--grid:#34363c;"
    "--area:#212327;--good:#4fd0a5;--bad:#ff9a66;--open:#e8c14d;--c0:#f2f2f2;--c1:#4da6e0;--c2:#f0803a;--c3:#2ec49a;"
    "--c4:#e29ac4;--c5:#e0b03a;--c6:#8ccdf3;--c7:#c8a262;--c8:#a0a0a0;--c9:#ff7a7a}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;max-width:76rem;padding:1.2rem 1rem 4rem;background:var(--page);color:var(--ink);"
    "font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;overflow-wrap:break-word}\n"
    "h1{font-size:1.6rem;line-height:1.25;margin:.2rem 0}h2{font-size:1.3rem;margin:2.8rem 0 .2rem;"
    "border-top:1px solid var(--grid);padding-top:1.1rem}h3{font-size:1.05rem;margin:1.6rem 0 .4rem}\n"
    "p{max-width:48rem;margin:.4rem 0}.quiet,figcaption span{color:var(--quiet)}a{color:inherit}\n"
    ".scroll{overflow-x:auto;margin:.8rem 0}\n"
    "table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.28rem .7rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid)}\n"
    "th{color:var(--quiet);font-weight:600;vertical-align:bottom;min-width:4rem}td.n,th.n{text-align:right}"
    "td{white-space:nowrap}th[colspan]{color:var(--ink);padding-top:.9rem}td.wide{min-width:16rem;white-space:normal}\n"
    ".details{margin:.2rem 0 0;padding-left:1.1rem;color:var(--quiet);font-size:.85rem}\n"
    ".verdict{font-weight:700;white-space:nowrap}.good{color:var(--good)}.bad{color:var(--bad)}.open{color:var(--open)}"
    "\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:1.6rem 2rem;"
    "margin:1rem 0}\n"
    "figure{margin:0;min-width:0;max-width:44rem}figure.full{max-width:none}\n"
    "figcaption{margin-bottom:.4rem;font-weight:600}figcaption span{display:block;font-weight:400;font-size:.88rem}\n"
    "figure svg{display:block;width:100%;height:auto}figure svg.long{min-width:52rem}\n"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.5rem 0 "
    "0;padding:0;font-size:.86rem}\n"
    ".legend svg{display:inline-block;width:26px;height:10px}\n"
    "@media (max-width:40rem){figure:not(.full) svg text{font-size:17px}th,td{padding:.28rem .45rem}}\n"
    "@media print{:root{color-scheme:light}body{max-width:none;font-size:11pt}figure,tr{break-inside:avoid}"
    "h2,h3{break-after:avoid}.scroll{overflow:visible}}\n";

/* ---- parts ------------------------------------------------------------------------------------------------------- */

void zr_figure_begin(FILE *file, const char *title, const char *note) {
    (void)fputs("<figure><figcaption>", file);
    zr_put_html(file, title);
    if (note != NULL) {
        (void)fputs("<span>", file);
        zr_put_html(file, note);
        (void)fputs("</span>", file);
    }
    (void)fputs("</figcaption>\n", file);
}

void zr_figure_end(FILE *file) { (void)fputs("</figure>\n", file); }

void zr_table_begin(FILE *file, const char *const *heads, size_t n) {
    (void)fputs("<div class=\"scroll\"><table><thead><tr>", file);
    for (size_t i = 0; i < n; i++) {
        (void)fputs(heads[i][0] == '>' ? "<th class=\"n\">" : "<th>", file);
        zr_put_html(file, heads[i] + (heads[i][0] == '>'));
        (void)fputs("</th>", file);
    }
    (void)fputs("</tr></thead><tbody>\n", file);
}

void zr_table_end(FILE *file) { (void)fputs("</tbody></table></div>\n", file); }

void zr_cell_text(FILE *file, const char *text) {
    (void)fputs("<td>", file);
    zr_put_html(file, text);
    (void)fputs("</td>", file);
}

void zr_cell_number(FILE *file, double value, int n_decimals) {
    char text[ZR_NUMBER_NBYTES];

    (void)fprintf(file, "<td class=\"n\">%s</td>", zr_fixed(value, n_decimals, text));
}

void zr_put_verdict(FILE *file, const char *word) {
    const char *kind = strcmp(word, "PASS") == 0 || strcmp(word, "held") == 0     ? "good"
                       : strcmp(word, "FAIL") == 0 || strcmp(word, "MISSED") == 0 ? "bad"
                                                                                  : "open";

    (void)fprintf(file, "<span class=\"verdict %s\">", kind);
    zr_put_html(file, word[0] != '\0' ? word : "-");
    (void)fputs("</span>", file);
}

void zr_put_source(FILE *file, const json_t *json) {
    char task[64], dtype[32], hash[80], number[ZR_NUMBER_NBYTES];

    if (zg_json_text(json, "task", task, sizeof task) == 0)
        return;
    (void)zg_json_text(json, "dtype", dtype, sizeof dtype);
    (void)zg_json_text(json, "sha256.train", hash, sizeof hash);
    (void)fputs("<p class=\"quiet\">Task ", file);
    zr_put_html(file, task);
    if (json_is_true(zg_json_find(json, "is_synthetic")))
        (void)fputs(" on a <strong>SYNTHETIC</strong> corpus (generated; says nothing about GLUE)", file);
    else
        zr_printf_html(file, ", official files (train sha256 %.8s)", hash);
    if (zg_json_text(json, "encoder_sha256", hash, sizeof hash) && hash[0] != '\0')
        zr_printf_html(file, ": pretrained encoder (sha256 %.8s)", hash);
    else
        (void)fputs(": encoder from scratch", file);
    zr_printf_html(file, ", %s parameters in %s, ", zr_fixed(zg_json_number(json, "parameters", NAN), 0, number),
                   dtype);
    zr_printf_html(file, "%s steps of ", zr_fixed(zg_json_number(json, "steps", NAN), 0, number));
    zr_printf_html(file, "%s rows", zr_fixed(zg_json_number(json, "batch", NAN), 0, number));
    if (zg_json_find(json, "levels") == NULL && isfinite(zg_json_number(json, "lr", NAN)))
        zr_printf_html(file, ", peak learning rate %g", zg_json_number(json, "lr", NAN));
    (void)fputs(".</p>\n", file);
}

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */

static const char *word_of(const zr_result_t *r) {
    double status = r->exit_status >= 0 ? r->exit_status
                    : r->json != NULL   ? zg_json_number(r->json, "exit_status", NAN)
                                        : NAN;

    if (isnan(status))
        return r->json != NULL || r->message != NULL ? "no verdict" : "not run";
    switch ((int)status) {
    case 0:
        return "PASS";
    case 1:
        return "FAIL";
    case 3:
        return "INCONCLUSIVE";
    case 77:
        return "skipped";
    default:
        return "could not run";
    }
}

static const zr_result_t *result_of(const zr_result_t *results, size_t n, const char *area, size_t *from) {
    for (; *from < n; (*from)++)
        if (strcmp(results[*from].area, area) == 0)
            return &results[(*from)++];
    return NULL;
}

static void put_summary_row(FILE *file, const section_t *s, const zr_result_t *r) {
    char text[ZR_SUMMARY_NBYTES] = "";

    (void)fprintf(file, "<tr><td><a href=\"#%s\">%s</a></td><td>", s->area, s->area);
    zr_put_verdict(file, r != NULL ? word_of(r) : "not run");
    (void)fputs("</td><td class=\"wide\">", file);
    if (r != NULL && r->json != NULL)
        s->say(r->json, text);
    else if (r != NULL && r->message != NULL)
        (void)snprintf(text, sizeof text, "%s", r->message);
    zr_put_html(file, text[0] != '\0' ? text : "-");
    (void)fputs("</td>", file);
    zr_cell_number(file, r != NULL ? r->seconds : NAN, 0);
    (void)fputs("<td class=\"wide\">", file);
    zr_put_html(file, s->question);
    (void)fputs("</td></tr>\n", file);
}

static void put_summary(FILE *file, const zr_result_t *results, size_t n) {
    const char *const heads[] = {"area", "verdict", "found", ">seconds", "question"};

    zr_table_begin(file, heads, 5);
    for (size_t i = 0; i < N_SECTIONS; i++) {
        size_t from = 0;
        const zr_result_t *r = result_of(results, n, sections[i].area, &from);

        put_summary_row(file, &sections[i], r);
        while (r != NULL && (r = result_of(results, n, sections[i].area, &from)) != NULL)
            put_summary_row(file, &sections[i], r);
    }
    zr_table_end(file);
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

/* The processor's name, "" where it is not known. */
static void find_processor(char *out, size_t nbytes) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");

    out[0] = '\0';
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            (void)snprintf(out, nbytes, "%s", strchr(line, ':') + 1 + strspn(strchr(line, ':') + 1, " "));
            out[strcspn(out, "\n")] = '\0';
            break;
        }
    if (file != NULL)
        (void)fclose(file);
}

static void put_head(FILE *file, const zr_result_t *results, size_t n) {
    char version[64] = "", processor[200], date[64] = "";
    time_t now = time(NULL);
    struct tm parts;

    for (size_t i = 0; i < n && version[0] == '\0'; i++)
        if (results[i].json != NULL)
            (void)zg_json_text(results[i].json, "plugin", version, sizeof version);
    if (gmtime_r(&now, &parts) != NULL)
        (void)strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &parts);
    find_processor(processor, sizeof processor);
    (void)fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
                "<title>zf-conform: conformance of libzfplugin</title>\n<style>\n",
                file);
    (void)fputs(style, file);
    zr_put_colours(file);
    (void)fputs("</style>\n</head>\n<body>\n<h1>Conformance of libzfplugin</h1>\n<p class=\"quiet\">", file);
    zr_printf_html(file, "zf-conform --report, page made %s%s%s%s%s", date, version[0] != '\0' ? "; plugin " : "",
                   version, processor[0] != '\0' ? "; on " : "", processor);
    (void)fputs("</p>\n", file);
}

static void put_section(FILE *file, const section_t *s, const zr_result_t *results, size_t n) {
    size_t from = 0;
    const zr_result_t *r = result_of(results, n, s->area, &from);

    (void)fprintf(file, "<section id=\"%s\">\n<h2>", s->area);
    zr_put_html(file, s->title);
    (void)fprintf(file, " <span class=\"quiet\">(%s)</span></h2>\n<p>", s->area);
    zr_put_html(file, s->question);
    (void)fputs("</p>\n", file);
    if (r == NULL)
        (void)fputs("<p class=\"quiet\">Not run.</p>\n", file);
    for (; r != NULL; r = result_of(results, n, s->area, &from)) {
        (void)fputs("<p>Verdict: ", file);
        zr_put_verdict(file, word_of(r));
        (void)fputs("</p>\n", file);
        if (r->json != NULL) {
            s->put(file, r->json);
        } else if (r->message != NULL) {
            (void)fputs("<p>", file);
            zr_put_html(file, r->message);
            (void)fputs("</p>\n", file);
        }
    }
    (void)fputs("</section>\n", file);
}

void zr_page_put(FILE *file, const zr_result_t *results, size_t n) {
    put_head(file, results, n);
    put_summary(file, results, n);
    for (size_t i = 0; i < N_SECTIONS; i++)
        put_section(file, &sections[i], results, n);
    (void)fputs("</body>\n</html>\n", file);
}

int zr_page_write(const zr_result_t *results, size_t n, const char *path, glue_error_t *err) {
    FILE *file = fopen(path, "w");
    int has_failed;

    if (file == NULL)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    zr_page_put(file, results, n);
    has_failed = ferror(file) != 0;
    if (fclose(file) != 0 || has_failed)
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    return 0;
}
