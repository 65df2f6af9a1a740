#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same GLUE task through DeepSpeed's ZeRO-Offload and its ZenFlow, beside AdamW and the plugin.

    python3 conformance/peers/deepspeed.py --task sst2 --data DIR --model DIR|PACKAGE [--seeds N] [--out DIR]

Same model, initial weights, seeds, data order, schedule, clipping and number of steps in every arm (zfplugin.glue).
DeepSpeed and the plugin hold the model in bfloat16 with fp32 master weights; torch's AdamW keeps float32 weights and
multiplies in bfloat16 (autocast). DeepSpeed runs on the CPU: one process, gloo, ZeRO stage 2, offload_optimizer cpu.
An optional tool: pip install deepspeed torch transformers scipy scikit-learn matplotlib; a C++ compiler builds
DeepSpeed's optimizer at its first start. Nothing of the product depends on it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != HERE]  # this file has DeepSpeed's name
sys.path.insert(0, os.path.join(HERE, "..", "..", "bindings", "python"))

ARMS = ("adamw", "zenflow", "ds-offload", "ds-zenflow")
# DeepSpeed's ZenFlow with the plugin's default selection; the window is twice the plugin's, which starts with 50 synchronous steps.
ZENFLOW = {"topk_ratio": 0.1, "select_strategy": "step", "select_interval": 16, "update_interval": 4,
           "full_warm_up_rounds": 0, "overlap_step": False}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def make_engine(arm: str, model, s):
    os.environ.update(DS_ACCELERATOR="cpu", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(free_port()))
    import deepspeed

    from zfplugin.glue.train import groups

    config = {
        "train_micro_batch_size_per_gpu": s.batch, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
        "gradient_clipping": s.clip, "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": s.lr, "betas": [0.9, 0.999], "eps": 1e-8}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}},
    }
    if arm == "ds-zenflow":
        config["zero_optimization"]["zenflow"] = dict(ZENFLOW)
    deepspeed.init_distributed("gloo")
    parameters = [{**g, "params": [p for _, p in g["params"]]} for g in groups(model, s.weight_decay)]
    engine, optimizer, _, _ = deepspeed.initialize(model=model, config=config, model_parameters=parameters)
    return engine, optimizer


def run_deepspeed(arm: str, seed: int, task, train, dev, s, progress) -> dict:
    """As zfplugin.glue.train.run, with DeepSpeed's engine in place of the optimizer."""
    import torch

    from zfplugin.glue.model import build
    from zfplugin.glue.train import batches, evaluate, rate

    model = build(s.model, task, seed).train()
    engine, optimizer = make_engine(arm, model, s)
    torch.manual_seed(seed)
    losses, start = [], time.perf_counter()
    for i, rows in enumerate(batches(train, s, seed)):
        for group in optimizer.param_groups:
            group["lr"] = s.lr * rate(i, s)
        loss = engine(**train.batch(rows)).loss
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
        progress(i + 1)
    seconds = time.perf_counter() - start
    return {"arm": arm, "seed": seed, "losses": losses, "seconds": seconds,
            "scores": [evaluate(engine.module, task, tokens, s) for tokens in dev]}


def settings_of(args, arm: str):
    from zfplugin.glue.model import locate
    from zfplugin.glue.tasks import find_task
    from zfplugin.glue.train import Settings

    return Settings(locate(args.model), lr=args.lr, batch=args.batch, steps=args.steps or find_task(args.task).steps,
                    group_by_length=args.group_by_length, precision="autocast" if arm == "adamw" else "bfloat16")


def path_of(args, arm: str, seed: int) -> str:
    from zfplugin.glue.__main__ import file_of
    from zfplugin.glue.tasks import find_task

    return file_of(args.out, find_task(args.task), arm, seed, settings_of(args, arm))


def worker(args) -> int:
    """One run in a process of its own: DeepSpeed keeps global state."""
    import torch

    from zfplugin.glue import model as glue_model
    from zfplugin.glue.__main__ import Progress
    from zfplugin.glue.tasks import find_file, find_task, read
    from zfplugin.glue.train import run

    if args.threads:
        torch.set_num_threads(args.threads)
    arm, seed = args.worker[0], int(args.worker[1])
    task, s = find_task(args.task), settings_of(args, arm)
    train = glue_model.tokenize(s.model, task, read(task, find_file(task, args.data, "train.tsv")))
    dev = [glue_model.tokenize(s.model, task, read(task, find_file(task, args.data, d))) for d in task.dev]
    function = run_deepspeed if arm.startswith("ds-") else run
    result = function(arm, seed, task, train, dev, s, Progress(1, s.steps))
    path = path_of(args, arm, seed)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "w", encoding="utf-8") as f:
        json.dump(result, f)
    os.replace(path + ".part", path)
    return 0


def check_packages() -> bool:
    missing = []
    for name, package in (("torch", "torch"), ("transformers", "transformers"), ("deepspeed", "deepspeed"),
                          ("sklearn", "scikit-learn"), ("scipy", "scipy")):
        found = subprocess.run([sys.executable, "-c", f"import importlib.util as u, sys; "
                                f"sys.exit(u.find_spec({name!r}) is None)"], check=False).returncode == 0
        if not found:
            missing.append(package)
    if missing:
        print(f"not installed: {' '.join(missing)}; pip install {' '.join(missing)}", file=sys.stderr)
    return not missing


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--task", default="sst2")
    p.add_argument("--data", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--seeds", type=int, default=1)
    p.add_argument("--steps", type=int)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--group-by-length", action="store_true", help="batches of texts of about the same length: less padding")
    p.add_argument("--threads", type=int)
    p.add_argument("--out", default="zf-peers")
    p.add_argument("--worker", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    return p.parse_args(argv)


def main(argv=None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parse(argv)
    if args.worker:
        return worker(args)
    if not check_packages():
        return 2
    from zfplugin.glue import judge
    from zfplugin.glue.tasks import find_task

    runs = {}
    for seed in range(1, args.seeds + 1):
        for arm in ARMS:
            path = path_of(args, arm, seed)
            if not os.path.exists(path):
                print(f"{judge.LABELS[arm]}, seed {seed}", file=sys.stderr, flush=True)
                done = subprocess.run([sys.executable, os.path.abspath(__file__), *argv, "--worker", arm, str(seed)],
                                      stdout=subprocess.DEVNULL, check=False)
                if done.returncode != 0:
                    print(f"{judge.LABELS[arm]}: the run ended with status {done.returncode}", file=sys.stderr)
                    return 2
            with open(path, encoding="utf-8") as f:
                runs[arm, seed] = json.load(f)
    task = find_task(args.task)
    text = judge.made_by("python3 conformance/peers/deepspeed.py", argv) + judge.table(runs, task, {})
    print(text)
    with open(os.path.join(args.out, f"peers-{task.name}.md"), "w", encoding="utf-8") as f:
        f.write(text)
    svg = os.path.join(args.out, f"peers-{task.name}.svg")
    print(f"plot: {svg}" if judge.plot(runs, task, svg) else "no plot: pip install matplotlib")
    return 0


if __name__ == "__main__":
    sys.exit(main())
