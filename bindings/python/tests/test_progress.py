# SPDX-License-Identifier: Apache-2.0
"""The line that says how far a program is: on a terminal while it works, in a pipe never."""
import io
import json
import os
import pty
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import support

from zfplugin import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Lines(unittest.TestCase):
    def test_a_terminal_sees_what_is_done_and_it_goes(self):
        out = Terminal()
        with progress.Line("program", out) as line:
            line.show("working", 2, 8)
            time.sleep(1.3)  # it goes on by itself
            alone = out.getvalue()
            line.say("a line of its own")
        shown = [part for part in out.getvalue().split("\r\033[K") if part]
        self.assertIn(" ... 1 s", alone)
        self.assertEqual(shown[0], "program: working, 2 of 8 ... 0 s, about 0 s left")
        self.assertTrue(any(part.startswith("program: working, 2 of 8 ... 1 s, about 3 s left") or
                            part.startswith("program: working, 2 of 8 ... 1 s, about 4 s left") for part in shown), shown)
        self.assertIn("a line of its own\n", shown)
        self.assertTrue(out.getvalue().endswith("\r\033[K"), shown)

    def test_a_pipe_sees_lines_alone(self):
        out = io.StringIO()
        with progress.Line("program", out) as line:
            line.show("working", 2, 8)
            line.say("a line of its own")
        self.assertEqual(out.getvalue(), "a line of its own\n")

    def test_many_steps_are_not_all_written(self):
        out = Terminal()
        with progress.Line("program", out) as line:
            for step in range(10000):
                line.show("working", step, 10000)
        self.assertLess(out.getvalue().count("working"), 1000)

    def test_the_report_says_what_it_draws(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "exact.json").write_text(json.dumps({"area": "exact", "exit_status": 0, "summary": "all hold", "checks": []}))
            command = [sys.executable, "-m", "zfplugin.report", folder, "--page", str(Path(folder, "page.html"))]
            environment = {**os.environ, "PYTHONPATH": str(support.HERE.parent)}
            piped = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if "matplotlib" in piped.stderr:
                self.skipTest("needs matplotlib")
            self.assertEqual(piped.stderr, "")
            ours, theirs = pty.openpty()
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=theirs, check=True)
            os.close(theirs)
            self.assertIn(b"zfplugin.report: drawing ", os.read(ours, 65536))
            os.close(ours)


if __name__ == "__main__":
    unittest.main()
