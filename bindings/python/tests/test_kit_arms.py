# SPDX-License-Identifier: Apache-2.0
"""The kit's arms (tests/cuda/kit/arms.py), rehearsed on the Vulkan device with an empty environment."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

ARMS = support.ROOT / "tests/cuda/kit/arms.py"


class Arms(unittest.TestCase):
    def run_arms(self, *words, planted=""):
        """Lines of the table, rows of arms.jsonl, status."""
        with tempfile.TemporaryDirectory() as out:
            (Path(out) / "sitecustomize.py").write_text(planted)
            env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([out, *filter(None, sys.path)]), "ZFPLUGIN_LIBRARY": support.library_path() or "",
                   # what Python has compiled of torch already
                   **({"PYTHONPYCACHEPREFIX": sys.pycache_prefix} if sys.pycache_prefix else {"PYTHONDONTWRITEBYTECODE": "1"})}
            done = subprocess.run([sys.executable, str(ARMS), out, "--small", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=env, check=False)
            rows = [json.loads(line) for line in (Path(out) / "arms.jsonl").read_text().splitlines()]
            said = "".join(file.read_text() for file in Path(out).glob("arm_*.txt"))
        return {line.split()[0]: line for line in done.stdout.splitlines()}, rows, done.returncode, said + done.stdout

    def test_an_arm_that_stands_still_costs_its_own_numbers(self):
        table, rows, status, said = self.run_arms("--device", "vulkan:0", "--hang", "small", "--only", "small", "--only", "decoder", "--only", "adamw",
                                                  "--only", "exact", "--only", "fsdp2")
        self.assertEqual(1, status, said)
        self.assertIn("FAIL (status 1) stood still for 10 s: stacks in arm_small.txt", table["small"])
        self.assertIn('arms.py", line', said)
        for name in ("decoder", "adamw", "exact"):
            self.assertIn("PASS", table[name], said)
        self.assertIn("---- left out", table["fsdp2"], said)
        decoder = next(row for row in rows if row["arm"] == "decoder")
        self.assertLess(decoder["apart"], 1e-4, decoder)  # fp32 there
        for row in (row for row in rows if row["arm"] == "exact"):
            self.assertIsNone(row["apart_from"], row)

    def test_a_step_that_is_left_out_is_seen(self):
        table, rows, status, said = self.run_arms("--device", "cpu", "--only", "decoder", planted=(
            "import zfplugin.torch as z\n"
            "step, n = z.ZenFlow.step, [0]\n"
            "def wrong(self, closure=None):\n"
            "    n[0] += 1\n"
            "    return step(self, closure) if n[0] != 6 else None\n"
            "z.ZenFlow.step = wrong\n"))
        self.assertEqual(1, status, said)
        self.assertIn("FAIL (status 1) weights", table["decoder"])
        self.assertGreater(next(row for row in rows if row["arm"] == "decoder")["apart"], 0.05)


if __name__ == "__main__":
    unittest.main()
