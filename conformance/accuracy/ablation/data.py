# SPDX-License-Identifier: Apache-2.0
"""The files that runs read, made from official GLUE files: training rows as they are, few dev rows (training losses are what is judged),
a regression in STS-B's layout, and the language models' text."""

from __future__ import annotations

import hashlib
import os

from ..tasks import DataError, find_file, find_task, read
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


def stsb_lines(rows) -> list[str]:
    """STS-B's ten columns; those that no trainer reads hold "x"."""
    head = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    return [head, *("\t".join([str(i), *["x"] * 6, a, b, f"{score:.3f}"]) for i, (a, b, score) in enumerate(rows))]


def write(path: str, lines) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(lines) + "\n")


def lines_of(path: str) -> list[str]:
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        return file.read().rstrip("\n").split("\n")


def prepare(data: str, out: str, tasks: set[str]) -> dict[str, str]:
    """Writes what the tasks need into `out`. Returns the SHA-256 of each task's training file and vocabulary; DataError names a file that is missing."""
    vocabulary = os.path.join(data, "vocab.txt")
    if not os.path.exists(vocabulary):
        raise DataError(f"{vocabulary}: no such file; --data names the folder of GLUE files")
    write(os.path.join(out, "vocab.txt"), lines_of(vocabulary))
    for name in sorted(tasks & {"sst2", "cola"}):
        task = find_task(name)
        for file, n in (("train.tsv", None), ("dev.tsv", DEV_ROWS + task.has_header)):
            write(os.path.join(out, task.folder, file), lines_of(find_file(task, data, file))[:n])
    if "stsb" in tasks:
        rows = pairs(sentences(data, "cola"))
        write(os.path.join(out, "STS-B", "train.tsv"), stsb_lines(rows[DEV_ROWS:]))
        write(os.path.join(out, "STS-B", "dev.tsv"), stsb_lines(rows[:DEV_ROWS]))
    if tasks & set(LANGUAGE):
        write(os.path.join(out, TEXT), [*sentences(data, "cola"), *sentences(data, "sst2")])
    return {t: digest(*files(out, t)) for t in tasks}


def sentences(data: str, name: str) -> list[str]:
    """The texts of a task of single sentences."""
    task = find_task(name)
    return [text for (text,) in read(task, find_file(task, data, "train.tsv")).texts]


def files(out: str, task: str) -> list[str]:
    if task in LANGUAGE:
        return [os.path.join(out, TEXT)]
    return [os.path.join(out, find_task(task).folder, "train.tsv"), os.path.join(out, "vocab.txt")]


def digest(*paths: str) -> str:
    """SHA-256 of files, one after the other."""
    value = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            value.update(file.read())
    return value.hexdigest()
