# SPDX-License-Identifier: Apache-2.0
"""Section of the ablation: what each level is worth, and small multiples of the loss curves, one panel per factor."""
import math

from . import draw
from .blocks import Figure, Head, Section, Table, Text, Verdict, fixed, number, percent, source, value

MOST_LINES = len(draw.COLOURS)


def factors(data):
    return list(dict.fromkeys(level["factor"] for level in data["levels"]))


def run_of(data, level, rate):
    """The figures of a level's arm at a rate; {} where it was not run or failed."""
    run = {} if "not_run" in level else data["arms"][level["arm"]]["rates"][rate]
    return {} if run.get("has_failed") else run


def row_of(data, level, n_rates):
    row = [level["level"]]
    for rate in range(n_rates):
        run = run_of(data, level, rate)
        row += [percent(run.get("to_adamw")), percent(run.get("all_steps_to_adamw"))]
    first = run_of(data, level, 0)
    row += [fixed(first.get("dev_to_adamw"), 2), fixed(first.get("link_bytes_per_parameter_and_step"), 2),
            fixed(first.get("host_bytes_per_parameter"), 2), fixed(first.get("stall_us_per_step"), 0)]
    said = Verdict("not run", after=": " + level["not_run"]) if "not_run" in level else [level.get("against_default", "-")]
    return row + [said]


def table(data, rates):
    heads = ["level"]
    for rate in rates:
        heads += [f">last quarter, {rate}", f">all steps, {rate}"]
    rows = []
    for factor in factors(data):
        rows.append(Head(factor))
        rows += [row_of(data, level, len(rates)) for level in data["levels"] if level["factor"] == factor]
    return Table([*heads, ">dev, points", ">link B/param/step", ">host B/param", ">stall us/step", "against the default"], rows)


def line_of(data, level, rate, n_before):
    """The level's loss relative to AdamW's in percent, or None where there is no curve to compare."""
    run, base = run_of(data, level, rate), data["arms"][0]["rates"][rate]
    y, below = run.get("curve", []), base.get("curve", [])
    if not y or len(y) != len(below):
        return None
    every = value(base.get("curve_every", 1))
    return draw.Line(level["level"], [every * (i + 1) for i in range(len(y))],
                     [100 * (value(a) / b - 1) if b else math.nan for a, b in zip(y, below)], is_dashed=n_before >= 4)


def panels(data, rate):
    groups = []
    for factor in factors(data):
        lines = []
        for level in data["levels"]:
            line = line_of(data, level, rate, len(lines)) if level["factor"] == factor and len(lines) < MOST_LINES else None
            lines += [line] if line else []
        groups += [(factor, lines)] if lines else []
    return groups


def figure(data, rate, lr):
    groups = panels(data, rate)
    files = "SYNTHETIC corpus" if data.get("is_synthetic") else "official files"
    subtitle = (f"{data['task']}, {files}, {number(data['parameters'])} parameters, {number(data['batch'])} rows per step, mean over "
                f"{number(data['seeds'])} seeds, smoothed; cut at 40 %{'; QUICK: decides nothing' if data.get('is_quick') else ''}")
    if not groups:
        return Text(f"This file holds no loss curves at the peak rate {lr}.")
    return Figure(lr, f"Training loss relative to AdamW's, peak rate {lr}", "one panel per factor; mean over the seeds, smoothed",
                  lambda: draw.panels(groups, "optimizer step", "loss relative\nto AdamW's, %",
                                      f"Ablation: training loss relative to AdamW's, peak rate {lr}", subtitle, limit=40), is_wide=True)


def section(data):
    rates = [rate["lr"] for rate in data["arms"][0]["rates"]]
    n_not_run = sum("not_run" in level for level in data["levels"])
    summary = f"{len(data['levels']) - n_not_run} levels trained over {number(data['seeds'])} seeds, {n_not_run} not run"
    blocks = [source(data)]
    if data.get("is_quick"):
        summary += "; QUICK: decides nothing"
        blocks.append(Text("QUICK run: it shows that the command works and decides nothing.", is_strong=True))
    blocks += [table(data, rates),
               Text("Training losses relative to AdamW's of the same seeds; dev, bytes and stall at the first rate.")]
    return Section(summary, blocks + [figure(data, i, lr) for i, lr in enumerate(rates)])
