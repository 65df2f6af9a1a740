# SPDX-License-Identifier: Apache-2.0
"""The device's memory, shared by turns with an engine that generates: release(), resume(), and weights on their way to it.

    with opt.released():            # ZenFlow(..., releasable=True)
        generate()

Model: what waits to be fetched comes first, so the model's weights are the newest. Then the plugin's memory on the device goes
back to the driver, and its contents to host memory that was planned when parameters were bound (zf/ext/residency.h). Model and
gradients are the trainer's. Before the first step there is nothing to release.
"""
import contextlib

import torch

from .. import errors
from ..signals import whole


class Residency:
    """A part of an optimizer with _binding, a Binding or None, and _instance, an Instance."""

    _is_released = _closes_at_resume = False  # a save while memory was released: the windows that it closes end with resume()

    @whole
    @torch.no_grad()
    def release(self, pinned=False):
        """Gives the plugin's device memory back to the driver until resume(). Between steps. Meanwhile save(), state_dict(), export(),
        stats() and close() work; step() and backward's deliveries are refused. pinned: host memory is no longer page-locked either, which
        takes seconds to undo. On several ranks each by itself."""
        if self._binding is not None:
            self._binding.fetch()
            self._instance.release(pinned)
            self._is_released = True

    @whole
    def resume(self):
        """Takes the memory again, with what was in it. Where there is no room, even without torch's cache: OutOfMemoryError, and all is
        released as before."""
        if self._binding is None:
            return
        try:
            self._instance.resume()
        except errors.OutOfMemoryError:
            if not self._instance.place.is_stream:
                raise
            self._instance.place.give_back()
            self._instance.resume()
        self._is_released = False
        if self._closes_at_resume:
            self._closes_at_resume = False
            self.flush()

    @contextlib.contextmanager
    def released(self, pinned=False):
        """Context manager: released within it, where the optimizer may be closed."""
        self.release(pinned)
        try:
            yield
        finally:
            if not self._instance.is_closed:
                self.resume()

    def refit(self):
        """(name, parameter) of all that is trained, for an engine that takes the weights over: each is fetched, and given once its value is
        the newest, while the host's threads compute those behind it. In the order of the groups, which is that of the computation."""
        binding = self._bound("refit")
        for i in binding.fetch_each():
            yield binding.table.names[i], binding.table.params[i]
