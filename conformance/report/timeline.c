/* timeline.c - the page's timeline: one lane per thread, the host's hooks above, the link below (page.h). */
#include "page.h"

#include "glue_json.h"
#include "plot.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 1120, LEFT = 128, RIGHT = 16, TOP = 24, LANE = 30, BAR = 20, LINK_LANE = 52, BOTTOM = 50, MOST = 8192 };
enum { N_LEVELS = 8, MAX_HOOKS = 8 };

typedef struct lanes {
    FILE *file;
    double *at; /* [n] sample times, microseconds */
    size_t n;
    double end; /* of the picture */
    double y;   /* of the next lane's middle */
} lanes_t;

static double x_of(const lanes_t *l, double us) {
    return LEFT + (WIDTH - LEFT - RIGHT) * fmin(fmax(us, 0.0), l->end) / l->end;
}

static void put_label(const lanes_t *l, const char *name) {
    zr_put_text(l->file, LEFT - 9, l->y + 4, "text-anchor=\"end\"", name);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

static void put_hooks(lanes_t *l, const json_t *json) {
    static const unsigned shades[MAX_HOOKS] = {8, 1, 2, 6, 3, 4, 5, 7};
    double *spans = calloc(MOST, sizeof *spans);
    const json_t *item;
    size_t kind;

    put_label(l, "host: hooks");
    json_array_foreach(zg_json_find(json, "hooks"), kind, item) {
        size_t n = spans != NULL && kind < MAX_HOOKS ? zg_json_numbers(item, "from_to_us", spans, MOST) : 0;

        for (size_t i = 0; i + 1 < n && i + 1 < MOST; i += 2)
            (void)fprintf(l->file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" class=\"f%u\"/>\n",
                          x_of(l, spans[i]), l->y - BAR / 2.0, fmax(x_of(l, spans[i + 1]) - x_of(l, spans[i]), 0.6),
                          BAR, shades[kind]);
    }
    free(spans);
    l->y += LANE;
}

/* Neighbouring samples of one level are one rectangle. */
static void put_busy(lanes_t *l, const double *busy, size_t n, unsigned colour) {
    size_t first = 0;
    long level = 0;

    (void)fprintf(l->file, "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" class=\"area\"/>\n", LEFT,
                  l->y - BAR / 2.0, WIDTH - LEFT - RIGHT, BAR);
    for (size_t i = 0; i <= n; i++) {
        double share = i < n ? busy[i] / (l->at[i + 1] - l->at[i]) : -1.0;
        long now = i < n ? lround(N_LEVELS * fmin(fmax(share, 0.0), 1.0)) : -1;

        if (i > 0 && now == level)
            continue;
        if (i > 0 && level > 0)
            (void)fprintf(l->file,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" class=\"f%u\" "
                          "fill-opacity=\"%.2f\"/>\n",
                          x_of(l, l->at[first]), l->y - BAR / 2.0, x_of(l, l->at[i]) - x_of(l, l->at[first]), BAR,
                          colour, (double)level / N_LEVELS);
        first = i;
        level = now;
    }
}

static unsigned colour_of(const char *name) {
    static const char *const names[] = {"host", "device", "down", "up", "control", "worker"};
    static const unsigned colours[] = {8, 2, 1, 6, 5, 3};

    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++)
        if (strstr(name, names[i]) != NULL)
            return colours[i];
    return 7;
}

static void put_threads(lanes_t *l, const json_t *json) {
    double *busy = calloc(MOST, sizeof *busy);
    const json_t *item;
    size_t i;

    json_array_foreach(zg_json_find(json, "threads"), i, item) {
        size_t n = busy != NULL ? zg_json_numbers(item, "busy_us", busy, MOST) : 0;
        char name[64];

        (void)zg_json_text(item, "name", name, sizeof name);
        put_label(l, name);
        put_busy(l, busy, n < l->n ? n : l->n - 1, colour_of(name));
        l->y += LANE;
    }
    free(busy);
}

/* Bytes per second as an area over its own little axis. */
static void put_link(lanes_t *l, const json_t *json, const char *member, const char *name, unsigned colour) {
    double *nbytes = calloc(MOST, sizeof *nbytes), most = 0.0, base = l->y + LINK_LANE / 2.0 - 6;
    size_t n = nbytes != NULL ? zg_json_numbers(json, member, nbytes, MOST) : 0;
    char text[64];

    n = n < l->n ? n : l->n - 1;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, nbytes[i] / (l->at[i + 1] - l->at[i]));
    put_label(l, name);
    (void)fprintf(l->file, "<path d=\"M%d %.1fH%d\" class=\"grid\"/>\n", LEFT, base, WIDTH - RIGHT);
    for (size_t i = 0; i < n && most > 0.0; i++) {
        double height = (LINK_LANE - 14) * nbytes[i] / (l->at[i + 1] - l->at[i]) / most;

        if (height > 0.0)
            (void)fprintf(l->file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" class=\"f%u\"/>\n",
                          x_of(l, l->at[i]), base - height, fmax(x_of(l, l->at[i + 1]) - x_of(l, l->at[i]), 0.5),
                          height, colour);
    }
    (void)snprintf(text, sizeof text, "peak %.2f GB/s", 1e-3 * most); /* bytes per microsecond = MB/s */
    zr_put_text(l->file, LEFT - 9, l->y + 19, "text-anchor=\"end\" font-size=\"11\" class=\"quiet\"", text);
    free(nbytes);
    l->y += LINK_LANE;
}

