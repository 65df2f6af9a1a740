# SPDX-License-Identifier: Apache-2.0
"""The programs of each process of test_torch_ranks.py with a model that is cut: by fully_shard alone, on two; on four by torch's
parallelize_module over the axis "tp" of a mesh of 2 x 2, with fully_shard, the plugin's group= or nothing over the axis "dp", beside one
process that has all of it.

That model has every kind of parameter: cut by rows, by columns, unevenly (13 words), a norm under sequence parallelism, and those
that tensor parallelism leaves whole, two matrices among them."""
import copy

import torch
import torch.distributed as dist
from ranks_worker import (CLIP, DEFERRED, FEW_A_BUCKET, HYPER, MUON, advance, assert_near, backward, beside_unedited, muon_groups, raises, slice_of,
                          train_alone, train_beside, whole_of, zenflow_of)
from support import SYNCHRONOUS, config, mlp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               parallelize_module)

import zfplugin
import zfplugin.torch
from zfplugin.torch.cut import local

WORDS, WIDTH, INNER, BATCH, LENGTH = 13, 8, 16, 8, 6
ALL_SELECTED = {"zenflow.topk_ratio": 1.0, "zenflow.update_interval": 2}  # what the model shows is plain AdamW


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
        self.blocks = nn.ModuleList([Block()])
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


def sharded_over(mesh, model):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def cut(mesh, is_sharded, n_words=WORDS):
    """The model, cut over tp, and, if it is to be sharded, over dp."""
    model = parallelize_module(Model(n_words), mesh["tp"], PLAN)
    return sharded_over(mesh["dp"], model) if is_sharded else model


def tokens(step, n_words=WORDS):
    drawn = torch.randint(n_words, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1000 + step))
    return drawn[:, :-1], drawn[:, 1:]


def loss_of(model, step, part=(0, 1), *more, n_words=WORDS):
    """The loss of the batch, or of its part i of n."""
    x, wanted = (values.chunk(part[1])[part[0]] for values in tokens(step, n_words))
    return nn.functional.cross_entropy(model(x, *more).flatten(0, 1), wanted.flatten())


def part_on(mesh):
    return mesh.get_local_rank("dp"), mesh["dp"].size()


def mean_over(group, value):
    total = value.detach().clone()
    dist.all_reduce(total, group=group)
    return total.item() / dist.get_world_size(group)


def train_cut(alone, mesh, mode, is_sharded, part=None, **kwargs):
    """Beside one process. part: of each batch."""
    model = cut(mesh, is_sharded)

    def backward_of(step):
        loss = loss_of(model, step, part or part_on(mesh))
        loss.backward()
        return mean_over(mesh["dp"].get_group(), loss)

    train_beside(alone, model, zenflow_of(model, mode, clip_norm=CLIP, model=model, fetch=False, **kwargs), backward_of, mode, kwargs).close()


def as_one():
    """As parallelize_module and fully_shard made it, nobody names a group; tensor parallel alone; with the plugin's own sums over
    dp, where the group of all follows from the mesh; and with norm_group= given, as a stage of a pipeline would."""
    mesh, alone = mesh_of_four(), train_alone(Model(), loss_of)
    for mode in (SYNCHRONOUS, ALL_SELECTED):
        train_cut(alone, mesh, mode, is_sharded=True)
    train_cut(alone, mesh, ALL_SELECTED, is_sharded=True, norm_group=dist.group.WORLD)
    train_cut(alone, mesh, ALL_SELECTED, is_sharded=False, part=(0, 1))
    for stage in (0, 2):
        mode = {**ALL_SELECTED, "shard.stage": stage, "shard.bucket_bytes": 512}
        train_cut(alone, mesh, mode, is_sharded=False, group=mesh["dp"].get_group())


