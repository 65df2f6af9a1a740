# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of an instance through zf.state/1: into a directory, or as named blobs in memory.

Model: a checkpoint is a JSON index and safetensors files of plain tensors per logical parameter, as the plugin writes them;
this module only moves bytes. Save between steps: gradients that were delivered but not stepped are not part of it. Load
checks everything before it changes anything, and needs parameters bound by the same names and shapes.
"""
import bisect
import collections
import ctypes as C
import json
import os
import zlib

from . import _abi, errors

INDEX = _abi.STATE_INDEX
OFFSET, NBYTES, CRC32 = range(3)  # of a tensor, in the index


def read_index(blobs):
    """The index of named blobs as a dict; ValueError where its checksum is wrong."""
    head, text = bytes(blobs[INDEX]).split(b"\n", 1)
    if b'"crc32":"%08x"' % zlib.crc32(text[:-1]) not in head:
        raise ValueError("damaged")
    return json.loads(b"{" + text)


def write_index(blobs, index):
    """Puts a changed index in its place, with its checksum."""
    head = bytes(blobs[INDEX]).split(b"\n", 1)[0]
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=False)[1:].encode()
    before, after = head.split(b'"crc32":"')
    blobs[INDEX] = before + b'"crc32":"%08x' % zlib.crc32(text) + after[8:] + b"\n" + text + b"\n"


def rename(blobs, names):
    """Gives the parameters of a checkpoint other names, {saved: new}, in its index and in its files' headers."""
    index = read_index(blobs)
    grown = []
    for file in index["files"]:
        old, blob = file["header_nbytes"], blobs[file["name"]]
        header = _renamed_header(blob, old, names)
        blobs[file["name"]] = header + bytes(blob[old:])
        grown.append(len(header) - old)
        file.update(header_nbytes=len(header), header_crc32=zlib.crc32(header), nbytes=file["nbytes"] + grown[-1])
    for param in index["params"]:
        param["name"] = names.get(param["name"], param["name"])
        for place in param["tensors"].values():
            place[OFFSET] += grown[param["file"]]
    write_index(blobs, index)


def _renamed_header(blob, nbytes, names):
    """The head of a safetensors file: length, JSON, blanks to a multiple of 8. Tensors are named ARRAY/PARAMETER."""
    header = {}
    for key, value in json.loads(bytes(blob[8:nbytes])).items():
        array, slash, name = key.partition("/")
        header[array + slash + names.get(name, name)] = value
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def within(spans, first, end):
    """The spans (first, end, what) in order, which do not overlap, those that meet this one, cut to it: (first, end, what, first of it uncut)."""
    at = max(0, bisect.bisect(spans, (first, 1 << 63)) - 1)
    while at < len(spans) and spans[at][0] < end:
        begin, behind, what = spans[at]
        at += 1
        if max(begin, first) < min(behind, end):
            yield max(begin, first), min(behind, end), what, begin


class Blobs:
    """zf_state_store_t over {name: bytearray}. A Python error inside a callback ends the call and is raised after it."""

    FLAGS = 0  # of a save into them and a load

    def __init__(self, blobs=None):
        self.blobs = {} if blobs is None else blobs
        self.problem = None
        self._over = collections.defaultdict(list)  # of each blob, in order: (first, end, address) of memory that is read in its place
        self._kept = []  # what that memory belongs to
        self._open, self._at = None, 0

    def table(self):
        """For one call: it holds this object."""
        members = dict(_abi.StateStore._fields_)
        return _abi.StateStore(struct_size=C.sizeof(_abi.StateStore), **{
            name: members[name](self._guarded(getattr(self, "_" + name))) for name in ("begin", "write", "end", "size", "read", "want")})

    def put(self, name, at, address, nbytes, owner):
        """From now on this memory is read at this place of a blob, which may end before it. owner: is kept alive."""
        over = self._over[name]
        number = bisect.bisect(over, (at,))
        is_there = number < len(over) and over[number][0] == at
        over[number:number + is_there] = [(at, at + nbytes, address)]
        self._kept.append(owner)

    def own(self, name, shape):
        """The index of what is here of a parameter, as an index."""
        return ...

    def saved(self):
        """A save has ended well."""

    def _guarded(self, function):
        def call(_ctx, *args):
            try:
                return function(*args) or 0
            except BaseException as problem:  # noqa: BLE001 - must not pass through C
                self.problem = problem
                return -1

        return call

    def _begin(self, name, nbytes):
        self._open, self._at = bytearray(nbytes), 0
        self.blobs[C.string_at(name).decode()] = self._open

    def _write(self, data, nbytes):
        if nbytes:
            self._open[self._at:self._at + nbytes] = C.string_at(data, nbytes)
        self._at += nbytes

    def _end(self):
        if self._at != len(self._open):
            raise errors.InternalError(f"a blob of {len(self._open)} bytes got {self._at}")

    def _size(self, name, out):
        name = C.string_at(name).decode()
        blob = self.blobs.get(name)
        if blob is None:
            return -1
        C.c_uint64.from_address(out).value = max([len(blob), *(end for _, end, _ in self._over[name][-1:])])
        return 0

    def _read(self, name, offset, out, nbytes):
        name = C.string_at(name).decode()
        part = memoryview(self.blobs[name])[offset:offset + nbytes]
        n_read = len(part)
        if n_read:
            C.memmove(out, bytes(part), n_read)
        for begin, end, address, at in within(self._over[name], offset, offset + nbytes):
            C.memmove(out + begin - offset, address + begin - at, end - begin)
            n_read += max(0, end - max(begin, offset + len(part)))
        return 0 if n_read == nbytes else -1

    def _want(self, name, offset, nbytes):
        """With STATE_OWN: what will be read; name = None: that was all."""


def _extension(instance):
    ext = instance.lib.extension(_abi.EXT_STATE, _abi.StateExt)
    if ext is None:
        raise errors.UnsupportedFieldError(f"{instance.lib.file} has no {_abi.EXT_STATE}: it cannot save or load training state; "
                                           "use a newer libzfplugin")
    return ext


def _call(instance, slot, where, flags, note, doing):
    """where: a path, or Blobs. Report as a dict."""
    args = _abi.StateArgs(struct_size=C.sizeof(_abi.StateArgs), flags=flags,
                          note=note.encode() if note is not None else None)
    if isinstance(where, Blobs):
        table = where.table()
        args.store = C.addressof(table)
    else:
        args.path = os.fsencode(where)
    report = _abi.StateReport(struct_size=C.sizeof(_abi.StateReport))
    try:
        instance.call(slot, C.byref(args), C.byref(report), doing=doing)
    except errors.StorageError as problem:
        if isinstance(where, Blobs) and where.problem is not None:
            raise where.problem from problem
        raise
    out = {name: getattr(report, name) for name, _ in _abi.StateReport._fields_[1:]}
    return {**out, "continues": bool(report.continues)}


def save(instance, where, keep_open=False, note=None):
    """Saves into a directory (replaced when complete) or Blobs; note: text kept in it. Windows close, so that the instance goes on as one that loads it; keep_open: it is not changed."""
    blobs = where if isinstance(where, Blobs) else Blobs()
    report = _call(instance, _extension(instance).save, where, _abi.STATE_KEEP_OPEN * keep_open | blobs.FLAGS, note, "save")
    blobs.saved()
    return report


def load(instance, where, partial=False):
    """Loads from a directory or Blobs. partial: parameters that the checkpoint lacks keep what they have."""
    flags = where.FLAGS if isinstance(where, Blobs) else 0
    return _call(instance, _extension(instance).load, where, _abi.STATE_PARTIAL * partial | flags, None, "load")
