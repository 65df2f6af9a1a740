# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: two processes (gloo, on the loopback) with a whole optimizer each. Gradients are
averaged by torch, so all ranks make the same steps; beside torch's AdamW under the same DDP, and against the other rank."""
import unittest

from ranks_worker import assert_same_on_all_ranks
from support import ALL_SELECTED, HYPER, SYNCHRONOUS, config, loss_of, mlp, torch, worst
from test_torch_ranks import run_ranks

N_STEPS = 12


def make_pair(mode, n_hidden=2, **kwargs):
    """A model, the model in DDP, and the optimizer: of ours, and of AdamW."""
    import zfplugin.torch

    wrap = torch.nn.parallel.DistributedDataParallel
    ours, theirs = mlp(n_hidden=n_hidden), mlp(n_hidden=n_hidden)
    opt = zfplugin.torch.ZenFlow(ours.named_parameters(), **HYPER, config=config(mode), model=ours, overlap=True)
    return [(ours, wrap(ours, **kwargs), opt), (theirs, wrap(theirs, **kwargs), torch.optim.AdamW(theirs.parameters(), **HYPER))]


def one_step(ddp, opt, i, n_backwards=1):
    rank = torch.distributed.get_rank()
    opt.zero_grad()
    for part in range(n_backwards - 1):
        with ddp.no_sync():
            loss_of(ddp, 100 * i + 10 * rank + part).backward()
    loss_of(ddp, 100 * i + 10 * rank + 9).backward()
    opt.step()


def as_adamw():
    for mode in (SYNCHRONOUS, {**ALL_SELECTED, "zenflow.full_warm_up_rounds": 3}):
        for kwargs in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
            for n_backwards in (1, 3):
                if n_backwards > 1 and "static_graph" in kwargs:
                    continue  # torch does not take both
                pair = make_pair(mode, **kwargs)
                for i in range(N_STEPS):
                    for _, ddp, opt in pair:
                        one_step(ddp, opt, i, n_backwards)
                difference, name = worst(pair[0][0], pair[1][0])
                assert difference < 2e-5, (mode, kwargs, n_backwards, difference, name)
                assert_same_on_all_ranks(pair[0][0])
                pair[0][2].close()


def shipped_before_they_are_averaged():
    """More gradients than the plugin gathers before it reads: most are read in backward, each rank's own, and again at step."""
    pair = make_pair(SYNCHRONOUS, n_hidden=20)
    for i in range(4):
        for _, ddp, opt in pair:
            one_step(ddp, opt, i)
    difference, name = worst(pair[0][0], pair[1][0])
    assert difference < 2e-5, (difference, name)
    assert_same_on_all_ranks(pair[0][0])
    assert pair[0][2].stats()["lost_overlap_nbytes"] > 0, "nothing was shipped early"
    pair[0][2].close()


@unittest.skipUnless(torch.distributed.is_available() and torch.distributed.is_gloo_available(), "no torch with gloo")
class Ranks(unittest.TestCase):
    def test_two(self):
        run_ranks(2, __name__, "as_adamw", "shipped_before_they_are_averaged")
