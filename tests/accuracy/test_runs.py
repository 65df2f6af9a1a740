# SPDX-License-Identifier: Apache-2.0
"""zf-conform glue with a stand-in for the trainer (stand_in_host.py): what is kept, how an interrupted campaign goes on, what failures and
wrong command lines say."""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent import futures
from pathlib import Path

from zfplugin.accuracy import glue, options, runs
from zfplugin.accuracy.glue import TABLE

HERE = Path(__file__).resolve().parent
DEADLINE_S = 60
ROWS = "sentence\tlabel\n" + 50 * "a\t0\nb\t1\n"


def wait_until(is_so, what):
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError(f"not within {DEADLINE_S} s: {what}")
        time.sleep(0.01)


def is_alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@unittest.skipUnless(os.environ.get("ZF_CONFORM") and os.environ.get("ZFPLUGIN_PATH"), "ZF_CONFORM and ZFPLUGIN_PATH are needed")
class StandIn(unittest.TestCase):
    """self.root has a made-up SST-2 below data, and below hidden a torch and a matplotlib that cannot be imported; the stand-in is self.host."""

    host = "host"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name, text in (("data/SST-2/train.tsv", ROWS), ("data/SST-2/dev.tsv", ROWS), ("data/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n"),
                           ("hidden/torch.py", "raise ImportError('hidden by the test')\n"),
                           ("hidden/matplotlib.py", "raise ImportError('hidden by the test')\n"),  # figures stand without a picture
                           (self.host, f"#!{sys.executable} -IS\n{(HERE / 'stand_in_host.py').read_text()}")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        (self.root / self.host).chmod(0o755)
        os.mkfifo(self.root / "pipe")
        self.environment = {**os.environ, "STAND_IN": str(self.root), "PYTHONPATH": str(self.root / "hidden")}

    def say(self, name, text="1"):
        (self.root / name).write_text(text)

    def started(self):
        path = self.root / "started"
        return path.read_text().splitlines() if path.exists() else []

    def run_that_waits(self):
        """Its process, once it is there."""
        wait_until(lambda: (self.root / "waits").exists() and (self.root / "waits").read_text(), "the run that is to be interrupted")
        return int((self.root / "waits").read_text())


class Campaign(StandIn):
    def setUp(self):
        super().setUp()
        self.command = [os.environ["ZF_CONFORM"], "glue", "--host", str(self.root / self.host), "--out", str(self.root / "out"), "--data",
                        str(self.root / "data"), "--seeds", "3", "--exact-seeds", "1", "--steps", "40", "--jobs", "1"]

    def start(self, *more):
        return subprocess.run([*self.command, *more], capture_output=True, text=True, env=self.environment, check=False)

    def test_finished_runs_are_not_repeated(self):
        first = self.start()
        self.assertEqual((first.returncode, len(self.started())), (0, 8), first.stderr)
        self.assertIn("8 of 8: ZenFlow, seed 3: accuracy 83.00", first.stderr)
        again = self.start()
        self.assertEqual((again.returncode, len(self.started()), again.stdout), (0, 8, first.stdout))
        self.assertIn("8 of 8 runs are kept from before, 0 to do", again.stderr)
        more = self.start("--set", "zenflow.topk_ratio=0.2")
        self.assertEqual(more.returncode, 0, more.stderr)
        self.assertEqual(len(self.started()), 8 + 4)  # AdamW's runs are anybody's
        self.assertIn("ZenFlow is set by zenflow.topk_ratio=0.2", more.stdout)

    def test_an_interrupted_campaign_goes_on(self):
        for how, status in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)):
            out = self.root / how.name
            for name in ("started", "waits"):
                (self.root / name).unlink(missing_ok=True)
            self.say("stops", "2 plugin")
            process = subprocess.Popen([*self.command[:5], str(out), *self.command[6:]], env=self.environment, stderr=subprocess.PIPE, text=True)
            child = self.run_that_waits()
            kept = {p.name: p.stat().st_mtime_ns for p in (out / "runs").glob("*.json")}
            process.send_signal(how)
            _, said = process.communicate(timeout=DEADLINE_S)
            self.assertEqual((process.returncode, len(kept)), (status, 5), said)
            if how == signal.SIGKILL:
                os.kill(child, signal.SIGKILL)
            wait_until(lambda: not is_alive(child), "the end of the run under way")
            self.assertEqual({p.name for p in (out / "runs").iterdir()} - set(kept), set(), "a run by half is left")
            (self.root / "stops").unlink()
            done = subprocess.run([*self.command[:5], str(out), *self.command[6:]], capture_output=True, text=True, env=self.environment,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("5 of 8 runs are kept from before, 3 to do", done.stderr)
            self.assertEqual({n: t for n, t in ((p.name, p.stat().st_mtime_ns) for p in (out / "runs").iterdir()) if n in kept}, kept)

    def test_a_plugin_that_trains_wrongly_does_not_conform(self):
        self.say("wrong")
        done = self.start()
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("start         FAIL", done.stdout)
        self.assertIn("FAIL: the plugin does not train as AdamW does", done.stdout)
        done = self.start("--task", "sst2,cola")  # of which there are no files
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, "zf-conform glue: .*CoLA")

    def test_failures_say_whose_they_are(self):
        for status, ends in ((1, 1), (2, 2), (127, 2)):  # training failed; it could not start; there is no program
            self.say("fails", str(status))
            done = self.start()
            self.assertEqual(done.returncode, ends, done.stderr)
            self.assertEqual(done.stderr.splitlines()[-1], f"zf-conform glue: exact, seed 1: exit status {status}: zf-host: the plugin gave up")
        (self.root / "fails").unlink()
        self.say("cut")
        done = self.start()
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("not the report of 40 steps that was expected", done.stderr)

    def test_what_is_missing_is_one_line(self):
        for more, said in ((("--plugin", "/nowhere.so"), "/nowhere.so"), (("--set", "zenflow.topk_ratio=7"), "topk_ratio"),
                           (("--data", "/nowhere"), "no such file")):
            done = self.start(*more)
            self.assertEqual((done.returncode, done.stdout), (2, ""), (more, done.stderr))
            self.assertRegex(done.stderr, f"^zf-conform glue: .*{said}.*\n$")
        self.assertEqual(self.started(), [])

    def test_no_python_and_no_scipy_are_named(self):
        empty = self.root / "empty"
        (empty / "scipy").mkdir(parents=True)
        (empty / "scipy" / "__init__.py").write_text("raise ImportError('none here')\n")
        self.environment["PYTHONPATH"] = str(empty)
        done = self.start()
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^zf-conform glue: scipy is not installed for .*apt-get install python3-scipy")
        self.environment["ZF_PYTHON"] = str(self.root / "python3")
        done = self.start()
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^zf-conform glue: .*python3 is not there: apt-get install python3 python3-scipy,")


