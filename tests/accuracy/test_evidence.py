# SPDX-License-Identifier: Apache-2.0
"""conformance/evidence in a repository of its own whose build has a stand-in for the trainer: stop and resume, a tree that is no commit, other
builds, failed runs, and what the pages say of rows that are not there."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from test_runs import HERE, is_alive, wait_until

ROOT = HERE.parent.parent
DEADLINE_S = 240
N_RUNS = 3 * 12  # of the row sst2: AdamW, exact, windows


@unittest.skipUnless(os.environ.get("ZF_CONFORM") and os.environ.get("ZFPLUGIN_PATH"), "ZF_CONFORM and ZFPLUGIN_PATH are needed")
class Evidence(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.tree, build = self.root / "tree", self.root / "tree" / "build" / "release"
        shutil.copytree(ROOT / "conformance" / "evidence", self.tree / "conformance" / "evidence", ignore=shutil.ignore_patterns("__pycache__"))
        for folder in (self.tree / "conformance" / "results", self.tree / "docs", self.root / "data" / "SST-2", self.root / "model",
                       build / "plugin", build / "conformance" / "host"):
            folder.mkdir(parents=True)
        (self.tree / "conformance" / "run.sh").write_text('[ "$*" = --build-only ]\n')
        (self.tree / ".gitignore").write_text("/build/\n")
        shutil.copy(ROOT / "docs" / "accuracy.md", self.tree / "docs")
        (build / "conformance" / "python").symlink_to(Path(os.environ["ZF_CONFORM"]).parent / "python")
        shutil.copy(HERE / "stand_in_host.py", build / "conformance" / "host" / "zf-host")
        shutil.copy(os.environ["ZFPLUGIN_PATH"], build / "plugin" / "libzfplugin.so")
        for name in ("train.tsv", "dev.tsv"):
            (self.root / "data" / "SST-2" / name).write_text("sentence\tlabel\n" + 50 * "a\t0\nb\t1\n")
        (self.root / "data" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
        os.mkfifo(self.root / "pipe")
        (self.root / "hidden").mkdir()
        (self.root / "hidden" / "torch.py").write_text("raise ImportError('hidden by the test')\n")  # rows that need it cannot run
        self.git("init", "-q")
        self.commit("first")

    def git(self, *words):
        told = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", "-C", self.tree, *told, *words], check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "--short=12", "HEAD")

    def open(self, *more):
        return subprocess.Popen([sys.executable, str(self.tree / "conformance" / "evidence"), "--data", str(self.root / "data"), "--model",
                                 str(self.root / "model"), "--out", str(self.root / "out"), "--jobs", "1", *more], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**os.environ, "STAND_IN": str(self.root), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.root / "hidden")})

    def start(self, *more):
        process = self.open(*(more or ("sst2",)))
        _, said = process.communicate(timeout=DEADLINE_S)
        return process.returncode, said

    def started(self):
        path = self.root / "started"
        return path.read_text().splitlines() if path.exists() else []

    def page(self):
        return (self.tree / "docs" / "accuracy.md").read_text()

    def test_stopped_it_goes_on_and_the_pages_name_the_commit(self):
        at = self.git("rev-parse", "--short=12", "HEAD")
        (self.root / "stops").write_text("2 plugin")
        process = self.open("sst2")
        wait_until((self.root / "waits").exists, "the run that is to be interrupted")
        wait_until(lambda: (self.root / "waits").read_text(), "its number")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, said)
        wait_until(lambda: not is_alive(int((self.root / "waits").read_text())), "the end of the run under way")
        n_done = len(self.started()) - 1
        self.assertGreater(n_done, 1)
        (self.root / "stops").unlink()
        status, said = self.start("--kept")
        self.assertEqual(len(self.started()), n_done + 1, "--kept trains")
        self.assertRegex(self.page(), rf"Not measured on commit {at}: SST-2, 2000 steps of 32 rows from scratch,")
        self.assertNotIn("| SST-2", self.page())
        status, said = self.start()  # the page that was written is no other tree
        self.assertIn(f"{n_done} of {N_RUNS} runs are kept from before, {N_RUNS - n_done} to do", said)
        self.assertEqual(len(self.started()), N_RUNS + 1, said)
        self.assertNotEqual(status, 0)  # the other rows are not there
        self.assertRegex(self.page(), rf"Commit {at}\.\n\n\|.*\n.*\n\| SST-2, .* \| reference trainer \| 12 \| 86\.50 .*\| PASS \|")
        self.assertRegex(self.page(), rf"Not measured on commit {at}: MRPC, 230 steps of 32 rows, pretrained.*, CoLA, .*\(PyTorch\)")
        kept = json.loads((self.tree / "conformance" / "results" / "accuracy-glue.json").read_text())
        self.assertEqual((kept["commit"], [row["row"] for row in kept["rows"]]), (at, ["sst2"]))
        self.assertNotIn(str(self.root), json.dumps(kept) + self.page())
        # Another plugin is another build: nothing of it is there, and what was written of the other is taken away.
        with open(self.tree / "build" / "release" / "plugin" / "libzfplugin.so", "ab") as file:
            file.write(b"\0")
        after = self.commit("pages")
        self.start("--kept")
        self.assertRegex(self.page(), rf"Not measured on commit {after}: SST-2,")
        self.assertNotIn(f"Commit {at}", self.page())
        self.assertEqual(list((self.tree / "conformance" / "results").iterdir()), [])

    def test_a_tree_that_is_no_commit_is_refused(self):
        before = self.page()
        (self.tree / "new.c").write_text("")
        status, said = self.start()
        self.assertEqual((status, said), (2, "evidence: the tree differs from its commit in 1 files (new.c); commit first, or use a worktree of its own\n"))
        (self.tree / "new.c").unlink()
        (self.root / "stops").write_text("1 adamw")
        process = self.open("sst2")
        wait_until((self.root / "waits").exists, "a run")
        (self.tree / "conformance" / "run.sh").write_text("true\n")
        self.commit("meanwhile")
        with open(self.root / "pipe", "w", encoding="utf-8") as pipe:
            pipe.write("\n")
        _, said = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 2, said)
        self.assertIn("nothing is written", said)
        self.assertEqual(self.page(), before)

    def test_a_failed_run_is_told_and_done_again(self):
        (self.root / "fails").write_text("1")
        status, said = self.start()
        self.assertEqual(status, 1, said)
        self.assertIn("sst2 failed: exact, seed 1: exit status 1: zf-host: the plugin gave up", said)
        self.assertIn("SST-2, 2000 steps of 32 rows from scratch (failed)", self.page())
        (self.root / "fails").unlink()
        self.assertNotEqual(self.start()[0], 1)
        self.assertIn("| SST-2, ", self.page())
