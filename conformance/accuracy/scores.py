# SPDX-License-Identifier: Apache-2.0
"""What predictions are worth: GLUE's metrics, in points of 100. Trainers report what they predict of each row of the dev sets; the answers
stand in the task's files."""

from __future__ import annotations

import numpy as np

from .runs import CannotRun
from .tasks import Task


def correlation(predicted, truth):
    """Pearson's; of two classes it is Matthews'."""
    x, y = predicted - predicted.mean(), truth - truth.mean()
    return x @ y / np.sqrt((x @ x) * (y @ y))


def spearman(predicted, truth):
    from scipy import stats  # which takes longer to import than all else here: no other metric waits for it

    return correlation(stats.rankdata(predicted), stats.rankdata(truth))


METRICS = {
    "accuracy": lambda predicted, truth: np.mean(predicted == truth),
    "f1": lambda predicted, truth: 2.0 * (predicted @ truth) / (predicted + truth).sum(),  # of class 1
    "matthews": correlation,
    "pearson": correlation,
    "spearman": spearman,
}


def score(name: str, predicted, truth) -> float:
    """0 where the metric is not defined (one class only, no variance), as GLUE's own scorers have it."""
    if len(predicted) != len(truth):
        raise CannotRun(f"found {len(predicted)} predictions; {len(truth)}, one of each row of the dev set, are needed")
    with np.errstate(divide="ignore", invalid="ignore"):
        value = METRICS[name](np.asarray(predicted, float), np.asarray(truth, float))
    return 100.0 * float(value) if np.isfinite(value) else 0.0


def scored(report: dict, task: Task, truth) -> dict:
    """The report with "metric" and, where the task has one, "second". truth: the labels of each dev set."""
    first, *others = zip(report["predictions"], truth)
    pairs = [(task.metrics[0], task.metrics[0], first), *((name, task.metrics[0], other) for name, other in zip(task.dev[1:], others)),
             *((name, name, first) for name in task.metrics[1:])]
    members = [{"name": title, "value": score(name, *pair)} for title, name, pair in pairs]
    return {**report, **dict(zip(("metric", "second"), members))}
