# SPDX-License-Identifier: Apache-2.0
"""State over the processes of group= as DTensors: ZenFlow(sharded_state=True).

Model: of every master and moment a process has the rows that torch's Shard(0) gives it, which are not those that the plugin trains there
(plugin/plan/slice.h). A save passes all of the state by each process, a block at a time; these rows alone take memory. A load reads
one parameter after the other, all of it: this file for its checksums, the plugin to check it, then to take its own slices. What others
have of it comes when its turn does, and goes with the next one. They have sent it before: at the beginning, and at each reading for the
next. So no read waits for another process's, which may be in a meeting of the plugin's ranks. What was sent and not read takes no memory.
"""
import bisect
import collections
import ctypes as C
import json
import mmap
import zlib

import torch
from torch.distributed.tensor import DTensor, Shard

from .. import state
from .cut import is_cut, local


class Rows(state.Blobs):
    """A compact checkpoint, of which each process keeps its rows. table: of the parameters; circles: {number of a group: this process
    in it}; meshes: of the same groups."""

    def __init__(self, table, circles, meshes):
        super().__init__()
        self._numbers = {name: decl.reduce_group for name, decl in zip(table.names, table.decls)}
        self._tags = {name: tag for tag, name in enumerate(table.names)}
        self._circles, self._meshes = {number: circles[number] for number in sorted({*self._numbers.values()})}, meshes
        self._starts = {}  # of each file: [(where a tensor begins, its parameter)]
        self._cut = collections.defaultdict(list)  # of each parameter: its tensors' (file, [first, end) of each process)
        self._lines, self._wanted, self._works, self._now = {}, [], [], None

    def _circle(self, name):
        return self._circles[self._numbers[name]]

    def _parts(self, name, n):
        size = self._circle(name).size
        most = -(-n // size)
        return [(min(rank * most, n), min((rank + 1) * most, n)) for rank in range(size)]

    def own(self, name, shape):
        return slice(*self._parts(name, shape[0])[self._circle(name).rank]) if len(shape) else ...

    def part(self, value, name):
        """This process's rows of what is loaded, a DTensor or whole."""
        return local(value) if is_cut(value) else value[self.own(name, value.shape)]

    def like(self, values, param, name):
        """values, these rows, as a DTensor; a number as it is."""
        stride = torch.empty(param.shape, device="meta").stride()
        return DTensor.from_local(values, self._meshes[self._numbers[name]], [Shard(0)], run_check=False, shape=param.shape,
                                  stride=stride) if param.ndim else values

    # ---- a save ------------------------------------------------------------------------------------------------------

    def _begin(self, name, nbytes):
        self._file, self._at = C.string_at(name).decode(), 0
        self._open = self.blobs[self._file] = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE)

    def _write(self, data, nbytes):
        at, end = self._at, self._at + nbytes
        if at == 0:
            self._wanted = [(0, nbytes)]  # the index, or a file's header
            if self._file != state.INDEX:
                self._read_header(json.loads(C.string_at(data + 8, nbytes - 8)), nbytes)
        for first, last in ((max(first, at), min(last, end)) for first, last in self._wanted):
            if first < last:
                self._open[first:last] = C.string_at(data + first - at, last - first)
        self._at = end

    def _read_header(self, header, begin):
        del header["__metadata__"]
        for key, tensor in header.items():
            (array, _, name), shape = key.partition("/"), tensor["shape"]
            first, end = (begin + offset for offset in tensor["data_offsets"])
            bisect.insort(self._starts.setdefault(self._file, []), (first, name))
            if array in ("w", "m", "v") and shape:
                row = (end - first) // shape[0]
                spans = [(first + part[0] * row, first + part[1] * row) for part in self._parts(name, shape[0])]
                self._cut[name].append((self._file, spans))
                first, end = spans[self._circle(name).rank]
            self._wanted.append((first, end))

    # ---- a load ------------------------------------------------------------------------------------------------------

    def completed(self, index):
        """A call of all processes."""
        self._lines = {number: circle.connect() for number, circle in self._circles.items() if circle.size > 1}
        for param in index["params"]:
            self._send(param["name"])
        for param in index["params"]:
            self._take(param["name"])
            for place in param["tensors"].values():
                blob = memoryview(self.blobs[index["files"][place["file"]]["name"]])
                place["crc32"] = zlib.crc32(blob[place["offset"]:place["offset"] + place["nbytes"]])
        return super().completed(index)

    def _ranges(self, name, is_own):
        """(blob, a process, its bytes) of a parameter's tensors."""
        return [(self.blobs[file], peer, first, end) for file, spans in self._cut[name] for peer, (first, end) in enumerate(spans)
                if first < end and (peer == self._circle(name).rank) == is_own]

    def _send(self, name):
        line = self._lines.get(self._numbers[name])
        self._works += [line.send([_view(blob, first, end)], peer, self._tags[name]) for blob, rank, first, end in self._ranges(name, True)
                        for peer in range(self._circle(name).size) if peer != rank]

    def _take(self, name):
        if name == self._now:
            return
        for blob, _, first, end in self._ranges(self._now, False) if self._now else ():  # whole pages are given back
            first, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
            if first < end:
                blob.madvise(mmap.MADV_DONTNEED, first, end - first)
        self._now, line = name, self._lines.get(self._numbers[name])
        for work in [line.recv([_view(blob, first, end)], peer, self._tags[name]) for blob, peer, first, end in self._ranges(name, False)]:
            work.wait()
        self._send(name)

    def _read(self, name, offset, out, nbytes):
        starts = self._starts.get(C.string_at(name).decode(), [])
        at = bisect.bisect_left(starts, (offset + 1,))
        if at:
            self._take(starts[at - 1][1])
        return super()._read(name, offset, out, nbytes)


def _view(blob, first, end):
    return torch.frombuffer(blob, dtype=torch.uint8, count=end - first, offset=first)
