# SPDX-License-Identifier: Apache-2.0
"""Weights and gradients edited by hand in mid-window: nothing that is on its way is lost, and nothing is overlooked. The
gradients here do not depend on the weights, so that in any windows the weights after flush() are those of torch's AdamW."""
import copy
import logging
import unittest
from unittest import mock

from support import FEW, HYPER, SYNCHRONOUS, TorchTest, config, loss_of, mlp, torch, train, twins, unwatched
import zfplugin
from zfplugin.torch.binding import FLUSHED_STEPS

BIG = {"width": 256}  # its largest weights have 262,144 bytes


def drawn(model, seed):
    """Gradients that do not depend on the weights, delivered through a backward, so that hooks ship them early."""
    generator = torch.Generator().manual_seed(seed)
    loss = sum((p * torch.randn(p.shape, generator=generator)).sum() for p in model.parameters() if p.requires_grad)
    for p in model.parameters():
        p.grad = None
    loss.backward()


def drawn_step(model, opt, i):
    drawn(model, i)
    opt.step()


class EditTest(TorchTest):
    def zenflow(self, trained, **kwargs):
        return super().zenflow(trained, **{"overlap": True, "config": config(FEW), **kwargs})


class SwappedOutAndBack(EditTest):
    """Averages for an evaluation: other values are written over the weights, and the old ones written back."""

    def check(self, swap, n_steps=23, **kwargs):
        ours, theirs, opt, reference = self.pair(**kwargs)
        with self.assertNoLogs("zfplugin", logging.INFO):
            for i in range(n_steps):
                drawn_step(theirs, reference, i)
                drawn_step(ours, opt, i)
                swap(ours, opt, i)
        opt.flush()
        self.assert_same(ours, theirs)

    def test_a_state_is_saved_while_they_are_out(self):
        """The run goes on as if nothing had been; a run that loads it goes on from the average, as with torch."""
        for moves_storage in (False, True):
            with self.subTest(moves_storage=moves_storage):
                states = []

                def swap(model, opt, i, states=states, moves_storage=moves_storage):
                    kept = [p.data if moves_storage else p.detach().clone() for p in model.parameters()]
                    average = [torch.full_like(p, 0.25) for p in model.parameters()]
                    with torch.no_grad():
                        for p, values in zip(model.parameters(), average):
                            if moves_storage:
                                p.data = values
                            else:
                                p.copy_(values)
                        states.append(copy.deepcopy(opt.state_dict()))
                        for p, values in zip(model.parameters(), kept):
                            if moves_storage:
                                p.data = values
                            else:
                                p.copy_(values)

                self.check(swap)
                resumed, same = mlp(seed=3), mlp(seed=3)
                opt = self.zenflow(resumed, **HYPER)
                opt.load_state_dict(states[-1])
                for p in resumed.parameters():
                    self.assertTrue(torch.equal(p, torch.full_like(p, 0.25)))
                reference = torch.optim.AdamW(same.parameters(), **HYPER)
                moments = mlp()
                before = torch.optim.AdamW(moments.parameters(), **HYPER)
                train(moments, before, range(23), drawn_step)
                reference.load_state_dict(before.state_dict())
                with torch.no_grad():
                    for p in same.parameters():
                        p.fill_(0.25)
                self.train_both(resumed, same, opt, reference, range(23, 40), drawn_step)
                opt.flush()
                self.assert_same(resumed, same)


class WrittenThroughData(EditTest):
    """No version counter moves. Any change of a weight or of a gradient that was shipped early counts."""

    EDITS = {
        "row": lambda t, i: t[i % t.shape[0]].zero_(),
        "column": lambda t, i: t[:, i % t.shape[1]].zero_(),
        "element": lambda t, i: t[i % t.shape[0], i % t.shape[1]].fill_(2 + i),
        "rows exchanged": lambda t, i: t.copy_(t.flip(0)),
        "signs": lambda t, i: t.neg_(),
        "numpy": lambda t, i: t.numpy().__setitem__((slice(3, 5), slice(1, 2)), 7 + i),
    }

    def test_weights(self):
        """A narrow matrix and a wide one; each edit once, long after the one before."""
        for name, edit in self.EDITS.items():
            with self.subTest(name):
                ours, theirs, opt, reference = self.pair(config=config(SYNCHRONOUS), make=lambda: torch.nn.Sequential(
                    torch.nn.Linear(8, 500), torch.nn.Linear(500, 256), torch.nn.Linear(256, 4)))
                for i in range(12):
                    for model, o in ((theirs, reference), (ours, opt)):
                        if i % 4 == 3:
                            for layer in model:
                                edit(layer.weight.data, i)
                        drawn_step(model, o, i)
                self.assert_same(ours, theirs)

    def test_gradients(self):
        def step(model, opt, i, edit):
            drawn(model, i)
            if hasattr(opt, "drain") and i:
                opt.drain()  # what was shipped has been read
            if i % 2:
                edit(model[5].weight.grad.data, i)  # one of many, and then not again for a step
            opt.step()

        for name, edit in self.EDITS.items():
            with self.subTest(name), mock.patch("zfplugin.torch.gradients.BUCKET_PARAMS", 1):
                ours, theirs, opt, reference = self.pair(config=config(SYNCHRONOUS), make=lambda: mlp(**BIG))
                for i in range(8):
                    step(theirs, reference, i, edit)
                    step(ours, opt, i, edit)
                self.assert_same(ours, theirs)


