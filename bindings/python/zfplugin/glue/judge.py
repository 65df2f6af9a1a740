# SPDX-License-Identifier: Apache-2.0
"""Verdict, table and plot of finished runs."""

from __future__ import annotations

import collections
import json
import math
import os
import shutil
import statistics
import subprocess

from .tasks import Task

LABELS = {"adamw": "AdamW (torch)", "sync": "plugin, synchronous", "zenflow": "plugin, ZenFlow",
          "ds-offload": "DeepSpeed ZeRO-Offload", "ds-zenflow": "DeepSpeed ZenFlow"}
# Okabe and Ito's colours: told apart by all.
COLOURS = {"adamw": "#000000", "sync": "#56B4E9", "zenflow": "#D55E00", "ds-offload": "#009E73",
           "ds-zenflow": "#CC79A7"}


def find_conform() -> str | None:
    """zf-conform: $ZF_CONFORM, beside the library in the package, or on the path."""
    here = os.path.join(os.path.dirname(os.path.dirname(__file__)), "bin", "zf-conform")
    for path in (os.environ.get("ZF_CONFORM"), here, shutil.which("zf-conform")):
        if path and os.access(path, os.X_OK):
            return path
    return None


def need_conform() -> str:
    """As find_conform(); RuntimeError says what to do where there is none."""
    conform = find_conform()
    if not conform:
        raise RuntimeError("zf-conform was not found: set $ZF_CONFORM to the program that the build makes "
                           "(build/conformance/zf-conform), or put it on the PATH")
    return conform


def points(run: dict, task: Task) -> float:
    """The deciding metric, mean over the dev sets. Where it is undefined (a constant has no correlation) it is 0."""
    scores = [s[task.metrics[0]] for s in run["scores"]]
    return statistics.fmean(0.0 if math.isnan(score) else score for score in scores)


def chance(task: Task, labels: list[list[float]]) -> float:
    """What an answer that never changes scores, mean over the dev sets' labels: the share of the largest class, or 0 for a
    correlation."""
    if task.metrics[0] != "accuracy":
        return 0.0
    return statistics.fmean(100.0 * max(collections.Counter(own).values()) / len(own) for own in labels)


