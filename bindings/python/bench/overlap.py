#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a training step costs: the plugin as it is by default, with overlap=True, and torch's fused AdamW.

    python3 bench/overlap.py [--width 1024] [--layers 28] [--batch 192] [--steps 20]

Forward and backward of a deep MLP, and step(), on one thread of torch's, in turns in one run; the median over steps. Exposed is the
wall time of a step beside one without an optimizer, processor time is that of the training thread. The plugin's own threads run beside. AdamW
at every step (update_interval = 1): with overlap=True updates begin during backward, as early_taken counts. Needs the package
(or PYTHONPATH) and ZFPLUGIN_LIBRARY or an installed library.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import zfplugin.torch  # noqa: E402


EXACT = {"log.level": "warn", "zenflow.mode": "exact"}
NAMES = ["no optimizer", "torch AdamW, fused", "default", "overlap=True"]


def make(name, args):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(args.width, args.width) for _ in range(args.layers)))
    if name == "no optimizer":
        return model, None
    if name == "torch AdamW, fused":
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return model, zfplugin.torch.ZenFlow(model.named_parameters(), lr=1e-4, model=model, config=EXACT, overlap=name == "overlap=True")


def one_step(model, opt, batch):
    """(wall time, processor time of this thread) in ms."""
    wall, thread = time.perf_counter(), time.thread_time()
    model(batch).pow(2).mean().backward()
    if opt is not None:
        opt.step()
    model.zero_grad()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.thread_time() - thread)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("width", 1024), ("layers", 28), ("batch", 192), ("steps", 20)):
        parser.add_argument("--" + name, type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs, times = {name: make(name, args) for name in NAMES}, {name: [] for name in NAMES}
    batch = torch.randn(args.batch, args.width)
    for step in range(args.steps + 8):
        for name, (model, opt) in runs.items():
            taken = one_step(model, opt, batch)
            if step >= 8:
                times[name].append(taken)
    wall, thread = ({name: statistics.median(t[k] for t in times[name]) for name in NAMES} for k in (0, 1))
    n = sum(p.numel() for p in runs["default"][0].parameters())
    print(f"{1e-6 * n:.1f} M parameters, torch {torch.__version__}, median of {args.steps} steps")
    for name in NAMES:
        early = f", early_taken {runs[name][1].stats()['early_taken']}" if hasattr(runs[name][1], "stats") else ""
        print(f"{name:20s} wall {wall[name]:8.1f} ms, exposed {wall[name] - wall[NAMES[0]]:8.1f} ms, processor {thread[name]:8.1f} ms{early}")


if __name__ == "__main__":
    main()
