# SPDX-License-Identifier: Apache-2.0
"""Several ranks that train as one (ZenFlow(group=...)), with gloo on the loopback: what each rank does is ranks_worker.py, faults_worker.py or
spread_worker.py. Beside torch's AdamW on the whole batch, across stages to the bit, and with a rank that dies or stops. Parameters that
torch has cut over processes: cut_worker.py. On more processes, and resumed on others: test_torch_spread.py.

Ranks are forks of this process, which has imported all that they need and computes nothing itself: importing it in each of them takes
longer than what they do."""
import contextlib
import importlib
import logging
import os
import shutil
import signal
import tempfile
import time
import unittest
from pathlib import Path

from support import TorchTest, torch

try:
    import torch._dynamo  # which an optimizer imports where nobody has: for seconds, in each rank
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
LONGEST = 500  # seconds until a job counts as hung


def run_rank(rank, n_ranks, folder, worker, cases):
    """[a fork]"""
    for name in ("zfplugin", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=n_ranks)
    for name in cases:
        getattr(worker, name)()
        if rank == 0:
            print(f"done: {name}", flush=True)
    torch.distributed.barrier()


def run_to_file(rank, n_ranks, folder, case):
    """[a fork]"""
    file = os.open(f"{folder}/said{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    run_rank(rank, n_ranks, folder, importlib.import_module("faults_worker"), [case])


def run_ranks(n_ranks, worker, *cases):
    """Runs cases of a worker's module on ranks that are forks of this process, which has imported it. One that fails, or the time, ends
    the others."""
    worker, end = importlib.import_module(worker), time.monotonic() + LONGEST
    with tempfile.TemporaryDirectory() as folder:
        ranks = torch.multiprocessing.start_processes(run_rank, (n_ranks, folder, worker, cases), n_ranks, join=False, start_method="fork")
        while not ranks.join(timeout=max(0.0, end - time.monotonic())):
            if time.monotonic() > end:
                for process in ranks.processes:
                    process.kill()
                raise AssertionError(f"{worker.__name__} {cases}: the job hung")


@unittest.skipUnless(torch.distributed.is_available() and torch.distributed.is_gloo_available(), "no torch with gloo")
class Ranks(TorchTest):
    def test_two(self):
        run_ranks(2, "ranks_worker", "as_adamw", "stages_agree", "overlapped", "edited_row", "changed_after_backward", "taken_out",
                  "dropped", "read_by_one", "refused", "names_whose_it_was", "under_ddp", "muon")

    def test_three(self):
        run_ranks(3, "ranks_worker", "on_queues")

    def test_four(self):
        run_ranks(4, "ranks_worker", "two_levels")

    def test_sharded_state(self):
        run_ranks(4, "spread_worker", "sharded_state")

    @contextlib.contextmanager
    def forked(self, case, n_ranks):
        """Ranks that nothing ends with one of them, and a function that waits for one: what it said."""
        folder, make = tempfile.mkdtemp(), torch.multiprocessing.get_context("fork").Process
        self.addCleanup(shutil.rmtree, folder)
        ranks = [make(target=run_to_file, args=(rank, n_ranks, folder, case)) for rank in range(n_ranks)]

        def said(rank):
            ranks[rank].join(LONGEST)
            return Path(folder, f"said{rank}").read_text()
        for rank in ranks:
            rank.start()
        try:
            yield ranks, said
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()

    def test_a_rank_that_dies_or_stops(self):
        with self.forked("faults", 3) as (ranks, said):
            outputs = [said(0)]
            for rank in ranks:
                rank.kill()  # it is stopped, or dead
            outputs += [said(1), said(2)]
        self.assertIn("rank 0 is done", outputs[0])
        self.assertIn("rank 0: rank 1 has not come", outputs[0])
        self.assertIn("rank 1: rank 1 of 3: ", outputs[1])
        self.assertEqual(ranks[2].exitcode, -signal.SIGKILL)

    def test_whoever_ends_because_another_died_is_not_named(self):
        with self.forked("ended_after_a_death", 3) as (_, said):
            outputs = [said(rank) for rank in range(3)]
        self.assertIn("rank 0 says: rank 2: ", outputs[0])
        self.assertRegex(outputs[1], "rank 1 says: (rank 2|a rank that is not known)")

    def test_a_process_that_ends_while_another_is_awaited(self):
        with self.forked("ends_alone", 2) as (ranks, said):
            output = said(0)
        self.assertEqual(ranks[0].exitcode, 0, output)


@unittest.skipUnless(fully_shard and torch.distributed.is_gloo_available(), "no torch (2.6) with gloo, fully_shard")
class Cut(TorchTest):
    def test_two(self):
        run_ranks(2, "cut_worker", "offloaded", "shipped_in_backward", "skips_alike", "edited", "evaluated", "muon", "refused_of_two")

    def test_tensor_parallel(self):
        """Two by two processes."""
        run_ranks(4, "cut_worker", "as_one", "scalars", "refused")
