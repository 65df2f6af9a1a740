# SPDX-License-Identifier: Apache-2.0
"""Ranks over torch.distributed: what the plugin exchanges travels as messages of gloo, in process groups of its own.

Model: the plugin's exchanges have lanes that are independent of each other. Each lane has a process group of its own over the
members of the user's group, whatever that one's backend is (what travels lies in host memory; nccl moves none) and outside of
torch's register of groups, so that neither the user's collectives nor another lane come between. A thread per lane makes
its exchanges one after the other: a message to and from every other rank, all begun at once, then waited for; waiting lets
go of the interpreter's lock.

Messages rather than collectives, since only so the parts of others are there as they come, and because their tags say what
they are for: ranks that do different things wait for each other until the plugin's deadline, and never take one thing for
another. The bytes are the same.

The groups' timeout is not less than the plugin's deadline, which the plugin keeps: its error names who is late; then gloo
closes the connections, which ends the waits of the lanes' threads. A rank that closes connections leaves a note in torch's
store before: so a closed connection names a rank that died, and none that ended because another one did.
"""
import ctypes as C
import datetime
import os
import queue
import socket
import threading
import zlib

import torch
import torch.distributed as dist

from .. import _abi, collectives, errors

LEAST_TIMEOUT_MS = 120_000  # others may be late to be made


class _Exchange:
    """The progress of one call. Written by the lane's thread, read by the plugin's."""

    def __init__(self, call):
        self.call, self.is_over, self.problem = call, False, None


class _Lane:
    """One process group, and the thread that uses it."""

    def __init__(self, store, rank, size, timeout, number):
        self.store, self.rank, self.size = store, rank, size
        self.backend = dist.ProcessGroupGloo(dist.PrefixStore(f"lane{number}", store), rank, size, timeout)
        self.queue = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True, name=f"zfplugin lane {number}")
        self.thread.start()

    def _work(self):
        while True:
            exchange = self.queue.get()
            if exchange is None:
                return
            try:
                self._make(exchange.call)
            except BaseException as problem:  # noqa: BLE001 - test() says it
                exchange.problem = problem
            exchange.is_over = True

    def _leave_note(self):
        """This rank has not died."""
        self.store.set(f"ended/{self.rank}", "")

    def _name(self, peer):
        """Whose connection is closed. This rank ends, too."""
        try:
            self._leave_note()
            has_died = not self.store.check([f"ended/{peer}"])
        except RuntimeError:  # the store is gone, perhaps with a rank that kept it
            has_died = False
        return f"rank {peer}" if has_died else "a rank that is not known has died or ended"

    def end(self):
        """After the last exchange. A thread that still waits for another rank when Python ends aborts the process, so it is
        woken: a message that does not come in time closes the group's connections."""
        self.thread.join(1.0)
        if not self.thread.is_alive():
            return
        try:
            self._leave_note()
            peer = (self.rank + 1) % self.size
            self.backend.recv([torch.empty(1, dtype=torch.uint8, device="cpu")], peer, 0).wait(datetime.timedelta(milliseconds=1))
        except RuntimeError:
            pass
        self.thread.join(10.0)

    def _begin(self, call):
        """(rank, message) in the order of distance, so that not all send to the same rank first."""
        n, own = call.nbytes, call.recv + self.rank * call.nbytes
        for distance in range(1, self.size if n else 1):
            peer = (self.rank - distance) % self.size
            yield peer, lambda: self.backend.recv([_bytes(call.recv + peer * n, n)], peer, call.tag)
        for distance in range(1, self.size if n else 1):
            peer = (self.rank + distance) % self.size
            yield peer, lambda: self.backend.send([_bytes(call.send + peer * n if call.send else own, n)], peer, call.tag)

    def _make(self, call):
        works = [(peer, self._try(peer, begin)) for peer, begin in self._begin(call)]
        for peer, work in works:
            self._try(peer, work.wait)

    def _try(self, peer, step):
        try:
            return step()
        except RuntimeError as problem:
            raise errors.RanksError(f"{self._name(peer)}: {problem}") from problem


def _bytes(address, nbytes):
    return torch.frombuffer((C.c_ubyte * nbytes).from_address(address), dtype=torch.uint8)


_n_made = {}  # of each group's name: how often Ranks were made of it; the store keeps the addresses of them all
ALL = 1  # the norm group's number
_FIRST_OWN = 0x40000002  # above those of number_of()


def number_of(group):
    """The plugin's number of a second group: the same on all of its members, whatever other groups each of them has."""
    return ALL + 1 + (zlib.crc32(group.group_name.encode()) & 0x3FFFFFFF)


def number_own(groups):
    """{id of a group: number} of those that parameters are reduced over in place of group 0. In a place of the order of
    parameters each process has another one (its expert's), under the same number: group 0 compares them."""
    return {id(group): _FIRST_OWN + i for i, group in enumerate(groups)}


