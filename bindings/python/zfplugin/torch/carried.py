# SPDX-License-Identifier: Apache-2.0
"""Parameters on a device that torch reaches and the plugin does not: torch carries gradients down and values up.

Model: each such parameter has a mirror in host memory. To the plugin the mirror is the parameter: it is what is bound, updated and asked
about. pull() brings what others wrote on the device into the mirror, before anybody looks for edits; push() brings what was written
into mirrors to the device, after the plugin or the binding wrote. So everything above (names, ties, edits, states, ranks) is as on a CPU,
and every device that torch copies from and to will do. How copies are made is a lane's (lanes.py).

A mirror carries the gradient down and the value up in turn (ZF_PARAM_CARRIES): is_taken, from the gradient's copy until the step has
brought the value. Meanwhile the values are on the device alone, and in the plugin's masters: who wants them in the mirror empties it, and
the gradient is sent again. Of a large parameter there is no other host memory; small ones' gradients come packed, into a room. With
several ranks, or where some parameters are on the CPU, gradients have places of their own, as large as the mirrors.

A parameter whose memory on the device is another one keeps its mirror; with another dtype, shape or tie it gets a new one, which the
table sees as a parameter in other memory (parameters.py).
"""
import itertools

import torch

from .. import errors
from . import cut
from .hooks import with_versions
from .lanes import Pack, Packer, host_memory, is_small, lane_of, words_of


def is_carried(tensor):
    """Whether it lies on a device that has a mirror in host memory. One on meta has no values to mirror."""
    return tensor.device.type not in ("cpu", "meta")


def _key(tensor):
    """The key of its memory; memory without an address is nobody else's."""
    return tensor.device, tensor.data_ptr() or id(tensor)


class _Mirror:
    """host: the copy that the plugin trains. of: the parameters on the device whose values it has, one but for ties."""

    __slots__ = ("host", "of", "key", "is_edited", "is_taken", "shown", "version", "pack")

    def __init__(self, host):
        self.host, self.of, self.key = host, [], None
        self.is_edited = False             # it may have what others wrote
        self.is_taken = False              # it has a gradient, is about to get one, or had one that was dropped
        self.shown = None                  # of a small one that carries: what the device has
        self.version = self.pack = None    # of the device's values when both were the same

    def fits(self, p):
        return self.host.dtype is p.dtype and self.host.shape == p.shape

    def is_of(self, p):
        return self.key == _key(p) and self.fits(p)


class Load(Pack):
    """Gradients on their way into host memory. place: of one alone, or None. is_compared: by Mirrors.changed(), once they are there."""

    __slots__ = ("lane", "is_compared", "_sizes", "_travels", "_event")

    def __init__(self, lane, tensors, place, is_compared):
        super().__init__(tensors, ())
        self.lane, self.is_compared, self._travels = lane, is_compared, self.whole()
        self._sizes = [t.numel() for t in tensors]
        self.hosts = (lane.room.take(self._travels) if place is None else place,)
        try:
            self._event = lane.copy(self.hosts[0], self._travels)
            if is_compared:
                lane.remember(self)
        except BaseException:
            if place is None:
                lane.room.free(self.hosts[0])
            raise

    def places(self):
        """Of each: its place, or where it is of a flat tensor."""
        if len(self._sizes) == 1:
            return self.hosts
        at, nbytes = self.hosts[0].data_ptr(), self.hosts[0].element_size()
        return [at + nbytes * end for end in itertools.accumulate(self._sizes[:-1], initial=0)]

    def place(self, k):
        return self.hosts[0] if len(self._sizes) == 1 else self.hosts[0].split(self._sizes)[k]

    def is_over(self):
        return self._event is None or self._event.query()

    def wait(self):
        if self._event is not None:
            self._event.synchronize()
        self._event = self._travels = None
        if not self.is_compared:
            self.tensors = ()


