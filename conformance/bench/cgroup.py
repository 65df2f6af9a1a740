#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cgroup.py - what the plugin takes of a trainer's memory on a CPU, seen from outside: by the limit under which a run still ends.

    conformance/bench/cgroup.py LIB [--millions 25] [--dtype float32] [--moments float32] [--rule adamw] [--carried] [--spare MIB]

A program of MILLIONS parameters takes four steps with torch.optim.SGD without momentum in a memory cgroup of its own, then with the plugin
(exact, in place) in one whose limit is the former's peak, the plan of the plugin's state and 32 MiB (docs/memory.md, "On a CPU"). Then with
one byte per parameter less, where it must not: else the limit is no measure. --carried: torch carries, as if weights lay on a device without
streams; here they lie in the same memory, which is counted with SGD's. Needs root, and cgroups of either version. Exit status 0: it ended
within the limit and not below it, 1: not so, 77: no cgroup can be made."""
import argparse
import os
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
MOMENTS = {"float32": 8, "bfloat16_stochastic": 4, "int8_bfloat16": 3.03125, "int8": 2.0625}  # bytes of a parameter
ROOT = Path("/sys/fs/cgroup")
IS_V1 = (ROOT / "memory").is_dir()
LIMIT, PEAK, SWAP = (("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.memsw.limit_in_bytes") if IS_V1 else
                     ("memory.max", "memory.peak", "memory.swap.max"))


def train(kind, o):
    """The child, which enters the cgroup before it maps anything of size."""
    (Path(o.serve) / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    import torch
    sys.path.insert(0, str(TREE / "bindings/python"))
    import zfplugin.torch
    from zfplugin.torch import carried, gradients, lanes, parameters
    for module in (carried, gradients, parameters) if o.carried else ():
        module.is_carried, module.lane_of = lambda tensor: tensor.device.type != "meta", lambda device, digests: lanes.Waiting(digests)
    params = [torch.nn.Parameter(torch.full((1024, 1024), 0.02, dtype=getattr(torch, o.dtype))) for _ in range(o.millions)]
    for p in params:
        p.grad = torch.zeros_like(p)
    opt = (torch.optim.SGD(params, lr=1e-4) if kind == "sgd" else
           zfplugin.torch.ZenFlow([(f"p{i}", p) for i, p in enumerate(params)], lr=1e-4, rule=o.rule, config={"host.moments_dtype": o.moments}))
    for step in range(4):
        for p in params:
            p.grad.fill_(1e-3 * (step + 1))
        opt.step()
    return 0


def run(kind, limit_nbytes, argv, o):
    """(exit status, bytes at the peak) of a child in a cgroup."""
    group = ROOT / ("memory" if IS_V1 else "") / f"zf-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as err:
        print(f"no cgroup can be made: {err}")
        sys.exit(77)
    try:
        if limit_nbytes:
            (group / LIMIT).write_text(str(int(limit_nbytes)), encoding="ascii")
            if (group / SWAP).exists():
                (group / SWAP).write_text(str(int(limit_nbytes)) if IS_V1 else "0", encoding="ascii")
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "ZFPLUGIN_LIBRARY": os.path.abspath(o.library)}
        done = subprocess.run([sys.executable, __file__, *argv, "--kind", kind, "--serve", str(group)], env=env, check=False)
        return done.returncode, int((group / PEAK).read_text())
    finally:
        group.rmdir()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--millions", type=int, default=25)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--moments", choices=tuple(MOMENTS), default="float32")
    parser.add_argument("--rule", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--carried", action="store_true")
    parser.add_argument("--spare", type=int, default=32)
    for name in ("kind", "serve"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.serve:
        return train(o.kind, o)
    n = o.millions << 20
    moments = MOMENTS[o.moments] if o.rule == "adamw" else 2 if o.moments == "bfloat16_stochastic" else 4
    width = 4 if o.dtype == "float32" else 2
    state = moments + (4 + width if o.carried else 4 if width == 2 else 0)  # masters, and memory that carries
    _, base = run("sgd", 0, sys.argv[1:], o)
    found, peak = run("plugin", base + state * n + (o.spare << 20), sys.argv[1:], o)
    less, _ = run("plugin", base + (state - 1) * n, sys.argv[1:], o)
    print(f"{n / 1e6:.0f} M parameters, {o.dtype}, {o.rule}, {o.moments} moments{', carried' * o.carried}: SGD {base / 2**20:.0f} MiB, the plugin {(peak - base) / n:.2f} bytes per parameter more, "
          f"its state is {state:.2f}; {'ends' if found == 0 else 'does not end'} with {o.spare} MiB beside that, {'ends' if less == 0 else 'does not'} with a byte per parameter less")
    return 0 if found == 0 and less != 0 else 1


if __name__ == "__main__":
    sys.exit(main())
