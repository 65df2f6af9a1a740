# SPDX-License-Identifier: Apache-2.0
"""What the commands of zf that are written in Python share: words on a terminal, options, files, and asking zf itself."""
import argparse
import contextlib
import math
import os
import re
import stat
import subprocess
import sys


class Failed(Exception):
    """It makes no sense to go on; the message says why."""


def printable(text):
    """Control characters, which a terminal would obey, as \\xNN."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def say(text):
    print(f"zf: {printable(text)}", file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    """Exit status 2 where a command was called wrongly."""

    def __init__(self, command, arguments):
        super().__init__(prog=command, add_help=False, allow_abbrev=False)
        self.arguments = arguments

    def error(self, message):
        message = re.sub("^argument (--[^:]*): ", r"\1 ", message)
        say(f"{self.prog}: {message}")
        print(f"usage: zf {self.prog} {self.arguments}\nzf {self.prog} --help says more", file=sys.stderr)
        sys.exit(2)


def number(least, most):
    def convert(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: need a number from {least:g} to {most:g}")
        return value
    return convert


def read_file(path, most_nbytes, is_cut=False):
    """The bytes of a regular file; nothing waits for another one. is_cut: the first ones are enough."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise Failed(f"{path}: is not a regular file")
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            out = file.read(most_nbytes + 1)
    except OSError as error:
        raise Failed(f"{path}: cannot open: {error.strerror}") from None
    if len(out) > most_nbytes and not is_cut:
        raise Failed(f"{path}: has more than {most_nbytes} bytes")
    return out[:most_nbytes]


def ask_zf(*arguments, **given):
    """What `zf` prints."""
    done = subprocess.run([os.environ.get("ZF_COMMAND", "zf"), *arguments], capture_output=True, text=True, **given)
    if done.returncode != 0:
        raise Failed(done.stderr.strip().removeprefix("zf: ").replace("\n", "; "))
    return done.stdout


@contextlib.contextmanager
def progress(what):
    """A line that says what is done, on a terminal alone."""
    if sys.stderr.isatty():
        print(f"\r\033[Kzf: {printable(what)} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
