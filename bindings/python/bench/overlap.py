#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a training step costs the training thread: the plugin as it is by default, with overlap=True, and torch's fused AdamW.

    python3 bench/overlap.py [--width 1024] [--layers 24] [--steps 20]

Forward and backward of a deep MLP, and step(), on one thread of torch's: processor time of that thread, the median over steps, in turns
in one run. The plugin's own threads run beside. Needs the package (or PYTHONPATH) and ZFPLUGIN_LIBRARY or an installed library.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import zfplugin.torch  # noqa: E402


def make(name, args):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(args.width, args.width) for _ in range(args.layers)))
    if name == "torch AdamW, fused":
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    options = {"overlap": True} if name == "overlap=True" else {}
    return model, zfplugin.torch.ZenFlow(model.named_parameters(), lr=1e-4, model=model, config={"log.level": "warn"}, **options)


def one_step(model, opt, batch):
    start = time.thread_time()
    model(batch).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
    return 1e3 * (time.thread_time() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = ["torch AdamW, fused", "default", "overlap=True"]
    runs, times = {name: make(name, args) for name in names}, {name: [] for name in names}
    batch = torch.randn(4, args.width)
    for step in range(args.steps + 5):
        for name, (model, opt) in runs.items():
            taken = one_step(model, opt, batch)
            if step >= 5:
                times[name].append(taken)
    n = sum(p.numel() for p in runs["default"][0].parameters())
    print(f"{1e-6 * n:.1f} M parameters, torch {torch.__version__}: processor time of forward, backward and step, median of {args.steps}")
    for name in names:
        print(f"{name:22s} {statistics.median(times[name]):8.1f} ms")


if __name__ == "__main__":
    main()
