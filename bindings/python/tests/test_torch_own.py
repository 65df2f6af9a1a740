# SPDX-License-Identifier: Apache-2.0
"""The questions that PyTorch's own tests ask of every optimizer (pytorch/test/test_optim.py, optim/test_lrscheduler.py and optim/test_swa_utils.py), with inputs that ours takes: same weights, hooks of state
dicts, names of parameters, entries in .state that are no parameter's, edits of a state dict."""
import copy
import io
import itertools

from support import FEW, SYNCHRONOUS, TorchTest, config, plain_step, torch, train, twins, values_of
import zfplugin

# (torch's class, its arguments, ours beside them): those of torch.testing._internal.common_optimizers, but for amsgrad
INPUTS = [(kind, {"lr": 1e-3, **kwargs}, {"rule": rule})
          for kind, rule in (("AdamW", "adamw"), ("Adam", "adam"))
          for kwargs in ({}, {"lr": 0.01}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "maximize": True}, {"lr": torch.tensor(0.001)},
                         {"betas": (torch.tensor([[[0.9]]]), torch.tensor([[0.99]]))})]
INPUTS += [("SGD", {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1, "nesterov": is_nesterov, "maximize": is_max},
            {"rule": "sgd_nesterov" if is_nesterov else "sgd", "betas": (0.9, 0.0)}) for is_nesterov in (False, True) for is_max in (False, True)]

lr = torch.optim.lr_scheduler
EVERY_SCHEDULER = {
    "LambdaLR": lambda opt: lr.LambdaLR(opt, lambda epoch: 0.9 ** epoch), "MultiplicativeLR": lambda opt: lr.MultiplicativeLR(opt, lambda epoch: 0.8),
    "StepLR": lambda opt: lr.StepLR(opt, 2), "MultiStepLR": lambda opt: lr.MultiStepLR(opt, [2, 4]), "ConstantLR": lambda opt: lr.ConstantLR(opt, 0.5, 3),
    "LinearLR": lambda opt: lr.LinearLR(opt, 0.1, total_iters=4), "ExponentialLR": lambda opt: lr.ExponentialLR(opt, 0.7),
    "PolynomialLR": lambda opt: lr.PolynomialLR(opt, 6, 2.0), "CosineAnnealingLR": lambda opt: lr.CosineAnnealingLR(opt, 6),
    "CosineAnnealingWarmRestarts": lambda opt: lr.CosineAnnealingWarmRestarts(opt, 3),
    "CyclicLR": lambda opt: lr.CyclicLR(opt, 1e-4, 1e-3, step_size_up=2),  # cycles betas[0], too
    "OneCycleLR": lambda opt: lr.OneCycleLR(opt, 1e-3, total_steps=12), "ReduceLROnPlateau": lambda opt: lr.ReduceLROnPlateau(opt, patience=1),
    "SequentialLR": lambda opt: lr.SequentialLR(opt, [lr.ConstantLR(opt, 0.1, 2), lr.ExponentialLR(opt, 0.9)], [2]),
    "ChainedScheduler": lambda opt: lr.ChainedScheduler([lr.ConstantLR(opt, 0.1, 2), lr.ExponentialLR(opt, 0.9)]),
    "SWALR": lambda opt: torch.optim.swa_utils.SWALR(opt, 5e-4, anneal_epochs=3)}