class EditedByElement(EditTest):
    """What nobody wrote keeps what open windows, and values that wait to be fetched, have in store for it."""

    EDITS = {
        "row": lambda p, i: p.data[i % p.shape[0]].fill_(0.25),
        "no_grad": lambda p, i: p[i % p.shape[0]].copy_(torch.full_like(p[0], 0.5)),
        "pruned": lambda p, i: p.data.masked_fill_(torch.arange(p.numel()).reshape(p.shape) % 7 == i % 7, 0.0),
        "moved": lambda p, i: setattr(p, "data", torch.cat([p.data[:1] * 0 + 0.25, p.data[1:]])),
    }

    def check(self, edit, edited=(7, 12, 30), n_steps=36, **kwargs):
        for has_model in (False, True):
            for every in (1, 2):
                ours, theirs = twins()
                with self.subTest(has_model=has_model, every=every):
                    opt = self.zenflow(ours, **HYPER, config=config({**FEW, "zenflow.update_interval": 2 * every}),
                                       model=ours if has_model else None, **kwargs)
                    if has_model:
                        unwatched(opt)
                    reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
                    for i in range(n_steps):
                        drawn_step(theirs, reference, i)
                        drawn_step(ours, opt, i)
                        if i in edited:
                            with torch.no_grad():
                                for model in (theirs, ours):
                                    edit(model[2].weight, i)
                    opt.flush()
                    self.assert_same(ours, theirs)

    def test_before_the_next_step(self):
        for name, edit in self.EDITS.items():
            with self.subTest(name):
                self.check(edit)

    def test_masters_of_16_bits_keep_what_rounding_hides(self):
        """Rows that were not written end with the bits of a run without the edit."""
        ours, theirs = twins(dtype=torch.bfloat16)
        opt, plain = (self.zenflow(model, **HYPER) for model in (ours, theirs))
        for i in range(30):
            drawn_step(ours, opt, i)
            drawn_step(theirs, plain, i)
            if i == 9:
                ours[2].weight.data[3] = 0.25
                plain.flush()  # windows end alike
            elif i > 9 + FLUSHED_STEPS or i < 9:
                continue
            else:
                plain.flush()
        for o in (opt, plain):
            o.flush()
        rows = [r for r in range(ours[2].weight.shape[0]) if r != 3]
        self.assertTrue(torch.equal(ours[2].weight[rows], theirs[2].weight[rows]))
        self.assertFalse(torch.equal(ours[2].weight[3], theirs[2].weight[3]))


class OddGradients(EditTest):
    """As torch's AdamW takes them."""

    def check(self, edit):
        def one_step(model, opt, i):
            opt.zero_grad()
            loss_of(model, i).backward()
            edit(model, i)
            opt.step()

        with mock.patch("zfplugin.torch.gradients.BUCKET_PARAMS", 1):
            self.beside_adamw(one_step, 12, lambda: mlp(**BIG), 1e-4)

    def test_negated_lazily(self):
        """torch keeps the sign beside the memory (imaginary parts of conjugates)."""
        def edit(model, i):
            model[2].weight.grad = torch._neg_view(model[2].weight.grad)
            self.assertTrue(model[2].weight.grad.is_neg())

        self.check(edit)

    def test_expanded_and_shared(self):
        def edit(model, i):
            model[2].bias.grad = torch.full((1,), 0.1 * i).expand_as(model[2].bias)
            model[5].weight.grad = model[2].weight.grad

        self.check(edit)

    def test_a_parameter_negated_lazily_is_refused(self):
        model = mlp()
        model[2].weight = torch.nn.Parameter(torch._neg_view(model[2].weight.data))
        with self.assertRaisesRegex(zfplugin.ParamError, '"2.weight".*resolve_neg'):
            self.zenflow(model).bind()


class Frozen(EditTest):
    """requires_grad_(False) in mid-window: what is on its way arrives with the next step; after it nothing moves."""

    def values(self, model):
        return [p.detach().clone() for p in model.parameters()]

    def freeze(self, model, layer=2, is_frozen=True):
        for p in model[layer].parameters():
            p.requires_grad_(not is_frozen)

    def test_it_stands_still_after_the_next_step_at_adamws_value(self):
        for at in range(5, 13):
            with self.subTest(at=at):
                ours, theirs, opt, reference = self.pair()
                self.train_both(ours, theirs, opt, reference, range(at), drawn_step)
                for model in (ours, theirs):
                    self.freeze(model)
                for i in range(at, at + 10):
                    drawn_step(theirs, reference, i)
                    drawn_step(ours, opt, i)
                    for p, q in zip(ours[2].parameters(), theirs[2].parameters()):
                        self.assertLess((p - q).abs().max().item(), 2e-5, f"step {i}")
                for model in (ours, theirs):
                    self.freeze(model, is_frozen=False)
                self.train_both(ours, theirs, opt, reference, range(at + 10, at + 20), drawn_step)
                opt.flush()
                self.assert_same(ours, theirs)

    def test_a_run_resumes_with_it_frozen_from_the_start(self):
        """To the bit, unfrozen again later too, whether the state was saved before or after the freeze's first step."""
        for n_frozen in (0, 3):
            ours, _, opt, _ = self.pair()
            for i in range(9 + n_frozen):
                if i == 9:
                    self.freeze(ours)
                drawn_step(ours, opt, i)
            self.freeze(ours)
            other = mlp(seed=3)
            self.freeze(other)
            resumed = self.zenflow(other, **HYPER)
            resumed.load_state_dict(opt.state_dict())
            for i in range(9 + n_frozen, 25):
                for model, o in ((ours, opt), (other, resumed)):
                    if i == 17:
                        self.freeze(model, is_frozen=False)
                    drawn_step(model, o, i)
                    self.assert_same(other, ours, bound=0) if o is resumed else None


if __name__ == "__main__":
    unittest.main()
