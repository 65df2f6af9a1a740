# SPDX-License-Identifier: Apache-2.0
"""What trainers do with weights beside forward, backward and step: the same program with the plugin and with torch's AdamW; the loss and
whatever the program keeps of the weights compared after every step, the weights after the last.

With exact=True all of them are AdamW's. With model= alone, in the synchronous mode, those are that let the model read its weights,
wherever in its forward, and those that ask for a state_dict().
"""
import collections
import copy
import io
import logging
import tempfile
import unittest

from support import SYNCHRONOUS, TorchTest, batch, config, loss_of, mlp, plain_step, torch, twins, unwatched, zenflow
import zfplugin
from test_torch_edits import drawn, drawn_step
from torch import nn
from torch.nn import functional

HYPER = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.05}
FEW = {"zenflow.topk_ratio": 0.1, "zenflow.full_warm_up_rounds": 2}  # else nothing is deferred at first
N_STEPS, BOUND = 14, 1e-6


class Adapted(nn.Module):
    """A linear layer with an adapter of low rank that can be merged into its weight; is_lora: eval() merges."""

    def __init__(self, n, is_lora):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n) / n**0.5, requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(4, n) / 2), nn.Parameter(torch.randn(n, 4) / 2)
        self.is_merged, self.is_lora = False, is_lora

    def merge(self, is_on):
        if is_on != self.is_merged:
            self.weight.data += (1 if is_on else -1) * (self.b.data @ self.a.data)
            self.is_merged = is_on

    def train(self, mode=True):
        if self.is_lora:
            self.merge(not mode)
        return super().train(mode)

    def forward(self, x):
        weight = self.weight if self.is_merged else self.weight + self.b @ self.a
        return functional.linear(x, weight)


def adapted(is_lora=False):
    return lambda: nn.Sequential(nn.Linear(8, 24), Adapted(24, is_lora), nn.GELU(), Adapted(24, is_lora), nn.Linear(24, 4))


