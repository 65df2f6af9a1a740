# SPDX-License-Identifier: Apache-2.0
"""The programs of each rank of test_torch_ranks.py in which one dies, stops or ends before the others."""
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist
from ranks_worker import STAGES, SYNCHRONOUS, backward, make, raises

import zfplugin
import zfplugin.torch.ranks


def survives(group, victim, signal_number, kind):
    """victim does this to itself in mid-training; every other rank's next step is an error that names it, and the end."""
    model, opt = make({**SYNCHRONOUS, **STAGES[1], "host.deadline_ms": 10000}, group)
    for step in range(6):
        backward(model, step)
        if step == 5 and dist.get_rank() == victim:
            os.kill(os.getpid(), signal_number)
        if step < 5:
            opt.step()
            opt.zero_grad()
    assert opt._binding.feed.is_shipping, "nothing travels in backward"
    problem = raises(kind, f"rank {victim}", opt.step)
    assert problem.scope == "instance", problem.scope
    raises(zfplugin.errors.ZfError, f"rank {victim}", opt.step)
    opt.close()
    print(f"rank {dist.get_rank()}: {problem}", flush=True)


def faults():
    """The last rank is killed, then the one before it, in a group of some of the ranks, is stopped."""
    some = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        raises(zfplugin.errors.ArgumentError, "member", lambda: make({}, some))
    survives(None, 2, signal.SIGKILL, zfplugin.errors.RanksError)
    survives(some, 1, signal.SIGSTOP, zfplugin.errors.DeadlineError)
    print("rank 0 is done", flush=True)
    sys.exit(0)


class Slow:
    """Takes its time to go, at the very end of Python."""

    def __del__(self, sleep=time.sleep):
        sleep(5)


def ends_alone():
    """Rank 0 ends in the middle of an exchange, for which rank 1 does not come. Rank 1 ends while Python does in rank 0, which
    wakes what still waits there. A fork ends without Python's end: here it has one."""
    ranks = zfplugin.torch.ranks.open_ranks(dist.group.WORLD, None, {"reduced_over": [], "shared_over": []}, 30000)
    memory = (ctypes.c_ubyte * 16)()
    if dist.get_rank() == 0:
        globals()["slow"] = Slow()
        ranks.start(zfplugin.collectives.Call(lane=0, send=0, recv=ctypes.addressof(memory), nbytes=8, number=1, tag=5))
        time.sleep(0.5)  # its thread waits
    else:
        time.sleep(4)
    ranks.close()
    dist.destroy_process_group()
    ctypes.pythonapi.Py_Exit(0)


def ended_after_a_death():
    """Rank 2 is killed; rank 0 fails and ends; only then does rank 1 exchange: it finds two closed connections, and names no rank
    that ended because of the other."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    ranks = zfplugin.torch.ranks.open_ranks(dist.group.WORLD, None, {"reduced_over": [], "shared_over": []}, 30000)
    memory = (ctypes.c_ubyte * 24)()
    store.set(f"pid{rank}", str(os.getpid()))
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    while not has_ended(int(store.get("pid2" if rank == 0 else "pid0"))):
        time.sleep(0.01)
    request = ranks.start(zfplugin.collectives.Call(lane=0, send=0, recv=ctypes.addressof(memory), nbytes=8, number=1, tag=5))
    while not request.is_over:
        time.sleep(0.01)
    print(f"rank {rank} says: {request.problem}", flush=True)
    os._exit(0)


def has_ended(pid):
    """A zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
