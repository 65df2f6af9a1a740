#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mutate.py - what would the suite miss? Mutants of the engine, each judged by the checks that a change must pass.

    python3 conformance/mutate.py --mutants 300 --seed 1          # goes on where a run with the same seed ended
    python3 conformance/mutate.py --only "NAME"                   # one mutant, by its name in the table
    python3 conformance/mutate.py --table                         # writes the table again, judges nothing

A mutant is one small change of a source of plugin/ or kernels/ (mutants.py): an operator swapped, a number one larger, a
condition negated, a statement dropped. It is applied in a scratch copy (--work, default build/mutate), built, and judged in this
order up to the first that fails: `zf-conform exact`, `zf-conform abi`, the Check programs of tests/ with exact_shuffle. What
fails none has survived: either no test looks there, or it changes nothing that can be seen. The latter are equivalent and
stand, with the reason, in mutants_equivalent.txt; a mutant that compiles to the same library is equivalent by itself, one that does
not compile is replaced by the next of the list. The list is shuffled from the seed, so the first N are a random sample.

Leaves conformance/results/mutants/mutation.json, one record per mutant, and mutation.md, the table. No dependency but Python 3.8, CMake
and ninja. Children have 8 GiB of address space and run in a session of their own, which ends with its time limit.
"""
import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import mutants

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "conformance" / "results" / "mutants"
EQUIVALENT = ROOT / "conformance" / "mutants_equivalent.txt"
JUDGES = ("exact", "abi", "check")
# Folders of the build with Check programs of the engine, and which of their tests; exact once more on a backend that delays what it may.
CHECK_TESTS = (("tests/plugin", "."), ("tests/kernels", "."), ("tests/device", "^(test_backends|exact_shuffle)$"))
CHECK_TARGETS = ["tests/plugin/all", "tests/kernels/all", "test_backends", "zfplugin_shuffle"]
ADDRESS_SPACE = 8 << 30


def child_limits():
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 44, 1 << 44))  # tests make hollow files


def run(command, cwd, limit_s, env=None, is_limited=True):
    """(exit status, text); status None: it ran into its time limit."""
    child = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                             env={**os.environ, **(env or {})}, start_new_session=True,
                             preexec_fn=child_limits if is_limited else None)
    try:
        text, _ = child.communicate(timeout=limit_s)
        return child.returncode, text
    except subprocess.TimeoutExpired:
        return None, "time limit"
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


class Bench:
    """The scratch copy: its build, and the judges."""

    def __init__(self, work, cases):
        self.source, self.build, self.tmp = work / "source", work / "build", work / "tmp"
        self.cases = cases
        self.limits = dict.fromkeys(JUDGES, 900)
        for folder in (self.source, self.build, self.tmp):
            folder.mkdir(parents=True, exist_ok=True)
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n"):
            if name and (ROOT / name).is_file():
                self.copy(name)

    def copy(self, name):
        to = self.source / name
        text = (ROOT / name).read_bytes()
        if not to.exists() or to.read_bytes() != text:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to)

    def configure(self):
        launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        status, text = run(["cmake", "-S", str(self.source), "-B", str(self.build), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                            "-DCMAKE_C_FLAGS=-w", *launcher], self.source, 600, is_limited=False)
        if status == 0:
            status, text = self.ninja(["zfplugin", "zf-conform", *CHECK_TARGETS], 3600)
        if status != 0:
            sys.exit(f"mutate: the unchanged sources do not build:\n{text[-3000:]}")

    def ninja(self, targets, limit_s=600):
        return run(["ninja", "-C", str(self.build), "-j2", *targets], self.source, limit_s, is_limited=False)

    def library(self):
        return self.build / "plugin" / "libzfplugin.so"

    def digest(self):
        return hashlib.sha256(self.library().read_bytes()).hexdigest()

    def judge(self, name):
        """(is killed, why)"""
        env = {"TMPDIR": str(self.tmp), "CK_DEFAULT_TIMEOUT": "60"}
        conform = str(self.build / "conformance" / "zf-conform")
        if name == "check":
            return self.judge_by_tests(env)
        command = [conform, name, "--plugin", str(self.library())]
        if name == "exact":
            command += ["--cases", str(self.cases), "--seed", "20260", "--max-failures", "1", "--deadline", "20", "--jobs", "2"]
        else:
            command += ["--headers", str(self.source / "abi" / "include")]
        status, text = run(command, self.tmp, self.limits[name], env)
        return status != 0, first_reason(name, status, text)

    def judge_by_tests(self, env):
        status, _ = self.ninja(CHECK_TARGETS)
        if status != 0:
            return True, "the tests do not link"
        for folder, which in CHECK_TESTS:
            command = ["ctest", "--test-dir", str(self.build / folder), "-R", which, "-j2", "--stop-on-failure", "--timeout", "120",
                       "--no-tests=error"]
            status, text = run(command, self.tmp, self.limits["check"], env)
            if status != 0:
                return True, first_reason("check", status, text)
        return False, ""

    def baseline(self):
        """All judges pass the unchanged sources; their times set the limits."""
        for name in JUDGES:
            start = time.monotonic()
            is_killed, why = self.judge(name)
            if is_killed:
                sys.exit(f"mutate: {name} fails on the unchanged sources: {why}")
            self.limits[name] = max(60, 8 * (time.monotonic() - start))
            print(f"unchanged: {name} passes in {time.monotonic() - start:.0f} s", flush=True)
        return self.digest()


def first_reason(name, status, text):
    if status is None:
        return "time limit"
    lines = [line.strip() for line in text.split("\n")]
    if name == "check":
        marks = [line for line in lines if "***" in line]
        return " ".join(marks[0].split()[3:5]) if marks else f"exit {status}"
    marks = [line for line in lines if line.startswith("law ") and "case" in line or " fail " in line or "FAIL" in line]
    return (marks[0] if marks else f"exit {status}")[:100]


def judge_one(bench, mutant, original):
    """A record, or None where it does not compile."""
    path = bench.source / mutant.file
    source = path.read_text()
    lines = source.split("\n")
    lines[mutant.line - 1] = mutant.text
    start = time.monotonic()
    try:
        path.write_text("\n".join(lines))
        status, _ = bench.ninja(["zfplugin"])
        if status != 0:
            return None
        record = {"name": mutant.name, "kind": mutant.kind, "line": mutant.line, "killed_by": "", "why": ""}
        if bench.digest() == original:
            return {**record, "why": "the same library"}
        for name in JUDGES:
            is_killed, why = bench.judge(name)
            if is_killed:
                return {**record, "killed_by": name, "why": why, "seconds": round(time.monotonic() - start)}
        return {**record, "why": "survived", "seconds": round(time.monotonic() - start)}
    finally:
        path.write_text(source)
        for leftover in bench.tmp.iterdir():
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()


def read_equivalent():
    """name -> reason; blocks of two lines, the name and an indented reason."""
    out, name = {}, None
    for line in EQUIVALENT.read_text().split("\n") if EQUIVALENT.exists() else []:
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith(" "):
            name = line.strip()
        elif name:
            out[name] = (out.get(name, "") + " " + line.strip()).strip()
    return out


def all_mutants(seed):
    out = []
    for file in subprocess.check_output(["git", "ls-files", "plugin", "kernels"], cwd=ROOT, text=True).split():
        if file.endswith((".c", ".h")) and "neon" not in file:
            out += mutants.find(file, (ROOT / file).read_text())
    random.Random(seed).shuffle(out)
    return out


def count(records, equivalent):
    by = Counter("equivalent" if not r["killed_by"] and (r["why"] == "the same library" or r["name"] in equivalent)
                 else r["killed_by"] or "survived" for r in records)
    judged = len(records) - by["equivalent"]
    return by, judged, 100.0 * (judged - by["survived"]) / judged if judged else 0.0


def write_table(result):
    equivalent = read_equivalent()
    records = result["mutants"]
    by, judged, share = count(records, equivalent)
    room = lambda r: "/".join(r["name"].split(" | ")[0].split("/")[:2])
    text = [f"<!-- written by python3 conformance/mutate.py --mutants {len(records)} --seed {result['seed']} -->",
            "# Mutants of the engine", "",
            f"{len(records)} mutants, seed {result['seed']}, of {result['n_sites']} places; {by['equivalent']} are equivalent. Of the other "
            f"{judged}, {judged - by['survived']} are killed: **{share:.1f} %**. Judges, in this order up to the first that fails: "
            f"`zf-conform exact` with {result['cases']} cases, `zf-conform abi`, the Check programs. A survivor is judged again, after its test "
            "was written, by `--survivors`.", "",
            "| where | mutants | equivalent | exact | abi | Check | survived |", "|---|---|---|---|---|---|---|"]
    for name, part in [(n, [r for r in records if room(r) == n]) for n in sorted({room(r) for r in records})] + [("all", records)]:
        c, _, _ = count(part, equivalent)
        text.append(f"| {name} | {len(part)} | {c['equivalent']} | {c['exact']} | {c['abi']} | {c['check']} | {c['survived']} |")
    text += ["", "| kind | mutants | equivalent | exact | abi | Check | survived |", "|---|---|---|---|---|---|---|"]
    for kind in sorted({r["kind"] for r in records}):
        part = [r for r in records if r["kind"] == kind]
        c, _, _ = count(part, equivalent)
        text.append(f"| {kind} | {len(part)} | {c['equivalent']} | {c['exact']} | {c['abi']} | {c['check']} | {c['survived']} |")
    text += ["", "## Survivors", ""]
    for r in sorted(records, key=lambda r: r["name"]):
        if not r["killed_by"] and r["why"] == "survived" and r["name"] not in equivalent:
            file, before, after, _ = r["name"].split(" | ")[0], *r["name"].split(" | ")[1:4]
            text.append(f"- `{file}`:{r['line']} ({r['kind']}): `{before}` -> `{after}`")
    used = [r for r in sorted(records, key=lambda r: r["name"]) if r["name"] in equivalent and not r["killed_by"]]
    text += ["", "## Equivalent", "", f"{sum(r['why'] == 'the same library' for r in records)} compile to the same library. By "
             "`conformance/mutants_equivalent.txt`:", ""]
    text += [f"- `{r['name'].rsplit(' | ', 1)[0]}`: {equivalent[r['name']]}" for r in used]
    (RESULTS / "mutation.md").write_text("\n".join(text) + "\n")
    print(f"{len(records)} mutants, {by['equivalent']} equivalent, {judged - by['survived']} of {judged} killed: {share:.1f} %")


def campaign(args):
    listed = all_mutants(args.seed)
    path = args.json
    result = json.loads(path.read_text()) if path.exists() else {}
    if result.get("seed") != args.seed or result.get("cases") != args.cases:
        result = {"seed": args.seed, "cases": args.cases, "n_sites": len(listed), "mutants": [], "not_compiled": []}
    done = {r["name"] for r in result["mutants"]} | set(result["not_compiled"])
    again = set()
    if args.survivors:  # judge those again that no judge killed
        again = {r["name"] for r in result["mutants"] if r["why"] == "survived"} - set(read_equivalent())
    if args.only:
        again = {args.only}
    bench = Bench(args.work, args.cases)
    bench.configure()
    original = bench.baseline()
    end = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    for mutant in listed:
        if (args.only or args.survivors) and mutant.name not in again:
            continue
        if not again and (mutant.name in done or len(result["mutants"]) >= args.mutants):
            continue
        if time.monotonic() > end:
            break
        record = judge_one(bench, mutant, original)
        print(f"{len(result['mutants']) + 1}: {mutant.name}: "
              f"{'does not compile' if not record else record['killed_by'] or record['why']}", flush=True)
        result["mutants"] = [r for r in result["mutants"] if r["name"] != mutant.name]
        if record:
            result["mutants"].append(record)
        else:
            result["not_compiled"].append(mutant.name)
        if not args.only:
            path.write_text(json.dumps(result, indent=1) + "\n")
    if not args.only:
        write_table(result)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mutants", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=300, help="cases of zf-conform exact (default 300)")
    parser.add_argument("--minutes", type=float, help="begin no further mutant after so many minutes")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutate", help="scratch copy and its build")
    parser.add_argument("--json", type=Path, default=RESULTS / "mutation.json")
    parser.add_argument("--only", help="this mutant alone; nothing is written")
    parser.add_argument("--survivors", action="store_true", help="judge the survivors again, after a test was written")
    parser.add_argument("--table", action="store_true", help="only write mutation.md from mutation.json")
    args = parser.parse_args()
    if args.table:
        write_table(json.loads(args.json.read_text()))
    else:
        campaign(args)


if __name__ == "__main__":
    main()
