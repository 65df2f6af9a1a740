# SPDX-License-Identifier: Apache-2.0
"""Parameters that are added, unfrozen, moved, converted or replaced after the first step: as with torch's AdamW, which keeps
a state per parameter. In the synchronous mode the weights agree at every step; in windows, after flush()."""
import copy
import logging

from support import ALL_SELECTED, FEW, HYPER, TorchTest, config, loss_of, mlp, plain_step, torch, train, twins, values_of
import zfplugin


class RebindTest(TorchTest):
    def train_with_noise(self, ours, theirs, opt, reference, steps):
        """Gradients that do not depend on the weights: the same weights after flush() in windows too."""
        for i in steps:
            generator = torch.Generator().manual_seed(i)
            for p, q in zip(ours.parameters(), theirs.parameters()):
                p.grad = torch.randn(p.shape, generator=generator).to(p.dtype) if p.requires_grad else None
                q.grad = p.grad.to(q.dtype) if p.requires_grad else None
            opt.step()
            reference.step()


class Added(RebindTest):
    def pair(self, **kwargs):
        """The optimizers hold the first linear layer only."""
        ours, theirs = twins()
        opt = self.zenflow([(f"0.{n}", p) for n, p in ours[0].named_parameters()], **HYPER, **kwargs)
        return ours, theirs, opt, torch.optim.AdamW(theirs[0].parameters(), **HYPER)

    @staticmethod
    def rest(model, **options):
        return {"params": [(n, p) for n, p in model.named_parameters() if not n.startswith("0.")], **options}

    def add(self, ours, theirs, opt, reference, **options):
        opt.add_param_group(self.rest(ours, **options))
        reference.add_param_group({**self.rest(theirs, **options), "params": [p for _, p in self.rest(theirs)["params"]]})

    def test_in_mid_window(self):
        ours, theirs, opt, reference = self.pair(config=config(FEW))
        self.train_with_noise(ours[0], theirs[0], opt, reference, range(30))
        with self.unbound(), self.messages(logging.INFO) as caught:
            self.add(ours, theirs, opt, reference)
            self.train_with_noise(ours, theirs, opt, reference, range(30, 60))
        self.assertEqual(len(caught.output), 1)  # what binding wrote is nobody's edit
        self.assert_same(ours, theirs, flushed=(opt,))

    def test_without_names_before_others(self):
        """Those that were there keep what they have, whatever place they come to."""
        ours, theirs = twins()
        (a, b, c, *_), (d, e, f, *_) = ours.parameters(), theirs.parameters()
        opt, reference = self.zenflow([{"params": [a]}, {"params": [c]}], **HYPER), torch.optim.AdamW([{"params": [d]}, {"params": [f]}], **HYPER)
        self.train_both(ours, theirs, opt, reference, 6, plain_step)
        opt.param_groups[0]["params"].append(b)
        reference.param_groups[0]["params"].append(e)
        self.train_both(ours, theirs, opt, reference, range(6, 12), plain_step)
        self.assertEqual([int(opt.state[p]["step"]) for p in (a, b, c)], [12, 6, 12])
        self.assert_same(ours, theirs, flushed=(opt,))

    def test_equal_names_that_come_and_go(self):
        nets = [torch.nn.Linear(8, 8, bias=False) for _ in range(6)]
        pool = torch.nn.AdaptiveAvgPool1d(4)
        opt = self.zenflow([{"params": list(net.named_parameters())} for net in nets[:3]], **HYPER)
        for i, net in enumerate(nets[3:]):
            train(torch.nn.Sequential(*nets[i:i + 3], pool), opt, (i,))
            del opt.param_groups[0]
            opt.add_param_group({"params": list(net.named_parameters())})
        train(torch.nn.Sequential(*nets[3:], pool), opt, (3,))
        self.assertEqual([int(opt.state[net.weight]["step"]) for net in nets[3:]], [3, 2, 1])

    def test_gradients_that_were_given_back(self):
        """Are lost where others join between backward and step, and that is said."""
        model = mlp()
        model[0].requires_grad_(False)
        opt = self.zenflow(model, model=model, release_gradients=True, **HYPER)
        train(model, opt, range(3))
        model[0].requires_grad_(True)
        with self.assertRaisesRegex(zfplugin.StateError, "had been given back"):
            plain_step(model, opt, 3)
        opt.flush()
        before = [p.detach().clone() for p in model.parameters()]
        model.zero_grad()
        train(model, opt, range(3, 6))
        self.assertFalse(any(map(torch.equal, before, model.parameters())))

    def test_what_cannot_be_added_changes_nothing(self):
        ours, theirs, opt, reference = self.pair()
        self.train_both(ours, theirs, opt, reference, 10, plain_step)
        wrong = [(zfplugin.DtypeError, torch.zeros(3, dtype=torch.float64)),
                 (zfplugin.DeviceError, torch.zeros(3, device="meta")),
                 (ValueError, ours[0].weight)]
        for error, tensor in wrong:
            param = tensor if isinstance(tensor, torch.nn.Parameter) else torch.nn.Parameter(tensor)
            with self.assertRaises(error) as caught:
                opt.add_param_group({"params": [("the.new.one", param)]})
            if issubclass(error, zfplugin.ZfError):
                self.assertIn('"the.new.one"', str(caught.exception))
            self.assertEqual(len(opt.param_groups), 1)
        with self.assertRaises(zfplugin.ParamError):
            opt.add_param_group({"params": [("x" * 300, torch.nn.Parameter(torch.zeros(3)))]})
        self.assertEqual(len(opt.param_groups), 1)
        self.train_both(ours, theirs, opt, reference, 20, plain_step)
        self.assert_same(ours, theirs)


