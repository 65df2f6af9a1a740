# SPDX-License-Identifier: Apache-2.0
"""Puts the library and its programs into the Python package; everything else is in pyproject.toml.

CMake builds them (a C compiler, CMake and the packages of conformance/deps.sh are needed then, at build time only) and installs the
components runtime, tools and, where -DZF_CONFORMANCE=ON is among $CMAKE_ARGS, conformance: zfplugin/lib/libzfplugin.so.0 and
zfplugin/bin/zf, zf-conform, zf-host. $ZFPLUGIN_BUILD names the folder of a build that is there already: what it has of them is taken,
and the library and zf are built there where it lacks them. What they need (libinih, libjansson) stays where it is: build_wheel.sh has
auditwheel copy it into the wheel, and names the file of its licences in $ZF_LICENSES. The wheel is py3-none-<platform of the library>: no
part of it depends on a version of Python. All that setuptools and CMake write lies in build/python.
"""
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools < 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
BASE = ROOT / "build" / "python"
SONAME = "libzfplugin.so.0"
PLATFORMS = {62: "linux_x86_64", 183: "linux_aarch64"}  # ELF's numbers of machines


def run(*command):
    print("+", " ".join(map(str, command)), flush=True)
    subprocess.run(list(map(str, command)), check=True)


def build(folder):
    """Builds in folder."""
    if not shutil.which("cmake"):
        sys.exit("zfplugin: cmake is not installed (Debian: apt-get install cmake build-essential; see conformance/deps.sh)")
    options = ["-DZF_TESTS=OFF", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    if shutil.which("ninja"):
        options += ["-G", "Ninja"]
    if shutil.which("ccache"):
        options += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"]
    run("cmake", "-S", ROOT, "-B", folder, *options, *shlex.split(os.environ.get("CMAKE_ARGS", "")))
    run("cmake", "--build", folder, "--parallel", os.cpu_count() or 1)


def install(folder, target):
    """Installs what was built in folder into target: lib, bin, libexec."""
    if not (Path(folder) / "cmake_install.cmake").exists():
        sys.exit(f"zfplugin: {folder} (from ZFPLUGIN_BUILD) is no folder that CMake built in")
    run("cmake", "--build", folder, "--parallel", os.cpu_count() or 1, "--target", "zfplugin", "zf")
    has_conformance = (Path(folder) / "conformance" / "zf-conform").exists() and (Path(folder) / "conformance" / "host" / "zf-host").exists()
    for component in ("runtime", "tools", *["conformance"] * has_conformance):
        run("cmake", "--install", folder, "--prefix", target, "--strip", "--component", component)


def copy(files, target):
    """Links are followed: a wheel has none."""
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, target / file.name)


def bring_accuracy(package, is_link):
    """The campaigns of conformance/accuracy as zfplugin.accuracy."""
    source, target = ROOT / "conformance" / "accuracy", package / "accuracy"
    if not is_link:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    elif not target.exists():
        target.symlink_to(source, target_is_directory=True)


def platform_of(library):
    header = library.read_bytes()[:20]
    machine = struct.unpack_from("<H", header, 18)[0] if header[:4] == b"\x7fELF" else None
    if machine not in PLATFORMS:
        sys.exit(f"zfplugin: {library} is no library of x86-64 or arm64")
    return PLATFORMS[machine]


class BuildPy(build_py):
    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)  # an earlier revision's modules
        super().run()
        is_link = getattr(self, "editable_mode", False)
        package = (ROOT / "bindings" / "python" if is_link else Path(self.build_lib)) / "zfplugin"
        bring_accuracy(package, is_link)
        folder = os.environ.get("ZFPLUGIN_BUILD")
        if not folder:
            folder = Path(self.get_finalized_command("build").build_base) / "cmake"
            build(folder)
        with tempfile.TemporaryDirectory() as name:
            installed = Path(name)
            install(folder, installed)
            copy([next(installed.rglob(SONAME))], package / "lib")
            copy([installed / "bin" / "zf", *sorted(p for p in (installed / "libexec" / "zfplugin").glob("*") if p.is_file())], package / "bin")


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", platform_of(next(Path(self.bdist_dir).rglob(SONAME)))

    def egg2dist(self, egginfo_path, distinfo_path):
        super().egg2dist(egginfo_path, distinfo_path)
        if os.environ.get("ZF_LICENSES"):
            copy([Path(os.environ["ZF_LICENSES"])], Path(distinfo_path) / "licenses")


class Platform(Distribution):
    def has_ext_modules(self):
        return True


BASE.mkdir(parents=True, exist_ok=True)
setup(version=re.search(r"^project\(zfplugin VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE).group(1),
      options={"build": {"build_base": str(BASE)}, "egg_info": {"egg_base": str(BASE)}},
      cmdclass={"build_py": BuildPy, "bdist_wheel": PlatformWheel}, distclass=Platform)
