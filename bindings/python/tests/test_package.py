# SPDX-License-Identifier: Apache-2.0
"""The wheel: one command makes it of the build in ZFPLUGIN_BUILD, pip installs it into an empty environment, and it trains there with
nothing else. That it builds by itself tests/packages.sh shows."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import support

FEW_STEPS = support.HERE / "few_steps.py"


def run(*command, **kwargs):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, **kwargs).stdout


class Wheel(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def has(self, module):
        return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0

    def environment(self):
        """Without the plugin of the build tree, so that the one inside the package is found."""
        return {key: value for key, value in os.environ.items()
                if key not in ("ZFPLUGIN_PATH", "ZFPLUGIN_LIBRARY", "PYTHONPATH")}

    def build(self):
        if not self.has("pip") or not self.has("setuptools"):
            self.skipTest(f"{sys.executable} has no pip or no setuptools")
        script = support.HERE.parent / "build_wheel.sh"
        out = run("sh", script, self.folder / "dist", env={**self.environment(), "ZF_PYTHON": sys.executable})
        return Path(out.strip().splitlines()[-1])

    def install(self, wheel):
        if not self.has("venv") or not self.has("ensurepip"):
            self.skipTest("no venv module")
        venv = self.folder / "venv"
        run(sys.executable, "-m", "venv", "--without-pip", venv)
        site = next((venv / "lib").glob("python*/site-packages"))
        run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", site, wheel)
        return venv / "bin" / "python"

    def test_built_installed_and_used(self):
        wheel = self.build()
        self.assertRegex(wheel.name, r"^zfplugin-0\.1\.0-py3-none-(linux|manylinux_2_\d+)_(x86_64|aarch64)\.whl$")
        files = {file.filename: file for file in zipfile.ZipFile(wheel).infolist()}
        self.assertIn("zfplugin/lib/libzfplugin.so.0", files)
        self.assertIn("zfplugin-0.1.0.dist-info/licenses/LICENSE", files)
        self.assertTrue(files["zfplugin/bin/zf"].external_attr >> 16 & 0o100, "zf is no program")
        self.assertIn("zfplugin/accuracy/ablation/command.py", files)
        self.assertFalse([name for name in files if "test" in name or name.endswith((".c", ".h"))])
        python = self.install(wheel)
        out = run(python, FEW_STEPS, env=self.environment(), cwd=self.folder)
        self.assertTrue(out.startswith("trained with "), out)
        out = run(python, "-c", "import sys, zfplugin.programs as p; sys.argv = ['zf', 'doctor', '--quick']; p.zf()",
                  env=self.environment(), cwd=self.folder)
        self.assertIn("site-packages", out)
        for command in ("glue", "ablation"):  # the help needs no scipy
            self.assertIn("--seeds N", run(python, "-m", "zfplugin.accuracy", command, "--help", env=self.environment(), cwd=self.folder))
        self.assertIn("zf-conform", run(python, "-c", "import sys, zfplugin.programs as p; sys.argv[1:] = ['--help']; p.zf_conform()",
                                        env=self.environment(), cwd=self.folder))
        next((self.folder / "venv").rglob("zfplugin/bin/zf-conform")).unlink()
        lacking = subprocess.run([python, "-c", "import zfplugin.programs as p; p.zf_conform()"], capture_output=True, text=True,
                                 env=self.environment(), cwd=self.folder)
        self.assertEqual((lacking.returncode, lacking.stderr[:47]),
                         (2, "zf-conform: this installation of zfplugin does "), lacking.stderr)
