#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mutate.py - what would the suite miss? Mutants of the engine, each judged by the checks that a change must pass.

    python3 conformance/mutate.py --mutants 300 --seed 1          # goes on where a run with the same seed ended
    python3 conformance/mutate.py --survivors                     # judges what survived once more, after tests were written
    python3 conformance/mutate.py --only "NAME"                   # one mutant, by its name in the table
    python3 conformance/mutate.py --table                         # writes the table again, judges nothing

A mutant is one small change of a source of plugin/ or kernels/ (mutants.py): an operator swapped, a number one larger, a
condition negated, a statement dropped. It is applied in a scratch copy (--work, default build/mutate), built, and judged (mutant_bench.py)
by `zf-conform exact`, `zf-conform abi`, the Check programs of tests/, `zf-conform shard` on three ranks and a part of all that under
sanitizers, the thread sanitizer's included, up to the first that fails. What fails none has
survived: either no test looks there, or it changes nothing that can be seen. The latter are equivalent and stand, with the
reason, in mutants_equivalent.txt; a mutant that compiles to the same library is equivalent by itself, one that does not compile is
replaced by the next of the list. The list is shuffled from the seed, so the first N are a random sample. --jobs of them are judged side
by side, each by one process at a time.

Leaves build/mutation/mutation.json, one record per mutant, and mutation.md, the table. No dependency but Python 3.8, CMake
and ninja. Children have 8 GiB of memory and run in a session of their own, which ends with its time limit.
"""
import argparse
import json
import random
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import mutants
from mutant_bench import JUDGES, QUICK_JUDGES, ROOT, Bench, Costs, room

RESULTS = ROOT / "build" / "mutation"
EQUIVALENT = ROOT / "conformance" / "mutants_equivalent.txt"


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


def head(first):
    names = [first, "mutants", "equivalent", *JUDGES, "survived"]
    return ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]


def row(name, n, counts):
    return "| " + " | ".join(map(str, (name, n, counts["equivalent"], *(counts[j] for j in JUDGES), counts["survived"]))) + " |"


def write_table(result, path):
    equivalent = read_equivalent()
    records = result["mutants"]
    by, judged, share = count(records, equivalent)
    text = [f"<!-- written by python3 conformance/mutate.py --mutants {len(records)} --seed {result['seed']} -->",
            "# Mutants of the engine", "",
            f"{len(records)} mutants, seed {result['seed']}, of {result['n_sites']} places; {by['equivalent']} are equivalent. Of the other "
            f"{judged}, {judged - by['survived']} are killed: **{share:.1f} %**. Judges, in this order up to the first that fails: "
            f"`zf-conform exact` with {result['cases']} cases, `zf-conform abi`, the Check programs, `zf-conform shard` on three ranks, exact and "
            "the quick Check programs under sanitizers, those of threads under the thread sanitizer. A survivor is judged again, after its test was written, by `--survivors`.", "",
            *head("where")]
    for name, part in [(n, [r for r in records if room(r["name"]) == n]) for n in sorted({room(r["name"]) for r in records})] + [("all", records)]:
        c, _, _ = count(part, equivalent)
        text.append(row(name, len(part), c))
    text += ["", *head("kind")]
    for kind in sorted({r["kind"] for r in records}):
        part = [r for r in records if r["kind"] == kind]
        c, _, _ = count(part, equivalent)
        text.append(row(kind, len(part), c))
    text += ["", "## Survivors", ""]
    for r in sorted(records, key=lambda r: r["name"]):
        if not r["killed_by"] and r["why"] == "survived" and r["name"] not in equivalent:
            file, before, after, _ = r["name"].split(" | ")[0], *r["name"].split(" | ")[1:4]
            text.append(f"- `{file}`:{r['line']} ({r['kind']}): `{before}` -> `{after}`")
    used = [r for r in sorted(records, key=lambda r: r["name"]) if r["name"] in equivalent and not r["killed_by"]]
    text += ["", "## Equivalent", "", f"{sum(r['why'] == 'the same library' for r in records)} compile to the same library. By "
             "`conformance/mutants_equivalent.txt`:", ""]
    text += [f"- `{r['name'].rsplit(' | ', 1)[0]}`: {equivalent[r['name']]}" for r in used]
    path.write_text("\n".join(text) + "\n")
    return f"{len(records)} mutants, {by['equivalent']} equivalent, {judged - by['survived']} of {judged} killed: {share:.1f} %"


class Campaign:
    """The list, what is done of it, and the threads that work it off, one bench each."""

    def __init__(self, args):
        self.args, self.lock = args, threading.Lock()
        self.listed = all_mutants(args.seed)
        self.result = json.loads(args.json.read_text()) if args.json.exists() else {}
        if self.result.get("seed") != args.seed or self.result.get("cases") != args.cases:
            self.result = {"seed": args.seed, "cases": args.cases, "n_sites": len(self.listed), "mutants": [], "not_compiled": []}
        self.again = None  # names to judge again, instead of going on
        if args.survivors:
            self.again = {r["name"] for r in self.result["mutants"] if r["why"] == "survived"} - set(read_equivalent())
        if args.only:
            self.again = {args.only}
        done = {r["name"] for r in self.result["mutants"]} | set(self.result["not_compiled"])
        self.waiting = [m for m in self.listed if (m.name in self.again if self.again is not None else m.name not in done)]
        self.n_judged_now = 0
        self.end = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
        self.costs = Costs()
        for record in self.result["mutants"]:
            if record["killed_by"] == "check":
                self.costs.kills[room(record["name"]), record["why"]] += 1

    def next(self):
        """The next mutant, None where none is left, 0 where it depends on those that are being judged whether there is one."""
        with self.lock:
            if not self.waiting or time.monotonic() > self.end:
                return None
            if self.again is None:
                if len(self.result["mutants"]) >= self.args.mutants:
                    return None
                if len(self.result["mutants"]) + self.n_judged_now >= self.args.mutants:
                    return 0
            self.n_judged_now += 1
            return self.waiting.pop(0)

    def keep(self, mutant, record):
        with self.lock:
            self.n_judged_now -= 1
            self.result["mutants"] = [r for r in self.result["mutants"] if r["name"] != mutant.name] + ([record] if record else [])
            if not record:
                self.result["not_compiled"].append(mutant.name)
            verdict = record["killed_by"] or record["why"] if record else "does not compile"
            print(f"{mutant.name}: {verdict}", flush=True)
            if not self.args.only:
                self.args.json.write_text(json.dumps(self.result, indent=1) + "\n")
                print(write_table(self.result, self.args.json.with_suffix(".md")), flush=True)

    def work(self, bench, original):
        while (mutant := self.next()) is not None:
            if mutant == 0:
                time.sleep(1)
            else:
                self.keep(mutant, bench.judge_one(mutant, original))

    def run(self):
        judges = QUICK_JUDGES if self.args.quick else JUDGES
        benches = [Bench(self.args.work / str(i), self.args.cases, self.costs, judges) for i in range(self.args.jobs)]
        for i, bench in enumerate(benches):
            bench.configure()
            if i == 0:
                bench.baseline()
        threads = [threading.Thread(target=self.work, args=(bench, bench.ready())) for bench in benches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mutants", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=150, help="cases of zf-conform exact (default 150)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants judged side by side (default 2)")
    parser.add_argument("--minutes", type=float, help="begin no further mutant after so many minutes")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutate", help="scratch copy and its build")
    parser.add_argument("--json", type=Path, default=RESULTS / "mutation.json")
    parser.add_argument("--only", help="this mutant alone; nothing is written")
    parser.add_argument("--quick", action="store_true", help="leave the sanitizers for --survivors")
    parser.add_argument("--survivors", action="store_true", help="judge the survivors again, after a test was written")
    parser.add_argument("--table", action="store_true", help="only write mutation.md from mutation.json")
    args = parser.parse_args()
    if args.table:
        print(write_table(json.loads(args.json.read_text()), args.json.with_suffix(".md")))
    else:
        Campaign(args).run()


if __name__ == "__main__":
    main()
