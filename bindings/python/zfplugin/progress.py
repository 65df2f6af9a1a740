# SPDX-License-Identifier: Apache-2.0
"""One line on standard error that says what a program is doing, how far it is and for how long, where standard error is a terminal;
elsewhere nothing.

    with progress.Line("report") as line:
        line.show("drawing glue", 3, 12)     # report: drawing glue, 3 of 12 ... 4 s, about 9 s left
        line.say("a line of its own")        # printed in either case

A thread writes it again every half second, so that it goes on while something else works."""
from __future__ import annotations

import sys
import threading
import time


LONG = 2.0  # seconds; work that is over by then needs no line
PERIOD = 0.5  # seconds; between two writes of a line


class Line:
    """after: seconds of work until the line appears."""

    def __init__(self, program: str, stream=None, after: float = 0.0):
        self.program, self.stream, self.after = program, stream or sys.stderr, after
        self.is_on, self.is_shown = self.stream.isatty(), False
        self.lock, self.ending = threading.Lock(), threading.Event()
        self.text = None  # what, how many of how many of which unit, or None: nothing is shown
        self.began = self.written = 0.0
        self.thread = None

    def __enter__(self):
        if self.is_on:
            self.thread = threading.Thread(target=self._keep_showing, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        if self.thread is not None:
            self.thread.join()
        self.clear()

    def show(self, what: str, n_done: int = 0, n_all: int = 0, unit: str = "") -> None:
        """The work of now; n_all = 0: unknown. Time counts from the first call on."""
        with self.lock:
            now = time.monotonic()
            self.began = self.began or now
            is_new = self.text is None or self.text[0] != what
            self.text = (what, n_done, n_all, unit)
            if is_new or now - self.written > 0.1:
                self._write()

    def say(self, line: str) -> None:
        """Prints a line of its own above."""
        with self.lock:
            shown = self.text
            self._clear()
            print(line, file=self.stream, flush=True)
            self.text = shown
            self._write()

    def clear(self) -> None:
        """Takes the line away until the next show(): something else is printed."""
        with self.lock:
            self._clear()

    def _keep_showing(self) -> None:
        while not self.ending.wait(PERIOD):
            with self.lock:
                self._write()

    def _clear(self) -> None:
        if self.is_shown:
            self.stream.write("\r\033[K")
            self.stream.flush()
        self.text, self.is_shown = None, False

    def _write(self) -> None:
        elapsed = time.monotonic() - self.began
        if not self.is_on or self.text is None or elapsed < self.after:
            return
        what, n_done, n_all, unit = self.text
        count = f", {n_done} of {n_all}{unit}" if n_all else ""
        left = f", about {elapsed / n_done * (n_all - n_done):.0f} s left" if 0 < n_done < n_all else ""
        self.written, self.is_shown = time.monotonic(), True
        self.stream.write(f"\r\033[K{self.program}: {what}{count} ... {elapsed:.0f} s{left}")
        self.stream.flush()