static void put_time(const lanes_t *l, const json_t *json, double bottom) {
    double tick = zr_nice_tick(1e-3 * l->end, 10.0), steps[64];
    size_t n = zg_json_numbers(json, "steps_us", steps, 64);

    for (size_t i = 0; i < n && i < 64; i++) {
        char text[24];

        (void)fprintf(l->file, "<path d=\"M%.1f %dV%.1f\" class=\"axis\" stroke-dasharray=\"2 3\"/>\n",
                      x_of(l, steps[i]), TOP - 6, bottom);
        (void)snprintf(text, sizeof text, "step %zu", i + 1);
        zr_put_text(l->file, (x_of(l, steps[i]) + x_of(l, i > 0 ? steps[i - 1] : 0.0)) / 2.0, TOP - 8,
                    "text-anchor=\"middle\" class=\"quiet\"", text);
    }
    (void)fprintf(l->file, "<path d=\"M%d %.1fH%d\" class=\"axis\"/>\n", LEFT, bottom, WIDTH - RIGHT);
    for (double ms = 0.0; ms <= 1e-3 * l->end; ms += tick) {
        (void)fprintf(l->file, "<path d=\"M%.1f %.1fv5\" class=\"axis\"/>\n", x_of(l, 1e3 * ms), bottom);
        zr_put_tick(l->file, x_of(l, 1e3 * ms), bottom + 19, "middle", ms, tick);
    }
    zr_put_text(l->file, (LEFT + WIDTH - RIGHT) / 2.0, bottom + 41, "text-anchor=\"middle\"", "time, milliseconds");
}

static void put_hook_legend(FILE *file, const json_t *json) {
    static const unsigned shades[MAX_HOOKS] = {8, 1, 2, 6, 3, 4, 5, 7};
    const json_t *item;
    size_t kind;

    (void)fputs("<ul class=\"legend\"><li>host: hooks:</li>", file);
    json_array_foreach(zg_json_find(json, "hooks"), kind, item) {
        char name[64];

        if (kind == MAX_HOOKS)
            break;

        (void)zg_json_text(item, "name", name, sizeof name);
        (void)fprintf(file,
                      "<li><svg xmlns=\"http://www.w3.org/2000/svg\" width=\"26\" height=\"10\" viewBox=\"0 0 26 10\">"
                      "<rect width=\"26\" height=\"10\" class=\"f%u\"/></svg> ",
                      shades[kind]);
        zr_put_html(file, name);
        (void)fputs("</li>", file);
    }
    (void)fputs("</ul>\n", file);
}

void zr_put_timeline(FILE *file, const json_t *json) {
    lanes_t l = {.file = file, .at = calloc(MOST, sizeof(double)), .y = TOP + LANE / 2.0};
    double bottom = TOP + LANE * (double)(1 + json_array_size(zg_json_find(json, "threads"))) + 2.0 * LINK_LANE + 6;
    char note[200], interval[ZR_NUMBER_NBYTES];

    l.n = l.at != NULL ? zg_json_numbers(json, "at_us", l.at, MOST) : 0;
    l.n = l.n < MOST ? l.n : MOST;
    if (l.n < 2 || !(l.at[l.n - 1] > 0.0)) {
        (void)fputs("<p class=\"quiet\">The timeline of this file is empty.</p>\n", file);
        free(l.at);
        return;
    }
    l.end = l.at[l.n - 1];
    (void)snprintf(
        note, sizeof note,
        "S = %.12s, %zu samples of each thread's CPU clock, one per %.0f us; darker is busier, a waiting thread is "
        "blank",
        zr_number(zg_json_number(json, "interval", NAN), interval), l.n, l.end / (double)(l.n - 1));
    (void)fputs("<h3>Timeline</h3>\n<figure class=\"full\"><figcaption>What every thread does over a few steps<span>",
                file);
    zr_put_html(file, note);
    (void)fprintf(
        file,
        "</span></figcaption>\n<div class=\"scroll\"><svg class=\"long\" xmlns=\"http://www.w3.org/2000/svg\" "
        "viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" font-size=\"13\" role=\"img\" "
        "aria-label=\"timeline of threads\">\n",
        WIDTH, bottom + BOTTOM, WIDTH, bottom + BOTTOM);
    put_hooks(&l, json);
    put_threads(&l, json);
    l.y += (LINK_LANE - LANE) / 2.0;
    put_link(&l, json, "down_bytes", "link down", 1);
    put_link(&l, json, "up_bytes", "link up", 6);
    put_time(&l, json, bottom);
    (void)fputs("</svg></div>\n", file);
    put_hook_legend(file, json);
    (void)fputs("</figure>\n", file);
    free(l.at);
}
