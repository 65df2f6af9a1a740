# SPDX-License-Identifier: Apache-2.0
"""Which parameters are read before the forward of the module that holds them? A TorchFunctionMode that begins with step() tells.

Model: while a watch is on, every function of torch is seen with its arguments. A parameter among them, none of whose modules has been
called since the step, is read early. Until the first module of the model is called these are reads of the trainer, who averages, merges,
prunes, copies or saves, or adds a penalty: what is read then is fetched before the function sees it (on_read). After that they are reads
of a model that uses a weight elsewhere; to watch for them costs some microseconds per function, so only some watches, the looks, go on
until the next step. What reads no values (shapes, gradients, counters) does not count, nor does a state_dict(), which is given the final
values anyway.

A mode stands on a stack of its thread. The watch begins only where nobody else's stands there, so that no context that is open around
step() takes it off in place of its own; it finds itself below others that were opened since. A compiled graph would be made
anew for it: where torch.compile is in use there is no watch. Where there is none step() waits for all values (fetch.py).

What lies in a parameter's memory is that parameter, too, until the model's forward begins: .data that was taken before, a view, one
buffer under all of them.
"""
import sys
import threading

import torch
from torch.overrides import TorchFunctionMode

from .hooks import is_compiling

_NO_READS = {"size", "numel", "nelement", "element_size", "dim", "ndimension", "stride", "storage_offset", "is_contiguous", "is_floating_point",
             "is_complex", "is_inference", "is_neg", "is_conj", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_",
             "retain_grad", "is_shared", "get_device", "__hash__", "__len__", "__set__",
             "__delete__", "is_same_size", "has_names", "is_pinned", "is_tensor", "is_storage", "result_type", "__repr__", "__format__"}
_ADDRESSES = {"data_ptr", "untyped_storage", "storage"}  # who asks for one reads the memory behind it
_WRITES = {"copy_", "zero_", "fill_", "normal_", "uniform_", "set_"}
_READING_ATTRIBUTES = {"data", "T", "mT", "H", "mH", "real", "imag"}


def _reads(function, args, kwargs):
    name = getattr(function, "__name__", "")
    if name == "type":
        return len(args) > 1 or bool(kwargs)  # else it is asked for
    if name == "__get__":
        return getattr(getattr(function, "__self__", None), "__name__", "") in _READING_ATTRIBUTES
    return name not in _NO_READS and (name not in _ADDRESSES or not _is_own())


class _Mode(TorchFunctionMode):
    """params: {id(parameter): (its number, numbers of the modules that hold it)}; storages: {address: [ids of the parameters in it]}.
    is_called: of modules. on_read: takes the numbers of parameters that are about to be read, until the first module is called. found:
    {number: function} since then."""

    def __init__(self, params, storages, is_called, on_read):
        super().__init__()
        self.params, self.storages, self.is_called, self.on_read = params, storages, is_called, on_read
        self.found, self.is_over, self.depth = {}, False, 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if not self.is_over and self.depth <= 0 and not is_compiling() and _reads(function, args, kwargs):
            is_write = getattr(function, "__name__", "") in _WRITES
            read = self._look((*args[is_write:], *(kwargs or {}).values()), [])
            if read and self.on_read is not None:
                self.on_read(read)
            for number in read if self.on_read is None else ():
                self.found.setdefault(number, _name_of(function))
        return function(*args, **(kwargs or {}))

    def _look(self, values, out):
        for value in values:
            if isinstance(value, (list, tuple)):
                self._look(value, out)
            elif isinstance(value, torch.Tensor):
                for key in (id(value),) if id(value) in self.params else self._in_memory_of(value):
                    number, modules = self.params[key]
                    if not any(self.is_called[at] for at in modules):
                        out.append(number)
        return out

    def _in_memory_of(self, tensor):
        found = self.storages.get(storage_of(tensor), ()) if self.on_read is not None else ()
        return () if found and _is_own() else found


def _is_own():
    """Whether this package itself calls the function: it knows what it does with the memory of parameters."""
    frame, name = sys._getframe(1), __name__
    while frame is not None and (name == __name__ or name.partition(".")[0] == "torch"):
        frame, name = frame.f_back, frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == __name__.partition(".")[0]


def storage_of(tensor):
    """The address of the memory that it is a part of, or None: it has none."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse, functorch's, fake
        return None


def _name_of(function):
    name = getattr(function, "__name__", str(function))
    return f".{function.__self__.__name__}" if name == "__get__" else name


def _modes():
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def _is_free():
    """Whether nobody's mode is on the stack, but for other optimizers' and the one of torch.set_default_device(), which keeps to its bottom."""
    device = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return all(mode is device or isinstance(mode, _Mode) for mode in _modes())


class Watch:
    """At most one at a time."""

    def __init__(self):
        self._mode = self._thread = None

    def begin(self, *args):
        """Whether it could. args: of _Mode."""
        self.remove()
        if self._mode is not None or not hasattr(torch._C, "_get_function_stack_at") or not _is_free() or _has_compiled():
            return False
        self._mode, self._thread = _Mode(*args), threading.get_ident()
        self._mode.__enter__()
        return True

    def say_forward(self, is_look):
        """The first module is called. is_look: the watch goes on."""
        if self._mode is not None and self._mode.on_read is not None:
            self._mode.on_read = None
            if not is_look:
                self.remove()

    def is_serving(self):
        """Whether what this thread reads now is fetched before."""
        mode = self._mode
        return mode is not None and mode.on_read is not None and mode.depth <= 0 and self._thread == threading.get_ident()

    def pause(self, depth):
        """Nothing counts while the depths add up to more than 0."""
        if self._mode is not None:
            self._mode.depth += depth

    def end(self):
        """{number of a parameter: name of the function that read it first}. Where none of its modules was called at all it comes
        with every step anyway."""
        mode = self._mode
        self.remove()
        if mode is None:
            return {}
        return {number: mode.found[number] for number, modules in mode.params.values()
                if number in mode.found and any(mode.is_called[at] for at in modules)}

    def remove(self):
        """Takes it off its thread's stack; on another thread it only ends, and is taken off later."""
        mode = self._mode
        if mode is None:
            return
        mode.is_over = True
        if self._thread != threading.get_ident():
            return
        above = []
        while mode in _modes():
            above.append(torch._C._pop_torch_function_stack())
        for other in reversed(above[:-1]):
            torch._C._push_on_torch_function_stack(other)
        self._mode = None


def _has_compiled():
    """Whether this process has compiled anything: torch.compile's own module counts what it does."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and any(utils.counters.values())
