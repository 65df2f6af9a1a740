# SPDX-License-Identifier: Apache-2.0
"""mutant_bench.py - one scratch copy of the sources with its build, and the judges of a mutant in it.

Judges, in this order up to the first that fails: `zf-conform exact`, `zf-conform abi`, the Check programs of tests/ with
exact_shuffle, and those on the doubles of tests/cuda, all for plugin/device/cuda and comm/nccl.c, two for others; `zf-conform shard` on three ranks, where mpirun is; exact
with the quick Check programs once more under the address and undefined-behaviour sanitizers; and the Check programs of threads under the
thread sanitizer. Which Check program comes first decides what a kill costs and never whether there is one: the program named
after the mutant's file, then those that killed mutants of its folder before, then the quick ones. Each is linked only when
its turn comes. On a busy machine a test may miss a deadline of its own, so a Check program must fail twice, and a case of exact
that gives no answer in time is judged again with three times the deadline.
"""
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JUDGES = ("exact", "abi", "check", "shard", "sanitizer", "race")
QUICK_JUDGES = JUDGES[:4]
# Folders of the build with Check programs of the engine, and which of their tests; exact once more on a backend that delays what it may.
CHECK_TESTS = (("tests/plugin", "."), ("tests/kernels", "."), ("tests/device", "^(test_backends|exact_shuffle)$"))
# On the doubles of tests/cuda, where they were built: first for the CUDA backend and NCCL's transport; for all others two whole runs last.
CUDA_FOR_ALL = ("cuda_exact", "test_cuda_nccl_discard")
CUDA_TESTS = ("tests/cuda", "^(test_cuda_backend|test_cuda_backend_no_memops|test_cuda_nccl|test_cuda_nccl_discard|cuda_exact|cuda_exact_one_queue|cuda_exact_no_memops)$")
# Tests that are no programs of their own name.
TARGETS = {"exact_shuffle": "zfplugin_shuffle", "cuda_exact": "zf_double", "cuda_exact_one_queue": "zf_double",
           "cuda_exact_no_memops": "zf_double", "test_cuda_backend_no_memops": "test_cuda_backend"}
MOST_DATA = 8 << 30  # written memory; a test reserves address space beyond it
CASE_DEADLINE_S = 20
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", "lo",
          "--mca", "btl_vader_single_copy_mechanism", "none", "-n", "3"]  # as tests/ranks.sh
SANITIZED_CASES = 40
RACE_TESTS = "^test_(workers|stress|hosts|queue|behind|late_.*|at_fetch|ranks|ranks_lateness|trace|step_record)$"
SANITIZED_MOST_S = 2.0  # Check programs that take longer on the unchanged sources are not run under the sanitizers


def child_limits():
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA, MOST_DATA))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 44, 1 << 44))  # tests make hollow files


def run(command, cwd, limit_s, env=None, is_limited=True):
    """(exit status, text); status None: it ran into its time limit."""
    child = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                             env={**os.environ, **(env or {})}, start_new_session=True,
                             preexec_fn=child_limits if is_limited else None)
    try:
        text, _ = child.communicate(timeout=limit_s)
        return child.returncode, text
    except subprocess.TimeoutExpired:
        return None, "time limit"
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


@dataclass
class CheckTest:
    name: str
    target: str
    command: list
    env: dict
    cwd: str
    seconds: float = 0.0  # on the unchanged sources


@dataclass
class Costs:
    """What the unchanged sources took, shared by the benches that work side by side."""
    seconds: dict = field(default_factory=dict)  # judge or test -> seconds
    kills: Counter = field(default_factory=Counter)  # (folder, test) -> mutants killed

    def limit_s(self, name):
        return max(300, 20 * self.seconds.get(name, 0))


def room(file):
    return "/".join(file.split("/")[:2])


def check_order(tests, file, costs):
    """The Check programs in the order in which a mutant of `file` meets them."""
    own = Path(file).stem
    is_cudas = "/cuda/" in file or own == "nccl"
    tests = [t for t in tests if is_cudas or "cuda_" not in t.name or (file and t.name in CUDA_FOR_ALL)]
    return sorted(tests, key=lambda t: (t.name not in (f"test_{own}", f"test_kernels_{own}"), ("cuda_" in t.name) != is_cudas, -costs.kills[room(file), t.name], t.seconds, t.name))


def first_reason(name, status, text):
    if status is None:
        return "time limit"
    lines = [line.strip() for line in text.split("\n")]
    if name == "exact":
        marks = [line for line in lines if re.match(r"law \d+: ", line)]
    else:
        marks = [line for line in lines if " fail " in line or "FAIL" in line]
    return (marks[0] if marks else f"exit {status}")[:100]


