# SPDX-License-Identifier: Apache-2.0
"""zf-conform --report FILE.html: areas run one after the other, and one page drawn of all results.

Every area is zf-conform again, with its own options and its JSON told to lie in the results folder; what it prints is seen as
always. report.json says what was run, how long it took and how it ended, so that the page also names an area that left no file.
python3 -m zfplugin.report draws the page; where that fails, the tables have been printed, the JSON is kept, and the exit status is
still the areas'."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from .options import Option, help_text, parse
from .runs import CannotRun

AREAS = {"abi": "--json", "exact": "--json", "glue": "--out", "perf": "--out"}  # how each is told where its results go
OPTIONS = (
    Option("plugin", "FILE", "libzfplugin.so (default: ZFPLUGIN_PATH)"),
    Option("data", "DIR", "official GLUE files, for the areas that train"),
    Option("results", "DIR", "JSON files of the areas, made and read (default: FILE.html.results)"),
)
HEAD = """zf-conform --report FILE.html [options] [AREA [options of the area] ...]
Runs the areas named and draws one self-contained page of all results in the results folder; with no AREA nothing is run. Python's
matplotlib draws the page; without it the areas' tables and JSON stand. Areas: abi exact glue perf; zf-conform AREA --help lists their
options"""
END = """exit status: the areas' worst (1 before 2 before 3), with or without a page; 2 where only the page was wanted and could not be drawn"""


def split(words):
    """The command's own words, and those of each area by its name."""
    own, areas = [], {}
    now = own
    for word in words:
        if word not in AREAS:
            now.append(word)
        elif word in areas:
            raise CannotRun(f"the area {word} is named twice; once is needed")
        else:
            now = areas[word] = []
    return own, areas


def run_area(area, words, args, results: Path) -> dict:
    for old in [*results.glob(f"{area}.json"), *results.glob(f"{area}-*.json")]:
        old.unlink()  # must not pass for this run's
    where = results if area == "glue" else results / f"{area}.json"
    command = [os.environ["ZF_CONFORM"], area, "--plugin", args.plugin, AREAS[area], where]
    command += ["--data", args.data] if area == "glue" and args.data else []
    print(f"== {area}", flush=True)
    begin = time.monotonic()
    status = subprocess.run([*command, *words], check=False).returncode
    return {"area": area, "exit_status": status if status >= 0 else 1, "seconds": time.monotonic() - begin}


def draw(page: Path, results: Path, has_run: bool) -> bool:
    if has_run:
        page.unlink(missing_ok=True)  # one of an earlier run must not pass for this run's
    python = os.environ.get("ZF_PYTHON") or sys.executable
    if subprocess.run([python, "-m", "zfplugin.report", results, "--page", page], check=False).returncode == 0:
        return True
    print(f"zf-conform --report: no page was drawn; {'the tables stand above, ' if has_run else ''}the JSON files are in {results}; later: "
          f"zf-conform --report {page} --results {results}", file=sys.stderr)
    return False


def main(argv) -> int:
    if argv[:1] == ["--help"]:
        print(help_text(HEAD, OPTIONS, END))
        return 0
    if not argv or argv[0].startswith("-") or argv[0] in AREAS:
        raise CannotRun(f"the name of the page is needed first: --report FILE.html; found {argv[0] if argv else 'nothing'}")
    own, areas = split(argv[1:])
    args = parse(OPTIONS, own)
    args.plugin = args.plugin or os.environ.get("ZFPLUGIN_PATH")
    if areas and not args.plugin:
        raise CannotRun("--plugin FILE is needed (or ZFPLUGIN_PATH): the libzfplugin.so to judge")
    page = Path(argv[0])
    results = Path(args.results or f"{page}.results")
    if areas:
        try:
            results.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise CannotRun(f"{results}: cannot make this folder: {problem.strerror}") from None
        ran = [run_area(area, words, args, results) for area, words in areas.items()]
        (results / "report.json").write_text(json.dumps({"area": "report", "ran": ran}) + "\n", encoding="utf-8")
    is_drawn = draw(page, results, bool(areas))
    if not areas:
        return 0 if is_drawn else 2
    statuses = [entry["exit_status"] for entry in ran]
    return next((status for status in (1, 2, 3) if status in statuses), 0)