def why_nothing_was_learned(runs: dict, task: Task, labels: list[list[float]], margin: float) -> str:
    """A sentence where AdamW's runs scored no better than chance, within the margin, or their loss did not fall; else "".
    Optimizers that both learn nothing score alike, which says nothing about them."""
    scores = [points(r, task) for (a, _), r in runs.items() if a == "adamw"]
    if not scores:
        return ""
    base, losses = chance(task, labels), mean_losses(runs, "adamw")
    start, end = statistics.fmean(losses[:max(1, len(losses) // 20)]), late_loss(runs, "adamw")
    if statistics.fmean(scores) <= base + margin:
        return (f"AdamW itself learned nothing: {task.metrics[0]} {statistics.fmean(scores):.2f}, and an answer that never changes "
                f"scores {base:.2f}. More steps or another learning rate")
    if not end < start:
        return (f"AdamW itself learned nothing: its loss was {start:.4f} at the start and {end:.4f} in the last quarter. More steps "
                "or another learning rate")
    return ""


def weighed(verdict_: dict, why_not: str) -> dict:
    """The verdict, or that there is none, where why_nothing_was_learned() gave a sentence."""
    if not why_not:
        return verdict_
    return {**verdict_, "verdict": "INCONCLUSIVE", "sentence": f"INCONCLUSIVE: {why_not}"}


def verdict(runs: dict, arm: str, task: Task, margin: float) -> dict:
    """zf-conform's verdict of arm against AdamW over the seeds that both have."""
    conform = need_conform()
    seeds = sorted(s for a, s in runs if a == arm and ("adamw", s) in runs)
    text = "".join(f"{s} {points(runs['adamw', s], task):.9g} {points(runs[arm, s], task):.9g}\n" for s in seeds)
    done = subprocess.run([conform, "verdict", "--json", "--margin", str(margin), "-"], input=text, text=True,
                          capture_output=True, check=False)
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(f"{conform} verdict: {done.stderr.strip()}")
    return json.loads(done.stdout)


def mean_losses(runs: dict, arm: str) -> list[float]:
    return [statistics.fmean(x) for x in zip(*(r["losses"] for (a, _), r in runs.items() if a == arm))]


def late_loss(runs: dict, arm: str) -> float:
    losses = mean_losses(runs, arm)
    return statistics.fmean(losses[-max(1, len(losses) // 4):])


# Options that name places or say how fast, not what.
UNSAID = ("--out", "--results", "--plugin", "--host", "--jobs", "--threads")


def made_by(program: str, argv: list[str]) -> str:
    """A line of Markdown: the command, its places replaced by what they are."""
    words, rest = [program], list(argv)
    while rest:
        word = rest.pop(0)
        if word in UNSAID:
            rest = rest[1:]
        elif word == "--data" and rest:
            words += [word, "DIR"]
            rest = rest[1:]
        else:
            words.append(os.path.basename(word) if os.path.isabs(word) else word)
    return f"Made by `{' '.join(words)}`\n\n"


def table(runs: dict, task: Task, verdicts: dict) -> str:
    """Markdown: one row per arm, then every seed's score."""
    arms = list(dict.fromkeys(a for a, _ in runs))
    seeds = sorted({s for _, s in runs})
    lines = [f"| {task.folder} | {task.metrics[0]}, mean | loss of the last quarter | s per step | against AdamW |",
             "|---|---|---|---|---|"]
    for arm in arms:
        scores = [points(r, task) for (a, _), r in runs.items() if a == arm]
        pace = statistics.fmean(r["seconds"] / len(r["losses"]) for (a, _), r in runs.items() if a == arm)
        said = verdicts[arm]["sentence"] if arm in verdicts else ""
        lines.append(f"| {LABELS[arm]} ({len(scores)} seeds) | {statistics.fmean(scores):.2f} | "
                     f"{late_loss(runs, arm):.4f} | {pace:.2f} | {said} |")
    lines += ["", "| seed | " + " | ".join(LABELS[a] for a in arms) + " |", "|---" * (len(arms) + 1) + "|"]
    for seed in seeds:
        row = [f"{points(runs[a, seed], task):.2f}" if (a, seed) in runs else "" for a in arms]
        lines.append(f"| {seed} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def smooth(values: list[float], width: int) -> list[float]:
    """Running mean over the last `width` values."""
    return [statistics.fmean(values[max(0, i - width + 1):i + 1]) for i in range(len(values))]


def plot(runs: dict, task: Task, path: str) -> bool:
    """Loss curves (mean over seeds) and every seed's score; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "zfplugin"
    from matplotlib import pyplot

    arms = list(dict.fromkeys(a for a, _ in runs))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2), layout="constrained")
    for i, arm in enumerate(arms):
        losses = mean_losses(runs, arm)
        left.plot(range(1, len(losses) + 1), smooth(losses, 20), color=COLOURS[arm], label=LABELS[arm],
                  linestyle=("-", "--", "-.", ":")[i % 4])
        scores = [points(r, task) for (a, _), r in runs.items() if a == arm]
        right.scatter([i] * len(scores), scores, color=COLOURS[arm], alpha=0.6)
        right.hlines(statistics.fmean(scores), i - 0.25, i + 0.25, color=COLOURS[arm])
    left.set(xlabel="step", ylabel="training loss (running mean of 20, mean of seeds)", title=task.folder)
    left.legend()
    right.set(ylabel=f"{task.metrics[0]} on dev, points", title="every seed, and the mean")
    right.set_xticks(range(len(arms)), [LABELS[a].replace(" ", "\n", 1) for a in arms])
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True
