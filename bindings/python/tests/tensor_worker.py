# SPDX-License-Identifier: Apache-2.0
"""What each of four processes of test_torch_ranks.py does: a model that torch's parallelize_module has cut over the axis "tp" of a
mesh of 2 x 2, with fully_shard, the plugin's group= or nothing over the axis "dp", beside one process that has all of it.

The model has every kind of parameter: cut by rows, by columns, unevenly (13 words), a norm under sequence parallelism, and those
that tensor parallelism leaves whole, two matrices among them."""
import torch
import torch.distributed as dist
from ranks_worker import DEFERRED, advance, raises, resumes_in_parts, train_alone, whole_of
from support import SYNCHRONOUS, config
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               parallelize_module)

import zfplugin
import zfplugin.torch

WORDS, WIDTH, INNER, BATCH, LENGTH, STEPS = 13, 8, 16, 4, 6, 5
HYPER = {"lr": 1e-2, "weight_decay": 0.05}
CLIP = 0.5
ALL_SELECTED = {"zenflow.topk_ratio": 1.0, "zenflow.update_interval": 2}  # what the model shows is plain AdamW
BOUND = 1e-5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, n_words=WORDS):
        super().__init__()
        torch.manual_seed(11)
        self.words, self.positions = nn.Embedding(n_words, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, n_words))

    def forward(self, x):
        x = self.words(x) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.mix(x))


PLAN = {"words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
        "blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel(),
        "head": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
        "head.0": SequenceParallel(), "head.1": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}


def mesh_of_four():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def cut(mesh, is_sharded, n_words=WORDS):
    """The model, cut over tp, and, if it is to be sharded, over dp."""
    model = parallelize_module(Model(n_words), mesh["tp"], PLAN)
    if is_sharded:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return model


def tokens(step, n_words=WORDS):
    drawn = torch.randint(n_words, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1000 + step))
    return drawn[:, :-1], drawn[:, 1:]


def loss_of(model, step, mesh=None, n_words=WORDS):
    """Of the whole batch, or of this process's part of it."""
    x, wanted = tokens(step, n_words)
    if mesh is not None:
        x, wanted = (values.chunk(mesh["dp"].size())[mesh.get_local_rank("dp")] for values in (x, wanted))
    return nn.functional.cross_entropy(model(x).flatten(0, 1), wanted.flatten())


def mean_over(group, value):
    total = value.detach().clone()
    dist.all_reduce(total, group=group)
    return total.item() / dist.get_world_size(group)


def train_whole():
    """[(loss, gradient norm)] of every step, and the weights."""
    seen, model = train_alone(Model(), loss_of, STEPS, CLIP, HYPER)
    return seen, whole_of(model)


def train_cut(expected, mesh, mode, is_sharded, is_whole_batch=False, **kwargs):
    """Beside one process, step by step: losses, norms, and weights at the end."""
    model, (seen, weights) = cut(mesh, is_sharded), expected
    opt = zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, clip_norm=CLIP, config=config(mode), model=model, fetch=False,
                                 **kwargs)
    for step, (loss_there, norm_there) in enumerate(seen):
        loss = loss_of(model, step, None if is_whole_batch else mesh)
        loss.backward()
        advance(opt)
        loss = mean_over(mesh["dp"].get_group(), loss)
        assert abs(loss - loss_there) < BOUND, f"{mode} {kwargs}: step {step}: loss {loss}, one process has {loss_there}"
        norm = opt.grad_norm
        assert abs(norm - norm_there) < BOUND * norm_there, f"{mode} {kwargs}: step {step}: norm {norm}, one has {norm_there}"
    opt.flush()
    for name, values in whole_of(model).items():
        worst = (values - weights[name]).abs().max().item()
        assert worst < 1e-3 * HYPER["lr"] * STEPS, f"{mode} {kwargs}: {name} is off by {worst}"
    opt.close()


def as_one():
    """As parallelize_module and fully_shard made it, nobody names a group; tensor parallel alone; with the plugin's own sums over
    dp, where the group of all follows from the mesh; and with norm_group= given, as a stage of a pipeline would."""
    mesh, expected = mesh_of_four(), train_whole()
    for mode in (SYNCHRONOUS, ALL_SELECTED):
        train_cut(expected, mesh, mode, is_sharded=True)
    train_cut(expected, mesh, ALL_SELECTED, is_sharded=True, norm_group=dist.group.WORLD)
    train_cut(expected, mesh, ALL_SELECTED, is_sharded=False, is_whole_batch=True)
    for stage in (0, 2):
        mode = {**ALL_SELECTED, "shard.stage": stage, "shard.bucket_bytes": 512}
        train_cut(expected, mesh, mode, is_sharded=False, group=mesh["dp"].get_group())


