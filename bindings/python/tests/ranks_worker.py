# SPDX-License-Identifier: Apache-2.0
"""The programs of each rank of test_torch_ranks.py. A case that fails raises, which ends the job. Every rank gets its slice of the global
batch; the reference trains on all of it."""
import contextlib
import gc
import logging
import os
import shutil
import tempfile
import threading
import time
import unittest
import unittest.mock

import torch
import torch.distributed as dist
import usage
import usage_weights
from support import ALL_SELECTED, FEW, SYNCHRONOUS, batch, config, loss_of, mlp, worst
from test_torch_streams import QueuePlace
from test_torch_usage import trained, worst_of
from torch import nn

import zfplugin
import zfplugin.torch
import zfplugin.torch.muon
from zfplugin.torch import devices
from zfplugin.torch.binding import FLUSHED_STEPS
from zfplugin.torch.cut import like, local

HYPER = {"lr": 1e-2, "weight_decay": 0.05}
MUON = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95}
CLIP, BOUND = 0.5, 1e-5
FEW_A_BUCKET = unittest.mock.patch("zfplugin.torch.bucket.BUCKET_PARAMS", 2)  # most gradients are read in backward
DEFERRED = {"zenflow.full_warm_up_rounds": 3, "zenflow.topk_ratio": 0.25, "zenflow.update_interval": 3,
            "zenflow.select_interval": 6}
STAGES = [{"shard.stage": stage, "shard.bucket_bytes": 4096} for stage in (0, 1, 2)]


def slice_of(step, part=0, n_parts=1):
    """This rank's share of the batch of a step, and of that one micro-batch."""
    x, y = batch(step)
    n = len(x) // dist.get_world_size() // n_parts
    first = (dist.get_rank() * n_parts + part) * n
    return x[first:first + n], y[first:first + n]


def backward(model, step, n_parts=1):
    for part in range(n_parts):
        x, y = slice_of(step, part, n_parts)
        (nn.functional.mse_loss(model(x), y) / n_parts).backward()


def make(settings, group=None, **kwargs):
    """A model, and its optimizer over all ranks, or over a group."""
    ours = mlp()
    return ours, zenflow_of(ours, settings, group=group or dist.group.WORLD, **kwargs)


def zenflow_of(model, settings, /, **kwargs):
    return zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, config=config(settings), **kwargs)


def advance(opt):
    opt.step()
    opt.zero_grad()


def train(model, opt, steps):
    """On this rank's share of the batches."""
    for step in steps:
        backward(model, step)
        advance(opt)


def make_both(settings, **kwargs):
    """Ours, and AdamW's model and optimizer, for the whole batch."""
    theirs = mlp()
    return *make(settings, **kwargs), theirs, torch.optim.AdamW(theirs.parameters(), **HYPER)


def train_both(ours, opt, theirs, reference, step, n_parts=1):
    backward(ours, step, n_parts)
    advance(opt)
    loss_of(theirs, step).backward()
    advance(reference)


def assert_close(ours, theirs, *about, bound=2e-5):
    difference, name = worst(ours, theirs)
    assert difference <= bound, (*about, difference, name)


def assert_same_on_all_ranks(model):
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, flat)
    assert all(torch.equal(flat, other) for other in gathered), "the ranks have different weights"


def train_alone(model, loss_of_step, n_steps=4):
    """AdamW on one process: [(loss, gradient norm)] of every step, and the weights."""
    seen, optimizer = [], torch.optim.AdamW(model.parameters(), **HYPER)
    for step in range(n_steps):
        loss = loss_of_step(model, step)
        loss.backward()
        seen.append((loss.item(), nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()))
        advance(optimizer)
    return seen, whole_of(model)


def train_beside(alone, model, opt, backward_of, *about):
    """Beside train_alone(), step by step: norms, losses where backward_of(step) gives one, and weights at the end. The optimizer."""
    seen, weights = alone
    for step, (loss_there, norm_there) in enumerate(seen):
        loss = backward_of(step)
        advance(opt)
        assert loss is None or abs(loss - loss_there) < BOUND, (*about, step, loss, loss_there)
        assert abs(opt.grad_norm - norm_there) < BOUND * norm_there, (*about, step, opt.grad_norm, norm_there)
    opt.flush()
    assert_near(whole_of(model), weights, *about)
    return opt


def assert_near(found, expected, *about):
    """{name: values} of both."""
    for name, values in found.items():
        off = (values - expected[name]).abs().max().item()
        assert off < BOUND, (*about, name, off)


