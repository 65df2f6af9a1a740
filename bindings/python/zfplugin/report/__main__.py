# SPDX-License-Identifier: Apache-2.0
"""The command: python -m zfplugin.report RESULTS... [--page FILE.html] [--plots DIR]. Exit status 0, or 2 with one line that says
what is wrong or missing."""
from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .. import progress
from . import accuracy, checks, defaults, draw, perf, tune
from .page import page
from .results import ResultError, read

SECTIONS = {"abi": checks.section, "exact": checks.section, "shard": checks.section, "glue": accuracy.glue_section,
            "defaults": defaults.section, "perf": perf.section, "tune": tune.section}


def arguments(argv):
    p = argparse.ArgumentParser(prog="python3 -m zfplugin.report", description="Pictures and one HTML page from the JSON files of "
                                "zf-conform's areas and of zf tune. Needs matplotlib.")
    p.add_argument("results", nargs="+", metavar="RESULTS", help="folders of JSON files (AREA.json, AREA-*.json), or the files")
    p.add_argument("--page", metavar="FILE.html", help="write one self-contained page of all results")
    p.add_argument("--plots", metavar="DIR", help="write every plot as a file of its own: NAME.svg, NAME-scores.svg ...")
    p.add_argument("--only", metavar="PLOT,...", help='with --plots: these alone, by the end of their names; "loss" is NAME.svg')
    p.add_argument("--format", choices=("svg", "png"), default="svg", help="of --plots (default svg)")
    args = p.parse_args(argv)
    if not args.page and not args.plots:
        p.error("--page FILE.html or --plots DIR is needed")
    return args


def write(path: Path, data: bytes, line) -> None:
    """Replaces the file whole: a reader sees the old one or the new one."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        raise ResultError(f"{path}: cannot write: {error.strerror}") from None
    line.clear()
    print(path, flush=True)


def write_plots(results, sections, args, line) -> None:
    only = set(args.only.split(",")) if args.only else None
    try:
        os.makedirs(args.plots, exist_ok=True)
    except OSError as error:
        raise ResultError(f"{args.plots}: cannot be made: {error.strerror}") from None
    n_written = 0
    for result, section in zip(results, sections):
        for figure in section.figures() if section else []:
            if only is None or (figure.name or "loss") in only:
                name = f"{result.stem}-{figure.name}" if figure.name else result.stem
                line.show(f"drawing {name}")
                write(Path(args.plots, f"{name}.{args.format}"), draw.rendered(figure.draw, args.format), line)
                n_written += 1
    if n_written == 0:
        raise ResultError(f"no plot{' ' + args.only if only else ''} in {', '.join(args.results)}")


def main(argv=None) -> int:
    args = arguments(argv)
    try:
        with progress.Line("zfplugin.report") as line:
            line.show("reading")
            draw.need_matplotlib()
            results = read(args.results)
            sections = [SECTIONS[r.area](r.data) if r.data is not None else None for r in results]
            if args.plots:
                write_plots(results, sections, args, line)
            if args.page:
                line.show(f"drawing {args.page}")
                write(Path(args.page), page(results, sections).encode(), line)
    except (ResultError, draw.MatplotlibMissing) as error:
        print(f"zfplugin.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
