# SPDX-License-Identifier: Apache-2.0
"""Runs test files for ctest: run_tests.py FILE... [--needs-PACKAGE ...]. Exit status 77, with the reason, where
it cannot run; with CI set, which promises that everything is installed, that is a failure.

unittest, which every Python has; under pytest the files run as they are. ZF_PYTHON names another interpreter to run them
with (one that has torch): tests/run.sh sets it to a virtual environment.
"""
import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def skip(reason):
    print(reason)
    sys.exit(1 if os.environ.get("CI") else 77)


def main():
    other = os.environ.get("ZF_PYTHON")
    if other and not os.environ.get("ZF_PYTHON_IS_CHOSEN"):
        sys.exit(subprocess.run([other, __file__, *sys.argv[1:]], check=False,
                                env={**os.environ, "ZF_PYTHON_IS_CHOSEN": "1"}).returncode)
    if sys.version_info < (3, 9):
        skip("python %d.%d is older than 3.9" % sys.version_info[:2])
    for package in [word[len("--needs-"):] for word in sys.argv if word.startswith("--needs-")]:
        if importlib.util.find_spec(package) is None:
            skip(f"{package} is not installed for {sys.executable}")
    if not any(word.startswith("--needs-") for word in sys.argv):
        sys.modules["torch"] = None  # importing it takes longer than these tests do
    import unittest

    class Result(unittest.TextTestResult):
        def startTest(self, test):
            gc.collect()
            gc.freeze()  # what was imported by now: to look through it each time is a third of what some tests do
            super().startTest(test)

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    files = [HERE / x for x in sys.argv[1:] if not x.startswith("-")]
    sys.path[:0] = dict.fromkeys([*(str(x.parent) for x in files), str(HERE)])
    names = [x.stem for x in files]
    name = " ".join(names)
    suites = [unittest.defaultTestLoader.loadTestsFromName(x) for x in names]
    for suite in suites:
        if suite.countTestCases() == 0:
            sys.exit(f"{name}: a file without a test")
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(unittest.TestSuite(suites))
    for test, reason in result.skipped:
        print(f"skipped: {test}: {reason}")
    if result.wasSuccessful() and len(result.skipped) == result.testsRun:
        skip(f"every test of {name} was skipped: {result.skipped[0][1]}")
    if result.skipped and os.environ.get("CI"):
        sys.exit(f"{name}: {len(result.skipped)} tests were skipped, and CI is set")
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
