# SPDX-License-Identifier: Apache-2.0
"""Reads of weights between step and forward: what the watch sees of them, what leaves the parameters as they are, and edits that follow
them. The programs of trainers themselves are test_torch_usage.py's."""
import collections
import copy
import io
import logging
import tempfile

from support import FEW, HYPER, SYNCHRONOUS, TorchTest, batch, config, loss_of, mlp, plain_step, torch, train, twins, unwatched, zenflow
import zfplugin
from test_torch_edits import drawn_step
from torch import nn
from usage_weights import Early

BOUND = 1e-6


class Watched(TorchTest):
    def test_said_once_with_the_names_and_what_it_costs(self):
        """And only what is late is named: not the layers that the model reads in their own forward."""
        model, opt = self.trained(0, Early)
        with self.messages() as caught:
            train(model, opt, range(6))
        self.assertEqual(len(caught.output), 1)
        self.assertIn('"last.weight" (first by matmul)', caught.output[0])
        self.assertNotIn("middle", caught.output[0])
        self.assertIn("9.6e-05 M of 0.000916 M weights", caught.output[0])

    def test_a_read_that_begins_later_is_found_at_a_later_look(self):
        model, opt = self.trained(6)
        self.assertEqual(opt._fetcher.early, set())
        reads = iter([i in (6, 10, 13) for i in range(6, 14)])  # there is a look after the eighth step and after the thirteenth
        model[0].register_forward_hook(lambda *_: (None, next(reads) and model[2].weight.sum())[0])
        train(model, opt, range(6, 13))
        self.assertEqual(opt._fetcher.early, set())
        plain_step(model, opt, 13)
        self.assertEqual(opt._fetcher.early, {"2.weight"})

    def test_what_the_trainer_reads_before_the_forward_is_fetched_and_nothing_else(self):
        model, opt = self.trained(6)
        shown, final = {name: p.shape for name, p in model.named_parameters()}, model.state_dict()
        versions = {name: p._version for name, p in model.named_parameters()}
        self.assertEqual(shown, {name: p.shape for name, p in model.named_parameters()})
        self.assertEqual(versions, {name: p._version for name, p in model.named_parameters()})
        self.assertTrue(torch.equal(model[2].weight, final["2.weight"]))
        self.assertEqual([name for name, p in model.named_parameters() if p._version != versions[name]], ["2.weight"])
        self.assertIsNotNone(opt._fetcher.watch._mode)
        loss_of(model, 5)
        self.assertIsNone(opt._fetcher.watch._mode)

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

    def assert_reads_final(self, model, opt, read):
        """Once the watch would have been on."""
        for name, values in {name: read(p) for name, p in model.named_parameters()}.items():
            self.assertTrue(torch.equal(values, opt.export()[name]), name)

    def test_what_is_read_behind_a_step_that_was_none(self):
        """For want of a gradient, or since it was refused."""
        model, opt = self.trained(6)
        opt.step()
        self.assert_reads_final(model, opt, torch.clone)
        plain_step(model, opt, 5)
        model[0].weight.grad = torch.ones(1, 1).expand(model[0].weight.shape).to_sparse()
        with self.assertRaises(zfplugin.errors.ShapeError):
            opt.step()
        self.assert_reads_final(model, opt, torch.clone)

    def test_a_frozen_part_is_no_evaluation(self):
        """It is in eval() and without a graph at every step; what is trained behind it comes layer by layer."""
        model, opt = self.trained(6)
        with torch.no_grad():
            model[:3].eval()(batch(6)[0])
            self.assertTrue(opt._fetcher.is_new)
            model.eval()(batch(6)[0])
        self.assertFalse(opt._fetcher.is_new)

    def test_another_type(self):
        model, opt = self.trained(6)
        self.assert_reads_final(model, opt, lambda p: p.type(torch.float64).float())

    def test_copies_that_were_made_before_the_hooks(self):
        """DataParallel's: step() waits for all values."""
        model, opt = self.trained(6)
        memory = {name: p.detach().numpy() for name, p in model.named_parameters()}
        for module in model:
            module._is_replica = True
        for step in (5, 6):
            plain_step(model, opt, step)
            for name, values in opt.export().items():
                self.assertTrue(torch.equal(torch.from_numpy(memory[name]), values), name)

    def trained(self, n_steps, make=mlp):
        model = make()
        opt = self.zenflow(model, **HYPER, model=model, config=config(SYNCHRONOUS, FEW))
        train(model, opt, range(n_steps))
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
                    self.assert_values(other, final)
            self.assertGreater(n_late, 5)
            self.assertEqual([loss_of(one, 10).item() for one, _ in pairs], [loss_of(other, 10).item()] * 2)
            for one, its_own in pairs:
                its_own.flush()
            self.assert_same(model, other, 0)


    def test_in_inference_mode(self):
        model, opt = self.trained()
        with torch.inference_mode():
            final = model.state_dict()
            moments = {p: opt.state[p]["exp_avg"] for p in model.parameters()}
        for name, values in opt.export().items():
            self.assertTrue(torch.equal(values, final[name]))
        self.assertFalse(any(moment.is_inference() for moment in moments.values()))
        plain_step(model, opt, 9)

    def trained(self):
        model = mlp()
        opt = self.zenflow(model, **HYPER, model=model, config=config(self.MODES[1], FEW))
        train(model, opt, range(9))
        return model, opt


