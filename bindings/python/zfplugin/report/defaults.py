# SPDX-License-Identifier: Apache-2.0
"""Section of zf-conform ablation: every setting's gaps to AdamW over unlike tasks, against the bars."""
from . import draw
from .blocks import Figure, Section, Table, Text, Verdict, fixed, number, signed, value

CUT = 15.0  # percent: what is beyond stands at the edge of the plot
KINDS = {"fetches": ("fetching", "hosts that fetch (publish_lag = 0)"),
         "does not fetch": ("not-fetching", "publish_lag = 1, with which no host need fetch"), "": ("other", "no bar is for these")}


def gap(ratio):
    return signed(value(ratio, 100.0), 1)


def verdict(setting):
    return Verdict(setting["verdict"]) if setting["verdict"] in ("held", "MISSED") else setting["verdict"]


def settings_table(data):
    names = [c["name"] for c in data["cells"]]
    rows = []
    for s in data["settings"]:
        means = {c["cell"]: gap(c["mean"]) for c in s["cells"]}
        rows.append([s["name"], gap(s["mean"]), gap(s["worst"]), verdict(s), *(means.get(n, "") for n in names)])
    return Table(["setting", ">mean, %", ">worst, %", "bar", *(">" + n for n in names)], rows)


def cells_table(data):
    rows = [[c["name"], c["what"], f"{c['trained_by']}, {c['dtype']}", fixed(c["steps"], 0), fixed(c["batch"], 0), number(c["lr"]),
             fixed(c["seeds"], 0), fixed(c["first_loss"], 3), fixed(c["adamw_loss"], 3)] for c in data["cells"]]
    return Table(["cell", "what", "trained by", ">steps", ">rows", ">peak rate", ">seeds", ">first loss", ">AdamW, last quarter"], rows)


def cut(x):
    return min(max(value(x, 100.0), -CUT), CUT)


def figure(data, kind):
    name, title = KINDS[kind]
    bar = data["bars"].get(kind)
    rows = [draw.Row(s["name"], [cut(c["mean"]) for c in s["cells"]], cut(s["mean"]), colour=1 + i)
            for i, s in enumerate(s for s in data["settings"] if s["bar"] == kind)]
    if not rows:
        return []
    limit, label = (None, "") if bar is None else (value(bar["worst"], 100.0), f"worst allowed: {signed(value(bar['worst'], 100.0), 0)} %")
    note = "dots: cells, mean over their seeds; diamond: mean of the cells"
    label_x = f"loss of the last quarter relative to AdamW's, %; beyond {CUT:g} % at the edge"
    return [Figure(name, f"Gaps to AdamW: {title}", note, lambda: draw.dots(rows, label_x, limit, label, True))]


def section(data):
    held = [s["name"] for s in data["settings"] if s["verdict"] == "held"]
    bars = [f"{KINDS[kind][1]}: mean <= {number(value(bar['mean'], 100))} %, worst <= {number(value(bar['worst'], 100))} %"
            for kind, bar in data["bars"].items() if kind in KINDS]
    return Section(f"{len(data['settings'])} settings on {len(data['cells'])} cells; the bar holds for {', '.join(held) or 'none'}",
                   [Text("Gap: mean training loss of the last quarter, relative to AdamW's of the same seed. " + "; ".join(bars) + "."),
                    settings_table(data), cells_table(data), *(f for kind in KINDS for f in figure(data, kind))])
