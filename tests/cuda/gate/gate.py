# SPDX-License-Identifier: Apache-2.0
"""gate.py FILE.ptx TABLE [--write] [--traffic FILE] [--launched FILE] - what can be said of kernels without a GPU.

Looks at the machine code that the build made of FILE.ptx for each architecture of ARCHS, FILE.sm_80.cubin and so on (without --write:
for those that it was built for, PRINTED among them); for each kernel
  registers   not more than TABLE has (a new compiler may take fewer: then write the table again)
  spills      none, and no stack frame
  SASS        of PRINTED: loads on the way through an innermost loop that has most, at most SPARE beside the data that LOADS
              names, in loops with accesses of 16 bytes and in the others; no generic access; no division of integers in such a
              loop, but DIVIDES says why. Of all: no fused multiply-add of a width that the kernel's PTX has none of, beside
              division and square root, which ptxas makes of them, those of f64 with a few of f32
  PTX         a fence of the system between a byte that the host reads and the total that says it is there
  traffic     --traffic: lines "traffic KERNEL ..." that the double prints (README.md) of trainer.c. Of requests whose lanes
              ask for different addresses, coalescing is different bytes asked for by bytes moved, in sectors of 32: at least
              LEAST_COALESCING, or BELOW says why not; not worse than in TABLE. "sectors" are of one such request; "moved" is all
              bytes of all requests, as if there were no cache, by the least that has to move: each byte that a launch reads
              once, and each that it writes; at most what MOST_MOVED says. "-": the kernel has no such requests, or did nothing in these runs.
              Lines "wide KERNEL ..." are of runs on matrices of wide rows: of each run alone what MOST_MOVED says
  blocks      --launched: lines "grid KERNEL blocks" of the double on PROCESSORS: one, or as many as run there at once

TABLE is written by --write. Threads per block come from .maxntid. Without --traffic the table's own columns of it are kept.

Exit status: 0 passes, 1 does not, 77 no cuobjdump with nvdisasm (PyPI nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm); 1 where CI is set.
"""
import argparse
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import sass

# architecture: threads, registers and bytes of shared memory of a multiprocessor
ARCHS = {"sm_80": (2048, 65536, 164 << 10), "sm_90a": (2048, 65536, 228 << 10), "sm_100": (2048, 65536, 228 << 10),
         "sm_120": (1536, 65536, 100 << 10)}
HEAD = "kernel shared_bytes threads coalescing sectors moved registers: " + " ".join(ARCHS)
LEAST_COALESCING = 0.85
WARM_UP = 40  # requests: a kernel that has fewer was launched to be loaded, with nothing to do
BELOW = {
    "zf_check_end": "a word per matrix, from records of a hundred",
    "zf_enter_maps": "channels that enter: a few positions of the maps",
    "zf_merge": "elements of selected channels are skipped, so requests have holes",
    "zf_norm_part": "a word per parameter, from records of a hundred bytes",
    "zf_report": "a byte per parameter, and these models have few",
    "zf_round_moments": "a strip of 32 selected columns, from rows that begin anywhere",
    "zf_run_ahead": "visible values of selected columns: 2 of 32 bytes in a row",
    "zf_show_entered": "visible values of entering columns: 2 of 32 bytes in a row",
    "zf_update_all_end": "a word per matrix",
    "zf_update_all_begin": "a count per matrix, from records of a hundred bytes",
}
SPARE = 2  # loads beyond data
# Data that a turn of a loop loads: with accesses of 16 bytes, and without.
LOADS = {
    "zf_check": (2, 2),         # two at once; a value and its column's place
    "zf_collect": (2, 16),      # source and sum; entries of the list, 16 words at once
    "zf_copy_ranges": (4, 4),   # four at once
    "zf_enter_state": (0, 4),   # w, m, v; a channel's position
    "zf_merge": (4, 16),        # published and visible, two at once; four: published, visible, mask, column's place
    "zf_move": (4, 4),          # four at once
    "zf_read_place": (4, 4),
    "zf_round_moments": (0, 8), # m and v, four at once
    "zf_run_ahead": (5, 20),    # w, m, v, gradient, visible; of four rows
    "zf_show_entered": (0, 12), # w, visible, a column's place, four at once
    "zf_sum_parts": (4, 4),     # four ranks' parts at once
    "zf_update_all": (5, 6),    # w, m, v, gradient, visible; a column's place
    "zf_write_place": (4, 16),
}
DIVIDES = {
    "zf_collect": "once a row: where it begins in a strided gradient",
    "zf_enter_state": "rectangles of entering channels, some columns wide",
}
MOST_MOVED = {"zf_statistics": 1.15}  # by the least: one look at the gradient
PRINTED, PROCESSORS = "sm_90a", 132
FUSED = {"f32": (r"\bFFMA\b", r"\b(fma|div|sqrt|rcp)\.rn\.f32\b|\b(div|sqrt|rcp)\.rn\.f64\b|\b(div|rem)\.[us](32|64)\b"),
         "f64": (r"\bDFMA\b", r"\b(fma|div|sqrt|rcp)\.rn\.f64\b")}


