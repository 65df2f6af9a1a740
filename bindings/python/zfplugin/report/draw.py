# SPDX-License-Identifier: Apache-2.0
"""The kinds of plots: lines against the step, points of two figures, dots per seed with their interval, stacked bars against a formula.

Every function returns a matplotlib Figure with labelled axes and units. Colours are Okabe and Ito's, which are told apart with
colour blindness. The same input gives the same bytes (no date, fixed ids).
"""
from __future__ import annotations

import importlib
import io
import math
import re
from dataclasses import dataclass

COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#8C564B", "#777777", "#AA0000"]
GRID = {"color": "#e4e4e8", "linewidth": 0.8}
STYLE = {"svg.hashsalt": "zfplugin", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
         "legend.frameon": False, "legend.fontsize": 9, "path.simplify": True, "mathtext.default": "regular", "text.usetex": False}


class PackageMissing(Exception):
    """Names what to install."""

    def __init__(self, package, error):
        super().__init__(f"{package} is missing ({error}); apt-get install python3-{package}, or: python3 -m pip install {package}")


def need(name):
    """The module of this name; raises PackageMissing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PackageMissing(name.split(".", maxsplit=1)[0], error) from None


def plain(text):
    """Text of a file as matplotlib shall show it: no mathematics, no control characters."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text).replace("$", r"\$")


def new(width, height, **kwargs):
    figure = need("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(**kwargs)


@dataclass
class Line:
    title: str
    x: list
    y: list
    is_dashed: bool = False
    colour: int | None = None  # None: by its place in the list


def put_lines(axes, lines, x_label, y_label, limit=None):
    """limit: y is a difference in percent, drawn around a line at zero and cut there."""
    for i in reversed(range(len(lines))):  # the first on top
        line = lines[i]
        colour = COLOURS[(i if line.colour is None else line.colour) % len(COLOURS)]
        axes.plot(line.x, line.y, color=colour, linewidth=1.9 if i == 0 else 1.4, label=plain(line.title),
                  linestyle=(0, (5, 2)) if line.is_dashed else "-", zorder=3 - 0.01 * i)
    if limit is not None:
        axes.axhline(0, color="black", linewidth=0.8)
        values = [v for line in lines for v in line.y if math.isfinite(v)]
        axes.set_ylim(max(-limit, min(values, default=0) * 1.05 - 0.5), min(limit, max(values, default=0) * 1.05 + 0.5))
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(axis="y", **GRID)
    axes.margins(x=0.01)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.02))


def lines(all_lines, x_label, y_label, title=None, subtitle=None, limit=None):
    figure, axes = new(8.6, 4.4)
    put_lines(axes, all_lines, x_label, y_label, limit)
    put_titles(figure, axes, title, subtitle)
    return figure


def put_titles(figure, axes, title, subtitle):
    if title:
        figure.suptitle(plain(title), x=0.01, ha="left", fontweight="bold", fontsize=12)
        axes.set_title(plain(subtitle or ""), loc="left", fontsize=9, color="#5a5a60")


@dataclass
class Row:
    label: str
    values: list
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    colour: int = 0


def put_row(axes, y, row):
    colour = COLOURS[row.colour % len(COLOURS)]
    kept = [(x, i % 3) for i, x in enumerate(row.values) if math.isfinite(x)]  # three heights keep equal values apart
    axes.scatter([x for x, _ in kept], [y - 0.3 + 0.12 * k for _, k in kept], s=26, color=colour, alpha=0.55, linewidths=0)
    if math.isfinite(row.low) and math.isfinite(row.high):
        axes.errorbar([(row.low + row.high) / 2], [y + 0.22], xerr=[(row.high - row.low) / 2], color="black", capsize=4, linewidth=1.6)
    if math.isfinite(row.mean):
        axes.scatter([row.mean], [y + 0.22], marker="D", s=36, color=colour, zorder=4)


