# SPDX-License-Identifier: Apache-2.0
"""precision(): public reports of runs that lost accuracy in silence, rebuilt, are found; what is right is left alone."""
import itertools
import types

import support
from support import TorchTest, mlp, torch
from torch import nn
from zfplugin.torch import precision


def trained(model, optimizer, n_steps=3, dtype=torch.float32):
    for step in range(n_steps):
        optimizer.zero_grad()
        support.loss_of(model, step, dtype).backward()
        optimizer.step()
    return precision(model, optimizer)


class EightBits(torch.optim.AdamW):
    """Its second moment as bitsandbytes keeps it."""

    def step(self, closure=None):
        super().step()
        for state in self.state.values():
            state["state2"] = state["exp_avg_sq"].new_zeros(state["exp_avg_sq"].shape, dtype=torch.uint8)


class Found(TorchTest):
    def assert_said(self, lines, *texts):
        for text in texts:
            self.assertTrue(any(text in line for line in lines), (text, lines))

    def test_shards_of_16_bits_without_masters(self):
        """AReaL#1292: bf16 weights in torch's AdamW at a rate of fine-tuning."""
        model = mlp(dtype=torch.bfloat16)
        lines = trained(model, torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0), dtype=torch.bfloat16)
        self.assert_said(lines, "most weights cannot move", '"0.weight"', "cannot decay at beta2 = 0.999")

    def test_norms_that_stand_at_one(self):
        """Model-Optimizer#2322: norms exactly 1.0 at step 56,000."""
        model = mlp(dtype=torch.bfloat16)
        lines = trained(model, torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.9)), 8, dtype=torch.bfloat16)
        self.assert_said(lines, "still stands at its first values after 8 steps")
        self.assertTrue(all('"3.weight"' in line for line in lines if "a norm" in line))

    def test_decay_that_does_nothing(self):
        """OneTrainer#996."""
        model = mlp(dtype=torch.bfloat16)
        self.assert_said(trained(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3), dtype=torch.bfloat16), "weight_decay does nothing")

    def test_a_count_that_stops(self):
        """DeepSpeed#8496: a counter of steps in bf16 stops at 256."""
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters())
        trained(model, optimizer)
        for state in optimizer.state.values():
            state["step"] = state["step"].bfloat16()
        self.assert_said(precision(model, optimizer), "it stops at 256")
        optimizer.param_groups[0]["betas"] = (0.9, torch.tensor(0.999, dtype=torch.bfloat16))
        self.assert_said(precision(model, optimizer), "a beta is torch.bfloat16, which cannot hold it: it is 1")

    def test_second_moments_in_few_bits(self):
        model = mlp()
        self.assert_said(trained(model, EightBits(model.parameters())), "kept in few bits")
        other = type("OptimState8bit", (torch.Tensor,), {})
        optimizer = torch.optim.AdamW(model.parameters())
        trained(model, optimizer)
        for state in optimizer.state.values():
            state["exp_avg_sq"] = state["exp_avg_sq"].as_subclass(other)
        self.assert_said(precision(model, optimizer), "kept in few bits")


class LeftAlone(TorchTest):
    def test_right_patterns(self):
        """More than 30 of them."""
        n, makers = 0, [lambda params, kind=kind: getattr(torch.optim, kind)(params, lr=1e-3)
                        for kind in ("AdamW", "Adam", "SGD", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD")]
        for make, n_steps in itertools.product(makers, (0, 3)):
            model = mlp()
            self.assertEqual(trained(model, make(model.parameters()), n_steps), [], (make, n_steps))
            n += 1
        for dtype, rule, n_steps in itertools.product((torch.float32, torch.bfloat16, torch.float16), ("adamw", "sgd"), (0, 3)):
            model = mlp(dtype=dtype)
            self.assertEqual(trained(model, self.zenflow(model, lr=1e-6, rule=rule), n_steps, dtype), [], (dtype, rule))
            n += 1
        for dtype, lr in ((torch.bfloat16, 0.5), (torch.float16, 0.5)):  # steps that 16 bits can tell
            model = nn.Linear(8, 4).to(dtype)
            self.assertEqual(trained(model, torch.optim.SGD(model.parameters(), lr=lr), dtype=dtype), [])
            n += 1
        model = mlp(dtype=torch.bfloat16).requires_grad_(False)  # frozen, with a part in fp32 that is trained
        model[-1] = nn.Linear(24, 4, dtype=torch.bfloat16).float()
        hidden = types.MethodType(lambda layer, x: nn.functional.linear(x.float(), layer.weight, layer.bias), model[-1])
        model[-1].forward = hidden
        self.assertEqual(trained(model, torch.optim.AdamW(model[-1].parameters()), dtype=torch.bfloat16), [])
        self.assertGreaterEqual(n + 1, 30)

    def test_masters_in_the_optimizers_state(self):
        model = mlp(dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
        trained(model, optimizer, dtype=torch.bfloat16)
        for p, state in optimizer.state.items():
            state.update(exp_avg_sq=state["exp_avg_sq"].float(), master=p.detach().float() * (1 + 1e-4))
        self.assertEqual(precision(model, optimizer), [])


class OfOurOwn(TorchTest):
    def test_weights_that_stand_while_their_masters_move(self):
        """In turn, where metrics() asked before the step; each counted as all weights and exports before and after it have it."""
        for options in ({}, {"fetch": True}):
            for dtype, least in ((torch.bfloat16, 0.9), (torch.float32, None)):
                model, found = mlp(dtype=dtype), {}
                opt = self.zenflow(model, model=model, lr=1e-6, **options)
                self.assertNotIn("moved_masters", opt.metrics())
                for step in range(2 + len(list(model.parameters()))):
                    opt.zero_grad()
                    support.loss_of(model, step, dtype).backward()
                    opt.synchronize()
                    before = opt.export() if step else None, support.values_of(model)
                    if step > 1:
                        opt.metrics()
                    opt.step()
                    opt.synchronize()
                    after = opt.export()
                    for (name, p), was in zip(model.named_parameters(), before[1] if step > 1 else ()):
                        if name == next(reversed(opt._watched), None):
                            has_moved = after[name] != before[0][name]
                            found[name] = int((has_moved & (p == was)).sum()), int(has_moved.sum())
                metrics = opt.metrics()
                self.assertEqual("moved_masters" in metrics, least is not None)
                if least is not None:
                    self.assertEqual(set(found), {name for name, _ in model.named_parameters()})
                    self.assertEqual((metrics["still_weights"], metrics["moved_masters"]), tuple(map(sum, zip(*found.values()))))
                    self.assertGreater(metrics["still_weights"], least * metrics["moved_masters"])
