# SPDX-License-Identifier: Apache-2.0
"""Update rules: the plugin's own by name, a compiled function of the caller's, and rules of whole matrices."""
import ctypes as C
import dataclasses
import weakref

from . import _abi, errors

RULES = {"adamw": _abi.RULE_ADAMW, "adam": _abi.RULE_ADAM, "sgd": _abi.RULE_SGD,
         "sgd_nesterov": _abi.RULE_SGD_NESTEROV, "lion": _abi.RULE_LION}


@dataclasses.dataclass
class RuleCallback:
    """An update rule of the caller's: a compiled function with zf_rule_callback_t.update's signature (zf/plugin.h),
        int32_t update(void *ctx, const zf_rule_update_t *update);
    as a function of a ctypes library, or its address as an int (numba: cfunc.address). n_moments: 0, 1 or 2; name: for the
    log and checkpoints; ctx: an address, passed on. Everything it points to must outlive the instance.

    Not a Python function: the plugin's workers would queue for the interpreter's lock at every 1024 elements, behind the
    training thread that they are to run beside, and at the interpreter's end nobody could answer them."""

    function: object
    n_moments: int
    name: str = "callback"
    ctx: int = None

    def fill(self):
        """The ABI's struct."""
        address = self.function
        if isinstance(address, C._CFuncPtr):
            if any(type(kept).__name__ == "CThunkObject" for kept in (address._objects or {}).values()):
                raise errors.ArgumentError("RuleCallback: the function is written in Python; it is called on the plugin's own "
                                           "threads, so give a compiled one (ctypes.CDLL(...).update, numba's cfunc.address)")
            address = C.cast(address, C.c_void_p).value
        if isinstance(address, bool) or not isinstance(address, int) or address <= 0:
            raise errors.ArgumentError(f"RuleCallback: function is a {type(self.function).__name__}; need a function of a "
                                       "ctypes library, or the address of a compiled one")
        if isinstance(self.n_moments, bool) or self.n_moments not in (0, 1, 2):
            raise errors.ArgumentError(f"RuleCallback: n_moments = {self.n_moments!r}; allowed: 0, 1, 2")
        if not self.name:
            raise errors.ArgumentError("RuleCallback: name is empty; it stands in the log and in checkpoints")
        kind = dict(_abi.RuleCallback._fields_)["update"]
        return _abi.RuleCallback(struct_size=C.sizeof(_abi.RuleCallback), n_moments=self.n_moments,
                                 name=self.name.encode(), ctx=self.ctx, update=kind(address))


@dataclasses.dataclass(frozen=True)
class MatrixRule:
    """A rule of whole matrices (zf/ext/draft/matrix.h), computed by Instance.update_matrices. n_moments: 0, 1 or 2; name: for the log and
    checkpoints."""

    name: str
    n_moments: int

    def fill(self):
        """The ABI's struct."""
        return _abi.RuleCallback(struct_size=C.sizeof(_abi.RuleCallback), n_moments=self.n_moments, name=self.name.encode())


def matrix_rules(instance):
    """The chained struct whose function calls instance.update_matrices; what that raises is kept for the call that is under way."""
    of = weakref.ref(instance)

    def update(_ctx, address, n, elem_size):
        instance = of()
        try:
            instance.update_matrices([_abi.MatrixUpdate.from_address(address + i * elem_size) for i in range(n)])
        except BaseException as problem:
            instance.problem = problem
            return 1
        return 0

    out = _abi.MatrixRules(struct_size=C.sizeof(_abi.MatrixRules), flags=_abi.CHAINED_REQUIRED, id=_abi.EXT_MATRIX.encode())
    out.update = type(out.update)(update)
    return out
