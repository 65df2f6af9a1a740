# SPDX-License-Identifier: Apache-2.0
"""The table of one campaign, as text: what was trained on what, every seed's score, then each arm of the plugin against AdamW."""

from __future__ import annotations

import statistics

from . import judge
from .runs import CannotRun

VERDICTS = {0: "PASS", 1: "FAIL", 3: "INCONCLUSIVE"}


def scores(runs, member: str) -> list[float]:
    return [r[member]["value"] for r in runs]


def source_lines(c: dict) -> list[str]:
    task, a, trainer, report = c["task"], c["options"], c["trainer"], c["runs"]["adamw"][0]
    rows, files = report["rows"], "official files" if a.data else "SYNTHETIC corpus (generated; says nothing about GLUE)"
    lines = [f"task {task.name}, {files}: {rows['train']} train rows (sha256 {trainer.digests['train'][:8]}), {rows['dev']} dev rows "
             f"({trainer.digests['dev'][:8]})"]
    if rows.get("second_dev"):
        lines.append(f"second dev set {task.dev[1]}: {rows['second_dev']} rows ({trainer.digests['second_dev'][:8]})")
    if rows.get("skipped"):
        lines.append(f"SKIPPED {rows['skipped']} lines that lack columns")
    if "device" in report:
        lines.append(f"trained on {report['device']}")
    return [*lines, f"{trainer.describe(report['model']['parameters'])}; {a.steps} steps of {a.batch} rows, peak rate {a.lr}, AdamW",
            f"plugin {c['probes']['zenflow'].version}", settings_line(c["arms"][2])]


def settings_line(arm) -> str:
    """Every line of the INI file that says something, and every --set: what the arm ZenFlow was told."""
    told = []
    if arm.config:
        try:
            with open(arm.config, encoding="utf-8") as file:
                told = [line.strip() for line in file if line.strip() and line[0] not in ";#"]
        except (OSError, UnicodeDecodeError) as error:
            raise CannotRun(f"{arm.config}: cannot read: {error}") from None
    return "ZenFlow is set by " + (", ".join([*told, *arm.sets]) or "the plugin's defaults")


def seeds_lines(c: dict) -> list[str]:
    arms, runs = c["arms"], c["runs"]
    heads = [arm.title for arm in arms] + ["ZenFlow-AdamW"]
    widths = [max(12, len(head)) for head in heads]
    row = lambda name, cells: f"  {name:>4}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths))
    values = {arm.name: scores(runs[arm.name], "metric") for arm in arms}
    lines = [f"{c['task'].metrics[0]} x 100 on the dev set", row("seed", heads)]
    for i in range(arms[0].n_seeds):
        cells = [f"{values[arm.name][i]:.2f}" if i < arm.n_seeds else "-" for arm in arms]
        lines.append(row(i + 1, [*cells, f"{values['zenflow'][i] - values['adamw'][i]:+.2f}"]))
    means = [f"{statistics.fmean(values[arm.name]):.2f}" for arm in arms]
    lines.append(row("mean", [*means, f"{c['figures']['zenflow']['metric']['mean_difference']:+.2f}"]))
    if "second" in runs["adamw"][0]:
        beside = (f"{arm.title} {statistics.fmean(scores(runs[arm.name], 'second')):.2f}" for arm in arms)
        lines.append(f"  mean of {runs['adamw'][0]['second']['name']} x 100: {', '.join(beside)}")
    if arms[1].n_seeds < arms[0].n_seeds:
        lines.append(f"  (the exact mode ran {arms[1].n_seeds} seeds only; its differences below are over those)")
    return lines


def start_line(s: dict) -> str:
    if s["steps"] == 0:
        return "  start         not checked: the plugin names no warm-up, or one of a step, whose loss comes before any update"
    said = "shown" if s["allowed"] is None else "PASS" if s["conforms"] else "FAIL"
    if s["equal_steps"] >= s["steps"]:
        found = f"equal in every digit (so up to step {s['equal_steps']})"
    else:
        allowed = "; not judged: AdamW rounds otherwise there" if s["allowed"] is None else f"; allowed {s['allowed']:.0e}"
        found = f"largest relative difference {s['largest_difference']:.1e} (seed {s['seed']}, step {s['step']}{allowed})"
    return f"  start         {said}: loss of steps 1..{s['steps']} against AdamW's, {found}"