class TakenBack(TorchTest):
    """Weights of before some steps that the model is loaded with are weights without these, though they be what it shows by then."""

    def test_it_is(self):
        for mode in Reading.MODES:
            for n_more in (1, 2):
                model = mlp()
                opt = self.zenflow(model, **HYPER, model=model, config=config(mode, FEW))
                train(model, opt, range(8))
                opt.flush()
                before = copy.deepcopy(model.state_dict())
                train(model, opt, range(8, 8 + n_more))
                model.load_state_dict(before)
                loss_of(model, 20)
                self.assert_values(model, before)
                opt.flush()
                self.assert_values(model, before)
                train(model, opt, range(20, 24))

    def test_what_is_missing_goes_on(self):
        model = mlp()
        opt = self.zenflow(model, **HYPER, model=model, config=config(Reading.MODES[1], FEW))
        train(model, opt, range(9))
        final = opt.export()
        model.load_state_dict({"2.weight": model[2].weight.detach().clone()}, strict=False)
        shown = model[2].weight.detach().clone()
        opt.flush()
        self.assertFalse(torch.equal(shown, final["2.weight"]))
        self.assert_values(model, {**final, "2.weight": shown})


WINDOWS = {"zenflow.update_interval": 4, "zenflow.publish_lag": 0}


class AsTorch(TorchTest):
    """Gradients that do not depend on the weights: in open windows, too, the weights after flush() are AdamW's."""

    def check(self, one_step, n_steps=23, bound=BOUND, **kwargs):
        ours, theirs = twins()
        opt = self.zenflow(ours, **{**HYPER, "config": config(WINDOWS, FEW), **kwargs})
        reference = torch.optim.AdamW(theirs.parameters(), **{**HYPER, **{key: kwargs[key] for key in kwargs if key == "eps"}})
        self.train_both(ours, theirs, opt, reference, n_steps, one_step)
        self.assert_same(ours, theirs, bound, flushed=(opt,))
        return opt

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

    def test_tied_through_its_transpose_is_refused_by_name(self):
        model = mlp()
        model[5].weight = nn.Parameter(model[2].weight.data.t())
        with self.assertRaisesRegex(zfplugin.ParamError, r'"5.weight" lies in the memory of "2.weight" in another way'):
            self.zenflow(model).bind()

    def test_a_scripted_model_is_refused_by_name(self):
        scripted = torch.jit.script(mlp())
        with self.assertRaisesRegex(zfplugin.ArgumentError, "torch.jit.ScriptModule"):
            self.zenflow(scripted, model=scripted)
        model = mlp()
        opt = self.zenflow(model, model=model)
        plain_step(model, opt, 0)
        with self.assertRaisesRegex(AttributeError, r"close\(\) the optimizer"):
            torch.jit.script(model)
        opt.close()
        torch.jit.script(model)
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
                    train(model, opt, range(9))
                    final = {name: value.clone() for name, value in model.state_dict().items()} if is_asked else opt.export()
                    self.assertTrue(any(not torch.equal(p, final[name]) for name, p in model.named_parameters()))
                    del opt
                    self.assert_values(model, final)

    def test_a_copy_of_the_module_is_said_to_lack_updates(self):
        for mode in self.MODES:
            model = mlp()
            opt = unwatched(self.zenflow(model, **HYPER, model=model, config=config(mode, FEW)))
            train(model, opt, range(9))
            for copied in (lambda: copy.deepcopy(model), lambda: torch.save(model, io.BytesIO())):
                with self.messages() as caught:
                    copied()
                self.assertEqual(len(caught.output), 1)
                self.assertIn("the copy lacks them", caught.output[0])
            opt.flush()
            with self.assertNoLogs("zfplugin", logging.WARNING):
                copy.deepcopy(model)
