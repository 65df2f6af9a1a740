# SPDX-License-Identifier: Apache-2.0
"""test_gate.py - each rule of gate.py finds the fault of faults.cu that is planted for it. Exit status 77: no nvcc, no cuobjdump;
where CI is set the latter is a failure."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gate

EXPECTED = {
    "zf_check": None,
    "zf_report": "without a fence of the system",
    "zf_move": "a loop of 16 bytes loads",
    "zf_merge": "generic accesses",
    "zf_sum_parts": "divide integers",
    "zf_collect": "fused multiply-add",
    "zf_run_ahead": "bytes of stack and spills",
}


def findings(folder, nvcc, cuobjdump):
    """kernel -> what the gate says of it."""
    source, ptx, cubin = Path(__file__).with_name("faults.cu"), f"{folder}/faults.ptx", f"{folder}/faults.cubin"
    subprocess.run([nvcc, "--ptx", "-arch=compute_80", "-fmad=false", "-O3", "-o", ptx, source], check=True)
    subprocess.run([shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas", f"-arch={gate.PRINTED}", "-o", cubin, ptx], check=True)
    kernels = gate.kernels_of(Path(ptx).read_text(encoding="utf-8"))
    _, said = gate.judge_cubin(cuobjdump, cubin, gate.PRINTED, kernels, {})
    return {name: [one for one in said if one.startswith(name)] for name in kernels}


def main():
    nvcc, cuobjdump = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc"), gate.find_cuobjdump()
    if not nvcc or not cuobjdump:
        print("nvcc or cuobjdump was not found: the gate's faults are left out")
        return 1 if nvcc and os.environ.get("CI") else 77
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, said in sorted(findings(folder, nvcc, cuobjdump).items()):
            sign = EXPECTED[name]
            is_right = not said if sign is None else any(sign in one for one in said)
            wrong += not is_right
            print(f"{'ok' if is_right else 'WRONG'}: {name}: {'; '.join(said) or 'nothing'}")
    for launched, is_right in ((264, True), (1, True), (265, False), (528, False)):
        if bool(list(gate.judge_grid("zf_merge", 2, launched))) == is_right:
            wrong += 1
            print(f"WRONG: {launched} blocks")
    for moved, is_right in (("1.15", True), ("1.16", False)):
        row = ["zf_statistics", "0", "256", "0.95", "11.0", moved, *["80"] * len(gate.ARCHS)]
        if bool(list(gate.judge(row, row))) == is_right:
            wrong += 1
            print(f"WRONG: {moved} of the least moved")
        with tempfile.NamedTemporaryFile("w") as traffic:
            print(f"wide zf_statistics 90 {moved.replace('.', '')} 100 80 70 2000", file=traffic, flush=True)
            if bool(list(gate.judge_wide(traffic.name))) == is_right:
                wrong += 1
                print(f"WRONG: {moved} of the least moved on a wide matrix")
    if not list(gate.judge([*row[:-1], "81"], row)):
        wrong += 1
        print("WRONG: 81 registers")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
