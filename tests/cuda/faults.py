# SPDX-License-Identifier: Apache-2.0
"""faults.py names | check | plant NAME TREE | take NAME TREE - the faults of faults.txt: which there are, and the way that each is
caught by; whether each still fits this tree; one of them put into a copy of it, and taken out again. Exit status 1: one does not fit."""
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def read():
    """name -> [(file, the way to catch it, lines that stand there, lines that come there)]"""
    faults = {}
    for change in re.split(r"^== ", (HERE / "faults.txt").read_text(encoding="utf-8"), flags=re.M)[1:]:
        head, *lines = change.rstrip("\n").split("\n")
        name, file, *way = head.split()
        lines = [line or " " for line in lines if not line.startswith("#")]
        old, new = ("\n".join(line[1:] for line in lines if line[0] in " " + sign) for sign in "-+")
        faults.setdefault(name, []).append((file, way, old, new))
    return faults


def changed(changes, tree):
    """file -> its text with the changes; ValueError: they do not fit."""
    texts = {}
    for file, _, old, new in changes:
        text = texts.get(file, "\n" + (tree / file).read_text(encoding="utf-8"))
        if text.count(f"\n{old}\n") != 1:
            raise ValueError(f"{file} has {text.count(old)} times\n{old}")
        texts[file] = text.replace(f"\n{old}\n", f"\n{new}\n" if new else "\n")
    return {file: text[1:] for file, text in texts.items()}


def main():
    what, *names = sys.argv[1:2] + (sys.argv[2:3] or list(read()))
    faults, is_good = read(), True
    for name in names:
        if what == "names":
            print(name, *faults[name][0][1])
            continue
        try:
            texts = changed(faults[name], ROOT)
        except ValueError as e:
            print(f"FAIL: fault {name}: {e}")
            is_good = False
            continue
        for file, text in texts.items() if what in ("plant", "take") else ():
            path = Path(sys.argv[3]) / file
            path.write_text(text if what == "plant" else (ROOT / file).read_text(encoding="utf-8"), encoding="utf-8")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
