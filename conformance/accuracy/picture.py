# SPDX-License-Identifier: Apache-2.0
"""The picture of a result: training losses against the step, as an SVG. The same losses give the same bytes."""

from __future__ import annotations

import io
import sys

from .runs import write

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito's: told apart with colour blindness
MOST_POINTS = 100  # of a curve
STYLE = {"svg.hashsalt": "zfplugin", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}


def smoothed(losses) -> list:
    """A running mean over a fortieth of the steps."""
    half = len(losses) // 80
    near = [losses[max(0, i - half):i + half + 1] for i in range(len(losses))]
    return [sum(values) / len(values) for values in near]


def thinned(losses) -> dict:
    """Every so many steps, from the first to the last: {step: loss}."""
    n = len(losses)
    return {i + 1: losses[i] for i in sorted({round(k * (n - 1) / MOST_POINTS) for k in range(MOST_POINTS + 1)})}


def put_curves(axes, title: str, curves: dict) -> None:
    for i, (name, losses) in enumerate(curves.items()):
        # The exact mode lies on AdamW's line, so it is dashed.
        points = thinned(smoothed(losses))
        axes.plot(list(points), list(points.values()), label=name, color=COLOURS[i % len(COLOURS)], linestyle="--" if name == "exact" else "-")
    axes.set_title(title, loc="left")
    axes.set(xlabel="optimizer step", ylabel="training loss")
    axes.legend()


def draw(path, panels: dict) -> bool:
    """Draws panels side by side: {title: {curve: its loss at every step}}. False where matplotlib is missing, which is said."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is missing; apt-get install python3-matplotlib, or: python3 -m pip install matplotlib", file=sys.stderr)
        return False
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.5 + 4.5 * len(panels), 4), layout="constrained")
        for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
            put_curves(axes, title, curves)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    write(path, text.getvalue().replace("\nL ", " L "))  # a path on a line
    return True