class Removed(RebindTest):
    """Parameters that are taken out of the groups stand still, with all updates that were on their way."""

    def test_in_mid_window(self):
        for fetch in (False, True):
            ours, theirs, opt, reference = self.pair(lambda: mlp(width=200), fetch, config=config(
                FEW, {"zenflow.update_interval": 4, "zenflow.topk_ratio": 0}))
            self.train_with_noise(ours, theirs, opt, reference, range(15))
            for model, o in ((ours, opt), (theirs, reference)):
                o.param_groups[0]["params"] = [p for p in o.param_groups[0]["params"] if p is not model[2].weight]
            self.train_with_noise(ours, theirs, opt, reference, range(15, 16))
            self.assertLessEqual((ours[2].weight - theirs[2].weight).abs().max().item(), 2e-5)
            self.train_with_noise(ours, theirs, opt, reference, range(16, 30))
            self.assert_same(ours, theirs, flushed=(opt,))


class Unfrozen(RebindTest):
    def test_said_with_the_names(self):
        model = mlp()
        model[2].requires_grad_(False)
        opt = self.zenflow(model)
        plain_step(model, opt, 0)
        model[2].weight.requires_grad_(True)
        with self.unbound(), self.messages(logging.INFO) as caught:
            train(model, opt, range(1, 4))
        self.assertEqual(len(caught.output), 1)
        self.assertIn('"2.weight"', caught.output[0])
        self.assertNotIn('"2.bias"', caught.output[0])

    def test_more_memory_than_allowed(self):
        ours = mlp()
        ours.append(torch.nn.Linear(4, 1 << 18).requires_grad_(False))
        theirs = copy.deepcopy(ours)
        opt = self.zenflow(ours, **HYPER, config=config({"host.memory_limit_mib": 1}))
        reference = torch.optim.AdamW(theirs.parameters(), **HYPER)

        def step(model, o, i):
            o.zero_grad()
            loss_of(model[:9], i).backward()
            o.step()

        self.train_both(ours, theirs, opt, reference, 10, step)
        ours[9].requires_grad_(True)
        for _ in range(2):
            with self.assertRaises(MemoryError):
                step(ours, opt, 10)
        ours[9].requires_grad_(False)
        self.train_both(ours, theirs, opt, reference, 10, step)
        self.assert_same(ours, theirs)


