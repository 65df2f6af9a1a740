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


class LoadError(ZfError, ImportError):
    """The library cannot be used: file, symbol or table."""


class ArgumentError(ZfError, ValueError):
    status = _abi.ERR_ARGUMENT


class AbiError(ZfError):
    status = _abi.ERR_ABI


class UnsupportedFieldError(ZfError):
    status = _abi.ERR_UNSUPPORTED_FIELD


class StateError(ZfError):
    status = _abi.ERR_STATE


class ConfigError(ZfError, ValueError):
    status = _abi.ERR_CONFIG


class ParamError(ZfError, ValueError):
    status = _abi.ERR_PARAM


class DtypeError(ZfError, TypeError):
    status = _abi.ERR_DTYPE


class ShapeError(ZfError, ValueError):
    status = _abi.ERR_SHAPE


class DeviceError(ZfError, ValueError):
    status = _abi.ERR_DEVICE


class OutOfMemoryError(ZfError, MemoryError):
    status = _abi.ERR_MEMORY


class OverwrittenError(ZfError):
    status = _abi.ERR_OVERWRITTEN


class NonfiniteError(ZfError, ArithmeticError):
    status = _abi.ERR_NONFINITE


class DeadlineError(ZfError, TimeoutError):
    status = _abi.ERR_TIMEOUT


class PoisonedError(ZfError):
    status = _abi.ERR_POISONED


class ForkedError(ZfError):
    status = _abi.ERR_FORKED


class BusyError(ZfError):
    status = _abi.ERR_BUSY


class InternalError(ZfError):
    status = _abi.ERR_INTERNAL


class StorageError(ZfError, OSError):
    status = _abi.ERR_STORAGE


class CheckpointError(ZfError, ValueError):
    status = _abi.ERR_CHECKPOINT


class CaptureError(ZfError):
    """A hook was called while the stream is being captured into a CUDA graph."""
    status = _abi.ERR_CAPTURE


class RanksError(ZfError):
    """The ranks of a job do not do the same, or the transport between them failed."""
    status = _abi.ERR_RANKS


class RuleError(ZfError):
    """The caller's own update rule failed; native_code is what it returned."""
    status = _abi.ERR_RULE


class GradientError(ParamError):
    """A step that cannot be right: no parameter has a gradient."""


CLASSES = {cls.status: cls for cls in (
    ArgumentError, AbiError, UnsupportedFieldError, StateError, ConfigError, ParamError, DtypeError, ShapeError,
    DeviceError, OutOfMemoryError, OverwrittenError, NonfiniteError, DeadlineError, PoisonedError, ForkedError,
    BusyError, InternalError, StorageError, CheckpointError, CaptureError, RanksError,
    RuleError)}


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
