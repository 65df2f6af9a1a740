# SPDX-License-Identifier: Apache-2.0
"""One task of zf-conform glue: four arms are trained from the same weights on the same rows, judged, told and drawn.

AdamW, the plugin in its exact mode (ZeRO-Offload's semantics), the plugin as configured, and AdamW as the plugin documents it. The
configured one's paired test over seeds is the verdict; the exact mode, which must end in the weights of AdamW as documented, or a
start that leaves AdamW's path, can only make it worse. DeepSpeed's optimizers, where asked
for, stand beside them and are not judged.
"""

from __future__ import annotations

import os
import sys

from zfplugin import progress

from . import judge, picture, probe, result, runs, scores, text, trainers
from .runs import CannotRun, last_quarter
from .tasks import Task, find_file, read
from .trainers import Arm

EXACT = ("zenflow.mode=exact", "zenflow.update_interval=1", "zenflow.publish_lag=0")  # the last two: over what was asked
CHOOSES_MODE = ("zenflow.mode", "zenflow.update_interval", "zenflow.publish_lag")


def windows_of(a) -> tuple:
    """As configured; where nothing chooses a mode, windows, since exact has an arm of its own."""
    chosen = a.config or any(o.split("=")[0] in CHOOSES_MODE for o in a.set)
    return tuple(a.set) if chosen else (*a.set, "zenflow.mode=windows")


def make_arms(a) -> list[Arm]:
    """AdamW first, the configured plugin last of the three that are judged."""
    sets = tuple(a.set)
    arms = [Arm("adamw", "AdamW", a.seeds), Arm("exact", "exact", a.exact_seeds, True, sets + EXACT, a.config),
            Arm("zenflow", "ZenFlow", a.seeds, True, windows_of(a), a.config)]
    if a.trainer == "c":
        arms.append(Arm("documented", "documented", min(2, a.exact_seeds)))
    if a.deepspeed:
        arms += [Arm("deepspeed-offload", "DeepSpeed ZeRO-Offload", a.seeds), Arm("deepspeed-zenflow", "DeepSpeed ZenFlow", a.seeds)]
    return arms


def describe(run, report: dict) -> str:
    return (f"{run.title}: {report['metric']['name']} {report['metric']['value']:.2f}, loss of the last quarter "
            f"{last_quarter(report['losses']):.4f}, {report['seconds']:.1f} s")


def figures_of(campaign: dict) -> dict:
    """{arm's name: judge.arm_figures()} of the two that are judged."""
    a, out = campaign["options"], {}
    for arm in campaign["arms"][1:3]:
        asked = campaign["probes"][arm.name]
        n_start = judge.START_STEPS if arm.name == "exact" else int(asked.number("zenflow.full_warm_up_rounds", 0))
        out[arm.name] = judge.arm_figures(campaign["runs"][arm.name], campaign["runs"]["adamw"], asked, a.margin, n_start,
                                          campaign["trainer"].start_tolerance, 2.0 if a.dtype == "bf16" else 4.0)
    if a.trainer == "c":
        out["exact"]["weights"] = judge.same_weights(campaign["runs"]["exact"], campaign["runs"]["documented"], not a.config and not a.set)
    return out


def planned(task: Task, a) -> dict:
    """What there is to train: "plan" is {(arm's name, seed): run}, a seed's arms beside each other. a: the options, settled (glue.py)."""
    arms = make_arms(a)
    trainer = trainers.TRAINERS[a.trainer](task, a)
    probes = {arm.name: probe.ask(a.plugin, arm.config, arm.sets) for arm in arms if arm.is_plugin}
    plan = {(arm.name, seed): trainer.run(arm, seed) for seed in range(1, a.seeds + 1) for arm in arms if seed <= arm.n_seeds}
    truth = [read(task, find_file(task, trainer.data, name)).labels for name in task.dev]
    return {"task": task, "options": a, "arms": arms, "probes": probes, "trainer": trainer, "plan": plan, "truth": truth}


def judged(c: dict, kept: dict) -> dict:
    """Everything of one task, trained and judged: what text and result are made of. kept: {run: its report} of the whole plan."""
    task, a, plan = c["task"], c["options"], c["plan"]
    own = {job: scores.scored(kept[run], task, c["truth"]) for job, run in plan.items()}
    out = {**c, "runs": {arm.name: [own[arm.name, seed] for seed in range(1, arm.n_seeds + 1)] for arm in c["arms"]}}
    try:
        out["figures"] = figures_of(out)
    except judge.NoVerdict as problem:
        raise CannotRun(str(problem)) from None
    out["not_learned"] = judge.why_nothing_was_learned(out["runs"]["adamw"], judge.chance(c["truth"][0], task.metrics[0]), a.margin)
    out["exit_status"] = judge.exit_status(list(out["figures"].values()), not out["not_learned"])
    return out


def run_task(task: Task, a, stem: str) -> int:
    """Trains, judges and tells one task; files OUT/stem.json, .txt and .svg. The exit status."""
    campaign = planned(task, a)
    if a.data is None:
        print("no --data: training on a SYNTHETIC corpus in SST-2's layout", file=sys.stderr)
    with progress.Line("zf-conform glue") as line:
        kept = runs.make(list(campaign["plan"].values()), a.out, a.jobs, line,
                         lambda run, report: describe(run, scores.scored(report, task, campaign["truth"])))
    campaign = judged(campaign, kept)
    table, path = text.table(campaign), os.path.join(a.out, stem)
    print(table, flush=True)
    result.write(campaign, path + ".json")
    runs.write(path + ".txt", table + "\n")
    print(f"{path}.json\n{path}.txt", flush=True)
    if picture.draw(path + ".svg", {task.folder: result.curves(campaign)}):
        print(f"{path}.svg", flush=True)
    return campaign["exit_status"]
