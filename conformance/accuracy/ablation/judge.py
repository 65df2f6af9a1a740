# SPDX-License-Identifier: Apache-2.0
"""Gaps of finished runs against AdamW's, the bars that decide, and the table. Pure."""

from __future__ import annotations

import math
import statistics

from ..runs import last_quarter
from .plan import ADAMW, LANGUAGE, MOMENTS, Cell, Setting

# Hosts that fetch a parameter before they read it take lag 0; the others take lag 1. Shares of AdamW's loss.
BARS = {"fetches": {"mean": 0.005, "worst": 0.02}, "does not fetch": {"mean": 0.01, "worst": 0.04}}


def gap(run: dict, base: dict) -> float:
    """Of one seed; inf where the run failed."""
    return math.inf if "failure" in run else last_quarter(run["losses"]) / last_quarter(base["losses"]) - 1.0


def bar_of(setting: Setting) -> str:
    """Which hosts a setting is for; "": no bar is for it."""
    lag = [o for o in setting.overrides if o.startswith("zenflow.publish_lag=")]
    if not setting.is_plugin or not lag:
        return "fetches" if setting.name in ("windows", "exact", *MOMENTS) else ""
    return "fetches" if lag[0].endswith("=0") else "does not fetch"


def error(values: list[float]) -> float:
    """Standard error of the mean; nan where it cannot be known."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values))


def number(x: float) -> float | None:
    """As JSON has it."""
    return round(x, 6) if math.isfinite(x) else None


def cell_figures(cell: Cell, setting: Setting, seeds, runs: dict) -> dict | None:
    """None where no seed has both runs."""
    pairs = [(runs.get((cell.name, setting.name, s)), runs.get((cell.name, ADAMW.name, s))) for s in seeds]
    gaps = [gap(run, base) for run, base in pairs if run and base]
    if not gaps:
        return None
    return {"cell": cell.name, "gaps": [number(g) for g in gaps], "mean": number(statistics.fmean(gaps)), "error": number(error(gaps))}


def verdict(bar: str, mean: float, worst: float, is_whole: bool) -> str:
    if not bar:
        return "-"
    holds = mean <= BARS[bar]["mean"] and worst <= BARS[bar]["worst"]
    if not is_whole:
        return "not all ran"
    return "held" if holds else "MISSED"


def setting_figures(setting: Setting, cells, seeds, runs: dict) -> dict:
    own = [f for f in (cell_figures(c, setting, seeds, runs) for c in cells) if f]
    means = [math.inf if f["mean"] is None else f["mean"] for f in own]
    errors = [f["error"] for f in own]
    mean, worst = (statistics.fmean(means), max(means)) if means else (math.nan, math.nan)
    bar = bar_of(setting)
    return {"name": setting.name, "overrides": list(setting.overrides), "bar": bar, "mean": number(mean), "worst": number(worst),
            "worst_cell": own[means.index(worst)]["cell"] if own else "",
            "error": number(math.hypot(*errors) / len(errors)) if errors and None not in errors else None,
            "verdict": verdict(bar, mean, worst, [len(f["gaps"]) for f in own] == [len(seeds)] * len(cells)), "cells": own}


def cell_source(cell: Cell, seeds, runs: dict) -> dict:
    base = [runs[cell.name, ADAMW.name, s] for s in seeds if (cell.name, ADAMW.name, s) in runs]
    early = [statistics.fmean(r["losses"][:max(1, len(r["losses"]) // 20)]) for r in base]
    return {"name": cell.name, "what": cell.what, "steps": cell.steps, "batch": cell.batch, "lr": cell.lr, "dtype": cell.dtype,
            "trained_by": "PyTorch" if cell.task in LANGUAGE else "zf-host", "seeds": len(base),
            "first_loss": number(statistics.fmean(early)) if early else None,
            "adamw_loss": number(statistics.fmean(last_quarter(r["losses"]) for r in base)) if base else None}


def result(cells, settings, seeds, runs: dict, plugin: str) -> dict:
    """The document that is written as JSON; the report draws it."""
    judged = [setting_figures(s, cells, seeds, runs) for s in settings if s != ADAMW]
    return {"area": "defaults", "plugin": plugin, "bars": BARS, "cells": [cell_source(c, seeds, runs) for c in cells],
            "settings": [s for s in judged if s["cells"]]}


def percent(x: float | None) -> str:
    return "failed" if x is None else f"{100 * x:+.1f}"


def table(data: dict) -> str:
    """Markdown: the cells, then a row of gaps in percent for each setting."""
    lines = ["| cell | what | trained by | steps x rows | rate | seeds | AdamW's loss: start, last quarter |", "|---" * 7 + "|"]
    for c in data["cells"]:
        start, end = ("-" if x is None else f"{x:.3f}" for x in (c["first_loss"], c["adamw_loss"]))
        lines.append(f"| {c['name']} | {c['what']} | {c['trained_by']}, {c['dtype']} | {c['steps']} x {c['batch']} | {c['lr']:g} | {c['seeds']} | "
                     f"{start}, {end} |")
    names = [c["name"] for c in data["cells"]]
    lines += ["", "| setting | mean, % | worst, % | bar (mean, worst) | " + " | ".join(names) + " |", "|---" * (4 + len(names)) + "|"]
    for s in data["settings"]:
        by_cell = {c["cell"]: f"{percent(c['mean'])} ({len(c['gaps'])})" for c in s["cells"]}
        spread = "" if s["error"] is None else f" ± {100 * s['error']:.1f}"
        bar = data["bars"].get(s["bar"])
        said = f"{s['verdict']} ({100 * bar['mean']:g}, {100 * bar['worst']:g})" if bar else "-"
        lines.append(f"| {s['name']} | {percent(s['mean'])}{spread} | {percent(s['worst'])} | {said} | "
                     + " | ".join(by_cell.get(n, "") for n in names) + " |")
    return "\n".join(lines) + "\n"