def hybrid():
    """Copies of all that is cut (fully_shard over two axes) beside one process."""
    expected, mesh = train_whole(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "parts"))
    model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, clip_norm=CLIP, config=config(SYNCHRONOUS))
    for step, (_, norm_there) in enumerate(expected[0]):
        x, wanted = (values.chunk(4)[dist.get_rank()] for values in tokens(step))
        nn.functional.cross_entropy(model(x).flatten(0, 1), wanted.flatten()).backward()
        advance(opt)
        assert abs(opt.grad_norm - norm_there) < BOUND * norm_there, (step, opt.grad_norm, norm_there)
    assert all((values - expected[1][name]).abs().max() < 1e-3 * HYPER["lr"] * STEPS for name, values in whole_of(model).items())
    opt.close()


def copies_agree():
    """Deferred: what tensor parallelism left whole shows the same on its processes at every step, though with 13 words (cut as 7
    and 6) windows of each process's own parts close at other steps; and it is deferred where all parts
    are even and no process decides by itself."""
    mesh = mesh_of_four()
    for n_words, more in ((13, {}), (12, {}), (12, {"zenflow.update_interval": "auto"})):
        model = cut(mesh, is_sharded=True, n_words=n_words)
        opt = zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, config=config({**DEFERRED, **more}), model=model)
        lagging = 0
        for step in range(12):
            loss_of(model, step, mesh, n_words).backward()
            advance(opt)
            finals = opt.export()
            for name, p in model.named_parameters():
                mine = p.to_local()
                if name in ("positions", "mix.weight", "blocks.0.norm.weight", "head.0.bias"):
                    parts = [torch.empty_like(mine) for _ in range(2)]
                    dist.all_gather(parts, mine.contiguous(), group=mesh["tp"].get_group())
                    assert torch.equal(*parts), (n_words, step, name)
                if name == "mix.weight":
                    lagging += not torch.equal(mine, finals[name])
        assert (lagging > 0) == (n_words == 12 and not more), (n_words, more, lagging)
        opt.close()


def resumes():
    """Each process from its own state_dict(), which says over how many processes of each axis it is a part."""
    mesh, runs = mesh_of_four(), []
    for _ in range(2):
        model = cut(mesh, is_sharded=True)
        runs.append((model, zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, config=config(DEFERRED), model=model)))
    saved = resumes_in_parts(runs, lambda model, opt, step: train_steps(model, opt, [step], mesh))
    packed = saved["zenflow"]
    otherwise = {**saved, "zenflow": {**packed, "part": {**packed["part"], "sizes": [4, 1]}}}
    raises(zfplugin.errors.CheckpointError, f"of 4 (4 x 1), this is process {dist.get_rank()} of 4 (2 x 2)",
           lambda: runs[1][1].load_state_dict(otherwise))
    for _, opt in runs:
        opt.close()


def whole_state(model, opt):
    """All that a run goes on from, whole: weights and moments as flush() would leave them, counts."""
    options = StateDictOptions(full_state_dict=True)
    return {"model": get_model_state_dict(model, options=options), "opt": get_optimizer_state_dict(model, opt, options=options)}


def assert_equal(found, expected, name=""):
    assert type(found) is type(expected), name
    if isinstance(found, dict):
        assert found.keys() == expected.keys(), (name, found.keys() ^ expected.keys())
        for key in found:
            assert_equal(found[key], expected[key], f"{name}.{key}")
    else:
        assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected, name


def train_steps(model, opt, steps, mesh=None):
    for step in steps:
        loss_of(model, step, mesh).backward()
        advance(opt)


def run_of(mesh, mode, dtype=torch.float32):
    """A model that is cut over both axes, or over dp alone where the other has one process; and its optimizer."""
    model = parallelize_module(Model(), mesh["tp"], PLAN) if mesh["tp"].size() > 1 else Model()
    model.to(dtype)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model, zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, config=config(mode), model=model)


