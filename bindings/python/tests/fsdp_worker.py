# SPDX-License-Identifier: Apache-2.0
"""What each rank of test_torch_ranks.py does: FSDP2's fully_shard has cut the
parameters, and each process trains its part."""
import torch
import torch.distributed as dist
from ranks_worker import DEFERRED, HYPER, advance, backward, beside_unedited, raises, whole_of
from support import SYNCHRONOUS, config, mlp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import zfplugin
import zfplugin.torch
from zfplugin.torch.cut import local


def cut_model(width=25, n_hidden=2, n_more=0):
    """Two layers and the rest, each cut by rows: 25 rows over 2 or 4 processes are uneven, the last layer's 4 are few, and of n_more more
    rows the last process has none."""
    model = mlp(width=width, n_hidden=n_hidden)
    if n_more:
        model.append(nn.Linear(4, n_more))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def shipped_in_backward():
    """Beside AdamW under fully_shard: more gradients than the plugin gathers before it reads, so most are read in backward, each process's
    part; with accumulation; clipped by the joint norm. (On the whole batch: tensor_worker.)"""
    for n_parts in (1, 2):
        ours, theirs = cut_model(n_hidden=20), cut_model(n_hidden=20)
        opt = zfplugin.torch.ZenFlow(ours.named_parameters(), **HYPER, config=config(SYNCHRONOUS), overlap=True, clip_norm=0.3,
                                     accumulation_steps=n_parts)
        reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
        for step in range(3):
            backward(ours, step, n_parts)
            assert not step or any(grad is not None for grad in opt._binding.feed.held), "nothing was shipped"
            backward(theirs, step, n_parts)
            nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
            for optimizer in (opt, reference):
                advance(optimizer)
        expected = whole_of(theirs)
        assert all((values - expected[name]).abs().max() < 2e-5 for name, values in whole_of(ours).items())
        assert n_parts > 1 or opt.stats()["lost_overlap_nbytes"] == 0
        opt.close()


def skips_alike():
    """A gradient that is not finite in one process's part alone: all skip, and nothing moves."""
    model = cut_model()
    opt = zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, config=config(SYNCHRONOUS))
    backward(model, 0)
    opt.step()
    before = whole_of(model)
    opt.zero_grad()
    backward(model, 1)
    if dist.get_rank() == 0:
        model[0].weight.grad.to_local()[0, 0] = float("inf")
    opt.step()
    assert not opt.last_report.applied
    assert all(torch.equal(values, before[name]) for name, values in whole_of(model).items())
    opt.close()


def edit_one_part(model):
    """A row that one process has, past version counters: of the other's part nothing is written."""
    if dist.get_rank() == 0:
        local(model[2].weight).data[3] = 0.25


def edit_whole(model):
    """By operations on DTensors: all of one; of another a row that the last process has; one of which it has nothing."""
    model[2].weight.mul_(0.5)
    whole = model[5].weight.full_tensor()
    whole[20] = 0.25
    model[5].weight.copy_(distribute_tensor(whole, model[5].weight.device_mesh, [Shard(0)]))
    model[9].weight.add_(1.0)


def edited():
    """Each process's own part, which alone it sees."""
    def make_run():
        model = cut_model(n_more=1)
        return model, zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, config=config(DEFERRED))

    for edit in (edit_one_part, edit_whole):
        beside_unedited(make_run, edit)


def refused():
    """(More of it: tensor_worker.)"""
    named, n = list(cut_model().named_parameters()), dist.get_world_size()
    foreign = nn.Parameter(distribute_tensor(torch.ones(4, 3), init_device_mesh("cpu", (n,)), [Shard(0)]))
    foreign.grad = distribute_tensor(torch.ones(4, 3), init_device_mesh("cpu", (1, n)), [Replicate(), Shard(0)])
    raises(zfplugin.errors.ShapeError, "a gradient is placed as", zfplugin.torch.ZenFlow([("w", foreign)]).step)
    opt = zfplugin.torch.ZenFlow(named, config=config(SYNCHRONOUS))
    opt.bind()
    for call in (lambda: opt.save("nowhere"), lambda: opt.load("nowhere")):
        raises(zfplugin.errors.StateError, "cut over processes", call)
    opt.close()
