# SPDX-License-Identifier: Apache-2.0
"""What is measured, the most important first, by the areas glue and ablation. Lengths and rates are such that AdamW learns the task.

A row has its runs and, once they are all kept, its figures. Seconds are of one run on one quiet core of a recent server."""

from __future__ import annotations

import argparse
import os
import statistics
import sys

from zfplugin.accuracy import campaign, glue, judge, options, probe, result
from zfplugin.accuracy import runs as kept_runs
from zfplugin.accuracy.ablation import command
from zfplugin.accuracy.ablation import judge as gaps
from zfplugin.accuracy.ablation import plan as tasks
from zfplugin.accuracy.runs import CannotRun, Run, digest, key_of, last_quarter
from zfplugin.accuracy.tasks import find_task
from zfplugin.accuracy.trainers import machine, python_sources


class Row:
    def __init__(self, name: str, table: str, what: str, seconds: float):
        self.name, self.table, self.what, self.seconds = name, table, what, seconds
        self.runs, self.problem, self.folder = [], "", ""

    def prepare(self, place) -> None:
        """Plans the runs, or says why there are none."""
        self.folder = place.out
        try:
            self.runs = list(dict.fromkeys(self.plan(place)))
        except (CannotRun, ImportError) as problem:
            self.problem = "could not run"
            print(f"  {self.name} could not run: {problem}", file=sys.stderr)

    def kept(self) -> dict:
        found = {run: kept_runs.read_kept(run.kept_in(self.folder), run, takes_failures=False) for run in self.runs}
        return {run: report for run, report in found.items() if report is not None}

    def missing(self) -> list:
        kept = self.kept()
        return [run for run in self.runs if run not in kept]

    def figures(self):
        """None where not all runs are there."""
        kept = self.kept()
        return self.judged(kept) if self.runs and len(kept) == len(self.runs) else None

    def plan(self, place) -> list:
        raise NotImplementedError

    def judged(self, kept: dict) -> dict:
        raise NotImplementedError


class Glue(Row):
    """A campaign of zf-conform glue, by its words."""

    def __init__(self, name, table, what, seconds, words):
        super().__init__(name, table, what, seconds)
        self.words, self.campaign = words.split(), None

    def plan(self, place) -> list:
        words = [place.model if word == "MODEL" else word for word in self.words]
        where = ["--data", place.data, "--out", place.out, "--plugin", place.plugin]
        where += ["--threads", "1"] if "torch" in words else ["--host", place.host]
        a = options.parse(glue.HEAD, glue.TABLE, glue.END, [*words, *where])
        glue.check(a)
        task = find_task(a.task)
        self.campaign = campaign.planned(task, glue.settle(a, task))
        return list(self.campaign["plan"].values())

    def judged(self, kept) -> dict:
        c = campaign.judged(self.campaign, kept)
        source = result.source(c)
        return {"row": self.name, "what": self.what, "options": [w for w in self.words if w != "MODEL"], **source,
                "trained_by": c["trainer"].describe(source["parameters"]), "arms": [result.arm(c, arm) for arm in c["arms"]]}


class Tasks(Row):
    """The cells of zf-conform ablation at some settings."""

    def __init__(self, name, what, seconds, settings, n_seeds):
        super().__init__(name, name, what, seconds)
        self.settings, self.seeds = [tasks.ADAMW, *tasks.settings(settings)], range(1, n_seeds + 1)
        self.cells, self.plan_of, self.plugin = tasks.cells("all"), {}, ""

    def plan(self, place) -> list:
        made_with = command.programs(place, self.cells)
        self.plugin = digest(made_with.plugin)[:12]
        self.plan_of = {(c.name, s.name, seed): command.run_of(c, s, seed, made_with)
                        for seed in self.seeds for c in self.cells for s in self.settings if s.trains(c)}
        return list(self.plan_of.values())

    def judged(self, kept) -> dict:
        done = {job: kept[run] for job, run in self.plan_of.items()}
        curves = {family: {s.name: result.mean_losses([done[cell, s.name, seed] for seed in self.seeds])
                           for s in self.settings[:3]} for cell, family in FAMILIES.items()}
        return {**gaps.result(self.cells, self.settings, self.seeds, done, self.plugin), "mean_losses": curves}


FAMILIES = {"sst2-scratch": "BERT", "gpt": "GPT-2", "llama": "Llama"}
HOST = "--model MODEL --batch 32 --lr 5e-5 --seeds 6 --exact-seeds 6 --task "
TORCH = "--trainer torch --model MODEL --dropout 0 "
SIX, SST2 = "--exact-seeds 6 --seeds 6 --task ", "sst2 --steps 200"
MEASURED = (
    Glue("sst2", "glue", "SST-2, 2000 steps of 32 rows from scratch", 20, "--task sst2 --seeds 12 --exact-seeds 12"),
    Glue("mrpc", "glue", "MRPC, 230 steps of 32 rows, pretrained", 260, HOST + "mrpc --steps 230"),
    Glue("cola", "glue", "CoLA, 500 steps of 32 rows, pretrained", 160, HOST + "cola --steps 500"),
    Glue("cola-torch", "glue", "CoLA, 400 steps of 32 rows, pretrained", 130, TORCH + SIX + "cola --steps 400 --batch 32"),
    Glue("mrpc-torch", "glue", "MRPC, 230 steps of 16 rows, pretrained", 100, TORCH + SIX + "mrpc"),
    Glue("sst2-torch", "glue", "SST-2, 200 steps of 16 rows, pretrained", 80, TORCH + SIX + SST2),
    Tasks("tasks", "unlike tasks, three families of models among them", 16, "exact,windows,noise", 2),
    Tasks("moments", "small moments", 16, "moments", 2),
    Glue("peers", "peers", "SST-2, 200 steps of 16 rows, pretrained", 150,
         TORCH + "--deepspeed --exact-seeds 3 --seeds 3 --task " + SST2),
    Tasks("settings", "other settings", 16, "s2-lag1-auto,s4-lag0-auto,s1-lag1-auto", 2),
)


def planned(a, tree) -> tuple:
    """All rows with their runs."""
    build, model = os.path.join(tree, "build", "release"), a.model
    if not os.path.isdir(model):
        from zfplugin.accuracy.pytorch.model import locate

        model = locate(model)
    place = argparse.Namespace(tree=tree, data=os.path.abspath(a.data), model=model, out=os.path.abspath(a.out),
                               plugin=os.path.join(build, "plugin", "libzfplugin.so"), host=os.path.join(build, "conformance", "host", "zf-host"))
    for row in MEASURED:
        row.prepare(place)
    return MEASURED
