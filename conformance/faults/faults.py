# SPDX-License-Identifier: Apache-2.0
"""faults.py TABLE names | check | plant NAME TREE | take NAME TREE - planted faults, of a table (exact.txt says its form): which there
are; whether each still fits the sources; one of them put into a tree of them, and taken out again. Exit status 1: one does not fit."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def read(table):
    """name -> [(file, lines that stand there, lines that come there)]"""
    faults = {}
    for change in re.split(r"^== ", Path(table).read_text(encoding="utf-8"), flags=re.M)[1:]:
        head, *lines = change.rstrip("\n").split("\n")
        name, file = head.split()[:2]
        lines = [line or " " for line in lines if not line.startswith("#")]
        old, new = ("\n".join(line[1:] for line in lines if line[0] in " " + sign) for sign in "-+")
        faults.setdefault(name, []).append((file, old, new))
    return faults


def changed(changes):
    """file -> its text with the changes; ValueError: they do not fit."""
    texts = {}
    for file, old, new in changes:
        text = texts.get(file, "\n" + (ROOT / file).read_text(encoding="utf-8"))
        if text.count(f"\n{old}\n") != 1:
            raise ValueError(f"{file} has {text.count(old)} times\n{old}")
        texts[file] = text.replace(f"\n{old}\n", f"\n{new}\n" if new else "\n")
    return {file: text[1:] for file, text in texts.items()}


def write(path, text):
    """What is the same is left alone: nothing is built anew from it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def main():
    table, what, *rest = sys.argv[1:]
    faults, is_good = read(table), True
    for name in rest[:1] or faults:
        if what == "names":
            print(name)
            continue
        try:
            texts = changed(faults[name])
        except ValueError as e:
            print(f"FAIL: fault {name}: {e}")
            is_good = False
            continue
        for file, text in texts.items() if what in ("plant", "take") else ():
            write(Path(rest[1]) / file, text if what == "plant" else (ROOT / file).read_text(encoding="utf-8"))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
