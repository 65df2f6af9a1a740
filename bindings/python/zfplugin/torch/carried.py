# SPDX-License-Identifier: Apache-2.0
"""Parameters on a device that torch reaches and the plugin does not: torch carries gradients down and values up.

Model: each such parameter has a mirror in host memory. To the plugin the mirror is the parameter: it is what is bound, updated and asked
about. pull() brings what somebody wrote on the device into the mirror, before anybody looks for edits; push() brings what was written
into mirrors to the device, after the plugin or the binding wrote. Gradients come into places of their own, as large as the mirrors. So
everything above (names, ties, edits, states, ranks) is as on a CPU, and every device that torch copies from and to will do.

A parameter whose memory on the device is another one keeps its mirror; with another dtype, shape or tie it gets a new one, which the
table sees as a parameter in other memory (parameters.py).
"""
import torch

from . import cut
from .hooks import with_versions

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def words_of(tensor):
    return tensor.view(_WORDS[tensor.element_size()])


def is_carried(tensor):
    """Whether it lies on a device that has a mirror in host memory. One on meta has no values to mirror."""
    return tensor.device.type not in ("cpu", "meta")


def _key(tensor):
    """Where it lies; memory without an address is nobody else's."""
    return tensor.device, tensor.data_ptr() or id(tensor)


class _Mirror:
    """host: the copy that the plugin trains. of: the parameters on the device whose values it has, one but for ties."""

    __slots__ = ("host", "of", "key", "written")

    def __init__(self, p):
        self.host, self.of, self.key = torch.empty_like(p, device="cpu", requires_grad=False), [], None
        self.written = False  # by the plugin, and not yet carried up

    def fits(self, p):
        return self.host.dtype is p.dtype and self.host.shape == p.shape


class Mirrors:
    """Of the parameters of one optimizer, over all its tables."""

    def __init__(self):
        self._mirrors = {}  # {id(parameter): _Mirror}
        self._at = {}       # {where it lies on the device: _Mirror}
        self._places = {}   # {id(parameter): memory in which its gradient comes}

    def of(self, param):
        """The host's tensor of a parameter: its mirror, or on a CPU this process's part of it."""
        p = cut.local(param)
        return self._of(param, p).host if is_carried(p) else p

    def _of(self, param, p):
        mirror, key = self._mirrors.get(id(param)), _key(p)
        if mirror is not None and mirror.key == key and mirror.fits(p):
            return mirror
        other = self._at.get(key)
        if other is not None and not (other.of and _key(cut.local(other.of[0])) == key and other.fits(p)):
            other = None
        if other is None and mirror is not None and len(mirror.of) == 1 and mirror.fits(p):
            self._put(mirror, key)  # pull() compares its values
            return mirror
        return self._join(param, p, other)

    def _put(self, mirror, key):
        if self._at.get(mirror.key) is mirror:
            del self._at[mirror.key]
        mirror.key, self._at[key] = key, mirror

    @with_versions
    def _join(self, param, p, other):
        """other: the mirror of a parameter that lies in the same memory, or None."""
        self._leave(param)
        mirror = self._mirrors[id(param)] = other or _Mirror(p)
        if other is None:
            self._put(mirror, _key(p))
            mirror.host.copy_(p)
        mirror.of.append(param)
        return mirror

    def _leave(self, param):
        self._places.pop(id(param), None)
        mirror = self._mirrors.pop(id(param), None)
        if mirror is not None:
            mirror.of = [p for p in mirror.of if p is not param]
            if not mirror.of and self._at.get(mirror.key) is mirror:
                del self._at[mirror.key]

    def keep(self, params):
        """These are bound; the mirrors of others go, and of those that lie on the CPU now."""
        kept = {id(p) for p in params if is_carried(cut.local(p))}
        for mirror in list(self._mirrors.values()):
            for p in [p for p in mirror.of if id(p) not in kept]:
                self._leave(p)

    @with_versions
    def pull(self, params):
        """What somebody wrote on the device comes into the mirrors, which otherwise stay untouched."""
        for param in params:
            p = cut.local(param)
            if is_carried(p):
                mirror = self._of(param, p)
                values = p.detach().cpu()
                if not mirror.written and not torch.equal(words_of(values), words_of(mirror.host)):
                    mirror.host.copy_(values)

    def wrote(self, params):
        """The mirrors of these have other values than the device."""
        for param in params:
            mirror = self._mirrors.get(id(param))
            if mirror is not None:
                mirror.written = True

    @with_versions
    def push(self):
        """What was written into mirrors comes to the device."""
        for mirror in self._mirrors.values():
            if mirror.written:
                cut.local(mirror.of[0]).detach().copy_(mirror.host)
                mirror.written = False

    @with_versions
    def bring(self, param, grad):
        """A gradient of the parameter, in host memory."""
        if not is_carried(grad):
            return grad
        place = self._places.get(id(param))
        if place is None:
            place = self._places[id(param)] = torch.empty_like(self.of(param))
        return place.copy_(grad)

    def has_brought(self, param, grad):
        """Whether its place has this gradient."""
        return torch.equal(words_of(grad.cpu()), words_of(self._places[id(param)]))