def hybrid():
    """Copies of all that is cut (fully_shard over two axes) beside one process."""
    model = sharded_over(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "parts")), Model())
    train_beside(train_alone(Model(), loss_of), model, zenflow_of(model, SYNCHRONOUS, clip_norm=CLIP),
                 lambda step: loss_of(model, step, (dist.get_rank(), 4)).backward()).close()


def copies_agree():
    """Deferred: what tensor parallelism left whole shows the same on its processes at every step, though windows of each process's own
    parts close at other steps: of 13 words (cut as 7 and 6), and once a word was written that one of them has."""
    mesh = mesh_of_four()
    for n_words, more in ((13, {}), (12, {}), (12, {"zenflow.update_interval": "auto"})):
        model = cut(mesh, is_sharded=True, n_words=n_words)
        opt = zenflow_of(model, {**DEFERRED, **more}, model=model)
        for step in range(24):
            loss_of(model, step, part_on(mesh), n_words=n_words).backward()
            advance(opt)
            if step == 5 and dist.get_rank() == 3:
                local(model.words.weight).data[0] = 0.25
            for name, p in model.named_parameters():
                mine = p.to_local()
                if name in ("positions", "mix.weight", "blocks.0.norm.weight", "head.0.bias"):
                    parts = [torch.empty_like(mine) for _ in range(2)]
                    dist.all_gather(parts, mine.contiguous(), group=mesh["tp"].get_group())
                    assert torch.equal(*parts), (n_words, step, name)
        opt.close()


def looked_at(model):
    """A forward without a backward: the root's own parameters lie gathered in their modules from then on."""
    with torch.no_grad():
        loss_of(model, 99)
    assert not hasattr(model.words.weight, "placements")


def evaluated():
    """Between steps, before them and after them: what is bound are this process's parts, and the run goes on as one without it."""
    mesh, runs = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)), []
    for look in (lambda model: None, looked_at):
        model = sharded_over(mesh["dp"], Model())
        look(model)
        opt = zenflow_of(model, DEFERRED, model=model)
        look(model)
        opt.bind()
        for step in range(10):
            loss_of(model, step, part_on(mesh)).backward()
            advance(opt)
            look(model)
            saved = opt.state_dict() if step == 4 else saved if step > 4 else None
        opt.flush()
        look(model)
        opt.params_changed()
        look(model)
        opt.load_state_dict(saved)
        train_steps(model, opt, [10], part_on(mesh))
        look(model)
        opt.flush()
        runs.append(whole_of(model))
        opt.close()
    assert_equal(*runs)


def resumes_in_parts(runs, one_step):
    """Two runs of models that are cut over processes, in open windows: state_dict() of the model holds what flush() would give; that of
    the optimizer goes on to the bit, and is refused by another process, whose part may have the same shapes. Returns it."""
    (model, opt), (other, other_opt) = runs
    for step in range(8):
        one_step(model, opt, step)
    saved = copy.deepcopy({"model": model.state_dict()})
    finals, lagging = opt.export(), 0
    for name, p in model.named_parameters():
        assert torch.equal(saved["model"][name].to_local(), finals[name]), name
        lagging += not torch.equal(p.to_local(), finals[name])
    assert lagging > 0, "nothing was on its way"
    saved["opt"] = copy.deepcopy(opt.state_dict())  # closes the windows
    everyones, stranger = [None] * dist.get_world_size(), (dist.get_rank() + 1) % dist.get_world_size()
    dist.all_gather_object(everyones, saved["opt"])
    raises(zfplugin.errors.CheckpointError, f"the part of process {stranger} of", lambda: other_opt.load_state_dict(everyones[stranger]))
    other.load_state_dict(saved["model"])
    other_opt.load_state_dict(saved["opt"])
    for step in range(8, 16):
        for run in runs:
            if step == 14:
                with torch.no_grad():  # written by the trainer: followed, by each process in its own part
                    next(run[0].parameters()).mul_(0.5)
            one_step(*run, step)
        assert all(torch.equal(p.to_local(), q.to_local()) for p, q in zip(model.parameters(), other.parameters())), step
    return saved["opt"]


