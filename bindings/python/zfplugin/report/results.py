# SPDX-License-Identifier: Apache-2.0
"""Finds and reads results: JSON files that say their "area", or are named AREA.json or AREA-*.json."""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

AREAS = ("glue", "defaults", "tune")


class ResultError(Exception):
    """One line: file, place, what was found, what is needed."""


@dataclass
class Result:
    area: str
    path: Path  # plots are named after it
    data: dict


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
        return said if said in AREAS else None
    return next((a for a in AREAS if path.stem == a or path.stem.startswith(a + "-")), None)


def read_file(path: Path, is_named: bool) -> Result | None:
    """None for a file of a folder that is of no area; a file named on the command line must be of one."""
    data = parse(path)
    area = area_of(path, data)
    if area is None and is_named:
        raise ResultError(f'{path}: no "area" that has pictures; known are {", ".join(AREAS)}')
    return Result(area, path, data) if area else None


def read(places: list[str]) -> list[Result]:
    """The results in files and folders. Raises ResultError."""
    results = []
    for place in map(Path, places):
        if not place.exists():
            raise ResultError(f"{place}: no such file or folder")
        is_folder = place.is_dir()
        found = (read_file(path, is_named=not is_folder) for path in (sorted(place.glob("*.json")) if is_folder else [place]))
        results += [result for result in found if result is not None]
    if not results:
        raise ResultError(f"no results of an area (AREA.json) in {', '.join(places)}")
    return results
