# SPDX-License-Identifier: Apache-2.0
"""Waiting for parameters where they are read: forward pre-hooks, for fetch=True.

Model: with the FETCH capability updates go on after step() has returned, so whoever reads a parameter waits for it
first. A pre-hook on each module that owns parameters does, once per step. A hook may be silent: torch.compile traces it
as nothing, or was there before it; a module may be called another way. So a module whose hook was silent in a step is
waited for when the next step ends: what is not seen to wait does not overlap, and stays right.
"""
import weakref

from .hooks import Hook


class Fetcher:
    """Hooks of one model. They count from the constructor on; bind() says which parameters are the plugin's."""

    def __init__(self, model):
        self.instance = self.table = None
        self.modules = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
        self.modules = [weakref.ref(module) for module in self.modules]
        self.ids = [() for _ in self.modules]      # bound parameters of each module
        self.is_heard = [False] * len(self.modules)  # its hook ran since the last step
        self.is_fetched = [False] * len(self.modules)
        self.handles = [ref().register_forward_pre_hook(Hook(self.before_forward, at)) for at, ref in enumerate(self.modules)]
        if hasattr(model, "register_state_dict_pre_hook"):
            self.handles.append(model.register_state_dict_pre_hook(Hook(self.fetch_all)))

    def bind(self, instance, table):
        numbers = {id(p): i for i, p in enumerate(table.params)}
        self.instance, self.table = instance, table
        self.ids = [tuple(numbers[id(p)] for p in ref().parameters(recurse=False) if id(p) in numbers)
                    if ref() is not None else () for ref in self.modules]
        hooked = {i for ids in self.ids for i in ids}
        self.unhooked = [i for i in range(len(table.params)) if i not in hooked]

    def unbind(self):
        self.instance = self.table = None
        self.ids, self.unhooked = [()] * len(self.modules), []

    def before_forward(self, at, *_):
        self.is_heard[at] = True
        if self.is_fetched[at] or not self.ids[at] or self.instance.is_closed:
            return
        self.is_fetched[at] = True
        self._fetch(self.ids[at])

    def _fetch(self, ids):
        self.instance.fetch(ids)
        self.table.look(ids)

    def fetch_all(self, *_):
        if self.instance is not None and not self.instance.is_closed:
            self._fetch(list(self.table.seen))

    def end_step(self):
        """Waits for what no hook was heard for."""
        silent = list(self.unhooked)
        for ids, is_heard in zip(self.ids, self.is_heard):
            if not is_heard:
                silent += ids
        if silent:
            self._fetch(silent)
        n = len(self.modules)
        self.is_heard, self.is_fetched = [False] * n, [False] * n
