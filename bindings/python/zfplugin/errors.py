# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class per negative status of the ABI, with the plugin's own sentence as text.

Model: the plugin says what, where, have/need and what to do; the binding adds nothing but the class. Every class is a
ZfError and, where one fits, also the built-in exception that a Python user would expect. Attributes: status (the ABI's
number), scope ("call", "param", "instance", "process"), retryable (the same call can succeed later), native_code (errno
and the like), origin (who noticed), param (id of the one parameter that is to blame) and rank; None where there is no
such. A call that raised has changed nothing, unless scope is "instance": then the instance is over.
"""
import ctypes

from . import _abi

_SCOPES = {_abi.SCOPE_CALL: "call", _abi.SCOPE_PARAM: "param", _abi.SCOPE_INSTANCE: "instance",
           _abi.SCOPE_PROCESS: "process"}


class ZfError(RuntimeError):
    """Base of everything that this package raises on its own."""

    status = 0

    def __init__(self, message, *, status=None, scope="call", retryable=False, native_code=0, origin="zfplugin",
                 param=None, rank=None):
        super().__init__(message)
        self.status = type(self).status if status is None else status
        self.scope = scope
        self.retryable = retryable
        self.native_code = native_code
        self.origin = origin
        self.param = param
        self.rank = rank


def _error(name, status, *also):
    """A class of a status; also: the built-in exceptions that it is, too."""
    return type(name, (ZfError, *also), {"status": status, "__module__": __name__})


class LoadError(ZfError, ImportError):
    """The library cannot be used: file, symbol or table."""


ArgumentError = _error("ArgumentError", _abi.ERR_ARGUMENT, ValueError)
AbiError = _error("AbiError", _abi.ERR_ABI)
UnsupportedFieldError = _error("UnsupportedFieldError", _abi.ERR_UNSUPPORTED_FIELD)
StateError = _error("StateError", _abi.ERR_STATE)
ConfigError = _error("ConfigError", _abi.ERR_CONFIG, ValueError)
ParamError = _error("ParamError", _abi.ERR_PARAM, ValueError)
DtypeError = _error("DtypeError", _abi.ERR_DTYPE, TypeError)
ShapeError = _error("ShapeError", _abi.ERR_SHAPE, ValueError)
DeviceError = _error("DeviceError", _abi.ERR_DEVICE, ValueError)
OutOfMemoryError = _error("OutOfMemoryError", _abi.ERR_MEMORY, MemoryError)
OverwrittenError = _error("OverwrittenError", _abi.ERR_OVERWRITTEN)
NonfiniteError = _error("NonfiniteError", _abi.ERR_NONFINITE, ArithmeticError)
DeadlineError = _error("DeadlineError", _abi.ERR_TIMEOUT, TimeoutError)
PoisonedError = _error("PoisonedError", _abi.ERR_POISONED)
ForkedError = _error("ForkedError", _abi.ERR_FORKED)
BusyError = _error("BusyError", _abi.ERR_BUSY)
InternalError = _error("InternalError", _abi.ERR_INTERNAL)
StorageError = _error("StorageError", _abi.ERR_STORAGE, OSError)
CheckpointError = _error("CheckpointError", _abi.ERR_CHECKPOINT, ValueError)
CaptureError = _error("CaptureError", _abi.ERR_CAPTURE)  # a hook was called while the stream is being captured into a CUDA graph
RanksError = _error("RanksError", _abi.ERR_RANKS)  # the ranks do not do the same, or the transport between them failed
RuleError = _error("RuleError", _abi.ERR_RULE)  # the caller's own update rule failed; native_code is what it returned

CLASSES = {cls.status: cls for cls in ZfError.__subclasses__() if cls.status}


class GradientError(ParamError):
    """A step that cannot be right: no parameter has a gradient."""


def new_record():
    """An error record for a call; pass its address."""
    return _abi.Error(struct_size=ctypes.sizeof(_abi.Error))


def from_record(status, record, doing):
    """The exception for a negative status. doing: used where the plugin left no message."""
    text = record.message.decode("utf-8", "replace") or f"{doing}: status {status}, and the plugin gave no reason"
    cls = CLASSES.get(status, ZfError)
    return cls(text, status=status, scope=_SCOPES.get(record.scope, str(record.scope)),
               retryable=bool(record.retryable), native_code=record.native_code,
               origin=record.origin.decode("utf-8", "replace"), param=_number(record.param), rank=_number(record.rank))


def _number(given):
    return None if given == _abi.NO_ID else given
