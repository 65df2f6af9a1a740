# SPDX-License-Identifier: Apache-2.0
"""How torch copies between one device and host memory: beside the trainer's kernels where the device's module of torch has streams and
events (torch.cuda, torch.xpu), else on this thread, which waits for each copy.

Model: a lane has one side stream. What it copies comes behind what the calling thread's current stream has been given, and an event tells
when it is done; until then the caller of the copy keeps both tensors. Small tensors are packed on the device: one copy and one digest of many.
To compare contents without a copy a digest is made of them on the device: it tells one changed element from none, and rows or columns that
changed places.
"""
import contextlib

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from .. import errors, progress

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SMALL_NBYTES = 1 << 15   # bytes of the largest tensor that travels with others
PACK_NBYTES, PACK_TENSORS = 1 << 20, 256
_BLOCK_NBYTES = 1 << 20  # of page-locked memory, at least
_ALIGNMENT = 64


def words_of(tensor):
    return tensor.view(_WORDS[tensor.element_size()])


def _round_up(nbytes):
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def is_small(tensor):
    return tensor.nbytes <= SMALL_NBYTES


class Pack:
    """Tensors on one device that travel, and are compared, as one: a large one, or small ones of one dtype. hosts: their values in host
    memory, laid out so. digest: of the contents when both were the same."""

    __slots__ = ("tensors", "hosts", "digest")

    def __init__(self, tensors, hosts):
        self.tensors, self.hosts, self.digest = tensors, hosts, None

    def whole(self):
        return _whole(self.tensors)

    def is_together(self):
        """Whether none was moved to another device."""
        return len({t.device for t in self.tensors}) == 1


def _whole(tensors):
    return _flatten_dense_tensors(tensors) if is_small(tensors[0]) else tensors[0].detach()


class Packer:
    """Puts together what can be a Pack. Small tensors wait for more of them, at most until a large one comes."""

    def __init__(self):
        self._open = {}  # {(device, dtype): [items, bytes]}

    def add(self, tensor, item):
        """The packs that are complete, as lists of items."""
        if not is_small(tensor):
            return [*self.rest(), [item]]
        key = tensor.device, tensor.dtype
        pack = self._open.setdefault(key, [[], 0])
        pack[0].append(item)
        pack[1] += tensor.nbytes
        return [self._open.pop(key)[0]] if len(pack[0]) >= PACK_TENSORS or pack[1] >= PACK_NBYTES else []

    def rest(self):
        found, self._open = [items for items, _ in self._open.values()], {}
        return found


class Room:
    """Host memory for small tensors, given out from its beginning until it is free."""

    def __init__(self, is_pinned):
        self._is_pinned, self._block, self._at = is_pinned, None, 0

    def grow(self, sizes):
        """For more tensors, of these sizes in bytes."""
        nbytes = sum(sizes) + _ALIGNMENT * len(sizes) + (0 if self._block is None else self._block.numel())
        self._block, = host_memory([torch.empty(nbytes, dtype=torch.uint8, device="meta")], self._is_pinned)
        self._at = 0

    def has(self, tensors):
        return self._at + sum(_round_up(t.nbytes) for t in tensors) <= self._block.numel()

    def take(self, tensor):
        """Memory for a flat tensor."""
        place = self._block[self._at:self._at + tensor.nbytes].view(tensor.dtype)
        self._at += _round_up(tensor.nbytes)
        return place

    def free(self, place=None):
        """All of it, or what was taken last."""
        self._at = 0 if place is None else place.data_ptr() - self._block.data_ptr()


class Waiting:
    """On a device without streams: a copy is done when it returns."""

    is_stream = False

    def __init__(self, digests=None):
        self.room, self._digests = Room(self.is_stream), digests  # of gradients; of tensors in host memory

    def reserve(self, sizes):
        """For small tensors of these sizes in bytes."""
        if sizes:
            self.room.grow(sizes)

    def copy(self, to, values):
        """An event, or None: it is done."""
        to.copy_(values)

    def copy_up(self, packs):
        """An event, or None: it is done."""
        for pack in packs:
            for to, values in zip(pack.tensors, pack.hosts):
                to.copy_(values)

    def follow(self, event):
        """The current stream's next work comes behind it."""

    def run(self, act):
        """act(), which computes on the device; an event, or None: it is done."""
        act()

    def settle(self):
        """What was copied up has left host memory."""

    def are_same(self, packs):
        """Of packs that were remember()ed whether their contents are still so; None: nothing is known."""
        return [pack.digest == self._digests([pack.whole().cpu().contiguous()]) for pack in packs]

    def remember(self, pack):
        """Takes what are_same() needs of its contents now."""
        pack.digest = self._digests([_whole(pack.hosts)])


