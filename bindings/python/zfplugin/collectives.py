# SPDX-License-Identifier: Apache-2.0
"""zf.collectives/0 out of Python: how the ranks of a job exchange bytes for the plugin, over whatever they talk through.

Model: a Collectives is handed to Instance(collectives=...), which offers its table to the plugin. Where, when and in what
order something is exchanged is the plugin's; a subclass moves the bytes. The plugin asks on threads of its own (one per
lane), which take the interpreter's lock for the length of a call: start() and test() only hand over and look. Nothing that
these functions raise leaves them: it becomes the plugin's error, which names the exchange, the bucket and the step.

zfplugin.torch.ranks is the one over torch.distributed.
"""
import ctypes as C
import dataclasses
import struct
import zlib

from . import _abi, errors

N_LANES = 5  # the plugin's; a lane of a higher number shares with one of these


@dataclasses.dataclass(frozen=True)
class Call:
    """One exchange (zf_collective_t). send, recv: addresses of [size][nbytes]; send is 0 of an all-gather, whose own part
    lies in recv already."""

    lane: int
    send: int
    recv: int
    nbytes: int
    number: int
    tag: int  # made of all that it is for, 31 bits: calls that differ must not be taken for each other
    group: int = 0  # the process group's number


def _tag(raw, generation):
    words = struct.pack("<IiiIIQQQ", generation, raw.kind, raw.purpose, raw.bucket, raw.lane, raw.step, raw.number, raw.nbytes)
    return zlib.crc32(words) & 0x7FFFFFFF


class Collectives:
    """Base: a subclass has rank, size (of group 0), and the functions below. close() ends it, after the instances that use
    it."""

    rank, size = 0, 1

    def __init__(self):
        self._generation = 0  # instances that were made with this, one after the other
        self._requests = {}   # by the number that the plugin has of each
        kinds = dict(_abi.CollectivesExt._fields_)
        functions = {name: kinds[name](_guarded(getattr(self, f"_on_{name}"))) for name in ("group", "start", "test", "abort")}
        # the table must outlive the instance, which keeps this object
        self._table = _abi.CollectivesExt(struct_size=C.sizeof(_abi.CollectivesExt), **functions)

    # ---- for a subclass ----------------------------------------------------------------------------------------------

    def place(self, group):
        """(rank, size) in a process group, or None where there is none of that number."""
        return (self.rank, self.size) if group == 0 else None

    def start(self, call):
        """Begins a Call and returns a request, any object. Does not wait."""
        raise NotImplementedError

    def test(self, request):
        """Whether it is over. Raises where it failed. Does not wait."""
        raise NotImplementedError

    def abort(self, request):
        """Gives it up. Whether its memory is touched no more."""
        return False

    def close(self):
        """Idempotent."""

    # ---- the plugin's side -------------------------------------------------------------------------------------------

    def extension(self, name):
        """Address of the table, or None."""
        return C.addressof(self._table) if name == _abi.EXT_COLLECTIVES.encode() else None

    def _on_group(self, group, out_rank, out_size):
        place = self.place(group)
        if place is None:
            raise errors.RanksError(f"there is no process group {group}")
        self._generation += group == 0  # an instance asks for that once
        C.c_uint32.from_address(out_rank).value, C.c_uint32.from_address(out_size).value = place
        return _abi.OK

    def _on_start(self, raw, out_request):
        raw = _abi.Collective.from_address(raw)
        call = Call(raw.lane % N_LANES, raw.send or 0, raw.recv, raw.nbytes, raw.number, _tag(raw, self._generation), raw.group)
        request = self.start(call)
        self._requests[id(request)] = request
        C.c_uint64.from_address(out_request).value = id(request)
        return _abi.OK

    def _on_test(self, number):
        if not self.test(self._requests[number]):
            return _abi.IN_PROGRESS
        del self._requests[number]
        return _abi.OK

    def _on_abort(self, number):
        request = self._requests.get(number)
        if request is None or not self.abort(request):
            return _abi.ERR_RANKS  # kept, with what it reads and writes
        del self._requests[number]
        return _abi.OK


def _guarded(function):
    """For the table: what is raised becomes a record, if there is one, and a status."""
    def call(_ctx, *args):
        *own, record = args
        try:
            return function(*own)
        except BaseException as problem:  # noqa: BLE001 - there is nobody above to handle it
            return _fail(record, problem)
    return call


def _fail(address, problem):
    """Writes a record if there is one; the status."""
    if address and C.c_uint32.from_address(address).value >= C.sizeof(_abi.Error):
        text = str(problem) if isinstance(problem, errors.ZfError) else f"{type(problem).__name__}: {problem}"
        record = _abi.Error.from_address(address)
        record.status, record.origin = _abi.ERR_RANKS, b"zfplugin"
        record.message = text.encode("utf-8", "replace")[:_abi.Error.message.size - 1]
    return _abi.ERR_RANKS
