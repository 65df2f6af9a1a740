# SPDX-License-Identifier: Apache-2.0
"""Hooks on modules of a model that call into an optimizer; and what torch.compile is to leave alone."""
import contextlib
import weakref

import torch


def is_compiling():
    return torch.compiler.is_compiling()


def outside_of_graphs(function):
    """A function that torch.compile does not look into."""
    disable = getattr(torch, "_disable_dynamo", None)  # torch.compiler.disable imports the compiler at once
    return disable(function) if disable is not None else function


def with_versions(function):
    """A function whose tensors are no inference tensors, whatever its caller is in: they have version counters, and no graph."""
    return torch.inference_mode(False)(torch.no_grad()(function))


def on_forward(module, hook):
    """Registers it before the hooks that are there already: those of weight_norm, spectral_norm and pruning read parameters."""
    return module.register_forward_pre_hook(hook, prepend=True)


class Hook:
    """Calls a bound method as long as its object lives, with args and what torch passes. A copy of the model, pickled or not,
    is another model: its hooks do nothing, and need nothing of this package. on_copy: a bound method that is called when one is made."""

    def __init__(self, method, *args, on_copy=None):
        self.method, self.args = weakref.WeakMethod(method), args
        self.on_copy = weakref.WeakMethod(on_copy) if on_copy is not None else lambda: None

    @property
    def __name__(self):
        raise AttributeError("this model has an optimizer's hooks, which torch.jit.script cannot compile: script it before, or close() the optimizer")

    def __call__(self, *passed):
        if is_compiling():
            return
        method = self.method()
        if method is not None:
            method(*self.args, *passed)

    def __reduce__(self):
        say = self.on_copy()
        if say is not None:
            say()
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes anything, does nothing
