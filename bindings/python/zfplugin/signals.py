# SPDX-License-Identifier: Apache-2.0
"""Signals that land while this package is at work: their handlers run when it is done.

Model: Python runs a signal's handler between any two lines of the main thread. One that saves (Lightning on SLURM's SIGUSR1) must not find
a step half made, and one that raises in a callback of the library raises nothing: ctypes prints it and goes on. So each call of the
optimizer, each of its hooks and each foreign call holds the handlers that are installed: another one stands in their place, notes the
signal, and at the end the noted ones are called, with what they were called with. Anywhere else handlers are the trainer's own, and what
they save is the state of the last finished step. Other threads are left alone: no handler runs there.

Cost: some microseconds of the outermost call, less than one of those within it.
"""
import _signal  # signal's own functions make an Enum of every answer: 50 microseconds a call
import functools
import threading

_SIGNALS = [getattr(_signal, name) for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGCONT", "SIGXCPU",
                                                "SIGRTMIN") if hasattr(_signal, name)]
_noted = []  # (handler, signal, frame) of what came while it was held
_depth = 0   # of calls within calls on the main thread: the outermost holds


class _Held:
    """In the place of a handler."""

    def __init__(self, handler):
        self.handler = handler

    def __call__(self, signum, frame):
        _noted.append((self.handler, signum, frame))


def call(function, *args, **kwargs):
    """function(*args, **kwargs), to whose end handlers are put off."""
    global _depth
    if _depth or threading.get_ident() != threading.main_thread().ident:
        return function(*args, **kwargs)
    held = {}
    for signum in _SIGNALS:
        handler = _signal.getsignal(signum)
        if callable(handler) and not isinstance(handler, _Held):
            held[signum] = _Held(handler)
            _signal.signal(signum, held[signum])
    _depth = 1
    try:
        return function(*args, **kwargs)
    finally:
        _depth = 0
        for signum, own in held.items():
            if _signal.getsignal(signum) is own:
                _signal.signal(signum, own.handler)
        while _noted:
            handler, signum, frame = _noted.pop(0)
            handler(signum, frame)


def whole(method):
    """A method that call() calls."""
    @functools.wraps(method)
    def called(*args, **kwargs):
        return call(method, *args, **kwargs)
    return called
