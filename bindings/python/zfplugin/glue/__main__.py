# SPDX-License-Identifier: Apache-2.0
"""python -m zfplugin.glue: see the package's docstring, or --help."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import sys

from .. import progress
from ..library import find
from . import judge
from .tasks import DataError, find_file, find_task, read


def parse(argv):
    p = argparse.ArgumentParser(prog="python -m zfplugin.glue", description=(
        "Fine-tunes a pretrained encoder on a GLUE task with AdamW, with the plugin in its synchronous mode and with "
        "ZenFlow; prints scores, loss and the verdict. Exit status: 0 pass, 1 fail, 2 could not run, 3 inconclusive."))
    p.add_argument("--task", required=True, help="sst2, cola, mrpc, rte, qnli, wnli, stsb, qqp, mnli")
    p.add_argument("--data", required=True, help="directory that holds SST-2/, CoLA/ ... with the official TSV files")
    p.add_argument("--model", required=True,
                   help="directory with config.json and model.safetensors, an installed package that holds one, "
                        "or a hub id")
    p.add_argument("--seeds", type=int, default=5, help="seeds 1..N of AdamW and ZenFlow (default 5)")
    p.add_argument("--sync-seeds", type=int, default=1, help="seeds of the synchronous mode (default 1; 0: without)")
    p.add_argument("--arms", default="adamw,sync,zenflow", help="what to train (default all three)")
    p.add_argument("--steps", type=int, help="steps of a run (default: the task's)")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--group-by-length", action="store_true",
                   help="batches of texts of about the same length, as in Hugging Face's Trainer: less padding")
    p.add_argument("--lr", type=float, default=1e-4, help="peak learning rate (default 1e-4)")
    p.add_argument("--precision", choices=("autocast", "float32", "bfloat16"), default="autocast",
                   help="autocast: float32 weights, matrix products in bfloat16 (default)")
    p.add_argument("--margin", type=float, default=1.0, help="points the plugin may be worse (default 1.0)")
    p.add_argument("--config", help="INI file of the ZenFlow arm (default: the plugin's defaults)")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override of the ZenFlow arm")
    p.add_argument("--out", default="zf-glue", help="directory of runs, table and plot (default ./zf-glue)")
    p.add_argument("--threads", type=int, help="torch's threads (default: its own choice)")
    return p.parse_args(argv)


def digest(path: str) -> str:
    """Of a local model's weights; a hub id stands for itself."""
    file = os.path.join(path, "model.safetensors")
    if not os.path.exists(file):
        return path
    with open(file, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()[:16]


def file_of(out: str, task, arm: str, seed: int, settings) -> str:
    """Where a run is kept: named by everything that its result depends on, the plugin's file too."""
    what = dataclasses.asdict(settings)
    library = find()
    if arm in ("sync", "zenflow") and os.path.exists(library):
        with open(library, "rb") as f:
            what["library"] = hashlib.file_digest(f, "sha256").hexdigest()[:16]
    if arm != "zenflow":
        what["config"], what["overrides"] = None, ()
    elif settings.config:
        with open(settings.config, encoding="utf-8") as f:
            what["config"] = f.read()
    what["model"] = digest(settings.model)
    key = hashlib.sha256(json.dumps([task.name, arm, seed, what], sort_keys=True).encode()).hexdigest()[:12]
    return os.path.join(out, "runs", f"{task.name}-{arm}-{seed}-{key}.json")


def train_all(args, task, settings, train, dev) -> dict:
    from .train import run

    plan = [(arm, seed) for seed in range(1, args.seeds + 1)
            for arm in args.arms.split(",") if arm != "sync" or seed <= args.sync_seeds]
    paths = {job: file_of(args.out, task, *job, settings) for job in plan}
    missing = [job for job in plan if not os.path.exists(paths[job])]
    n, n_steps = len(missing), settings.steps
    os.makedirs(os.path.join(args.out, "runs"), exist_ok=True)
    with progress.Line("glue") as line:
        for i, job in enumerate(missing):
            result = run(*job, task, train, dev, settings,
                         lambda step: line.show(f"run {i + 1} of {n}, step", i * n_steps + step, n * n_steps))
            with open(paths[job] + ".part", "w", encoding="utf-8") as f:
                json.dump(result, f)
            os.replace(paths[job] + ".part", paths[job])
            line.say(f"run {i + 1} of {n}: {job[0]}, seed {job[1]}, {result['seconds']:.0f} s")
    runs = {}
    for job, path in paths.items():
        with open(path, encoding="utf-8") as f:
            runs[job] = json.load(f)
    return runs


def main(argv=None) -> int:
    args = parse(argv)
    try:
        unknown = set(args.arms.split(",")) - {"adamw", "sync", "zenflow"}
        if unknown:
            raise DataError(f"--arms {args.arms}: unknown {', '.join(unknown)}; adamw, sync and zenflow")
        if {"sync", "zenflow"} & set(args.arms.split(",")) and "adamw" in args.arms.split(","):
            judge.need_conform()  # before hours of training
        task = find_task(args.task)
        train_examples = read(task, find_file(task, args.data, "train.tsv"))
        dev_examples = [read(task, find_file(task, args.data, name)) for name in task.dev]
    except (DataError, RuntimeError) as error:
        print(f"glue: {error}", file=sys.stderr)
        return 2
    try:
        import torch

        from . import model
        from .train import Settings
    except ImportError as error:
        print(f"glue: {error}; pip install torch transformers scipy scikit-learn matplotlib", file=sys.stderr)
        return 2
    if args.threads:
        torch.set_num_threads(args.threads)
    for name, e in (("train", train_examples), *zip(task.dev, dev_examples)):
        print(f"{task.folder} {name}: {len(e.texts)} examples" + (f", {e.n_skipped} broken rows left out" * bool(e.n_skipped)))
    path = model.locate(args.model)
    with progress.Line("glue") as line:
        line.show("cutting the texts into tokens")
        train = model.tokenize(path, task, train_examples)
        dev = [model.tokenize(path, task, e) for e in dev_examples]
    settings = Settings(path, lr=args.lr, batch=args.batch, steps=args.steps or task.steps, precision=args.precision,
                        group_by_length=args.group_by_length, config=args.config, overrides=tuple(args.set))
    runs = train_all(args, task, settings, train, dev)
    why_not = judge.why_nothing_was_learned(runs, task, [e.labels for e in dev_examples], args.margin)
    verdicts = {arm: judge.weighed(judge.verdict(runs, arm, task, args.margin), why_not) for arm in ("sync", "zenflow")
                if any((arm, s) in runs for a, s in runs if a == "adamw")}
    text = judge.made_by("python -m zfplugin.glue", sys.argv[1:] if argv is None else argv) + judge.table(runs, task, verdicts)
    print(text)
    with open(os.path.join(args.out, f"{task.name}.md"), "w", encoding="utf-8") as f:
        f.write(text)
    svg = os.path.join(args.out, f"{task.name}.svg")
    print(f"plot: {svg}" if judge.plot(runs, task, svg) else "no plot: pip install matplotlib")
    return {"PASS": 0, "FAIL": 1}.get(verdicts.get("zenflow", {}).get("verdict"), 3)


if __name__ == "__main__":
    sys.exit(main())
