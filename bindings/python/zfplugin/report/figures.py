# SPDX-License-Identifier: Apache-2.0
"""Which plots the result of an area has: figures_of(area, data), whose data is as the area leaves it: anything else raises UNFIT.

A figure's name is what its file is called after the result's; "" for the plot that stands for the whole.
"""
from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Callable

from . import draw

UNFIT = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)  # of data that is not what its area leaves
CUT = 15.0  # percent: gaps beyond stand at the edge of the plot
KINDS = {"fetches": "fetching", "does not fetch": "not-fetching", "": "other"}  # bars of the ablation, and their plots


@dataclass
class Figure:
    name: str
    draw: Callable


def value(number, scale=1.0):
    """A number to compute with: nan for null and for what is absent."""
    return math.nan if number is None else scale * number


def name_of(arm):
    return arm.get("title") or arm["name"]


def interval(scores):
    """Mean and the two-sided 95 % interval of it, Student's; nan where there are too few."""
    kept = [s for s in scores if math.isfinite(s)]
    if not kept:
        return math.nan, math.nan, math.nan
    mean = statistics.fmean(kept)
    if len(kept) < 2:
        return mean, math.nan, math.nan
    half = draw.need("scipy.stats").t.ppf(0.975, len(kept) - 1) * statistics.stdev(kept) / math.sqrt(len(kept))
    return mean, mean - half, mean + half


# ---- glue: scores of every seed with intervals, loss curves, bytes over the link, stall --------------------------------

def smooth(y, half):
    """Centred running mean over 2 * half + 1 values, fewer at the ends."""
    return [statistics.fmean(y[max(0, i - half):i + half + 1]) for i in range(len(y))]


