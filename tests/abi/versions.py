#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""versions.py ROOT [SYSROOT] - hosts and plugins of two minors of one major work together, both ways; of two minors of major 0 they do not.

1.0 is today's headers with that number. 1.1 is made from them as a minor may grow: every struct with a size has one more member,
every table one more slot, and there is a new constant. versions_plugin.c with the size rules of plugin/base, and the example first.c
with the loader of bindings/c, are compiled from both. Losses must be the same in all four pairs. With the system root of arm64 that cmake/arm64.sh makes, hosts and plugins are arm64's, in an emulator (tests/arm64.sh)."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PLUGIN = ["tests/abi/versions_plugin.c", "plugin/base/struct.c", "plugin/base/error.c", "plugin/base/utf8.c"]
TRAINED = re.compile(r"ABI (\S+)\n(step .*\nat the end loss .*)", re.DOTALL)


def append(text):
    """A member behind the last of every struct with a size, a slot behind the last of every table."""

    def grow(match):
        body, name = match.groups()
        is_table = name == "zf_plugin_t" or name.endswith("_ext_t")
        return body + ("    int32_t (*appended)(void);\n" if is_table else "    uint64_t appended;\n") + f"}} {name};"

    return re.sub(r"(^typedef struct zf_\w+ \{[^\n]*\n\s+uint32_t struct_size;(?:(?!^typedef)(?:.|\n))*?)^\} (zf_\w+);", grow, text,
                  flags=re.M)


def make_headers(root, folder, minor, major=1):
    shutil.copytree(root / "abi/include", folder)
    types = folder / "zf/types.h"
    text, n = re.subn(r"(#define ZF_ABI_\d+_\d+ )ZF_ABI_NUMBER\(\d+, \d+\)", rf"\1ZF_ABI_NUMBER({major}, {minor})",
                      types.read_text(encoding="utf-8"))
    if not n:
        sys.exit("FAIL: zf/types.h defines no ZF_ABI_x_y")
    types.write_text(text, encoding="utf-8")
    if minor == 1:
        headers = [h for h in folder.rglob("*.h") if h.name != "bootstrap.h"]
        grown = 0
        for header in headers:
            before = header.read_text(encoding="utf-8")
            after = append(before)
            grown += after.count("appended;") + after.count("(*appended)")
            header.write_text(after, encoding="utf-8")
        types.write_text(types.read_text(encoding="utf-8").replace("#define ZF_MAX_NDIM", "#define ZF_APPENDED 11\n#define ZF_MAX_NDIM"),
                         encoding="utf-8")
        if grown < 20:
            sys.exit(f"FAIL: only {grown} structs have grown")


def build(root, cc, folder, minor, major=1):
    """A plugin and a host from one set of headers."""
    include = folder / "include"
    make_headers(root, include, minor, major)
    flags = [*cc, "-O1", "-std=gnu11", f"-I{include}"]
    plugin, host = folder / "plugin.so", folder / "host"
    subprocess.run([*flags, "-shared", "-fPIC", "-fvisibility=hidden", f"-I{root / 'plugin'}", "-o", plugin,
                    *[root / name for name in PLUGIN]], check=True)
    subprocess.run([*flags, f"-I{root / 'bindings/c'}", "-o", host, root / "bindings/examples/first.c",
                    root / "bindings/c/zf_loader.c", "-lpthread", "-ldl", "-lm"], check=True)
    return plugin, host


def talk(emulator, host, plugin):
    ran = subprocess.run([*emulator, host, plugin], capture_output=True, text=True, check=False, timeout=60)
    return ran.returncode, ran.stdout.strip() + ran.stderr.strip()


def rehearse(root, machine, cc, emulator):
    wrong = 0
    with tempfile.TemporaryDirectory() as top:
        made = {minor: build(root, cc, Path(top) / f"1.{minor}", minor) for minor in (0, 1)}
        seen = set()
        for host in (0, 1):
            for plugin in (0, 1):
                status, said = talk(emulator, made[host][1], made[plugin][0])
                found = TRAINED.fullmatch(said)
                is_right = status == 0 and found and found[1] == f"1.{min(host, plugin)}"
                seen.add(found[2] if found else said)
                wrong += not is_right
                print(f"{'ok' if is_right else 'FAIL'}  {machine}: host 1.{host}, plugin 1.{plugin}: {said[-40:]!r}")
        young = [build(root, cc, Path(top) / f"0.{minor}", minor, major=0) for minor in (0, 1)]
        for a, b in ((0, 1), (1, 0)):
            status, said = talk(emulator, young[a][1], young[b][0])
            is_right = status != 0 and "step" not in said
            wrong += not is_right
            print(f"{'ok' if is_right else 'FAIL'}  {machine}: host 0.{a}, plugin 0.{b}: refused at negotiation: {said[:90]}")
        if len(seen) != 1:
            print(f"FAIL: the losses differ: {sorted(seen)}")
    return wrong + (len(seen) != 1)


def main():
    root = Path(sys.argv[1]).resolve()
    if len(sys.argv) > 2:
        wrong = rehearse(root, "arm64", ["aarch64-linux-gnu-gcc", f"--sysroot={sys.argv[2]}"], ["qemu-aarch64", "-L", sys.argv[2]])
    else:
        wrong = rehearse(root, "this machine", ["cc"], [])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
