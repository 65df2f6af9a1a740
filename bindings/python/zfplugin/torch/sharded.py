# SPDX-License-Identifier: Apache-2.0
"""State over the processes of group= as DTensors: ZenFlow(sharded_state=True).

Model: of every master and moment a process has the rows that torch's Shard(0) gives it, which are not always those that the plugin
trains there (plugin/plan/slice.h). A save gives each process what its plugin keeps (ZF_STATE_OWN); then each asks the others for what
is missing of its rows. For a load each process has its rows, and its plugin says what it wants; then each asks the others for what is
missing of that. So only rows which lie elsewhere travel. Whole tensors are nowhere, and so have no checksum.
"""
import collections
import ctypes as C
import json
import mmap
import struct

import torch
from torch.distributed.tensor import DTensor, Shard

from .. import _abi, errors, state
from .cut import is_cut, local

_RANGE = struct.Struct("<IQQ")  # number of a file, first byte, number of bytes


class Rows(state.Blobs):
    """A checkpoint, of which each process keeps its rows. table: of the parameters; circles: {number of a group: this process
    in it}; meshes: of the same groups."""

    FLAGS = _abi.STATE_OWN

    def __init__(self, table, circles, meshes):
        super().__init__()
        self._numbers = {name: decl.reduce_group for name, decl in zip(table.names, table.decls)}
        self._circles, self._meshes = {number: circles[number] for number in sorted({*self._numbers.values()})}, meshes
        self._spans = {}  # of each file, in order: (first, end, whose: a group's number and its process, or None: all)
        self._missing = collections.defaultdict(list)  # of each group: what is needed and not here, (file, first, end)
        self._others = collections.defaultdict(list)  # of each group and file: what others may ask for, (first, end, bytes)
        self._lines, self.n_received = None, 0  # bytes

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
        at, self._at = self._at, self._at + nbytes
        if at == 0:  # the index, or a file's header
            self._spans[self._file] = [(0, nbytes, (None, None))]
            if self._file != state.INDEX:
                self._read_header(json.loads(C.string_at(data + 8, nbytes - 8)), nbytes)
        for begin, end, whose, _ in state.within(self._spans[self._file], at, at + nbytes):
            self._keep(begin, end, C.string_at(data + begin - at, end - begin) if data else None, *whose)

    def _keep(self, first, end, data, number, process):
        is_own = process is None or process == self._circles[number].rank
        if is_own and data is None:
            self._missing[number].append((self._file, first, end))
        elif is_own:
            self._open[first:end] = data
        if data is not None and (not is_own or number is not None and process is None):
            self._others[number, self._file].append((first, end, data))

    def _read_header(self, header, begin):
        del header["__metadata__"]
        spans = self._spans[self._file]
        for key, tensor in header.items():
            (array, _, name), shape = key.partition("/"), tensor["shape"]
            first, end = (begin + offset for offset in tensor["data_offsets"])
            number = self._numbers[name] if array in ("w", "m", "v") else None  # else each is given all of it
            if number is not None and shape:
                row = (end - first) // shape[0]
                spans += [(first + own * row, first + behind * row, (number, rank)) for rank, (own, behind) in enumerate(self._parts(name, shape[0]))
                          if own < behind]
            else:
                spans.append((first, end, (number, None)))
        spans.sort(key=lambda span: span[:2])

    def saved(self):
        """A call of all processes."""
        self._lines = {number: circle.connect() for number, circle in self._circles.items() if circle.size > 1}
        self._fetch()

    def _fetch(self):
        """The missing ranges. A call of all processes."""
        files = [*self.blobs]
        n_missing = sum(end - first for ranges in self._missing.values() for _, first, end in ranges)
        for number in self._lines:
            wanted = b"".join(_RANGE.pack(files.index(file), first, end - first) for file, first, end in self._missing[number])
            asked = self._swap(number, [wanted] * self._circles[number].size)
            for answer in self._swap(number, [self._answer(files, number, ranges) for ranges in asked]):
                n_missing -= self._take_answer(files, answer)
        if n_missing:
            raise errors.InternalError(f"{n_missing} bytes of the rows that this process needs of the state were kept by no process, or by several")
        self._missing.clear()
        self._others.clear()

    def _swap(self, number, messages):
        """The bytes that the processes of a group have for this one, of which messages are for them."""
        line, rank = self._lines[number], self._circles[number].rank
        peers = [peer for peer in range(len(messages)) if peer != rank]

        def exchange(out, into):
            for work in [*(line.recv([into[peer]], peer, 0) for peer in peers), *(line.send([out[peer]], peer, 0) for peer in peers)]:
                work.wait()
            return into
        sizes = exchange([torch.tensor([len(message)], device="cpu") for message in messages], [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in messages])
        found = [bytearray(int(size) + 1) for size in sizes]  # gloo sends nothing that is empty
        exchange([_view(bytearray(message + b"."), 0, len(message) + 1) for message in messages], [_view(into, 0, len(into)) for into in found])
        return [memoryview(into)[:-1] if peer != rank else b"" for peer, into in enumerate(found)]

    def _answer(self, files, number, ranges):
        """The bytes that this process has of it: ranges, each with its bytes behind it."""
        out = []
        for file, first, nbytes in _RANGE.iter_unpack(ranges):
            for begin, end, data, at in state.within(self._others[number, files[file]], first, first + nbytes):
                out += [_RANGE.pack(file, begin, end - begin), data[begin - at:end - at]]
        return b"".join(out)

    def _take_answer(self, files, answer):
        """How many bytes of rows it has."""
        at = n_taken = 0
        while at < len(answer):
            file, first, nbytes = _RANGE.unpack_from(answer, at)
            at += _RANGE.size
            self.blobs[files[file]][first:first + nbytes] = answer[at:at + nbytes]
            at += nbytes
            n_taken += nbytes
        self.n_received += at
        return n_taken

    # ---- a load ------------------------------------------------------------------------------------------------------

    def put(self, name, at, address, nbytes, owner):
        self.blobs[name][at:at + nbytes] = C.string_at(address, nbytes)

    def _want(self, name, offset, nbytes):
        if name is None:
            for file, spans in self._spans.items():
                for first, end, (number, process) in spans:
                    if process is not None and process == self._circles[number].rank:
                        self._others[number, file].append((first, end, memoryview(self.blobs[file])[first:end]))
            return self._fetch()
        file = C.string_at(name).decode()
        for first, end, (number, process), _ in state.within(self._spans[file], offset, offset + nbytes):
            if process is not None and process != self._circles[number].rank:
                self._missing[number].append((file, first, end))


def _view(blob, first, end):
    return torch.frombuffer(blob, dtype=torch.uint8, count=end - first, offset=first)
