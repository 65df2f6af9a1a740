# SPDX-License-Identifier: Apache-2.0
"""What each rank of test_torch_ranks.py does: FSDP2's fully_shard has cut the
parameters, and each process trains its part."""
import torch
import torch.distributed as dist
from ranks_worker import HYPER, advance, backward, raises, whole_of
from support import ALL_SELECTED, SYNCHRONOUS, config, loss_of, mlp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import zfplugin
import zfplugin.torch


def cut_model(width=25, n_hidden=2):
    """Two layers and the rest, each cut by rows: 25 rows over 2 or 4 processes are uneven, and the last layer's 4 are few."""
    model = mlp(width=width, n_hidden=n_hidden)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def as_adamw():
    """fully_shard: beside AdamW on the whole batch; clipped by the joint norm, with accumulation."""
    all_selected = {**ALL_SELECTED, "zenflow.full_warm_up_rounds": 3}
    for mode, clip, n_parts in ((SYNCHRONOUS, 0.0, 1), (SYNCHRONOUS, 0.3, 2), (all_selected, 0.3, 1)):
        ours, alone = cut_model(), mlp(width=25)
        opt = zfplugin.torch.ZenFlow(ours.named_parameters(), **HYPER, config=config(mode), clip_norm=clip, model=ours)
        reference = torch.optim.AdamW(alone.parameters(), **HYPER)
        for step in range(6):
            backward(ours, step, n_parts)
            advance(opt)
            loss_of(alone, step).backward()
            if clip:
                norm = nn.utils.clip_grad_norm_(alone.parameters(), clip)
                assert abs(norm - opt.grad_norm) < 1e-5 * norm, (norm, opt.grad_norm)
            advance(reference)
        expected = dict(alone.named_parameters())
        for name, values in whole_of(ours).items():
            assert (values - expected[name]).abs().max() < 2e-5, (mode, clip, n_parts, name)
        opt.close()


def shipped_in_backward():
    """More gradients than the plugin gathers before it reads: most are read in backward, each process's part."""
    ours, theirs = cut_model(n_hidden=20), cut_model(n_hidden=20)
    opt = zfplugin.torch.ZenFlow(ours.named_parameters(), **HYPER, config=config(SYNCHRONOUS), overlap=True)
    reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
    for step in range(3):
        for model, optimizer in ((ours, opt), (theirs, reference)):
            backward(model, step)
            if model is ours and step:
                assert any(grad is not None for grad in opt._binding.feed.held), "nothing was shipped"
            advance(optimizer)
    expected = whole_of(theirs)
    assert all((values - expected[name]).abs().max() < 2e-5 for name, values in whole_of(ours).items())
    assert opt.stats()["lost_overlap_nbytes"] == 0
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


def refused():
    model, n = cut_model(), dist.get_world_size()
    named = list(model.named_parameters())
    raises(zfplugin.errors.ArgumentError, "leave it out", lambda: zfplugin.torch.ZenFlow(named, group=dist.group.WORLD))
    raises(zfplugin.errors.ArgumentError, "fetch=True", lambda: zfplugin.torch.ZenFlow(named, model=model, fetch=True))
    backward(model, 0)
    whole = nn.Parameter(torch.ones(2))
    whole.grad = torch.full((2,), 1.0 + dist.get_rank())
    mixed = zfplugin.torch.ZenFlow([*named, ("whole", whole)])
    raises(zfplugin.errors.ParamError, '"whole" is not cut', mixed.step)
    mixed.close()
    foreign = nn.Parameter(distribute_tensor(torch.ones(4, 3), init_device_mesh("cpu", (n,)), [Shard(0)]))
    foreign.grad = distribute_tensor(torch.ones(4, 3), init_device_mesh("cpu", (1, n)), [Replicate(), Shard(0)])
    raises(zfplugin.errors.ShapeError, "a gradient is placed as", zfplugin.torch.ZenFlow([("w", foreign)]).step)
    opt = zfplugin.torch.ZenFlow(named, config=config(SYNCHRONOUS))
    opt.bind()
    for call in (lambda: opt.save("nowhere"), lambda: opt.load("nowhere")):
        raises(zfplugin.errors.StateError, "cut over processes", call)
    opt.close()
