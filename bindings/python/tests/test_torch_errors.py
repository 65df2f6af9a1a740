# SPDX-License-Identifier: Apache-2.0
"""Misuse: one clear exception each, and the training state as it was, so that the right call afterwards works."""
import unittest

from support import TorchTest, loss_of, mlp, plain_step, torch, twins
import zfplugin


class Misuse(TorchTest):
    def check(self, spoil, error, *words, after=None):
        """Trains, spoils, expects the error twice, repairs with after(), and ends where undisturbed training ends."""
        ours, theirs = twins()
        opt, reference = self.zenflow(ours, lr=1e-3), self.zenflow(theirs, lr=1e-3)
        self.train_both(ours, theirs, opt, reference, range(3), plain_step)
        before = [p.detach().clone() for p in ours.parameters()]
        for _ in range(2):
            with self.assertRaises(error) as caught:
                spoil(ours, opt)
            for word in words:
                self.assertIn(word, str(caught.exception))
        for p, q in zip(ours.parameters(), before):
            self.assertTrue(torch.equal(p, q))
        self.assertEqual(opt.stats()["steps"], 3)
        if after:
            after(ours, opt)
        self.train_both(ours, theirs, opt, reference, range(3, 6), plain_step)
        self.assert_equal(ours, theirs)

    def test_first_step_without_backward(self):
        with self.messages() as caught:
            self.zenflow(mlp()).step()
        self.assertIn("backward()", caught.output[-1])

    def test_a_sparse_gradient(self):
        def spoil(model, opt):
            opt.zero_grad()
            loss_of(model, 3).backward()
            model[2].weight.grad = model[2].weight.grad.to_sparse()
            opt.step()

        self.check(spoil, zfplugin.ShapeError, '"2.weight"', "sparse")

    def test_a_learning_rate_that_is_no_number(self):
        for bad in (float("nan"), float("inf"), -1.0):
            def spoil(model, opt, bad=bad):
                opt.param_groups[0]["lr"] = bad
                plain_step(model, opt, 3)

            def repair(model, opt):
                opt.param_groups[0]["lr"] = 1e-3

            self.check(spoil, zfplugin.ArgumentError, "lr", after=repair)

    def test_what_needs_bound_parameters(self):
        opt = self.zenflow(mlp())
        for call in (opt.drain, opt.export, opt.params_changed):
            with self.assertRaises(zfplugin.StateError) as caught:
                call()
            self.assertIn("first step", str(caught.exception))


class WrongParameters(TorchTest):
    def refused(self, model, error, *words):
        opt = self.zenflow(model)
        with self.assertRaises(error) as caught:
            opt.bind()
        for word in words:
            self.assertIn(word, str(caught.exception))
        return opt

    def test_dtypes(self):
        self.refused(mlp(dtype=torch.float64), zfplugin.DtypeError, '"0.weight"', "float64", "float32")
        opt = self.refused(model := mlp().double(), zfplugin.DtypeError, '"0.weight"')
        model.float()
        plain_step(model, opt, 0)  # converted after all

    def test_what_is_frozen_may_be_anything(self):
        """Packed base weights of adapters, weights that lie elsewhere: as with torch they are only not trained."""
        frozen = {"packed": torch.zeros(4, 3, dtype=torch.uint8), "wide": torch.zeros(2, dtype=torch.float64),
                  "elsewhere": torch.zeros(5, device="meta"), "sparse": torch.zeros(3, 3).to_sparse()}
        with torch.inference_mode():
            frozen["inference"] = torch.zeros(3)
        model, alone = mlp(), mlp()
        for name, values in frozen.items():
            model.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))
        opt, reference = self.zenflow(model, model=model), self.zenflow(alone)
        self.train_both(model, alone, opt, reference, range(3), plain_step)
        for name, p in alone.named_parameters():
            self.assertTrue(torch.equal(p, model.get_parameter(name)), name)
        opt.load_state_dict(opt.state_dict())
        self.assertNotIn("packed", opt.export())
        model.wide.requires_grad_(True)
        with self.assertRaisesRegex(zfplugin.DtypeError, '"wide"'):
            opt.step()

    def test_device(self):
        with torch.device("meta"):
            model = torch.nn.Linear(2, 2)
        self.refused(model, zfplugin.DeviceError, '"weight"', "meta")

    def test_nothing_to_train(self):
        model = mlp()
        model.requires_grad_(False)
        opt = self.zenflow(model)
        with self.assertRaises(zfplugin.ZfError) as caught:
            opt.step()
        self.assertIn("frozen", str(caught.exception))


class OptionsOfTorchs(TorchTest):
    """One sentence each; what says "no" is taken."""

    def test_refused(self):
        for option, said in (("fused", "leave it out"), ("foreach", "leave it out"), ("capturable", "leave it out"),
                             ("maximize", "negate the loss"), ("differentiable", "outside of autograd"),
                             ("amsgrad", "two moments")):
            with self.assertRaises(zfplugin.ArgumentError) as caught:
                self.zenflow(mlp(), **{option: True})
            self.assertRegex(str(caught.exception), f"{option}=True.*{said}")
            self.assertNotIn("\n", str(caught.exception))

    def test_taken(self):
        model = mlp()
        opt = self.zenflow(model, fused=None, foreach=False, capturable=False, maximize=False, differentiable=False, amsgrad=False)
        plain_step(model, opt, 0)
        self.assertNotIn("fused", opt.param_groups[0])

    def test_keys_of_the_configuration(self):
        for kwargs in ({"topk_ratio": 0.1}, {"update_interval": 4}):
            with self.assertRaisesRegex(zfplugin.ArgumentError, r'config=\{"zenflow\.' + next(iter(kwargs))):
                self.zenflow(mlp(), **kwargs)

    def test_unknown(self):
        with self.assertRaisesRegex(TypeError, "learning_rate"):
            self.zenflow(mlp(), learning_rate=1)


class WrongConfiguration(TorchTest):
    def refused(self, error, *words, **kwargs):
        with self.assertRaises(error) as caught:
            self.zenflow(mlp(), **kwargs)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_keys_without_their_section(self):
        for kwargs in ({"config": {"topk_ratio": 0.5}}, {"config": "topk_ratio=0.5"}, {"config": "topk_ratio = 0.5"},
                       {"overrides": {"topk_ratio": 0.5}}, {"overrides": ["topk_ratio=0.5"]}):
            self.refused(zfplugin.ConfigError, '"topk_ratio" lacks its section: "zenflow.topk_ratio"', **kwargs)
        self.refused(zfplugin.ConfigError, '"host.threads"', config={"threads": 2})
        self.refused(zfplugin.ConfigError, '"zenflow.update_interval"', config={"update_intervall": 2})
        self.refused(zfplugin.ConfigError, '"nonsense"', "section.key", config={"nonsense": 2})


if __name__ == "__main__":
    unittest.main()