def weights_lines(f: dict) -> list[str]:
    w = f.get("weights")
    if not w or not w["tensors"]:
        return []
    said = "shown" if not w["is_judged"] else "PASS" if w["conforms"] else "FAIL"
    found = (f"0 of {w['weights']:.0f} differ" if w["differ"] == 0 else
             f"{w['differ']} of {w['tensors']} tensors differ (of all seeds)")
    return [f"  weights       {said}: {found} from AdamW as documented after step {w['steps']}, over {w['seeds']} seeds"]


def link_lines(f: dict, dtype: str) -> list[str]:
    x = f["link"]
    formula, counted = x["down_formula"] + x["publish_formula"], x["down"] + x["publish"]
    if x["is_in_place"]:
        return [f"  link          {counted:.0f} bytes per step: no window was closed, all state lies where the weights do"]
    return [f"  link          {counted:.0f} bytes per step = {counted / formula:.3f} x the formula's {formula:.0f}: "
            f"{'2' if dtype == 'bf16' else 'fp32: 4'}M(1 + 1/S), S = {f['interval']:.0f}",
            f"                down (gradients, records) {x['down']:.0f}, formula {x['down_formula']:.0f}; up (published) {x['publish']:.0f}, "
            f"formula {x['publish_formula']:.0f},",
            f"                of which closes beyond one per window (warm-up, flush) {x['publish_warm_up']:.0f}; entering state beside it "
            f"{x['enter']:.0f}"]


def memory_lines(m: dict, device) -> list[str]:
    own = f"  host memory   bytes per parameter: planned {m['planned']:.2f}, mapped {m['mapped']:.2f}; "
    if device:  # what the driver maps into the process is not the plugin's
        return [own + f"on the device {m['device']:.2f}"]
    return [own + f"from outside {m['from_outside']:.1f} (peak RSS", "                beyond the AdamW run's, + that run's own 12, - the "
            f"device's {m['device']:.2f}, which lie in host memory here)"]


def arm_lines(arm, f: dict, a) -> list[str]:
    ratio = 100 * (f["last_quarter"] / f["last_quarter_adamw"] - 1)
    return ["", f"{arm.title} against AdamW", f"  metric        {judge.sentence(f['metric'])}", start_line(f["start"]), *weights_lines(f),
            f"  last quarter  mean training loss {f['last_quarter']:.4f}, AdamW {f['last_quarter_adamw']:.4f}: {ratio:+.2f} %",
            *link_lines(f, a.dtype), f"  stall         {f['stall_us']:.0f} us per step, a step takes {f['step_us']:.0f} us (AdamW "
            f"{f['step_us_adamw']:.0f} us; {a.jobs} runs share this machine)", *memory_lines(f["memory"], a.device)]


def verdict_line(c: dict) -> str:
    status, a = c["exit_status"], c["options"]
    said = {0: "trains as well as AdamW within the margin", 1: "does not train as AdamW does"}.get(
        status, "cannot be judged by runs that learn nothing" if c["not_learned"] else "needs more seeds to be judged")
    return (("" if a.data else "on a SYNTHETIC corpus, ") + VERDICTS[status] + f": the plugin {said}")


def table(c: dict) -> str:
    lines = [*source_lines(c), "", *seeds_lines(c)]
    for arm in c["arms"][1:3]:
        lines += arm_lines(arm, c["figures"][arm.name], c["options"])
    if c["not_learned"]:
        lines += ["", f"AdamW itself has not learned yet ({c['not_learned']}):",
                  "equal scores say nothing; longer runs are needed (--steps), or another rate (--lr)"]
    return "\n".join([*lines, "", verdict_line(c)])
