/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.c - the WordPiece tokenizer of tokenizer.h.
 *
 * The vocabulary is a table of pieces plus an open-addressing hash index over it (FNV-1a, load at most 1/2). A text is
 * read once, character by character; the word in the making is kept as UTF-8 with the byte offset of each character,
 * so that the greedy search tries only whole characters. */
#define _POSIX_C_SOURCE 200809L
#include "tokenizer.h"

#include "unicode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD_CHARS = 100, MAX_PIECE_NBYTES = 4 * MAX_WORD_CHARS + 3 };

struct host_tokenizer {
    char **pieces;
    size_t n_pieces, n_pieces_allocated;
    int32_t *index; /* [n_index] piece id or -1 */
    size_t n_index; /* a power of two */
    int32_t pad, unk, cls, sep;
    int keeps_case;
};

static size_t hash_bytes(const char *bytes, size_t nbytes) {
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < nbytes; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return (size_t)(hash ^ (hash >> 32));
}

/* The place of a piece in the index, or the free place where it would stand. */
static size_t find_place(const host_tokenizer_t *t, const char *bytes, size_t nbytes) {
    size_t place = hash_bytes(bytes, nbytes) & (t->n_index - 1);

    for (; t->index[place] >= 0; place = (place + 1) & (t->n_index - 1)) {
        const char *piece = t->pieces[t->index[place]];

        if (strncmp(piece, bytes, nbytes) == 0 && piece[nbytes] == '\0')
            break;
    }
    return place;
}

static int append_piece(host_tokenizer_t *t, const char *text, size_t nbytes) {
    if (t->n_pieces == t->n_pieces_allocated) {
        size_t n = t->n_pieces_allocated == 0 ? 4096 : 2 * t->n_pieces_allocated;
        char **pieces = realloc(t->pieces, n * sizeof *pieces);

        if (pieces == NULL)
            return -1;
        t->pieces = pieces;
        t->n_pieces_allocated = n;
    }
    t->pieces[t->n_pieces] = strndup(text, nbytes);
    return t->pieces[t->n_pieces] == NULL ? -1 : (t->n_pieces++, 0);
}

static int read_pieces(host_tokenizer_t *t, FILE *file, const char *path, glue_error_t *err) {
    char line[1024];

    while (fgets(line, sizeof line, file) != NULL) {
        size_t nbytes = strcspn(line, "\r\n");

        if (nbytes + 1 == sizeof line || nbytes == 0)
            return glue_fail(err, "%s:%zu: found %s; a vocabulary has one piece of text per line", path,
                             t->n_pieces + 1, nbytes == 0 ? "an empty line" : "an overlong line");
        if (append_piece(t, line, nbytes) != 0)
            return glue_fail(err, "%s: out of memory at piece %zu", path, t->n_pieces);
    }
    if (ferror(file))
        return glue_fail(err, "%s: cannot read: %s; a vocabulary file is needed", path, strerror(errno));
    if (t->n_pieces == 0)
        return glue_fail(err, "%s: the file is empty; a vocabulary is needed", path);
    return 0;
}

static int build_index(host_tokenizer_t *t, const char *path, glue_error_t *err) {
    for (t->n_index = 1024; t->n_index < 2 * t->n_pieces;)
        t->n_index *= 2;
    t->index = malloc(t->n_index * sizeof *t->index);
    if (t->index == NULL)
        return glue_fail(err, "%s: out of memory for the index", path);
    for (size_t i = 0; i < t->n_index; i++)
        t->index[i] = -1;
    for (size_t id = 0; id < t->n_pieces; id++) {
        size_t place = find_place(t, t->pieces[id], strlen(t->pieces[id]));

        if (t->index[place] < 0)
            t->index[place] = (int32_t)id;
    }
    return 0;
}

static int find_special(const host_tokenizer_t *t, const char *path, const char *piece, int32_t *out_id,
                        glue_error_t *err) {
    *out_id = host_tokenizer_id(t, piece);
    if (*out_id < 0)
        return glue_fail(err, "%s: found no line %s among %zu; a WordPiece vocabulary is needed", path, piece,
                         t->n_pieces);
    return 0;
}

static int load(host_tokenizer_t *t, const char *path, glue_error_t *err) {
    FILE *file = fopen(path, "rb");
    int has_failed;

    if (file == NULL)
        return glue_fail(err, "%s: cannot open: %s; a WordPiece vocabulary (vocab.txt) is needed", path,
                         strerror(errno));
    has_failed = read_pieces(t, file, path, err);
    (void)fclose(file);
    if (has_failed || build_index(t, path, err) != 0)
        return -1;
    if (find_special(t, path, "[PAD]", &t->pad, err) != 0 || find_special(t, path, "[UNK]", &t->unk, err) != 0 ||
        find_special(t, path, "[CLS]", &t->cls, err) != 0 || find_special(t, path, "[SEP]", &t->sep, err) != 0)
        return -1;
    return 0;
}

