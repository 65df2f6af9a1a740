# SPDX-License-Identifier: Apache-2.0
"""Misuse: one clear exception each, and the training state as it was, so that the right call afterwards works."""
import contextlib
import itertools
import subprocess
import sys
from pathlib import Path

from support import HYPER, TorchTest, loss_of, mlp, needs, plain_step, torch, twins, values_of
import zfplugin


class Misuse(TorchTest):
    def test_a_torch_that_is_too_old(self):
        done = subprocess.run([sys.executable, "-c", "import torch; del torch.compiler.is_compiling; import zfplugin.torch"], check=False,
                              capture_output=True, text=True, cwd=Path(zfplugin.__file__).parents[1])
        self.assertRegex(done.stderr, r"ImportError: zfplugin.torch needs PyTorch 2\.3 or newer; this is 2\.")

    def test_optimizers_that_would_take_turns_on_a_trunk(self):
        """Refused when the second is made. One after the other may train it, and a frozen trunk is nobody's."""
        trunk, (one, two) = torch.nn.Linear(8, 4), (torch.nn.Linear(4, 4) for _ in range(2))

        def of(head):
            return self.zenflow([(f"trunk.{name}", p) for name, p in trunk.named_parameters()] + list(head.named_parameters()))

        first = of(one)
        for _ in range(2):
            with self.assertRaisesRegex(zfplugin.ArgumentError, r'"trunk.weight" \(2 in all\) is trained by another.*one optimizer.*close\(\)'):
                of(two)
            plain_step(torch.nn.Sequential(trunk, one), first, 0)
        self.zenflow(trunk)  # of a part: it replaces the other
        trunk.requires_grad_(False)
        of(two).close()
        trunk.requires_grad_(True)
        first.close()
        dropped = of(one)
        dropped.itself = dropped
        self.made.remove(dropped)
        del dropped
        of(two)

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


class Wrapped(torch.Tensor):
    """As torchao's quantized weights: the values lie in another tensor."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        out = func(*[arg.values if isinstance(arg, Wrapped) else arg for arg in args], **(kwargs or {}))
        return Wrapped(out) if func is torch.ops.aten.detach.default else out


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
        self.refused(torch.nn.Linear(2, 2, dtype=torch.complex64), zfplugin.DtypeError, r'"weight".*complex64.*torch.view_as_real\(weight\)')

    def test_a_subclass_without_memory_is_named_by_its_class(self):
        model = mlp()
        model[0].weight = torch.nn.Parameter(Wrapped(model[0].weight.detach()))
        self.refused(model, zfplugin.ParamError, '"0.weight" is a Wrapped, a tensor subclass that has no memory')
        model[0].weight.requires_grad_(False)
        opt = self.zenflow(model)
        opt.bind()
        self.assertEqual(opt.layout["n_elems"], sum(p.numel() for p in model.parameters()) - 8 * 24)

    @needs("accelerate")
    def test_weights_that_accelerate_takes_away(self):
        """Before the first step: the same sentence whether the optimizer sees the model or not."""
        import accelerate
        sentence = r"accelerate's cpu_offload\(\).*for inference alone"
        for is_first, sees in itertools.product((True, False), repeat=2):
            model = mlp()
            make = lambda: self.zenflow(model, **({"model": model} if sees else {}))  # noqa: B023,E731 - called in this turn
            opt = None if is_first else make()
            accelerate.cpu_offload(model, execution_device="cpu")
            opt = opt or make()
            if is_first or sees:
                with self.assertRaisesRegex(zfplugin.DeviceError, sentence):
                    plain_step(model, opt, 0)
            else:
                with self.messages() as said:
                    plain_step(model, opt, 0)
                self.assertRegex(said.output[-1], sentence)

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


class Constructor(TorchTest):
    """One sentence each; an option of torch's that says "no" is taken."""

    def test_refused(self):
        for wrong, said in (({"lr": -1}, "lr = -1"), ({"lr": float("nan")}, "lr = nan"), ({"lr": None}, "lr = None"),
                            ({"lr": "1e-3"}, "lr = '1e-3'"), ({"betas": (1, 0.9)}, r"betas\[0\] = 1"),
                            ({"betas": 0.9}, "need two numbers"), ({"eps": -1}, "eps = -1"), ({"weight_decay": -1}, "weight_decay"),
                            ({"release_gradients": "2"}, "release_gradients = '2'"), ({"model": 3}, "model is a int"),
                            ({"config": 3}, "config has a int"), ({"fetch": True}, "fetch=True needs model"),
                            ({"fused": True}, r"\Afused=True.*leave it out.*\Z"), ({"foreach": True}, r"\Aforeach=True.*leave it out.*\Z"),
                            ({"capturable": True}, r"\Acapturable=True.*leave it out.*\Z"),
                            ({"differentiable": True}, r"\Adifferentiable=True.*outside of autograd.*\Z"), ({"amsgrad": True}, r"\Aamsgrad=True.*two moments.*\Z"),
                            ({"topk_ratio": 0.1}, r'config=\{"zenflow\.topk_ratio'), ({"update_interval": 4}, r'config=\{"zenflow\.update_interval')):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(zfplugin.ArgumentError, said):
                self.zenflow(mlp(), **wrong)
        with self.assertRaisesRegex(TypeError, r"'learning_rate': help\(zfplugin.torch.ZenFlow\)"):
            self.zenflow(mlp(), learning_rate=1)

    def test_taken(self):
        model, opt = self.alone(fused=None, foreach=False, capturable=False, maximize=False, differentiable=False, amsgrad=False)
        plain_step(model, opt, 0)
        self.assertNotIn("fused", opt.param_groups[0])


