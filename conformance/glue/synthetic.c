/* SPDX-License-Identifier: Apache-2.0 */
/* synthetic.c - the grammar of the generated corpus (synthetic.h).
 *
 * A sentence is made in a fixed buffer from one stream of draws. clause() writes one statement about one thing and
 * returns its sentiment (+1, -1); sentence() joins clauses and returns the label. Words stand in tables as word
 * pieces: "charm ##ing" is written "charming" and gives the vocabulary its two entries. */
#define _POSIX_C_SOURCE 200809L
#include "synthetic.h"

#include "rng.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_WORDS(table) (sizeof(table) / sizeof((table)[0]))

static const char *const subjects[] = {
    "film",          "movie",   "plot",      "story",         "acting",         "script",    "cast",     "direct ##or",
    "music",         "ending",  "dialogue",  "pic ##ture",    "drama",          "come ##dy", "hero",     "villain",
    "camera ##work", "humor",   "pac ##ing", "screen ##play", "perform ##ance", "sequel",    "thriller", "romance",
    "score",         "scenery", "editing",   "opening",       "finale",         "premise"};
static const char *const praise[] = {
    "good",          "great",        "charm ##ing", "funny",        "mov ##ing",    "clever",        "superb",
    "fresh",         "warm",         "brilliant",   "elegant",      "touch ##ing",  "smart",         "witty",
    "delight ##ful", "gripping",     "honest",      "beauti ##ful", "lively",       "rich",          "power ##ful",
    "subtle",        "wonder ##ful", "engag ##ing", "inspir ##ed",  "stunning",     "tender",        "vivid",
    "master ##ful",  "thrill ##ing", "graceful",    "compelling",   "joyous",       "refresh ##ing", "splendid",
    "ador ##able",   "memor ##able", "flaw ##less", "dazzling",     "heart ##felt", "sharp",         "assured",
    "rous ##ing",    "magic ##al",   "win ##ning",  "enjoy ##able", "polished",     "profound",      "radiant",
    "satisfy ##ing"};
static const char *const blame[] = {"bad",
                                    "dull",
                                    "bor ##ing",
                                    "weak",
                                    "silly",
                                    "awful",
                                    "flat",
                                    "tired",
                                    "stale",
                                    "clumsy",
                                    "bland",
                                    "point ##less",
                                    "pain ##ful",
                                    "lazy",
                                    "shallow",
                                    "messy",
                                    "life ##less",
                                    "dread ##ful",
                                    "tedious",
                                    "cheap",
                                    "predict ##able",
                                    "hollow",
                                    "wood ##en",
                                    "forgett ##able",
                                    "confus ##ed",
                                    "irritat ##ing",
                                    "sloppy",
                                    "empty",
                                    "numb ##ing",
                                    "vulgar",
                                    "humor ##less",
                                    "contrived",
                                    "dismal",
                                    "annoy ##ing",
                                    "miser ##able",
                                    "trite",
                                    "aim ##less",
                                    "ugly",
                                    "slugg ##ish",
                                    "stilted",
                                    "cold",
                                    "incoherent",
                                    "exhaust ##ing",
                                    "tasteless",
                                    "joy ##less",
                                    "labored",
                                    "drab",
                                    "inept",
                                    "murky",
                                    "disappoint ##ing"};
static const char *const degrees[] = {"very",  "quite",  "rather",  "truly",  "so",     "deeply",
                                      "often", "fairly", "utterly", "almost", "simply", "always"};
static const char *const negations[] = {"not", "never", "hardly", "by no means", "far from", "n't"};
static const char *const verbs[] = {"is", "was", "seems", "feels", "looks", "remains"};
static const char *const owners[] = {"the", "its", "this", "their", "the whole", "her", "his"};
static const char *const fillers[] = {"set in a small town",     "made in two weeks",    "based on a novel",
                                      "shot in black and white", "now on video",         "from the same studio",
                                      "with a famous cast",      "which runs two hours", "for a wide audience",
                                      "in the second half"};
static const char *const joints[] = {"and", "but", "yet", "although", "while", "though", ",", ".", "of", "a", "it"};

enum { SENTENCE_NBYTES = 512 };

/* One sentence in the making. */
typedef struct writer {
    glue_rng_t rng;
    uint64_t n_drawn;
    char text[SENTENCE_NBYTES];
    size_t nbytes;
} writer_t;

static size_t draw(writer_t *w, size_t n) { return (size_t)glue_rng_below(w->rng, w->n_drawn++, n); }

