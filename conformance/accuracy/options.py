# SPDX-License-Identifier: Apache-2.0
"""A command line of "--name value" pairs from a table with one row per option, as every area of zf-conform has it (option_table.h).

An option that the table lacks, a value that is missing or out of range, and an option given twice are refused with one line that names
the option, what was found and what is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import textwrap

from .runs import CannotRun

WIDTH, COLUMN = 140, 28


class Unfit(ValueError):
    """A value that is not taken: what is needed instead."""


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1 or len(text) > 9:
        raise Unfit("a whole number from 1")
    return int(text)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e6:
        raise Unfit("a number above 0, below 10^6")
    return value


def real(text: str) -> str:
    """A positive number as it was written: it goes into names and command lines."""
    positive(text)
    return text


def override(text: str) -> str:
    name, _, value = text.partition("=")
    if "." not in name or not value:
        raise Unfit("section.key=value")
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

    @property
    def member(self) -> str:
        return self.name.replace("-", "_")

    def value(self, text: str):
        if self.choices and text not in self.choices:
            raise CannotRun(f'--{self.name}: found "{text[:60]}"; {" or ".join(self.choices)} is needed')
        try:
            return self.parse(text)
        except Unfit as needed:
            raise CannotRun(f'--{self.name}: found "{text[:60]}"; {needed} is needed') from None


HELP = Option("help", None, "this text")


def parse(table, argv) -> argparse.Namespace:
    """The values by their members' names, and "given": the options that were there."""
    known = {"--" + option.name: option for option in (*table, HELP)}
    out = argparse.Namespace(given=set(), **{o.member: [] if o.repeats else o.default if o.argument else False for o in known.values()})
    words = list(argv)
    while words:
        word = words.pop(0)
        option = known.get(word)
        if option is None:
            raise CannotRun(f'found "{word[:60]}"; an option is needed, --help lists them')
        if option.name in out.given and not option.repeats:
            raise CannotRun(f"{word}: given twice; once is needed")
        out.given.add(option.name)
        if option.argument is None:
            setattr(out, option.member, True)
            continue
        if not words:
            raise CannotRun(f"{word}: nothing follows; {option.argument} is needed")
        value = option.value(words.pop(0))
        setattr(out, option.member, [*getattr(out, option.member), value] if option.repeats else value)
    return out


def refuse_others(table, args, trainer: str) -> None:
    """Refuses an option that another trainer knows and this one does not."""
    for option in table:
        if option.name in args.given and option.of not in ("", trainer):
            raise CannotRun(f"--{option.name} is for --trainer {option.of}; found --trainer {trainer}")


def help_text(head: str, table, end: str) -> str:
    lines = [head]
    for option in (*table, HELP):
        name = f"  --{option.name} {option.argument or ''}".rstrip()
        what = option.what + (f" (--trainer {option.of} only)" if option.of else "")
        first, *more = textwrap.wrap(what, WIDTH - COLUMN)
        lines.append(f"{name:<{COLUMN - 1}} {first}")
        lines += [" " * COLUMN + line for line in more]
    return "\n".join([*lines, end])
