# SPDX-License-Identifier: Apache-2.0
"""conformance/evidence in a repository of its own whose build has a stand-in for the trainer: stop and resume, a tree that is no commit, other
builds, failed runs, and what the pages say of rows that are not there."""
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from test_runs import HERE, StandIn, is_alive, wait_until

ROOT = HERE.parent.parent
DEADLINE_S = 240
N_RUNS = 3 * 12 + 2  # of the row sst2: AdamW, exact, windows; two seeds as documented


class Evidence(StandIn):
    host = "tree/build/release/conformance/host/zf-host"

    def setUp(self):
        super().setUp()
        self.tree, build = self.root / "tree", self.root / "tree" / "build" / "release"
        shutil.copytree(ROOT / "conformance" / "evidence", self.tree / "conformance" / "evidence", ignore=shutil.ignore_patterns("__pycache__"))
        for folder in (self.tree / "conformance" / "results", self.tree / "docs", self.root / "model", build / "plugin"):
            folder.mkdir(parents=True)
        (self.tree / "conformance" / "run.sh").write_text('[ "$*" = --build-only ]\n')
        (self.tree / ".gitignore").write_text("/build/\n")
        shutil.copy(ROOT / "docs" / "accuracy.md", self.tree / "docs")
        (build / "conformance" / "python").symlink_to(Path(os.environ["ZF_CONFORM"]).parent / "python")
        shutil.copy(os.environ["ZFPLUGIN_PATH"], build / "plugin" / "libzfplugin.so")
        self.environment.setdefault("PYTHONPYCACHEPREFIX", str(self.root / "cache"))  # beside the tree
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
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment)

    def start(self, *more):
        process = self.open(*(more or ("sst2",)))
        _, said = process.communicate(timeout=DEADLINE_S)
        return process.returncode, said

    def page(self):
        return (self.tree / "docs" / "accuracy.md").read_text()

    def test_stopped_it_goes_on_and_the_pages_name_the_commit(self):
        at = self.git("rev-parse", "--short=12", "HEAD")
        self.say("stops", "2 plugin")
        process = self.open("sst2")
        child = self.run_that_waits()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, said)
        wait_until(lambda: not is_alive(child), "the end of the run under way")
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
        self.assertEqual(self.page().count("Not measured on commit"), 5)  # --kept wrote all
        shutil.copy(ROOT / "docs" / "accuracy.md", self.tree / "docs")
        self.start()
        self.assertEqual(self.page().count("Not measured on commit"), 1)  # a row's name writes its table alone
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
        self.say("stops", "1 adamw")
        process = self.open("sst2")
        self.run_that_waits()
        (self.tree / "conformance" / "run.sh").write_text("true\n")
        self.commit("meanwhile")
        self.say("pipe", "\n")
        _, said = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 2, said)
        self.assertIn("nothing is written", said)
        self.assertEqual(self.page(), before)

    def test_a_failed_run_is_told_and_done_again(self):
        self.say("fails")
        status, said = self.start()
        self.assertEqual(status, 1, said)
        self.assertIn("sst2 failed: exact, seed 1: exit status 1: zf-host: the plugin gave up", said)
        self.assertIn("SST-2, 2000 steps of 32 rows from scratch (failed)", self.page())
        (self.root / "fails").unlink()
        self.assertNotEqual(self.start()[0], 1)
        self.assertIn("| SST-2, ", self.page())
