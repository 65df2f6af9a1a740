# SPDX-License-Identifier: Apache-2.0
"""How gradients reach the plugin: accumulation, changes after backward, holes, ties, loss scaling; beside AdamW."""
from unittest import mock

from support import BOTH, HYPER, TorchTest, batch, loss_of, mlp, plain_step, torch
import zfplugin

EARLY = mock.patch("zfplugin.torch.bucket.BUCKET_PARAMS", 1)  # every gradient travels when its hook fires


class GradientTest(TorchTest):
    """Shipped early unless a test says otherwise."""

    def zenflow(self, trained, **kwargs):
        return super().zenflow(trained, **{"overlap": True, **kwargs})


class Accumulation(GradientTest):
    @staticmethod
    def accumulated(count):
        """A step of count(i) backwards."""
        def step(model, opt, i):
            opt.zero_grad()
            for part in range(count(i)):
                (loss_of(model, 10 * i + part) / count(i)).backward()
            opt.step()

        return step

    def test_1_and_3(self):
        for n in (1, 3):
            with self.subTest(n=n):
                opt = self.beside_adamw(self.accumulated(lambda i, n=n: n))
                first = sum(p.numel() * 4 for g in opt.param_groups for p in g["params"]) * (n - 1)
                # the number is learned in the first step that has hooks: nothing is lost from then on
                self.assertLessEqual(opt.stats()["lost_overlap_nbytes"], first)

    def test_without_overlap(self):
        """The default on a CPU, where it costs the training thread more than it hides."""
        for overlap in (None, False):
            opt = self.beside_adamw(self.accumulated(lambda i: 2), overlap=overlap)
            self.assertFalse(opt._binding.feed.is_shipping)
            self.assertEqual(opt.stats()["lost_overlap_nbytes"], 0)


class ChangedAfterBackward(GradientTest):
    def test_clip_grad_norm_by_the_host(self):
        def step(model, opt, i):
            opt.zero_grad()
            loss_of(model, i).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            opt.step()

        with EARLY, self.messages() as caught:
            opt = self.beside_adamw(step)
        self.assertIn("clip_norm", caught.output[0])
        self.assertEqual(len(caught.output), len(BOTH), "once per optimizer")
        n_bytes = sum(p.numel() * 4 for g in opt.param_groups for p in g["params"])
        self.assertLessEqual(opt.stats()["lost_overlap_nbytes"], 3 * n_bytes)  # then it stopped shipping early

    def test_clipping_that_changes_nothing_is_no_change(self):
        def step(model, opt, i):
            opt.zero_grad()
            loss_of(model, i).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6, foreach=i % 2 == 0)
            opt.step()

        with EARLY, self.assertNoLogs("zfplugin", "WARNING"):
            opt = self.beside_adamw(step)
        self.assertEqual(opt.stats()["lost_overlap_nbytes"], 0)
        self.assertTrue(opt._binding.feed.is_shipping)

    def test_many_backwards_without_a_step(self):
        """Each would keep a gradient: what is held stays within two sets of them."""
        model = mlp(width=200)
        opt = self.zenflow(model, **HYPER)
        plain_step(model, opt, 0)
        nbytes = sum(p.numel() * 4 for p in model.parameters())
        for i in range(40):
            model.zero_grad()
            loss_of(model, i).backward()
            held = {id(g): g.numel() * 4 for g in (of.held for of in opt._binding.feed.gradients) if g is not None}
            held |= {id(g): g.numel() * 4 for g, _ in opt._binding.feed.released}
            self.assertLessEqual(sum(held.values()), 2 * nbytes)
        plain_step(model, opt, 1)
        self.assertFalse(opt._binding.feed.released)


class Holes(GradientTest):
    def test_zero_size_and_scalar_parameters(self):
        class Odd(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.net = mlp()
                self.scale = torch.nn.Parameter(torch.tensor(1.5))
                self.empty = torch.nn.Parameter(torch.zeros(0, 4))
                self.conv = torch.nn.Parameter(torch.randn(3, 2, 2, 2))

            def forward(self, x):
                return self.net(x) * self.scale + self.empty.sum() + self.conv.pow(2).sum(0).mean()

        self.beside_adamw(plain_step, make=Odd)


class Ties(GradientTest):
    def test_two_parameters_on_one_storage(self):
        """torch would update the storage twice; the gradient of what is one weight is the sum."""
        class Shared(torch.nn.Module):
            def __init__(self, is_split):
                super().__init__()
                torch.manual_seed(0)
                self.a = torch.nn.Linear(8, 4)
                self.b = torch.nn.Linear(8, 4)
                self.b.weight = torch.nn.Parameter(self.a.weight.data) if is_split else self.a.weight

            def forward(self, x):
                return self.a(x) * torch.sigmoid(self.b(x))

        for mode in BOTH:
            ours, theirs = Shared(True), Shared(False)
            self.assertIsNot(ours.a.weight, ours.b.weight)
            opt = self.zenflow(ours, **HYPER, config=mode)
            reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
            for i in range(40):
                plain_step(theirs, reference, i)
                plain_step(ours, opt, i)
                if i % 10 == 5:  # only one of the two has a gradient
                    for model, o in ((theirs, reference), (ours, opt)):
                        o.zero_grad()
                        model.a(batch(i)[0]).pow(2).mean().backward()
                        o.step()
            expected = dict(theirs.named_parameters(remove_duplicate=False))
            for name, p in ours.named_parameters():
                self.assertLess((p - expected[name]).abs().max().item(), 2e-5, name)
            self.assertTrue(torch.equal(opt.export()["a.weight"], opt.export()["b.weight"]))


class NotFinite(GradientTest):
    """Without a GradScaler. (With one: usage.py.)"""

    def test_the_plugin_skips_and_says_so(self):
        ours, theirs, opt, reference = self.pair()
        self.train_both(ours, theirs, opt, reference, [0], plain_step)
        opt.zero_grad()
        loss_of(ours, 1).backward()
        ours[2].weight.grad[0, 0] = float("nan")
        with self.messages() as caught:
            opt.step()
        self.assertIn('"2.weight"', caught.output[-1])
        self.assertFalse(opt.last_report.applied)
        self.assert_same(ours, theirs)
        self.train_both(ours, theirs, opt, reference, [2], plain_step)
        self.assert_same(ours, theirs)
