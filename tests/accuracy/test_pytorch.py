# SPDX-License-Identifier: Apache-2.0
"""zf-conform glue --trainer torch: a tiny encoder on a made-up CoLA, one seed. (What is kept, and verdicts over
seeds: test_runs.py, test_judge.py.)"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ENCODER = Path(__file__).resolve().parent.parent / "conformance" / "tiny_encoder.py"
GOOD, BAD = "the cat sees a dog", "cat the a sees dog"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD.split(), "big", "old"]


def write_task(folder: Path):
    """CoLA's four columns without a header: a sentence is acceptable where its words stand in order."""
    draw = random.Random(7)
    (folder / "CoLA").mkdir(parents=True)
    for name, n in (("train.tsv", 96), ("dev.tsv", 24)):
        rows = [(i % 2, " ".join([(BAD, GOOD)[i % 2], *["big", "old"][:draw.randrange(3)]])) for i in range(n)]
        (folder / "CoLA" / name).write_text("".join(f"x\t{label}\t\t{text}\n" for label, text in rows))


@unittest.skipUnless(os.environ.get("ZF_CONFORM"), "ZF_CONFORM does not name zf-conform")
class Program(unittest.TestCase):
    def test_runs_are_judged(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = Path(folder.name)
        write_task(root / "data")
        (root / "words").write_text("\n".join(WORDS) + "\n")
        subprocess.run([sys.executable, str(ENCODER), str(root / "encoder"), str(root / "words"), "1"], check=True)
        first = subprocess.run([os.environ["ZF_CONFORM"], "glue", "--trainer", "torch", "--task", "cola", "--data", str(root / "data"), "--model",
                                str(root / "encoder"), "--out", str(root / "out"), "--seeds", "1", "--steps", "48", "--lr", "0.02", "--batch", "8",
                                "--threads", "1", "--precision", "float32"], capture_output=True, text=True, check=False,
                               env={**os.environ, "ZF_PYTHON": sys.executable, "HF_HUB_OFFLINE": "1"})
        self.assertIn(first.returncode, (0, 1, 3), first.stderr)
        for said in ("torch ", "4M(1 + 1/S), S = 2", "start         shown: loss of steps 1..20"):
            self.assertIn(said, first.stdout)
        self.assertNotIn("nan", first.stdout)
        losses = {path.name.rsplit("-", 1)[0]: json.loads(path.read_text())["losses"] for path in (root / "out" / "runs").iterdir()}
        self.assertEqual(sorted(losses), [f"cola-torch-{arm}-seed1" for arm in ("adamw", "exact", "zenflow")])
        # all lie within the synchronous start (full_warm_up_rounds = 50), so both plugin arms follow AdamW
        for name in ("cola-torch-exact-seed1", "cola-torch-zenflow-seed1"):
            for ours, theirs in zip(losses[name][:12], losses["cola-torch-adamw-seed1"]):
                self.assertAlmostEqual(ours, theirs, places=4)
        document = json.loads((root / "out" / "glue.json").read_text())
        self.assertEqual(document["trainer"], "torch")
        link, host = (document["arms"][2][name] for name in ("link_bytes_per_step", "host_bytes_per_parameter"))
        self.assertAlmostEqual(link["down"] / link["down_formula"], 1.0, delta=0.1)
        self.assertGreater(host["planned"], 12.0)