class Moved(RebindTest):
    def test_windows_go_on_to_the_bit(self):
        """Nothing but the address changes: open windows stay open."""
        left, right = mlp(), mlp()
        opts = [self.zenflow(model, lr=1e-2, config=config(FEW)) for model in (left, right)]
        for i in range(40):
            for model, opt in zip((left, right), opts):
                plain_step(model, opt, i)
            if i % 5 == 3:
                for p in right.parameters():
                    p.data = p.data.clone()
            self.assert_equal(left, right)

    def test_while_values_are_late(self):
        """They come to the new memory, whether the old one is alive or not; large ones, whose memory is given back at once."""
        at_fetch = config(FEW, {"zenflow.update_interval": 3, "zenflow.publish_lag": 0, "zenflow.topk_ratio": 0})

        def clone(model):
            for p in model.parameters():
                p.data = p.data.clone()

        for move in (clone, lambda model: model.share_memory()):
            for look in (lambda opt: None, lambda opt: opt.state_dict(), lambda opt: opt.synchronize()):
                left, right = mlp(width=200), mlp(width=200)
                opts = [self.zenflow(model, lr=1e-2, config=at_fetch, model=model, fetch=True) for model in (left, right)]
                for i in range(10):
                    for model, opt in zip((left, right), opts):
                        plain_step(model, opt, i)
                    if i in (4, 5, 8):
                        move(right)
                        for opt in opts:  # a state_dict() closes windows
                            look(opt)
                for opt in opts:
                    opt.flush()
                self.assert_equal(left, right)

    def test_moved_then_flushed_saved_or_told(self):
        for name in ("flush", "state_dict", "params_changed"):
            model, opt = self.alone(config=config(FEW))
            train(model, opt, range(10))
            old, kept = [p.data for p in model.parameters()], values_of(model)
            for p in model.parameters():
                p.data = p.data.clone()
            getattr(opt, name)()
            for data, values in zip(old, kept):
                self.assertTrue(torch.equal(data, values), name)

    def test_converted_to_16_bit_and_back(self):
        """The masters go on: torch's AdamW on masters that see the gradients of the rounded weights."""
        for dtype in (torch.bfloat16, torch.float16):
            for extra in (config(), config(ALL_SELECTED, {"zenflow.full_warm_up_rounds": 3})):
                with self.subTest(dtype=dtype):
                    self.convert(dtype, extra)

    def convert(self, dtype, extra):
        ours = mlp()
        masters = [p.detach().clone() for p in ours.parameters()]
        opt = self.zenflow(ours, **HYPER, config=extra)
        reference = torch.optim.AdamW(masters, **HYPER)
        for i in range(60):
            now = dtype if 20 <= i < 40 else torch.float32
            ours.to(now)
            opt.zero_grad()
            loss_of(ours, i, now).backward()
            for master, p in zip(masters, ours.parameters()):
                master.grad = p.grad.float()
            opt.step()
            reference.step()
            exported = opt.export()
            for (name, p), master in zip(ours.named_parameters(), masters):
                self.assertLess((exported[name] - master).abs().max().item(), 2e-5, name)
                self.assertTrue(torch.equal(p.detach(), exported[name].to(now)), name)


class Replaced(RebindTest):
    """Only where model= says whose parameters they are, and from the next backward on."""

    def test_load_state_dict_assign(self):
        ours, theirs, opt, reference = self.pair(with_model=True)
        for i in range(40):
            if i in (10, 25):
                ours.load_state_dict(mlp(seed=i).state_dict(), assign=True)
                theirs.load_state_dict(mlp(seed=i).state_dict())
            self.train_both(ours, theirs, opt, reference, [i], plain_step)
            self.assert_same(ours, theirs)
        self.assertEqual([id(p) for p in ours.parameters()], [id(p) for p in opt.param_groups[0]["params"]])
        self.assertTrue(all(p._post_accumulate_grad_hooks for p in ours.parameters()))
