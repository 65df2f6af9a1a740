# SPDX-License-Identifier: Apache-2.0
"""What each rank of test_torch_ranks.py does: FSDP2's fully_shard has cut the
parameters, and each process trains its part."""
import torch
import torch.distributed as dist
from ranks_worker import DEFERRED, HYPER, advance, backward, raises, whole_of
from support import ALL_SELECTED, SYNCHRONOUS, config, loss_of, mlp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import zfplugin
import zfplugin.torch
from zfplugin.torch.binding import FLUSHED_STEPS
from zfplugin.torch.cut import like, local


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
    """Edits in open windows, whose moments do not depend on the weights: elsewhere a process shows to the bit what it does without
    them, if its windows end alike; what was written goes on from there, by the same moments."""
    n_steps, decay = 24, 1 - HYPER["lr"] * HYPER["weight_decay"]
    for edit in (edit_one_part, edit_whole):
        models = [cut_model(n_more=1) for _ in range(2)]
        opts = [zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, config=config(DEFERRED)) for model in models]
        pairs, off = list(zip(*(map(local, model.parameters()) for model in models))), None
        for step in range(n_steps):
            for model, opt in zip(models, opts):
                draw = torch.Generator().manual_seed(2 * step + dist.get_rank())
                for p in model.parameters():
                    p.grad = like(torch.randn(local(p).shape, generator=draw), p)
                opt.step()
            if step == 7:
                before, finals = [p.clone() for p, _ in pairs], list(opts[1].export().values())
                assert not all(map(torch.equal, before, finals)), "nothing was on its way"
                with torch.no_grad():
                    edit(models[0])
                off = [torch.where(p == was, torch.zeros(()), p - final) for (p, _), was, final in zip(pairs, before, finals)]
            if off and any(by.any() for by in off) and step <= 7 + FLUSHED_STEPS:
                opts[1].flush()
        for opt in opts:
            opt.flush()
        for (p, other), by in zip(pairs, off):
            assert torch.equal(p[by == 0], other[by == 0]), edit.__name__
            assert ((p - other - by * decay ** (n_steps - 8)).abs() < 1e-6).all(), edit.__name__
        for opt in opts:
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
