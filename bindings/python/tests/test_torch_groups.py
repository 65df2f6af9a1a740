# SPDX-License-Identifier: Apache-2.0
"""param_groups as the source of truth: edited by hand between steps, as torch.optim.AdamW takes it (usage.py); what is refused."""
import contextlib

from support import HYPER, TorchTest, loss_of, mlp, plain_step, torch, values_of
import zfplugin


class Refused(TorchTest):
    def test_what_cannot_be_bound_is_refused_at_every_step_and_harms_nothing(self):
        model = mlp()
        opt = self.zenflow(model, **HYPER)
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

    def test_in_the_constructor(self):
        for wrong, said in (({"lr": -1}, "lr = -1"), ({"lr": float("nan")}, "lr = nan"), ({"lr": None}, "lr = None"),
                            ({"lr": "1e-3"}, "lr = '1e-3'"), ({"betas": (1, 0.9)}, r"betas\[0\] = 1"),
                            ({"betas": 0.9}, "need two numbers"), ({"eps": -1}, "eps = -1"), ({"weight_decay": -1}, "weight_decay"),
                            ({"accumulation_steps": "2"}, "accumulation_steps = '2'"), ({"model": 3}, "model is a int"),
                            ({"config": 3}, "config is a int"), ({"fetch": True}, "fetch=True needs model")):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(zfplugin.ArgumentError, said):
                self.zenflow(mlp(), **wrong)

    def test_at_a_step(self):
        model = mlp()
        opt = self.zenflow(model, **HYPER)
        plain_step(model, opt, 0)
        before = values_of(model)
        for key, value, said in (("lr", None, "group 0: lr = None"), ("lr", -1.0, "lr = -1"), ("lr", float("nan"), "lr = nan"),
                                 ("lr", float("inf"), "lr = inf"), ("betas", 0.9, "two numbers"),
                                 ("maximize", True, "maximize=True is not supported"), ("amsgrad", True, "amsgrad=True is not supported")):
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


class Configuration(TorchTest):
    def test_forms(self):
        for given in ({"zenflow.topk_ratio": 0.3}, {"zenflow": {"topk_ratio": 0.3}}, "zenflow.topk_ratio=0.3",
                      ["zenflow.topk_ratio=0.3"], "[zenflow]\ntopk_ratio = 0.3\n"):
            with self.subTest(given=given):
                self.assertEqual(float(self.zenflow(mlp(), config=given).config()["zenflow.topk_ratio"]), 0.3)


class AutogradsGuard(TorchTest):
    def test_a_graph_from_before_the_step_is_refused(self):
        for extra in ({}, {"fetch": True}):
            model = mlp()
            opt = self.zenflow(model, **HYPER, **extra, **({"model": model} if extra else {}))
            for _ in range(2):
                loss = loss_of(model, 0)
                loss.backward(retain_graph=True)
                opt.step()
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    loss.backward()
                opt.zero_grad()
