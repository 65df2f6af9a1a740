"""Waiting for parameters where they are read: forward pre-hooks, for fetch=True.

Model: with the FETCH capability updates go on after step() has returned, so whoever reads a parameter waits for it
first. A pre-hook on each module that owns parameters does, once per step. A hook may be silent: torch.compile traces it
as nothing, or was there before it; a module may be called another way. So a module whose hook was silent in a step is
waited for when the next step ends: what is not seen to wait does not overlap, and stays right.
"""
import weakref

import torch


def _is_compiling():
    return hasattr(torch, "compiler") and torch.compiler.is_compiling()


class Fetcher:
    """Hooks of one model. They count from the constructor on; bind() says which parameters are the plugin's."""

    def __init__(self, model):
        self.instance = None
        self.modules = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
        self.modules = [weakref.ref(module) for module in self.modules]
        self.ids = [() for _ in self.modules]      # bound parameters of each module
        self.is_heard = [False] * len(self.modules)  # its hook ran since the last step
        self.is_fetched = [False] * len(self.modules)
        self.handles = [ref().register_forward_pre_hook(self._make_hook(at)) for at, ref in enumerate(self.modules)]
        if hasattr(model, "register_state_dict_pre_hook"):
            this = weakref.ref(self)
            self.handles.append(model.register_state_dict_pre_hook(
                lambda *_: this().fetch_all() if this() is not None else None))

    def _make_hook(self, at):
        this = weakref.ref(self)

        def hook(_module, _args):
            if not _is_compiling():
                fetcher = this()
                if fetcher is not None:
                    fetcher.before_forward(at)

        return hook

    def bind(self, instance, table):
        numbers = {id(p): i for i, p in enumerate(table.params)}
        self.instance = instance
        self.ids = [tuple(numbers[id(p)] for p in ref().parameters(recurse=False) if id(p) in numbers)
                    if ref() is not None else () for ref in self.modules]
        hooked = {i for ids in self.ids for i in ids}
        self.unhooked = [i for i in range(len(table.params)) if i not in hooked]

    def before_forward(self, at):
        self.is_heard[at] = True
        if self.is_fetched[at] or not self.ids[at] or self.instance.is_closed:
            return
        self.is_fetched[at] = True
        self.instance.fetch(self.ids[at])

    def fetch_all(self):
        if self.instance is not None and not self.instance.is_closed:
            self.instance.fetch()

    def end_step(self):
        """Waits for what no hook was heard for."""
        silent = list(self.unhooked)
        for ids, is_heard in zip(self.ids, self.is_heard):
            if not is_heard:
                silent += ids
        if silent:
            self.instance.fetch(silent)
        n = len(self.modules)
        self.is_heard, self.is_fetched = [False] * n, [False] * n