int host_tokenizer_load(const char *vocab_path, host_tokenizer_t **out, glue_error_t *err) {
    host_tokenizer_t *t = calloc(1, sizeof *t);

    if (t == NULL)
        return glue_fail(err, "%s: out of memory", vocab_path);
    if (load(t, vocab_path, err) != 0) {
        host_tokenizer_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

void host_tokenizer_free(host_tokenizer_t *t) {
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->n_pieces; i++)
        free(t->pieces[i]);
    free(t->pieces);
    free(t->index);
    free(t);
}

void host_tokenizer_keep_case(host_tokenizer_t *t) { t->keeps_case = 1; }

size_t host_tokenizer_n_pieces(const host_tokenizer_t *t) { return t->n_pieces; }

const char *host_tokenizer_piece(const host_tokenizer_t *t, int32_t id) {
    return id >= 0 && (size_t)id < t->n_pieces ? t->pieces[id] : NULL;
}

int32_t host_tokenizer_id(const host_tokenizer_t *t, const char *piece) {
    return t->index[find_place(t, piece, strlen(piece))];
}

/* A word in the making, and where its pieces go. */
typedef struct word {
    const host_tokenizer_t *tokenizer;
    char bytes[4 * MAX_WORD_CHARS];
    size_t starts[MAX_WORD_CHARS + 1]; /* byte offset of each character, and of the end */
    size_t n_chars;                    /* may exceed MAX_WORD_CHARS: then the word is [UNK] */
    int32_t *ids;
    size_t n_ids, capacity;
} word_t;

static void emit(word_t *w, int32_t id) {
    if (w->n_ids < w->capacity)
        w->ids[w->n_ids++] = id;
}

/* The longest piece that starts at character `first`: its id or -1, and the character after it. */
static int32_t longest_piece(word_t *w, size_t first, size_t *out_end) {
    char candidate[MAX_PIECE_NBYTES];
    size_t n_prefix = first > 0 ? 2 : 0;

    memcpy(candidate, "##", 2);
    memcpy(candidate + n_prefix, w->bytes + w->starts[first], w->starts[w->n_chars] - w->starts[first]);
    for (size_t end = w->n_chars; end > first; end--) {
        size_t nbytes = n_prefix + w->starts[end] - w->starts[first];
        int32_t id = w->tokenizer->index[find_place(w->tokenizer, candidate, nbytes)];

        if (id >= 0) {
            *out_end = end;
            return id;
        }
    }
    return -1;
}

/* Cuts the word into pieces and starts a new one. A word with an unknown rest is one [UNK]. */
static void finish_word(word_t *w) {
    size_t n_ids_before = w->n_ids;

    if (w->n_chars > MAX_WORD_CHARS)
        emit(w, w->tokenizer->unk);
    for (size_t first = 0; w->n_chars <= MAX_WORD_CHARS && first < w->n_chars;) {
        int32_t id = longest_piece(w, first, &first);

        if (id < 0) {
            w->n_ids = n_ids_before;
            emit(w, w->tokenizer->unk);
            break;
        }
        emit(w, id);
    }
    w->n_chars = 0;
}

static void add_char(word_t *w, uint32_t c) {
    if (w->n_chars < MAX_WORD_CHARS) {
        size_t start = w->n_chars == 0 ? 0 : w->starts[w->n_chars];

        w->starts[w->n_chars] = start;
        w->starts[w->n_chars + 1] = start + (size_t)host_utf8_put(c, w->bytes + start);
    }
    w->n_chars++;
}

size_t host_tokenize(const host_tokenizer_t *tokenizer, const char *text, int32_t *out_ids, size_t capacity) {
    word_t w = {.tokenizer = tokenizer, .ids = out_ids, .capacity = capacity};

    while (*text != '\0' && w.n_ids < capacity) {
        uint32_t c;

        text = host_utf8_next(text, &c);
        if (c == 0xfffd || host_is_control(c))
            continue;
        if (host_is_space(c)) {
            finish_word(&w);
            continue;
        }
        c = tokenizer->keeps_case ? c : host_fold(c);
        if (c == 0)
            continue;
        if (!host_is_punctuation(c) && !host_is_cjk(c)) {
            add_char(&w, c);
            continue;
        }
        finish_word(&w);
        add_char(&w, c);
        finish_word(&w);
    }
    finish_word(&w);
    return w.n_ids;
}

size_t host_encode(const host_tokenizer_t *t, const char *text_a, const char *text_b, size_t max_tokens,
                   int32_t *out_ids, int32_t *out_types) {
    int32_t second[1024];
    size_t n_special = text_b != NULL ? 3 : 2;
    size_t room = max_tokens - n_special;
    size_t n_a = host_tokenize(t, text_a, out_ids + 1, room);
    size_t n_b = text_b != NULL ? host_tokenize(t, text_b, second, room < 1024 ? room : 1024) : 0;

    while (n_a + n_b > room)
        *(n_a >= n_b ? &n_a : &n_b) -= 1;
    out_ids[0] = t->cls;
    out_ids[n_a + 1] = t->sep;
    if (text_b != NULL) {
        memcpy(out_ids + n_a + 2, second, n_b * sizeof *second);
        out_ids[n_a + n_b + 2] = t->sep;
    }
    for (size_t i = 0; i < n_a + n_b + n_special; i++)
        out_types[i] = i > n_a + 1;
    return n_a + n_b + n_special;
}