class Kept(unittest.TestCase):
    def test_what_is_no_whole_report_is_not_taken(self):
        whole = '{"losses": [1, 2]}'
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "x.json")
            for text, is_taken in ((whole, True), (whole[:12], False), ("{}", False), ("[]", False), ('{"losses": [1]}', False),
                                   ('{"failure": "x"}', False)):
                path.write_text(text)
                run = runs.Run("x", "x", (), "key", 2, True)
                self.assertEqual(runs.read_kept(str(path), run, takes_failures=False) is not None, is_taken, text)
            self.assertEqual(runs.read_kept(str(path), run, takes_failures=True), {"failure": "x"})

    def test_a_run_that_is_ended_from_outside_is_no_failure_to_keep(self):
        with tempfile.TemporaryDirectory() as folder, futures.ThreadPoolExecutor() as threads:
            for end in (runs.Pool.end, lambda pool: [p.send_signal(signal.SIGINT) for p in pool.processes]):
                pool = runs.Pool(folder, goes_on=True)
                (Path(folder) / "runs").mkdir(exist_ok=True)
                told = threads.submit(pool.train, runs.Run("x", "x", ("sh", "-c", "exec sleep 60"), "key", 2, True))
                wait_until(lambda pool=pool: pool.processes, "a process")
                end(pool)
                self.assertRaisesRegex(runs.CannotRun, "x: stopped", told.result, DEADLINE_S)
                self.assertEqual(os.listdir(Path(folder) / "runs"), [])

    def test_what_decides_a_run_is_in_its_name(self):
        one = runs.key_of(["--steps", "1"], ["plugin"])
        self.assertEqual(one, runs.key_of(["--steps", "1"], ["plugin"]))
        self.assertEqual(len({one, runs.key_of(["--steps", "2"], ["plugin"]), runs.key_of(["--steps", "1"], ["other"])}), 3)


class CommandLine(unittest.TestCase):
    def test_what_options_ask_of_each_other(self):
        for words, said in ((["--task", "colour"], "known are"), (["--trainer", "torch"], "--data DIR and --model DIR are needed"),
                            (["--precision", "float32"], "--precision is for --trainer torch"),
                            (["--trainer", "torch", "--dtype", "fp32"], "--dtype is for --trainer c")):
            with self.assertRaisesRegex(runs.CannotRun, said):
                glue.main([*words, "--plugin", "x.so"])

    def parse(self, *words):
        return options.parse(glue.HEAD, TABLE, glue.END, words)

    def test_values_defaults_and_lists(self):
        args = self.parse("--seeds", "3", "--set", "a.b=1", "--set", "c.d=2", "--full", "--lr", "1e-3")
        self.assertEqual((args.seeds, args.set, args.full, args.lr, args.task, args.model), (3, ["a.b=1", "c.d=2"], True, "1e-3", "sst2", None))

    def test_refusals_name_option_found_and_needed(self):
        for words, said in (("--seeds 0", '--seeds: found "0"; a whole number from 1 is needed'), ("--seeds", "--seeds: expected one argument"),
                            ("--margin nan", '--margin: found "nan"; a number above 0, below 10^6 is needed'),
                            ("--dtype fp16", "--dtype: invalid choice: 'fp16'"), ("--seed 1", "unrecognized arguments: --seed 1"),
                            ("--set a.b", '--set: found "a.b"; section.key=value is needed'), ("x", "unrecognized arguments: x")):
            with self.assertRaises(runs.CannotRun) as caught:
                self.parse(*words.split())
            self.assertIn(said, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