class Configuration(TorchTest):
    def test_forms(self):
        for given in ({"zenflow.topk_ratio": 0.3}, {"zenflow": {"topk_ratio": 0.3}}, "zenflow.topk_ratio=0.3",
                      ["zenflow.topk_ratio=0.3"], "[zenflow]\ntopk_ratio = 0.3\n", ["[zenflow]\ntopk_ratio = 0.2\n", {"zenflow.topk_ratio": 0.3}],
                      [{"zenflow.topk_ratio": 0.2}, "zenflow.topk_ratio = 0.3"], [{"zenflow.topk_ratio": 0.3}, "[zenflow]\ntopk_ratio = 0.2\n"]):
            with self.subTest(given=given):
                self.assertEqual(float(self.zenflow(mlp(), config=given).config()["zenflow.topk_ratio"]), 0.3)

    def test_what_is_none(self):
        for given, said in (([2], "config has a int"), (["[zenflow]\n", "[host]\n"], "2 INI files or texts")):
            with self.assertRaisesRegex(zfplugin.ArgumentError, said):
                self.zenflow(mlp(), config=given)

    def test_keys_without_their_section(self):
        meant = '"topk_ratio" lacks its section: "zenflow.topk_ratio"'
        for kwargs, said in (({"config": {"topk_ratio": 0.5}}, meant), ({"config": "topk_ratio=0.5"}, meant), ({"config": "topk_ratio = 0.5"}, meant),
                             ({"config": ["topk_ratio=0.5"]}, meant),
                             ({"config": {"threads": 2}}, '"host.threads"'), ({"config": {"update_intervall": 2}}, '"zenflow.update_interval"'),
                             ({"config": {"nonsense": 2}}, '"nonsense".*section.key')):
            with self.assertRaisesRegex(zfplugin.ConfigError, said):
                self.zenflow(mlp(), **kwargs)


class WrongGroups(TorchTest):
    """param_groups edited by hand between steps. (What may be: usage.py.)"""

    def test_what_cannot_be_bound_is_refused_at_every_step_and_harms_nothing(self):
        model, opt = self.alone(**HYPER)
        plain_step(model, opt, 0)
        before = values_of(model)
        opt.param_groups[0]["params"].append(opt.param_groups[0]["params"][0])
        for _ in range(2):
            with self.assertRaisesRegex(zfplugin.ParamError, "twice"):
                plain_step(model, opt, 1)
        self.assert_values(model, before)
        opt.param_groups[0]["params"].pop()
        opt.param_groups.append({"params": [torch.nn.Parameter(torch.ones(3))]})
        with self.assertRaisesRegex(zfplugin.ArgumentError, "group 1: lr is missing"):
            plain_step(model, opt, 1)
        opt.param_groups.pop()
        plain_step(model, opt, 1)

    def test_at_a_step(self):
        model, opt = self.alone(**HYPER)
        plain_step(model, opt, 0)
        before = values_of(model)
        for key, value, said in (("lr", None, "group 0: lr = None"), ("lr", -1.0, "lr = -1"), ("lr", float("nan"), "lr = nan"),
                                 ("lr", float("inf"), "lr = inf"), ("betas", 0.9, "two numbers"),
                                 ("amsgrad", True, "amsgrad=True is not supported")):
            with self.subTest(key=key, value=value):
                good = opt.param_groups[0].get(key)
                opt.param_groups[0][key] = value
                for _ in range(2):
                    with self.assertRaisesRegex(zfplugin.ArgumentError, said):
                        plain_step(model, opt, 1)
                opt.param_groups[0][key] = good
        self.assert_values(model, before)
        opt.clip_norm = "1"
        with self.assertRaisesRegex(zfplugin.ArgumentError, "clip_norm = '1'"):
            plain_step(model, opt, 1)
        opt.clip_norm = None
        plain_step(model, opt, 1)

    def test_momentum_in_a_group(self):
        """It is betas[0] here."""
        model = mlp()
        for betas, momentum, is_refused in (((0.9, 0.999), 0.99, True), ((0.99, 0.999), 0.99, False)):
            groups = [{"params": list(model.named_parameters()), "betas": betas, "momentum": momentum}]
            with self.assertRaisesRegex(zfplugin.ArgumentError, r"momentum = 0.99.*betas\[0\]") if is_refused else \
                    contextlib.nullcontext():
                self.zenflow(groups, rule="sgd")


class AutogradsGuard(TorchTest):
    def test_a_graph_from_before_the_step_is_refused(self):
        for extra in ({}, {"fetch": True}):
            model, opt = self.alone(with_model=bool(extra), **HYPER, **extra)
            for _ in range(2):
                loss = loss_of(model, 0)
                loss.backward(retain_graph=True)
                opt.step()
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    loss.backward()
                opt.zero_grad()
