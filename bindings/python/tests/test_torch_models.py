# SPDX-License-Identifier: Apache-2.0
"""Model features that change how gradients come: adapters, Conv1D, checkpointing, compilation, attention, autocast."""

from support import HYPER, TorchTest, batch, mlp, needs, plain_step, torch, twins
import zfplugin

from torch import nn


class Models(TorchTest):
    def test_compiled_with_fetch(self):
        """torch.compile does not see hooks that come after it: then step() waits. (Those that were there it traces: usage_weights.py.)"""
        ours, theirs = twins()
        fast = torch.compile(ours, backend="eager", fullgraph=True)
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

        opt = self.beside_adamw(plain_step, make=Stacked, declare=lambda name, p: {"n_batch_axes": 1} if name == "layers" else None)
        self.assertEqual({d.name: d.n_batch_axes for d in opt._binding.table.decls}["layers"], 1)

    @needs("transformers")
    def test_fused_experts_are_many_matrices(self):
        """Transformers' tensors of three axes: seen by the module, or without model= by the name, and said; AdamW's weights."""
        import transformers
        tiny = {"vocab_size": 33, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                "num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
        ids = torch.arange(32).reshape(2, 16)

        def one_step(model, opt, step):
            model(input_ids=ids + step % 2, labels=ids).loss.backward()
            opt.step()
            opt.zero_grad()

        for family, axis in (("Mixtral", "columns"), ("GptOss", "rows")):
            for sees in (True, False):
                def make(family=family):
                    torch.manual_seed(0)
                    return getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**tiny))

                ours, theirs, opt, reference = self.pair(make, with_model=sees)
                with self.messages("INFO") as said:
                    opt.bind()
                self.assertIn('counts experts', "\n".join(said.output))
                self.assertEqual({(d.name.rpartition(".")[2], d.channels, d.n_batch_axes) for d in opt._binding.table.decls if d.n_batch_axes},
                                 {(name, axis if sees else "columns", 1) for name in ("gate_up_proj", "down_proj")})
                self.train_both(ours, theirs, opt, reference, 5, one_step)
                self.assert_same(ours, theirs)
        opt = self.zenflow(make(), declare=lambda name, p: {"n_batch_axes": 0})
        opt.bind()
        self.assertFalse(any(d.n_batch_axes for d in opt._binding.table.decls))

    def test_what_is_not_experts_is_one_matrix(self):
        model = nn.ModuleDict({"experts": nn.Conv1d(4, 4, 3)})
        model.register_parameter("stacked", nn.Parameter(torch.ones(2, 3, 4)))
        opt = self.zenflow(model, model=model)
        opt.bind()
        self.assertFalse(any(d.n_batch_axes for d in opt._binding.table.decls))


class Adapters(TorchTest):
    @needs("peft")
    def test_peft(self):
        import peft

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
                "declare": lambda name, p: {"channels": "rows"} if p.dim() == 2 else None}), ("none", {})):
            opts[key] = self.zenflow(model, **kwargs)
            opts[key].bind()
        declared = {key: {d.name: d.channels for d in opt._binding.table.decls} for key, opt in opts.items()}
        self.assertEqual(declared["model"], {"0.weight": "rows", "0.bias": "columns", "2.weight": "rows", "2.bias": "columns"})
        self.assertEqual(declared["callback"], declared["model"])
        self.assertEqual(set(declared["none"].values()), {"columns"})

    def test_a_wrong_answer_is_refused(self):
        opt = self.zenflow(self.make(), declare=lambda name, p: {"channels": "diagonals"})
        with self.assertRaisesRegex(zfplugin.ArgumentError, "channels = 'diagonals'; allowed"):
            opt.bind()
        with self.assertRaisesRegex(zfplugin.ArgumentError, r"declare\(\"0.weight\"\) gave 'channel'; allowed: channels, "):
            self.zenflow(self.make(), declare=lambda name, p: {"channel": "rows"})

    @needs("transformers")
    def test_gpt2_itself(self):
        """(It trains as with AdamW: test_readme.py.)"""
        from tiny import model_of

        model = model_of("gpt2")
        opt = self.zenflow(model, model=model)
        opt.bind()
        rows = {d.name for d in opt._binding.table.decls if d.channels == "rows"}
        self.assertEqual(len(rows), 4 * model.config.n_layer)
        self.assertTrue(all("c_" in name and name.endswith("weight") for name in rows), rows)
