# SPDX-License-Identifier: Apache-2.0
"""BERT's WordPiece: text to piece ids, as arXiv 1810.04805's code does it.

Text is cleaned (controls dropped, any space a blank), folded to lower-case base letters (not for a cased vocabulary), split at
spaces, punctuation and CJK characters, and each word is cut into the longest pieces that the vocabulary has, continuations being
written "##piece". A word that cannot be cut, or of more than 100 characters, is [UNK].
"""

from __future__ import annotations

import functools
import unicodedata

from .runs import CannotRun

PAD, UNK, CLS, SEP = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
MAX_WORD = 100  # characters
CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))


def is_punctuation(c: str) -> bool:
    """Every printable character of ASCII that is no letter, digit or space is some."""
    return (c.isascii() and c.isprintable() and not c.isalnum() and c != " ") or unicodedata.category(c).startswith("P")


class Cleaned(dict):
    """What str.translate() puts in a character's place."""

    def __missing__(self, code: int):
        c = chr(code)
        if c in "\t\n\r" or unicodedata.category(c) == "Zs":
            self[code] = " "
        elif code == 0xFFFD or unicodedata.category(c).startswith("C"):
            self[code] = None
        else:
            self[code] = f" {c} " if any(first <= code <= last for first, last in CJK) else c
        return self[code]


def fold(word: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")


def parts(word: str) -> list[str]:
    """The word cut at its punctuation, each character of which is a word."""
    out, is_open = [], False
    for c in word:
        is_word = not is_punctuation(c)
        if is_word and is_open:
            out[-1] += c
        else:
            out.append(c)
        is_open = is_word
    return out


class Vocabulary:
    """One piece per line of a file; its line number from 0 is its id."""

    def __init__(self, path: str, keeps_case: bool = False):
        try:
            with open(path, encoding="utf-8", newline="\n") as file:
                pieces = file.read().removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CannotRun(f"{path}: cannot read: {getattr(error, 'strerror', None) or error}; a WordPiece vocabulary is needed") from None
        self.n_pieces, self.ids = len(pieces), {}
        for i, piece in enumerate(pieces):
            self.ids.setdefault(piece.removesuffix("\r"), i)
        for piece in SPECIAL:
            if piece not in self.ids:
                raise CannotRun(f"{path}: found no line {piece} among {len(pieces)}; a WordPiece vocabulary is needed")
        self.fold, self.cleaned = (str if keeps_case else fold), Cleaned()
        self.word = functools.cache(self._word)

    def _word(self, word: str) -> tuple[int, ...]:
        return tuple(i for part in parts(self.fold(word)) for i in self._pieces(part))

    def _pieces(self, word: str) -> list[int]:
        out, first = [], 0
        while first < len(word) <= MAX_WORD:
            end = next((e for e in range(len(word), first, -1) if ("##" if first else "") + word[first:e] in self.ids), first)
            if end == first:
                return [self.ids[UNK]]
            out.append(self.ids[("##" if first else "") + word[first:end]])
            first = end
        return out if len(word) <= MAX_WORD else [self.ids[UNK]]

    def tokenize(self, text: str) -> list[int]:
        return [i for word in text.translate(self.cleaned).split() for i in self.word(word)]

    def encode(self, texts: tuple[str, ...], max_tokens: int) -> tuple[list[int], list[int]]:
        """[CLS] a [SEP], or [CLS] a [SEP] b [SEP], and the types: 0 up to the first [SEP], then 1. The longer text is shortened first."""
        ids = [self.tokenize(text) for text in texts]
        room = max_tokens - 1 - len(texts)
        kept = [len(own) for own in ids]
        while sum(kept) > room:
            kept[kept.index(max(kept))] -= 1
        out, types = [self.ids[CLS]], [0]
        for i, (own, n) in enumerate(zip(ids, kept)):
            out += [*own[:n], self.ids[SEP]]
            types += [i] * (n + 1)
        return out, types
