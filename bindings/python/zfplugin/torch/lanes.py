# SPDX-License-Identifier: Apache-2.0
"""How torch copies between one device and host memory: beside the trainer's kernels where the device's module of torch has streams and
events (torch.cuda, torch.xpu), else on this thread, which waits for each copy.

Model: a lane has one side stream. What it copies comes behind what the calling thread's current stream has been given, and an event tells
when it is done; until then the caller of the copy keeps both tensors. To compare contents without a copy a digest is made of them on the
device: it tells one changed element from none, and rows or columns that changed places.
"""
import contextlib

import torch

from .. import errors

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BLOCK_NBYTES = 1 << 20  # of page-locked memory, at least
_ALIGNMENT = 64


def words_of(tensor):
    return tensor.view(_WORDS[tensor.element_size()])


class Waiting:
    """On a device without streams: a copy is done when it returns."""

    is_stream = False

    def copy(self, pairs):
        """[(to, from)]; an event, or None: it is done."""
        for to, values in pairs:
            to.copy_(values)

    def copy_up(self, pairs):
        self.copy(pairs)

    def settle(self):
        """What was copied up has left host memory."""

    def are_same(self, pairs):
        """Of [(tensor on the device, what was remember()ed of it, its values in host memory)] whether its contents are still so."""
        return [torch.equal(words_of(tensor.detach().cpu()), words_of(values)) for tensor, _, values in pairs]

    def remember(self, tensor):
        """What are_same() needs of its contents now."""


class Side:
    """A device whose module has streams and events."""

    is_stream = True

    def __init__(self, device, module):
        self._device, self._module = device, module
        self._stream = module.Stream(device=device)
        self._up = None  # the event of the last copy up
        self._factors = torch.ones(1, dtype=torch.int64, device=device)

    def _enqueue(self, pairs):
        """Behind what the current stream has; an event."""
        module = self._module
        if getattr(module, "is_current_stream_capturing", bool)():
            raise errors.StateError("a CUDA graph is being captured: gradients and values are copied by torch outside of it, so leave "
                                    "the optimizer's step and the end of backward out of the graph")
        self._stream.wait_stream(module.current_stream(self._device))
        with module.stream(self._stream):
            for to, values in pairs:
                to.copy_(values, non_blocking=True)
            event = module.Event()
            event.record(self._stream)
        return event

    def copy(self, pairs):
        return self._enqueue(pairs)

    def copy_up(self, pairs):
        """What the current stream is given next finds the values there."""
        self._up = self._enqueue(pairs)
        self._module.current_stream(self._device).wait_stream(self._stream)

    def settle(self):
        if self._up is not None:
            self._up.synchronize()
            self._up = None

    def remember(self, tensor):
        """Sums of the words of each row and of each column, with odd factors; a number on the device. Waits for nothing."""
        words = words_of(tensor.detach())
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

    def are_same(self, pairs):
        """One wait for the device for all of them."""
        if not pairs:
            return []
        now = [self.remember(tensor) for tensor, _, _ in pairs]
        was, now = torch.stack([*(was for _, was, _ in pairs), *now]).cpu().chunk(2)
        return (was == now).tolist()


def lane_of(device):
    """The way of a device's copies."""
    module = getattr(torch, device.type, None)
    if all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream")):
        with contextlib.suppress(RuntimeError, NotImplementedError):
            lane = Side(device, module)
            probe = torch.arange(6, dtype=torch.float32, device=device).reshape(2, 3)
            if lane.are_same([(probe, lane.remember(probe.clone()), None), (probe, lane.remember(probe + 1), None)]) == [True, False]:
                return lane
    return Waiting()


def host_memory(tensors, is_pinned):
    """For each of tensors memory in the host, laid out alike; page-locked where torch can, in blocks of powers of two, to which torch's
    allocator rounds each up."""
    like = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta") if _is_dense(t) else torch.empty(t.size(), dtype=t.dtype, device="meta")
            for t in tensors]
    sizes = [-(-t.nbytes // _ALIGNMENT) * _ALIGNMENT for t in like]
    out, rest = [None] * len(like), sorted(range(len(like)), key=sizes.__getitem__)
    while rest and is_pinned:
        total, largest = sum(sizes[i] for i in rest), sizes[rest[-1]]
        nbytes = max(1 << max(total, 1).bit_length() - 1, 1 << max(largest - 1, 1).bit_length(), _BLOCK_NBYTES)
        block, at, left = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True), 0, []
        for i in reversed(rest):
            if at + sizes[i] > nbytes:
                left.append(i)
                continue
            out[i] = block[at:at + like[i].nbytes].view(like[i].dtype).as_strided(like[i].size(), like[i].stride())
            at += sizes[i]
        rest = left[::-1]
    return [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu") if found is None else found for t, found in zip(like, out)]


def _is_dense(tensor):
    """Whether its elements fill their memory, in whatever order of axes."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()
