# SPDX-License-Identifier: Apache-2.0
"""The snippets of README.md, "In your trainer", as they stand there: they run, they learn, and they end flushed."""
import contextlib
import gc
import importlib.util
import io
import logging
import os
import re
import sys
import tempfile
import unittest
import warnings
from unittest import mock

from support import HERE, TorchTest, torch

sys.path.insert(0, str(HERE.parent / "examples"))
TEXT = (HERE.parent / "README.md").read_text(encoding="utf-8")
PART = TEXT[TEXT.index("## In your trainer"):TEXT.index("## Behaviour")]
SNIPPETS = re.findall(r"^([A-Z][^\n]*):\n```python\n(.*?)```", PART, re.S | re.M)
WINDOWS = "[zenflow]\nmode = windows\ntopk_ratio = 0.1\nfull_warm_up_rounds = 2\n[log]\nlevel = warn\n"  # so that something is on its way


@unittest.skipIf(torch is None or importlib.util.find_spec("transformers") is None, "torch and transformers are not installed")
class Snippets(TorchTest):
    def run_snippet(self, words, *packages, make=dict):
        """make: what more the snippet names, or has in place of what all have."""
        for package in packages:
            if importlib.util.find_spec(package) is None:
                self.skipTest(f"{package} is not installed")
        (code,) = [code for title, code in SNIPPETS if title.startswith(words)]
        code = code.replace("lr=3e-4", f"lr=3e-3, config={WINDOWS!r}")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        import transformers
        import zfplugin.torch
        from tiny import Language, model_of

        transformers.utils.logging.set_verbosity_error()
        model, dataset = model_of("gpt2"), Language(96)
        home = os.getcwd()
        self.addCleanup(os.chdir, home)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), \
                contextlib.redirect_stdout(io.StringIO()), self.assertNoLogs("zfplugin", logging.WARNING):
            warnings.simplefilter("ignore")
            os.chdir(folder)  # where trainers write
            names = {"model": model, "dataset": dataset, "loader": torch.utils.data.DataLoader(dataset, batch_size=8),
                     "args": transformers.TrainingArguments(output_dir=folder, max_steps=9, use_cpu=True, report_to=[],
                                                            max_grad_norm=0, disable_tqdm=True), **make()}
            before = self.loss(model, dataset)
            flush = zfplugin.torch.ZenFlow.flush
            with mock.patch.object(zfplugin.torch.ZenFlow, "flush", autospec=True, side_effect=flush) as flushed:
                exec(compile(code, f"README.md: {words}", "exec"), names)  # pylint: disable=exec-used
            self.assertTrue(flushed.called)
            self.assertLess(self.loss(model, dataset), before - 0.1, "it does not learn")
            names.clear()  # an optimizer that was not flushed says so now
            gc.collect()
            os.chdir(home)

    @staticmethod
    def loss(model, dataset):
        with torch.no_grad():
            return model(input_ids=dataset.ids[:32], labels=dataset.ids[:32]).loss.item()

    def test_all_are_run(self):
        self.assertEqual([title.split(".")[0] for title, _ in SNIPPETS],
                         ["A loop of your own", "Hugging Face's Trainer", "Trainer that makes the optimizer and its decay groups itself",
                          "TRL's trainers hand the same on", "Accelerate", "Lightning"])

    def test_loop(self):
        self.run_snippet("A loop")

    def test_hugging_face(self):
        self.run_snippet("Hugging Face", "accelerate")

    def test_a_trainer_that_makes_it(self):
        self.run_snippet("Trainer that makes", "accelerate")

    def test_trl(self):
        def make():
            import datasets
            import tokenizers
            import transformers
            from tiny import VOCAB, Language

            datasets.disable_progress_bars()
            words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
            return {"dataset": datasets.Dataset.from_dict({"input_ids": Language(96).ids.tolist()}),
                    "tokenizer": transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="0")}

        self.run_snippet("TRL", "trl", make=make)

    def test_accelerate(self):
        self.run_snippet("Accelerate", "accelerate")

    def test_lightning(self):
        self.run_snippet("Lightning", "lightning")


if __name__ == "__main__":
    unittest.main()