def to_adamw():
    """torch's AdamW goes on with our moments, and we with its."""
    mesh = mesh_of_four()
    (ours, opt), (theirs, _) = run_of(mesh, SYNCHRONOUS), run_of(mesh, SYNCHRONOUS)
    train_steps(ours, opt, range(3), mesh)
    theirs.load_state_dict(ours.state_dict())
    reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
    reference.load_state_dict(opt.adamw_state_dict())
    for model, optimizer in ((ours, opt), (theirs, reference)):
        train_steps(model, optimizer, range(3, 6), mesh)
    expected = whole_of(theirs)
    assert all((values - expected[name]).abs().max() < 2e-5 for name, values in whole_of(ours).items())
    opt.load_state_dict(reference.state_dict())
    found, expected = opt.adamw_state_dict()["state"], reference.state_dict()["state"]
    assert all(torch.equal(found[i][name].to_local(), expected[i][name].to_local()) for i in found for name in ("exp_avg", "exp_avg_sq"))
    opt.close()


def scalars():
    """A parameter without axes, of which each process has a copy, in the state that torch.distributed.checkpoint takes. It does not count
    in the norm, where counts_in_norm= says so."""
    mesh = mesh_of_four()["tp"]
    w = nn.Parameter(DTensor.from_local(torch.ones(4, 3), mesh, [Shard(0)], run_check=False))
    scale = nn.Parameter(DTensor.from_local(torch.tensor(2.0), mesh, [Replicate()], run_check=False))
    opt = zfplugin.torch.ZenFlow([("w", w), ("scale", scale)], config=config(SYNCHRONOUS), counts_in_norm=lambda name, _: name == "w")
    for _ in range(3):
        w.grad, scale.grad = torch.ones_like(w), torch.ones_like(scale)
        opt.step()
        assert abs(opt.grad_norm - w.numel() ** 0.5) < 1e-5, opt.grad_norm
    state = opt.state_dict()
    del state["zenflow"]
    state["state"][1]["exp_avg"] *= 3
    opt.load_state_dict(state)
    found = opt.state[scale]
    assert found["step"] == 3 and torch.equal(found["exp_avg"].to_local(), state["state"][1]["exp_avg"].to_local()), found
    opt.close()


def refused():
    """Each names the parameter, where it lies and what to do."""
    mesh, world, zen = mesh_of_four(), dist.group.WORLD, zfplugin.torch.ZenFlow
    share = nn.Parameter(DTensor.from_local(torch.ones(4, 3), mesh["tp"], [Partial()]))
    raises(zfplugin.errors.ParamError, '"w" is a DTensor placed as (Partial(sum),)', zen([("w", share)]).bind)

    def part(mesh, placement):
        return nn.Parameter(DTensor.from_local(torch.ones(4, 3), mesh, [placement], run_check=False))

    line = init_device_mesh("cpu", (4,))
    mixed = [("w", part(mesh["tp"], Shard(0))), ("v", part(line, Shard(0)))]
    problem = raises(zfplugin.errors.ParamError, "no axes of one mesh", zen(mixed).bind)
    assert '"v" is placed as (Shard(dim=0),)' in str(problem) and '"w"' in str(problem) and "mesh_dim_names" in str(problem), problem
    raises(zfplugin.errors.ArgumentError, "fetch=True", lambda: zen(mixed[:1], model=nn.Linear(1, 1), fetch=True))
    raises(zfplugin.errors.ArgumentError, "leave it out", lambda: zen(mixed[:1], group=world))
    alone = [dist.new_group([rank]) for rank in range(4)][dist.get_rank()]
    raises(zfplugin.errors.ArgumentError, "the group of the 2 processes", lambda: zen(mixed[:1], group=alone))
    for name, copied in (("plain", nn.Parameter(torch.ones(3))), ("norm", part(mesh["tp"], Replicate()))):
        w = part(mesh["tp"], Shard(0))
        opt = zen([("w", w), (name, copied)], config=config(SYNCHRONOUS))
        for step in range(2):
            w.grad = torch.ones_like(w)
            copied.grad = torch.ones_like(copied) * (1.0 + step * mesh.get_local_rank("tp"))
            if step == 0:
                opt.step()
        problem = raises(zfplugin.errors.ParamError, f'"{name}" is not cut over the processes', opt.step)
        assert "their gradients differ: one of norm" in str(problem) and ("Replicate" if name == "norm" else "no DTensor") in str(problem)
        copied.grad = torch.ones_like(copied) if mesh.get_local_rank("tp") else None
        state = opt.adamw_state_dict()
        state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"].full_tensor()
        raises(zfplugin.errors.CheckpointError, 'exp_avg of "w" is whole, the parameter is placed as', lambda: opt.load_state_dict(state))
        opt.step()  # the third: not looked for
        copied.grad = torch.ones_like(copied) if mesh.get_local_rank("tp") else None
        raises(zfplugin.errors.ParamError, "their gradients differ: none", opt.step)
        opt.close()
