# SPDX-License-Identifier: Apache-2.0
"""zf-conform glue: does training through the plugin reach what plain AdamW reaches on a GLUE task? The command line; campaign.py trains,
judges and tells."""

from __future__ import annotations

import argparse
import sys
import time

from zfplugin.library import SONAME, find

from .options import Option, count, override, parse, positive, probability, real, refuse_others
from .runs import CannotRun
from .tasks import Task, find_task

HEAD = "zf-conform glue - accuracy parity with AdamW on a GLUE task, paired over seeds"
END = "exit status: 0 conforms, 1 does not, 2 could not run, 3 inconclusive; of several tasks the worst: 1 before 2 before 3"


TABLE = (
    Option("plugin", "FILE", "libzfplugin.so (default: ZFPLUGIN_PATH)"),
    Option("trainer", "NAME", "c: zf-host (default); torch: a fine-tune through the PyTorch binding, which needs --data and --model",
           choices=("c", "torch"), default="c"),
    Option("task", "NAME,...", "sst2 (default), cola, mrpc, rte, qnli, wnli, stsb, qqp, mnli; several: one after the other", default="sst2"),
    Option("data", "DIR", "official GLUE files (DIR/SST-2/train.tsv ... vocab.txt); without: generated, and said so"),
    Option("model", "DIR", "fine-tune this BERT encoder (config.json, model.safetensors, vocab.txt); without: from scratch. torch: also an "
           "installed package that holds one, or a hub's name"),
    Option("seeds", "N", "seeds 1..N of AdamW and of the plugin (12, torch 5; --full 32)", count),
    Option("exact-seeds", "N", "seeds of the exact mode (2, torch 1; --full 8)", count),
    Option("config", "FILE", "the plugin's INI file"),
    Option("set", "S.KEY=VALUE", "override a key of the INI file; may be repeated", override, repeats=True),
    Option("margin", "X", "how much worse is still as good, points (default: the task's, 1.0)", positive),
    Option("full", None, "more seeds, and twice the steps"),
    Option("steps", "N", "optimizer steps of a run (2000; --model: the task's)", count),
    Option("batch", "N", "rows of a step (32, torch 16)", count),
    Option("lr", "X", "peak learning rate (1e-3; --model: 1e-4)", real),
    Option("dropout", "X", "probability (none; torch: the model's own)", probability),
    Option("jobs", "N", "runs at the same time (2, torch 1)", count),
    Option("out", "DIR", "results and kept runs (zf-conform-glue)", default="zf-conform-glue"),
    Option("warmup", "X", "share of the steps in which the rate rises (0.1)", real, of="c"),
    Option("max-tokens", "N", "cut longer texts (128; --model: the task's)", count, of="c"),
    Option("dtype", "TYPE", "parameters and gradients: fp32 (default) or bf16", choices=("fp32", "bf16"), of="c"),
    Option("products", "TYPE", "matrix products of fp32 (default), or with --device cuda of operands rounded to bf16",
           choices=("fp32", "bf16"), of="c"),
    Option("device", "NAME", "where every arm trains: cpu (default) or cuda, one process each", choices=("cpu", "cuda"), of="c"),
    Option("host", "FILE", "zf-host (default: beside zf-conform)", of="c"),
    Option("precision", "TYPE", "autocast (default: float32 weights, products in bfloat16), float32 or bfloat16",
           choices=("autocast", "float32", "bfloat16"), of="torch"),
    Option("threads", "N", "of torch (its own choice)", count, of="torch"),
    Option("deepspeed", None, "DeepSpeed's ZeRO-Offload and ZenFlow beside them, not judged; needs the package deepspeed", of="torch"),
)


def check(args) -> None:
    """What options ask of each other. CannotRun says it."""
    refuse_others(TABLE, args, args.trainer)
    args.plugin = args.plugin or find()
    if args.plugin == SONAME:
        raise CannotRun("--plugin FILE is needed (or ZFPLUGIN_PATH): the libzfplugin.so to judge")
    if args.trainer == "torch" and not (args.data and args.model):
        raise CannotRun("--trainer torch: --data DIR and --model DIR are needed")
    args.device = None if args.device == "cpu" else args.device


def settle(args, task: Task) -> argparse.Namespace:
    """The options with every default of this task and trainer filled in."""
    a, is_torch = argparse.Namespace(**vars(args)), args.trainer == "torch"
    own = task.steps if is_torch else task.host_steps if a.model else 2000
    a.steps = a.steps or (2 * own if a.full else own)
    a.seeds = a.seeds or (32 if a.full else 5 if is_torch else 12)
    a.exact_seeds = min(a.seeds, a.exact_seeds or (8 if a.full else 1 if is_torch else 2))
    a.batch, a.jobs = a.batch or (16 if is_torch else 32), a.jobs or (1 if is_torch else 2)
    a.lr, a.margin = a.lr or ("1e-4" if a.model else "1e-3"), a.margin or task.margin
    a.dtype, a.products = a.dtype or ("bf16" if a.precision == "bfloat16" else "fp32"), a.products or "fp32"
    a.precision = a.precision or "autocast"
    return a


def main(argv) -> int:
    args = parse(HEAD, TABLE, END, argv)
    check(args)
    from .campaign import run_task  # it needs scipy, which the help does not

    tasks = [find_task(name) for name in dict.fromkeys(args.task.split(","))]
    statuses, began = [], time.monotonic()
    for task in tasks:
        if len(tasks) > 1:
            print(f"== {task.name}", flush=True)
        try:
            statuses.append(run_task(task, settle(args, task), "glue" if len(tasks) == 1 else f"glue-{task.name}"))
        except CannotRun as e:
            if len(tasks) == 1:
                raise
            print(f"zf-conform glue: {e}", file=sys.stderr, flush=True)
            statuses.append(2)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return next((s for s in (1, 2, 3) if s in statuses), 0)
