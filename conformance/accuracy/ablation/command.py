# SPDX-License-Identifier: Apache-2.0
"""The command: options, runs, and the files that it leaves (the package says what is trained and judged)."""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from zfplugin import progress
from zfplugin.library import find

from .. import probe, runs
from ..options import Option, count, parse
from ..runs import CannotRun, Run, digest, key_of
from ..trainers import find_host, machine, python_sources
from . import data, judge, plan

HEAD = "zf-conform ablation - training loss of the plugin's settings beside AdamW's, on unlike tasks"
END = "exit status: 0 every setting of --must holds its bar, 1 one does not, 2 could not run"
TABLE = (
    Option("plugin", "FILE", "libzfplugin.so (default: ZFPLUGIN_PATH)"),
    Option("data", "DIR", "official GLUE files: DIR/SST-2, DIR/CoLA and DIR/vocab.txt"),
    Option("model", "DIR", "pretrained encoder of the fine-tunes: a folder, or an installed package that holds one"),
    Option("tasks", "CELL,...", f"some of {', '.join(plan.CELLS)} (all)", default="all"),
    Option("settings", "NAME,...", f"groups ({', '.join(plan.GROUPS)}) or {plan.GRAMMAR} (core)", default="core"),
    Option("must", "NAME,...", "settings whose bar decides the exit status", default=""),
    Option("seeds", "N", "seeds 1..N (2)", count, default=2),
    Option("steps", "N", "cut every run to N steps: shows that it works and decides nothing", count),
    Option("jobs", "N", "runs at the same time (2)", count, default=2),
    Option("kept", None, "make no run: judge what is kept"),
    Option("out", "DIR", "results, kept runs and prepared data (zf-conform-ablation)", default="zf-conform-ablation"),
    Option("host", "FILE", "zf-host (default: beside zf-conform)"),
)

# Several runs share the machine: one worker each, pinned nowhere. The values do not depend on it.
THREADS = ("host.threads=1",)


@dataclasses.dataclass(frozen=True)
class Programs:
    """What runs are made with."""

    plugin: str
    host: str | None  # zf-host; None: no cell needs it
    model: str | None  # folder of the pretrained encoder
    files: dict[tuple[str, bool], str]  # what data.prepare() wrote: of a task, and whether pretrained


def programs(args, cells) -> Programs:
    """Finds all that the cells need; CannotRun says what is missing."""
    host = find_host(args.host) if any(c.task not in plan.LANGUAGE for c in cells) else None
    model = args.model
    if model is not None and not os.path.isdir(model):
        from ..pytorch.model import locate

        model = locate(model)
    needy = [c.name for c in cells if c.is_pretrained]
    if needy and (model is None or not os.path.exists(os.path.join(model, "model.safetensors"))):
        raise CannotRun(f"{needy[0]} needs --model: a folder with config.json and model.safetensors, or a package that holds one")
    files = data.prepare(args.data, os.path.join(args.out, "data"), {(c.task, c.is_pretrained) for c in cells}, model)
    return Programs(os.path.abspath(args.plugin or find()), host, model, files)


def run_of(cell, setting, seed: int, p: Programs) -> Run:
    """One run: what it is told, and all that decides its result."""
    cell = dataclasses.replace(cell, lr=cell.lr * setting.rate_factor)
    told = [*cell.arguments(), "--seed", str(seed), "--optimizer", setting.optimizer]
    for override in (*setting.overrides, *THREADS) if setting.is_plugin else ():
        told += ["--set", override]
    own = p.files[cell.task, cell.is_pretrained]
    files = [own, p.plugin] if setting.is_plugin else [own]
    where = ["--plugin", p.plugin] if setting.is_plugin else []
    made_with = [machine(None)]
    if cell.task in plan.LANGUAGE:
        import torch
        import transformers

        program = [sys.executable, "-m", f"{__package__}.language", "--data", own]
        made_with += [torch.__version__, transformers.__version__, python_sources()]
    else:
        program = [p.host, "--quiet", "--examples", own]
        files.append(p.host)
    return Run(f"{cell.name}-{setting.name}-seed{seed}", f"{cell.name}, {setting.name}, seed {seed}", (*program, *told, *where),
               key_of(told, made_with, [digest(path) for path in files]), cell.steps, setting.is_plugin,
               (probe.python_path(), ("OMP_NUM_THREADS", "1")))


def main(argv) -> int:
    args = parse(HEAD, TABLE, END, argv)
    if args.data is None:
        raise CannotRun("--data DIR is needed: the official GLUE files")
    cells = [dataclasses.replace(c, steps=min(c.steps, args.steps or c.steps)) for c in plan.cells(args.tasks)]
    must = plan.settings(args.must) if args.must else []
    settings = list(dict.fromkeys([plan.ADAMW, *must, *plan.settings(args.settings)]))
    made_with, seeds = programs(args, cells), range(1, args.seeds + 1)
    plan_of = {(c.name, s.name, seed): run_of(c, s, seed, made_with) for seed in seeds for s in settings for c in cells
               if s.trains(c)}
    with progress.Line("zf-conform ablation") as line:
        kept = runs.make(list(plan_of.values()), args.out, args.jobs, line, goes_on=True, is_kept_only=args.kept)
    done = {job: kept[run] for job, run in plan_of.items() if run in kept}
    result = judge.result(cells, settings, seeds, done, digest(made_with.plugin)[:12])
    path, table = os.path.join(args.out, "defaults"), judge.table(result)
    print(table)
    runs.write(path + ".json", json.dumps(result, indent=1) + "\n")
    runs.write(path + ".md", table)
    verdicts = {s["name"]: s["verdict"] for s in result["settings"]}
    return 1 if any(verdicts.get(s.name) != "held" for s in must) else 0
