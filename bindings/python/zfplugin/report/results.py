# SPDX-License-Identifier: Apache-2.0
"""Finds and reads the results of areas: JSON files that say their "area", or are named AREA.json or AREA-*.json."""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from . import shapes

ORDER = [area for area in shapes.AREAS if area != "report"]


class ResultError(Exception):
    """One line: file, place, what was found, what is needed."""


@dataclass
class Result:
    """One file of an area, or (data None) a run that left none."""
    area: str
    stem: str  # file name without .json; plots are named after it
    data: dict | None
    exit_status: float | None
    seconds: float | None = None


def no_constant(text):
    raise ValueError(f"found {text}; a JSON number is needed")


def parse(path: Path):
    try:
        return json.loads(path.read_bytes().decode("utf-8"), parse_constant=no_constant)
    except OSError as error:
        raise ResultError(f"{path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ResultError(f"{path}: byte {error.start}: found 0x{error.object[error.start]:02x}; UTF-8 is needed") from None
    except json.JSONDecodeError as error:
        raise ResultError(f"{path}:{error.lineno}:{error.colno}: {error.msg}; the file is damaged or cut") from None
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path}: {error}; the file is damaged") from None


def area_of(path: Path, data) -> str | None:
    """What the file says itself, else what it is named after."""
    said = data.get("area") if isinstance(data, dict) else None
    if said is not None:
        return said if isinstance(said, str) and said in shapes.AREAS else None
    return next((a for a in shapes.AREAS if path.stem == a or path.stem.startswith(a + "-")), None)


def read_file(path: Path, is_named: bool) -> Result | None:
    """None for a file of a folder that is of no area; a file named on the command line must be of one."""
    data = parse(path)
    area = area_of(path, data)
    if area is None:
        if is_named:
            raise ResultError(f'{path}: no "area" that the report knows; known are {", ".join(ORDER)}')
        return None
    try:
        shapes.check_area(area, data)
    except shapes.Unfit as error:
        raise ResultError(f"{path}: {error}") from None
    return Result(area, path.stem, data, data.get("exit_status"))


def add_run(results: list[Result], run: Result) -> None:
    """What --report wrote of the areas it ran: how long each took, and which of them left no file."""
    for entry in run.data["ran"]:
        own = [r for r in results if r.area == entry["area"] and (r.stem == r.area or r.stem.startswith(r.area + "-"))]
        for result in own:
            result.exit_status, result.seconds = entry["exit_status"], entry["seconds"]
        if not own and entry["area"] in ORDER:
            results.append(Result(entry["area"], entry["area"], None, entry["exit_status"], entry["seconds"]))


def read(places: list[str]) -> list[Result]:
    """The results in files and folders, in the order of the page. Raises ResultError."""
    results, runs = [], []
    for place in map(Path, places):
        if not place.exists():
            raise ResultError(f"{place}: no such file or folder")
        for path in sorted(place.glob("*.json")) if place.is_dir() else [place]:
            result = read_file(path, is_named=not place.is_dir())
            if result is not None:
                (runs if result.area == "report" else results).append(result)
    for run in runs:
        add_run(results, run)
    if not results:
        raise ResultError(f"no results of an area (AREA.json) in {', '.join(places)}")
    return sorted(results, key=lambda r: (ORDER.index(r.area), r.stem))