def resumes():
    """Each process from its own state_dict(), which says over how many processes of each axis it is a part."""
    mesh, runs = mesh_of_four(), []
    for _ in range(2):
        model = cut(mesh, is_sharded=True)
        runs.append((model, zenflow_of(model, DEFERRED, model=model)))
    saved = resumes_in_parts(runs, lambda model, opt, step: train_steps(model, opt, [step], part_on(mesh)))
    packed = saved["zenflow"]
    otherwise = {**saved, "zenflow": {**packed, "part": {**packed["part"], "sizes": [4, 1]}}}
    raises(zfplugin.errors.CheckpointError, f"of 4 (4 x 1), this is process {dist.get_rank()} of 4 (2 x 2)",
           lambda: runs[1][1].load_state_dict(otherwise))
    for _, opt in runs:
        opt.close()


def whole_state(model, opt):
    """All that a run goes on from, whole: weights and moments as flush() would leave them, counts."""
    options = StateDictOptions(full_state_dict=True)
    whole = get_optimizer_state_dict(model, opt, options=options)
    for group in whole["param_groups"]:  # torch.distributed.checkpoint gives all processes those of one of them
        group.pop("param_names", None)
    return {"model": get_model_state_dict(model, options=options), "opt": whole}


def assert_equal(found, expected, name=""):
    assert type(found) is type(expected), name
    if isinstance(found, dict):
        assert found.keys() == expected.keys(), (name, found.keys() ^ expected.keys())
        for key in found:
            assert_equal(found[key], expected[key], f"{name}.{key}")
    else:
        assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected, name


def train_steps(model, opt, steps, part=(0, 1)):
    for step in steps:
        loss_of(model, step, part).backward()
        advance(opt)


def run_of(mesh, mode, dtype=torch.float32):
    """A model that is cut over both axes, or over dp alone where the other has one process; and its optimizer."""
    model = parallelize_module(Model(), mesh["tp"], PLAN) if mesh["tp"].size() > 1 else Model()
    model = sharded_over(mesh["dp"], model.to(dtype))
    return model, zenflow_of(model, mode, model=model)


def to_adamw():
    """torch's AdamW goes on with our moments, and we with its."""
    mesh = mesh_of_four()
    (ours, opt), (theirs, _) = run_of(mesh, SYNCHRONOUS), run_of(mesh, SYNCHRONOUS)
    train_steps(ours, opt, range(3), part_on(mesh))
    theirs.load_state_dict(ours.state_dict())
    reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
    reference.load_state_dict(opt.adamw_state_dict())
    for model, optimizer in ((ours, opt), (theirs, reference)):
        train_steps(model, optimizer, range(3, 6), part_on(mesh))
    assert_near(whole_of(ours), whole_of(theirs))
    opt.load_state_dict(reference.state_dict())
    found, expected = opt.adamw_state_dict()["state"], reference.state_dict()["state"]
    assert all(torch.equal(found[i][name].to_local(), expected[i][name].to_local()) for i in found for name in ("exp_avg", "exp_avg_sq"))
    opt.close()


def scalars():
    """A parameter without axes, of which each process has a copy, in the state that torch.distributed.checkpoint takes. It does not count
    in the norm, where declare= says so."""
    mesh = mesh_of_four()["tp"]
    w = nn.Parameter(DTensor.from_local(torch.ones(4, 3), mesh, [Shard(0)], run_check=False))
    scale = nn.Parameter(DTensor.from_local(torch.tensor(2.0), mesh, [Replicate()], run_check=False))
    opt = zfplugin.torch.ZenFlow([("w", w), ("scale", scale)], config=config(SYNCHRONOUS), declare=lambda name, _: {"counts_in_norm": name == "w"})
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


# ---- by fully_shard alone, on two processes ----------------------------------------------------------------------------


