#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cpu_step.py - what step() costs on weights in host memory: this plugin beside torch's AdamW, in one run.

    conformance/bench/cpu_step.py LIB [--old LIB] [--tensors 48] [--shape 1024,1024] [--rounds 15] [--threads 2] [--json FILE]

Each arm is a process of its own: torch's AdamW, fused and foreach, torchao's and bitsandbytes' AdamW8bit and DeepSpeed's CPUAdam where they
are installed, the plugin with fp32 and with bf16 weights and with moments in 8 bits, of LIB and of an older build of the same ABI. A round asks each for one step, in an order that changes, so
what the machine gives at that time is the same for all. Beside them the limit: the bytes that a step has to move, at the rate of an
addition in place over memory of that size, in the same rounds. It prints medians of wall and CPU time per parameter, the wall's
least, which a busy machine spoils last, wall beside the fused AdamW on fp32, and resident bytes beside weights and gradients.

On a busy machine put `chrt -f 5` before it. The package zfplugin is imported from this tree. Exit status 0: measured, whatever the figures say."""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
PEERS = {"torchao": "AdamW8bit of torchao", "bitsandbytes": "AdamW8bit of bitsandbytes", "deepspeed": "CPUAdam of DeepSpeed"}
MOMENTS = {"float32": 8, "int8_bfloat16": 3.03, "int8": 2.06}  # bytes of both


def moved(dtype, moments):
    """Bytes of a step with a pass for the norm: gradient twice, w, m, v in and out, and of bf16 weights the value in and out."""
    return (2 * 4 if dtype == "float32" else 4 * 2) + 2 * (4 + MOMENTS[moments])


def resident_nbytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def optimizer(kind, params):
    """The step of one arm."""
    import torch
    if kind in ("fused", "foreach"):
        return torch.optim.AdamW(params, lr=1e-4, **{kind: True}).step
    if kind == "torchao":
        from torchao.optim import AdamW8bit
        return AdamW8bit(params, lr=1e-4).step
    if kind == "bitsandbytes":
        from bitsandbytes.optim import AdamW8bit
        return AdamW8bit(params, lr=1e-4).step
    if kind == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        return DeepSpeedCPUAdam(params, lr=1e-4).step
    sys.path.insert(0, str(TREE / "bindings/python"))
    import logging

    import zfplugin.torch
    logging.disable(logging.WARNING)
    return zfplugin.torch.ZenFlow([(f"p{i}", p) for i, p in enumerate(params)], lr=1e-4, config={"host.moments_dtype": kind}).step


def serve(kind, dtype, o):
    """One arm: says its bytes per parameter, then for each line that comes the times of a step. What a library prints goes to stderr."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    shape, dtype = [int(n) for n in o.shape.split(",")], getattr(torch, dtype)
    params = [torch.nn.Parameter((torch.randn(shape) * 0.02).to(dtype)) for _ in range(o.tensors)]
    for p in params:
        p.grad = (torch.randn(shape) * 1e-3).to(dtype)
    before = resident_nbytes()
    if kind == "limit":
        total, more = (torch.zeros(sum(p.numel() for p in params)) for _ in range(2))
        step = lambda: total.add_(more)
    else:
        step = optimizer(kind, params)
    for _ in range(6):
        step()
    n = sum(p.numel() for p in params)
    print((resident_nbytes() - before) / n, file=said, flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        print((time.perf_counter() - wall) / n * 1e9, (time.process_time() - cpu) / n * 1e9, file=said, flush=True)


class Arm:
    def __init__(self, name, kind, dtype, library, argv):
        self.name, self.times = name, []
        self.moved = moved(dtype, kind) if library else 28
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **({"ZFPLUGIN_LIBRARY": library} if library else {})}
        self.process = subprocess.Popen([sys.executable, __file__, *argv, "--serve", f"{kind},{dtype}"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=env)
        self.nbytes = float(self.process.stdout.readline() or "nan")

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.times.append([float(word) for word in self.process.stdout.readline().split()])

    def row(self):
        wall, cpu = zip(*self.times)
        return {"arm": self.name, "wall_ns": statistics.median(wall), "least_wall_ns": min(wall), "cpu_ns": statistics.median(cpu),
                "nbytes": self.nbytes}


def arms_of(o, argv):
    from importlib.util import find_spec
    found = [("torch AdamW fused, fp32", "fused", "float32", None), ("torch AdamW foreach, fp32", "foreach", "float32", None)]
    found += [(f"{name}, fp32", kind, "float32", None) for kind, name in PEERS.items() if find_spec(kind)]
    for name, library in (("plugin", o.library), *([("older plugin", o.old)] if o.old else [])):
        found += [(f"{name}, {dtype}" + f", {moments} moments" * (moments != "float32"), moments, dtype, os.path.abspath(library))
                  for dtype in ("float32", "bfloat16") for moments in MOMENTS]
    arms = [Arm(*arm, argv) for arm in (*found, ("addition in place, fp32", "limit", "float32", None))]
    for arm in arms:
        if math.isnan(arm.nbytes):  # it has said why
            print(f"{arm.name}: did not start")
    return [arm for arm in arms if not math.isnan(arm.nbytes)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--old")
    parser.add_argument("--tensors", type=int, default=48)
    parser.add_argument("--shape", default="1024,1024")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.serve:
        return serve(*o.serve.split(","), o)
    arms = arms_of(o, sys.argv[1:])
    for i in range(o.rounds):
        for arm in arms[i % len(arms):] + arms[:i % len(arms)]:
            time.sleep(0.02)  # threads of the arm before have stopped spinning
            arm.step()
    rows = [arm.row() for arm in arms]
    limit, fused = rows.pop(), rows[0]
    print(f"{o.tensors} tensors of {o.shape}, {o.threads} threads, {o.rounds} rounds; ns per parameter")
    print(f"{'':44s}{'wall':>8s}{'least':>8s}{'CPU':>8s}{'x fused':>9s}{'x limit':>9s}{'bytes':>8s}")
    for arm, row in zip(arms, rows):
        floor = limit["wall_ns"] / 12 * arm.moved
        row.update(x_fused=row["wall_ns"] / fused["wall_ns"], x_limit=row["wall_ns"] / floor)
        print(f"{row['arm']:44s}{row['wall_ns']:8.3f}{row['least_wall_ns']:8.3f}{row['cpu_ns']:8.3f}{row['x_fused']:9.2f}"
              f"{row['x_limit']:9.2f}{row['nbytes']:8.2f}")
    print(f"limit: memory moves {12 / limit['wall_ns']:.1f} GB/s; a step of the plugin moves {moved('float32', 'float32')} bytes per parameter, fused 28")
    if o.json:
        Path(o.json).write_text(json.dumps({"rows": rows, "limit": limit}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
