# SPDX-License-Identifier: Apache-2.0
"""zf-conform ablation: names of settings, made data, gaps and bars; as a program on a made-up corpus, runs cut short."""
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from zfplugin.accuracy.ablation import command, data, judge, plan
from zfplugin.accuracy.runs import CannotRun

WORDS = "the cat sees a dog big old and runs".split()


class Names(unittest.TestCase):
    def test_a_name_says_the_configuration(self):
        self.assertEqual(plan.setting("s4-lag0-auto").overrides,
                         ("zenflow.update_interval=4", "zenflow.publish_lag=0", "zenflow.predict=auto", "zenflow.full_warm_up_rounds=5"))
        self.assertEqual(plan.setting("s8-lag1-0-k0.2-w50").overrides,
                         ("zenflow.update_interval=8", "zenflow.publish_lag=1", "zenflow.predict=off", "zenflow.topk_ratio=0.2",
                          "zenflow.full_warm_up_rounds=50"))
        self.assertEqual(plan.setting("windows").overrides, ("zenflow.mode=windows",))
        noise = plan.setting("adamw-x1.5")
        self.assertEqual((noise.rate_factor, noise.is_plugin), (1.5, False))
        self.assertEqual(plan.setting("int8").overrides, ("host.moments_dtype=int8",))
        self.assertEqual([c.name for c in plan.cells("all") if plan.setting("torchao").trains(c)], ["gpt", "llama", "gpt-4e-3"])

    def test_groups_and_lists(self):
        names = [s.name for s in plan.settings("core,s4-lag0-auto,noise")]
        self.assertEqual(names, [*plan.GROUPS["core"], *plan.GROUPS["noise"]])
        for group in plan.GROUPS:
            self.assertTrue(plan.settings(group))
        for wrong in ("s4-lag2-auto", "s4-lag1-2", "s4", "fast", "s4-lag0-auto-w", ""):
            with self.assertRaisesRegex(CannotRun, "need s<S>"):
                plan.settings(wrong)
        with self.assertRaisesRegex(CannotRun, "task 'none'"):
            plan.cells("gpt,none")

    def test_one_seed_differs_by_the_optimizer_alone(self):
        cell, programs = plan.CELLS["cola-tune"], command.Programs(__file__, __file__, "model", {("cola", True): "x"})
        with mock.patch.object(command, "digest", lambda path: path):
            plain, ours, faster = (list(command.run_of(cell, plan.setting(name), 3, programs).command)
                                   for name in ("adamw", "s2-lag0-auto", "adamw-x2"))
        self.assertEqual(ours[:ours.index("--optimizer")], plain[:plain.index("--optimizer")])
        self.assertEqual(faster[faster.index("--lr") + 1], "0.0002")


class Data(unittest.TestCase):
    def test_scores_are_the_shared_words(self):
        rows = data.pairs([f"w{i} x{i} y{i} z{i} v{i}" for i in range(13)])
        self.assertEqual(len(rows), 12)
        self.assertEqual([round(r[2], 3) for r in rows[:6]], [0.0, 0.556, 1.25, 2.143, 3.333, 5.0])
        self.assertEqual(rows[2][:2], ("w2 x2 y2 z2 v2", "w2 x2 w3 x3 y3"))
        self.assertEqual(data.pairs(["", "a", " ", "b"])[0][:2], ("a", "b"))

    def test_few_dev_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            write_data(Path(folder))
            for task, n_train in (("sst2", 120), ("cola", 120), ("stsb", 119 - data.DEV_ROWS)):
                train, dev = data.rows_of(folder, task)
                self.assertEqual((len(train.texts), len(train.labels), len(dev.texts), len(dev.labels)), (n_train, n_train, *[data.DEV_ROWS] * 2))
                self.assertEqual(len(dev.texts[0]), 2 if task == "stsb" else 1)


def run_of(*losses):
    return {"losses": list(losses), "seconds": 1.0}