class Mirrors:
    """The mirrors of one optimizer's parameters, over all its tables."""

    def __init__(self, fetcher=None):
        self.fetcher = fetcher  # of values that go up when they are fetched
        self.carry = False  # gradients come into the mirrors
        self.lose = None    # called with parameters whose gradients make room for values in the mirrors: they are sent again
        self.newest = None  # gives a parameter's values as the plugin has them
        self.digests = None  # gives digests of tensors in host memory
        self._mirrors = {}  # {id(parameter): _Mirror}
        self._at = {}       # {where it lies on the device: _Mirror}
        self._places = {}   # {id(parameter): memory in which its gradient comes}, of large ones whose mirrors do not carry
        self._spare = {}    # {id(parameter): memory for a mirror}
        self._fresh = []    # (parameter, mirror) that were joined since keep()
        self._lanes = {}    # {device: its lane}
        self._waiting = {}  # {id(mirror): mirror} of those that are to go up, or whose copy failed
        self._going_up = []  # (lane, pack, event) of copies that no stream of the trainer's was made to wait for

    # ---- which mirror ------------------------------------------------------------------------------------------------

    def prepare(self, params, carry):
        """Takes memory for the mirrors of those that have none, and for their gradients. carry: the mirrors are that."""
        self.carry = carry
        found = [(cut.local(param), self._mirrors.get(id(param)), param) for param in params]
        found = [(p, mirror, param) for p, mirror, param in found if is_carried(p)]
        self._take([(p, param) for p, mirror, param in found if mirror is None or not mirror.fits(p)])
        self._take_places([(p, param) for p, *_, param in found])

    def _take(self, pairs):
        for lane, found in self._by_lane(pairs):
            memory = host_memory([p.detach() for p, _ in found], lane.is_stream)
            self._spare.update({id(param): host for (_, param), host in zip(found, memory)})
            lane.reserve([p.nbytes for p, _ in found if is_small(p)])

    def _take_places(self, pairs):
        known = {} if self.carry else self._places
        self._places = {id(param): known[id(param)] for p, param in pairs if id(param) in known and known[id(param)].shape == p.shape
                        and known[id(param)].dtype is p.dtype}
        for lane, found in self._by_lane([] if self.carry else [pair for pair in pairs if id(pair[1]) not in self._places and not is_small(pair[0])]):
            memory = host_memory([p.detach() for p, _ in found], lane.is_stream)
            self._places.update({id(param): place for (_, param), place in zip(found, memory)})

    def lane(self, device):
        if device not in self._lanes:
            self._lanes[device] = lane_of(device, lambda tensors: self.digests(tensors))
        return self._lanes[device]

    def are_beside(self, params):
        """Whether copies of some run beside the trainer's kernels."""
        return any(self.lane(device).is_stream for device in {cut.local(p).device for p in params if is_carried(cut.local(p))})

    def of(self, param):
        """The host's tensor of a parameter: its mirror, or on a CPU this process's part of it."""
        p, mirror = cut.local(param), self._mirrors.get(id(param))
        if mirror is not None and mirror.is_of(p):
            return mirror.host
        return self._of(param, p).host if is_carried(p) else p

    def origin(self, param):
        """Names the memory on the device."""
        return _key(cut.local(param))

    def _of(self, param, p):
        mirror, key = self._mirrors.get(id(param)), _key(p)
        if mirror is not None and mirror.is_of(p):
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
        host = self._spare.pop(id(param), None)
        self._leave(param)
        mirror = self._mirrors[id(param)] = other or _Mirror(host)
        if other is None:
            self._put(mirror, _key(p))
            mirror.host.copy_(p)
            self._fresh.append((param, mirror))
        mirror.of.append(param)
        return mirror

    def _leave(self, param):
        mirror = self._mirrors.pop(id(param), None)
        if mirror is not None:
            mirror.of = [p for p in mirror.of if p is not param]
            if not mirror.of and self._at.get(mirror.key) is mirror:
                del self._at[mirror.key]

    @with_versions
    def keep(self, params):
        """These are bound; the mirrors of others go, and of those that lie on the CPU now."""
        kept, self._spare = {id(p) for p in params if is_carried(cut.local(p))}, {}
        fresh, self._fresh = self._fresh, []
        self._note([(cut.local(param), mirror, mirror.host) for param, mirror in fresh if self._mirrors.get(id(param)) is mirror])
        for mirror in list(self._mirrors.values()):
            for p in [p for p in mirror.of if id(p) not in kept]:
                self._leave(p)

    # ---- values ------------------------------------------------------------------------------------------------------

    def _packs(self, found):
        """{lane: packs} of [(this process's part, its mirror, its values in host memory)]."""
        packer, packs = Packer(), {}
        for items in (*(items for item in found for items in packer.add(item[0], item)), *packer.rest()):
            pack = Pack([p for p, *_ in items], [values for *_, values in items])
            for _, mirror, _ in items:
                mirror.pack = pack
            packs.setdefault(self.lane(items[0][0].device), []).append(pack)
        return packs

    def _note(self, found):
        """[(this process's part, its mirror, its values in host memory)]: what the device has."""
        for lane, packs in self._packs(sorted(found, key=lambda item: is_small(item[0]))).items():
            for pack in packs:
                lane.remember(pack)
        self._say_shown(found)

    def _say_shown(self, found):
        """The device has these values, or is given them: [(this process's part, its mirror, its values in host memory)]."""
        for p, mirror, _ in found:
            mirror.version = p._version
        small = [(mirror, values) for _, mirror, values in found if self.carry and self.fetcher is not None and is_small(values)]
        for mirror, _ in small:
            mirror.shown = torch.empty_like(mirror.host) if mirror.shown is None else mirror.shown
        if small:
            torch._foreach_copy_([mirror.shown for mirror, _ in small], [values for _, values in small])

    def _by_lane(self, pairs):
        found = {}
        for p, more in pairs:
            found.setdefault(p.device, []).append((p, more))
        return ((self.lane(device), group) for device, group in found.items())

    @with_versions
    def pull(self, params):
        """Brings what others wrote on the device into the mirrors, which otherwise stay untouched."""
        self.follow()
        found = {id(p): (p, self._of(param, p)) for param, p in ((param, cut.local(param)) for param in params) if is_carried(p)}
        for lane, pairs in self._by_lane(found.values()):
            lane.settle()
            edited = self._edited(lane, pairs, {id(mirror.pack) for p, mirror in pairs if mirror.version != p._version})
            found = [(p, mirror, p.detach().cpu()) for p, mirror in edited]
            for _, mirror, values in found:
                self._take_in(lane, mirror, values)
            self._note(found)

    def _take_in(self, lane, mirror, values):
        """The elements of values, which the device has, that others wrote; the other elements have every update."""
        is_late = bool(self.late(mirror.of))
        if is_late and mirror.shown is None:  # the device has values of before
            is_same, = lane.are_same([mirror.pack])
            if is_same or is_same is None and not self.are_touched(mirror.of):
                return
            raise errors.StateError(f'"{self.fetcher.table.names[self.late(mirror.of)[0]]}" was written before its update was there: with fetch=True call '
                                    "opt.synchronize() before you write weights")
        was = mirror.shown if mirror.shown is not None else self.newest(mirror.of[0]) if mirror.is_taken else mirror.host
        if torch.equal(words_of(values), words_of(was)):
            return
        if mirror.is_taken:
            self.lose(mirror.of)
            mirror.is_taken = False
            mirror.host.copy_(values)
        else:
            if is_late:
                self.fetcher.instance.fetch(self.late(mirror.of))  # a worker may still write there
            host, values, was = words_of(mirror.host), words_of(values), words_of(was)
            host.copy_(torch.where(values == was, host, values))
        mirror.is_edited = True

    @staticmethod
    def _edited(lane, pairs, edited):
        """Of [(this process's part, its mirror)] those of a pack in which something may have been written. edited: id()s of packs in which
        something was."""
        unsure = {id(mirror.pack): mirror.pack for _, mirror in pairs if id(mirror.pack) not in edited}
        unsure = {number: pack for number, pack in unsure.items() if pack.is_together()}
        same = {number for number, is_same in zip(unsure, lane.are_same([*unsure.values()])) if is_same}
        return [(p, mirror) for p, mirror in pairs if id(mirror.pack) not in same]

    def may_be_edited(self, param):
        """Whether the values that the plugin trains may be another's: those in a mirror are where pull() found some, or see_edited() told."""
        mirror = self._mirrors.get(id(param))
        return mirror is None or mirror.is_edited

    def see_edited(self, asked, found=()):
        """Of the parameters asked others wrote those that were found."""
        for params, is_edited in ((asked, False), (found, True)):
            for mirror in filter(None, (self._mirrors.get(id(param)) for param in params)):
                mirror.is_edited = is_edited

    def has_gradient(self, param):
        """Whether its mirror does not have its values."""
        return id(param) in self._mirrors and self._mirrors[id(param)].is_taken

    def give_back(self, params):
        """The mirrors of these have their values again, or are about to be written."""
        for mirror in filter(None, (self._mirrors.get(id(param)) for param in params)):
            mirror.is_taken = False

    def late(self, params):
        """Ids of those of params whose values wait in their mirrors until they are fetched."""
        return self.fetcher.late_of(params) if self.carry and self.fetcher is not None else []

    def settle(self):
        """Waits until what goes up has left the mirrors."""
        for lane in self._lanes.values():
            lane.settle()

    def are_touched(self, params):
        """Whether a version counter or an address tells that one of these was written on the device; waits for nothing."""
        return any(mirror is not None and (mirror.version != cut.local(param)._version or mirror.key != _key(cut.local(param)))
                   for param, mirror in ((param, self._mirrors.get(id(param))) for param in params))

    def push(self, params):
        """Starts to bring the mirrors of these to the device. The trainer calls follow() before it reads there."""
        self._waiting.update((id(m), m) for m in filter(None, (self._mirrors.get(id(param)) for param in params)) if not m.is_taken)
        self._bring()

    @with_versions
    def _bring(self):
        """Copies that fail, where a device has no memory, are tried again before anybody looks at values there or writes into the mirrors."""
        written = [(cut.local(mirror.of[0]), mirror, mirror.host) for mirror in self._waiting.values()
                   if mirror.of and is_carried(cut.local(mirror.of[0]))]
        for lane, packs in self._packs(written).items():
            event = lane.copy_up(packs)
            self._going_up += [(lane, pack, event) for pack in packs]
        self._waiting = {}
        self._say_shown(written)

    @with_versions
    def follow(self, params=None):
        """Whatever is computed next on the devices finds there what was pushed of these; None: of all."""
        if self._waiting:
            self._bring()
        chosen = params and {id(mirror.pack) for mirror in filter(None, (self._mirrors.get(id(param)) for param in params))}
        going, self._going_up = self._going_up, []
        for lane, pack, event in going:
            if params is None or id(pack) in chosen:
                lane.follow(event)
                lane.remember(pack)
            else:
                self._going_up.append((lane, pack, event))

    def say_written(self, params):
        """Their version counters were moved, for autograd alone."""
        for param in params:
            mirror = self._mirrors.get(id(param))
            if mirror is not None:
                mirror.version = cut.local(param)._version

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def take(self, param):
        """A gradient of this is on its way."""
        if self.carry:
            if self._waiting:
                self._bring()
            self._mirrors[id(param)].is_taken = True

    @with_versions
    def send(self, params, grads, place, is_compared):
        """A Load of gradients that can be a Pack. place: of a small one that was sent since free(), else None."""
        if not is_small(grads[0]):
            place = self._mirrors[id(params[0])].host if self.carry else self._places[id(params[0])]
        return Load(self.lane(grads[0].device), grads, place, is_compared)

    def free(self):
        """Nobody reads gradients any more."""
        for lane in self._lanes.values():
            lane.room.free()

    @with_versions
    def changed(self, loads):
        """Those whose gradients are not what was sent."""
        by_lane = {}
        for load in loads:
            by_lane.setdefault(load.lane, []).append(load)
        return [load for lane, some in by_lane.items() for load, is_same in zip(some, lane.are_same(some)) if not is_same]