def losses(arm):
    """Steps and mean losses, smoothed over a fortieth of the steps."""
    y = [value(v) for v in arm["mean_losses"]]
    y, every = smooth(y, len(y) // 80), max(1, len(y) // 400)
    return list(range(every, len(y) + 1, every)), y[every - 1::every]


def is_dashed(arm):
    return name_of(arm) == "exact"


def relative_lines(arms):
    """Losses beside AdamW's, in percent, of the arms that have AdamW's steps and seeds."""
    base, base_x, base_y = arms[0]
    return [draw.Line(name_of(arm), x, [100 * (a / b - 1) if b else math.nan for a, b in zip(y, base_y)], is_dashed(arm), i)
            for i, (arm, x, y) in enumerate(arms) if x == base_x and len(arm["metric"]) == len(base["metric"])]


def curves(data):
    arms = [(arm, *losses(arm)) for arm in data["arms"]]
    if not arms[0][1]:
        return []
    unit = "squared error per row" if data.get("metric") in ("pearson", "spearman") else "cross entropy, nats per row"
    files = "SYNTHETIC corpus" if data.get("is_synthetic") else "official files"
    parameters = f"{value(data['parameters']):,.0f}".replace(",", "\u202f")
    subtitle = (f"{data['task']}, {files}, {parameters} parameters, {value(data['batch']):g} rows per step, peak rate "
                f"{value(data['lr']):g}; {len(data['arms'][0]['metric'])} seeds")
    lines = [draw.Line(name_of(arm), x, y, is_dashed(arm), i) for i, (arm, x, y) in enumerate(arms) if y]
    relative = relative_lines(arms)
    out = [Figure("", lambda: draw.lines(lines, "optimizer step", unit, "Training loss: AdamW and the plugin", subtitle))]
    if len(relative) > 1:
        out.append(Figure("relative", lambda: draw.lines(relative, "optimizer step", "loss relative to AdamW's, %", limit=40)))
    return out


def scores(data):
    rows = []
    for i, arm in enumerate(data["arms"]):
        of_seeds = [value(s) for s in arm["metric"]]
        rows.append(draw.Row(name_of(arm), of_seeds, *interval(of_seeds), colour=i))
    return draw.dots(rows, f"{draw.plain(data.get('metric', 'score'))} x 100 on the dev set, points")


def differences(data):
    base, margin = data["arms"][0]["metric"], value(data["margin"])
    rows = [draw.Row(name_of(arm), [value(a) - value(b) for a, b in zip(arm["metric"], base)], value(arm.get("mean_difference")),
                     value(arm.get("lower")), value(arm.get("upper")), i) for i, arm in enumerate(data["arms"][1:], 1)]
    return draw.dots(rows, "plugin - AdamW of the same seed, points", -margin, f"margin: {-margin:g}", True)


def glue_link(data):
    bars = []
    for arm in data["arms"][1:]:
        link = arm.get("link_bytes_per_step", {})
        bars.append(draw.Bar(name_of(arm), [value(link.get(k), 1e-6) for k in ("down", "publish", "enter")],
                             value(link.get("down_formula"), 1e-6) + value(link.get("publish_formula"), 1e-6)))
    return draw.bars(bars, ["down: gradients, records", "up: published", "up: state of entering channels"], "MB per optimizer step", "formula")


def stall(bars):
    return draw.bars(bars, ["stall"], "microseconds per step")


def of_glue(data):
    stalls = [draw.Bar(name_of(a), [value(a.get("stall_us_per_step"))]) for a in data["arms"][1:]]
    beside = [Figure("scores", lambda: scores(data)), Figure("differences", lambda: differences(data)),
              Figure("link", lambda: glue_link(data)), Figure("stall", lambda: stall(stalls))]
    return curves(data) + (beside if stalls else [])


# ---- ablation: every setting's gaps to AdamW over unlike tasks, against the bars --------------------------------------

def cut(x):
    return min(max(value(x, 100.0), -CUT), CUT)


def gaps(data, kind):
    rows = [draw.Row(s["name"], [cut(c["mean"]) for c in s["cells"]], cut(s["mean"]), colour=1 + i)
            for i, s in enumerate(s for s in data["settings"] if s["bar"] == kind)]
    worst = value(data["bars"][kind]["worst"], 100.0) if kind else None
    return draw.dots(rows, f"loss of the last quarter relative to AdamW's, %; beyond {CUT:g} % at the edge", worst,
                     f"worst allowed: {worst:+.0f} %" if kind else "", True)


def of_defaults(data):
    return [Figure(name, lambda kind=kind: gaps(data, kind)) for kind, name in KINDS.items() if any(s["bar"] == kind for s in data["settings"])]


# ---- zf tune --json: what old weights cost against the time of a step, and which setting was chosen --------------------

def age(setting):
    """Steps by which what the model sees is behind, at most."""
    return value(setting["update_interval"]) - 1 + value(setting["publish_lag"])


def tune(data, ran):
    is_measured = all(s.get("lateness") is not None for s in ran)  # else zf tune orders settings by their age
    points = [draw.Point(f"S = {value(s['update_interval']):g}, lag {value(s['publish_lag']):g}: {s['verdict']}", value(s["step_s"], 1e3),
                         value(s["lateness"]) if is_measured else age(s), is_square=s["publish_lag"] == 1,
                         is_hollow=value(s.get("stall_share")) > value(data["max_stall"]), is_marked=s["verdict"] == "chosen") for s in ran]
    unit = ("what old weights cost per step: loss, to first order" if is_measured else
            "age of what the model sees, steps at most (lateness was not measured)")
    note = (f"hollow: the device waits for more than {value(data['max_stall'], 100):.0f} % of a step; squares: values come one step later "
            "(lag 1); ring: the choice")
    return draw.points(points, "time of a step, milliseconds", unit, "zf tune: loss gap against the time of a step", note)


def of_tune(data):
    ran = [s for s in data["settings"] if s["has_run"] and s.get("step_s") is not None]
    return [Figure("", lambda: tune(data, ran))] if ran else []


def figures_of(area, data):
    return {"glue": of_glue, "defaults": of_defaults, "tune": of_tune}[area](data)
