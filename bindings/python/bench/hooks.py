#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the binding costs on the training thread, per parameter, and what that is made of; beside torch's AdamW.

    python3 bench/hooks.py [--params 1000] [--size 32] [--steps 60] [--json FILE]

A model of many small parameters: what remains is the cost of Python, of autograd's hook and of the foreign calls. Rows are
measured in the same run, in turns, as processor time of the training thread (what others do on the machine, and waiting
for the plugin's own threads, is not in it); each is the median over steps:
  hooks       backward with our hooks less backward without any (the plain hook of autograd is its own row)
  step        opt.step() less its foreign part: checks of weights and gradients, settings, report
  foreign     time inside the plugin's calls (grads_ready, step), which a larger model overlaps with backward
Needs the package (or PYTHONPATH) and ZFPLUGIN_LIBRARY or an installed library.
"""
import argparse
import json
import logging
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import zfplugin.torch  # noqa: E402

CONFIG = {"zenflow.update_interval": 4, "zenflow.full_warm_up_rounds": 1, "log.level": "warn"}


class Timer:
    """Wraps a callable and adds up its time."""

    def __init__(self, function):
        self.function, self.total, self.wall, self.calls = function, 0.0, 0.0, 0

    def __call__(self, *args):
        start, now = time.thread_time(), time.perf_counter()
        try:
            return self.function(*args)
        finally:
            self.total += time.thread_time() - start
            self.wall += time.perf_counter() - now
            self.calls += 1


class Table:
    """The plugin's table with timed hooks."""

    def __init__(self, table):
        self._table = table
        self.grads_ready, self.step = Timer(table.grads_ready), Timer(table.step)

    def __getattr__(self, name):
        return getattr(self._table, name)


def parameters(n, size):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(size, size) * 0.1) for _ in range(n)]


def backward(params, grads):
    for p in params:
        p.grad = None
    loss = sum((p * g).sum() for p, g in zip(params, grads))
    start = time.thread_time()
    loss.backward()
    return time.thread_time() - start


def us_of(times, n):
    return 1e6 * statistics.median(times[len(times) // 5:]) / n


def make_ours(params):
    quiet = logging.getLogger("zfplugin.bench")  # operations this small look like one burst of gradients
    quiet.setLevel(logging.ERROR)
    opt = zfplugin.torch.ZenFlow([(f"p{i}", p) for i, p in enumerate(params)], lr=1e-4, config=CONFIG, log=quiet, overlap=True)
    opt.bind()
    opt._instance.table = Table(opt._instance.table)
    return opt


def timed(function):
    start = time.thread_time()
    function()
    return time.thread_time() - start


def measure(n, size, steps):
    """{row: [seconds of each step]}."""
    grads = [torch.randn(size, size) for _ in range(n)]
    sets = {name: parameters(n, size) for name in ("plain", "hooked", "ours", "foreach", "loop", "fused")}
    for p in sets["hooked"]:
        p.register_post_accumulate_grad_hook(lambda p: None)
    opt = make_ours(sets["ours"])
    table, inner = opt._instance.table, {}
    for row, owner, name in (("check_weights", opt._binding.table, "find_changed"), ("ask", opt._instance, "written"),
                             ("check_gradients", opt._binding.feed, "_compare")):
        inner[row] = Timer(getattr(owner, name))
        setattr(owner, name, inner[row])
    theirs = {name: torch.optim.AdamW(sets[name], lr=1e-4, foreach=name == "foreach", fused=name == "fused")
              for name in ("foreach", "loop", "fused")}
    rows = {}

    def add(name, seconds):
        rows.setdefault(name, []).append(seconds)

    for _ in range(steps):
        add("plain", backward(sets["plain"], grads))
        add("hooked", backward(sets["hooked"], grads))
        table.grads_ready.total = table.step.total = 0.0
        add("backward", backward(sets["ours"], grads))
        add("foreign_in_backward", table.grads_ready.total)
        table.grads_ready.total = 0.0
        for timer in inner.values():
            timer.total = timer.wall = 0.0
        add("step", timed(opt.step))
        for row, timer in inner.items():
            add(row, timer.total)
        add("ask_wall", inner["ask"].wall)
        add("foreign_in_step", table.grads_ready.total + table.step.total)
        for name, reference in theirs.items():
            backward(sets[name], grads)
            add(name, timed(reference.step))
    rows["calls"] = (table.grads_ready.calls + table.step.calls) / steps
    opt.close()
    return rows


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--params", type=int, default=1000)
    arguments.add_argument("--size", type=int, default=32)
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--json")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    n = args.params
    rows = measure(n, args.size, args.steps)
    us = {key: us_of(value, n) for key, value in rows.items() if key != "calls"}
    base, hooked = us["plain"], us["hooked"]
    in_hooks = us["backward"] - base
    in_step = us["step"] - us["foreign_in_step"]
    result = {
        "params": n, "elements_each": args.size**2, "torch": torch.__version__, "foreign_calls_per_step": rows["calls"],
        "us_per_param": {
            "hooks: all": in_hooks, "  autograd's own hook call": hooked - base,
            "  collecting (Python)": in_hooks - (hooked - base) - us["foreign_in_backward"],
            "  foreign: grads_ready": us["foreign_in_backward"], "step: all": us["step"],
            "  weights changed? (counter, address, the plugin)": us["check_weights"],
            "  asking the plugin; by the clock (it reads them once)": us["ask_wall"],
            "  gradients changed? (and their digest)": us["check_gradients"], "  foreign: step and the rest": us["foreign_in_step"],
            "  other Python": in_step - us["check_weights"] - us["check_gradients"],
            "ours without foreign time": in_hooks - us["foreign_in_backward"] + in_step, "ours, all": in_hooks + us["step"],
            "torch AdamW, foreach": us["foreach"],
            "torch AdamW, loop": us["loop"],
            "torch AdamW, fused": us["fused"]}}
    print(f"{n} parameters of {args.size} x {args.size}, torch {torch.__version__}, 1 thread, "
          f"{rows['calls']:.0f} foreign calls per step")
    for name, value in result["us_per_param"].items():
        print(f"{name:55s} {value:8.2f} us per parameter")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