def cut_model(n_more=0, **options):
    """Two layers and the rest, each cut by rows: 25 rows over 2 or 4 processes are uneven, the last layer's 4 are few, and of n_more more
    rows the last process has none."""
    model = mlp(width=25)
    if n_more:
        model.append(nn.Linear(4, n_more))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def offloaded(n_steps=20):
    """CPUOffloadPolicy: weights and gradients of a process's part lie in host memory; they are read and written where they lie."""
    for options in ({}, {"overlap": True}, {"clip_norm": 0.3}):
        ours, theirs = cut_model(offload_policy=CPUOffloadPolicy(pin_memory=False)), cut_model()
        opt, reference = zenflow_of(ours, SYNCHRONOUS, model=ours, **options), torch.optim.AdamW(theirs.parameters(), **HYPER)
        for step in range(n_steps):
            losses = []
            for model, optimizer in ((theirs, reference), (ours, opt)):
                x, y = slice_of(step, 0, 1)
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                losses.append(loss.item())
                if model is theirs and options.get("clip_norm"):
                    nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
                advance(optimizer)
            assert abs(losses[0] - losses[1]) < 2e-6 * max(1, losses[0]), (options, step, losses)
        assert_near(whole_of(ours), whole_of(theirs), options)
        memory = {local(p).untyped_storage().data_ptr() for p in ours.parameters()}
        assert {alias.untyped_storage().data_ptr() for alias in opt._binding.table.aliases} == memory, "a weight is held twice"
        opt.close()


def offloaded_long():
    offloaded(200)


@FEW_A_BUCKET
def shipped_in_backward():
    """Beside AdamW under fully_shard: gradients are read in backward, each process's part; with accumulation; clipped by the joint norm.
    (On the whole batch: hybrid().)"""
    for n_parts in (1, 2):
        ours, theirs = cut_model(), cut_model()
        opt = zenflow_of(ours, SYNCHRONOUS, overlap=True, clip_norm=0.3)
        reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
        for step in range(3):
            backward(ours, step, n_parts)
            assert not step or any(of.held is not None for of in opt._binding.feed.gradients), "nothing was shipped"
            backward(theirs, step, n_parts)
            nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
            for optimizer in (opt, reference):
                advance(optimizer)
        assert_near(whole_of(ours), whole_of(theirs))
        assert n_parts > 1 or opt.stats()["lost_overlap_nbytes"] == 0
        opt.close()


def skips_alike():
    """A gradient that is not finite in one process's part alone: all skip, and nothing moves."""
    model = cut_model()
    opt = zenflow_of(model, SYNCHRONOUS)
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
        return model, zenflow_of(model, DEFERRED)

    for edit in (edit_one_part, edit_whole):
        beside_unedited(make_run, edit)


def matrices_of(name, value):
    return value if value.dim() == 3 else value.view(5, 5, 12) if name == "heads" else [value]


def whole_muon(values):
    """{name: values} of whole matrices and experts, each a parameter, and torch's optimizers of them."""
    parts = {name: [nn.Parameter(part.clone()) for part in matrices_of(name, value)] for name, value in values.items()}
    rest = parts["bias"]
    return parts, [torch.optim.Muon([p for some in parts.values() if some is not rest for p in some], **MUON), torch.optim.AdamW(rest, **HYPER)]


