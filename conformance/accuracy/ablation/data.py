# SPDX-License-Identifier: Apache-2.0
"""The files that runs read, made from official GLUE files: training rows as they are, few dev rows (training losses are what is judged),
a regression made of CoLA's sentences, and the language models' text."""

from __future__ import annotations

import os

from .. import examples
from ..runs import make_folder, write
from ..tasks import DataError, Examples, find_file, find_task, read
from .plan import LANGUAGE

DEV_ROWS = 32
TEXT = "sentences.txt"


def pairs(sentences: list[str]) -> list[tuple[str, str, float]]:
    """Each sentence with a copy in which words of the next one stand in the place of 0 to 5 fifths of its own, and the share of words that
    both have (Jaccard's index) times 5: a score of STS-B's range."""
    out, sentences = [], [s for s in sentences if s.strip()]
    for i, (own, other) in enumerate(zip(sentences, sentences[1:])):
        words, others = own.split(), other.split()
        n_kept = round(len(words) * (i % 6) / 5)
        copy = words[:n_kept] + others[:len(words) - n_kept]
        shared, all_ = set(words) & set(copy), set(words) | set(copy)
        out.append((own, " ".join(copy), 5.0 * len(shared) / len(all_)))
    return out


def rows_of(data: str, name: str) -> tuple[Examples, Examples]:
    """Training rows and few dev rows of a task."""
    task = find_task(name)
    if name == "stsb":
        rows = pairs(sentences(data, "cola"))
        dev, train = rows[:DEV_ROWS], rows[DEV_ROWS:]
        return tuple(Examples([row[:2] for row in part], [row[2] for row in part]) for part in (train, dev))
    dev = read(task, find_file(task, data, "dev.tsv"))
    return read(task, find_file(task, data, "train.tsv")), Examples(dev.texts[:DEV_ROWS], dev.labels[:DEV_ROWS])


def prepare(data: str, out: str, wanted: set[tuple[str, bool]], model: str | None) -> dict[tuple[str, bool], str]:
    """Writes what each (task, is_pretrained) trains on into `out`: its file. DataError names a file that is missing."""
    vocabulary, made = os.path.join(data, "vocab.txt"), {}
    if not os.path.exists(vocabulary):
        raise DataError(f"{vocabulary}: no such file; --data names the folder of GLUE files")
    make_folder(out)
    for task, is_pretrained in sorted(wanted):
        if task in LANGUAGE:
            path = os.path.join(out, TEXT)
            write(path, "\n".join([*sentences(data, "cola"), *sentences(data, "sst2")]) + "\n")
        else:
            path = os.path.join(out, f"{task}{'-pretrained' if is_pretrained else ''}.safetensors")
            examples.make(path, find_task(task), list(rows_of(data, task)), vocabulary, model if is_pretrained else None)
        made[task, is_pretrained] = path
    return made


def sentences(data: str, name: str) -> list[str]:
    """The texts of a task of single sentences."""
    task = find_task(name)
    return [text for (text,) in read(task, find_file(task, data, "train.tsv")).texts]
