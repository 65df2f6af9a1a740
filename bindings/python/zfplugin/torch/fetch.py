# SPDX-License-Identifier: Apache-2.0
"""fetch=True: the host goes on updating after step() returns, and forward pre-hooks wait for the parameters of their module.

Model: a trainer that sets it says: I read a weight in the forward of the module that holds it; before anything else I call
opt.synchronize(). A pre-hook on each module that owns parameters asks for them once per step: the update of a layer hides under the
forward of the layers before it. Until then a parameter shows what it showed before the step, whole; or of what is resident on several
processes the new values of this one's part. state_dict() of model and optimizer, exports and saves fetch everything first.

A hook may be silent: torch.compile traces it as nothing, or was there before it. So a module whose hook was silent in a step is fetched
when the next step ends: what is not seen to fetch does not overlap, and is as new.

What others wrote since the step is not fetched; the next step follows it. To look for that means to wait for the device;
on a stream (CUDA) one look tells of all modules that are fetched after it, until one of them is called again, and a forward whose
graph is kept does not look where nothing tells of a write (is_untouched() in parameters.py).

A graph that has read a parameter before its fetch would go backward through other values than it went forward, so version
counters move with the first fetch after a step, as they do with the step: autograd refuses such a graph.
"""
import weakref

import torch

from ..signals import whole
from .hooks import Hook, on_forward


class Fetcher:
    """Hooks of one model. They count from the constructor on; bind() says which parameters are the plugin's."""

    def __init__(self, model):
        self.instance = self.table = None
        self.modules = [weakref.ref(module) for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
        self.ids = [() for _ in self.modules]      # bound parameters of each module
        self.is_heard = [False] * len(self.modules)  # its hook ran since the last step
        self.is_fetched = [False] * len(self.modules)
        self.late = set()  # ids that were not fetched since the step
        self.edited = None  # ids that a look found, where one look serves several fetches; None: look again
        self.handles = [on_forward(ref(), Hook(self.before_forward, at)) for at, ref in enumerate(self.modules)]

    def bind(self, instance, table):
        numbers = {id(table.params[i]): i for i in table.ids}
        self.instance, self.table, self.late = instance, table, set()
        instance.before_rest = self.fetch_all
        self.ids = [tuple(numbers[id(p)] for p in ref().parameters(recurse=False) if id(p) in numbers)
                    if ref() is not None else () for ref in self.modules]
        self.waits_for_fetch = instance.stats().get("publish_lag", 0) == 0  # else values come with steps alone
        self.unhooked = set(table.ids).difference(*self.ids)

    def unbind(self):
        self.instance = self.table = None
        self.ids, self.unhooked = [()] * len(self.modules), set()

    @whole
    def before_forward(self, at, module, *_):
        if getattr(module, "_is_replica", False):
            return  # of DataParallel: a copy, made before; step() fetches for it
        self.is_heard[at] = True
        if self.is_fetched[at]:
            self.edited = None  # another pass began: others may have written in between
        if self.is_fetched[at] or not self.ids[at] or self.instance.is_closed:
            return
        self.is_fetched[at] = self.fetch(self.ids[at])

    def fetch(self, ids):
        """False: some were written by others, and stay as they are; or are in other memory, where a step follows."""
        if self.table.has_moved(ids):
            self.table.relocate()
        edited = self._look(ids)
        edited.update(i for i in ids if self.table.has_moved((i,)))
        ids = [i for i in ids if i not in edited]
        if ids:
            self.instance.fetch(ids)
            self._say_shown(ids)
        return not edited

    def _say_shown(self, ids):
        """These show the newest values now."""
        if self.late:
            owners = {self.table.owner(i) for i in ids}
            shown = [i for i in self.late if self.table.owner(i) in owners]
            self.late.difference_update(shown)
            self.table.say_written(shown)
            self.table.push(shown)

    def _look(self, ids):
        """Those of ids that others wrote."""
        if not self.instance.place.is_stream:
            # Compares contents on a device, where the mirror would be written over an edit that no version counter tells of.
            return set(self.table.find_edited([i for i in ids if not self.table.is_gone(i)], is_quick=not self.table.is_carried))
        if not self.edited and torch.is_grad_enabled() and self.table.is_untouched():
            return set()  # what is written all the same, the plugin leaves out
        if self.edited is None or self.edited:  # what was found may have been written back
            self.edited = set(self.table.find_edited([i for i in self.table.ids if not self.table.is_gone(i)]))
        return self.edited.intersection(ids)

    def fetch_all(self):
        """For a reader of weights elsewhere, and before the instance comes to rest, which brings all that is late. What others
        wrote is left as it is, and its masters have all updates."""
        table, self.edited = self.table, None
        if not self.late or self.instance.is_closed:
            return
        if table.has_moved(table.ids):
            table.relocate()
        if any(table.is_gone(i) for i in table.ids):
            return
        held = table.find_edited(table.ids, hold=True)
        kept = {} if table.told.has_digests else {i: table.aliases[i].clone() for i in held}  # nothing holds them then
        self.instance.fetch()
        for i, values in kept.items():
            table.aliases[i].copy_(values)
        self._say_shown([i for i in table.ids if i not in held])
        self.late.clear()
        if held:
            table.find_edited(held)  # lets go of them

    def end_step(self):
        """Fetches what no hook was heard for. Nothing was written since the step."""
        silent = self.unhooked.union(*(ids for ids, is_heard in zip(self.ids, self.is_heard) if not is_heard))
        n = len(self.modules)
        self.is_heard, self.is_fetched, self.edited = [False] * n, [False] * n, None
        if silent:
            self.instance.fetch(sorted(silent))
            self.table.push(silent)
        self.late = set(self.table.ids) - silent if self.waits_for_fetch else set()