class Build:
    """One build of the scratch copy: the library, and the Check programs, each linked when its turn comes."""
    def __init__(self, source, folder, tmp, options, is_limited=True, env=None):
        self.source, self.folder, self.tmp, self.options, self.is_limited, self.env = source, folder, tmp, options, is_limited, env or {}
        self.tests = []
        folder.mkdir(parents=True, exist_ok=True)

    def configure(self, targets):
        launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        status, text = run(["cmake", "-S", str(self.source), "-B", str(self.folder), "-G", "Ninja", *self.options, *launcher],
                           self.source, 600, is_limited=False)
        if status == 0:
            status, text = self.ninja(targets, 7200)
        if status != 0:
            sys.exit(f"mutate: the unchanged sources do not build:\n{text[-3000:]}")

    def list_tests(self, folders):
        for folder, which in folders:
            listed = json.loads(subprocess.check_output(["ctest", "--test-dir", str(self.folder / folder), "-R", which, "--show-only=json-v1"]))
            for test in listed["tests"]:
                of = {p["name"]: p["value"] for p in test["properties"]}
                env = dict(pair.split("=", 1) for pair in of.get("ENVIRONMENT", []) if "=" in pair)
                target = TARGETS.get(test["name"], test["name"])
                command = test.get("command") or [str(self.folder / folder / target)]  # CTest leaves out what is not built yet
                self.tests.append(CheckTest(test["name"], target, command, env,
                                            of.get("WORKING_DIRECTORY", str(self.folder / folder))))

    def ninja(self, targets, limit_s=1800):
        return run(["ninja", "-C", str(self.folder), "-j1", *targets], self.source, limit_s, is_limited=False)

    def library(self):
        return self.folder / "plugin" / "libzfplugin.so"

    def conform(self, area, arguments, limit_s, before=()):
        command = [*before, str(self.folder / "conformance" / "zf-conform"), area, "--plugin", str(self.library()), *arguments]
        return run(command, self.tmp, limit_s, {"TMPDIR": str(self.tmp), **self.env}, self.is_limited)

    def run_test(self, test, limit_s):
        """(exit status, text)"""
        status, text = self.ninja([test.target])
        if status != 0:
            return status, "does not link"
        return run(test.command, test.cwd, limit_s, {"TMPDIR": str(self.tmp), "CK_DEFAULT_TIMEOUT": "60", **test.env, **self.env}, self.is_limited)


