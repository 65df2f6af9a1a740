# SPDX-License-Identifier: Apache-2.0
"""Parameters on a device that torch reaches and the plugin does not: torch carries gradients down and values up.

Model: each such parameter has a mirror in host memory. To the plugin the mirror is the parameter: it is what is bound, updated and asked
about. pull() brings what others wrote on the device into the mirror, before anybody looks for edits; push() brings what was written
into mirrors to the device, after the plugin or the binding wrote. Gradients come into places of their own, as large as the mirrors. So
everything above (names, ties, edits, states, ranks) is as on a CPU, and every device that torch copies from and to will do. How copies
are made is a lane's (lanes.py).

A parameter whose memory on the device is another one keeps its mirror; with another dtype, shape or tie it gets a new one, which the
table sees as a parameter in other memory (parameters.py).
"""
import torch

from . import cut
from .hooks import with_versions
from .lanes import host_memory, lane_of, words_of


def is_carried(tensor):
    """Whether it lies on a device that has a mirror in host memory. One on meta has no values to mirror."""
    return tensor.device.type not in ("cpu", "meta")


def _key(tensor):
    """The key of its memory; memory without an address is nobody else's."""
    return tensor.device, tensor.data_ptr() or id(tensor)


class _Mirror:
    """host: the copy that the plugin trains. of: the parameters on the device whose values it has, one but for ties."""

    __slots__ = ("host", "of", "key", "is_written", "version", "digest")

    def __init__(self, host):
        self.host, self.of, self.key = host, [], None
        self.is_written = False              # by the plugin, and not yet carried up
        self.version = self.digest = None    # of the device's values when both were the same

    def fits(self, p):
        return self.host.dtype is p.dtype and self.host.shape == p.shape


class Mirrors:
    """The mirrors of one optimizer's parameters, over all its tables."""

    def __init__(self):
        self._mirrors = {}  # {id(parameter): _Mirror}
        self._at = {}       # {where it lies on the device: _Mirror}
        self._places = {}   # {id(parameter): memory in which its gradient comes}
        self._spare = {}    # {id(parameter): memory for a mirror}
        self._lanes = {}    # {device: its lane}

    # ---- which mirror ------------------------------------------------------------------------------------------------

    def prepare(self, params):
        """Takes memory for the mirrors of those that have none, and for their gradients."""
        found = [(cut.local(param), self._mirrors.get(id(param)), param) for param in params]
        self._take([(p, param) for p, mirror, param in found if is_carried(p) and (mirror is None or not mirror.fits(p))])

    def _take(self, pairs):
        for lane, found in self._by_lane(pairs):
            memory = host_memory(2 * [p.detach() for p, _ in found], lane.is_stream)
            self._spare.update({id(param): host for (_, param), host in zip(found, memory)})
            self._places.update({id(param): place for (_, param), place in zip(found, memory[len(found):])})

    def lane(self, device):
        if device not in self._lanes:
            self._lanes[device] = lane_of(device)
        return self._lanes[device]

    def are_beside(self, params):
        """Whether copies of some run beside the trainer's kernels."""
        return any(self.lane(device).is_stream for device in {cut.local(p).device for p in params if is_carried(cut.local(p))})

    def of(self, param):
        """The host's tensor of a parameter: its mirror, or on a CPU this process's part of it."""
        p = cut.local(param)
        return self._of(param, p).host if is_carried(p) else p

    def origin(self, param):
        """Names the memory on the device."""
        return _key(cut.local(param))

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
        mirror.key, self._at[key], mirror.version = key, mirror, None

    @with_versions
    def _join(self, param, p, other):
        """other: the mirror of a parameter that lies in the same memory, or None."""
        if id(param) not in self._spare:
            self._take([(p, param)])
        host, place = self._spare.pop(id(param), None), self._places[id(param)]
        self._leave(param)
        mirror = self._mirrors[id(param)] = other or _Mirror(host)
        self._places[id(param)] = place
        if other is None:
            self._put(mirror, _key(p))
            mirror.host.copy_(p)
            self._note([(p, mirror)])
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
        kept, self._spare = {id(p) for p in params if is_carried(cut.local(p))}, {}
        for mirror in list(self._mirrors.values()):
            for p in [p for p in mirror.of if id(p) not in kept]:
                self._leave(p)

    # ---- values ------------------------------------------------------------------------------------------------------

    def _note(self, pairs):
        """[(this process's part, its mirror)] that have the same values."""
        for p, mirror in pairs:
            mirror.version, mirror.digest = p._version, self.lane(p.device).remember(p)

    def _by_lane(self, pairs):
        found = {}
        for p, more in pairs:
            found.setdefault(p.device, []).append((p, more))
        return ((self.lane(device), group) for device, group in found.items())

    @with_versions
    def pull(self, params, is_quick=False):
        """Brings what others wrote on the device into the mirrors, which otherwise stay untouched. is_quick: what no version counter and
        no address tells of is left to another time."""
        found = {id(p): (p, self._of(param, p)) for param, p in ((param, cut.local(param)) for param in params) if is_carried(p)}
        for lane, pairs in self._by_lane(found.values()):
            edited = [(p, mirror) for p, mirror in pairs if mirror.version != p._version]
            if not is_quick:
                lane.settle()
                unsure = [(p, mirror) for p, mirror in pairs if mirror.version == p._version]
                same = lane.are_same([(p, mirror.digest, mirror.host) for p, mirror in unsure])
                edited += [pair for pair, is_same in zip(unsure, same) if not is_same]
            for p, mirror in edited:
                values = p.detach().cpu()
                if not mirror.is_written and not torch.equal(words_of(values), words_of(mirror.host)):
                    mirror.host.copy_(values)
            self._note(edited)

    def wrote(self, params):
        """The mirrors of these have other values than the device."""
        for mirror in filter(None, (self._mirrors.get(id(param)) for param in params)):
            mirror.is_written = True

    @with_versions
    def push(self):
        """Brings what was written into mirrors to the device: what is computed there next finds it."""
        written = [(cut.local(mirror.of[0]).detach(), mirror) for mirror in {id(m): m for m in self._mirrors.values() if m.is_written}.values()]
        for lane, pairs in self._by_lane(written):
            lane.copy_up([(p, mirror.host) for p, mirror in pairs])
        for _, mirror in written:
            mirror.is_written = False
        self._note(written)

    def say_written(self, params):
        """Their version counters were moved, for autograd alone."""
        for param in params:
            mirror = self._mirrors.get(id(param))
            if mirror is not None:
                mirror.version = cut.local(param)._version

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def place(self, param):
        return self._places[id(param)]

    @with_versions
    def send(self, pairs):
        """[(parameter, its gradient)], which come into the places; events, of all copies. None: they are there."""
        found = self._by_lane((grad, self.place(param)) for param, grad in pairs)
        return [event for event in (lane.copy([(place, grad) for grad, place in group]) for lane, group in found) if event is not None]

    @with_versions
    def remember(self, grad):
        return self.lane(grad.device).remember(grad)

    @with_versions
    def have_changed(self, sent):
        """Of [(key, parameter, gradient, what remember() gave)] the keys of those that are not what was sent."""
        changed = []
        for lane, group in self._by_lane((grad, (key, param, digest)) for key, param, grad, digest in sent):
            same = lane.are_same([(grad, digest, self.place(param)) for grad, (_, param, digest) in group])
            changed += [key for (_, (key, _, _)), is_same in zip(group, same) if not is_same]
        return changed