class Side(Waiting):
    """A device whose module has streams and events."""

    is_stream = True

    def __init__(self, device, module):
        super().__init__()
        self._device, self._module = device, module
        self._stream = module.Stream(device=device)
        self._up_room = Room(True)
        self._up = []  # [(event of copies up, all memory that they need)]
        self._factors = torch.ones(1, dtype=torch.int64, device=device)

    def reserve(self, sizes):
        super().reserve(sizes)
        if sizes:
            self.settle()
            self._up_room.grow(sizes)

    def run(self, act):
        """Behind what the current stream has."""
        module = self._module
        if getattr(module, "is_current_stream_capturing", bool)():
            raise errors.StateError("a CUDA graph is being captured: gradients and values are copied by torch outside of it, so leave "
                                    "the optimizer's step and the end of backward out of the graph")
        self._stream.wait_stream(module.current_stream(self._device))
        with module.stream(self._stream):
            act()
            event = module.Event()
            event.record(self._stream)
        return event

    def copy(self, to, values):
        return self.run(lambda: to.copy_(values, non_blocking=True))

    def follow(self, event):
        self._module.current_stream(self._device).wait_event(event)

    def copy_up(self, packs):
        joint, kept = [(pack.tensors, _whole(pack.hosts)) for pack in packs if len(pack.tensors) > 1], []
        if joint and not self._up_room.has([values for _, values in joint]):
            self.settle()
        joint = [(tensors, self._up_room.take(values).copy_(values)) for tensors, values in joint]

        def act():
            for pack in packs:
                if len(pack.tensors) == 1:
                    pack.tensors[0].copy_(pack.hosts[0], non_blocking=True)
            for tensors, values in joint:
                with contextlib.suppress(RuntimeError):  # no memory: each from the host
                    values = torch.empty_like(values, device=self._device).copy_(values, non_blocking=True)
                kept.append(_unflatten_dense_tensors(values, tensors))
                torch._foreach_copy_(tensors, kept[-1])

        self._up.append((self.run(act), (packs, joint, kept)))
        return self._up[-1][0]

    def settle(self):
        for event, _ in self._up:
            event.synchronize()
        self._up.clear()
        self._up_room.free()

    def remember(self, pack):
        pack.digest = None
        with contextlib.suppress(RuntimeError):  # no memory: are_same() knows nothing then
            pack.digest = self.digest(pack.whole())

    def digest(self, tensor):
        """Sums of the words of each row and of each column, with odd factors; a number on the device. Waits for nothing."""
        words = words_of(tensor)
        words = words.reshape(1) if words.dim() == 0 else words
        rows = words if words.dim() == 1 else words.sum(tuple(range(1, words.dim())), dtype=torch.int64)
        found = (rows * self._odd(rows.numel())).sum(dtype=torch.int64)
        if words.dim() > 1:
            columns = words.sum(0, dtype=torch.int64).flatten()
            found = 3 * found + (columns * self._odd(columns.numel())).sum(dtype=torch.int64)
        return found

    def _odd(self, n):
        """1, 3, 5 ..."""
        if self._factors.numel() < n:
            self._factors = 2 * torch.arange(n, dtype=torch.int64, device=self._device) + 1
        return self._factors[:n]

    def are_same(self, packs):
        """One wait for the device for all of them."""
        known, found = [pack for pack in packs if pack.digest is not None], {}
        with contextlib.suppress(RuntimeError):
            was, now = torch.stack([*(pack.digest for pack in known), *(self.digest(pack.whole()) for pack in known)]).cpu().chunk(2) if known else ((), ())
            found = {id(pack): bool(one == other) for pack, one, other in zip(known, was, now)}
        return [found.get(id(pack)) for pack in packs]


def lane_of(device, digests=None):
    """The way of a device's copies. digests: a function of tensors in host memory that gives one of each."""
    module = getattr(torch, device.type, None)
    if all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream")):
        with contextlib.suppress(RuntimeError, NotImplementedError):
            lane = Side(device, module)
            probe = torch.arange(6, dtype=torch.float32, device=device).reshape(2, 3)
            found, same, other = (lane.digest(of).item() for of in (probe, probe.clone(), probe + 1))
            if found == same != other:
                return lane
    return Waiting(digests)


def host_memory(tensors, is_pinned):
    """For each of tensors contiguous memory in the host; page-locked where torch can, in blocks of powers of two, to which torch's allocator
    rounds each up."""
    like = [torch.empty(t.size(), dtype=t.dtype, device="meta") for t in tensors]
    sizes = [_round_up(t.nbytes) for t in like]
    out, rest = [None] * len(like), sorted(range(len(like)), key=sizes.__getitem__) if is_pinned else []
    with progress.Line("zfplugin", after=progress.LONG) as line:
        while rest:
            total, largest = sum(sizes[i] for i in rest), sizes[rest[-1]]
            line.show("page-locking host memory", sum(sizes) - total >> 20, sum(sizes) >> 20, " MiB")
            nbytes = max(1 << max(total, 1).bit_length() - 1, 1 << max(largest - 1, 1).bit_length(), _BLOCK_NBYTES)
            block, at, left = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True), 0, []
            for i in reversed(rest):
                if at + sizes[i] > nbytes:
                    left.append(i)
                    continue
                out[i] = block[at:at + like[i].nbytes].view(like[i].dtype).view(like[i].size())
                at += sizes[i]
            rest = left[::-1]
    return [torch.empty_like(t, device="cpu") if found is None else found for t, found in zip(like, out)]