def dots(rows, x_label, limit=None, limit_label="", has_zero=False):
    """One row of dots each, its mean and interval below them."""
    figure, axes = new(7.2, 0.75 * len(rows) + 1.1)
    for y, row in enumerate(rows):
        put_row(axes, y, row)
    if has_zero:
        axes.axvline(0, color="black", linewidth=0.8)
    if limit is not None and math.isfinite(limit):
        axes.axvline(limit, color=COLOURS[2], linewidth=1.6, linestyle=(0, (4, 3)))
        axes.annotate(limit_label, (limit, 1), xycoords=("data", "axes fraction"), xytext=(4, 3), textcoords="offset points",
                      color=COLOURS[2], fontsize=9)
    axes.set_yticks(range(len(rows)), [plain(r.label) for r in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(x_label)
    axes.grid(axis="x", **GRID)
    return figure


@dataclass
class Point:
    label: str
    x: float
    y: float
    is_square: bool = False
    is_hollow: bool = False
    is_marked: bool = False


def points(all_points, x_label, y_label, title=None, subtitle=None):
    """One point each, named in the legend; a ring around those that are marked; a line at zero."""
    figure, axes = new(8.6, 4.4)
    for i, point in enumerate(all_points):
        if not (math.isfinite(point.x) and math.isfinite(point.y)):
            continue
        colour = COLOURS[(i + 1) % len(COLOURS)]
        axes.scatter([point.x], [point.y], s=80, marker="s" if point.is_square else "o", color="none" if point.is_hollow else colour,
                     edgecolors=colour, linewidths=1.8, label=plain(point.label), zorder=3)
        if point.is_marked:
            axes.scatter([point.x], [point.y], s=330, color="none", edgecolors="black", linewidths=1.6, zorder=4)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(**GRID)
    axes.margins(0.12)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02))
    put_titles(figure, axes, title, subtitle)
    return figure


@dataclass
class Bar:
    label: str
    parts: list
    mark: float = math.nan


def bars(all_bars, part_names, x_label, mark_name=None):
    """Stacked bars; a mark (the formula) is a tick across its bar."""
    figure, axes = new(8.6 if len(part_names) > 1 or mark_name else 7.2, 0.34 * len(all_bars) + 1.1)
    start = [0.0] * len(all_bars)
    for k, name in enumerate(part_names):
        sizes = [max(bar.parts[k], 0.0) if math.isfinite(bar.parts[k]) else 0.0 for bar in all_bars]
        axes.barh(range(len(all_bars)), sizes, left=start, height=0.62, color=COLOURS[1 + k], label=name)
        start = [a + b for a, b in zip(start, sizes)]
    marks = [(bar.mark, y) for y, bar in enumerate(all_bars) if math.isfinite(bar.mark)]
    if marks:
        axes.scatter([m for m, _ in marks], [y for _, y in marks], marker="|", s=170, linewidths=2.4, color="black", label=mark_name,
                     zorder=4)
    axes.set_yticks(range(len(all_bars)), [plain(b.label) for b in all_bars])
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    axes.set_xlim(left=0)
    axes.grid(axis="x", **GRID)
    if len(part_names) > 1 or marks:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02))
    return figure


def compact(svg):
    """One line per group, paths to a hundredth of a point: a third of the size, and no difference that can be seen."""
    def shorter(path):
        return re.sub(rb"(\.[0-9]{2})[0-9]+", rb"\1", path.group(0))

    return re.sub(rb"\s*\n\s*(?!\s*<g id=)(?=\S)", b" ", re.sub(rb' d="[^"]*"', shorter, svg))


def rendered(draw, kind="svg"):
    """The bytes of a figure as a file: "svg" or "png"."""
    out = io.BytesIO()
    with need("matplotlib").rc_context(STYLE):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        draw().savefig(out, format=kind, bbox_inches="tight", dpi=150, metadata=metadata)
    return compact(out.getvalue()) if kind == "svg" else out.getvalue()
