#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""growth.py ROOT BUILD [CASES] - the day the ABI grows, rehearsed with the whole engine: headers with a member appended to every struct and a slot to
every table, the engine and a host built from them, and each run with today's other half.

    today's host, grown engine    zf-conform exact and the probes of zf-conform abi that train, save, load
    grown host, today's engine    zf-conform exact, from the same sources

The number of the ABI stays, so that the two meet. Sources and options are those of BUILD/compile_commands.json, without optimisation. What is frozen
for ever does not grow (zf/bootstrap.h), nor does zf_chained_t, behind which others' members lie."""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from versions import append

ABI_PARTS = ["training", "storage", "books", "hosts"]
MAIN = """int zx_exact_main(int argc, char **argv);
int main(int argc, char **argv) { return zx_exact_main(argc - 1, argv + 1); }
"""


def grow(root, folder):
    """The headers, grown, in a folder."""
    shutil.copytree(root / "abi/include", folder)
    grown = 0
    for header in sorted(folder.rglob("*.h")):
        if header.name == "bootstrap.h":
            continue
        text = header.read_text(encoding="utf-8")
        kept = re.search(r"^typedef struct zf_chained \{.*?^\} zf_chained_t;", text, re.M | re.S)
        after = append(text)
        if kept:
            after = re.sub(r"^typedef struct zf_chained \{.*?^\} zf_chained_t;", lambda _: kept[0], after, flags=re.M | re.S)
        header.write_text(after, encoding="utf-8")
        grown += after.count("appended;") + after.count("(*appended)")
    golden = sorted((root / "abi/layout").glob("v*.txt"))[-1].read_text(encoding="utf-8")
    wanted = len(re.findall(r"^struct \w+ (?:input|output|table) ", golden, re.M)) - 1
    if grown != wanted:
        sys.exit(f"FAIL: {grown} structs and tables have grown, need {wanted}")
    return grown


def commands(build, wanted):
    """(source, words of its command) of the sources whose object's path matches."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        if re.search(wanted, words[words.index("-o") + 1]):
            yield entry["file"], words


def compile_all(root, folder, rows):
    """Objects of these sources with the grown headers."""
    swap = {f"-I{root / 'abi/include'}": f"-I{folder / 'include'}"}

    def compile_one(i, row):
        source, words = row
        out = folder / f"{i}-{Path(source).stem}.o"
        kept = [swap.get(word, word) for word in words if not re.match(r"-(O|g|W|fmacro)", word)]
        at = kept.index("-o")
        ran = subprocess.run([*kept[:at], "-O0", "-w", "-o", out, *kept[at + 2:]], capture_output=True, text=True, check=False)
        if ran.returncode:
            sys.exit(f"FAIL: {source} with grown headers: {ran.stderr[-600:]}")
        return out

    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("ZF_JOBS", os.cpu_count() or 2))) as pool:
        return list(pool.map(compile_one, range(len(rows)), rows))


def link(words):
    ran = subprocess.run(["cc", *map(str, words)], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"FAIL: link: {ran.stderr[-600:]}")


def build_engine(root, build, folder):
    objects = compile_all(root, folder, list(commands(build, r"zfplugin_objects\.dir")))
    link(["-shared", "-o", folder / "engine.so", *objects, *(build / "lib").glob("*.a"), build / "kernels/libzf_kernels.a", "-linih", "-ljansson",
          "-ldl", "-lpthread", "-lm", "-Wl,-z,nodelete", "-Wl,-z,defs", f"-Wl,--version-script={root / 'abi/zfplugin.map'}"])
    return folder / "engine.so"


def build_host(root, build, folder):
    wanted = r"/zf-conform\.dir/(cases/(exact|shard)|harness/(?!main|python))|zf_conform_abi\.dir/harness|/zf_(loader|glue)\.dir"
    rows = list(commands(build, wanted))
    main = folder / "main.c"
    main.write_text(MAIN, encoding="utf-8")
    objects = compile_all(root, folder, rows)
    link(["-o", folder / "host", main, *objects, build / "conformance/libzf_oracle.a", *(build / "lib").glob("*.a"), "-ldl", "-lpthread", "-lm"])
    return folder / "host"


def run(what, *words):
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    last = (ran.stdout.strip() or ran.stderr.strip()).splitlines()[-1:]
    print(f"{'ok' if ran.returncode == 0 else 'FAIL'}  {what}: {' '.join(last)}")
    if ran.returncode:
        print("\n".join(re.findall(r"^.*(?:FAIL|law \d:).*\n(?: {9}.*\n)*", ran.stdout, re.M)) + ran.stderr[-1000:])
    return ran.returncode != 0


def main():
    root, build, cases = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3] if len(sys.argv) > 3 else "24"
    exact = ["--isa", "plugin", "--jobs", "2", "--cases", cases]
    conform, today = build / "conformance/zf-conform", build / "plugin/libzfplugin.so"
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        print(f"{grow(root, folder / 'include')} structs and tables have grown")
        engine, host = build_engine(root, build, folder), build_host(root, build, folder)
        wrong = run("today's host, grown engine", conform, "exact", "--plugin", engine, *exact)
        for part in ABI_PARTS:
            wrong += run(f"today's host, grown engine, {part}", conform, "abi", "--plugin", engine, "--only", part)
        wrong += run("grown host, today's engine", host, "exact", "--plugin", today, *exact)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