def kernels_of(ptx):
    """name -> (text, threads per block)."""
    found = {}
    for m in re.finditer(r"\.entry\s+(\w+)(.*?)\n\}", ptx, re.S):
        threads = re.search(r"\.maxntid\s+(\d+)", m[2])
        found[m[1]] = (m[2], int(threads[1]) if threads else 1024)
    return found


def resources_of(cuobjdump, cubin):
    """kernel -> (registers, bytes of stack, of shared memory), without the 1024 bytes that an architecture from 9.0 on adds."""
    out = subprocess.run([cuobjdump, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", out)
    return {name: (int(registers), int(stack) + int(local), int(shared) - (0 if shared == "0" or ".sm_80." in cubin else 1024))
            for name, registers, stack, shared, local in found}


def blocks_at_once(arch, registers, shared, threads):
    """Of one processor."""
    most_threads, most_registers, most_shared = ARCHS[arch]
    warps = math.ceil(threads / 32)
    per_warp = math.ceil(registers * 32 / 256) * 256
    blocks = min(most_threads // threads, most_registers // (per_warp * warps), 32)
    return min(blocks, most_shared // (shared + 1024)) if shared else blocks


def find_cuobjdump():
    """cuobjdump, where its nvdisasm stands beside it or on the PATH."""
    for path in [shutil.which("cuobjdump"), *map(str, Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin/cuobjdump"))]:
        if path and (Path(path).with_name("nvdisasm").exists() or shutil.which("nvdisasm")):
            return path
    return None


def disassemble(cuobjdump, cubin):
    env = dict(os.environ, PATH=f"{Path(cuobjdump).parent}:{os.environ['PATH']}")  # it starts nvdisasm
    return subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=True, env=env).stdout


def contractions(text, kernels):
    """Kernels whose machine code fuses what their PTX does not."""
    for part in re.split(r"Function : ", text)[1:]:
        name = part.split()[0]
        for width, (fused, allowed) in FUSED.items():
            if re.search(fused, part) and not re.search(allowed, kernels[name][0]):
                yield f"{name}: fused multiply-add of {width} that is not in the PTX"


def unfenced(kernels):
    """Kernels that raise a word of the host's behind a byte of the host's which it says is there."""
    for name, (text, _) in sorted(kernels.items()):
        if re.search(r"st\.volatile\.global\.u8 (?:(?!membar\.sys)[\s\S])*?st\.volatile\.global\.u64 ", text):
            yield f"{name}: a total is stored behind a byte without a fence of the system between them"


def judge_code(name, arch, measured):
    """What is wrong with a kernel's machine code."""
    wide, single, generic, divides, unknown = measured
    for loads, data, kind in zip((wide, single), LOADS.get(name, (wide, single)), ("of 16 bytes", "of single elements")):
        if loads > data + SPARE:
            yield f"{name} {arch}: a loop {kind} loads {loads} times, its data are {data}, and {SPARE} more may be"
    if generic:
        yield f"{name} {arch}: {generic} generic accesses"
    if divides and name not in DIVIDES:
        yield f"{name} {arch}: {divides} innermost loops divide integers"
    if unknown:
        yield f"{name} {arch}: {unknown} instructions that nothing leads to: the way through it was not understood"


def print_code(measured, registers, launched):
    """A line per kernel: what the rules look at."""
    print("kernel registers loads:16-bytes loads:single generic divides resident launched")
    for name, (wide, single, generic, divides, _) in sorted(measured.items()):
        at_once = registers[name][1] * PROCESSORS
        data = LOADS.get(name)
        print(f"{name} {registers[name][0]} " + (f"{wide}/{data[0]} {single}/{data[1]}" if data else f"{wide} {single}")
              + f" {generic} {divides} {at_once} {launched.get(name, '-')}")


def judge_grid(name, at_once, launched):
    """Blocks that were launched on PROCESSORS: one, or as many as run at once."""
    if launched not in (None, 1, at_once * PROCESSORS):
        yield f"{name}: {launched} blocks were launched, {at_once * PROCESSORS} run at once on {PROCESSORS} processors"


def read_table(path):
    rows = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []:
        words = line.split()
        if words and words[0].startswith("zf_"):
            rows[words[0]] = words
    return rows


def read_traffic(path):
    """kernel -> (coalescing, sectors per request, moved by least), as text."""
    totals = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        words = line.split()
        if len(words) == 8 and words[0] == "traffic" and int(words[2]) >= WARM_UP:
            totals[words[1]] = [a + int(b) for a, b in zip(totals.get(words[1], [0] * 6), words[2:])]
    found = {}
    for name, (_, moved, least, arrays, sectors, used) in totals.items():
        found[name] = (f"{used / (32 * sectors):.2f}" if arrays else "-", f"{sectors / arrays:.1f}" if arrays else "-",
                       f"{moved / least:.2f}")
    return found


def judge_wide(path):
    for words in map(str.split, Path(path).read_text(encoding="utf-8").splitlines() if path else []):
        if words[:1] == ["wide"] and int(words[3]) / int(words[4]) > MOST_MOVED.get(words[1], math.inf):
            yield f"{words[1]}: moves {int(words[3]) / int(words[4]):.3f} of the least on a wide matrix, at most {MOST_MOVED[words[1]]} may be"


def read_launched(path):
    """kernel -> most blocks of a launch, of lines "grid KERNEL blocks"."""
    launched = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "grid":
            launched[words[1]] = max(launched.get(words[1], 0), int(words[2]))
    return launched


def judge(row, known):
    """What is wrong with a row of the table."""
    name, (coalescing, _, moved) = row[0], row[3:6]
    if coalescing != "-" and float(coalescing) < LEAST_COALESCING and name not in BELOW:
        yield f"{name}: coalescing {coalescing}, need {LEAST_COALESCING}"
    if moved != "-" and float(moved) > MOST_MOVED.get(name, math.inf):
        yield f"{name}: moves {moved} of the least, at most {MOST_MOVED[name]} may be"
    if known is None:
        yield f"{name}: not in the table"
        return
    for arch, registers, most in zip(ARCHS, row[6:], known[6:]):
        if int(registers) > int(most):
            yield f"{name} {arch}: {registers} registers, the table has {most}"
    if coalescing == "-" != known[3]:
        yield f"{name}: its traffic is not counted, the table has {known[3]}"
    elif known[3] != "-" and float(coalescing) < float(known[3]) - 0.02:
        yield f"{name}: coalescing {coalescing}, the table has {known[3]}"


def judge_cubin(cuobjdump, cubin, arch, kernels, launched):
    """Resources of each kernel, and all that is wrong with the machine code of an architecture; prints the table of PRINTED."""
    resources, text = resources_of(cuobjdump, cubin), disassemble(cuobjdump, cubin)
    wrong = [f"{name} {arch}: {stack} bytes of stack and spills" for name, (_, stack, _) in sorted(resources.items()) if stack]
    wrong += contractions(text, kernels)
    if arch != PRINTED:
        return resources, wrong
    wrong += unfenced(kernels)
    measured, known = {}, {}
    for name, code in sorted(sass.functions(text).items()):
        registers, _, shared = resources[name]
        measured[name] = sass.measure(code)
        known[name] = (registers, blocks_at_once(arch, registers, shared, kernels[name][1]))
        wrong += judge_code(name, arch, measured[name])
        wrong += judge_grid(name, known[name][1], launched.get(name))
    print_code(measured, known, launched)
    return resources, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ptx")
    parser.add_argument("table")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--traffic")
    parser.add_argument("--launched", help="lines of the double on PROCESSORS: grid KERNEL blocks")
    args = parser.parse_args()
    cuobjdump = find_cuobjdump()
    if not cuobjdump:
        print("cuobjdump with nvdisasm was not found: machine code is not looked at")
        return 1 if os.environ.get("CI") else 77
    kernels, known = kernels_of(Path(args.ptx).read_text(encoding="utf-8")), read_table(args.table)
    traffic = read_traffic(args.traffic) if args.traffic else {}
    launched, resources, wrong = read_launched(args.launched) if args.launched else {}, {}, []
    cubins = {arch: Path(args.ptx).with_suffix(f".{arch}.cubin") for arch in ARCHS}
    if lacking := [str(cubin) for arch, cubin in cubins.items() if not cubin.exists() and (args.write or arch == PRINTED)]:
        print(f"{' '.join(lacking)}: not there; build with ZF_CUDA_ARCHITECTURES as it is by default")
        return 1
    for arch in [arch for arch, cubin in cubins.items() if cubin.exists()]:
        resources[arch], found = judge_cubin(cuobjdump, str(cubins[arch]), arch, kernels, launched)
        wrong += found
    rows, wrong = [], wrong + list(judge_wide(args.traffic))
    for name, (_, threads) in sorted(kernels.items()):
        old = known.get(name)
        rows.append([name, str(resources[PRINTED][name][2]), str(threads), *(traffic.get(name, ("-",) * 3) if args.traffic or not old else old[3:6]),
                     *(str(resources[arch][name][0]) if arch in resources else old[6 + i] if old else "-" for i, arch in enumerate(ARCHS))])
        wrong += judge(rows[-1], rows[-1] if args.write else old)
    if args.write:
        text = ["# Written by gate.py --write from machine code of kernels/cuda; see gate.py for the columns.", HEAD]
        Path(args.table).write_text("\n".join(text + [" ".join(r) for r in rows]) + "\n", encoding="utf-8")
    for line in wrong:
        print(line)
    print(f"{len(kernels)} kernels, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
