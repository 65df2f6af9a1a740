#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""revisions.py ROOT PLUGIN [--all] - hosts of the newest revisions of the headers, or of all, work with this plugin or are refused at negotiation.

For each of NEWEST commits that changed abi/include, first.c is compiled with that commit's headers and loader, and run with PLUGIN. It has to train
to the loss that today's has, or to end before it has a table, with a message that names both ABIs. Headers that came twice are run once.
Exit status 77 without git or its history."""

import io
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NEWEST = 8
FOLDERS = ["abi/include", "bindings/c", "bindings/examples"]
LOSS = re.compile(r"^at the end loss ([\d.]+)$", re.MULTILINE)
REFUSED = re.compile(r"shares no ABI with this host, which serves [\d., ]+\. The plugin")


def git(root, *words):
    return subprocess.run(["git", "-C", root, *words], capture_output=True, check=False)


def revisions(root):
    """(commit, key of its headers) of every commit that changed the headers, newest first, the present one before all."""
    log = git(root, "log", "--format=%H", "--", "abi/include")
    for commit in ["HEAD", *log.stdout.decode().split()] if log.returncode == 0 else []:
        tree = git(root, "rev-parse", f"{commit}:{FOLDERS[0]}")
        if tree.returncode == 0:
            yield commit, tree.stdout


def compile_host(root, commit, folder):
    """The host of a commit; None where that commit has no such example."""
    archive = git(root, "archive", commit, *FOLDERS)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    source, loader = folder / "bindings/examples/first.c", folder / "bindings/c/zf_loader.c"
    if not source.exists() or not loader.exists():
        return None
    subprocess.run(["cc", "-std=gnu11", "-w", f"-I{folder / 'abi/include'}", f"-I{folder / 'bindings/c'}", "-o", folder / "host", source, loader,
                    "-ldl", "-lpthread", "-lm"], check=True)
    return folder / "host"


def judge(host, plugin, wanted):
    """What became of it, and its loss; None as the first where neither may be."""
    ran = subprocess.run([host, plugin], capture_output=True, text=True, check=False, timeout=120)
    loss = LOSS.search(ran.stdout)
    if ran.returncode == 0 and loss and wanted in (None, loss[1]):
        return "works", loss[1]
    if ran.returncode == 1 and not ran.stdout and REFUSED.search(ran.stderr):
        return "refused", ran.stderr.strip()
    return None, f"exit status {ran.returncode}: {ran.stdout[-200:]}{ran.stderr[-300:]}"


def main():
    root, plugin = Path(sys.argv[1]).resolve(), sys.argv[2]
    seen, counts, wanted, wrong = set(), {"works": 0, "refused": 0}, None, 0
    for commit, key in revisions(root):
        if key in seen:
            continue
        if len(seen) == NEWEST and "--all" not in sys.argv:
            break
        seen.add(key)
        with tempfile.TemporaryDirectory() as folder:
            host = compile_host(root, commit, Path(folder))
            if host is None:
                continue
            what, said = judge(host, plugin, wanted)
        if what is None:
            wrong += 1
            print(f"FAIL  {commit[:10]}: {said}")
        else:
            counts[what] += 1
            wanted = said if what == "works" else wanted
    if not seen:
        print("there is no git history to take the headers from")
        return 77
    print(f"hosts of {sum(counts.values()) + wrong} revisions: {counts['works']} work, {counts['refused']} are refused at negotiation, {wrong} fail later")
    return 1 if wrong or not counts["works"] else 0


if __name__ == "__main__":
    sys.exit(main())
