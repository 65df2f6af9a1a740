# SPDX-License-Identifier: Apache-2.0
"""The command: python -m zfplugin.report RESULTS... --plots DIR. Exit status 0, or 2 with one line that says what is wrong or missing."""
from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .. import progress
from . import draw
from .figures import UNFIT, figures_of
from .results import ResultError, read


def arguments(argv):
    p = argparse.ArgumentParser(prog="python3 -m zfplugin.report", description="Pictures from the JSON files of zf-conform's areas and of "
                                "zf tune. Needs matplotlib.")
    p.add_argument("results", nargs="+", metavar="RESULTS", help="folders of JSON files (AREA.json, AREA-*.json), or the files")
    p.add_argument("--plots", metavar="DIR", required=True, help="every plot is a file there: NAME.svg, NAME-scores.svg ...")
    p.add_argument("--only", metavar="PLOT,...", help='these alone, by the end of their names; "loss" is NAME.svg')
    p.add_argument("--format", choices=("svg", "png"), default="svg", help="default svg")
    return p.parse_args(argv)


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


def pictures(result, only, kind, line):
    """(name, bytes) of each plot of a result."""
    try:
        for figure in figures_of(result.area, result.data):
            if only is None or (figure.name or "loss") in only:
                name = f"{result.path.stem}-{figure.name}" if figure.name else result.path.stem
                line.show(f"drawing {name}")
                yield name, draw.rendered(figure.draw, kind)
    except UNFIT as error:
        raise ResultError(f"{result.path}: not what {result.area} leaves: {type(error).__name__}: {error}") from None


def write_plots(results, args, line) -> None:
    try:
        os.makedirs(args.plots, exist_ok=True)
    except OSError as error:
        raise ResultError(f"{args.plots}: cannot be made: {error.strerror}") from None
    only, n_written = set(args.only.split(",")) if args.only else None, 0
    for result in results:
        for name, data in pictures(result, only, args.format, line):
            write(Path(args.plots, f"{name}.{args.format}"), data, line)
            n_written += 1
    if n_written == 0:
        raise ResultError(f"no plot{' ' + args.only if only else ''} in {', '.join(args.results)}")


def main(argv=None) -> int:
    args = arguments(argv)
    try:
        with progress.Line("zfplugin.report") as line:
            line.show("reading")
            draw.need("matplotlib.figure")
            write_plots(read(args.results), args, line)
    except (ResultError, draw.PackageMissing) as error:
        print(f"zfplugin.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
