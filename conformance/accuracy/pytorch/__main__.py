# SPDX-License-Identifier: Apache-2.0
"""One run as a program, told as zf-host is: exit status 0 done, 1 training failed, 2 could not start; the report goes to --out."""

from __future__ import annotations

import argparse
import json
import sys

import torch
import zfplugin

from ..runs import CannotRun
from ..tasks import find_file, find_task, read
from . import model
from .train import Settings, run


def parse(argv):
    p = argparse.ArgumentParser(prog="python3 -m zfplugin.accuracy.pytorch", description=__doc__, allow_abbrev=False)
    p.add_argument("--task", default="sst2")
    p.add_argument("--data", required=True, help="folder of the official GLUE files")
    p.add_argument("--model", required=True, help="folder, installed package or hub's name of a pretrained encoder")
    p.add_argument("--optimizer", choices=("adamw", "plugin", "deepspeed-offload", "deepspeed-zenflow"), default="adamw")
    p.add_argument("--plugin", help="libzfplugin.so")
    p.add_argument("--config", help="the plugin's INI file")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override of it; may be repeated")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--steps", type=int)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--dropout", type=float, help="probability (the model's own)")
    p.add_argument("--precision", choices=("autocast", "float32", "bfloat16"), default="autocast")
    p.add_argument("--threads", type=int)
    p.add_argument("--out", required=True, help="JSON report")
    return p.parse_args(argv)


def train(args) -> dict:
    task, path = find_task(args.task), model.locate(args.model)
    files = [read(task, find_file(task, args.data, name)) for name in ("train.tsv", *task.dev)]
    tokens = [model.tokenize(path, task, examples) for examples in files]
    settings = Settings(path, args.optimizer, lr=args.lr, batch=args.batch, steps=args.steps or task.steps, dropout=args.dropout,
                        precision=args.precision, plugin=args.plugin, config=args.config, overrides=tuple(args.set))
    return run(args.seed, task, tokens[0], tokens[1:], settings, sum(f.n_skipped for f in files))


def main(argv=None) -> int:
    args = parse(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        report = train(args)
    except (FloatingPointError, zfplugin.errors.ZfError) as problem:
        print(f"pytorch: {' '.join(str(problem).split())}", file=sys.stderr)
        return 1
    except (CannotRun, OSError, ImportError) as problem:
        print(f"pytorch: {problem}", file=sys.stderr)
        return 2
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(report, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
