# SPDX-License-Identifier: Apache-2.0
"""Puts libzfplugin.so into the package; everything else is in pyproject.toml.

The library comes from $ZFPLUGIN_LIBRARY if that is set, else CMake builds it from this repository (a C compiler, CMake and
the packages of conformance/deps.sh are needed then, at build time only; $CMAKE_ARGS adds options). What it needs besides the C library (libinih,
libjansson) is copied beside it, so that the wheel runs where no package is installed. The wheel is py3-none-<platform>: no part of it depends
on a version of Python.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools < 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("ZF_SOURCE_DIR") or HERE.parent.parent)
SONAME = "libzfplugin.so.1"


def run(*command):
    print("+", " ".join(map(str, command)), flush=True)
    subprocess.run(list(map(str, command)), check=True)


def build_library(folder):
    """Builds the library with CMake in folder; its path."""
    if not (ROOT / "plugin" / "CMakeLists.txt").exists():
        sys.exit(f"zfplugin: {ROOT} is not the repository of libzfplugin, so the library cannot be built: install from "
                 "bindings/python of a checkout, or set ZFPLUGIN_LIBRARY to a built libzfplugin.so")
    if not shutil.which("cmake"):
        sys.exit("zfplugin: cmake is not installed (Debian: apt-get install cmake build-essential; see conformance/deps.sh), or set "
                 "ZFPLUGIN_LIBRARY to a built libzfplugin.so")
    options = ["-DZF_TESTS=OFF", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
               "-DCMAKE_INSTALL_RPATH=$ORIGIN", "-DCMAKE_SHARED_LINKER_FLAGS=-s"]
    if shutil.which("ninja"):
        options += ["-G", "Ninja"]
    if shutil.which("ccache"):
        options += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"]
    run("cmake", "-S", ROOT, "-B", folder, *options, *shlex.split(os.environ.get("CMAKE_ARGS", "")))
    run("cmake", "--build", folder, "--target", "zfplugin", "--parallel", os.cpu_count() or 1)
    return folder / "plugin" / SONAME


def needed_libraries(library):
    """[(name, path)] of what the dynamic linker finds for it besides the C library."""
    out = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
    found = re.findall(r"(lib\S+) => (/\S+)", out)
    return [(name, Path(path)) for name, path in found if not re.match(r"lib(c|m|dl|rt|pthread)\.so", name)]


class BuildPy(build_py):
    def run(self):
        super().run()
        target = (HERE if getattr(self, "editable_mode", False) else Path(self.build_lib)) / "zfplugin" / "lib"
        target.mkdir(parents=True, exist_ok=True)
        given = os.environ.get("ZFPLUGIN_LIBRARY")
        library = Path(given) if given else build_library(HERE / "build" / "cmake")
        if not library.exists():
            sys.exit(f"zfplugin: {library} (from ZFPLUGIN_LIBRARY) does not exist")
        shutil.copyfile(library, target / SONAME)
        for name, path in needed_libraries(library):
            shutil.copyfile(path, target / name)


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Platform(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildPy, "bdist_wheel": PlatformWheel}, distclass=Platform)
