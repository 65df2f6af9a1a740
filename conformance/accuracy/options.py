# SPDX-License-Identifier: Apache-2.0
"""The command line of an area from a table with one row per option, by argparse.

An option that the table lacks and a value that is missing or out of range are refused with one line (CannotRun).
"""

from __future__ import annotations

import argparse
import dataclasses
import math

from .runs import CannotRun


def unfit(text: str, needed: str):
    return argparse.ArgumentTypeError(f'found "{text[:60]}"; {needed} is needed')


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1 or len(text) > 9:
        raise unfit(text, "a whole number from 1")
    return int(text)


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def positive(text: str) -> float:
    if not 0 < number(text) < 1e6:
        raise unfit(text, "a number above 0, below 10^6")
    return float(text)


def probability(text: str) -> str:
    if not 0 <= number(text) < 1:
        raise unfit(text, "a number of at least 0, below 1")
    return text


def real(text: str) -> str:
    """A positive number as it was written: it goes into names and command lines."""
    positive(text)
    return text


def override(text: str) -> str:
    name, _, value = text.partition("=")
    if "." not in name or not value:
        raise unfit(text, "section.key=value")
    return text


@dataclasses.dataclass(frozen=True)
class Option:
    name: str
    argument: str | None  # in the help; None: a switch
    what: str
    parse: object = str
    choices: tuple = ()
    default: object = None
    repeats: bool = False  # a list of all values
    of: str = ""  # the trainer that knows it; "": every one


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise CannotRun(message)


def parse(head: str, table, end: str, argv) -> argparse.Namespace:
    """The values by their options' names. --help prints the table and ends the program."""
    parser = Parser(prog=head.partition(" - ")[0], description=head, epilog=end, allow_abbrev=False, usage=argparse.SUPPRESS)
    for o in table:
        what = (o.what + (f" (--trainer {o.of} only)" if o.of else "")).replace("%", "%%")
        if o.argument is None:
            parser.add_argument("--" + o.name, action="store_true", help=what)
        elif o.repeats:
            parser.add_argument("--" + o.name, action="append", default=[], metavar=o.argument, type=o.parse, help=what)
        else:
            parser.add_argument("--" + o.name, default=o.default, metavar=o.argument, type=o.parse, choices=o.choices or None, help=what)
    return parser.parse_args(argv)


def refuse_others(table, args, trainer: str) -> None:
    """Refuses an option that another trainer knows and this one does not; none of these has a default."""
    for option in table:
        if option.of not in ("", trainer) and getattr(args, option.name.replace("-", "_")):
            raise CannotRun(f"--{option.name} is for --trainer {option.of}; found --trainer {trainer}")