class Early(nn.Module):
    """Its last layer's weight is read at the beginning, too; its first one's at the end."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, x):
        x = self.first(x + (x[:, :4] @ self.last.weight)[:, :8])
        return self.last(torch.tanh(self.middle(x)) @ (torch.eye(24) + self.first.weight @ self.first.weight.t()))


class TiedByHand(nn.Module):
    """An embedding whose weight is read by the model before it is looked up in it."""

    def __init__(self):
        super().__init__()
        self.middle, self.tokens = nn.Linear(8, 24), nn.Embedding(12, 24)

    def forward(self, x):
        tokens = x.argmax(1)
        scores = functional.linear(self.middle(x), self.tokens.weight)
        return (self.tokens(tokens) + 0.02 * scores @ self.tokens.weight)[:, :4]


def step_of(model, opt, i, kept, penalty=lambda model: 0.0):
    kept["loss"] = penalty(model) + loss_of(model, i)
    kept["loss"].backward()
    opt.step()
    opt.zero_grad()


# ---- patterns: function(model, opt, number of the step, kept), kept: a dict that lives as long as the run ----------------------


def lora_checkpoint(model, opt, i, kept):
    """merge_adapter(), state_dict(), unmerge_adapter()."""
    step_of(model, opt, i, kept)
    layers = [m for m in model if isinstance(m, Adapted)]
    for layer in layers:
        layer.merge(True)
    kept["saved"] = {name: value.clone() for name, value in model.state_dict().items() if name.endswith((".a", ".b"))}
    for layer in layers:
        layer.merge(False)


def lora_eval(model, opt, i, kept):
    step_of(model, opt, i, kept)
    model.eval()
    with torch.no_grad():
        kept["scores"] = model(batch(i)[0])
    model.train()


def plain(model, opt, i, kept):
    step_of(model, opt, i, kept)


def penalty(model, opt, i, kept):
    step_of(model, opt, i, kept, lambda model: 0.1 * sum(p.pow(2).sum() for p in model.parameters()))


def decay_by_norm(model, opt, i, kept):
    step_of(model, opt, i, kept, lambda model: 0.1 * sum(p.norm() for p in model[2].parameters()))


def magnitude_pruning(model, opt, i, kept):
    step_of(model, opt, i, kept)
    if i % 3 == 1:
        for p in model.parameters():
            if p.dim() > 1:
                with torch.no_grad():
                    p.mul_(p.abs() >= p.abs().flatten().kthvalue(p.numel() // 10).values)


def soft_target(model, opt, i, kept):
    step_of(model, opt, i, kept)
    for name, p in model.named_parameters():
        kept.setdefault(name, torch.zeros_like(p.data)).lerp_(p.data, 0.05)


def lookahead(model, opt, i, kept):
    step_of(model, opt, i, kept)
    for name, p in model.named_parameters():
        slow = kept.setdefault(name, p.detach().clone())
        if i % 3 == 2:
            slow.add_(p.detach() - slow, alpha=0.5)
            p.data.copy_(slow)


def averages(model, opt, i, kept):
    average = kept.setdefault("average", torch.optim.swa_utils.AveragedModel(model))
    step_of(model, opt, i, kept)
    average.update_parameters(model)
    kept.update(average.module.named_parameters())


def restored_after_forward(model, opt, i, kept):
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        loss_of(model, i)
        for p, values in zip(model.parameters(), before):
            p.copy_(values)
    step_of(model, opt, i, kept)


def sam(model, opt, i, kept, assign=True):
    """Sharpness-aware minimisation that keeps the values and puts them back."""
    loss_of(model, i).backward()
    before = [p.data.clone() for p in model.parameters()]
    for p in model.parameters():
        p.data.add_(0.05 * p.grad / (p.grad.norm() + 1e-12))
    opt.zero_grad()
    kept["loss"] = loss_of(model, i)
    kept["loss"].backward()
    for p, values in zip(model.parameters(), before):
        if assign:
            p.data = values
        else:
            p.data.copy_(values)
    opt.step()
    opt.zero_grad()


MODEL_READS = [(lora_checkpoint, adapted()), (plain, Early), (plain, TiedByHand), (penalty, mlp), (decay_by_norm, mlp), (sam, mlp)]
TRAINER_READS = [(lora_eval, adapted(True)), (magnitude_pruning, mlp), (soft_target, mlp), (lookahead, mlp), (averages, mlp),
                 (restored_after_forward, mlp)]


class Patterns(TorchTest):
    def side_by_side(self, pattern, make, **kwargs):
        """The largest difference of a weight, or of what the program keeps, after any step."""
        runs, apart = [], 0.0
        for is_ours in (True, False):
            torch.manual_seed(0)
            model = make()
            trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
            opt = self.keep(zenflow(model, **HYPER, model=model, **kwargs)) if is_ours else \
                torch.optim.AdamW([p for _, p in trained], **HYPER)
            runs.append((model, opt, {}))
        for i in range(N_STEPS):
            for model, opt, kept in runs:
                pattern(model, opt, i, kept)
            (ours, opt, mine), (theirs, _, torchs) = runs
            apart = max(apart, self.apart(mine, torchs))
        return max(apart, self.apart(ours.state_dict(), theirs.state_dict()))

    def keep(self, opt):
        self.made.append(opt)
        return opt

    @staticmethod
    def apart(a, b):
        if isinstance(b, dict):
            return max(Patterns.apart(a[key], b[key]) for key in b)
        return (a - b).abs().max().item() if isinstance(b, torch.Tensor) else 0.0

    def check(self, patterns, **kwargs):
        for pattern, make in patterns:
            with self.subTest(pattern=pattern.__name__, model=getattr(make, "__name__", "adapted")):
                self.assertLessEqual(self.side_by_side(pattern, make, **kwargs), BOUND)

    def test_exact(self):
        self.check(MODEL_READS + TRAINER_READS, exact=True, config=config(FEW))

    def test_synchronous_where_the_model_reads(self):
        self.check(MODEL_READS, config=config(SYNCHRONOUS, FEW))

    def test_said_once_with_the_names_and_what_it_costs(self):
        """And only what is late is named: not the layers that the model reads in their own forward."""
        with self.messages() as caught:
            self.side_by_side(plain, Early, config=config(SYNCHRONOUS, FEW))
        self.assertEqual(len(caught.output), 1)
        self.assertIn('"last.weight" (first by matmul)', caught.output[0])
        self.assertNotIn("middle", caught.output[0])
        self.assertIn("9.6e-05 M of 0.000916 M weights", caught.output[0])

    def test_a_read_that_begins_later_is_found_at_a_later_look(self):
        model, opt = self.trained(5)
        self.assertEqual(opt._fetcher.early, set())
        for i in range(5, 16):
            plain_step(model, opt, i)
            if i in (5, 10, 15):  # there is a look after the eighth step and after the sixteenth
                model[2].weight.detach().sum()
        plain_step(model, opt, 16)
        self.assertEqual(opt._fetcher.early, {"2.weight"})

    def test_a_watch_leaves_other_modes_alone(self):
        """Opened before step(), there is no watch; opened since and still open at the next, it is as before."""
        from torch.overrides import TorchFunctionMode

        class Counting(TorchFunctionMode):
            n = 0

            def __torch_function__(self, function, types, args=(), kwargs=None):
                self.n += 1
                return function(*args, **(kwargs or {}))

        model, opt = self.trained(0)
        with Counting() as outer:
            plain_step(model, opt, 0)
            self.assertIsNone(opt._fetcher.watch._mode)
        before = outer.n
        plain_step(model, opt, 1)
        self.assertIsNotNone(opt._fetcher.watch._mode)
        with Counting() as inner:
            plain_step(model, opt, 2)
            before_it = inner.n
            torch.ones(1)
            self.assertGreater(inner.n, before_it)
        before_it = inner.n
        torch.ones(1)
        self.assertEqual((outer.n, inner.n), (before, before_it))
        plain_step(model, opt, 3)
        opt.close()
        self.assertEqual(torch._C._len_torch_function_stack(), 0)

    def trained(self, n_steps, **kwargs):
        model = mlp()
        opt = self.zenflow(model, **{**HYPER, "model": model, "config": config(SYNCHRONOUS, FEW), **kwargs})
        for i in range(n_steps):
            plain_step(model, opt, i)
        return model, opt


class Reading(TorchTest):
    """state_dict() and everything else that only reads leaves the parameters as they are, their version counters too."""

    MODES = (SYNCHRONOUS, {"zenflow.update_interval": 4, "zenflow.publish_lag": 0})

    def readings(self, model, opt):
        """Twice each, since the first one finds values that wait in the plugin, and the second those that were put aside."""
        yield "model.state_dict", model.state_dict
        yield "opt.state_dict", opt.state_dict
        yield "opt.state", lambda: len(opt.state)
        yield "export", opt.export
        yield "drain", opt.drain
        yield "adamw_state_dict", opt.adamw_state_dict
        yield "a module's state_dict", model[2].state_dict
        yield "save", lambda: opt.save(f"{self.folder}/saved")

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_nothing_moves(self):
        for mode in self.MODES:
            pairs = [(model, unwatched(self.zenflow(model, **HYPER, model=model, config=config(mode, FEW)))) for model in twins()]
            (model, opt), (other, its) = pairs
            n_late = 0
            for i in range(10):
                for one, its_own in pairs:
                    plain_step(one, its_own, i)
                shown = [(p._version, p.detach().clone()) for p in model.parameters()]
                graph = sum(p.pow(2).sum() for p in model.parameters())
                for name, read in 2 * [*self.readings(model, opt)] if i > 3 else []:
                    with self.subTest(mode=mode, reading=name, step=i):
                        read()
                        for p, (version, values) in zip(model.parameters(), shown):
                            self.assertTrue(torch.equal(p, values))
                            self.assertEqual(p._version, version)
                graph.backward()  # nothing was written under it
                final = model.state_dict()
                n_late += sum(not torch.equal(p, final[name]) for name, p in model.named_parameters())
                if mode is SYNCHRONOUS:
                    its.synchronize()
                    for name, p in other.named_parameters():
                        self.assertTrue(torch.equal(p, final[name]), name)
            self.assertGreater(n_late, 5)
            self.assertEqual([loss_of(one, 10).item() for one, _ in pairs], [loss_of(other, 10).item()] * 2)
            for one, its_own in pairs:
                its_own.flush()
            self.assert_same(model, other, 0)

    def test_edited_between_a_reading_and_the_forward(self):
        """One row: the others get what was on its way to them. Gradients that do not depend on the weights."""
        ours, theirs = twins()
        opt = unwatched(self.zenflow(ours, **HYPER, model=ours, config=config(SYNCHRONOUS, FEW)))
        reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
        for i in range(12):
            for model, its in ((ours, opt), (theirs, reference)):
                drawn_step(model, its, i)
                if i % 4 == 3:
                    model.state_dict()
                    its.state_dict()
                    model[2].weight.data[3] = 0.25
        opt.flush()
        self.assert_same(ours, theirs, BOUND)

    def test_swapped_out_and_back_after_a_reading(self):
        ours, theirs = twins()
        opt = unwatched(self.zenflow(ours, **HYPER, model=ours, config=config(SYNCHRONOUS, FEW)))
        reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
        for i in range(12):
            plain_step(theirs, reference, i)
            plain_step(ours, opt, i)
            ours.state_dict()
            kept = [p.detach().clone() for p in ours.parameters()]
            with torch.no_grad():
                for p, average in zip(ours.parameters(), mlp(seed=i).parameters()):
                    p.copy_(average)
                self.assertEqual(loss_of(ours, i), loss_of(mlp(seed=i), i))
                opt.state_dict()
                for p, values in zip(ours.parameters(), kept):
                    p.copy_(values)
        opt.flush()
        self.assert_same(ours, theirs, BOUND)


WINDOWS = {"zenflow.update_interval": 4, "zenflow.publish_lag": 0}


class AsTorch(TorchTest):
    """Gradients that do not depend on the weights: in open windows, too, the weights after flush() are AdamW's."""

    def check(self, one_step, n_steps=23, bound=BOUND, **kwargs):
        ours, theirs = twins()
        opt = self.zenflow(ours, **{**HYPER, "config": config(WINDOWS, FEW), **kwargs})
        reference = torch.optim.AdamW(theirs.parameters(), **{**HYPER, **{key: kwargs[key] for key in kwargs if key == "eps"}})
        for i in range(n_steps):
            for model, its in ((ours, opt), (theirs, reference)):
                one_step(model, its, i)
        opt.flush()
        self.assert_same(ours, theirs, bound)
        return opt

    def test_values_put_back_by_assignment_lose_no_updates(self):
        """SAM that keeps clones: the weights are perturbed in place, and others of the old values take their place."""
        def one_step(model, opt, i):
            before = [p.data.clone() for p in model.parameters()]
            drawn(model, i)
            for p, values in zip(model.parameters(), before):
                p.data.add_(0.05 * p.grad)
                p.data = values
            opt.step()

        with self.assertNoLogs("zfplugin", logging.INFO):
            self.check(one_step)
        self.check(one_step, model=mlp(), fetch=False)

    def test_an_average_assigned_is_an_edit_all_the_same(self):
        def one_step(model, opt, i):
            drawn_step(model, opt, i)
            if i % 7 == 3:
                for p, q in zip(model.parameters(), mlp(seed=i).parameters()):
                    p.data = q.data.clone()

        self.check(one_step)

    def test_taken_out_of_the_groups_and_put_back(self):
        """Its moments and its count go on."""
        def one_step(model, opt, i):
            params = opt.param_groups[0]["params"]
            if i in (6, 15):
                params[:] = [p for p in params if p is not model[2].weight]
            if i in (11, 19):
                params.append(model[2].weight)
            drawn_step(model, opt, i)

        self.check(one_step)

    def test_a_state_thrown_away(self):
        """The ways to let moments begin anew; what would fill a state is refused."""
        ways = {
            "assigned": lambda opt: setattr(opt, "state", collections.defaultdict(dict)),
            "loaded": lambda opt: opt.load_state_dict({**opt.state_dict(), "state": {}}),
        }
        for name, throw_away in ways.items():
            def one_step(model, opt, i, throw_away=throw_away):
                drawn_step(model, opt, i)
                if i in (4, 11):
                    throw_away(opt)

            with self.subTest(name):
                opt = self.check(one_step)
                with self.assertRaisesRegex(zfplugin.StateError, "opt.state is a copy"):
                    opt.state = dict(opt.state)
                opt.state = opt.state  # as it is

    def test_eps_of_0(self):
        self.check(drawn_step, eps=0)

    def test_a_step_without_gradients_does_nothing(self):
        def one_step(model, opt, i):
            if i % 5 == 4:
                loss_of(model, i).backward()  # shipped, and withdrawn
                opt.zero_grad()
                opt.step()
            drawn_step(model, opt, i)

        with self.messages() as caught:
            opt = self.check(one_step)
        self.assertEqual(opt.stats()["steps"], 23)
        self.assertEqual(len(caught.output), 3)
        self.assertIn("none of the 12 trainable parameters has a gradient (4 such steps so far)", caught.output[-1])

    def test_tied_through_its_transpose_is_refused_by_name(self):
        model = mlp()
        model[5].weight = nn.Parameter(model[2].weight.data.t())
        with self.assertRaisesRegex(zfplugin.ParamError, r'"5.weight" lies in the memory of "2.weight" in another way'):
            self.zenflow(model).bind()

    def test_a_scripted_model_is_refused_by_name(self):
        scripted = torch.jit.script(mlp())
        with self.assertRaisesRegex(zfplugin.ArgumentError, "torch.jit.ScriptModule"):
            self.zenflow(scripted, model=scripted)
        plain_step(scripted, self.zenflow(scripted), 0)


