# SPDX-License-Identifier: Apache-2.0
"""python -m zfplugin.glue as a program: a tiny encoder on a made-up CoLA, kept runs, verdict, bad input; data order."""
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import support
from support import torch

try:
    import transformers  # noqa: F401
except ImportError:
    transformers = None

GOOD, BAD = "the cat sees a dog", "cat the a sees dog"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD.split(), "big", "old"]


def write_task(folder: Path):
    """CoLA's four columns without a header: a sentence is acceptable where its words stand in order."""
    draw = random.Random(7)
    (folder / "CoLA").mkdir(parents=True)
    for name, n in (("train.tsv", 96), ("dev.tsv", 24)):
        rows = [(i % 2, " ".join([(BAD, GOOD)[i % 2], *["big", "old"][:draw.randrange(3)]])) for i in range(n)]
        (folder / "CoLA" / name).write_text("".join(f"x\t{label}\t\t{text}\n" for label, text in rows))


def write_encoder(folder: Path):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                         max_position_embeddings=64)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))


@unittest.skipUnless(torch and transformers, "torch and transformers are not installed")
@unittest.skipUnless(os.environ.get("ZF_CONFORM"), "ZF_CONFORM does not name zf-conform")
class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = Path(cls.folder.name)
        write_task(root / "data")
        write_encoder(root / "encoder")
        cls.arguments = ["--task", "cola", "--data", str(root / "data"), "--model", str(root / "encoder"), "--out", str(root / "out"),
                         "--seeds", "2", "--steps", "48", "--lr", "0.02", "--batch", "8", "--threads", "1", "--precision", "float32"]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def start(self, *more, **variables):
        environment = {**os.environ, "PYTHONPATH": str(support.HERE.parent), "HF_HUB_OFFLINE": "1", **variables}
        return subprocess.run([sys.executable, "-m", "zfplugin.glue", *self.arguments, *more], capture_output=True, text=True,
                              env=environment, check=False)

    def runs(self):
        return {p.name: p.stat().st_mtime_ns for p in Path(self.folder.name, "out", "runs").iterdir()}

    def test_runs_are_kept_and_judged(self):
        first = self.start("--group-by-length")
        self.assertIn(first.returncode, (0, 1, 3), first.stderr)
        kept = self.runs()
        self.assertEqual(sorted(name.rsplit("-", 1)[0] for name in kept),
                         ["cola-adamw-1", "cola-adamw-2", "cola-sync-1", "cola-zenflow-1", "cola-zenflow-2"])
        self.assertIn("one-sided 95 % bounds", first.stdout)
        self.assertNotIn("learned nothing", first.stdout)
        again = self.start("--group-by-length")
        self.assertEqual((again.returncode, self.runs()), (first.returncode, kept))
        self.assertEqual(again.stdout, first.stdout)
        losses = {name.rsplit("-", 1)[0]: json.loads(Path(self.folder.name, "out", "runs", name).read_text())["losses"]
                  for name in kept}
        # all lie within the synchronous start (full_warm_up_rounds = 50), so both plugin arms follow AdamW
        for name in ("cola-sync-1", "cola-zenflow-1"):
            for ours, theirs in zip(losses[name][:12], losses["cola-adamw-1"]):
                self.assertAlmostEqual(ours, theirs, places=4)
        self.assertNotEqual(losses["cola-adamw-1"], losses["cola-adamw-2"])
        other = self.start("--arms", "adamw", "--seeds", "1")  # another order of the data is another run
        self.assertEqual(other.returncode, 3, other.stderr)
        self.assertEqual(len(self.runs()), len(kept) + 1)

    def test_runs_that_learned_nothing_prove_nothing(self):
        """Scores are alike, and a PASS of them would say that the plugin trains as AdamW does."""
        done = self.start("--lr", "0", "--out", str(Path(self.folder.name, "nothing")), "--arms", "adamw,zenflow")
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("INCONCLUSIVE: AdamW itself learned nothing", done.stdout)
        self.assertNotIn("PASS", done.stdout)

    def test_a_missing_judge_is_said_before_training(self):
        out = Path(self.folder.name, "unjudged")
        done = self.start("--out", str(out), ZF_CONFORM="", PATH="/nowhere")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("zf-conform was not found", done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertFalse(out.exists())

    def test_bad_input_is_named(self):
        for more, said in ((["--task", "colour"], "known are"), (["--arms", "adam"], "unknown adam"),
                           (["--data", "/nowhere"], "no such file")):
            done = self.start(*more)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(said, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


class Learned(unittest.TestCase):
    """What a run must beat to have learned something."""

    def judged(self, task, labels, scores, losses=(0.7, 0.4)):
        from zfplugin.glue import judge, tasks
        runs = {("adamw", seed): {"scores": [{task_.metrics[0]: score}], "losses": list(losses)}
                for task_ in [tasks.find_task(task)] for seed, score in enumerate(scores)}
        return judge.why_nothing_was_learned(runs, tasks.find_task(task), [labels], 1.0)

    def test_accuracy_against_the_largest_class(self):
        labels = [0.0] * 70 + [1.0] * 30
        self.assertEqual(self.judged("sst2", labels, [90.0, 88.0]), "")
        self.assertIn("70.0", self.judged("sst2", labels, [70.0, 70.9]))
        self.assertIn("accuracy", self.judged("mnli", labels, [50.0]))

    def test_correlations_against_none(self):
        self.assertEqual(self.judged("cola", [0.0, 1.0], [20.0]), "")
        self.assertIn("matthews", self.judged("cola", [0.0, 1.0], [0.5]))
        self.assertIn("pearson", self.judged("stsb", [0.0, 5.0], [float("nan")]))

    def test_the_loss_must_fall(self):
        self.assertIn("loss", self.judged("cola", [0.0, 1.0], [20.0], losses=[0.7] * 20))
        self.assertIn("loss", self.judged("cola", [0.0, 1.0], [20.0], losses=[0.7] * 10 + [0.9] * 10))


class MadeBy(unittest.TestCase):
    def test_what_decides_is_said_and_no_place(self):
        from zfplugin.glue import judge

        said = judge.made_by("glue", ["--task", "cola", "--data", "/home/a/glue", "--model", "/home/a/encoder", "--out", "b", "--threads", "1",
                                      "--set", "zenflow.update_interval=4", "--group-by-length"])
        self.assertEqual(said, "Made by `glue --task cola --data DIR --model encoder --set zenflow.update_interval=4 --group-by-length`\n\n")


class Kept(unittest.TestCase):
    """A run of the plugin is kept for the plugin that made it; AdamW's is anybody's."""

    def test_another_library_is_another_run(self):
        from zfplugin.glue import __main__ as program
        from zfplugin.glue.tasks import find_task

        @dataclasses.dataclass
        class Settings:
            model: str = "encoder"
            config: object = None
            overrides: tuple = ()

        names = {}
        with tempfile.TemporaryDirectory() as folder:
            for content in ("one", "two"):
                library = Path(folder, content)
                library.write_text(content)
                with mock.patch.dict(os.environ, {"ZFPLUGIN_LIBRARY": str(library)}):
                    names[content] = [program.file_of("out", find_task("cola"), arm, 1, Settings()) for arm in ("adamw", "sync", "zenflow")]
        self.assertEqual([a == b for a, b in zip(names["one"], names["two"])], [True, False, False])


@unittest.skipUnless(torch, "torch is not installed")
class Order(unittest.TestCase):
    def test_groups_are_the_same_rows_with_less_padding(self):
        from zfplugin.glue import train

        draw = random.Random(3)
        tokens = SimpleNamespace(ids=[[0] * draw.randrange(1, 60) for _ in range(997)])
        order = torch.randperm(997, generator=torch.Generator().manual_seed(1)).tolist()
        out = train.grouped(order, tokens, 16, torch.Generator().manual_seed(2))
        self.assertEqual(sorted(out), list(range(997)))

        def padded(rows):
            return sum(16 * max(len(tokens.ids[r]) for r in rows[i:i + 16]) for i in range(0, 992, 16))

        self.assertLess(padded(out), 0.6 * padded(order))
        lengths = [max(len(tokens.ids[r]) for r in out[i:i + 16]) for i in range(0, 992, 16)]
        self.assertNotEqual(lengths, sorted(lengths))
        self.assertNotEqual(lengths, sorted(lengths, reverse=True))


if __name__ == "__main__":
    unittest.main()
