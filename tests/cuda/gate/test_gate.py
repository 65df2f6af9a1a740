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
import sass

EXPECTED = {
    "zf_check": None,
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
    kernels = gate.kernels_of(Path(ptx).read_text(encoding="utf-8"))
    assembled = gate.assemble(shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas", ptx, gate.PRINTED, cubin)
    text = gate.disassemble(cuobjdump, cubin)
    said = list(gate.contractions(text, kernels))
    for name, code in sass.functions(text).items():
        registers, spills, _ = assembled[name]
        row = [name, gate.PRINTED, str(registers), str(spills), "0", "256", "1.00", "-", "-", "-"]
        said += [*gate.judge_code(name, gate.PRINTED, sass.measure(code)), *gate.judge(row, row)]
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
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
