# SPDX-License-Identifier: Apache-2.0
"""Section of perf: bytes over the link and in memory against the formulas, stall."""
import math

from . import draw
from .accuracy import stall_figure
from .blocks import Figure, Section, Table, Text, Verdict, fixed, number, value


def label(row):
    return f"{row['gradient']}, S = {number(row['interval'])}"


def measured(row, *names):
    return [value(row["measured"][name]) for name in names]


def link_formula(row):
    return value(row["down_formula"]) + value(row["up_formula"])


def to_formula(row):
    return sum(measured(row, "down", "up")) / link_formula(row) if link_formula(row) else math.nan


def link_figure(rows):
    bars = [draw.Bar(label(r), measured(r, "down", "up", "records", "enter"), link_formula(r)) for r in rows]
    return Figure("link", "Bytes over the link against the formula",
                  "gradients of g bytes, windows of S steps; records and entering state are in no formula",
                  lambda: draw.bars(bars, ["down: gradients", "up: published", "down: records", "up: state of entering channels"],
                                    "bytes per parameter and step", "formula: g + 2/S"))


def memory_figure(rows):
    bars = []
    for r in rows:
        parts = measured(r, "state", "slots", "publish")
        bars.append(draw.Bar(label(r), [*parts, measured(r, "mapped")[0] - sum(parts)], value(r["host_formula"])))
    return Figure("memory", "Host memory against the formula", "what is mapped, by use",
                  lambda: draw.bars(bars, ["w, m, v", "gradient slots", "waiting to be published", "beside: maps, records, batches"],
                                    "host bytes per parameter", "formula: 12 + g((S + 1)/2 + 1) + 2/S"))


def table(rows):
    out = []
    for r in rows:
        allocations = measured(r, "hook_allocations")[0]
        out.append([label(r), Verdict("FAIL" if r["faults"] else "PASS"), fixed(sum(measured(r, "down", "up")), 4), fixed(to_formula(r), 4),
                    *(fixed(x, 2) for x in measured(r, "planned", "mapped", "device_mapped", "outside")),
                    fixed(None if allocations < 0 else allocations, 0), *(fixed(x, 0) for x in measured(r, "stall_us", "step_us")),
                    r["faults"]])
    return Table(["setting", "result", ">link B/param/step", ">to formula", ">host planned", ">host mapped", ">device mapped",
                  ">from outside", ">hook allocations", ">stall us/step", ">step us", "faults"], out)


def section(data):
    rows = data["rows"]
    n_faulty = sum(bool(r["faults"]) for r in rows)
    most = max((to_formula(r) for r in rows if math.isfinite(to_formula(r))), default=math.nan)
    millions = measured(rows[0], "n_elems")[0] * 1e-6 if rows else math.nan
    blocks = [Text(f"A transformer's shapes in bfloat16, made-up gradients, {fixed(millions, 2)} million parameters; whole windows after "
                   "warm-up. Memory in bytes per parameter.")]
    if rows:
        blocks += [link_figure(rows), memory_figure(rows), stall_figure([draw.Bar(label(r), measured(r, "stall_us")) for r in rows]),
                   table(rows)]
    return Section(f"{len(rows)} settings, {n_faulty} with a fault; link bytes at most {fixed(most, 4)} times the formula", blocks)