class Judged(unittest.TestCase):
    cells = [plan.CELLS["gpt"], plan.CELLS["cola-tune"]]

    def judged(self, name, gaps, seeds=(1,)):
        """gaps: {cell name: gap of every seed}"""
        made = {(c, "adamw", s): run_of(9, 9, 9, 2.0) for c in gaps for s in seeds}
        for cell, own in gaps.items():
            made.update({(cell, name, s): run_of(9, 9, 9, 2.0 * (1 + g)) for s, g in zip(seeds, own)})
        result = judge.result(self.cells, [plan.ADAMW, plan.setting(name)], seeds, made, "x")
        self.assertIn(name, judge.table(result))
        return result["settings"][0]

    def test_a_gap_is_the_last_quarter_s(self):
        self.assertAlmostEqual(judge.gap(run_of(5, 5, 5, 5, 5, 5, 1, 2), run_of(9, 9, 9, 9, 9, 9, 1, 1)), 0.5)
        self.assertEqual(judge.gap({"failure": "NaN"}, run_of(1, 1, 1, 1)), math.inf)

    def test_the_bars(self):
        for name, gaps, said in (
                ("s4-lag0-auto", (0.012, -0.003), "held"), ("s4-lag0-auto", (0.012, 0.0), "MISSED"),  # mean 0.45 and 0.6 %
                ("s4-lag0-auto", (0.021, -0.03), "MISSED"), ("s4-lag1-auto", (0.021, -0.03), "held"),  # worst 2.1 %
                ("s4-lag1-auto", (0.03, -0.009), "MISSED"), ("s4-lag1-auto", (0.041, -0.03), "MISSED"),
                ("windows", (0.012, -0.003), "held"), ("adamw-x2", (0.3, 0.3), "-")):
            own = self.judged(name, {"gpt": [gaps[0]], "cola-tune": [gaps[1]]})
            self.assertEqual((own["verdict"], own["worst_cell"]), (said, "gpt"), (name, gaps))

    def test_seeds_are_averaged_and_their_error_said(self):
        own = self.judged("s4-lag0-auto", {"gpt": [0.01, 0.03], "cola-tune": [0.0, 0.0]}, (1, 2))
        self.assertAlmostEqual(own["cells"][0]["mean"], 0.02)
        self.assertAlmostEqual(own["cells"][0]["error"], 0.01)
        self.assertAlmostEqual(own["error"], 0.005)

    def test_what_did_not_run_or_failed_holds_no_bar(self):
        self.assertEqual(self.judged("s4-lag0-auto", {"gpt": [0.0]})["verdict"], "not all ran")
        own = self.judged("s4-lag0-auto", {"gpt": [math.inf], "cola-tune": [0.0]})
        self.assertEqual((own["verdict"], own["mean"], own["worst"]), ("MISSED", None, None))


def write_data(folder: Path):
    draw = random.Random(5)

    def sentence():
        return " ".join(draw.choices(WORDS, k=draw.randrange(3, 8)))

    for name, head, row in (("SST-2", "sentence\tlabel\n", "{0}\t{1}\n"), ("CoLA", "", "x\t{1}\t\t{0}\n")):
        (folder / name).mkdir(parents=True)
        for file, n in (("train.tsv", 120), ("dev.tsv", 40)):
            (folder / name / file).write_text(head + "".join(row.format(sentence(), i % 2) for i in range(n)))
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")


@unittest.skipUnless(os.environ.get("ZF_CONFORM"), "ZF_CONFORM does not name zf-conform")
class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        write_data(cls.root / "data")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def start(self, *arguments):
        own = [] if "--data" in arguments else ["--data", str(self.root / "data")]
        return subprocess.run([os.environ["ZF_CONFORM"], "ablation", *own, "--out", str(self.root / "out"), "--steps", "24", *arguments],
                              capture_output=True, text=True, check=False, env={**os.environ, "ZF_PYTHON": sys.executable})

    def gaps(self, name):
        result = json.loads((self.root / "out" / "defaults.json").read_text())
        return next(s for s in result["settings"] if s["name"] == name)

    def test_runs_are_kept_and_judged(self):
        tasks = ("--tasks", "sst2-scratch,overlap-scratch")
        exact = ("--settings", "s8-lag1-0", "--must", "s1-lag0-0", "--seeds", "1")
        done = self.start(*tasks, *exact)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("6 of 6: ", done.stderr)
        self.assertEqual([c["mean"] for c in self.gaps("s1-lag0-0")["cells"]], [0.0, 0.0])  # ZeRO-Offload's semantics: AdamW's digits
        self.assertGreater(min(abs(c["mean"]) for c in self.gaps("s8-lag1-0")["cells"]), 0.0)
        self.assertIn("| s8-lag1-0 |", (self.root / "out" / "defaults.md").read_text())
        more = self.start(*tasks, "--settings", "s8-lag1-0,s4-lag0-auto", "--must", "s4-lag0-auto", "--seeds", "1", "--kept")
        self.assertEqual(more.returncode, 1, more.stderr)  # it was not run, and --kept makes no run
        more = self.start(*tasks, "--settings", "s8-lag1-0", "--must", "s1-lag0-0", "--seeds", "3", "--kept")
        self.assertEqual(more.returncode, 1, more.stderr)  # one seed of three

    def test_what_is_missing_is_named_in_one_line(self):
        for arguments, said in ((("--tasks", "cola-tune"), "cola-tune needs --model"), (("--tasks", "sst2"), "task 'sst2'"),
                                (("--settings", "s4"), "setting 's4'"), (("--tasks", "gpt", "--host", "nowhere", "--data", "nowhere"), "vocab.txt"),
                                (("--tasks", "sst2-scratch", "--host", "nowhere"), "nowhere: no program"),
                                (("--tasks", "sst2-scratch", "--plugin", "/nowhere.so", "--settings", "windows"), "nowhere.so")):
            done = self.start(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertRegex(done.stderr.splitlines()[-1], rf"^zf-conform ablation: .*{said}")
