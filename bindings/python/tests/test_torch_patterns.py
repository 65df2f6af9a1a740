# SPDX-License-Identifier: Apache-2.0
"""Reads of weights between step and forward: what they bring into place, what leaves the parameters as they are, and edits that follow
them. The programs of trainers themselves are test_torch_usage.py's."""
import collections
import copy
import io
import itertools
import logging
import tempfile

from support import FEW, HYPER, SYNCHRONOUS, TorchTest, batch, config, loss_of, mlp, plain_step, torch, train, twins, zenflow
import zfplugin
from test_torch_edits import drawn_step
from torch import nn

BOUND = 1e-6


WINDOWS = {"zenflow.update_interval": 4, "zenflow.publish_lag": 0}
MODES = (SYNCHRONOUS, WINDOWS)


class Fetched(TorchTest):
    """fetch=True: what is read in no forward that a hook sees."""

    def trained(self, n_steps=6):
        model = mlp()
        opt = self.zenflow(model, **HYPER, model=model, fetch=True, config=config(SYNCHRONOUS, FEW))
        train(model, opt, range(n_steps))
        return model, opt

    def test_copies_that_were_made_before_the_hooks(self):
        """DataParallel's: step() waits for all values."""
        model, opt = self.trained()
        memory = {name: p.detach().numpy() for name, p in model.named_parameters()}
        for module in model:
            module._is_replica = True
        for step in (5, 6):
            plain_step(model, opt, step)
            shown = {name: values.copy() for name, values in memory.items()}
            for name, values in opt.export().items():
                self.assertTrue(torch.equal(torch.from_numpy(shown[name]), values), name)

    def test_only_what_is_read_waits(self):
        model, opt = self.trained()
        with torch.no_grad():
            model[:3](batch(6)[0])
        self.assertEqual({opt._binding.table.names[i].split(".")[0] for i in opt._fetcher.late}, {"3", "5", "6", "8"})
        model(batch(6)[0])
        self.assertFalse(opt._fetcher.late)

    def test_behind_a_step_that_was_none(self):
        """For want of a gradient, or since it was refused: nothing of the step before is lost."""
        model, opt = self.trained()
        opt.step()
        final = opt.export()
        self.assert_values(model, final)
        plain_step(model, opt, 5)
        model[0].weight.grad = torch.ones(1, 1).expand(model[0].weight.shape).to_sparse()
        with self.assertRaises(zfplugin.errors.ShapeError):
            opt.step()
        loss_of(model, 7)
        self.assert_values(model, opt.export())


