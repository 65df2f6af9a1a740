# SPDX-License-Identifier: Apache-2.0
"""Finds, reads and checks results: JSON files that say their "area", or are named AREA.json or AREA-*.json.

A shape says what is read of an area's file. It is NUMBER (finite, or null where the area has no figure), TEXT, FLAG, [shape] for a
list, or {name: shape} for an object. A name that ends in "?" may be absent; what no shape names is not read.
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

NUMBER, TEXT, FLAG = "a number below 10^15, or null", "a text", "true or false"
MOST = 1e15

LINK = {name: NUMBER for name in ("down", "publish", "enter", "down_formula", "publish_formula")}
ARM = {"name": TEXT, "title?": TEXT, "metric": [NUMBER], "mean_losses": [NUMBER], "mean_difference?": NUMBER, "lower?": NUMBER,
       "upper?": NUMBER, "stall_us_per_step?": NUMBER, "link_bytes_per_step?": LINK}
MEASURED = {name: NUMBER for name in ("down", "up", "records", "enter", "state", "slots", "publish", "mapped", "stall_us")}
SETTING = {"update_interval": NUMBER, "publish_lag": NUMBER, "has_run": FLAG, "verdict": TEXT, "step_s?": NUMBER, "stall_share?": NUMBER,
           "lateness?": NUMBER}
BAR = {"worst": NUMBER}
AREAS = {
    "glue": {"task": TEXT, "metric?": TEXT, "is_synthetic?": FLAG, "parameters": NUMBER, "batch": NUMBER, "lr": NUMBER, "margin": NUMBER,
             "arms": [ARM]},
    "defaults": {"bars": {"fetches": BAR, "does not fetch": BAR},
                 "settings": [{"name": TEXT, "bar": TEXT, "mean": NUMBER, "cells": [{"mean": NUMBER}]}]},
    "perf": {"rows": [{"gradient": TEXT, "interval": NUMBER, "down_formula": NUMBER, "up_formula": NUMBER, "host_formula": NUMBER,
                       "measured": MEASURED}]},
    "tune": {"max_stall": NUMBER, "settings": [SETTING]},
}


class ResultError(Exception):
    """One line: file, place, what was found, what is needed."""


class Unfit(ValueError):
    """A document that is not of the shape its area needs: where, what was found, what is needed."""

    def __init__(self, place, found, needed):
        super().__init__(f"{place or 'the document'}: found {short(found)}; {needed} is needed")


@dataclass
class Result:
    area: str
    stem: str  # file name without .json; plots are named after it
    data: dict


# ---- shapes ----------------------------------------------------------------------------------------------------------

def short(value):
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def fits(value, shape):
    if shape is NUMBER:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value is None or (is_number and abs(value) < MOST)  # which neither infinity nor NaN is
    return isinstance(value, str if shape is TEXT else bool)


def check(value, shape, place=""):
    """Raises Unfit where value is not of this shape."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise Unfit(place, value, "a list")
        for i, item in enumerate(value):
            check(item, shape[0], f"{place}[{i}]")
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            raise Unfit(place, value, "an object")
        for name, inner in shape.items():
            key = name.rstrip("?")
            if key in value:
                check(value[key], inner, f"{place}.{key}" if place else key)
            elif name == key:
                raise Unfit(place, value, f'the member "{key}"')
    elif not fits(value, shape):
        raise Unfit(place, value, shape)


def check_area(area, data):
    """Raises Unfit where data is not what the area leaves."""
    check(data, AREAS[area])
    if area == "glue" and not data["arms"]:
        raise Unfit("arms", data["arms"], "AdamW's arm, which is the first,")


# ---- files -----------------------------------------------------------------------------------------------------------

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
        return said if isinstance(said, str) and said in AREAS else None
    return next((a for a in AREAS if path.stem == a or path.stem.startswith(a + "-")), None)


def read_file(path: Path, is_named: bool) -> Result | None:
    """None for a file of a folder that is of no area; a file named on the command line must be of one."""
    data = parse(path)
    area = area_of(path, data)
    if area is None:
        if is_named:
            raise ResultError(f'{path}: no "area" that has pictures; known are {", ".join(AREAS)}')
        return None
    try:
        check_area(area, data)
    except Unfit as error:
        raise ResultError(f"{path}: {error}") from None
    return Result(area, path.stem, data)


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