def whole_of(model):
    """{name: values} of parameters that are cut, or not; a call of all ranks. As it names and stacks them, where it says so."""
    found = {name: (p.full_tensor() if hasattr(p, "placements") else p).detach().clone() for name, p in model.named_parameters()}
    return model.renamed(found) if hasattr(model, "renamed") else found


@contextlib.contextmanager
def a_folder():
    """The same one on every process."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    yield folder[0]
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])


def as_adamw():
    """Beside torch's AdamW on the whole batch; with the user's own collectives between, accumulation."""
    for mode in (SYNCHRONOUS, {**ALL_SELECTED, "zenflow.full_warm_up_rounds": 3}):
        for stage, n_parts, kwargs in ((0, 1, {}), (1, 2, {})):
            both = ours, opt, theirs, _ = make_both({**mode, **STAGES[stage]}, **kwargs)
            opt.register_step_pre_hook(lambda *_: dist.all_reduce(torch.ones(1)))
            for step in range(8):
                train_both(*both, step, n_parts)
            assert_close(ours, theirs, mode, stage)
            assert_same_on_all_ranks(ours)
            opt.close()


@FEW_A_BUCKET
def under_ddp():
    """A whole optimizer on each rank, beside AdamW under the same DDP: torch averages gradients, of which most were read in backward, each
    rank's own, and are read again at step."""
    selected = {**ALL_SELECTED, "zenflow.full_warm_up_rounds": 3}
    for mode, n_parts, kwargs in ((SYNCHRONOUS, 3, {}), (SYNCHRONOUS, 3, {"gradient_as_bucket_view": True}),
                                  (selected, 1, {"gradient_as_bucket_view": True}), (selected, 1, {"static_graph": True})):
        ours, theirs = mlp(), mlp()
        opt = zfplugin.torch.ZenFlow(ours.named_parameters(), lr=1e-3, config=config(mode), model=ours, overlap=True)
        for model, optimizer in ((ours, opt), (theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-3))):
            ddp = nn.parallel.DistributedDataParallel(model, **kwargs)
            for step in range(8):
                for part in range(n_parts):
                    x, y = slice_of(step, part, n_parts)
                    with ddp.no_sync() if part < n_parts - 1 else contextlib.nullcontext():
                        nn.functional.mse_loss(ddp(x), y).backward()
                advance(optimizer)
        opt.flush()
        assert_close(ours, theirs, mode, n_parts, kwargs)
        assert_same_on_all_ranks(ours)
        assert kwargs or opt.stats()["lost_overlap_nbytes"] > 0, "nothing was shipped early"
        opt.close()


def stages_agree():
    """Every stage shows the same weights at every step, to the bit, in open windows too; and after flush(). So does an
    exchange during backward; and a run of any stage that goes on from what one has saved in mid-window."""
    def make_runs():
        return [make({**DEFERRED, **stage}, **kwargs) for stage in reversed(STAGES)
                for kwargs in ({}, {"overlap": False})]

    runs = make_runs()
    for step in range(20):
        if step == 8:
            others = make_runs()[1:]
            with a_folder() as folder:
                runs[0][1].save(f"{folder}/state")
                for _, opt in others:
                    opt.load(f"{folder}/state")
            while len(runs) > 1:
                runs.pop()[1].close()
            runs += others
        for model, opt in runs:
            train(model, opt, [step])
        assert_same_on_all_ranks(runs[0][0])
        for model, _ in runs[1:]:
            assert worst(model, runs[0][0])[0] == 0, f"step {step}"
    for model, opt in runs:
        opt.flush()
        assert worst(model, runs[0][0])[0] == 0, "after flush()"
        opt.close()