class LikeTorchs(TorchTest):
    def make(self, params, kind, kwargs, own, **more):
        """Ours, or torch's where own is None."""
        if own is None:
            return getattr(torch.optim, kind)(params, **copy.deepcopy(kwargs))
        mine = {name: value for name, value in copy.deepcopy(kwargs).items() if name not in ("momentum", "nesterov")}
        defaults = {"eps": 1e-8, "weight_decay": 0.0 if kind != "AdamW" else 0.01}
        return self.zenflow(params, **{**defaults, **mine, **own, "config": config(SYNCHRONOUS), **more})

    def test_weights_are_torchs(self):
        """Under a scheduler, which also writes rates that are tensors."""
        for kind, kwargs, own in INPUTS:
            with self.subTest(kind=kind, kwargs=kwargs):
                models = twins()
                optimizers = self.make(models[0].parameters(), kind, kwargs, own), self.make(models[1].parameters(), kind, kwargs, None)
                for model, opt in zip(models, optimizers):
                    following = EVERY_SCHEDULER["LinearLR"](opt)
                    for step in range(5):
                        plain_step(model, opt, step)
                        following.step()
                    str(opt)
                self.assertAlmostEqual(*(float(opt.param_groups[0]["lr"]) for opt in optimizers), 12)
                self.assert_same(*models)
                for entry in optimizers[0].state.values():
                    self.assertGreater(len(entry), 1)
                optimizers[0].close()

    def test_every_scheduler(self):
        """Rates and betas are torch's at each step, in two groups, and where the scheduler and the optimizer are resumed."""
        named = {name for name, kind in vars(lr).items() if isinstance(kind, type) and issubclass(kind, lr.LRScheduler)} - {"LRScheduler", "_LRScheduler"}
        self.assertEqual(named - set(EVERY_SCHEDULER), set())
        for name, make in EVERY_SCHEDULER.items():
            with self.subTest(scheduler=name):
                models = twins()
                groups = [[{"params": [p for p in model.parameters() if p.ndim == 2]},
                           {"params": [p for p in model.parameters() if p.ndim == 1], "lr": 3e-4}] for model in models]
                opts = [self.zenflow(groups[0], lr=1e-3), torch.optim.AdamW(groups[1], lr=1e-3)]
                schedules = [make(opt) for opt in opts]
                for step in range(8):
                    for i, model in enumerate(models):
                        plain_step(model, opts[i], step)
                        schedules[i].step(*([1.0] if name == "ReduceLROnPlateau" else []))
                        if step == 4:
                            saved = copy.deepcopy((opts[i].state_dict(), schedules[i].state_dict()))
                            schedules[i] = make(opts[i])
                            for of, state in zip((opts[i], schedules[i]), saved):
                                of.load_state_dict(state)
                    for ours, theirs in zip(opts[0].param_groups, opts[1].param_groups):
                        self.assertEqual((ours["lr"], tuple(ours["betas"])), (theirs["lr"], tuple(theirs["betas"])))
                self.assert_same(*models)
                opts[0].close()

    def test_wrong_arguments_are_the_errors_of_torch(self):
        """By type, each with our own words."""
        p, q = torch.nn.Parameter(torch.ones(1, 1)), torch.nn.Parameter(torch.ones(1, 1))
        with self.assertWarnsRegex(UserWarning, "duplicate parameters"):
            self.zenflow([p, p])
        for params, kwargs, kind in ((p, {}, TypeError), ([{"params": p}, {"params": p}], {}, ValueError), ([], {}, ValueError),
                                     ([p], {"lr": torch.tensor([0.001, 0.001])}, ValueError), ([p], {"lr": -1.0}, ValueError),
                                     ([("weight", p), q], {}, ValueError), ([p], {"betas": (1.0, 0.0)}, ValueError),
                                     ([p], {"weight_decay": -1}, ValueError), ([p], {"eps": -1}, ValueError),
                                     ([p], {"betas": (0.9, torch.tensor(0.99))}, ValueError),
                                     ([p], {"betas": (torch.tensor(0.9), 0.99)}, ValueError)):
            with self.assertRaises(kind, msg=kwargs):
                self.zenflow(params, **kwargs)

    def test_maximize_at_every_place(self):
        """Per group, switched in mid-run, with gradients that travel early or are given back."""
        for mine in ({}, {"overlap": True}, {"release_gradients": True}):
            ours, theirs = twins()
            groups = [{"params": [p for p in model.parameters() if p.ndim == 2], "maximize": True} for model in (ours, theirs)]
            rest = [{"params": [p for p in model.parameters() if p.ndim == 1]} for model in (ours, theirs)]
            opt = self.zenflow([groups[0], rest[0]], lr=1e-3, **mine)
            reference = torch.optim.AdamW([groups[1], rest[1]], lr=1e-3)
            for switched in (False, True):
                for optimizer in (opt, reference):
                    for group in optimizer.param_groups:
                        group["maximize"] ^= switched
                if mine.get("release_gradients"):
                    opt.bind()
                self.train_both(ours, theirs, opt, reference, range(6), plain_step)
                self.assert_same(ours, theirs)
                for p, q in zip(ours.parameters(), theirs.parameters()):
                    self.assertLess((opt.state[p]["exp_avg"] - reference.state[q]["exp_avg"]).abs().max().item(), 1e-5)

    def test_gradients_stay_the_trainers(self):
        model, opt = self.alone(maximize=True)
        for step in range(2):
            plain_step(model, opt, step)
            before = [p.grad.clone() for p in model.parameters()]
            opt.step()
            self.assertTrue(all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), before)))

    def test_no_gradients_and_zeros(self):
        for kind, kwargs, own in INPUTS:
            model = torch.nn.Linear(5, 5)
            opt = self.make(model.parameters(), kind, {**kwargs, "weight_decay": 0.0}, own)
            before = copy.deepcopy(model)
            with self.messages():
                opt.step()
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            opt.step()
            self.assert_equal(model, before)
            opt.close()

    def test_hooks_of_state_dicts(self):
        """Before the first step, and with a state."""
        for n_steps in (0, 2):
            model, opt = self.alone()
            train(model, opt, range(n_steps))
            seen = []
            handles = [opt.register_state_dict_pre_hook(lambda optimizer: optimizer.state.__setitem__("test", 1)),
                       opt.register_state_dict_post_hook(lambda optimizer, saved: seen.append(set(saved["state"]))),
                       opt.register_state_dict_post_hook(lambda optimizer, saved: {**saved, "more": saved["state"].pop("test")})]
            saved = opt.state_dict()
            numbers = set(range(len(list(model.parameters())) if n_steps else 0))
            self.assertEqual((seen, saved["more"]), ([{*numbers, "test"}], 1))
            self.assertNotIn("test", saved["state"])
            for handle in handles:
                handle.remove()
            self.assertEqual(opt.state["test"], 1)
            del opt.state["test"]
            self.assertNotIn("test", opt.state_dict()["state"])

            def lower(optimizer, given):
                seen.append(set(given["state"]))
                given["param_groups"][0]["lr"] = 0.002

            def other(optimizer, given):
                given = copy.deepcopy(given)
                given["param_groups"][0]["lr"] = 0.003
                return given

            seen.clear()
            opt.register_load_state_dict_post_hook(lambda optimizer: optimizer.state.__setitem__("lr", optimizer.param_groups[0]["lr"]))
            first = opt.register_load_state_dict_pre_hook(lower)
            opt.load_state_dict(saved)
            self.assertEqual((seen[0], opt.state["lr"]), (numbers, 0.002))
            opt.register_load_state_dict_pre_hook(other, prepend=True)
            opt.load_state_dict(saved)
            self.assertEqual(opt.state["lr"], 0.002)
            first.remove()
            opt.load_state_dict(saved)
            self.assertEqual(opt.state["lr"], 0.003)
            plain_step(model, opt, 3)

    def test_a_hook_that_raises_has_changed_nothing(self):
        model, opt = self.alone()
        train(model, opt, range(2))
        saved = copy.deepcopy(opt.state_dict())
        train(model, opt, range(2, 4))
        opt.param_groups[0]["lr"] = 0.25

        def refuse(optimizer, given):
            raise RuntimeError("no")

        before = values_of(model)
        opt.register_load_state_dict_pre_hook(refuse)
        with self.assertRaisesRegex(RuntimeError, "no"):
            opt.load_state_dict(saved)
        self.assert_values(model, before)
        self.assertEqual((opt.param_groups[0]["lr"], opt.state[model[0].weight]["step"]), (0.25, 4))

    def test_edits_of_a_state_dict(self):
        """By a hook, in place, in a file: they act as in torch, in windows, too."""
        def halve(saved):
            for entry in saved["state"].values():
                entry["exp_avg"].mul_(0.5)

        def exchange(saved):
            for entry in saved["state"].values():
                entry["exp_avg_sq"] = entry["exp_avg_sq"] * 4
                entry["step"] = 2

        def drop(saved):
            del saved["state"][3], saved["state"][4]

        for edit in (halve, exchange, drop):
            ours, theirs, opt, reference = self.pair()
            self.train_both(ours, theirs, opt, reference, range(4), plain_step)
            for optimizer in (opt, reference):
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                saved = torch.load(file, weights_only=True)
                edit(saved)
                optimizer.load_state_dict(saved)
            self.train_both(ours, theirs, opt, reference, range(4, 8), plain_step)
            self.assert_same(ours, theirs)
            model, late = self.alone(config=config(FEW))
            train(model, late, range(7))
            saved = late.state_dict()
            edit(saved)
            late.load_state_dict(saved)
            self.assertTrue(torch.equal(late.state[model[2].weight]["exp_avg"], saved["state"][2]["exp_avg"]))

    def test_names_of_parameters(self):
        """In groups and state dicts, from and to an optimizer without names; some without are refused, as by torch."""
        for is_named, other_is_named in itertools.product((True, False), repeat=2):
            (one, model), (two, other) = ((torch.nn.Linear(3, 3), named) for named in (is_named, other_is_named))
            first, second = (self.zenflow(net.named_parameters() if named else net.parameters()) for net, named in ((one, model), (two, other)))
            self.assertEqual("param_names" in first.param_groups[0], is_named)
            one(torch.ones(3)).sum().backward()
            first.step()
            saved = copy.deepcopy(first.state_dict())
            self.assertEqual(saved["param_groups"][0].get("param_names"), ["weight", "bias"] if is_named else None)
            second.load_state_dict(saved)
            self.assertEqual("param_names" in second.param_groups[0], is_named or other_is_named)
            self.assertTrue(torch.equal(first.state[one.weight]["exp_avg"], second.state[two.weight]["exp_avg"]))
        model = torch.nn.Linear(3, 3)
        for wrong in ([("weight", model.weight), model.bias], [model.weight, ("bias", model.bias)],
                      [{"params": [("weight", model.weight)]}, {"params": [model.bias]}]):
            with self.assertRaisesRegex(ValueError, "name"):
                self.zenflow(wrong)
        opt = self.zenflow([("weight", model.weight)])
        with self.assertRaisesRegex(ValueError, "name"):
            opt.add_param_group({"params": [model.bias]})
        opt.add_param_group({"params": [("bias", model.bias)]})
        self.assertEqual([group["param_names"] for group in opt.param_groups], [["weight"], ["bias"]])

    def test_a_state_dict_is_plain_and_whole(self):
        """The same of two like runs; what is saved loads; numbers in place of tensors; groups of an older torch; what torch's goes on with."""
        for kind, kwargs, own in INPUTS:
            models = twins()
            opts = [self.make(model.parameters(), kind, kwargs, own) for model in models]
            for model, opt in zip(models, opts):
                train(model, opt, range(3))
            saved, like = (opt.state_dict() for opt in opts)
            self.assertEqual(saved["zenflow"]["index"], like["zenflow"]["index"])
            for number, entry in saved["state"].items():
                self.assertEqual({name: value.tolist() for name, value in entry.items()},
                                 {name: value.tolist() for name, value in like["state"][number].items()})
            for group in like["param_groups"]:
                del group["maximize"]
            for entry in like["state"].values():
                entry["step"] = entry["step"].item()
            opts[1].load_state_dict(like)
            self.assertNotIn("maximize", opts[1].param_groups[0])
            opts[1].param_groups[0]["maximize"] = kwargs.get("maximize", False)
            for model, opt in zip(models, opts):
                train(model, opt, range(3, 5))
            self.assert_equal(*models)
            for opt in opts:
                opt.close()

    def test_amsgrad_is_refused_by_name(self):
        with self.assertRaisesRegex(zfplugin.ArgumentError, "amsgrad"):
            self.alone(amsgrad=True)
