# SPDX-License-Identifier: Apache-2.0
"""Model features that change how gradients come: adapters, Conv1D, checkpointing, compilation, attention, autocast."""
import unittest
from unittest import mock

from support import HYPER, TorchTest, batch, mlp, plain_step, torch, twins
import zfplugin

if torch:
    from torch import nn
    from torch.utils.checkpoint import checkpoint


class Models(TorchTest):

    def test_a_module_used_twice_under_reentrant_checkpoints(self):
        """Its hook fires once per use, each time with a larger total."""
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.first, self.core, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

            def forward(self, x):
                x = torch.tanh(self.first(x))
                for _ in range(3):
                    x = torch.tanh(checkpoint(self.core, x, use_reentrant=True))
                return self.last(x)

        self.beside_adamw(plain_step, make=Twice)

    @staticmethod
    def longest_gap(seconds):
        """In place of what this machine takes between two gradients of one node, which other processes stretch."""
        return mock.patch("zfplugin.torch.gradients._burst_gap", lambda: seconds)

    def test_compiled_as_a_whole_says_once_that_nothing_overlaps(self):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(192, 192), nn.GELU()) for _ in range(12)))
        opt = self.zenflow(model, overlap=True)
        fast = torch.compile(model, backend="aot_eager")
        with self.messages() as caught, self.longest_gap(1.0):
            for i in range(30):
                opt.zero_grad()
                fast(torch.randn(64, 192)).pow(2).mean().backward()
                opt.step()
        self.assertEqual(len([line for line in caught.output if "at once" in line]), 1, caught.output)

    def test_an_eager_model_is_not_accused_of_it(self):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(192, 192), nn.GELU()) for _ in range(12)))
        opt = self.zenflow(model, overlap=True)
        with self.assertNoLogs("zfplugin", "WARNING"), self.longest_gap(1e-7):
            for i in range(35):
                opt.zero_grad()
                model(torch.randn(64, 192)).pow(2).mean().backward()
                opt.step()

    def test_a_training_step_compiled_as_a_whole(self):
        """Backward and step() run outside of the graph."""
        ours, theirs = twins()
        opt, reference = self.zenflow(ours, **HYPER), torch.optim.AdamW(theirs.parameters(), **HYPER)

        def one_step(x, y):
            opt.zero_grad()
            loss = nn.functional.mse_loss(ours(x), y)
            loss.backward()
            opt.step()
            return loss

        fast = torch.compile(one_step, backend="eager")
        for i in range(12):
            plain_step(theirs, reference, i)
            fast(*batch(i))
        self.assert_same(ours, theirs)

    def test_compiled_with_fetch(self):
        """torch.compile does not see hooks that come after it, and traces others: then step() waits."""
        for is_late in (False, True):
            ours, theirs = twins()
            fast = torch.compile(ours, backend="eager", fullgraph=True)
            if is_late:
                fast(batch(0)[0])
            opt = self.zenflow(ours, **HYPER, model=ours, fetch=True)
            reference = torch.optim.AdamW(theirs.parameters(), **HYPER)
            for i in range(40):
                plain_step(theirs, reference, i)
                opt.zero_grad()
                x, y = batch(i)
                nn.functional.mse_loss(fast(x), y).backward()
                opt.step()
            opt.synchronize()
            self.assert_same(ours, theirs)
            self.assertEqual(opt._fetcher.early, set())  # nobody read anything but the model

    def test_stacked_layers_are_many_matrices(self):
        class Stacked(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.layers = nn.Parameter(torch.randn(5, 8, 8) * 0.3)
                self.last = nn.Linear(8, 4)

            def forward(self, x):
                for weight in self.layers:
                    x = x + torch.tanh(x @ weight.t())
                return self.last(x)

        opt = self.beside_adamw(plain_step, make=Stacked, n_batch_axes=lambda name, p: 1 if name == "layers" else 0)
        self.assertEqual({d.name: d.n_batch_axes for d in opt._binding.table.decls}["layers"], 1)


class Adapters(TorchTest):
    def test_peft(self):
        try:
            import peft
        except ImportError:
            self.skipTest("peft is not installed")

        def make():
            lora = peft.LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=True)
            torch.manual_seed(1)
            return peft.get_peft_model(mlp(), lora)

        opt = self.beside_adamw(plain_step, make=make)
        self.assertTrue(all("lora_" in name for name in opt.export()))
        self.assertEqual(opt.layout["n_elems"], sum(values.numel() for values in opt.export().values()))  # what is frozen takes no state


class Conv1D(TorchTest):
    """Weights kept as [in, out]: a channel is a row."""

    def make(self):
        class Conv1D(nn.Module):  # as in GPT-2
            def __init__(self, n_out, n_in):
                super().__init__()
                self.weight = nn.Parameter(torch.randn(n_in, n_out) * 0.2)
                self.bias = nn.Parameter(torch.zeros(n_out))

            def forward(self, x):
                return x @ self.weight + self.bias

        torch.manual_seed(0)
        return nn.Sequential(Conv1D(24, 8), nn.GELU(), Conv1D(4, 24))

    def test_rows_are_channels_where_the_model_is_known(self):
        model = self.make()
        opts = {}
        for key, kwargs in (("model", {"model": model}), ("callback", {
                "channels": lambda name, p: "rows" if p.dim() == 2 else None}), ("none", {})):
            opts[key] = self.zenflow(model, **kwargs)
            opts[key].bind()
        declared = {key: {d.name: d.channels for d in opt._binding.table.decls} for key, opt in opts.items()}
        self.assertEqual(declared["model"], {"0.weight": "rows", "0.bias": "columns", "2.weight": "rows", "2.bias": "columns"})
        self.assertEqual(declared["callback"], declared["model"])
        self.assertEqual(set(declared["none"].values()), {"columns"})

    def test_a_wrong_answer_is_refused(self):
        opt = self.zenflow(self.make(), channels=lambda name, p: "diagonals")
        with self.assertRaises(zfplugin.ArgumentError):
            opt.bind()

    def test_gpt2_itself(self):
        try:
            from transformers import GPT2Config, GPT2LMHeadModel
        except ImportError:
            self.skipTest("transformers is not installed")

        def make():
            torch.manual_seed(0)
            return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16,
                                              resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))

        def step(model, opt, i):
            ids = torch.randint(0, 32, (4, 12), generator=torch.Generator().manual_seed(i))
            opt.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            opt.step()

        self.beside_adamw(step, 20, make)
        model = make()
        opt = self.zenflow(model, model=model)
        opt.bind()
        rows = {d.name for d in opt._binding.table.decls if d.channels == "rows"}
        self.assertEqual(len(rows), 8)
        self.assertTrue(all("c_" in name and name.endswith("weight") for name in rows), rows)


if __name__ == "__main__":
    unittest.main()
