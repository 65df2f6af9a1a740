# SPDX-License-Identifier: Apache-2.0
"""A generated sentiment corpus in SST-2's layout, for machines that have no GLUE files: the same bytes everywhere.

Sentences come from a small grammar of film reviews: nouns, praising and blaming words (some of two word pieces), negation that
turns them round, "but" and "although" that decide which clause counts, neutral filler. Of the labels 6 % are wrong on purpose, so
about 94 % is the best that can be reached. Results on it say nothing about GLUE, and every output calls them synthetic.
"""

from __future__ import annotations

import os
import random

from .runs import make_folder, write

N_TRAIN, N_DEV = 20000, 1500
FILES = ("train.tsv", "dev.tsv", "vocab.txt")

SUBJECTS = """film movie plot story acting script cast direct|or music ending dialogue pic|ture drama come|dy hero villain camera|work humor
    pac|ing screen|play perform|ance sequel thriller romance score scenery editing opening finale premise""".split()
PRAISE = """good great charm|ing funny mov|ing clever superb fresh warm brilliant elegant touch|ing smart witty delight|ful gripping honest
    beauti|ful lively rich power|ful subtle wonder|ful engag|ing inspir|ed stunning tender vivid master|ful thrill|ing graceful compelling
    joyous refresh|ing splendid ador|able memor|able flaw|less dazzling heart|felt sharp assured rous|ing magic|al win|ning enjoy|able
    polished profound radiant satisfy|ing""".split()
BLAME = """bad dull bor|ing weak silly awful flat tired stale clumsy bland point|less pain|ful lazy shallow messy life|less dread|ful
    tedious cheap predict|able hollow wood|en forgett|able confus|ed irritat|ing sloppy empty numb|ing vulgar humor|less contrived dismal
    annoy|ing miser|able trite aim|less ugly slugg|ish stilted cold incoherent exhaust|ing tasteless joy|less labored drab inept murky
    disappoint|ing""".split()
DEGREES = "very quite rather truly so deeply often fairly utterly almost simply always".split()
NEGATIONS = ["not", "never", "hardly", "by no means", "far from"]
VERBS = "is was seems feels looks remains".split()
OWNERS = ["the", "its", "this", "their", "the whole", "her", "his"]
FILLERS = ["set in a small town", "made in two weeks", "based on a novel", "shot in black and white", "now on video", "from the same studio",
           "with a famous cast", "which runs two hours", "for a wide audience", "in the second half"]
JOINTS = "and but yet although while though , . of a it".split()


class Writer:
    """One sentence after the other. "charm|ing" is written "charming"; the vocabulary has its two pieces."""

    def __init__(self, seed: str):
        self.draw = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def common(self, words: list[str]) -> str:
        """The first ones much more often than the last ones, as in real text."""
        return words[int(self.draw.random() ** 2 * len(words))].replace("|", "")

    def judgement(self, sentiment: int) -> str:
        return self.common(PRAISE if sentiment > 0 else BLAME)

    def clause(self, sentiment: int) -> str:
        """ "the plot is hardly very charming", which is blame"""
        is_negated = self.chance(0.3)
        words = [self.draw.choice(OWNERS), self.common(SUBJECTS), self.draw.choice(FILLERS) if self.chance(0.2) else "", self.draw.choice(VERBS),
                 self.draw.choice(NEGATIONS) if is_negated else "", self.draw.choice(DEGREES) if self.chance(0.4) else "",
                 self.judgement(-sentiment if is_negated else sentiment)]
        return " ".join(filter(None, words))

    def phrase(self, sentiment: int) -> str:
        """ "a witty drama": no verb, as many phrases of the real data have it"""
        return f"a {self.judgement(sentiment)} {self.common(SUBJECTS)}" + (f" {self.draw.choice(FILLERS)}" if self.chance(0.5) else "")

    def sentence(self) -> tuple[str, int]:
        sentiment, kind = self.draw.choice((1, -1)), self.draw.randrange(10)
        if kind < 4:
            text = self.clause(sentiment)
        elif kind < 5:
            text = self.phrase(sentiment)
        elif kind < 7:
            text = f"{self.clause(-sentiment)} , {'but' if self.chance(0.7) else 'yet'} {self.clause(sentiment)}"
        elif kind < 8:
            text = f"{'although' if self.chance(0.5) else 'though'} {self.clause(-sentiment)} , {self.clause(sentiment)}"
        else:
            text = f"{self.clause(sentiment)} {'and' if self.chance(0.5) else ', while'} {self.clause(sentiment)}"
        label = -sentiment if self.chance(0.06) else sentiment
        return text + (" . " if self.chance(0.5) else " "), int(label > 0)


def rows(name: str, n: int) -> str:
    writer = Writer(f"zfplugin {name}")
    return "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in (writer.sentence() for _ in range(n)))


def vocabulary() -> str:
    """Every word's pieces, and letters, alone and as continuations, so that no word is unknown."""
    letters = [piece for c in "abcdefghijklmnopqrstuvwxyz" for piece in (c, f"##{c}")]
    words = [*JOINTS, *OWNERS, *VERBS, *DEGREES, *NEGATIONS, *FILLERS, *SUBJECTS, *PRAISE, *BLAME]
    pieces = [piece for text in words for word in text.split() for piece in word.replace("|", " ##").split()]
    return "\n".join(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *"0123456789'!?;:-", *pieces])) + "\n"


def ensure(folder: str) -> str:
    """Writes the files where one is missing. Returns the folder."""
    if not all(os.path.exists(os.path.join(folder, name)) for name in FILES):
        make_folder(folder)
        for name, text in zip(FILES, (rows("train", N_TRAIN), rows("dev", N_DEV), vocabulary())):
            write(os.path.join(folder, name), text)
    return folder
