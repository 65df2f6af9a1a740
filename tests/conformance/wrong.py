#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wrong.py ZF_CONFORM PLUGIN WRONG_PLUGIN WRONG_DEF [--only NAME | --short | --long] - every plugin with a wrong habit is caught, and by which law.

Each line of wrong.def names a habit of wrong_plugin.so, or a library of its own beside it, and the part of the suite that must catch
it: `exact`, or one law of it, or `abi` with the probes of --only and perhaps the rule that must be broken. Caught means: that part
fails, in that rule, or in one or a law in which the true plugin, forwarded in the same way, does not fail in as many cases. "exact LAW CASE"
names the case in which it is caught late among all of them: that is tried first, and where it is not caught there any more all are. Prints
a table; fails below WANTED."""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WANTED = 0.95
FEWEST, FEWEST_LONG = 180, 60  # rows: a table that is not read is no success
LINE = re.compile(r'^WRONG\((\w+), "(\w+)", "([^"]+)", "([^"]+)"\)$')
MOST_CASES = 240
EXACT = ["exact", "--seed", "7", "--isa", "plugin", "--max-failures", "1", "--deadline", "60", "--jobs", "1"]


def command(part, n_cases):
    words = part.split()
    if words[0] in ("near", "cost"):
        return words[:1]
    if words[0] == "exact":
        cases = ["--only", words[2]] if words[2:] else ["--cases", str(n_cases)]
        return [*EXACT, *cases, *(["--law", words[1]] if words[1:] else [])]
    return ["abi", "--only", words[1]]


def run(files, name, kind, part, n_cases=MOST_CASES):
    """The laws that fail, in order, with the first finding of each; and the number of the case of exact that does."""
    conform, plugin, wrong = files
    if kind == "file":
        wrong = Path(wrong).with_name(f"{name}.so")
    env = dict(os.environ, ZF_WRONG_OF=plugin, ZF_WRONG=name)
    with tempfile.TemporaryDirectory() as folder:  # habits leave files
        said = subprocess.run([conform, *command(part, n_cases), "--plugin", wrong], env=env, cwd=folder, capture_output=True, text=True,
                              errors="replace", check=False)
    Path("/tmp/zf-wrong").unlink(missing_ok=True)
    if part.split()[0] in ("near", "cost"):
        laws = re.findall(r"^(\w+) +FAIL: (.*)$", said.stdout, re.M) or re.findall(r"^(case) (.*)$", said.stdout, re.M)
    elif part.startswith("exact"):
        laws = re.findall(r"^(law \d): (.*)$", said.stdout + said.stderr, re.M) if said.returncode == 1 else []
    else:
        laws = re.findall(r"^ +\d +(\S+) +FAIL .*\n +(.*)$", said.stdout, re.M)
    if said.returncode not in (0, 1):
        laws = [("could not run", said.stderr.strip()[:120])]
    case = re.search(r"--only (\d+)", said.stdout + said.stderr)
    return laws, int(case[1]) if case else 0


def read_table(path):
    """All rows, and how many of them are for every run; the rest is for the long tests."""
    with open(path, encoding="utf-8") as f:
        first, last = ([m.groups() for m in map(LINE.match, text.splitlines()) if m] for text in f.read().split("/* wrong_plugins_long */"))
    return first + last, len(first)


def caught_in(files, row):
    """The part, without a rule, the laws that fail in it, and the number of the case of exact that does."""
    name, kind, part, _ = row
    words = part.split()
    if words[0] == "abi":
        return (" ".join(words[:2]), *run(files, name, kind, part))
    laws, case = run(files, name, kind, part)
    if not laws and words[2:]:
        part = "exact"
        laws, case = run(files, name, kind, part)
        print(f"note: {name} is not caught in case {words[2]} of law {words[1]} any more, but in {case}: mend its row")
    return part, laws, case


def rules_of(row):
    """Those of abi that must be broken, or none."""
    words = row[2].split()
    return words[2:] if words[0] == "abi" else []


def judge(rows, files):
    """For each row the law that caught it, or None."""
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("ZF_JOBS", "2"))) as pool:
        found = list(pool.map(lambda row: caught_in(files, row), rows))
        parts = sorted({part for part, _, _ in found})
        n_cases = {part: 1 + max(case for its, _, case in found if its == part) for part in parts}
        of_true = pool.map(lambda part: run(files, "nothing", "none", part, n_cases[part])[0], parts)
        true = {part: {law for law, _ in laws} for part, laws in zip(parts, of_true)}
        caught = [next(((law, text) for law, text in laws if law not in true[part] and law in (rules_of(row) or [law])), None)
                  for row, (part, laws, _) in zip(rows, found)]
    for part, laws in sorted(true.items()):
        if laws:
            print(f"note: the true plugin fails {part}: {', '.join(sorted(laws))}; these do not count")
    return caught


def main():
    files, path = [os.path.abspath(p) for p in sys.argv[1:4]], sys.argv[4]
    rows, n_first = read_table(path)
    rows = rows[:n_first] if "--short" in sys.argv else rows[n_first:] if "--long" in sys.argv else rows
    rows = [row for row in rows if row[0] != "nothing" and row[2] != "checker"]
    if "--only" in sys.argv:
        rows = [row for row in rows if row[0] == sys.argv[sys.argv.index("--only") + 1]]
    caught = judge(rows, files)
    lines = [f"{'plugin':18} {'kind':12} {'caught by':28} what is wrong"]
    for (name, kind, part, what), law in zip(rows, caught):
        by = f"{part.split()[0]}: {law[0]}" if law else "NOT CAUGHT"
        lines.append(f"{name:18} {kind:12} {by:28} {what}")
    n = sum(law is not None for law in caught)
    lines.append(f"{n} of {len(rows)} wrong plugins are caught; wanted: {WANTED:.0%}")
    print("\n".join(lines))
    return 0 if len(rows) >= (1 if "--only" in sys.argv else FEWEST_LONG if "--long" in sys.argv else FEWEST) and n >= WANTED * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
