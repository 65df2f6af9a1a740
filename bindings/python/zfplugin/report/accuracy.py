# SPDX-License-Identifier: Apache-2.0
"""Section of glue: scores of every seed with intervals, loss curves, bytes over the link, stall."""
from __future__ import annotations

import math
import statistics

from . import draw
from .blocks import Figure, Section, Table, Text, Verdict, fixed, number, percent, signed, source, value

# Student's t, 97.5 %, for 1 to 30 degrees of freedom; beyond, a series in 1/n that is right to four digits.
STUDENT = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314,
           2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423]


def student(n):
    return STUDENT[n - 1] if n <= len(STUDENT) else 1.95996 + 2.3722 / n + 2.8225 / n ** 2


def interval(scores):
    """Mean and the two-sided 95 % interval of it; nan where there are too few."""
    kept = [s for s in scores if math.isfinite(s)]
    if not kept:
        return math.nan, math.nan, math.nan
    mean = statistics.fmean(kept)
    if len(kept) < 2:
        return mean, math.nan, math.nan
    half = student(len(kept) - 1) * statistics.stdev(kept) / math.sqrt(len(kept))
    return mean, mean - half, mean + half


def name_of(arm):
    return arm.get("title") or arm["name"]


def smooth(y, half):
    """Centred running mean over 2 * half + 1 values, fewer at the ends."""
    return [statistics.fmean(y[max(0, i - half):i + half + 1]) for i in range(len(y))]


