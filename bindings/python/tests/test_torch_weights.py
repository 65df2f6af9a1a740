# SPDX-License-Identifier: Apache-2.0
"""Weights written by others after the optimizer was made: followed, or refused with the parameter's name.
Parameters that moved, were replaced, added or unfrozen: test_torch_rebind.py."""
import logging

from support import HYPER, TorchTest, config, loss_of, mlp, plain_step, step_in, torch, train, twins, values_of
import zfplugin


class Exchanged(TorchTest):
    """Modules exchanged after the optimizer was made: with model= what the model has now is trained."""

    def check(self, surgery):
        ours, theirs = twins()
        opt = self.zenflow(ours, **HYPER, model=ours)
        for model in (ours, theirs):
            torch.manual_seed(5)
            surgery(model)
        reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
        self.train_both(ours, theirs, opt, reference, range(5), plain_step)
        self.assert_same(ours, theirs)
        return opt

    def test_tied_or_dropped_are_left_alone(self):
        def tie(model):
            model[2].weight = model[5].weight

        def drop(model):
            model[2] = torch.nn.Identity()

        self.check(tie)
        self.check(drop)


class Followed(TorchTest):
    def test_the_same_weights_loaded_after_the_optimizers_state_are_no_change(self):
        """Either order of loading goes on to the bit, in mid-window, with 16-bit weights too."""
        for dtype in (torch.float32, torch.bfloat16):
            mode = config({"zenflow.mode": "windows", "zenflow.topk_ratio": 0.1, "zenflow.full_warm_up_rounds": 2})

            first, second = mlp(dtype=dtype), mlp(seed=4, dtype=dtype)
            opt1, opt2 = (self.zenflow(model, **HYPER, config=mode) for model in (first, second))
            train(first, opt1, range(11), step_in(dtype))
            opt2.load_state_dict(opt1.state_dict())
            second.load_state_dict(first.state_dict())
            with self.assertNoLogs("zfplugin", logging.INFO):
                self.train_both(first, second, opt1, opt2, range(11, 20), step_in(dtype))
            self.assert_equal(first, second)
            opt2.load_state_dict(opt1.state_dict())
            with torch.no_grad():
                second[0].weight[0, 0] += 1  # that is one
            with self.messages(logging.INFO):
                train(second, opt2, [20], step_in(dtype))

    def test_loaded_at_the_end_they_stay_when_the_optimizer_goes(self):
        """Closed, or followed by another optimizer, which trains them on: values that were late stay away."""
        few = {"zenflow.topk_ratio": 0.1, "zenflow.update_interval": 4, "zenflow.full_warm_up_rounds": 1}
        best = mlp(seed=9)
        for is_followed in (False, True):
            model, opt = self.alone(with_model=True, fetch=True, config=config(few))
            train(model, opt, range(10))
            model.load_state_dict(best.state_dict())
            if is_followed:
                plain_step(model, self.zenflow(model, model=model, lr=0.0), 10)
            opt.close()
            self.assert_same(model, best, bound=0)

    def test_said_once_with_the_names(self):
        model, opt = self.alone(config=config({"zenflow.mode": "windows"}))
        plain_step(model, opt, 0)
        with self.messages(logging.INFO) as caught:
            for i in range(3):
                with torch.no_grad():
                    model[0].weight.add_(1)
                plain_step(model, opt, i)
        self.assertEqual(len(caught.output), 1)
        self.assertIn('"0.weight"', caught.output[0])
        self.assertNotIn('"2.weight"', caught.output[0])

    def test_in_exact_every_way_of_writing_counts_and_none_is_said(self):
        """The update sees what was written: by torch, past the version counter, in a hook, after the step, whatever reads it."""
        ours, theirs = twins()
        opt, reference = self.zenflow(ours, **HYPER), torch.optim.AdamW(theirs.parameters(), **HYPER)

        def in_place(model):
            with torch.no_grad():
                model[0].weight[1, :3].add_(1)

        def by_data(model):
            model[2].weight.data.mul_(1.5)
            model[0].bias.data = model[0].bias.data * 2  # other memory

        def by_numpy(model):
            model[0].weight.detach().numpy()[0, 0] = 0.25

        def clamp(p):
            p.data.clamp_(-0.1, 0.1)

        def in_a_hook(model):
            handle = model[0].weight.register_post_accumulate_grad_hook(clamp)
            loss_of(model, 50).backward()
            handle.remove()

        for model, optimizer in ((ours, opt), (theirs, reference)):
            plain_step(model, optimizer, 30)
        with self.unbound(), self.assertNoLogs("zfplugin", logging.INFO):
            for i, write in enumerate((in_place, by_data, by_numpy, in_a_hook) * 2):
                for model, optimizer in ((ours, opt), (theirs, reference)):
                    write(model)
                    if i % 2:
                        optimizer.zero_grad()
                        loss_of(model, i).backward()
                        write(model)
                        optimizer.step()
                        optimizer.zero_grad(set_to_none=False)  # right behind it, in place
                    else:
                        plain_step(model, optimizer, i)
                self.assert_same(ours, theirs)
        self.assertEqual(opt.stats()["overwritten_elems"], 0)

    def test_params_changed_by_hand_and_reset(self):
        ours, theirs = twins()
        opt = self.zenflow(ours, **HYPER)
        train(ours, opt, range(10))
        with torch.no_grad():
            for p, q in zip(ours.parameters(), theirs.parameters()):
                p.copy_(q)
        opt.params_changed(reset=True)
        self.train_both(ours, theirs, opt, torch.optim.AdamW(theirs.parameters(), **HYPER), 20, plain_step)
        self.assert_same(ours, theirs)