def muon():
    """Cut by rows, unevenly, and by columns; heads that are matrices each, across the cut; experts that lie apart, and that are cut: the bits of torch's
    Muon of whole matrices, and the norm of all. Resumed by each process from its part."""
    mesh, generator = init_device_mesh("cpu", (dist.get_world_size(),)), torch.Generator().manual_seed(5)
    places = {"rows": (25, 12, Shard(0)), "heads": (25, 12, Shard(0)), "columns": (12, 17, Shard(1)), "apart.experts": (4, 8, 6, Shard(0)), "cut.experts": (3, 9, 6, Shard(1)),
              "bias": (7, Shard(0))}
    values = {name: torch.randn(shape, generator=generator) for name, (*shape, _) in places.items()}

    def make():
        params = {name: nn.Parameter(distribute_tensor(value, mesh, [places[name][-1]])) for name, value in values.items()}
        hidden = [(name, p) for name, p in params.items() if name not in ("bias", "heads")]
        return params, zfplugin.torch.ZenFlow([{"params": hidden, "rule": "muon", **MUON}, {"params": [("bias", params["bias"])], **HYPER}, {
            "params": [("heads", params["heads"])], "rule": "muon", "split_rows": (5,) * 5, **MUON}], config=config({}))

    (params, opt), (theirs, references) = make(), whole_muon(values)
    for step in range(6):
        if step == 3:
            saved, (resumed, other) = opt.state_dict(), make()
            other.load_state_dict(saved)
            opt.close()
            params, opt = resumed, other
        squares = 0
        for name, p in params.items():
            gradient = torch.randn(p.shape, generator=generator)
            squares += gradient.square().sum().item()
            p.grad = distribute_tensor(gradient, mesh, p.placements)
            for part, of in zip(theirs[name], matrices_of(name, gradient)):
                part.grad = of.clone()
        for optimizer in (opt, *references):
            optimizer.step()
        assert abs(opt.grad_norm / squares ** 0.5 - 1) < 1e-6, (step, opt.grad_norm)  # each gradient counts once, cut or apart
        for name, p in params.items():
            worst_of = (p.full_tensor() - torch.stack([*theirs[name]]).view(p.shape)).abs().max().item()
            assert worst_of <= (1e-5 if "experts" in name else 2e-7 if name in ("bias", "heads") else 0), (step, name, worst_of)  # experts are multiplied together
    raises(zfplugin.errors.ArgumentError, "cut along one axis", lambda: zfplugin.torch.ZenFlow(
        [{"params": [nn.Parameter(distribute_tensor(torch.ones(1, 9), mesh, [Shard(0)]))], "rule": "muon"}]))
    opt.close()
    muon_under_fully_shard()


def muon_under_fully_shard():
    """From the gradients that backward leaves, clipped by the norm of both rules' groups."""
    model = cut_model()
    values = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    theirs = {name: nn.Parameter(value.clone()) for name, value in values.items()}
    of_matrices, of_rest = muon_groups(nn.ParameterList(theirs.values()))
    references = [torch.optim.Muon(of_matrices["params"], **MUON), torch.optim.AdamW(of_rest["params"], **HYPER)]
    opt = zfplugin.torch.ZenFlow(muon_groups(model), model=model, clip_norm=0.3, config=config({}))
    for step in range(4):
        backward(model, step)
        for name, p in model.named_parameters():
            theirs[name].grad = p.grad.full_tensor()
        nn.utils.clip_grad_norm_(theirs.values(), 0.3)
        for optimizer in (opt, *references):
            optimizer.step()
        opt.zero_grad()
        assert opt.last_report.clip_factor < 1
        assert_near(whole_of(model), theirs, step)
    opt.close()


def refused_of_two():
    n = dist.get_world_size()
    foreign = nn.Parameter(distribute_tensor(torch.ones(4, 3), init_device_mesh("cpu", (n,)), [Shard(0)]))
    foreign.grad = distribute_tensor(torch.ones(4, 3), init_device_mesh("cpu", (1, n)), [Replicate(), Shard(0)])
    raises(zfplugin.errors.ShapeError, "a gradient is placed as", zfplugin.torch.ZenFlow([("w", foreign)]).step)
    opt = zenflow_of(cut_model(), SYNCHRONOUS)
    opt.bind()
    for call in (lambda: opt.save("nowhere"), lambda: opt.load("nowhere")):
        raises(zfplugin.errors.StateError, "cut over processes", call)
    opt.close()