def losses(arm):
    """Steps and smoothed mean losses."""
    y = [value(v) for v in arm["mean_losses"]]
    y, every = smooth(y, len(y) // 80), max(1, len(y) // 400)
    return list(range(every, len(y) + 1, every)), y[every - 1::every]


def is_dashed(arm):
    return "synchronous" in name_of(arm)


def curve_figures(data, unit_note):
    arms = [(arm, *losses(arm)) for arm in data["arms"]]
    base = arms[0]
    if not base[1]:
        return [Text("This file holds no loss curves.")]
    unit = "squared error per row" if data.get("metric") in ("pearson", "spearman") else "cross entropy, nats per row"
    lines = [draw.Line(name_of(arm), x, y, is_dashed(arm), i) for i, (arm, x, y) in enumerate(arms) if y]
    relative = [draw.Line(name_of(arm), x, [100 * (a / b - 1) if b else math.nan for a, b in zip(y, base[2])], is_dashed(arm), i)
                for i, (arm, x, y) in enumerate(arms) if x == base[1] and len(arm.get("metric", [])) == len(base[0].get("metric", []))]
    files = "SYNTHETIC corpus" if data.get("is_synthetic") else "official files"
    subtitle = (f"{data['task']}, {files}, {number(data['parameters'])} parameters, {number(data['batch'])} rows per step, peak rate "
                f"{value(data['lr']):g}; {unit_note}")
    out = [Figure("", "Training loss", "mean over the seeds, running mean over a fortieth of the steps",
                  lambda: draw.lines(lines, "optimizer step", unit, "Training loss: AdamW and the plugin", subtitle))]
    if len(relative) > 1:
        out.append(Figure("relative", "Training loss relative to AdamW's",
                          "mean over the seeds, smoothed; arms with AdamW's seeds only; cut at 40 %",
                          lambda: draw.lines(relative, "optimizer step", "loss relative to AdamW's, %", limit=40)))
    return out


def scores_figure(data):
    rows = []
    for i, arm in enumerate(data["arms"]):
        scores = [value(s) for s in arm["metric"]]
        rows.append(draw.Row(name_of(arm), scores, *interval(scores), colour=i))
    return Figure("scores", "Score of every seed", "dots: seeds; diamond and bar: mean and its 95 % interval",
                  lambda: draw.dots(rows, f"{draw.plain(data.get('metric', 'score'))} x 100 on the dev set, points"))


def differences_figure(data):
    base = data["arms"][0]["metric"]
    rows = [draw.Row(name_of(arm), [value(a) - value(b) for a, b in zip(arm["metric"], base)], value(arm.get("mean_difference")),
                     value(arm.get("lower")), value(arm.get("upper")), i) for i, arm in enumerate(data["arms"][1:], 1)]
    margin = value(data["margin"])
    return Figure("differences", "Difference of every seed",
                  "bar: one-sided 95 % bounds of the mean; PASS when its lower end lies right of the margin",
                  lambda: draw.dots(rows, "plugin - AdamW of the same seed, points", -margin, f"margin: {number(-margin)}", True))


def link_figure(data):
    bars = []
    for arm in data["arms"][1:]:
        link = arm.get("link_bytes_per_step", {})
        bars.append(draw.Bar(name_of(arm), [value(link.get(k), 1e-6) for k in ("down", "publish", "enter")],
                             value(link.get("down_formula"), 1e-6) + value(link.get("publish_formula"), 1e-6)))
    return Figure("link", "Bytes over the link against the formula",
                  "counted where they are copied; tick: 4M(1 + 1/S) bytes with fp32, 2M(1 + 1/S) with bf16",
                  lambda: draw.bars(bars, ["down: gradients, records", "up: published", "up: state of entering channels"],
                                    "MB per optimizer step", "formula"))


def stall_figure(bars):
    return Figure("stall", "Stall", "time the device waited for replays, selections or free slots; shown, not judged",
                  lambda: draw.bars(bars, ["stall"], "microseconds per step"))


def judgements(data):
    rows = []
    for arm in data["arms"][1:]:
        start = arm.get("start")
        rows.append([name_of(arm), Verdict(arm.get("verdict", "-")), fixed(arm.get("mean_difference"), 2), fixed(arm.get("lower"), 2),
                     fixed(len(arm["metric"]), 0), Verdict("-" if start is None else "PASS" if start["conforms"] else "FAIL"),
                     percent(arm.get("last_quarter_ratio"), 2), fixed(arm.get("stall_us_per_step"), 0), fixed(arm.get("step_us"), 0),
                     fixed(arm.get("host_bytes_per_parameter", {}).get("mapped"), 2)])
    return Table(["arm", "metric", ">difference", ">lower bound", ">seeds", "start", ">last quarter", ">stall us/step",
                  ">step us (shared)", ">host B/param"], rows)


def seed_table(data):
    arms = data["arms"]
    rows = [[str(seed + 1), *(fixed(arm["metric"][seed] if seed < len(arm["metric"]) else None, 2) for arm in arms)]
            for seed in range(len(arms[0]["metric"]))]
    return Table([">seed", *(">" + name_of(arm) for arm in arms)], rows, is_folded=True, title="Scores as numbers")


def glue_summary(data):
    last = next((arm for arm in reversed(data["arms"]) if "verdict" in arm), data["arms"][-1])
    text = (f"{data['task']}: plugin - AdamW = {signed(last.get('mean_difference'), 2)} points over {len(last['metric'])} seeds, lower "
            f"bound {signed(last.get('lower'), 2)}, margin {number(data['margin'])}; loss of the last quarter "
            f"{percent(last.get('last_quarter_ratio'), 2)}")
    return text + ("; SYNTHETIC corpus" if data.get("is_synthetic") else "")


def glue_section(data):
    blocks = [source(data)]
    if len(data["arms"]) > 1:
        stalls = [draw.Bar(name_of(a), [value(a.get("stall_us_per_step"))]) for a in data["arms"][1:]]
        blocks += [judgements(data), Text("Start: the first losses against AdamW's. Last quarter: mean training loss of the last quarter "
                                          "of the steps, relative to AdamW's."),
                   scores_figure(data), differences_figure(data), link_figure(data), stall_figure(stalls), seed_table(data)]
    return Section(glue_summary(data), blocks + curve_figures(data, f"{len(data['arms'][0]['metric'])} seeds"))
