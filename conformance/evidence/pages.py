# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/accuracy.md between their marks, a JSON file for each, and two pictures. What is not measured is said by its name."""

from __future__ import annotations

import json
import re
import statistics

from zfplugin.accuracy import picture, result, runs
from zfplugin.accuracy.ablation.judge import BARS, percent

BAR = BARS["fetches"]
NAMES = {"adamw": "torch's AdamW", "exact": "the plugin, exact", "zenflow": "the plugin, windows"}
MARK = "<!-- evidence: {} -->\n"


def table(heads, lines) -> str:
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in (heads, ["---"] * len(heads), *lines))


def gap(arm) -> float:
    return arm["last_quarter_ratio"] - 1.0


def margins(values) -> tuple[bool, str]:
    mean, worst = statistics.fmean(values), max(values)
    holds = mean <= BAR["mean"] and worst <= BAR["worst"]
    return holds, f"mean {percent2(mean)}, worst {percent2(worst)}: {'held' if holds else 'MISSED'}"


def percent2(x: float) -> str:
    return f"{100 * x:+.2f} %"


# ---- a table: its text, and whether everything in it holds (None: not decided) ---------------------------------------------------------------


def glue(found) -> tuple[str, bool | None]:
    lines = []
    for row, f in found:
        by = "PyTorch" if "torch" in row.words else "reference trainer"
        adamw, exact, windows = f["arms"][:3]
        points = f"{windows['mean_difference']:+.2f} ({windows['lower']:+.2f} .. {windows['upper']:+.2f})"
        scores = [f"{statistics.fmean(arm['metric']):.2f}" for arm in (adamw, exact, windows)]
        lines.append([row.what, by, len(adamw["metric"]), *scores, points, percent2(gap(exact)), percent2(gap(windows)),
                      f["verdict"] + ("" if f["adamw_has_learned"] else ": AdamW itself has not learned")])
    verdicts, (holds, said) = [f["verdict"] for _, f in found], margins([gap(f["arms"][2]) for _, f in found])
    heads = ("task", "trained by", "seeds", "AdamW", "exact", "windows", "windows - AdamW, points (one-sided 95 % bounds)",
             "loss, last quarter: exact", "windows", "verdict")
    text = table(heads, lines) + (f"\nThe windows' loss of the last quarter beside AdamW's: {said} (at most {percent2(BAR['mean'])} and "
                                  f"{percent2(BAR['worst'])}). PASS on {verdicts.count('PASS')} of {len(found)} tasks.\n")
    return text, False if not holds or "FAIL" in verdicts else True if set(verdicts) == {"PASS"} else None


def tasks(found) -> tuple[str, bool | None]:
    ((row, f),) = found
    columns = [{c["cell"]: c for c in s["cells"]} for s in f["settings"]]
    lines = [[c["what"], c["trained_by"], f"{c['steps']} x {c['batch']}", f"{c['lr']:g}", c["seeds"], f"{c['adamw_loss']:.3f}",
              *(percent(own[c["name"]]["mean"]) if c["name"] in own else "" for own in columns)] for c in f["cells"]]
    lines.append(["**mean, worst**", "", "", "", "", "", *(f"{percent(s['mean'])}, {percent(s['worst'])}" for s in f["settings"])])
    bars = [f"{s['verdict']} ({100 * f['bars'][s['bar']]['mean']:g}, {100 * f['bars'][s['bar']]['worst']:g})" if s["bar"] else ""
            for s in f["settings"]]
    lines.append(["bar: mean, worst", "", "", "", "", "", *bars])
    heads = ("task", "trained by", "steps x rows", "rate", "seeds", "AdamW's loss", *(f"{s['name']}, %" for s in f["settings"]))
    return table(heads, lines), all(s["verdict"] in ("held", "-") for s in f["settings"]) or row.name == "settings"


def peers(found) -> tuple[str, bool | None]:
    ((row, f),) = found
    base = statistics.fmean(f["arms"][0]["last_quarter_loss"])
    lines = [[NAMES.get(arm["name"], arm["title"]), " ".join(f"{x:.2f}" for x in arm["metric"]),
              f"{statistics.fmean(arm['metric']):.2f}", percent2(statistics.fmean(arm["last_quarter_loss"]) / base - 1)] for arm in f["arms"]]
    return f"{row.what}:\n\n" + table(("optimizer", f"{f['metric']} x 100, by seed", "mean", "loss, last quarter"), lines), True


TABLES = {"glue": glue, "tasks": tasks, "moments": tasks, "peers": peers, "settings": tasks}


# ---- pictures: titles of panels with their curves -------------------------------------------------------------------------------------------


def glue_panels(found) -> dict:
    return {row.what: {arm["name"]: arm["mean_losses"] for arm in f["arms"][:3]} for row, f in found if row.name == "sst2"}


def family_panels(found) -> dict:
    ((_, f),) = found
    return f["mean_losses"]


PICTURES = {"glue": (glue_panels, "Training loss of AdamW, the exact mode and windows on SST-2"),
            "tasks": (family_panels, "Training loss of BERT, GPT-2 and Llama by AdamW, the exact mode and windows")}


# ---- the files -------------------------------------------------------------------------------------------------------------------------------


def slim(value):
    """Without the curves, which the pictures show."""
    if isinstance(value, dict):
        return {name: slim(v) for name, v in value.items() if name != "mean_losses"}
    return [slim(v) for v in value] if isinstance(value, list) else value


def section(name: str, own, at: str, results) -> tuple[str, bool | None]:
    """Text of one table, which rows it lacks included; writes its JSON file and picture, or takes old ones away."""
    found = [(row, f) for row in own if (f := row.figures()) is not None]
    lacking = [(row.what + (" (PyTorch)" if "torch" in getattr(row, "words", ()) else ""), row.problem) for row in own
               if row not in [r for r, _ in found]]
    text, holds = "", None
    for old in results.glob(f"accuracy-{name}.*"):
        old.unlink()
    if found:
        text, holds = TABLES[name](found)
        text = f"Commit {at}.\n\n{text}"
        rows = [json.dumps(slim(result.plain({"row": row.name, **f}))) for row, f in found]
        runs.write(results / f"accuracy-{name}.json",
                   f'{{"area": "accuracy", "commit": "{at}", "rows": [\n  ' + ",\n  ".join(rows) + "\n]}\n")
        panels, title = PICTURES.get(name, (None, ""))
        if panels and (drawn := panels(found)) and picture.draw(results / f"accuracy-{name}.svg", drawn):
            text += f"\n![{title}](../conformance/results/accuracy-{name}.svg)\n"
    if lacking:
        said = ", ".join(what + (f" ({problem})" if problem else "") for what, problem in lacking)
        text += f"\nNot measured on commit {at}: {said}.\n"
    return text, None if lacking and holds else holds


def write(tree, at: str, every, tables) -> int:
    """Writes these tables; the exit status that it comes to: 0 all holds, 1 something does not, 3 not all is decided."""
    page, results = tree / "docs" / "accuracy.md", tree / "conformance" / "results"
    old, statuses = page.read_text(encoding="utf-8"), []
    text = old
    for name in tables:
        own, holds = section(name, [row for row in every if row.table == name], at, results)
        begin, end = MARK.format(name), MARK.format(f"end of {name}")
        text, n = re.subn(re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n{own.strip()}\n\n{end}", text, flags=re.DOTALL)
        if n != 1:
            raise runs.CannotRun(f"docs/accuracy.md: found {n} places for the table {name}; one is needed")
        statuses.append(holds)
    runs.write(page, text)
    return 1 if False in statuses else 3 if None in statuses else 0
