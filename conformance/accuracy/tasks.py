# SPDX-License-Identifier: Apache-2.0
"""The nine GLUE tasks and their official TSV files (Wang et al., arXiv 1804.07461).

Files are split on LF and TAB alone: their quotes are plain characters, stray control characters occur, MRPC starts with
a byte-order mark, and CoLA has no header.
"""

from __future__ import annotations

import dataclasses
import os

from .runs import CannotRun

ENTAILMENT = ("entailment", "not_entailment")


@dataclasses.dataclass(frozen=True)
class Task:
    """One task: where its columns are and how it is scored."""

    name: str
    folder: str
    texts: tuple[int, ...]  # columns of one or two texts, from 0
    label: int  # column of the label; negative counts from the end
    labels: tuple[str, ...]  # class names in order; empty: a real number (regression)
    metrics: tuple[str, ...]  # the first one decides
    has_header: bool = True
    dev: tuple[str, ...] = ("dev.tsv",)  # the first one decides
    max_length: int = 128  # longest text, in tokens, where torch trains
    steps: int = 400  # of a run by torch
    host_steps: int = 600  # of a fine-tune by zf-host
    host_tokens: int = 128  # longest text, in tokens, where zf-host trains
    margin: float = 1.0  # points by which the plugin may be worse
    may_skip_rows: bool = False  # the official file has broken rows

    @property
    def n_outputs(self) -> int:
        return len(self.labels) or 1


TASKS = {
    t.name: t
    for t in (
        Task("sst2", "SST-2", (0,), 1, ("0", "1"), ("accuracy",), max_length=66, steps=300, host_steps=2000),
        Task("cola", "CoLA", (3,), 1, ("0", "1"), ("matthews",), has_header=False, max_length=47, steps=500, host_steps=1000),
        Task("mrpc", "MRPC", (3, 4), 0, ("0", "1"), ("accuracy", "f1"), max_length=103, steps=230),
        Task("rte", "RTE", (1, 2), 3, ENTAILMENT, ("accuracy",), host_tokens=256),
        Task("qnli", "QNLI", (1, 2), 3, ENTAILMENT, ("accuracy",), host_steps=3000),
        Task("wnli", "WNLI", (1, 2), 3, ("0", "1"), ("accuracy",), host_steps=200),
        Task("stsb", "STS-B", (7, 8), 9, (), ("pearson", "spearman"), host_steps=900),
        Task("qqp", "QQP", (3, 4), 5, ("0", "1"), ("accuracy", "f1"), host_steps=3000, may_skip_rows=True),
        Task("mnli", "MNLI", (8, 9), -1, ("entailment", "neutral", "contradiction"), ("accuracy",), host_steps=3000,
             dev=("dev_matched.tsv", "dev_mismatched.tsv")),
    )
}


class DataError(CannotRun):
    """A file that does not hold what the task says; the message names file and line."""


@dataclasses.dataclass
class Examples:
    texts: list[tuple[str, ...]]
    labels: list[float]
    n_skipped: int = 0


def find_task(name: str) -> Task:
    key = name.lower().replace("-", "").replace("_", "")
    if key not in TASKS:
        raise DataError(f"task {name!r}: known are {', '.join(TASKS)}")
    return TASKS[key]


def _label(task: Task, text: str, where: str) -> float:
    if task.labels:
        if text not in task.labels:
            raise DataError(f"{where}: label {text!r}; need one of {', '.join(task.labels)}")
        return float(task.labels.index(text))
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.0 <= value <= 5.0:
        raise DataError(f"{where}: score {text!r}; need a number from 0 to 5")
    return value


def read(task: Task, path: str) -> Examples:
    """All examples of one file; DataError names the file and line of what is wrong."""
    try:
        with open(path, "rb") as file:
            lines = file.read().decode("utf-8").removeprefix("\ufeff").split("\n")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; need the official {task.folder} file") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}") from error
    out = Examples([], [])
    for number, line in enumerate(lines, 1):
        if (number == 1 and task.has_header) or not line:
            continue
        fields = line.removesuffix("\r").split("\t")
        need = max(*task.texts, task.label) + 1
        if len(fields) < max(need, max(task.texts) + 2 if task.label < 0 else 0):
            if task.may_skip_rows:
                out.n_skipped += 1
                continue
            raise DataError(f"{path}:{number}: {len(fields)} columns; need {need}")
        out.labels.append(_label(task, fields[task.label].strip(), f"{path}:{number}"))
        out.texts.append(tuple(fields[c] for c in task.texts))
    if not out.texts:
        raise DataError(f"{path}: no examples")
    if out.n_skipped > len(out.texts):
        raise DataError(f"{path}: found {out.n_skipped} lines that lack columns beside {len(out.texts)} whole ones; no {task.folder} file")
    return out


def find_file(task: Task, data: str, name: str) -> str:
    """The file in DIR/FOLDER or in DIR itself."""
    for path in (os.path.join(data, task.folder, name), os.path.join(data, name)):
        if os.path.exists(path):
            return path
    raise DataError(f"{os.path.join(data, task.folder, name)}: no such file; --data names the directory of the tasks")
