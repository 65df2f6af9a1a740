# SPDX-License-Identifier: Apache-2.0
"""The wheel: one command makes it of the build in ZFPLUGIN_BUILD, pip installs it into an empty environment, and it trains there with
nothing else. A build of some targets alone, as conformance/run.sh makes it, is enough. That it builds by itself tests/packages.sh shows."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import support
import zfplugin

FEW_STEPS = support.HERE / "few_steps.py"


def run(*command, **kwargs):
    ended = subprocess.run([str(c) for c in command], capture_output=True, text=True, **kwargs)
    assert ended.returncode == 0, f"{command[0]}: exit status {ended.returncode}: {ended.stderr[-2000:]}"
    return ended.stdout


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

    def build(self, **more):
        if not self.has("pip") or not self.has("setuptools"):
            self.skipTest(f"{sys.executable} has no pip or no setuptools")
        script = support.HERE.parent / "build_wheel.sh"
        out = run("sh", script, self.folder / "dist", env={**self.environment(), "ZF_PYTHON": sys.executable, **more})
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
        self.assertRegex(wheel.name, rf"^zfplugin-{re.escape(zfplugin.__version__)}-py3-none-(linux|manylinux_2_\d+)_(x86_64|aarch64)\.whl$")
        files = {file.filename: file for file in zipfile.ZipFile(wheel).infolist()}
        self.assertIn("zfplugin/lib/libzfplugin.so.0", files)
        self.assertIn(f"zfplugin-{zfplugin.__version__}.dist-info/licenses/LICENSE", files)
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

    def part_of_a_build(self):
        """A folder that is configured as that of this build, with nothing built; its targets zfplugin and zf bring their own files."""
        whole, part = Path(os.environ["ZFPLUGIN_BUILD"]), self.folder / "part"
        for name in [*(path.relative_to(whole) for path in whole.rglob("cmake_install.cmake")), "CMakeCache.txt"]:
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            (part / name).write_text((whole / name).read_text().replace(str(whole), str(part)))
        shutil.copytree(whole / "links", part / "links", symlinks=True)  # made with the configuration
        targets = {"zfplugin": sorted(f"plugin/{path.name}" for path in whole.glob("plugin/libzfplugin.so.*")), "zf": ["bindings/cli/zf"]}
        rules = [f"build {file}: bring {whole / file}" for files in targets.values() for file in files]
        rules += [f"build {name}: phony {' '.join(files)}" for name, files in targets.items()]
        (part / "build.ninja").write_text("\n".join(["rule bring", "  command = cp -d $in $out", *rules, ""]))
        return part

    def test_a_build_of_some_targets(self):
        if "CMAKE_GENERATOR:INTERNAL=Ninja" not in (Path(os.environ["ZFPLUGIN_BUILD"]) / "CMakeCache.txt").read_text():
            self.skipTest("this build is not Ninja's")
        part = self.part_of_a_build()
        with zipfile.ZipFile(self.build(ZFPLUGIN_BUILD=str(part))) as wheel:
            files = {Path(name).name for name in wheel.namelist()}
        self.assertTrue({"libzfplugin.so.0", "zf", "plan.py"} <= files, files)
        self.assertEqual(files & {"zf-conform", "zf-host"}, set())
