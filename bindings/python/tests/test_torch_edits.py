# SPDX-License-Identifier: Apache-2.0
"""Weights and gradients edited by hand in mid-window: nothing that is on its way is lost, and nothing is overlooked. The
gradients here do not depend on the weights, so that in any windows the weights after flush() are those of torch's AdamW."""
import copy
import logging

from support import FEW, HYPER, TorchTest, config, mlp, torch, train, twins
import zfplugin
from zfplugin.torch.binding import FLUSHED_STEPS


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


@torch.no_grad()
def put(model, values, moves_storage):
    for p, value in zip(model.parameters(), values):
        if moves_storage:
            p.data = value
        else:
            p.copy_(value)


class SwappedOutAndBack(EditTest):
    """Averages for an evaluation: other values are written over the weights, and the old ones written back."""

    def check(self, swap, n_steps=23, **kwargs):
        ours, theirs, opt, reference = self.pair(**kwargs)
        with self.unbound(), self.assertNoLogs("zfplugin", logging.INFO):
            for i in range(n_steps):
                drawn_step(theirs, reference, i)
                drawn_step(ours, opt, i)
                swap(ours, opt, i)
        self.assert_same(ours, theirs, flushed=(opt,))

    def test_a_state_is_saved_while_they_are_out(self):
        """The run goes on as if nothing had been; a run that loads it goes on from the average, as with torch."""
        for moves_storage in (False, True):
            with self.subTest(moves_storage=moves_storage):
                states = []

                def swap(model, opt, i, states=states, moves_storage=moves_storage):
                    kept = [p.data if moves_storage else p.detach().clone() for p in model.parameters()]
                    put(model, [torch.full_like(p, 0.25) for p in model.parameters()], moves_storage)
                    states.append(copy.deepcopy(opt.state_dict()))
                    put(model, kept, moves_storage)

                self.check(swap)
                resumed, same = mlp(seed=3), mlp(seed=3)
                opt = self.zenflow(resumed, **HYPER)
                opt.load_state_dict(states[-1])
                self.assert_values(resumed, [torch.full_like(p, 0.25) for p in resumed.parameters()])
                reference = torch.optim.AdamW(same.parameters(), **HYPER)
                moments = mlp()
                before = torch.optim.AdamW(moments.parameters(), **HYPER)
                train(moments, before, range(23), drawn_step)
                reference.load_state_dict(before.state_dict())
                with torch.no_grad():
                    for p in same.parameters():
                        p.fill_(0.25)
                self.train_both(resumed, same, opt, reference, range(23, 40), drawn_step)
                self.assert_same(resumed, same, flushed=(opt,))


class EditedByElement(EditTest):
    """After flush() an element counts; in open windows the whole parameter goes on from what it shows."""

    EDITS = {
        "row": lambda p, i: p.data[i % p.shape[0]].fill_(0.25),
        "no_grad": lambda p, i: p[i % p.shape[0]].copy_(torch.full_like(p[0], 0.5)),
        "pruned": lambda p, i: p.data.masked_fill_(torch.arange(p.numel()).reshape(p.shape) % 7 == i % 7, 0.0),
        "put back by assignment": lambda p, i: (was := p.data.clone(), p.data.add_(1.0), setattr(p, "data", was)),
        "moved": lambda p, i: setattr(p, "data", torch.cat([p.data[:1] * 0 + 0.25, p.data[1:]])),
    }

    def check(self, edit, edited=(7, 12, 30), n_steps=36, **kwargs):
        for every in (1, 2):
            ours, theirs = twins()
            with self.subTest(every=every):
                opt = self.zenflow(ours, **HYPER, config=config({**FEW, "zenflow.update_interval": 2 * every}), **kwargs)
                reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
                for i in range(n_steps):
                    drawn_step(theirs, reference, i)
                    drawn_step(ours, opt, i)
                    if i in edited:
                        opt.flush()
                        with torch.no_grad():
                            for model in (theirs, ours):
                                edit(model[2].weight, i)
                self.assert_same(ours, theirs, flushed=(opt,))

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
                opt.flush()
                plain.flush()
                ours[2].weight.data[3] = 0.25
            elif i > 9 + FLUSHED_STEPS or i < 9:
                continue
            else:
                plain.flush()
        for o in (opt, plain):
            o.flush()
        rows = [r for r in range(ours[2].weight.shape[0]) if r != 3]
        self.assertTrue(torch.equal(ours[2].weight[rows], theirs[2].weight[rows]))
        self.assertFalse(torch.equal(ours[2].weight[3], theirs[2].weight[3]))


class OddParameters(EditTest):
    def test_a_parameter_negated_lazily_is_refused(self):
        model = mlp()
        model[2].weight = torch.nn.Parameter(torch._neg_view(model[2].weight.data))
        with self.assertRaisesRegex(zfplugin.ParamError, '"2.weight".*resolve_neg'):
            self.zenflow(model).bind()


class Frozen(EditTest):
    """requires_grad_(False) in mid-window: what is on its way arrives with the next step; after it nothing moves."""

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
                    self.train_both(ours, theirs, opt, reference, [i], drawn_step)
                    for p, q in zip(ours[2].parameters(), theirs[2].parameters()):
                        self.assertLess((p - q).abs().max().item(), 2e-5, f"step {i}")
                for model in (ours, theirs):
                    self.freeze(model, is_frozen=False)
                self.train_both(ours, theirs, opt, reference, range(at + 10, at + 20), drawn_step)
                self.assert_same(ours, theirs, flushed=(opt,))

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
