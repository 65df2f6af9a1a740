# SPDX-License-Identifier: Apache-2.0
"""Saving and resuming: N steps are N/2 steps, save, load into a new optimizer, N/2 steps, to the bit, in mid-window too."""
import copy
import io
import tempfile
from pathlib import Path

from support import ALL_SELECTED, FEW, SYNCHRONOUS, TorchTest, config, mlp, plain_step, step_in, torch, train, values_of
import zfplugin

MODES = {"synchronous": SYNCHRONOUS, "all selected": ALL_SELECTED, "windows": FEW,
         "mean": {**FEW, "zenflow.mode": "mean"}, "none": {**FEW, "device.state_mib": "all"}}


class Resume(TorchTest):
    def through_a_file(self, saved):
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def test_to_the_bit_in_every_mode(self):
        for name, mode in MODES.items():
            for at in (11, 14):
                with self.subTest(mode=name, at=at):
                    whole = mlp()
                    opt = self.zenflow(whole, lr=1e-2, config=config(mode))
                    train(whole, opt, range(at))
                    if name in ("windows", "mean"):
                        opt.flush()  # as a save does; where no window is open it changes nothing
                    train(whole, opt, range(at, 30))

                    first = mlp()
                    opt1 = self.zenflow(first, lr=1e-2, config=config(mode))
                    train(first, opt1, range(at))
                    saved = self.through_a_file({"model": first.state_dict(), "opt": opt1.state_dict()})

                    second = mlp(seed=5)
                    second.load_state_dict(saved["model"])
                    opt2 = self.zenflow(second, lr=0.5, config=config(mode))
                    opt2.load_state_dict(saved["opt"])
                    self.assertEqual(opt2.param_groups[0]["lr"], 1e-2)
                    train(second, opt2, range(at, 30))
                    self.assert_equal(second, whole)
                    train(first, opt1, range(at, 30))  # who saved goes on as who loaded
                    self.assert_equal(first, whole)
                    opt.flush()
                    opt2.flush()
                    self.assert_equal(second, whole)

    def test_moments_in_8_bits(self):
        """A run keeps what it holds: resumed it goes on to the bit, and fp32 moments become what it held."""
        def make():
            torch.manual_seed(7)
            return torch.nn.Linear(128, 64)

        def one_step(model, opt, step):
            opt.zero_grad()
            model(torch.randn(4, 128, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            opt.step()

        def opened(model, dtype):
            return self.zenflow(model, lr=1e-2, config=config({"host.moments_dtype": dtype}))
        for dtype in ("int8", "int8_bfloat16"):
            whole, first, second = make(), make(), make()
            train(whole, opened(whole, dtype), range(12), one_step)
            opt = opened(first, dtype)
            train(first, opt, range(6), one_step)
            saved = self.through_a_file({"model": first.state_dict(), "opt": opt.state_dict()})
            second.load_state_dict(saved["model"])
            opt = opened(second, dtype)
            opt.load_state_dict(saved["opt"])
            train(second, opt, range(6, 12), one_step)
            self.assert_equal(second, whole)
            opt.close()
            opt = opened(second, "float32")
            opt.load_state_dict(saved["opt"])
            for number, held in opt.state_dict()["state"].items():
                for key in ("exp_avg", "exp_avg_sq"):
                    self.assertTrue(torch.equal(held[key], saved["opt"]["state"][number][key]), key)

    def test_under_other_names(self):
        """Saved without names, or from a compiled model: by position, as torch does, where all shapes fit."""
        def plain(model):
            return list(model.parameters())

        def compiled(model):
            return [(f"_orig_mod.{name}", p) for name, p in model.named_parameters()]

        def prefixed(model):
            return [(f"module.{name}", p) for name, p in model.named_parameters()]

        for save_as, load_as in ((plain, compiled), (compiled, plain), (prefixed, plain), (compiled, prefixed)):
            first, second = mlp(), mlp(seed=5)
            opt1, opt2 = (self.zenflow(params, lr=1e-2, config=config(FEW)) for params in (save_as(first), load_as(second)))
            train(first, opt1, range(11))
            with self.messages():
                opt2.load_state_dict(self.through_a_file(opt1.state_dict()))
            self.assert_equal(first, second)
            for model, opt in ((first, opt1), (second, opt2)):
                train(model, opt, range(11, 20))
            self.assert_equal(first, second)
            with self.assertRaises(zfplugin.CheckpointError):
                self.zenflow(mlp(width=16).parameters(), config=config(FEW)).load_state_dict(opt1.state_dict())

    def test_groups_without_names_in_another_order(self):
        """By position, as torch does."""
        (a, b), (c, d) = ([torch.nn.Linear(8, 8, bias=False) for _ in range(2)] for _ in range(2))
        opt, opt2 = (self.zenflow([{"params": net.parameters()} for net in nets], config=config(FEW)) for nets in ((a, b), (d, c)))
        model = torch.nn.Sequential(a, b, torch.nn.AdaptiveAvgPool1d(4))
        train(model, opt, range(3))
        opt.param_groups.reverse()
        train(model, opt, range(3, 6))
        with self.messages():
            opt2.load_state_dict(self.through_a_file(opt.state_dict()))
        self.assert_equal(torch.nn.Sequential(a, b), torch.nn.Sequential(c, d))

    def test_back_to_before_the_first_step(self):
        """A learning rate finder: snapshot, try, restore. Fresh moments, windows and counts, as a new optimizer has."""
        for mode in ({}, {"fetch": True}):
            for loads_weights_first in (True, False):
                with self.subTest(mode=mode, loads_weights_first=loads_weights_first):
                    model, fresh = mlp(), mlp()
                    opt = self.zenflow(model, lr=1e-2, config=config(FEW), **{**mode, **({"model": model} if mode else {})})
                    saved = copy.deepcopy({"model": model.state_dict(), "opt": opt.state_dict()})
                    train(model, opt, range(11))
                    for name in ("model", "opt") if loads_weights_first else ("opt", "model"):
                        (model if name == "model" else opt).load_state_dict(saved[name])
                    other = self.zenflow(fresh, lr=1e-2, config=config(FEW), **{**mode, **({"model": fresh} if mode else {})})
                    for model_, opt_ in ((model, opt), (fresh, other)):
                        train(model_, opt_, range(20, 32))
                        opt_.flush()
                    self.assert_equal(model, fresh)
                    self.assertEqual(opt.stats()["steps"], 12)

    def test_directories(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step10"
            first = mlp()
            opt1 = self.zenflow(first, config=config(FEW))
            train(first, opt1, range(10))
            report = opt1.save(path, note="ten steps")
            self.assertEqual(report["step"], 10)
            self.assertIn('"note":"ten steps"', (path / "zf_state.json").read_text())
            second = mlp(seed=5)
            opt2 = self.zenflow(second, config=config(FEW))
            self.assertTrue(opt2.load(path)["continues"])
            train(first, opt1, range(10, 20))
            train(second, opt2, range(10, 20))
            self.assert_equal(second, first)

    def refused(self, spoil, error, said="", other=None):
        model, opt = self.alone()
        train(model, opt, range(3))
        saved = copy.deepcopy(opt.state_dict())
        target = other if other is not None else mlp(seed=3)
        into = self.zenflow(target)
        train(target, into, range(2))
        before = values_of(target)
        lr = into.param_groups[0]["lr"] = 0.0625
        spoil(saved)
        with self.assertRaisesRegex(error, said):
            into.load_state_dict(saved)
        self.assert_values(target, before)
        self.assertEqual(into.param_groups[0]["lr"], lr)
        into.param_groups[0]["lr"] = 1e-3
        train(target, into, range(2, 4))
        self.assertFalse(torch.equal(target[0].weight, before[0]))

    def test_damaged(self):
        def largest(saved):
            return max(saved["zenflow"]["blobs"], key=lambda key: saved["zenflow"]["blobs"][key].numel())

        def flip(saved):
            saved["zenflow"]["blobs"][largest(saved)][-3] ^= 1

        def cut(saved):
            saved["zenflow"]["index"] = saved["zenflow"]["index"][:-20]

        def flip_weight(saved):
            saved["zenflow"]["arrays"][4]["w"].view(torch.uint8)[3] ^= 1

        self.refused(flip, zfplugin.CheckpointError)
        self.refused(flip_weight, zfplugin.CheckpointError, "w/3.weight.*damaged")
        self.refused(lambda saved: saved["zenflow"]["arrays"].pop(2), zfplugin.CheckpointError, "zenflow")
        self.refused(lambda saved: saved["zenflow"]["arrays"][2].update(w=torch.zeros(2)), zfplugin.CheckpointError, "w of 2.weight has 8 bytes")
        self.refused(lambda saved: saved["state"][2].update(exp_avg=torch.zeros(2)), zfplugin.CheckpointError, 'exp_avg of "2.weight"')
        self.refused(lambda saved: saved["state"][2].pop("exp_avg"), zfplugin.CheckpointError, "another optimizer")
        self.refused(lambda saved: saved["zenflow"]["blobs"].pop(largest(saved)), zfplugin.ZfError)
        self.refused(cut, zfplugin.CheckpointError)
        self.refused(lambda saved: saved.update(zenflow={"moments": torch.zeros(3)}), zfplugin.CheckpointError, "zenflow")

    def test_every_form_of_get_state_dict(self):
        """By torch.distributed.checkpoint, through its files: weights, moments and masters to the bit, into an optimizer that has a state and
        into one that has none."""
        try:
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_optimizer_state_dict, get_state_dict, set_optimizer_state_dict,
                                                                 set_state_dict)
        except ImportError:
            self.skipTest("torch 2.3")
        forms = [{}, {"full_state_dict": True}, {"full_state_dict": True, "cpu_offload": True}, {"cpu_offload": True},
                 {"flatten_optimizer_state_dict": True}]
        for dtype, mode in ((torch.float32, SYNCHRONOUS), (torch.bfloat16, SYNCHRONOUS), (torch.float32, FEW)):
            first, one_step = mlp(dtype=dtype), step_in(dtype)
            opt1 = self.zenflow(first, lr=1e-2, config=config(mode), model=first)
            train(first, opt1, range(7), one_step)
            saved = copy.deepcopy([get_state_dict(first, opt1, options=StateDictOptions(**form)) for form in forms])
            opt1.flush()
            state = opt1.state_dict()["state"]
            train(first, opt1, range(7, 10), one_step)
            for form, (weights, moments) in zip(forms, saved):
                for n_steps in (0, 2):
                    with self.subTest(form=form, dtype=dtype, n_steps=n_steps), tempfile.TemporaryDirectory() as folder:
                        options = StateDictOptions(**form)
                        dcp.save({"model": weights, "opt": moments}, checkpoint_id=folder, no_dist=True)
                        second = mlp(seed=5, dtype=dtype)
                        opt2 = self.zenflow(second, lr=0.5, config=config(mode), model=second)
                        train(second, opt2, range(n_steps), one_step)
                        target = dict(zip(("model", "opt"), get_state_dict(second, opt2, options=options)))
                        dcp.load(target, checkpoint_id=folder, no_dist=True)
                        set_state_dict(second, opt2, model_state_dict=target["model"], optim_state_dict=target["opt"], options=options)
                        found = opt2.state_dict()["state"]
                        self.assertEqual((found.keys(), opt2.param_groups[0]["lr"]), (state.keys(), 1e-2))
                        for number, entry in found.items():
                            self.assertEqual(entry.keys(), state[number].keys())
                            self.assertTrue(all(torch.equal(entry[name], state[number][name]) for name in entry), number)
                        if mode is SYNCHRONOUS:
                            train(second, opt2, range(7, 10), one_step)
                            self.assert_equal(first, second)
                        opt2.close()
            set_optimizer_state_dict(first, opt1, get_optimizer_state_dict(first, opt1, submodules={first[2], first[5]}))
            opt1.close()
            part = self.zenflow(first[2].named_parameters(), lr=1e-2, config=config(mode))  # of a part of the model
            one_step(first, part, 0)
            set_optimizer_state_dict(first[2], part, get_optimizer_state_dict(first[2], part))

    def test_of_something_else(self):
        self.refused(lambda saved: None, zfplugin.CheckpointError, "0.weight", other=mlp(width=16))
        self.refused(lambda saved: saved["param_groups"][0]["params"].pop(), zfplugin.CheckpointError, "group 0.*12")

    def test_states_of_other_optimizers(self):
        """Their moments would be lost without a word."""
        model = mlp()
        for other, kwargs in ((torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.9), {}),
                              (torch.optim.AdamW(model.parameters(), lr=0.125, amsgrad=True), {}),
                              (torch.optim.AdamW(model.parameters(), lr=0.125), {"rule": "lion"})):
            plain_step(model, other, 0)
            saved = other.state_dict()
            for n_steps in (0, 1):
                opt = self.zenflow(model, **kwargs)
                train(model, opt, range(n_steps))
                with self.assertRaisesRegex(zfplugin.CheckpointError, "another optimizer"):
                    opt.load_state_dict(saved)
                self.assertEqual([int(entry["step"]) for entry in opt.state.values()], [1] * n_steps * len(opt.state))
        opt.load_state_dict({**saved, "state": {}})  # the way out that the message names
        self.assertEqual(opt.param_groups[0]["lr"], 0.125)
        plain_step(model, opt, 2)

    def test_a_state_of_adamw_that_does_not_fit(self):
        model = mlp()
        reference = torch.optim.AdamW(model.parameters())
        plain_step(model, reference, 0)
        for spoil, said in ((lambda entry: entry.update(exp_avg=torch.zeros(3)), 'exp_avg of "2.weight" has the shape'),
                            (lambda entry: entry["exp_avg_sq"].fill_(float("nan")), "not finite"),
                            (lambda entry: entry["exp_avg_sq"].fill_(-1), "v/2.weight|2.weight")):
            saved = copy.deepcopy(reference.state_dict())
            spoil(saved["state"][2])
            opt = self.zenflow(model)
            plain_step(model, opt, 1)
            before = values_of(model)
            with self.assertRaisesRegex(zfplugin.CheckpointError, said):
                opt.load_state_dict(saved)
            self.assert_values(model, before)
            plain_step(model, opt, 2)

    def test_groups_of_another_optimizer(self):
        model, opt = self.alone()
        for other, said in ((torch.optim.SGD(model.parameters(), lr=0.1), "betas is missing"),
                            (torch.optim.AdamW(model.parameters(), amsgrad=True), "amsgrad=True")):
            with self.assertRaisesRegex(zfplugin.ArgumentError, said):
                opt.load_state_dict(other.state_dict())
        for nothing in ({}, None):
            with self.assertRaisesRegex(zfplugin.CheckpointError, "param_groups"):
                opt.load_state_dict(nothing)
        plain_step(model, opt, 0)


class FromAdamW(TorchTest):
    """A run that began with torch's AdamW or Adam goes on as if it had not changed its optimizer."""

    def check(self, mode, make=mlp, theirs=None, steps_before=0, **kwargs):
        reference_model = make()
        theirs = theirs or (lambda params: torch.optim.AdamW(params, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1))
        reference = theirs(list(reference_model.parameters()))
        train(reference_model, reference, range(20))
        model = make()
        opt = self.zenflow(model, config=config(mode), **kwargs)
        train(model, opt, range(100, 100 + steps_before))
        model.load_state_dict(reference_model.state_dict())
        opt.load_state_dict(copy.deepcopy(reference.state_dict()))
        for p, q in zip(model.parameters(), reference_model.parameters()):
            theirs = reference.state.get(q, {})
            self.assertEqual(set(opt.state.get(p, {})), set(theirs))
            for name, values in theirs.items():
                self.assertTrue(torch.equal(opt.state[p][name], values), name)
        self.train_both(model, reference_model, opt, reference, range(20, 50), plain_step)
        self.assert_same(model, reference_model, flushed=(opt,))
        return opt

    def test_in_every_mode(self):
        for name, mode in (("synchronous", SYNCHRONOUS), ("all selected", ALL_SELECTED),
                           ("mean", {**ALL_SELECTED, "zenflow.mode": "mean"}), ("none", {"device.state_mib": "all"})):
            for steps_before in (0, 7):
                with self.subTest(mode=name, steps_before=steps_before):
                    opt = self.check(mode, steps_before=steps_before)
                    self.assertEqual(opt.param_groups[0]["betas"], (0.8, 0.95))

    def test_adam(self):
        self.check(SYNCHRONOUS, rule="adam", theirs=lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=0.01))

    def test_decay_of_the_other_rule_is_said(self):
        model = mlp()
        for theirs, rule, decay, is_said in ((torch.optim.Adam, "adamw", 0.1, True), (torch.optim.Adam, "adamw", 0, False),
                                             (torch.optim.Adam, "adam", 0.1, False), (torch.optim.AdamW, "adam", 0.1, True)):
            reference = theirs(model.parameters(), weight_decay=decay)
            plain_step(model, reference, 0)
            if "decoupled_weight_decay" not in reference.param_groups[0]:
                self.skipTest("this torch's groups do not tell")
            opt = self.zenflow(model, rule=rule)
            opt.bind()
            with self.assertLogs("zfplugin", "WARNING") if is_said else self.assertNoLogs("zfplugin", "WARNING") as said:
                opt.load_state_dict(reference.state_dict())
            if is_said:
                self.assertIn(f"torch's {theirs.__name__}, and its weight_decay = 0.1", said.output[0])
            opt.close()

    def test_on_a_default_device(self):
        """torch.set_default_device() is the trainer's: what the plugin reads is in host memory."""
        model, other = mlp(), mlp()
        reference = torch.optim.AdamW(model.parameters())
        plain_step(model, reference, 0)
        saved = reference.state_dict()
        del saved["state"][3]  # never had a gradient
        torch.set_default_device("meta")
        try:
            opt = self.zenflow(model, model=model, config=config({"zenflow.topk_ratio": 0.1, "zenflow.full_warm_up_rounds": 1}))
            opt.load_state_dict(saved)
            self.assertTrue(torch.equal(opt.state[model[0].weight]["exp_avg"], reference.state[model[0].weight]["exp_avg"]))
            self.assertEqual({entry["step"].device.type for entry in opt.state.values()}, {"cpu"})
        finally:
            torch.set_default_device("cpu")
        train(model, opt, range(5))
        torch.set_default_device("meta")
        try:
            final, exported = model.state_dict(), opt.export()
            other.load_state_dict(final)
            opt.flush()
        finally:
            torch.set_default_device(None)
        self.assert_values(model, final)
        self.assert_values(model, exported)

    def test_not_contiguous_and_scalar(self):
        class Odd(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.turned = torch.nn.Parameter(torch.randn(4, 8).t())
                self.scale = torch.nn.Parameter(torch.tensor(0.5))

            def forward(self, x):
                return x @ self.turned * self.scale

        self.check(SYNCHRONOUS, make=Odd)