static int chance(writer_t *w, double probability) { return glue_rng_uniform(w->rng, w->n_drawn++) < probability; }

/* Appends words and one space; word pieces are joined (" ##" disappears). */
static void put(writer_t *w, const char *words) {
    for (; *words != '\0' && w->nbytes + 2 < SENTENCE_NBYTES; words++) {
        if (strncmp(words, " ##", 3) == 0)
            words += 2;
        else
            w->text[w->nbytes++] = *words;
    }
    w->text[w->nbytes++] = ' ';
    w->text[w->nbytes] = '\0';
}

/* A word of a table, the first ones much more often than the last ones (as in real text). */
static const char *common_word(writer_t *w, const char *const *table, size_t n) {
    double u = glue_rng_uniform(w->rng, w->n_drawn++);

    return table[(size_t)(u * u * (double)n)];
}

/* A judging word of the given sentiment. */
static void put_judgement(writer_t *w, int sentiment) {
    put(w, sentiment > 0 ? common_word(w, praise, N_WORDS(praise)) : common_word(w, blame, N_WORDS(blame)));
}

/* "the plot is hardly very charming": returns the sentiment of the whole, which is `wanted` unless wanted is 0. */
static int clause(writer_t *w, int wanted) {
    int sentiment = wanted != 0 ? wanted : (chance(w, 0.5) ? 1 : -1);
    int is_negated = chance(w, 0.3);

    put(w, owners[draw(w, N_WORDS(owners))]);
    put(w, common_word(w, subjects, N_WORDS(subjects)));
    if (chance(w, 0.2))
        put(w, fillers[draw(w, N_WORDS(fillers))]);
    put(w, verbs[draw(w, N_WORDS(verbs))]);
    if (is_negated)
        put(w, negations[draw(w, N_WORDS(negations))]);
    if (chance(w, 0.4))
        put(w, degrees[draw(w, N_WORDS(degrees))]);
    put_judgement(w, is_negated ? -sentiment : sentiment);
    return sentiment;
}

/* "a witty drama": no verb, as many phrases of the real data have it. */
static int phrase(writer_t *w) {
    int sentiment = chance(w, 0.5) ? 1 : -1;

    put(w, "a");
    put_judgement(w, sentiment);
    put(w, common_word(w, subjects, N_WORDS(subjects)));
    if (chance(w, 0.5))
        put(w, fillers[draw(w, N_WORDS(fillers))]);
    return sentiment;
}

static int concession(writer_t *w) {
    int sentiment;

    put(w, chance(w, 0.5) ? "although" : "though");
    sentiment = -clause(w, 0);
    put(w, ",");
    return clause(w, sentiment);
}

static int contrast(writer_t *w) {
    int sentiment = -clause(w, 0);

    put(w, ",");
    put(w, chance(w, 0.7) ? "but" : "yet");
    return clause(w, sentiment);
}

static int agreement(writer_t *w) {
    int sentiment = clause(w, 0);

    put(w, chance(w, 0.5) ? "and" : ", while");
    return clause(w, sentiment);
}

/* Writes one sentence; returns its label, 1 for praise. */
static int sentence(writer_t *w) {
    size_t kind = draw(w, 10);
    int sentiment;

    w->nbytes = 0;
    if (kind < 4)
        sentiment = clause(w, 0);
    else if (kind < 5)
        sentiment = phrase(w);
    else if (kind < 7)
        sentiment = contrast(w);
    else if (kind < 8)
        sentiment = concession(w);
    else
        sentiment = agreement(w);
    if (chance(w, 0.5))
        put(w, ".");
    if (chance(w, 0.06))
        sentiment = -sentiment;
    return sentiment > 0;
}

static void write_rows(FILE *file, uint64_t seed, uint64_t stream, size_t n_rows) {
    writer_t w = {.rng = glue_rng(seed, stream)};

    (void)fputs("sentence\tlabel\n", file);
    for (size_t i = 0; i < n_rows; i++) {
        int label = sentence(&w);

        (void)fprintf(file, "%s\t%d\n", w.text, label);
    }
}

/* The growing list of a vocabulary: each piece once, in order of first appearance. */
typedef struct piece_list {
    char pieces[1024][24];
    size_t n;
} piece_list_t;

