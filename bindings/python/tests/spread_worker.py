# SPDX-License-Identifier: Apache-2.0
"""Models that are spread over processes, beside one process that has all of it. Each process has its parts as ordinary contiguous
parameters, as Megatron does.

Tensor x pipeline x data parallel: the shares of gradients are drawn, as sequence parallelism leaves them of a norm, and two stages of an
embedding that is the output layer, too. Experts: a model of two, each of which some processes have, trained on parts of a batch."""
from unittest import mock

import torch
import torch.distributed as dist
import cut_worker
from cut_worker import ALL_SELECTED as SETTINGS
from cut_worker import INNER, WIDTH, WORDS, assert_equal, loss_of, whole_state
from ranks_worker import (BOUND, CLIP, DEFERRED, HYPER, a_folder, advance, assert_near, raises, train_alone, train_beside, whole_of, zenflow_of)
from support import SYNCHRONOUS, config, mlp
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, get_state_dict, set_optimizer_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import zfplugin
import zfplugin.torch
from zfplugin.torch import sharded
from zfplugin.torch.cut import local

STEPS = 5


class Block(nn.Module):
    """An expert."""

    def __init__(self, seed):
        super().__init__()
        make = torch.Generator().manual_seed(seed)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Parameter(torch.randn(INNER, WIDTH, generator=make) * 0.3)
        self.down = nn.Parameter(torch.randn(WIDTH, INNER, generator=make) * 0.3)

    def forward(self, x):
        return x + nn.functional.gelu(self.norm(x) @ self.up.T) @ self.down.T


def embedding():
    return nn.Parameter(torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(7)) * 0.5)


# ---- tensor x pipeline x data parallel, on eight processes -----------------------------------------------------------

