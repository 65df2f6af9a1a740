# SPDX-License-Identifier: Apache-2.0
"""Runs: each is a process of its own with one thread of matrix products, kept under the hash of everything that decides its result."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys

from ..glue import judge
from . import data
from .plan import Cell, Setting

PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Several runs share the machine: one worker each, pinned nowhere. The values do not depend on it.
THREADS = ("host.threads=1", "host.affinity=none")


class RunError(RuntimeError):
    """A run could not be made: one line that says which and why."""


@dataclasses.dataclass(frozen=True)
class Programs:
    """What runs are made with."""

    plugin: str
    host: str | None  # zf-host; None: cells of it cannot run
    model: str | None  # folder of the pretrained encoder
    data: str  # what data.prepare() wrote
    out: str
    digests: dict[str, str]  # of each task's files


def find_host(path: str | None) -> str | None:
    """zf-host: the path given, else beside zf-conform ($ZF_CONFORM, the PATH), or in host/ there."""
    conform = judge.find_conform()
    places = [path] if path else [os.path.join(os.path.dirname(conform), p) for p in ("zf-host", "host/zf-host")] if conform else []
    return next((p for p in places if os.access(p, os.X_OK)), None)


@functools.cache
def digest(path: str) -> str:
    return data.digest(path)


def arguments(cell: Cell, setting: Setting, seed: int) -> list[str]:
    """What the run's program is told, without paths."""
    cell = dataclasses.replace(cell, lr=cell.lr * setting.rate_factor)
    out = [*cell.arguments(), "--seed", str(seed), "--optimizer", "plugin" if setting.is_plugin else "adamw"]
    for override in (*setting.overrides, *THREADS) if setting.is_plugin else ():
        out += ["--set", override]
    return out


def command(cell: Cell, setting: Setting, seed: int, p: Programs, out: str) -> list[str]:
    more = ["--plugin", p.plugin] if setting.is_plugin else []
    if cell.task == "gpt":
        program = [sys.executable, "-m", "zfplugin.ablation.gpt", "--data", os.path.join(p.data, data.TEXT)]
    else:
        program = [p.host, "--quiet", "--data", p.data]
        more += ["--model", p.model] if cell.is_pretrained else []
    return [*program, *arguments(cell, setting, seed), *more, "--out", out]


def file_of(cell: Cell, setting: Setting, seed: int, p: Programs) -> str:
    """Where a run is kept. Programs and data are named by their contents."""
    what = [arguments(cell, setting, seed), p.digests[cell.task]]
    if cell.task == "gpt":
        import torch

        what += [torch.__version__, digest(os.path.join(os.path.dirname(__file__), "gpt.py"))]
    else:
        what += [digest(p.host)]
    if cell.is_pretrained:
        what += [digest(os.path.join(p.model, name)) for name in ("model.safetensors", "vocab.txt")]
    if setting.is_plugin:
        what += [digest(p.plugin)]
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]
    return os.path.join(p.out, "runs", f"{cell.name}-{setting.name}-{seed}-{key}.json")


def train(cell: Cell, setting: Setting, seed: int, p: Programs, path: str) -> None:
    """Makes one run and keeps it. A run of the plugin that fails is a result ({"failure": why}); AdamW's must not fail."""
    part = path + ".part"
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                 "PYTHONPATH": os.pathsep.join((PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])))}
    done = subprocess.run(command(cell, setting, seed, p, part), env=variables, capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    if done.returncode == 1 and setting.is_plugin and cell.task != "gpt":
        result = {"failure": last}
    elif done.returncode != 0:
        raise RunError(f"{cell.name}, {setting.name}, seed {seed}: {last}")
    else:
        with open(part, encoding="utf-8") as file:
            result = json.load(file)
    with open(part, "w", encoding="utf-8") as file:
        json.dump({k: result[k] for k in ("losses", "seconds", "parameters", "failure") if k in result}, file)
    os.replace(part, path)


def make(plan: list, p: Programs, n_jobs: int, is_kept_only: bool, say=print, show=lambda n_done, n_all: None) -> dict:
    """The runs of plan, a list of (cell, setting, seed) in the order to make them, as {(cell name, setting name, seed): run}; those that
    are not kept and may not be made are left out."""
    paths = {job: file_of(*job, p) for job in plan}
    missing = [] if is_kept_only else [job for job in plan if not os.path.exists(paths[job])]
    os.makedirs(os.path.join(p.out, "runs"), exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(n_jobs) as pool:
        show(0, len(missing))
        started = {pool.submit(train, *job, p, paths[job]): job for job in missing}
        try:
            for n, future in enumerate(concurrent.futures.as_completed(started), 1):
                future.result()
                cell, setting, seed = started[future]
                say(f"run {n} of {len(missing)}: {cell.name}, {setting.name}, seed {seed}")
                show(n, len(missing))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {(cell.name, setting.name, seed): read(paths[cell, setting, seed])
            for cell, setting, seed in plan if os.path.exists(paths[cell, setting, seed])}


def read(path: str) -> dict:
    with open(path, encoding="utf-8") as file:
        return json.load(file)
