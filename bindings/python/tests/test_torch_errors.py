# SPDX-License-Identifier: Apache-2.0
"""Misuse: one clear exception each, and the training state as it was, so that the right call afterwards works."""

from support import TorchTest, loss_of, mlp, plain_step, torch, twins
import zfplugin


class Misuse(TorchTest):
    def test_first_step_without_backward(self):
        with self.messages() as caught:
            self.zenflow(mlp()).step()
        self.assertRegex(caught.output[-1], r"backward\(\).*assign=True")

    def test_a_sparse_gradient(self):
        """Refused as often as it comes; training goes on as if it had not."""
        ours, theirs = twins()
        opt, reference = self.zenflow(ours), self.zenflow(theirs)
        self.train_both(ours, theirs, opt, reference, range(3), plain_step)
        loss_of(ours, 3).backward()
        ours[2].weight.grad = ours[2].weight.grad.to_sparse()
        for _ in range(2):
            with self.assertRaisesRegex(zfplugin.ShapeError, '"2.weight".* sparse'):
                opt.step()
        self.assert_equal(ours, theirs)
        self.assertEqual(opt.stats()["steps"], 3)
        self.train_both(ours, theirs, opt, reference, range(3, 6), plain_step)
        self.assert_equal(ours, theirs)

    def test_what_needs_bound_parameters(self):
        opt = self.zenflow(mlp())
        for call in (opt.drain, opt.export, opt.params_changed):
            with self.assertRaisesRegex(zfplugin.StateError, "first step"):
                call()


class WrongParameters(TorchTest):
    def refused(self, model, error, said):
        opt = self.zenflow(model)
        with self.assertRaisesRegex(error, said):
            opt.bind()
        return opt

    def test_dtypes(self):
        opt = self.refused(model := mlp().double(), zfplugin.DtypeError, '"0.weight".*float64.*float32')
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
        self.refused(model, zfplugin.DeviceError, '"weight".*meta')

    def test_nothing_to_train(self):
        model = mlp()
        model.requires_grad_(False)
        with self.assertRaisesRegex(zfplugin.ZfError, "frozen"):
            self.zenflow(model).step()


class OptionsOfTorchs(TorchTest):
    """One sentence each; what says "no" is taken."""

    def test_refused(self):
        for option, said in (("fused", "leave it out"), ("foreach", "leave it out"), ("capturable", "leave it out"),
                             ("maximize", "negate the loss"), ("differentiable", "outside of autograd"),
                             ("amsgrad", "two moments")):
            with self.assertRaisesRegex(zfplugin.ArgumentError, rf"\A{option}=True.*{said}.*\Z"):
                self.zenflow(mlp(), **{option: True})

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
    def test_keys_without_their_section(self):
        meant = '"topk_ratio" lacks its section: "zenflow.topk_ratio"'
        for kwargs, said in (({"config": {"topk_ratio": 0.5}}, meant), ({"config": "topk_ratio=0.5"}, meant), ({"config": "topk_ratio = 0.5"}, meant),
                             ({"overrides": {"topk_ratio": 0.5}}, meant), ({"overrides": ["topk_ratio=0.5"]}, meant),
                             ({"config": {"threads": 2}}, '"host.threads"'), ({"config": {"update_intervall": 2}}, '"zenflow.update_interval"'),
                             ({"config": {"nonsense": 2}}, '"nonsense".*section.key')):
            with self.assertRaisesRegex(zfplugin.ConfigError, said):
                self.zenflow(mlp(), **kwargs)