class _Circle:
    """This process in one group. A group of one needs no lanes: nothing is exchanged in it."""

    def __init__(self, name, rank, size, timeout):
        self.rank, self.size, self.lanes, self._timeout, self._n_more = rank, size, [], timeout, 0
        _n_made[name] = _n_made.get(name, 0) + 1
        self.name = f"{name}/{_n_made[name]}"
        self.store = dist.PrefixStore(self.name, dist.distributed_c10d._get_default_store())
        if size > 1:
            self.lanes = [_Lane(self.store, rank, size, timeout, number) for number in range(collectives.N_LANES)]

    def connect(self):
        """A process group more over its members. A call of all of them."""
        self._n_more += 1
        return dist.ProcessGroupGloo(dist.PrefixStore(f"more{self._n_more}", self.store), self.rank, self.size, self._timeout)

    def by_machine(self, timeout):
        """The circles of its members on this machine, and its members of this one's place on each. A call of all members.
        torchrun says which machine it is; else its name does."""
        self.store.set(f"machine/{self.rank}", os.environ.get("GROUP_RANK") or socket.gethostname())
        machines = [self.store.get(f"machine/{rank}") for rank in range(self.size)]
        places = [machines[:rank].count(machine) for rank, machine in enumerate(machines)]
        here, place = machines[self.rank], places[self.rank]
        beside = [rank for rank in range(self.size) if machines[rank] == here]
        across = [rank for rank in range(self.size) if places[rank] == place]
        return (_Circle(f"{self.name}/machine{beside[0]}", place, len(beside), timeout),
                _Circle(f"{self.name}/place{place}", across.index(self.rank), len(across), timeout))


class Ranks(collectives.Collectives):
    """The ranks of process groups: {number: group}. Every member makes it, at the same place of its program. deadline_ms: the
    plugin's."""

    def __init__(self, groups, deadline_ms):
        super().__init__()
        timeout = datetime.timedelta(milliseconds=max(deadline_ms, LEAST_TIMEOUT_MS))
        self._timeout, self._n_gathered = timeout, 0
        self.groups = groups
        self.circles = {number: _Circle(f"zfplugin/{group.group_name}", dist.get_rank(group), dist.get_world_size(group), timeout)
                        for number, group in groups.items()}
        self.rank, self.size = self.place(0) or (0, 1)
        everyone = self.circles.get(ALL) or self.circles[0]
        self._agreements = dist.ProcessGroupGloo(dist.PrefixStore("agreements", everyone.store), everyone.rank, everyone.size, timeout)
        self._patience = datetime.timedelta(milliseconds=deadline_ms * 2 // 3)

    def agree(self, flag, doing="step"):
        """Whether one of all that train together says so; None where it failed, for good. A call of all of them; a process that does not come, or
        comes for something else, is named by the plugin's own exchanges."""
        kind = zlib.crc32(doing.encode()) & 0x7F
        said, options = torch.tensor([flag, kind, 0x7F - kind], dtype=torch.uint8, device="cpu"), dist.AllreduceOptions()
        options.reduceOp, options.timeout = dist.ReduceOp.MAX, self._patience
        try:
            self._agreements.allreduce([said], options).wait()
        except (RuntimeError, AttributeError):
            self._agreements = None  # nobody waits for this one's
        if self._agreements is None or said[1] + said[2] != 0x7F:  # most and least are one
            return None
        return bool(said[0])

    def gather(self, text):
        """The texts of all that train together, by rank. A call of all of them."""
        everyone, self._n_gathered = self.circles.get(ALL) or self.circles[0], self._n_gathered + 1
        everyone.store.set(f"text{self._n_gathered}/{everyone.rank}", text)
        return [everyone.store.get(f"text{self._n_gathered}/{rank}").decode() for rank in range(everyone.size)]

    def place(self, group):
        if group == _abi.GROUP_NODE and group not in self.circles and 0 in self.circles:
            beside, across = self.circles[0].by_machine(self._timeout)
            self.circles.update({_abi.GROUP_NODE: beside, _abi.GROUP_ACROSS: across})
        circle = self.circles.get(group)
        if circle is None:
            return (0, 1) if group == 0 else None  # this process alone
        return circle.rank, circle.size

    def start(self, call):
        exchange = _Exchange(call)
        self.circles[call.group].lanes[call.lane].queue.put(exchange)
        return exchange

    def test(self, request):
        if request.problem is not None:
            raise request.problem
        return request.is_over

    def abort(self, request):
        return request.is_over and request.problem is None

    def close(self):
        lanes = [lane for circle in self.circles.values() for lane in circle.lanes]
        for circle in self.circles.values():
            circle.lanes = []
        for lane in lanes:
            lane.queue.put(None)
        for lane in lanes:
            lane.end()


def check_group(group, argument):
    """Raises where this process is no member of a group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise errors.ArgumentError(f"{argument}=... needs torch.distributed: call torch.distributed.init_process_group() before")
    if group is dist.GroupMember.NON_GROUP_MEMBER or not isinstance(group, dist.ProcessGroup):
        raise errors.ArgumentError(f"{argument} is {group!r}; need a torch.distributed.ProcessGroup that this process is a member "
                                   "of, such as torch.distributed.group.WORLD")
    if not dist.is_gloo_available():
        raise errors.ArgumentError(f"{argument}=... needs gloo, which this build of torch lacks: what ranks exchange lies in host "
                                   "memory")


def open_ranks(group, norm_group, others, deadline_ms):
    """Ranks of these groups, or None where this process trains alone. others: {"reduced_over", "shared_over": groups of some
    parameters}."""
    for given, argument in [(group, "group"), (norm_group, "norm_group")]:
        if given is not None:
            check_group(given, argument)
    for argument, some in others.items():
        for given in some:
            check_group(given, argument)
    if others["shared_over"] and norm_group is None:
        raise errors.ArgumentError("shared_over of declare=... needs norm_group=...: the group of all processes that train the model together")
    if norm_group is None and (group is None or dist.get_world_size(group) == 1):
        return None
    own = others["reduced_over"]
    groups = {0: group, ALL: norm_group, **{number_of(second): second for second in others["shared_over"]},
              **{number_own(own)[id(given)]: given for given in own}}
    return Ranks({number: given for number, given in groups.items() if given is not None}, deadline_ms)