PLACES = [(rank // 4, rank // 2 % 2, rank % 2) for rank in range(8)]  # data, stage, tensor
SHAPES = {"embedding": (WORDS, WIDTH), "norm": (WIDTH,), "up": (INNER // 2, WIDTH)}


def key_of(name, stage, t):
    """Which parameter of the whole model it is: stages share the embedding, which tensor ranks have whole; these share a norm."""
    return {"embedding": (name,), "norm": (name, stage), "up": (name, stage, t)}[name]


def drawn(name, *numbers):
    seed = sum(number * 31**i for i, number in enumerate((len(name), *numbers)))
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed))


def gradient(name, step, data, stage, t):
    """What backward leaves on a process: its share, of its part of the batch; of the embedding tensor ranks have the same."""
    return drawn(name, step, 1 + data, 1 + stage, 1 + (t if name != "embedding" else 0))


def group_of(members_of):
    """This process's group, of those that a function from (data, stage, tensor) gives one value; made by all in one order."""
    mine = None
    for value in sorted({members_of(*place) for place in PLACES}):
        ranks = [rank for rank, place in enumerate(PLACES) if members_of(*place) == value]
        group = dist.new_group(ranks)
        mine = group if dist.get_rank() in ranks else mine
    return mine


def train_spread(settings, folder=None):
    """Beside torch's AdamW of the whole model, with the sums of all shares: the joint norm step by step, and the weights."""
    data_rank, stage, t = PLACES[dist.get_rank()]
    data, pipe, tensor = (group_of(members) for members in
                          (lambda d, s, t: (s, t), lambda d, s, t: (d, t), lambda d, s, t: (d, s)))
    whole = {key: nn.Parameter(drawn(*key)) for key in {key_of(name, s, t): 0 for name in SHAPES for _, s, t in PLACES}}
    reference = torch.optim.AdamW(whole.values(), **HYPER)
    part = {name: nn.Parameter(whole[key_of(name, stage, t)].detach().clone()) for name in SHAPES}
    optimizer = zfplugin.torch.ZenFlow(
        list(part.items()), **HYPER, clip_norm=CLIP, config=config({**SETTINGS, **settings}), group=data, norm_group=dist.group.WORLD,
        declare=lambda name, _: {"shared_over": {"embedding": pipe, "norm": tensor}.get(name),
                                 "counts_in_norm": name != "embedding" or t == 0})  # each tensor rank has all of its gradient
    for step in range(STEPS):
        for p in whole.values():
            p.grad = torch.zeros_like(p)
        for name in SHAPES:
            part[name].grad = gradient(name, step, data_rank, stage, t)
            for place in PLACES:
                if name != "embedding" or place[2] == 0:
                    whole[key_of(name, *place[1:])].grad += gradient(name, step, *place) / 2
        norm_there = nn.utils.clip_grad_norm_(whole.values(), CLIP).item()
        reference.step()
        optimizer.step()
        norm = optimizer.grad_norm
        assert abs(norm - norm_there) < BOUND * norm_there, f"step {step}: norm {norm}, one process has {norm_there}"
    optimizer.flush()
    assert_near(part, {name: whole[key_of(name, stage, t)] for name in part})
    if folder is not None:
        own, other = (f"{folder}/stage{stage}-tensor{at}" for at in (t, 1 - t))
        optimizer.save(own)
        raises(zfplugin.errors.CheckpointError, f"it holds part {stage * 2 + 1 - t} of 4 of a model, this rank trains part {stage * 2 + t}",
               lambda: optimizer.load(other))
        optimizer.load(own)
    optimizer.close()


def tensor_pipeline_data():
    """At two stages; and the other tensor rank's checkpoint, of the same names and shapes, is refused."""
    with a_folder() as folder:
        for stage in (0, 2):
            train_spread({"shard.stage": stage, "shard.bucket_bytes": 512}, folder if stage else None)


# ---- experts ---------------------------------------------------------------------------------------------------------

def _all(values, group):
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, values.contiguous(), group=group)
    return parts


class Exchange(torch.autograd.Function):
    """[n, ...] of which process i of a group of n gets the i-th, for what it has of all others; its own inverse."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return torch.stack([parts[dist.get_rank(group)] for parts in _all(x, group)])

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, ctx.group), None


class Experts(nn.Module):
    """An embedding, two experts, or one of them, for the halves of the positions, and an output layer."""

    def __init__(self, own=None):
        super().__init__()
        self.embedding, self.output = embedding(), nn.Parameter(embedding().detach() * 2)
        self.experts = nn.ModuleDict({str(i): Block(1 + i) for i in ((0, 1) if own is None else (own,))})

    def run(self, halves):
        return torch.stack([block(half) for block, half in zip(self.experts.values(), halves)])

    def forward(self, x, group=None):
        halves = torch.stack(self.embedding[x].chunk(2, dim=1))
        if group is None:
            halves = self.run(halves)
        else:
            halves = Exchange.apply(self.run([Exchange.apply(halves, group)])[0], group)
        return torch.cat(list(halves), dim=1) @ self.output.T


class Stack(nn.Module):
    """Experts in one tensor each, of which a process may have a part: as DTensors."""

    def __init__(self, blocks):
        super().__init__()
        for name in ("norm.weight", "norm.bias", "up", "down"):
            stacked = torch.stack([block.get_parameter(name).detach() for block in blocks])
            self.register_parameter(name.replace(".", "_"), nn.Parameter(stacked))

    def forward(self, inputs):
        norm, bias, up, down = (p.to_local() if isinstance(p, DTensor) else p for p in self.parameters())
        return torch.stack([x + nn.functional.gelu(nn.functional.layer_norm(x, (WIDTH,), norm[i], bias[i]) @ up[i].T) @ down[i].T
                            for i, x in enumerate(inputs)])


class Stacked(Experts):
    def __init__(self):
        super().__init__()
        self.experts = Stack(self.experts.values())

    def run(self, halves):
        return self.experts(halves)

    def renamed(self, found):
        """{name: values} as a model with both experts has them."""
        stacks = {name: found.pop(name) for name in list(found) if name.startswith("experts")}
        return {**found, **{name.replace("experts.", f"experts.{i}.").replace("norm_", "norm."): values
                            for name, stack in stacks.items() for i, values in enumerate(stack)}}


def by_owners(settings, **kwargs):
    """The plugin adds up: of each expert over those that have it."""
    n, rank = dist.get_world_size(), dist.get_rank()
    owner = [dist.new_group(range(first, n, 2)) for first in (0, 1)][rank % 2]
    part = Experts(own=rank % 2)
    return part, zenflow_of(part, settings, group=dist.group.WORLD,
                            declare=lambda name, _: {"reduced_over": owner} if name.startswith("experts") else None, **kwargs)


def by_meshes(part, mesh, settings, **kwargs):
    """fully_shard: of an expert over its owners, of all else over all."""
    experts = part.experts if isinstance(part, Stacked) else next(iter(part.experts.values()))
    if isinstance(part, Stacked):
        for name, p in list(experts.named_parameters()):
            experts.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh["ep"], [Shard(0)])))
    fully_shard(experts, mesh=mesh["dp"], shard_placement_fn=lambda p: Shard(isinstance(part, Stacked)))
    fully_shard(part, mesh=mesh._flatten("all"))
    return part, zenflow_of(part, settings, **kwargs)


def of_kind(kind, settings, **kwargs):
    """A model with experts of these processes, pairs of which exchange; its optimizer; the pair."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "ep"))
    made = by_owners(settings, **kwargs) if kind == "owners" else \
        by_meshes(Stacked() if kind == "stacked" else Experts(own=dist.get_rank() % 2), mesh, settings, **kwargs)
    return *made, mesh["ep"].get_group()


def backward_here(part, pair, step):
    """The loss of the whole batch."""
    loss = loss_of(part, step, (dist.get_rank(), dist.get_world_size()), pair)
    loss.backward()
    for p in part.experts.parameters():
        p.grad.div_(2)  # it is of the batches of twice as many processes as are averaged
    return cut_worker.mean_over(dist.group.WORLD, loss)


def experts():
    """Four processes, each with its quarter of the batch and one of two experts, beside one process with both. They save in the middle,
    and show the same bits at every stage."""
    rank, alone, shown = dist.get_rank(), train_alone(Experts(), loss_of), []
    raises(zfplugin.errors.ArgumentError, "norm_group", lambda: zfplugin.torch.ZenFlow(
        Experts(0).named_parameters(), declare=lambda *_: {"reduced_over": dist.group.WORLD}))
    for stage in (0, 1, 2):
        part, optimizer, pair = of_kind("owners", {**SETTINGS, "shard.stage": stage, "shard.bucket_bytes": 512}, clip_norm=CLIP)
        with a_folder() as folder:
            own, other = (f"{folder}/expert{number}" for number in (rank % 2, 1 - rank % 2))

            def backward_of(step, part=part, optimizer=optimizer, pair=pair, own=own):
                if step == 3:
                    optimizer.save(own)
                    part.saved = whole_of(part)
                return backward_here(part, pair, step)

            train_beside(alone, part, optimizer, backward_of, stage)
            shown.append(whole_of(part))
            assert all(torch.equal(values, shown[0][name]) for name, values in shown[-1].items()), f"stage {stage} shows other bits than 0"
            raises(zfplugin.errors.CheckpointError, f"it holds part {1 - rank % 2} of 2 of a model", lambda: optimizer.load(other))
            optimizer.load(own)
        assert all(torch.equal(p, part.saved[name]) for name, p in part.named_parameters()), "the weights are not the saved ones"
        optimizer.close()


def experts_under_one_name():
    """torch.distributed.checkpoint would take them for one; a state_dict() of each process's own is right."""
    rank, options = dist.get_rank(), StateDictOptions(full_state_dict=True)
    owners = [dist.new_group(range(first, 4, 2)) for first in (0, 1)]
    model = nn.ModuleDict({"expert": nn.Linear(2, 2), "rest": nn.Linear(2, 2)})
    opt = zenflow_of(model, SYNCHRONOUS, group=dist.group.WORLD, 
                     declare=lambda name, _: {"reduced_over": owners[rank % 2]} if name.startswith("expert") else None)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    opt.step()
    for form in (None, options):
        raises(zfplugin.errors.StateError, '"expert.weight" is another parameter on processes [0, 2] than on [1, 3]',
               lambda form=form: get_optimizer_state_dict(model, opt, options=form))
    assert len(opt.state_dict()["state"]) == 4
    opt.close()


def experts_in_meshes():
    """Under FSDP2: a module on each pair of processes, or a part of a stack on each."""
    alone = train_alone(Experts(), loss_of)
    for kind in ("modules", "stacked"):
        for mode in (SYNCHRONOUS, SETTINGS):
            part, optimizer, pair = of_kind(kind, mode, clip_norm=CLIP)
            train_beside(alone, part, optimizer, lambda step: backward_here(part, pair, step), kind).close()


# ---- other numbers of processes, by torch.distributed.checkpoint -----------------------------------------------------

FOLDER = None  # of what is saved
JOBS = {4: None, 2: 4, 8: 2}  # processes: those that saved what they go on from
STEPS_OF_A_JOB = 4
RUNS = [(kind, SYNCHRONOUS) for kind in ("owners", "modules", "stacked", "tensor")] + [(kind, DEFERRED) for kind in ("owners", "tensor", "tensor16")]


def opened(kind, mode, job):
    """A model, its optimizer, and a function that makes a step of both. tensor: tensor parallel on four processes, on two not."""
    n = dist.get_world_size()
    if kind.startswith("tensor"):
        mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("dp", "tp"))
        model, optimizer = cut_worker.run_of(mesh, mode, torch.bfloat16 if kind == "tensor16" else torch.float32)
        return model, optimizer, lambda step: cut_worker.train_steps(model, optimizer, [step], cut_worker.part_on(mesh))
    stage = {"shard.stage": (1, 2, 0)[job], "shard.bucket_bytes": 512} if kind == "owners" else {}
    part, optimizer, pair = of_kind(kind, {**mode, **stage}, **({"sharded_state": True} if kind == "owners" and mode is DEFERRED and n < 8 else {}))

    def one_step(step):
        backward_here(part, pair, step)
        advance(optimizer)
    return part, optimizer, one_step