class Left(TorchTest):
    """Models that outlive the run, or leave it otherwise."""

    MODES = (SYNCHRONOUS, WINDOWS)

    def test_a_model_whose_optimizer_is_dropped_has_all_updates(self):
        for mode in self.MODES:
            for is_asked in (False, True):
                with self.subTest(mode=mode, is_asked=is_asked):
                    model = mlp()
                    opt = unwatched(zenflow(model, **HYPER, model=model, config=config(mode, FEW)))
                    for i in range(9):
                        plain_step(model, opt, i)
                    final = {name: value.clone() for name, value in model.state_dict().items()} if is_asked else opt.export()
                    self.assertTrue(any(not torch.equal(p, final[name]) for name, p in model.named_parameters()))
                    del opt
                    for name, p in model.named_parameters():
                        self.assertTrue(torch.equal(p, final[name]), name)

    def test_what_somebody_wrote_stays(self):
        model = mlp()
        opt = zenflow(model, **HYPER, model=model, config=config(WINDOWS, FEW))
        for i in range(9):
            plain_step(model, opt, i)
        final = opt.export()
        model[2].weight.data.fill_(0.5)
        opt.close()
        self.assertTrue((model[2].weight == 0.5).all())
        self.assertTrue(torch.equal(model[5].weight, final["5.weight"]))

    def test_a_copy_of_the_module_is_said_to_lack_updates(self):
        for mode in self.MODES:
            model = mlp()
            opt = unwatched(self.zenflow(model, **HYPER, model=model, config=config(mode, FEW)))
            for i in range(9):
                plain_step(model, opt, i)
            for copied in (lambda: copy.deepcopy(model), lambda: torch.save(model, io.BytesIO())):
                with self.messages() as caught:
                    copied()
                self.assertEqual(len(caught.output), 1)
                self.assertIn("the copy lacks them", caught.output[0])
            opt.flush()
            with self.assertNoLogs("zfplugin", logging.WARNING):
                copy.deepcopy(model)


if __name__ == "__main__":
    unittest.main()