class Bench:
    def __init__(self, work, cases, costs, judges):
        self.source, self.tmp = work / "source", work / "tmp"
        self.cases, self.costs, self.judges = cases, costs, judges
        self.plain = Build(self.source, work / "build", self.tmp, ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS=-w"])
        self.sanitized = Build(self.source, work / "sanitized", self.tmp,
                               ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS=-w", "-DCMAKE_C_FLAGS_DEBUG=-g -O1", "-DZF_SANITIZE=address",
                                "-DZF_CUDA=OFF"], False, {"ASAN_OPTIONS": "exitcode=99", "CK_DEFAULT_TIMEOUT": "180"})
        self.racing = Build(self.source, work / "racing", self.tmp,
                            ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS=-w", "-DCMAKE_C_FLAGS_DEBUG=-g -O1", "-DZF_SANITIZE=thread",
                             "-DZF_CUDA=OFF"], False, {"CK_DEFAULT_TIMEOUT": "180"})
        for folder in (self.source, self.tmp):
            folder.mkdir(parents=True, exist_ok=True)
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n"):
            if name and (ROOT / name).is_file():
                self.copy(name)

    def copy(self, name):
        to = self.source / name
        text = (ROOT / name).read_bytes()
        if not to.exists() or to.read_bytes() != text:
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to)

    def configure(self):
        self.plain.configure(["zfplugin", "zf-conform", *(["zf_mpi"] if shutil.which("mpirun") else [])])
        self.plain.list_tests((*CHECK_TESTS, CUDA_TESTS))
        self.sanitized.configure(["zfplugin", "zf-conform"])
        self.sanitized.list_tests((("tests/plugin", "."), ("tests/kernels", ".")))
        if "race" in self.judges:
            self.racing.configure(["zfplugin"])
            self.racing.list_tests((("tests/plugin", RACE_TESTS),))

    def digest(self):
        return hashlib.sha256(self.plain.library().read_bytes()).hexdigest()

    def judge(self, name, file=""):
        """(is killed, why); file: where the mutant is."""
        if name == "check":
            return self.judge_by_tests(self.plain, check_order(self.plain.tests, file, self.costs), file)
        if name == "sanitizer":
            return self.judge_sanitized(file)
        if name == "race":
            return self.judge_by_tests(self.racing, check_order(self.racing.tests, file, self.costs), file)
        if name == "shard" and not shutil.which("mpirun"):
            return False, ""
        deadline = CASE_DEADLINE_S
        status, text = self.conform(name, deadline)
        if status is None or "no answer within" in text:
            status, text = self.conform(name, 3 * deadline)
        return status != 0, first_reason(name, status, text)

    def conform(self, name, deadline):
        seeded = ["--seed", "20260", "--max-failures", "1"]
        if name == "exact":
            arguments = ["--cases", str(self.cases), *seeded, "--deadline", str(deadline), "--jobs", "1"]
        elif name == "shard":
            arguments = ["--mpi", str(self.plain.folder / "bindings" / "mpi" / "libzf_mpi.so"), "--cases", "30", "--seed", "20260"]
        else:
            arguments = ["--headers", str(self.source / "abi" / "include")]
        return self.plain.conform(name, arguments, self.costs.limit_s(name), MPIRUN if name == "shard" else ())

    def judge_by_tests(self, build, tests, file):
        for test in tests:
            limit_s = self.costs.limit_s(test.name)
            status, text = build.run_test(test, limit_s)
            if status not in (0, 77, None):
                status, text = build.run_test(test, limit_s)
            if status not in (0, 77):
                self.costs.kills[room(file), test.name] += 1
                return True, test.name if status is not None and text != "does not link" else f"{test.name}: {text}"
        return False, ""

    def judge_sanitized(self, file):
        build = self.sanitized
        status, text = build.ninja(["zfplugin"])
        if status != 0:
            return True, "does not build"
        status, text = build.conform("exact", ["--cases", str(SANITIZED_CASES), "--seed", "20260", "--max-failures", "1", "--deadline", "120", "--jobs", "1"],
                                     self.costs.limit_s("sanitizer"))
        if status != 0:
            return True, first_reason("exact", status, text)
        own = (f"test_{Path(file).stem}", f"test_kernels_{Path(file).stem}")
        tests = [t for t in check_order(build.tests, file, self.costs)
                 if t.name in own or self.costs.seconds.get(t.name, 0) <= SANITIZED_MOST_S]
        return self.judge_by_tests(build, tests, file)

    def sources(self):
        """A digest of all that is built and run here."""
        out = hashlib.sha256()
        for path in sorted(self.source.rglob("*")):
            if path.is_file() and "results" not in path.parts and "mutant" not in path.name and "mutate" not in path.name:
                out.update(str(path).encode() + b"\0" + path.read_bytes())
        return out.hexdigest()

    def baseline(self):
        """All judges pass the unchanged sources; their times set limits and order. Known from an earlier run with the same
        sources, if there was one."""
        known, sources = self.tmp.parent / "baseline.json", self.sources()
        if known.exists() and json.loads(known.read_text())["sources"] == sources:
            self.costs.seconds = json.loads(known.read_text())["seconds"]
            return
        self.judge_unchanged()
        known.write_text(json.dumps({"sources": sources, "seconds": self.costs.seconds}))

    def judge_unchanged(self):
        for name in ("exact", "abi", "shard"):
            start = time.monotonic()
            is_killed, why = self.judge(name)
            if is_killed:
                sys.exit(f"mutate: {name} fails on the unchanged sources: {why}")
            self.costs.seconds[name] = time.monotonic() - start
        for test in check_order(self.plain.tests, "", self.costs):
            for _ in range(3):
                start = time.monotonic()
                status, text = self.plain.run_test(test, self.costs.limit_s(test.name))
                if status in (0, 77):
                    break
            if status not in (0, 77):
                sys.exit(f"mutate: {test.name} fails on the unchanged sources:\n{text[-2000:]}")
            self.costs.seconds[test.name] = time.monotonic() - start
        start = time.monotonic()
        is_killed, why = self.judge("sanitizer")
        if is_killed:
            sys.exit(f"mutate: sanitizer fails on the unchanged sources: {why}")
        self.costs.seconds["sanitizer"] = time.monotonic() - start
        if "race" in self.judges and self.judge("race")[0]:
            sys.exit("mutate: the Check programs fail on the unchanged sources under the thread sanitizer")
        print("unchanged: " + ", ".join(f"{k} {v:.0f} s" for k, v in self.costs.seconds.items() if v >= 1), flush=True)

    def ready(self):
        """The unchanged library's digest; to be called when it is built and the baseline is known."""
        for test in self.plain.tests + self.sanitized.tests:
            test.seconds = self.costs.seconds.get(test.name, 0.0)
        return self.digest()

    def judge_one(self, mutant, original):
        """A record, or None where it does not compile."""
        path = self.source / mutant.file
        source = path.read_text()
        lines = source.split("\n")
        lines[mutant.line - 1] = mutant.text
        start = time.monotonic()
        try:
            path.write_text("\n".join(lines))
            status, _ = self.plain.ninja(["zfplugin"])
            if status != 0:
                return None
            record = {"name": mutant.name, "kind": mutant.kind, "line": mutant.line, "killed_by": "", "why": ""}
            if self.digest() == original:
                return {**record, "why": "the same library"}
            for name in self.judges:
                is_killed, why = self.judge(name, mutant.file)
                if is_killed:
                    return {**record, "killed_by": name, "why": why, "seconds": round(time.monotonic() - start)}
            return {**record, "why": "survived", "seconds": round(time.monotonic() - start)}
        finally:
            path.write_text(source)
            for leftover in self.tmp.iterdir():
                shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()
