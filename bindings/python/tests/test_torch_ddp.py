# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: two processes (gloo, over a file and the loopback) with a whole optimizer each. Gradients are
averaged by torch, so all ranks make the same steps; beside torch's AdamW under the same DDP, and against the other rank."""
import copy
import os
import tempfile
import unittest

from support import ALL_SELECTED, SYNCHRONOUS, config, loss_of, mlp, torch, worst
from test_torch_edits import HYPER, WINDOWS

N_RANKS, N_STEPS = 2, 12


def make_pair(mode, n_hidden=2, **kwargs):
    """A model, the model in DDP, and the optimizer: of ours, and of AdamW."""
    import zfplugin.torch

    wrap = torch.nn.parallel.DistributedDataParallel
    ours, theirs = mlp(n_hidden=n_hidden), mlp(n_hidden=n_hidden)
    opt = zfplugin.torch.ZenFlow(ours.named_parameters(), **HYPER, config=config(mode), model=ours, overlap=True)
    return [(ours, wrap(ours, **kwargs), opt), (theirs, wrap(theirs, **kwargs), torch.optim.AdamW(theirs.parameters(), **HYPER))]


def one_step(ddp, opt, i, rank, n_backwards=1):
    opt.zero_grad()
    for part in range(n_backwards - 1):
        with ddp.no_sync():
            loss_of(ddp, 100 * i + 10 * rank + part).backward()
    loss_of(ddp, 100 * i + 10 * rank + 9).backward()
    opt.step()


def assert_same_on_all_ranks(model):
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    gathered = [torch.empty_like(flat) for _ in range(N_RANKS)]
    torch.distributed.all_gather(gathered, flat)
    assert torch.equal(*gathered), "the ranks have different weights"


def as_adamw(rank):
    for mode in (SYNCHRONOUS, {**ALL_SELECTED, "zenflow.full_warm_up_rounds": 3}):
        for kwargs in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
            for n_backwards in (1, 3):
                if n_backwards > 1 and "static_graph" in kwargs:
                    continue  # torch does not take both
                pair = make_pair(mode, **kwargs)
                for i in range(N_STEPS):
                    for _, ddp, opt in pair:
                        one_step(ddp, opt, i, rank, n_backwards)
                difference, name = worst(pair[0][0], pair[1][0])
                assert difference < 2e-5, (mode, kwargs, n_backwards, difference, name)
                assert_same_on_all_ranks(pair[0][0])
                pair[0][2].close()


def shipped_before_they_are_averaged(rank):
    """More gradients than the plugin gathers before it reads: most are read in backward, each rank's own, and again at step."""
    pair = make_pair(SYNCHRONOUS, n_hidden=20)
    for i in range(4):
        for _, ddp, opt in pair:
            one_step(ddp, opt, i, rank)
    difference, name = worst(pair[0][0], pair[1][0])
    assert difference < 2e-5, (difference, name)
    assert_same_on_all_ranks(pair[0][0])
    assert pair[0][2].stats()["lost_overlap_nbytes"] > 0, "nothing was shipped early"
    pair[0][2].close()


def in_windows_and_resumed(rank):
    """Ranks stay equal to the bit, also after a resume, and state_dict() of the wrapper has the final weights."""
    (model, ddp, opt), _ = make_pair(WINDOWS)
    for i in range(9):
        one_step(ddp, opt, i, rank)
        assert_same_on_all_ranks(model)
    saved = copy.deepcopy({"model": ddp.state_dict(), "opt": opt.state_dict()})
    for name, final in opt.export().items():
        assert torch.equal(saved["model"][f"module.{name}"], final), name
    (other, other_ddp, other_opt), _ = make_pair(WINDOWS)
    other_ddp.load_state_dict(saved["model"])
    other_opt.load_state_dict(saved["opt"])
    for i in range(9, 20):
        one_step(ddp, opt, i, rank)
        one_step(other_ddp, other_opt, i, rank)
        assert worst(model, other)[0] == 0, f"step {i}"
    opt.flush()
    assert_same_on_all_ranks(model)
    opt.close()
    other_opt.flush()
    other_opt.close()


def work(rank, case, folder):
    import logging

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    logging.getLogger("zfplugin").setLevel(logging.ERROR)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{case.__name__}", rank=rank, world_size=N_RANKS)
    try:
        case(rank)
    finally:
        torch.distributed.destroy_process_group()


@unittest.skipUnless(torch and torch.distributed.is_available() and torch.distributed.is_gloo_available(), "no torch with gloo")
class Ranks(unittest.TestCase):
    def run_case(self, case):
        import torch.multiprocessing
        with tempfile.TemporaryDirectory() as folder:
            # forks of this process, which has imported all that they need and computes nothing itself (test_torch_ranks.py)
            torch.multiprocessing.start_processes(work, (case, folder), nprocs=N_RANKS, start_method="fork")

    def test_is_adamw(self):
        self.run_case(as_adamw)

    def test_shipped_before_they_are_averaged(self):
        self.run_case(shipped_before_they_are_averaged)

    def test_in_windows_and_resumed(self):
        self.run_case(in_windows_and_resumed)


if __name__ == "__main__":
    unittest.main()
