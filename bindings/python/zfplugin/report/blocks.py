# SPDX-License-Identifier: Apache-2.0
"""What a section of the page is made of, and how numbers are written for a reader."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Callable

NARROW = "\u202f"  # between thousands


@dataclass
class Text:
    text: str
    is_strong: bool = False


@dataclass
class Verdict:
    """PASS, FAIL or another word, as a table's cell; coloured, and readable without colour."""
    word: str
    before: str = ""
    after: str = ""


@dataclass
class Head:
    """A row of a table that names those below it."""
    text: str


@dataclass
class Table:
    """heads: those that begin with ">" stand over numbers. A row is a list of cells (text, Verdict, list of texts) or a Head."""
    heads: list[str]
    rows: list
    is_folded: bool = False
    title: str = ""


@dataclass
class Figure:
    """name: what its file is called after the result's; "" for the plot that stands for the whole."""
    name: str
    title: str
    note: str
    draw: Callable


@dataclass
class Section:
    summary: str
    blocks: list = field(default_factory=list)

    def figures(self):
        return [b for b in self.blocks if isinstance(b, Figure)]


def value(number, scale=1.0):
    """A number to compute with: nan for null and for what is absent."""
    return math.nan if number is None else scale * number


def fixed(number, n_decimals):
    """With thin spaces between thousands; "-" where there is none."""
    number = value(number)
    if not math.isfinite(number):
        return "-"
    text = f"{number:,.{n_decimals}f}" if abs(number) >= 1e4 else f"{number:.{n_decimals}f}"
    return text.replace(",", NARROW)


def signed(number, n_decimals, unit=""):
    number = value(number)
    return "-" if not math.isfinite(number) else f"{'' if number < 0 else '+'}{fixed(number, n_decimals)}{unit}"


def percent(ratio, n_decimals=1):
    """How much a ratio lies above one."""
    return signed(100.0 * (value(ratio) - 1.0), n_decimals, " %")


def number(x):
    """Few digits: "0.2711", "12.35", "4 346 275", "1e-07"."""
    x = value(x)
    if not math.isfinite(x):
        return "-"
    if x == int(x) and abs(x) < 1e15:
        return fixed(x, 0)
    return f"{x:.4g}" if abs(x) < 1000 else fixed(x, 0)


def source(data):
    """What trained on what, as a sentence."""
    if data.get("is_synthetic"):
        files = "a SYNTHETIC corpus (generated; says nothing about GLUE)"
    else:
        files = f"official files (train sha256 {data.get('sha256', {}).get('train', '?')[:8]})"
    encoder = data.get("encoder_sha256", "")
    start = f"pretrained encoder (sha256 {encoder[:8]})" if encoder else "encoder from scratch"
    is_one_rate = data.get("lr") is not None and "levels" not in data
    rate = f", peak learning rate {data['lr']:g}" if is_one_rate else ""
    return Text(f"Task {data['task']}, {files}: {start}, {fixed(data['parameters'], 0)} parameters in {data.get('dtype', '?')}, "
                f"{fixed(data['steps'], 0)} steps of {fixed(data['batch'], 0)} rows{rate}.")
