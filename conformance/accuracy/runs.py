# SPDX-License-Identifier: Apache-2.0
"""Runs: each is a process of its own, kept in a file that is named after everything that decides its result.

A kept file is the report that the trainer wrote, or {"failure": why} where the campaign goes on after a run of the plugin that failed. It appears at once, by a rename, so an interrupted campaign finds whole runs only.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import queue
import signal
import statistics
import subprocess
import threading


class CannotRun(RuntimeError):
    """Nothing can be judged: one line that says what is missing or wrong."""


class PluginFailed(RuntimeError):
    """A run of the plugin failed: one line that says which, and its last words."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run."""

    name: str  # of its file: letters, digits, "-"
    title: str  # in messages
    command: tuple[str, ...]  # the program; "--out FILE" is put behind it
    key: str  # key_of() all that decides the result
    n_steps: int
    is_plugin: bool
    environment: tuple = ()  # (name, value) pairs on top of this process's

    def kept_in(self, folder: str) -> str:
        return os.path.join(folder, "runs", f"{self.name}-{self.key}.json")


def key_of(*parts) -> str:
    """A hash of lists, numbers and texts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@functools.cache
def digest(path: str) -> str:
    """SHA-256 of a file."""
    value = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                value.update(block)
    except OSError as error:
        raise CannotRun(f"{path}: cannot read: {error.strerror}") from None
    return value.hexdigest()


def make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise CannotRun(f"{path}: cannot make this folder: {error.strerror}") from None


def write(path: str, text: str) -> None:
    write_bytes(path, [text.encode()])


def write_bytes(path: str, pieces) -> None:
    """Replaces the file whole: a reader sees the old one or the new one."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            file.writelines(pieces)
        os.replace(part, path)
    except OSError as error:
        raise CannotRun(f"{path}: cannot write: {error.strerror}") from None


def is_whole(report, run: Run) -> bool:
    """Whether it is the report of this run, with all its losses."""
    losses = report.get("losses") if isinstance(report, dict) else None
    return isinstance(losses, list) and len(losses) == run.n_steps


def read_kept(path: str, run: Run, takes_failures: bool):
    """What is kept of the run; None where there is nothing, or not the whole of it."""
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
    except (OSError, ValueError):
        return None
    has_failed = isinstance(result, dict) and "failure" in result
    return result if (takes_failures if has_failed else is_whole(result, run)) else None


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def last_quarter(losses) -> float:
    """Mean training loss of the last quarter of the steps."""
    return statistics.fmean(losses[-max(1, len(losses) // 4):])


class Pool:
    """Runs under way. Threads wait for the processes; the caller takes the results in the order in which they end."""

    def __init__(self, folder: str, goes_on: bool):
        self.folder, self.goes_on = folder, goes_on
        self.lock, self.processes, self.is_ending = threading.Lock(), set(), False

    def train(self, run: Run) -> dict:
        """Does one run and keeps it. Raises CannotRun or PluginFailed."""
        path = run.kept_in(self.folder)
        part = f"{path}.{os.getpid()}.part"
        try:
            status, said = self._process([*run.command, "--out", part], run)
            if status != 0:
                return self._failed(run, path, status, last_line(said))
            try:
                with open(part, encoding="utf-8") as file:
                    result = json.load(file)
            except (OSError, ValueError) as error:
                raise CannotRun(f"{run.title}: its report cannot be read: {error}") from None
            if not is_whole(result, run):
                raise CannotRun(f"{run.title}: not the report of {run.n_steps} steps that was expected")
            os.replace(part, path)
            return result
        finally:
            if os.path.exists(part):
                os.unlink(part)

    def _process(self, command, run: Run):
        """Exit status (negative: a signal's number) and standard error."""
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **dict(run.environment)}
        with self.lock:
            if self.is_ending:
                raise CannotRun(f"{run.title}: not started")
            try:
                process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.PIPE, text=True, errors="replace")
            except OSError as error:
                raise CannotRun(f"{run.title}: {command[0]}: {error.strerror}") from None
            self.processes.add(process)
        _, said = process.communicate()
        with self.lock:
            self.processes.discard(process)
        return process.returncode, said

    def _failed(self, run: Run, path: str, status: int, said: str):
        if self.is_ending or -status in (signal.SIGINT, signal.SIGTERM):  # from outside: no failure of the run
            raise CannotRun(f"{run.title}: stopped")
        what = f"{run.title}: " + (f"the process ended by signal {-status}; {said}" if status < 0 else f"exit status {status}: {said}")
        if not run.is_plugin or status not in (1, *range(-64, 0)):  # 2: it could not start; 127: no program
            raise CannotRun(what)
        if not self.goes_on:
            raise PluginFailed(what)
        write(path, json.dumps({"failure": what}) + "\n")
        return {"failure": what}

    def end(self) -> None:
        """Ends what runs; nothing starts any more."""
        with self.lock:
            self.is_ending = True
            for process in self.processes:
                process.terminate()


def make(plan: list, folder: str, n_jobs: int, line, describe=lambda run, result: run.title, goes_on=False, is_kept_only=False) -> dict:
    """Does the runs of the plan that are not kept, `n_jobs` at a time, in its order. Returns {run: what is kept}; with is_kept_only nothing
    is done, and runs that are not kept are left out. line: a progress.Line. describe: a line's words on a finished run."""
    make_folder(os.path.join(folder, "runs"))
    done = {run: read_kept(run.kept_in(folder), run, goes_on) for run in plan}
    missing = [run for run in done if done[run] is None]
    n_all, n_kept = len(done), len(done) - len(missing)
    if n_kept:
        line.say(f"  {n_kept} of {n_all} runs are kept from before, {len(missing)} to do")
    if is_kept_only:
        return {run: result for run, result in done.items() if result is not None}
    pool, todo, ended = Pool(folder, goes_on), queue.SimpleQueue(), queue.SimpleQueue()
    for run in missing:
        todo.put(run)

    def work():
        try:
            while True:
                run = todo.get_nowait()
                ended.put((run, pool.train(run)))
        except queue.Empty:
            pass
        except BaseException as problem:  # told by the caller's thread
            ended.put((None, problem))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(n_jobs, len(missing)))]
    try:
        for thread in threads:
            thread.start()
        for n, _ in enumerate(missing):
            line.show("training", n, len(missing))
            run, result = ended.get()
            if run is None:
                raise result
            done[run] = result
            line.say(f"  {n_kept + n + 1} of {n_all}: " + (f"FAILED: {result['failure']}" if "failure" in result else describe(run, result)))
    finally:
        pool.end()
        for thread in threads:
            if thread.is_alive():
                thread.join()
    return done