class Asked(TorchTest):
    """The cost of a step: the plugin is asked once about every weight, and once more where it is fetched."""

    def count(self, is_fetched):
        model, opt = self.alone(with_model=is_fetched, fetch=is_fetched, **HYPER)
        opt.bind()
        written, asked = opt._instance.written, []
        opt._instance.written = lambda ids, *flags: asked.append(len(list(ids))) or written(ids, *flags)
        counts = []
        for i in range(6):
            asked.clear()
            plain_step(model, opt, i)
            counts.append((len(asked), sum(asked)))
        self.n_modules = sum(next(m.parameters(recurse=False), None) is not None for m in model.modules())
        return len(list(model.parameters())), counts[1:]

    def test_once_per_step(self):
        n, counts = self.count(False)
        self.assertEqual(counts, [(1, n)] * 5)

    def test_once_more_where_it_is_fetched(self):
        n, counts = self.count(True)
        self.assertEqual(counts, [(1 + self.n_modules, 2 * n)] * 5)


class ReadBeforeTheFetch(TorchTest):
    """Weights that a graph has read are not exchanged under it unnoticed."""

    def trained(self, lag, make=mlp, **extra):
        model = make()
        opt = self.zenflow(model, lr=1e-2, model=model, fetch=True, config=config({
            "zenflow.update_interval": 1, "zenflow.publish_lag": lag, "zenflow.topk_ratio": 0, "zenflow.full_warm_up_rounds": 1, **extra}))
        train(model, opt, range(4))
        opt.zero_grad()
        return model, opt

    def test_is_refused_by_autograd(self):
        for extra in ({}, {"zenflow.on_overwrite": "off"}):
            model, opt = self.trained(0, **extra)
            penalty = model[2].weight.pow(2).sum()
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                (penalty + loss_of(model, 4)).backward()
            with self.messages(logging.INFO) as caught:
                plain_step(model, opt, 5)
                opt.log.info("end")
            self.assertEqual(len(caught.output), 1)  # nobody wrote anything

    def test_is_right_where_all_was_fetched(self):
        model, opt = self.trained(0)
        opt.synchronize()
        weight, bias = model[2].weight.detach().clone(), model[2].bias
        penalty = model[2].weight.pow(2).sum()
        loss_of(model, 4)
        penalty.backward()
        self.assertTrue(torch.equal(model[2].weight.grad, 2 * weight))
        self.assertIsNone(bias.grad)

    def test_modules_that_share_a_weight(self):
        def make():
            model = mlp(n_hidden=3)
            model[5].weight = model[2].weight
            return model

        model, opt = self.trained(0, make)
        for i in range(4, 8):
            plain_step(model, opt, i)
            with torch.inference_mode():
                loss_of(model, i)


class Refused(TorchTest):
    def test_it_does_not_go_away_and_leaves_no_trace(self):
        ours, theirs, opt, reference = self.pair()
        self.train_both(ours, theirs, opt, reference, 10, plain_step)
        old, before = ours[2].weight.data, values_of(ours)
        loss_of(ours, 1).backward()
        ours[2].weight.data = old[:5]
        for _ in range(2):
            with self.assertRaisesRegex(zfplugin.ShapeError, r'"2.weight".*\[5, 24\]'):
                opt.step()
        ours[2].weight.data = old
        self.assert_values(ours, before)
        self.assertEqual(opt.stats()["steps"], 10)
        self.train_both(ours, theirs, opt, reference, 10, plain_step)
        self.assert_same(ours, theirs)

    def test_a_storage_given_back(self):
        model, opt = self.alone()
        plain_step(model, opt, 0)
        kept = model[2].weight.detach().clone()
        loss_of(model, 1).backward()
        model[2].weight.untyped_storage().resize_(0)
        with self.assertRaisesRegex(zfplugin.ParamError, '"2.weight"'):
            opt.step()
        model[2].weight.data = kept
        opt.step()
        self.assertEqual(opt.stats()["steps"], 2)

    def test_surgery_that_cannot_be_followed_is_named_where_the_model_is_known(self):
        def drop(model):
            model[2] = torch.nn.Identity()

        def resize(model):
            model[2] = torch.nn.Linear(24, 24, bias=True)
            model[2].weight = torch.nn.Parameter(torch.zeros(24, 25)[:, :20])

        def tie(model):
            model[2].weight = model[5].weight

        for surgery, error in ((drop, zfplugin.ParamError), (resize, zfplugin.ShapeError), (tie, zfplugin.ParamError)):
            with self.subTest(surgery=surgery.__name__):
                model, opt = self.alone(with_model=True)
                plain_step(model, opt, 0)
                kept = model[2]
                weight = model[2].weight
                surgery(model)
                for p in model.parameters():
                    p.grad = torch.zeros_like(p)
                for _ in range(2):
                    with self.assertRaisesRegex(error, '"2.weight"'):
                        opt.flush()
                model[2] = kept
                model[2].weight = weight
                plain_step(model, opt, 1)
                self.assertEqual(opt.stats()["steps"], 2)
