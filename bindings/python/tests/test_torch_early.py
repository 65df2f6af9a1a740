# SPDX-License-Identifier: Apache-2.0
"""Gradients that count as final during backward: updates that begin before their step, and memory that is given back."""
import time
import weakref
from unittest import mock

from support import BOTH, HYPER, TorchTest, config, loss_of, mlp, plain_step, torch, twins, values_of
from test_torch_gradients import EARLY
import zfplugin


def await_early(opt, i):
    """Leaves time for an update to begin at step i, longer at each until the first one did."""
    stats = opt.stats()
    time.sleep(0.03 if stats["early_taken"] + stats["early_lost"] else 0.03 * 2 ** min(i, 6))


@EARLY
class BeforeTheStep(TorchTest):
    """With overlap=True what is deferred is updated during backward, to the same bits."""

    N_STEPS = 16

    def pair(self, one_step, n_lost=0, announces=True, **kwargs):
        """Side by side with a run whose gradients travel at step(). Returns the optimizer."""
        models, opts = twins(lambda: mlp(width=192, n_hidden=6)), []
        for model, overlap in zip(models, (True, False)):
            opts.append(self.zenflow(model, **{**HYPER, "overlap": overlap, "model": model, **kwargs, "config": config(
                {"zenflow.update_interval": 1, "zenflow.publish_lag": 0, "zenflow.topk_ratio": 0.1, "zenflow.full_warm_up_rounds": 1})}))
            opts[-1].bind()
        opts[0].register_step_pre_hook(lambda *_: await_early(opts[0], i))  # backward of a larger model
        if not announces:
            opts[0]._binding.feed.begin = None
        schedules = [torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 1 / (1 + i)) for opt in opts]
        for i in range(self.N_STEPS):
            for model, opt, schedule in zip(models, opts, schedules):
                one_step(model, opt, i)
                schedule.step()
            final = [model.state_dict() for model in models] if i % 5 == 4 or i == self.N_STEPS - 1 else [{}, {}]
            for name in final[0]:
                self.assertTrue(torch.equal(final[0][name], final[1][name]), (i, name))
        stats = opts[0].stats()
        self.assertGreater(stats["early_taken"], 0) if n_lost == 0 else self.assertGreaterEqual(stats["early_lost"], n_lost)
        if n_lost == 0:
            self.assertEqual(stats["early_lost"], 0)
        self.assertEqual(opts[1].stats()["early_taken"], 0)
        return opts[0]

    def is_edited(self, opt, i):
        """Every other step's gradients, so that updates which began are in vain: the later the step, the longer it waits for one to
        begin, if none was in vain yet. (From three steps in a row on gradients would travel at step alone.)"""
        is_edited = i in range(4, self.N_STEPS, 2)
        if is_edited and opt.stats()["early_lost"] == 0:
            time.sleep(0.03 * 2 ** (i // 2 - 2))
        return is_edited

    def test_with_a_schedule_of_rates(self):
        """They are announced: that a step has others than the one before costs nothing."""
        self.pair(plain_step)

    def test_goes_on_behind_load_state_dict(self):
        """Which makes other param_groups."""
        def one_step(model, opt, i):
            plain_step(model, opt, i)
            if i == 5:
                opt.load_state_dict(opt.state_dict())

        self.pair(one_step)

    def test_what_is_not_announced_is_lost(self):
        self.pair(plain_step, n_lost=10, announces=False)

    def test_the_trainer_clips_now_and_then(self):
        """A final gradient is delivered again."""
        def one_step(model, opt, i):
            opt.zero_grad()
            loss_of(model, i).backward()
            if self.is_edited(opt, i):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            opt.step()

        opt = self.pair(one_step, n_lost=1)
        self.assertGreater(opt.stats()["early_taken"], 0)

    def test_written_past_the_version_counter(self):
        """Between backward and step, when updates have begun with what stood there before."""
        def one_step(model, opt, i):
            opt.zero_grad()
            loss_of(model, i).backward()
            if self.is_edited(opt, i):
                for p in model.parameters():
                    p.grad.data.mul_(0.5)
            opt.step()

        self.pair(one_step, n_lost=1)

    def test_the_plugin_clips(self):
        self.pair(plain_step, n_lost=1, clip_norm=0.02)

@EARLY
class Released(TorchTest):
    """release_gradients=True: .grad is None after backward, the weights are AdamW's."""

    def check(self, one_step, options, n_steps=20, make=mlp, **kwargs):
        ours, theirs, opt, reference = self.pair(make, with_model=True, **{"release_gradients": True, **options})
        opt.bind()  # else the first step's gradients travel at step()
        for i in range(n_steps):
            one_step(theirs, reference, i)
            one_step(ours, opt, i)
            self.assertFalse(any(p.grad is not None for p in ours.parameters()))
        self.assert_same(ours, theirs, flushed=(opt,))
        return opt

    def test_is_adamw(self):
        def one_step(model, opt, i):
            for k in range(2):
                loss_of(model, 2 * i + k).backward()
            if not isinstance(opt, torch.optim.AdamW):
                self.assertFalse(any(p.grad is not None for p in model.parameters()))
            opt.step()
            opt.zero_grad()

        for mode in BOTH:
            self.check(one_step, {"config": mode, "release_gradients": 2})
            self.check(lambda model, opt, i: (plain_step(model, opt, i), opt.zero_grad()), {"config": mode})
        opt = self.check(one_step, {"release_gradients": 2, "config": config({"zenflow.topk_ratio": 0.1, "zenflow.full_warm_up_rounds": 1,
                                                                              "zenflow.update_interval": 1, "zenflow.publish_lag": 0})})
        self.assertEqual(opt.stats()["early_lost"], 0)

    def test_memory_is_free_before_the_step(self):
        """As much as one bucket is held, and what the plugin has not read yet."""
        model, alive = mlp(width=128, n_hidden=8), []
        opt = self.zenflow(model, release_gradients=True)
        opt.bind()
        with mock.patch("zfplugin.torch.gradients.IN_FLIGHT_NBYTES", 1 << 17):
            for p in model.parameters():
                p.register_hook(lambda grad: alive.append(weakref.ref(grad.untyped_storage())) or grad)
            loss_of(model, 0).backward()
        feed = opt._binding.feed
        held = sum(nbytes for _, _, nbytes in feed.in_flight) + feed.bucket.pending_nbytes
        self.assertLessEqual(held, (1 << 17) + 128 * 128 * 4)
        self.assertGreater(sum(p.numel() * 4 for p in model.parameters()), 4 * held)
        opt.step()
        self.assertEqual((feed.in_flight, feed.lent), ([], []))

    def test_what_is_refused(self):
        model = mlp()
        for wrong in ({"overlap": False}, {"norm_group": object()}):
            with self.assertRaisesRegex(zfplugin.ArgumentError, "release_gradients=True"):
                self.zenflow(model, release_gradients=True, **wrong)
        opt = self.zenflow(model, release_gradients=True)
        plain_step(model, opt, 0)
        before = values_of(model)
        for _ in range(2):
            loss_of(model, 1).backward()
        with self.assertRaisesRegex(zfplugin.StateError, "came 2 times before step"):
            opt.step()
        opt.zero_grad()
        loss_of(model, 1).backward()
        model[2].weight.grad = torch.ones(24, 24)
        with self.assertRaisesRegex(zfplugin.StateError, '"2.weight" was given another .grad'):
            opt.step()
        self.assert_values(model, before)
        opt.zero_grad()
        opt._binding.discard()
        opt._binding.feed.forget_firings()
        plain_step(model, opt, 1)
        self.assertEqual(opt.stats()["steps"], 2)
