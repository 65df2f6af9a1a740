# SPDX-License-Identifier: Apache-2.0
"""The commands zf, zf-conform and zf-host of an installed package: the programs inside it, with the library that Python opens.

zf-conform has this Python train and draw. ZFPLUGIN_PATH and ZF_PYTHON in the environment come first, as ever.
"""
import os
import sys
from pathlib import Path

from . import library

FOLDER = Path(__file__).resolve().parent / "bin"


def run(name):
    """Becomes the program; does not return. Exit status 2 where it cannot be run."""
    program = FOLDER / name
    if not os.access(program, os.X_OK):
        print(f"{name}: this installation of zfplugin does not hold it ({program} is not there): install a wheel of "
              "bindings/python/build_wheel.sh, or build it with CMake (README.md)", file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("ZFPLUGIN_PATH", library.find())
    os.environ.setdefault("ZF_PYTHON", sys.executable)
    os.execv(program, [name, *sys.argv[1:]])


def zf():
    run("zf")


def zf_conform():
    run("zf-conform")


def zf_host():
    run("zf-host")