def checkpoint_of(model, optimizer):
    """Both states as torch.distributed.checkpoint takes them."""
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def assert_as_alone(kind, part, n_steps):
    """Synchronous runs go on as one process would have."""
    whole = cut_worker.Model() if kind == "tensor" else Experts()
    cut_worker.train_steps(whole, torch.optim.AdamW(whole.parameters(), **HYPER), range(n_steps))
    assert_near(whole_of(part), whole_of(whole), kind)


def resumes_elsewhere():
    """The saved state is there to the bit, masters of 16-bit weights, too."""
    n, rank = dist.get_world_size(), dist.get_rank()
    job = list(JOBS).index(n)
    for kind, mode in RUNS:
        if n > 4 and kind.startswith("tensor"):
            continue
        (part, optimizer, one_step), name = opened(kind, mode, job), f"{kind}{mode is DEFERRED:d}"
        if JOBS[n]:
            state = checkpoint_of(part, optimizer)
            dcp.load(state, checkpoint_id=FOLDER / f"{name}.{JOBS[n]}")
            set_state_dict(part, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            found = whole_state(part, optimizer)
            assert_equal(found, torch.load(FOLDER / f"{name}.{JOBS[n]}.{rank % 2}.pt"), name)
            assert any("master" in entry for entry in found["opt"]["state"].values()) == (kind == "tensor16")
        for step in range(job * STEPS_OF_A_JOB, (job + 1) * STEPS_OF_A_JOB):
            one_step(step)
        if kind.startswith("tensor") and not JOBS[n]:
            finals = optimizer.export()
            lags = any(not torch.equal(p.to_local().float(), finals[key].to(p.dtype).float()) for key, p in part.named_parameters())
            assert lags == (mode is DEFERRED), name
        dcp.save(checkpoint_of(part, optimizer), checkpoint_id=FOLDER / f"{name}.{n}")
        saved = whole_state(part, optimizer)
        if rank < 2:
            torch.save(saved, FOLDER / f"{name}.{n}.{rank}.pt")
        if mode is SYNCHRONOUS:
            assert_as_alone(kind, part, (job + 1) * STEPS_OF_A_JOB)
        optimizer.close()


def sharded_state():
    """On 4 processes, then 2, then 1, by DTensors and by whole tensors: the bits of the run that goes on, of which each process holds its rows.
    All of the gradient is rank 0's, so that its sum has the same bits everywhere. Of a save and a load only rows travel that lie elsewhere:
    where they are a multiple of the processes, those of parameters that are too small to be cut."""
    class Watched(sharded.Rows):
        saves, loads, loses = [], [], False  # bytes of each

        def saved(self):
            super().saved()
            self.saves.append(self.n_received)

        def _want(self, name, *where):
            with mock.patch.object(self, "_answer", (lambda *_: b"") if self.loses else self._answer):
                super()._want(name, *where)
            if name is None:
                self.loads.append(self.n_received - self.saves[-1])

    def run_on(group, steps, restore=None, width=9, **kwargs):
        model = mlp(width=width, n_hidden=0, dtype=torch.bfloat16)
        for name, shape in {"scalar": (), "few": (2, 3), "none": (0, 3)}.items() if width == 9 else ():
            model.register_parameter(name, nn.Parameter(torch.ones(shape, dtype=torch.bfloat16)))
        optimizer = zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, group=group, declare=lambda *_: {"average": False}, **kwargs,
                                           config=config({**SYNCHRONOUS, "shard.stage": 1, "shard.bucket_bytes": 512}))
        if restore:
            state = checkpoint_of(model, optimizer)
            dcp.load(state, checkpoint_id=restore, process_group=group)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            set_optimizer_state_dict(model, optimizer, whole_state(model, optimizer)["opt"])
        for step in steps:
            make = torch.Generator().manual_seed(step)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=make).to(p.dtype).mul_(dist.get_rank() == 0)
            optimizer.step()
        state = checkpoint_of(model, optimizer)
        optimizer.close()
        held = [value for entry in state["optimizer"]["state"].values() for name, value in entry.items() if name != "step"]
        return state, sum(local(value).untyped_storage().nbytes() for value in held)

    raises(zfplugin.errors.ArgumentError, "needs group=", lambda: zfplugin.torch.ZenFlow(mlp().parameters(), sharded_state=True))
    groups = [dist.group.WORLD, dist.new_group([0, 1]), dist.new_group([0])]
    expected, n_whole = run_on(groups[0], range(9))
    with a_folder() as folder, mock.patch.object(sharded, "Rows", Watched):
        for job, group in enumerate(group for group in groups if group is not dist.GroupMember.NON_GROUP_MEMBER):
            found, n_held = run_on(group, range(3 * job, 3 * job + 3), f"{folder}/{job - 1}" if job else None, sharded_state=True)
            dcp.save(found, checkpoint_id=f"{folder}/{job}", process_group=group)
            assert n_held <= n_whole * -(-9 // dist.get_world_size(group)) / 9, f"job {job}: {n_held} bytes of {n_whole}"
        assert max(Watched.saves + Watched.loads) <= n_whole, "more than all of it travelled"
        Watched.saves.clear()
        Watched.loads.clear()
        wide, n_held = run_on(groups[0], range(1), width=64, sharded_state=True)
        dcp.save(wide, checkpoint_id=f"{folder}/wide")
        run_on(groups[0], range(1), f"{folder}/wide", width=64, sharded_state=True)
        what = f"{Watched.saves} and {Watched.loads} bytes of {n_held} travelled"  # three arrays of the last bias: a value for each, and from each
        assert len(Watched.loads) == 2 and max(Watched.saves) <= 72 and max(Watched.loads) <= 216, what
        kind, text = (zfplugin.errors.StorageError, "want of blob") if dist.get_rank() else (zfplugin.errors.InternalError, "36 bytes of the rows")
        with mock.patch.object(Watched, "loses", True):
            raises(kind, text, lambda: run_on(groups[0], range(1), f"{folder}/wide", width=64, sharded_state=True))
    if dist.get_rank() == 0:
        assert_equal(found, expected)
        assert "master" in expected["optimizer"]["state"]["0.weight"]
