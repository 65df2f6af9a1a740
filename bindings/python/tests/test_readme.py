# SPDX-License-Identifier: Apache-2.0
"""The snippets of README.md, "In your trainer", as they stand there: they run, they learn, and they end flushed; in the synchronous mode
they end where torch's AdamW does in the same trainer. And every line of docs/start.md but its installation."""
import contextlib
import gc
import io
import json
import logging
import os
import re
import subprocess
import tempfile
import warnings
from pathlib import Path
from unittest import mock

from support import HERE, SYNCHRONOUS, TorchTest, config, needs, torch

TEXT = (HERE.parent / "README.md").read_text(encoding="utf-8")
PART = TEXT[TEXT.index("## In your trainer"):TEXT.index("## Behaviour")]
SNIPPETS = re.findall(r"^([A-Z][^\n]*):\n```python\n(.*?)```", PART, re.S | re.M)
WINDOWS = config({"zenflow.mode": "windows", "zenflow.topk_ratio": 0.1, "zenflow.full_warm_up_rounds": 2})  # so that something is on its way
BOUND = 2e-4  # of |weight - AdamW's|: torch rounds in another order


def reference():
    """torch's AdamW in the place of a ZenFlow."""
    from zfplugin.torch.parameters import split_names

    class Reference(torch.optim.AdamW):
        def __init__(self, params, model=None, config=None, **hyper):
            super().__init__(split_names(params)[0], **hyper)
            self.flush, self.attach, self.stats, self.clip_norm = (lambda: None), (lambda module: None), dict, 0.0

        def step(self, closure=None):
            loss = closure() if closure is not None else None
            if self.clip_norm:  # a callback took it over
                torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.clip_norm)
            super().step()
            return loss

    return Reference


@needs("torch", "transformers")
class Snippets(TorchTest):
    def run_snippet(self, words, settings, make, family, is_reference=False):
        """The model that was trained. make: what more the snippet names, or has in place of what all have."""
        import transformers
        import zfplugin.torch
        import zfplugin.torch.trainer
        from tiny import Language, model_of

        (code,) = [code for title, code in SNIPPETS if title.startswith(words)]
        code = code.replace("lr=3e-4", f"lr=3e-3, config={settings!r}")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        transformers.utils.logging.set_verbosity_error()
        model, dataset = model_of(family), Language(192)
        home = os.getcwd()
        self.addCleanup(os.chdir, home)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.ExitStack() as patches, \
                contextlib.redirect_stdout(io.StringIO()), self.assertNoLogs("zfplugin", logging.WARNING):
            warnings.simplefilter("ignore")
            os.chdir(folder)  # where trainers write
            names = {"model": model, "dataset": dataset, "loader": torch.utils.data.DataLoader(dataset, batch_size=16),
                     "args": transformers.TrainingArguments(output_dir=folder, max_steps=9, use_cpu=True, report_to=[], disable_tqdm=True,
                                                            gradient_accumulation_steps=2, max_grad_norm=1.0), **make()}
            if is_reference:
                stand_in = reference()
                for place in ("zfplugin.torch", "zfplugin.torch.optimizer", "zfplugin.torch.trainer"):
                    patches.enter_context(mock.patch(f"{place}.ZenFlow", stand_in))
            else:
                flush = zfplugin.torch.ZenFlow.flush
                flushed = patches.enter_context(mock.patch.object(zfplugin.torch.ZenFlow, "flush", autospec=True, side_effect=flush))
            before = self.loss(model, dataset)
            exec(compile(code, f"README.md: {words}", "exec"), names)  # pylint: disable=exec-used
            self.assertTrue(is_reference or flushed.called)
            self.assertLess(self.loss(model, dataset), before - 0.1, "it does not learn")
            names.clear()  # an optimizer that was not flushed says so now
            gc.collect()
            os.chdir(home)
        return model

    @staticmethod
    def loss(model, dataset):
        with torch.no_grad():
            return model(input_ids=dataset.ids[:32], labels=dataset.ids[:32]).loss.item()

    def check(self, words, make=dict, family="gpt2"):
        self.run_snippet(words, WINDOWS, make, family)
        ours, theirs = (self.run_snippet(words, config(SYNCHRONOUS), make, family, is_reference) for is_reference in (False, True))
        self.assert_same(ours, theirs, BOUND)

    def test_all_are_run(self):
        self.assertEqual([title.split(".")[0] for title, _ in SNIPPETS],
                         ["A loop of your own", "Hugging Face's Trainer, which makes the optimizer and its decay groups itself (`weight_decay` of its arguments; none "
                          "for biases and norms)", "A Trainer that is given an optimizer, here without weight decay, which is the Trainer's default", "TRL's trainers hand the same on", "Accelerate", "Lightning"])

    def test_loop(self):
        for family in ("gpt2", "bert", "llama"):
            with self.subTest(family):
                self.check("A loop", family=family)

    @needs("accelerate")
    def test_hugging_face(self):
        self.check("Hugging Face")

    @needs("accelerate")
    def test_a_trainer_that_is_given_it(self):
        self.check("A Trainer")

    @needs("trl")
    def test_trl(self):
        def make():
            import datasets
            import tokenizers
            import transformers
            from tiny import VOCAB, Language

            datasets.disable_progress_bars()
            words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
            return {"dataset": datasets.Dataset.from_dict({"input_ids": Language(192).ids.tolist()}),
                    "tokenizer": transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="0")}

        self.check("TRL", make)

    @needs("accelerate")
    def test_accelerate(self):
        self.check("Accelerate")

    @needs("lightning")
    def test_lightning(self):
        self.check("Lightning")


@needs("torch")
class Start(TorchTest):
    PAGE = (HERE.parent.parent.parent / "docs" / "start.md").read_text(encoding="utf-8")

    def test_commands(self):
        commands = [line.split() for line in re.findall(r"^    zf (.*)", self.PAGE, re.M)]
        self.assertEqual([words[0] for words in commands], ["doctor", "plan", "plan"])
        shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
        program = Path(os.environ["ZFPLUGIN_BUILD"], "bindings", "cli", "zf")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "my-model").mkdir()
            Path(folder, "my-model", "config.json").write_text(json.dumps(shape), encoding="utf-8")
            for words, said in zip(commands, ("plugin ", "the largest that fits: ", "mode = exact")):
                done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=True)
                self.assertIn(said, done.stdout)

    def test_program(self):
        code = "".join(re.findall(r"```python\n(.*?)```", self.PAGE, re.S))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "docs/start.md", "exec"), {})  # pylint: disable=exec-used
        self.assertRegex(printed.getvalue(), r"^12 steps, 1[2-3]\.\d bytes per parameter, \d+\.\d % of the last step waited for the plugin$")
