# SPDX-License-Identifier: Apache-2.0
"""Shared by callbacks for trainers: finding the optimizer inside of their wrappers, clipping in its place, and figures for their logs."""
import math
import sys

from .. import errors

_MIB = 1 << 20


def find(optimizer):
    """The ZenFlow inside of any number of wrappers (AcceleratedOptimizer, LightningOptimizer), or None."""
    from .optimizer import ZenFlow

    for _ in range(8):
        if isinstance(optimizer, ZenFlow):
            return optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def unwrap(optimizer):
    """As find(); raises where there is none."""
    found = find(optimizer)
    if found is None:
        raise errors.ArgumentError(f"there is no ZenFlow inside of this {type(optimizer).__name__}")
    return found


def say_resumed(optimizer, n_steps):
    """One line where a run goes on: in the log, or where nobody has set up logging, to stderr."""
    text = f"ZenFlow goes on after step {n_steps}, " + \
        (f"with the moments and counts that were saved; {optimizer.holdings()}" if optimizer.is_bound() else "without moments: no state was loaded")
    if optimizer.log.hasHandlers():
        optimizer.log.info("%s", text)
    else:
        print(text, file=sys.stderr)


class Clipping:
    """A trainer's clipping by norm, which the plugin does in its place: gradients stay as they were when they travelled, during backward,
    and each element is read once less. own: clip_norm that the optimizer was made with; the smaller one holds."""

    def __init__(self):
        self._own = {}    # {id of an optimizer: its own}
        self.taken = None  # the trainer's, between take() and give_back()

    def take(self, optimizer, most):
        """most: the trainer's, which is not to clip until give_back()."""
        own = self._own.setdefault(id(optimizer), optimizer.clip_norm or math.inf)
        self.taken = most
        optimizer.clip_norm = min(own, most)

    def give_back(self):
        """What the trainer had."""
        taken, self.taken = self.taken, None
        return taken


class Meter:
    """Figures since the last reading: what a step waited for, and what the plugin holds."""

    def __init__(self):
        self._before = {}

    def read(self, optimizer):
        """{name: number}; {} where the plugin has no statistics."""
        now = optimizer.stats()
        if not now:
            return {}

        def grown(*names):
            return sum(now[name] - self._before.get(name, 0) for name in names)

        n_steps = max(grown("steps"), 1)
        out = {"zenflow/stall_ms": 1e-6 * grown("stall_replay_ns", "stall_select_ns", "stall_pool_ns") / n_steps,
               "zenflow/host_wait_ms": 1e-6 * grown("host_wait_ns") / n_steps,
               "zenflow/replay_ms": 1e-6 * grown("replay_ns") / n_steps,
               "zenflow/host_mib": now["host_measured_nbytes"] / _MIB,
               "zenflow/lost_overlap_mib": grown("lost_overlap_nbytes") / _MIB,
               "zenflow/skipped_steps": now["steps_skipped"],
               "zenflow/update_interval": now["update_interval"],
               "zenflow/publish_lag": now["publish_lag"]}
        self._before = now
        return out