static void add_piece(piece_list_t *list, const char *piece, size_t nbytes) {
    if (nbytes == 0 || nbytes >= sizeof list->pieces[0] || list->n == N_WORDS(list->pieces))
        return;
    for (size_t i = 0; i < list->n; i++)
        if (strlen(list->pieces[i]) == nbytes && memcmp(list->pieces[i], piece, nbytes) == 0)
            return;
    memcpy(list->pieces[list->n], piece, nbytes);
    list->pieces[list->n++][nbytes] = '\0';
}

static void add_words(piece_list_t *list, const char *const *table, size_t n) {
    for (size_t i = 0; i < n; i++)
        for (const char *word = table[i]; *word != '\0'; word += strspn(word, " ")) {
            size_t nbytes = strcspn(word, " ");

            add_piece(list, word, nbytes);
            word += nbytes;
        }
}

/* Letters, alone and as continuations, so that no word is unknown. "n't" is split at its apostrophe. */
static void add_letters(piece_list_t *list) {
    for (int c = 'a'; c <= 'z'; c++) {
        char piece[4] = {'#', '#', (char)c, '\0'};

        add_piece(list, piece + 2, 1);
        add_piece(list, piece, 3);
    }
    for (const char *c = "0123456789'!?;:-"; *c != '\0'; c++)
        add_piece(list, c, 1);
}

static void write_vocab(FILE *file) {
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    piece_list_t *list = calloc(1, sizeof *list);

    if (list == NULL) {
        errno = ENOMEM;
        return;
    }
    add_words(list, special, N_WORDS(special));
    add_letters(list);
    add_words(list, joints, N_WORDS(joints));
    add_words(list, owners, N_WORDS(owners));
    add_words(list, verbs, N_WORDS(verbs));
    add_words(list, degrees, N_WORDS(degrees));
    add_words(list, negations, N_WORDS(negations) - 1); /* all but "n't" */
    add_words(list, fillers, N_WORDS(fillers));
    add_words(list, subjects, N_WORDS(subjects));
    add_words(list, praise, N_WORDS(praise));
    add_words(list, blame, N_WORDS(blame));
    for (size_t i = 0; i < list->n; i++)
        (void)fprintf(file, "%s\n", list->pieces[i]);
    free(list);
}

enum file_kind { TRAIN_FILE, DEV_FILE, VOCAB_FILE, N_FILE_KINDS };

static const char *const file_names[N_FILE_KINDS] = {"train.tsv", "dev.tsv", "vocab.txt"};

static int write_file(const char *folder, enum file_kind kind, const glue_synthetic_options_t *o, glue_error_t *err) {
    char path[4096], temporary[4128];
    FILE *file;
    int has_failed;

    if (snprintf(path, sizeof path, "%s/%s", folder, file_names[kind]) >= (int)sizeof path)
        return glue_fail(err, "%.60s...: the path is too long", folder);
    (void)snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    file = fopen(temporary, "wb");
    if (file == NULL)
        return glue_fail(err, "%s: cannot write: %s", temporary, strerror(errno));
    if (kind == VOCAB_FILE)
        write_vocab(file);
    else
        write_rows(file, o->seed, (uint64_t)kind, kind == TRAIN_FILE ? o->n_train : o->n_dev);
    has_failed = ferror(file) != 0;
    if (fclose(file) != 0 || has_failed || rename(temporary, path) != 0) {
        (void)remove(temporary);
        return glue_fail(err, "%s: cannot write: %s", path, strerror(errno));
    }
    return 0;
}

int glue_synthetic_write(const char *folder, const glue_synthetic_options_t *options, glue_error_t *err) {
    glue_synthetic_options_t o = options != NULL ? *options : (glue_synthetic_options_t){.seed = 0};

    o.n_train = o.n_train != 0 ? o.n_train : 20000;
    o.n_dev = o.n_dev != 0 ? o.n_dev : 1500;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return glue_fail(err, "%s: cannot make the folder: %s", folder, strerror(errno));
    for (int kind = 0; kind < N_FILE_KINDS; kind++)
        if (write_file(folder, (enum file_kind)kind, &o, err) != 0)
            return -1;
    return 0;
}

int glue_synthetic_ensure(const char *folder, glue_error_t *err) {
    for (int kind = 0; kind < N_FILE_KINDS; kind++) {
        char path[4096];
        struct stat info;

        (void)snprintf(path, sizeof path, "%s/%s", folder, file_names[kind]);
        if (stat(path, &info) != 0)
            return glue_synthetic_write(folder, NULL, err);
    }
    return 0;
}
