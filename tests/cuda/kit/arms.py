#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""arms.py OUT [--device cuda|vulkan:0|cpu] [--small] [--seconds N] [--only ARM] - training carried by PyTorch, on a device that torch has.

  decoder   12 steps of a decoder of 4 layers in bf16 beside torch's AdamW on fp32 copies of its weights: another sequence length at
            step 5, evaluation and generation at 7, empty_cache at 8, a side stream at 9, batches of a DataLoader with pin_memory
  adamw     a Llama shape of 1.2 billion parameters in bf16, random weights, checkpointing, at 8 and 32 thousand tokens: fp32 masters
            and torch's fused AdamW on the device, the reference of speed and losses
  exact, small, fsdp2    the same by ZenFlow, by ZenFlow with small moments, and by FSDP2 with CPUOffloadPolicy and torch's AdamW

Each arm is a process of its own with a limit of its own; one that stands still writes its stacks and costs its own numbers alone.
OUT/arms.jsonl grows by a line for each result, and each arm's output is a file beside it. Exit status 0: every arm ended well or was
left out, with the reason. --small: for a rehearsal without a GPU. --seconds: of all arms together.
"""
import argparse
import faulthandler
import json
import os
import subprocess
import sys
import time

LEFT_OUT = 77
ARMS = {"decoder": 60, "adamw": 60, "exact": 75, "small": 75, "fsdp2": 75}  # seconds
REFERENCE = "adamw"
BOUND = 0.05  # of the way that the reference's weights went, in the decoder's twelve steps


# ---- all of them -----------------------------------------------------------------------------------------------------------------------

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=int, default=420)
    parser.add_argument("--only", choices=ARMS, action="append")
    parser.add_argument("--hang", choices=ARMS, help="this arm stands still: what becomes of the others")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.arm:
        return arm(o)
    has_failed, end = False, time.monotonic() + o.seconds
    for name in o.only or ARMS:
        has_failed |= run_arm(o, name, end - time.monotonic()) not in (0, LEFT_OUT)
    return int(has_failed)


def run_arm(o, name, left):
    limit = int(min(10 if o.hang == name else 6 * ARMS[name] if o.small else ARMS[name], left))
    log = os.path.join(o.out, f"arm_{name}.txt")
    if limit < 8:
        status, last = 1, "no time was left"
    else:
        command = [sys.executable, __file__, *sys.argv[1:], "--arm", name, "--limit", str(limit)]
        with open(log, "w") as file:
            try:
                status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=limit + 5).returncode
            except subprocess.TimeoutExpired:
                status = 124
        with open(log) as file:
            lines = file.read().strip().splitlines() or [""]
        last = f"stood still for {limit} s: stacks in {os.path.basename(log)}" if any(line.startswith("Timeout (") for line in lines) else lines[-1]
    verdict = {0: "PASS", LEFT_OUT: "----"}.get(status, f"FAIL (status {status})")
    print(f"{name:8s} {verdict} {last}", flush=True)
    if status:
        write(o, {"arm": name, "status": status, "said": last})
    return status


def write(o, row):
    with open(os.path.join(o.out, "arms.jsonl"), "a") as file:
        file.write(json.dumps(row) + "\n")


# ---- one, in a process of its own ------------------------------------------------------------------------------------------------------

def arm(o):
    faulthandler.dump_traceback_later(o.limit, exit=True)
    if o.hang == o.arm:
        time.sleep(10 * o.limit)
    try:
        import torch
        if o.device.startswith("vulkan"):
            import torchvulkan  # noqa: F401
    except ImportError as e:
        print(f"left out: {e}")
        return LEFT_OUT
    kind = o.device.split(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        print(f"left out: torch {torch.__version__} sees no GPU")
        return LEFT_OUT
    from arms_torch import Machine, decoder, llama
    machine = Machine(o.device, o.small)
    print(f"torch {torch.__version__}, {machine.name()}", flush=True)
    if o.arm == "decoder":
        row = decoder(machine)
        write(o, {"arm": o.arm, **row})
        print(f"weights {row['apart']:.2%} of their way apart from AdamW's on fp32 copies (allowed {BOUND:.0%}); after step 1 {row['first_differing']} of "
              f"{row['elements']} differ, by {row['first_ulps']} ulp at most, after step {row['steps']} {row['differing']}, by {row['ulps']}")
        return int(not row["apart"] <= BOUND)
    said, reference = [], losses_of_reference(o)
    for row in llama(machine, o.arm):
        if row is None:
            print(f"left out: {o.arm} has no device of the kind {kind}")
            return LEFT_OUT
        row["apart_from"] = first_apart(row["losses"], reference.get(row["tokens"]))
        write(o, {"arm": o.arm, **row})
        said.append(f"{row['tokens']} tokens: {row['tokens_per_s']:.0f} per second, GiB on the device {row['device_gib']:.1f}, of the process "
                    f"{row['host_gib']:.1f}, loss {row['losses'][-1]:.3f}" + ("" if row["apart_from"] is None else f", another one than {REFERENCE}'s from step "
                                                                              f"{row['apart_from']} on"))
        print(said[-1], flush=True)
    print("; ".join(said))
    return 0


def losses_of_reference(o):
    """{tokens: losses}, of what was written before."""
    try:
        with open(os.path.join(o.out, "arms.jsonl")) as file:
            rows = [json.loads(line) for line in file]
    except FileNotFoundError:
        rows = []
    return {row["tokens"]: row["losses"] for row in rows if row["arm"] == REFERENCE and "losses" in row}


def first_apart(losses, reference):
    """The first step, from 1, whose loss is not the reference's to a thousandth; None where all are, or there is no reference."""
    for step, (a, b) in enumerate(zip(losses, reference or []), 1):
        if not abs(a - b) <= 1e-3 * abs(b):
            return step
    return None


if __name__ == "__main__":
    sys.exit(main())
