# SPDX-License-Identifier: Apache-2.0
"""python -m zfplugin.ablation: see the package's docstring, or --help."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys

from .. import progress
from ..glue.judge import made_by
from ..glue.tasks import DataError
from ..library import find
from . import data, judge, plan, runs


def parse(argv):
    p = argparse.ArgumentParser(prog="python -m zfplugin.ablation", description=(
        "Trains unlike tasks with AdamW and with settings of the plugin, and judges each setting's training loss against the bars. Exit "
        "status: 0 every setting of --must holds its bar, 1 one does not, 2 could not run."))
    p.add_argument("--data", required=True, help="folder with SST-2/, CoLA/, MRPC/ and vocab.txt, official GLUE files")
    p.add_argument("--model", help="pretrained encoder: a folder with config.json and model.safetensors, or an installed package that holds one")
    p.add_argument("--tasks", default="all", help=f"cells, comma-separated: {', '.join(plan.CELLS)} (default all)")
    p.add_argument("--settings", default="core", help=f"groups ({', '.join(plan.GROUPS)}) or {plan.GRAMMAR}; comma-separated (default core)")
    p.add_argument("--must", default="", metavar="SETTING,...", help="settings whose bar decides the exit status")
    p.add_argument("--seeds", type=int, default=2, help="seeds 1..N (default 2)")
    p.add_argument("--steps", type=int, metavar="N", help="cut every run to N steps: shows that it works and decides nothing")
    p.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    p.add_argument("--kept", action="store_true", help="make no run: judge what is kept")
    p.add_argument("--plugin", help="libzfplugin.so (default: where the package finds it)")
    p.add_argument("--host", help="zf-host (default: beside zf-conform, which $ZF_CONFORM or the PATH names)")
    p.add_argument("--out", default="zf-ablation", help="kept runs and prepared data (default ./zf-ablation)")
    p.add_argument("--results", help="folder of defaults.json, defaults.md and the plots (default: --out)")
    return p.parse_args(argv)


def locate_model(name: str | None) -> str | None:
    if name is None or os.path.isdir(name):
        return name
    from ..glue.model import locate

    return locate(name)


def programs(args, cells) -> runs.Programs:
    """Finds all that the cells need; DataError says what is missing."""
    host, model = runs.find_host(args.host), locate_model(args.model)
    if host is None and any(c.task != "gpt" for c in cells):
        raise DataError(f"{args.host or 'zf-host'} was not found: --host names the program that the build makes (conformance/host/zf-host)")
    needy = [c.name for c in cells if c.is_pretrained]
    if needy and (model is None or not os.path.exists(os.path.join(model, "model.safetensors"))):
        raise DataError(f"{needy[0]} needs --model: a folder with config.json and model.safetensors, or a package that holds one")
    prepared = os.path.join(args.out, "data")
    digests = data.prepare(args.data, prepared, {c.task for c in cells})
    return runs.Programs(os.path.abspath(args.plugin or find()), host, model, prepared, args.out, digests)


def write(path: str, text: str) -> None:
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


def report(result: dict, folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "defaults.json")
    text = result["made_by"] + judge.table(result)
    print(text)
    write(path, json.dumps(result, indent=1) + "\n")
    write(os.path.join(folder, "defaults.md"), text)
    if result["settings"]:
        subprocess.run([sys.executable, "-m", "zfplugin.report", path, "--plots", folder], check=False,
                       env={**os.environ, "PYTHONPATH": runs.PACKAGES})


def main(argv=None) -> int:
    args = parse(argv)
    try:
        cells = plan.cells(args.tasks)
        if args.steps:
            cells = [dataclasses.replace(c, steps=min(c.steps, args.steps)) for c in cells]
        must = plan.settings(args.must) if args.must else []
        settings = list(dict.fromkeys([plan.ADAMW, *must, *plan.settings(args.settings)]))
        made_with = programs(args, cells)
        seeds = range(1, args.seeds + 1)
        jobs = [(c, s, seed) for seed in seeds for s in settings for c in cells]
        with progress.Line("ablation") as line:
            done = runs.make(jobs, made_with, args.jobs, args.kept, line.say, lambda n, n_all: line.show("runs made", n, n_all))
    except (DataError, ValueError, runs.RunError, OSError) as problem:
        print(f"ablation: {problem}", file=sys.stderr)
        return 2
    result = judge.result(cells, settings, seeds, done, runs.digest(made_with.plugin)[:12])
    result["made_by"] = made_by("python -m zfplugin.ablation", sys.argv[1:] if argv is None else argv)
    report(result, args.results or args.out)
    verdicts = {s["name"]: s["verdict"] for s in result["settings"]}
    return 1 if any(verdicts.get(s.name) != "held" for s in must) else 0


if __name__ == "__main__":
    sys.exit(main())
