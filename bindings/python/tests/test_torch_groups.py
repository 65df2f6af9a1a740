# SPDX-License-Identifier: Apache-2.0
"""param_groups as the source of truth: edited by hand between steps, as torch.optim.AdamW takes it; what is refused."""
import contextlib
import unittest

from support import ALL_SELECTED, HYPER, TorchTest, config, loss_of, mlp, plain_step, torch, twins
import zfplugin


def in_groups(model, n=3):
    """Parameters with names, dealt over n groups of different rates."""
    named = list(model.named_parameters())
    return [{"params": named[i::n], "lr": 1e-3 * (i + 1)} for i in range(n)]


class EditedByHand(TorchTest):
    """The same edit on both optimizers after some steps."""

    def check(self, edit, make=mlp, n_groups=3, **kwargs):
        for extra in ({}, {"config": config(ALL_SELECTED, {"zenflow.full_warm_up_rounds": 3})}):
            ours, theirs = twins(make)
            opt = zfplugin.torch.ZenFlow(in_groups(ours, n_groups), **{"config": config(), **HYPER, **extra, **kwargs})
            self.made.append(opt)
            groups = [{**g, "params": [p for _, p in g["params"]]} for g in in_groups(theirs, n_groups)]
            reference = torch.optim.AdamW(groups, **HYPER)
            self.train_both(ours, theirs, opt, reference, range(5), plain_step)
            for model, optimizer in ((ours, opt), (theirs, reference)):
                edit(model, optimizer)
            self.train_both(ours, theirs, opt, reference, range(5, 12), plain_step)
            opt.flush()
            self.assert_same(ours, theirs)
        return opt

    def test_a_group_is_removed(self):
        def edit(_model, opt):
            del opt.param_groups[1]

        self.check(edit)

    def test_a_parameter_changes_its_group(self):
        self.check(lambda _model, opt: opt.param_groups[2]["params"].append(opt.param_groups[0]["params"].pop()))

    def test_a_group_is_appended(self):
        def edit(model, opt):
            torch.manual_seed(5)
            model.append(torch.nn.Linear(4, 4))
            opt.param_groups.append({**opt.param_groups[0], "params": list(model[-1].parameters())})

        self.check(edit)

    def test_a_swapped_layer_begins_afresh_where_the_model_is_known(self):
        ours, theirs = twins()
        opt = zfplugin.torch.ZenFlow(ours.parameters(), model=ours, config=config(), **HYPER)
        self.made.append(opt)
        reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
        for i in range(12):
            if i == 5:
                for model, optimizer in ((ours, opt), (theirs, reference)):
                    torch.manual_seed(5)
                    model[-1] = torch.nn.Linear(24, 4)
                    optimizer.param_groups[0]["params"] = list(model.parameters())
            plain_step(ours, opt, i)
            plain_step(theirs, reference, i)
        self.assert_same(ours, theirs)

    def test_what_cannot_be_bound_is_refused_at_every_step_and_harms_nothing(self):
        model = mlp()
        opt = self.zenflow(model, **HYPER)
        plain_step(model, opt, 0)
        before = [p.detach().clone() for p in model.parameters()]
        opt.param_groups[0]["params"].append(opt.param_groups[0]["params"][0])
        for _ in range(2):
            with self.assertRaisesRegex(zfplugin.ParamError, "twice"):
                plain_step(model, opt, 1)
        for p, old in zip(model.parameters(), before):
            self.assertTrue(torch.equal(p, old))
        opt.param_groups[0]["params"].pop()
        opt.param_groups.append({"params": [torch.nn.Parameter(torch.ones(3))]})
        with self.assertRaisesRegex(zfplugin.ArgumentError, "group 1: lr is missing"):
            plain_step(model, opt, 1)
        opt.param_groups.pop()
        plain_step(model, opt, 1)


class Refused(TorchTest):
    def test_in_the_constructor(self):
        for wrong, said in (({"lr": -1}, "lr = -1"), ({"lr": float("nan")}, "lr = nan"), ({"lr": None}, "lr = None"),
                            ({"lr": "1e-3"}, "lr = '1e-3'"), ({"betas": (1, 0.9)}, r"betas\[0\] = 1"),
                            ({"betas": 0.9}, "need two numbers"), ({"eps": -1}, "eps = -1"), ({"weight_decay": -1}, "weight_decay"),
                            ({"accumulation_steps": "2"}, "accumulation_steps = '2'"), ({"model": 3}, "model is a int"),
                            ({"config": 3}, "config is a int")):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(zfplugin.ArgumentError, said):
                self.zenflow(mlp(), **wrong)

    def test_at_a_step(self):
        model = mlp()
        opt = self.zenflow(model, **HYPER)
        plain_step(model, opt, 0)
        for key, value, said in (("lr", None, "group 0: lr = None"), ("lr", -1.0, "lr = -1"), ("betas", 0.9, "two numbers"),
                                 ("maximize", True, "maximize=True is not supported")):
            with self.subTest(key=key, value=value):
                good = opt.param_groups[0].get(key)
                opt.param_groups[0][key] = value
                with self.assertRaisesRegex(zfplugin.ArgumentError, said):
                    plain_step(model, opt, 1)
                opt.param_groups[0][key] = good
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
                self.made.append(zfplugin.torch.ZenFlow(groups, rule="sgd", config=config()))


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


if __name__ == "__main__":
    unittest.main()
