#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `zf plan` says of a step beside what it takes: conformance/bench/plan.py BUILD [--json FILE] [--bound SHARE]

BUILD is a build tree with ZF_BENCH. Its zf-bench-hooks runs a host whose forward and backward take a given time (--only plan), with paced
workers and with the plugin's kernels. `zf plan --device cpu` is asked for the same model and windows, with the compute that the host took
without the plugin in the same run. Speeds of replays and the plugin's own passes are what `zf doctor` measured just before, as a user would
have them, the link is plain copying; the pace of paced workers is what they did in the run.

Exit status 0 where every row lies within the bound (0.15), 1 where one does not, 2 where it could not be measured."""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time

TOKENS = 1e6


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"plan.py: {' '.join(command)}: {done.stderr.strip() or done.returncode}", file=sys.stderr)
        sys.exit(2)
    return done.stdout


def planned(zf, folder, row, doctor, *more):
    """Seconds of a step that zf plan says."""
    n = row["tensors"] * row["rows"] * row["columns"]
    model, machine = os.path.join(folder, "model.txt"), os.path.join(folder, "machine.json")
    with open(model, "w", encoding="utf-8") as file:
        file.write(f"{row['tensors']} * w {row['rows']}x{row['columns']} bf16\n")
    if row["pace_ns"]:
        speeds = {"replay": {"windows": [{"update_interval": row["update_interval"], "elems_per_s": row["elems_per_s"]}]}}
    else:
        speeds = {"replay": doctor["replay"]}
    with open(machine, "w", encoding="utf-8") as file:
        json.dump({**speeds, "memory": doctor["memory"], "own": doctor["own"]}, file)
    tflops = 2 * n * TOKENS / (row["alone_ms"] / 3 * 1e-3) / 1e12
    text = run(*zf, "plan", model, "--device", "cpu", "--json", "--machine", machine, "--tokens", f"{TOKENS:.0f}", "--sequence", "0",
               "--tflops", f"{tflops:.9g}", "--efficiency", "1", "--link", f"{doctor['copy_gb_per_s']:.6g}",
               *([] if row["fetches"] else ["--no-fetch"]),
               "--set", f"zenflow.update_interval={row['update_interval']}", "--set", f"zenflow.publish_lag={row['publish_lag']}",
               *(["--set", "zenflow.topk_ratio=0"] if row["pace_ns"] else []), *more)
    return json.loads(text)["configured"]


def copy_gb_per_s():
    """Of plain copying, which is the link where the CPU is the device: the best of a few."""
    source, target, best = bytes(1 << 27), bytearray(1 << 27), math.inf
    for _ in range(5):
        began = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - began)
    return len(source) / best / 1e9


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build", metavar="BUILD")
    p.add_argument("--json", metavar="FILE", help="the rows, for programs")
    p.add_argument("--measured", metavar="FILE", help="rows that zf-bench-hooks --only plan --json FILE has written: nothing is run but zf")
    p.add_argument("--bound", type=float, default=0.15, help="share of the measured step that a plan may be off (0.15)")
    args = p.parse_args()
    plugin = os.path.join(args.build, "plugin", "libzfplugin.so.1")
    zf = [os.path.join(args.build, "bindings", "cli", "zf"), "--plugin", plugin]
    with tempfile.TemporaryDirectory() as folder:
        doctor = {**json.loads(run(*zf, "doctor", "--json")), "copy_gb_per_s": copy_gb_per_s()}
        measured = args.measured or os.path.join(folder, "measured.json")
        if not args.measured:
            run(os.path.join(args.build, "conformance", "bench", "zf-bench-hooks"), "--plugin", plugin, "--only", "plan", "--json", measured)
        with open(measured, encoding="utf-8") as file:
            rows = json.load(file)["plan"]["rows"]
        for row in rows:
            row["planned_ms"] = 1e3 * planned(zf, folder, row, doctor)["step_s"]
            row["without_own_ms"] = 1e3 * planned(zf, folder, row, doctor, "--own", "0")["step_s"]
            row["error"] = row["planned_ms"] / row["step_ms"] - 1
    print(f"own passes {doctor['own']['ns_per_elem']:.2f} ns per parameter and step\n")
    print("| workers | S | lag | | compute, ms | step | planned | off by | without own passes |\n|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        workers = f"{row['pace_ns']:.0f} ns per element" if row["pace_ns"] else "kernels"
        print(f"| {workers} | {row['update_interval']} | {row['publish_lag']} | {'fetched' if row['fetches'] else 'not fetched'} | "
              f"{row['alone_ms']:.1f} | {row['step_ms']:.1f} | {row['planned_ms']:.1f} | {100 * row['error']:+.1f} % | "
              f"{100 * (row['without_own_ms'] / row['step_ms'] - 1):+.1f} % |")
    n_off = sum(abs(row["error"]) > args.bound for row in rows)
    print(f"\n{len(rows) - n_off} of {len(rows)} within {100 * args.bound:.0f} %")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "bound": args.bound}, file, indent=1)
    return int(n_off > 0)


if __name__ == "__main__":
    sys.exit(main())
