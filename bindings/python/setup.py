"""Puts libzfplugin.so into the package; everything else is in pyproject.toml.

The library comes from $ZFPLUGIN_LIBRARY if that is set, else CMake builds it from this repository (a C compiler, CMake and
libinih-dev are needed then, at build time only). libinih, the one library besides libc and libm that it needs, is copied
beside it, so that the wheel runs where no package is installed. The wheel is py3-none-<platform>: no part of it depends
on a version of Python.
"""
import os
import re
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
        sys.exit("zfplugin: cmake is not installed (Debian: apt-get install cmake build-essential libinih-dev), or set "
                 "ZFPLUGIN_LIBRARY to a built libzfplugin.so")
    options = ["-DZF_TESTS=OFF", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
               "-DCMAKE_INSTALL_RPATH=$ORIGIN", "-DCMAKE_SHARED_LINKER_FLAGS=-s"]
    if shutil.which("ninja"):
        options += ["-G", "Ninja"]
    if shutil.which("ccache"):
        options += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"]
    run("cmake", "-S", ROOT, "-B", folder, *options)
    run("cmake", "--build", folder, "--target", "zfplugin", "--parallel", os.cpu_count() or 1)
    return folder / "plugin" / SONAME


def needed_inih(library):
    """Path of the libinih that the dynamic linker finds for it, or None (linked statically)."""
    out = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(libinih\.so\S*) => (/\S+)", out)
    return (found[1], Path(found[2])) if found else None


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
        inih = needed_inih(library)
        if inih:
            shutil.copyfile(inih[1], target / inih[0])


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
