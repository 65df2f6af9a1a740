# SPDX-License-Identifier: Apache-2.0
"""Shared by the commands of zf that are written in Python: words on a terminal, options, files, and asking zf itself."""
import argparse
import atexit
import contextlib
import functools
import math
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time


class Failed(Exception):
    """It makes no sense to go on; the message says why."""


def printable(text):
    """Control characters, which a terminal would obey, as \\xNN."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def say(text):
    print(f"zf: {printable(text)}", file=sys.stderr, flush=True)


def command(failed=1):
    """Runs main(): what fails is said, and this is the exit status. Where nobody reads on, it ends as a program in C does."""
    def decorate(main):
        @functools.wraps(main)
        def run():
            sys.stdout.reconfigure(errors="backslashreplace")  # characters that the terminal lacks
            try:
                status = main()
                sys.stdout.flush()
                return status
            except BrokenPipeError:
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                signal.raise_signal(signal.SIGPIPE)
            except Failed as failure:
                say(str(failure))
            except OSError as failure:
                say(f"{failure.filename}: {failure.strerror}" if failure.filename else str(failure.strerror))
            return failed
        return run
    return decorate


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
    """A whole one where `most` is."""
    def convert(text):
        try:
            value = type(most)(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: need a {'whole ' * isinstance(most, int)}number from {least:g} to {most:g}")
        return value
    return convert


def read_file(path, most_nbytes, is_cut=False, flags=0):
    """The bytes of a regular file; nothing waits for another one. is_cut: the first ones are enough. flags: more of open()."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise Failed(f"{path}: is not a regular file")
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags), "rb") as file:
            out = file.read(most_nbytes + 1)
    except OSError as error:
        raise Failed(f"{path}: cannot open: {error.strerror}") from None
    if len(out) > most_nbytes and not is_cut:
        raise Failed(f"{path}: has more than {most_nbytes} bytes")
    return out[:most_nbytes]


def check_place(path):
    """Nothing is written through a link, and nothing but a regular file is replaced. The mode of what is there, or of a new file."""
    if not os.path.lexists(path):
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode):
        raise Failed(f"{path}: is not a regular file, and nothing else is replaced: name another file")
    return stat.S_IMODE(mode)


@contextlib.contextmanager
def replacing(path):
    """A file, in bytes, that takes the path's place when it is whole, on the disk. Where something is raised it leaves nothing."""
    mode = check_place(path)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=os.path.basename(path) + ".")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        check_place(path)  # again: time has passed
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def command_of_zf():
    return os.environ.get("ZF_COMMAND", "zf")


def ask_zf(*arguments, stdout=subprocess.PIPE, **given):
    """The output of `zf`; None where that goes to a file."""
    done = subprocess.run([command_of_zf(), *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, errors="replace", **given)
    if done.returncode != 0:
        raise _failed(done.stderr)
    return done.stdout


def _failed(said):
    return Failed(said.strip().removeprefix("zf: ").replace("\n", "; "))


class Asked:
    """`zf`, which answers line by line, as long as it does not fail; what was asked before is not asked again."""

    def __init__(self, *arguments):
        self.arguments, self.process, self.answers = arguments, None, {}

    def __call__(self, line):
        if line not in self.answers:
            self.answers[line] = self.ask(line)
        return self.answers[line]

    def ask(self, line):
        if self.process is None:
            self.said = tempfile.TemporaryFile("w+", errors="replace")
            self.process = subprocess.Popen([command_of_zf(), *self.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True)
            atexit.register(self.process.communicate)  # it ends with what it reads
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self.process.stdin, flush=True)
        found = self.process.stdout.readline()
        if not found:
            atexit.unregister(self.process.communicate)
            self.process.communicate()
            self.process = None
            self.said.seek(0)
            raise _failed(self.said.read())
        return found


class Progress:
    """A line that says what is done and for how long, on a terminal alone; a thread writes it again twice a second."""

    def __init__(self, what):
        self.what, self.is_terminal, self.ending = printable(what), sys.stderr.isatty(), threading.Event()

    def __enter__(self):
        self.began = time.monotonic()
        if self.is_terminal:
            self.thread = threading.Thread(target=self.show, daemon=True)
            self.thread.start()

    def __exit__(self, *_):
        self.ending.set()
        if self.is_terminal:
            self.thread.join()
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def show(self):
        while True:
            seconds = time.monotonic() - self.began
            print(f"\r\033[Kzf: {self.what} ... {seconds:.0f} s", end="", file=sys.stderr, flush=True)
            if self.ending.wait(0.5):
                return