class Reading(TorchTest):
    """A reader changes nothing: in place parameters stay as they are, their version counters too; with fetch=True all values are in
    place afterwards. The run goes on to the same bits. What saves closes windows, where some are open."""

    def readings(self, model, opt, saves=True):
        yield "model.state_dict", model.state_dict
        yield "opt.state", lambda: len(opt.state)
        yield "export", opt.export
        yield "drain", opt.drain
        yield "adamw_state_dict", opt.adamw_state_dict
        yield "a module's state_dict", model[2].state_dict
        if saves:
            yield "opt.state_dict", opt.state_dict
            yield "save", lambda: opt.save(f"{self.folder}/saved")

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_nothing_moves(self):
        for mode in MODES:
            (model, opt), (other, its) = pairs = [(model, self.zenflow(model, **HYPER, model=model, config=config(mode, FEW))) for model in twins()]
            n_late = 0
            for i in range(10):
                for one, its_own in pairs:
                    plain_step(one, its_own, i)
                shown = [(p._version, p.detach().clone()) for p in model.parameters()]
                graph = sum(p.pow(2).sum() for p in model.parameters())
                for name, read in self.readings(model, opt, mode is not WINDOWS) if i > 3 else []:
                    with self.subTest(mode=mode, reading=name, step=i):
                        read()
                        for p, (version, values) in zip(model.parameters(), shown):
                            self.assertTrue(torch.equal(p, values))
                            self.assertEqual(p._version, version)
                graph.backward()  # nothing was written under it
                final = model.state_dict()
                n_late += sum(not torch.equal(p, final[name]) for name, p in model.named_parameters())
            self.assertEqual(n_late > 5, mode is WINDOWS)
            for its_own in (opt, its):
                its_own.flush()
            self.assert_same(model, other, 0)

    def test_all_is_in_place_afterwards(self):
        for mode in MODES:
            (model, opt), (other, its) = pairs = [(model, self.zenflow(model, **HYPER, model=model, fetch=is_fetched, config=config(mode, FEW)))
                                                  for is_fetched, model in zip((True, False), twins())]
            for i, (name, _) in enumerate(self.readings(model, opt)):
                for one, its_own in pairs:
                    train(one, its_own, range(5 * i, 5 * i + 5))
                is_late = opt._binding.is_late()
                for one, its_own in pairs:
                    dict(self.readings(one, its_own))[name]()
                with self.subTest(mode=mode, reading=name):
                    self.assertTrue(is_late)
                    self.assert_equal(model, other)
            for its_own in (opt, its):
                its_own.flush()
            self.assert_same(model, other, 0)

    def test_in_inference_mode(self):
        for is_fetched in (False, True):
            model = mlp()
            opt = self.zenflow(model, **HYPER, model=model, fetch=is_fetched, config=config(WINDOWS, FEW))
            train(model, opt, range(9))
            with torch.inference_mode():
                final = model.state_dict()
                moments = {p: opt.state[p]["exp_avg"] for p in model.parameters()}
            for name, values in opt.export().items():
                self.assertTrue(torch.equal(values, final[name]))
            self.assertFalse(any(moment.is_inference() for moment in moments.values()))
            plain_step(model, opt, 9)


class TakenBack(TorchTest):
    """Weights of before some steps that the model is loaded with are weights without these, though they be what it shows by then."""

    def test_it_is(self):
        for mode, is_fetched in itertools.product(MODES, (False, True)):
            for n_more in (1, 2):
                model = mlp()
                opt = self.zenflow(model, **HYPER, model=model, fetch=is_fetched, config=config(mode, FEW))
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
        opt = self.zenflow(model, **HYPER, model=model, config=config(WINDOWS, FEW))
        train(model, opt, range(9))
        final = opt.export()
        model.load_state_dict({"2.weight": model[2].weight.detach().clone()}, strict=False)
        shown = model[2].weight.detach().clone()
        opt.flush()
        self.assertFalse(torch.equal(shown, final["2.weight"]))
        self.assert_values(model, {**final, "2.weight": shown})


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
        """The ways to let moments begin again; what would fill a state is refused."""
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

    def test_a_model_whose_optimizer_is_dropped_has_all_updates(self):
        for mode in MODES:
            for is_asked in (False, True):
                with self.subTest(mode=mode, is_asked=is_asked):
                    model, other = twins()
                    opt = zenflow(model, **HYPER, model=model, fetch=True, config=config(mode, FEW))
                    its = self.zenflow(other, **HYPER, config=config(mode, FEW))
                    self.train_both(model, other, opt, its, range(9), plain_step)
                    its.flush()
                    self.assertFalse(all(map(torch.equal, model.parameters(), other.parameters())))
                    if is_asked:
                        model.state_dict()
                    del opt
                    self.assert_equal(model, other)

    def test_a_copy_of_the_module_is_said_to_lack_updates(self):
        for mode in MODES:
            model = mlp()
            opt = self.zenflow(model, **HYPER, model=model, fetch=True, config=config(mode, FEW))
            train(model, opt, range(9))
            for copied in (lambda: copy.deepcopy(model), lambda: torch.save(model, io.BytesIO())):
                with self.messages() as caught:
                    copied()
                self.assertEqual(len(caught.output), 1)
                self.assertIn("the copy lacks them", caught.output[0])
            opt.flush()
            with self.assertNoLogs("zfplugin", logging.WARNING):
                copy.deepcopy(model)
