"""Runs one test file for ctest: run_tests.py FILE [--needs-torch]. Exit status 77, with the reason, where it cannot run.

unittest, which every Python has; under pytest the files run as they are. ZF_PYTHON names another interpreter to run them
with (one that has torch): tests/run.sh sets it to a virtual environment.
"""
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def skip(reason):
    print(reason)
    sys.exit(77)


def main():
    other = os.environ.get("ZF_PYTHON")
    if other and not os.environ.get("ZF_PYTHON_IS_CHOSEN"):
        sys.exit(subprocess.run([other, __file__, *sys.argv[1:]], check=False,
                                env={**os.environ, "ZF_PYTHON_IS_CHOSEN": "1"}).returncode)
    if sys.version_info < (3, 9):
        skip("python %d.%d is older than 3.9" % sys.version_info[:2])
    if "--needs-torch" in sys.argv:
        try:
            import torch  # noqa: F401
        except ImportError as problem:
            skip(f"torch is not installed for {sys.executable} ({problem})")
    import unittest

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(HERE))
    name = Path(sys.argv[1]).stem
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromName(name))
    if result.testsRun == 0:
        sys.exit(f"{name}: no test ran")
    for test, reason in result.skipped:
        print(f"skipped: {test}: {reason}")
    if result.wasSuccessful() and len(result.skipped) == result.testsRun:
        skip(f"every test of {name} was skipped: {result.skipped[0][1]}")
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