def two_levels():
    """Gradients are summed on each of two machines first: AdamW's weights, and the same of ranks that torchrun numbers by turns."""
    os.environ["GROUP_RANK"] = str(dist.get_rank() % 2)
    for stage in STAGES[:2]:
        both = ours, opt, theirs, _ = make_both({**SYNCHRONOUS, **stage, "shard.transport": "host_two_level"})
        for step in range(6):
            train_both(*both, step)
        assert_close(ours, theirs, stage)
        assert_same_on_all_ranks(ours)
        assert opt._ranks.place(zfplugin._abi.GROUP_NODE) == (dist.get_rank() // 2, 2), "two machines of two ranks"
        opt.close()


def has_gradient(step, name):
    """One parameter has none on one rank, or on all; in a step one rank has none at all."""
    return (name != "0.weight" or step % 4 < 2 or step % 4 == 2 and dist.get_rank() == 0) and (step != 10 or dist.get_rank() == 0)


def one_rank_edits(model, opt, step):
    """One element past version counters; then another object; then there is none."""
    p = model[2].weight
    if step == 6 and dist.get_rank() == 1:
        p.grad.data[3, 4] += 1.0
    elif step == 14 and dist.get_rank() == 0:
        p.grad = p.grad * 2
    elif step == 28 and dist.get_rank() == 1:
        p.grad = None


def looks(model, opt, step):
    """Calls between backward and step."""
    if step in (7, 9):
        opt.flush()
        opt.export()
        opt.state_dict()
        with a_folder() as folder:
            opt.save(folder)
            if step == 9:
                opt.load(folder)


def read_by_one():
    """Reads by one rank alone: the model's state_dict() is of all of them all the same."""
    ours = mlp()
    opt = zenflow_of(ours, {**DEFERRED, **SYNCHRONOUS, **STAGES[1], "host.deadline_ms": 9000}, group=dist.group.WORLD, model=ours, fetch=True)
    for step in range(6):
        train(ours, opt, [step])
        seen = [ours.state_dict()]
        if dist.get_rank() == 0:
            loss_of(ours, step)
        seen.append(ours.state_dict())
        assert all(torch.equal(value, seen[1][name]) for name, value in seen[0].items())
    opt.close()


@FEW_A_BUCKET
def train_overlapped(settings, n_steps, n_backwards=lambda step: 1, has=lambda step, name: True, touch=lambda *_: None, average=True):
    """Beside AdamW over the sum of what .grad holds when step() is called. In which steps gradients were on their way before it."""
    ours, opt, theirs, reference = make_both({**SYNCHRONOUS, **settings}, declare=lambda *_: {"average": average})
    seen, sent, start = [], threading.Event(), opt._ranks.start
    opt._ranks.start = lambda call: (start(call), call.lane == 0 and sent.set())[0]
    for step in range(n_steps):
        sent.clear()
        for part in range(n_backwards(step)):
            draw = torch.Generator().manual_seed(100 * step + 10 * part + dist.get_rank())
            terms = [(p * torch.randn(p.shape, generator=draw)).sum() for name, p in ours.named_parameters() if has(step, name)]
            sum(terms).backward() if terms else None
        if sent.wait(10 if opt._binding and any(of.held is not None for of in opt._binding.feed.gradients) else 0):
            seen.append(step)
        touch(ours, opt, step)
        sums = [torch.zeros(1 + p.numel()) if p.grad is None else torch.cat([torch.ones(1), p.grad.flatten()]) for p in ours.parameters()]
        all_sums = torch.cat(sums)
        dist.all_reduce(all_sums)
        for q, total in zip(theirs.parameters(), all_sums.split([len(values) for values in sums])):
            q.grad = total[1:].view(q.shape) / (dist.get_world_size() if average else 1) if total[0] else None
        advance(opt)
        reference.step()
        assert_close(ours, theirs, settings, step, bound=1e-6)
    assert_same_on_all_ranks(ours)
    opt.close()
    return seen


def overlapped():
    """Gradients travel in backward. What is done to them, on all ranks or on one, counts as if they travelled at step()."""
    holes = train_overlapped(STAGES[1], 12, has=has_gradient, average=False)
    assert {*range(1, 12)} - {*holes} <= {10}, holes
    # the rest of an epoch's backwards come alone; one more than that is a change
    assert train_overlapped(STAGES[0], 20, lambda step: 2 - (step == 6) + (step == 9)) == [*range(1, 6), 7, 8, 9, *range(12, 20)]
    assert train_overlapped(STAGES[1], 30, touch=one_rank_edits) == [*range(1, 30)]
    assert train_overlapped(STAGES[2], 12, touch=looks) == [*range(1, 12)]


def used():
    """Acts of trainers between backward and step, or to weights, beside AdamW."""
    for program in (usage.accumulation, usage.clip_norm, usage.noise, usage.odd_gradients, usage.scaler, usage.layer_drop, usage.edited_groups,
                    usage_weights.one_row, usage_weights.reassigned, usage_weights.sharpness):
        make_model = next(make for _, of, make in usage.USES if of is program)
        for is_fetched in (False, True) if program is usage_weights.reassigned else (False,):
            options = {"fetch": is_fetched, "group": dist.group.WORLD, "config": config(SYNCHRONOUS, FEW, STAGES[1])}
            off = worst_of(program, make_model, options, trained(program, make_model))
            assert off < 1e-6, (program.__name__, is_fetched, off)


def beside_unedited(make_run, edit, *about):
    """Edits after flush(), with gradients that do not depend on the weights: elsewhere a process shows to the bit what it does without
    them, if its windows end alike; what was written goes on from there, by the same moments. make_run: gives a model and its optimizer."""
    (ours, opt), (theirs, plain) = make_run(), make_run()
    pairs, off, n_steps, decay = [*zip(map(local, ours.parameters()), map(local, theirs.parameters()))], [], 24, 1 - HYPER["lr"] * HYPER["weight_decay"]
    for step in range(n_steps):
        for model, optimizer in ((ours, opt), (theirs, plain)):
            draw = torch.Generator().manual_seed(2 * step + dist.get_rank())
            for p in model.parameters():
                p.grad = like(torch.randn(local(p).shape, generator=draw), p)
            optimizer.step()
        if step == 7:
            opt.flush()
            plain.flush()
            with torch.no_grad():
                edit(ours)
            off = [p - other for p, other in pairs]
        if any(by.any() for by in off) and step <= 7 + FLUSHED_STEPS:
            plain.flush()
    opt.flush()
    plain.flush()
    for (p, other), by in zip(pairs, off):
        assert torch.equal(p[by == 0], other[by == 0]), (edit.__name__, *about)
        assert ((p - other - by * decay ** (n_steps - 8)).abs() < 1e-6).all(), (edit.__name__, *about)
    opt.close()
    plain.close()
    return ours


def edited_row():
    """A row that every rank writes leaves all else its updates, at every stage."""
    def write_row(model):
        model[2].weight.data[3] = 0.25

    for stage in STAGES:
        assert_same_on_all_ranks(beside_unedited(lambda stage=stage: make({**DEFERRED, **stage}), write_row, stage))


def on_queues():
    """Hosts that enqueue: the weights of hosts that wait, behind a row too that every rank writes unseen while one rank's device is behind."""
    for stage in STAGES:
        place = QueuePlace()
        ours, opt = make({**DEFERRED, **stage})
        with unittest.mock.patch.object(devices, "of", lambda *_, place=place: place):
            opt.bind()
        theirs, plain = make({**DEFERRED, **stage})
        for step in range(16):
            for model, its in ((ours, opt), (theirs, plain)):
                backward(model, step)
                if dist.get_rank() == 0:
                    place.launch(lambda: time.sleep(0.002))
                kept = [p.grad for p in model.parameters()]  # a GPU's memory is given to others in stream order
                advance(its)
                place.settle()
                del kept
                if step == 8:
                    model[2].weight.data[3] = 0.25
            assert_close(ours, theirs, stage, step, bound=0)
        assert_same_on_all_ranks(ours)
        opt.close()
        plain.close()
        place.close()


def taken_out():
    """Its moments are gone when it is put back: refused by name, on every rank. Frozen instead it is AdamW's."""
    for stage in STAGES:
        both = ours, opt, theirs, _ = make_both({**SYNCHRONOUS, **stage})
        for step in range(9):
            for model in (ours, theirs):
                model[2].weight.requires_grad_(not 3 <= step < 6)
                model[2].weight.grad = None
            train_both(*both, step)
        assert_close(ours, theirs, stage)
        taken = opt.param_groups[0]["params"].pop(2)
        backward(ours, 9)
        opt.step()
        opt.param_groups[0]["params"].insert(2, taken)
        backward(ours, 10)
        raises(zfplugin.errors.StateError, '"2.weight" was taken out of the groups and put back', opt.step)
        opt.param_groups[0]["params"].pop(2)
        opt.step()
        assert_same_on_all_ranks(ours)
        opt.close()


def dropped():
    """Nobody brings what is on its way to the weights: it is said, also where the model's state_dict() had it."""
    for gives_final in (False, True):
        model, opt = make({**DEFERRED, **STAGES[1]})
        train(model, opt, range(9))
        if gives_final:
            opt.export()
        with unittest.TestCase().assertLogs("zfplugin", logging.WARNING) as said:
            del opt
            gc.collect()
        assert "which the weights lack" in said.output[0], said.output


@FEW_A_BUCKET
def changed_after_backward():
    """Each rank's own gradients, clipped by the host: said, and after three steps they travel at step, on a rank that clips nothing, too."""
    model, opt = make({**SYNCHRONOUS, **STAGES[1]})
    train(model, opt, [0])
    with unittest.TestCase().assertLogs("zfplugin", logging.WARNING) as said:
        for step in range(1, 5):
            assert opt._binding.feed.is_shipping == (step < 4)
            backward(model, step)
            if dist.get_rank() == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            opt.step()
            opt.zero_grad()
    assert "clip_norm" in said.output[0], said.output
    opt.close()


def raises(kind, text, function):
    try:
        function()
    except kind as problem:
        assert text in str(problem), problem
        return problem
    raise AssertionError(f"no {kind.__name__} with '{text}'")


def refused():
    """Ranks that differ are told in what; each case ends an instance, and no other one."""
    rank = dist.get_rank()
    for settings, text in (({"zenflow.topk_ratio": 0.1 + 0.1 * rank}, "topk_ratio"), ({}, "values")):
        model, opt = make({**DEFERRED, **settings})
        if not settings:
            with torch.no_grad():
                model[0].weight[0, 0] += rank
        raises(zfplugin.errors.RanksError, text, opt.bind)
        opt.close()
    model, opt = make(SYNCHRONOUS)
    opt.param_groups[0]["lr"] *= 1 + rank
    backward(model, 0)
    raises(zfplugin.errors.RanksError, "arguments of step", opt.step)
    opt.close()
    model, opt = make({**SYNCHRONOUS, **STAGES[1]})
    opt_groups = opt.state_dict()
    backward(model, 0)
    opt.step()
    for packed in ({}, {"state": {0: 0}, "zenflow": {}}):
        raises(zfplugin.errors.StateError, "together: save(directory) and load(directory)", lambda packed=packed: opt.load_state_dict({**opt_groups, **packed}))
    opt.close()
    raises(zfplugin.errors.ConfigError, "fully_shard", lambda: make({**SYNCHRONOUS, "shard.stage": 3}))
    raises(zfplugin.errors.ArgumentError, "ProcessGroup", lambda: zfplugin.torch.ZenFlow(mlp().parameters(), group=7))


def names_whose_it_was():
    """A gradient that is not finite on rank 1 alone: every rank's log says so."""
    for settings in STAGES[:2]:
        model, opt = make({**SYNCHRONOUS, **settings})
        with unittest.TestCase().assertLogs("zfplugin", "WARNING") as said:
            for step in range(4):
                backward(model, step)
                if step == 1 and dist.get_rank() == 1:
                    model[0].weight.grad[0, 0] = float("nan")
                opt.step()
                opt.zero_grad()
        assert any('"0.weight" is not finite on rank 1' in line for line in said.output), said.output
        opt.close()


def muon_groups(model):
    """Those of Muon's matrices, and of the rest."""
    hidden, rest = ([p for p in model.parameters() if (p.dim() == 2) is is_matrix] for is_matrix in (True, False))
    return [{"params": hidden, "rule": "muon", **MUON}, {"params": rest, **HYPER}]


def muon():
    """Each matrix by one rank, with the bits of torch's Muon from the mean gradient; saved by all and resumed."""
    for settings in STAGES[1:]:
        def make_run():
            model = mlp()
            return model, zfplugin.torch.ZenFlow(muon_groups(model), model=model, group=dist.group.WORLD, config=config(settings))

        (ours, opt), theirs = make_run(), mlp()
        of_matrices, of_rest = muon_groups(theirs)
        references = [torch.optim.Muon(of_matrices["params"], **MUON), torch.optim.AdamW(of_rest["params"], **HYPER)]
        with a_folder() as folder, unittest.mock.patch.object(zfplugin.torch.muon, "orthogonal", wraps=zfplugin.torch.muon.orthogonal) as made:
            for step in range(4):
                if step == 2:
                    opt.save(folder)
                    opt.close()
                    ours, opt = make_run()
                    opt.load(folder)
                generator = torch.Generator().manual_seed(step)
                for p, q in zip(ours.parameters(), theirs.parameters()):
                    q.grad = torch.randn(p.shape, generator=generator)
                    p.grad = q.grad * 2 * dist.get_rank()  # of two ranks; a power of two is exact
                for optimizer in (opt, *references):
                    optimizer.step()
                opt.flush()
                for p, q in zip(of_matrices["params"], muon_groups(ours)[0]["params"]):
                    assert torch.equal(p, q), (settings, step)
                assert_close(ours, theirs, settings, step)
        n = torch.tensor(made.call_count)
        dist.all_reduce(n)
        assert 0 < made.call_count < n == 4 * len(of_matrices["params"]), (made.call_count, n)
        opt.close()
