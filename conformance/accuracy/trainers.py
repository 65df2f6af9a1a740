# SPDX-License-Identifier: Apache-2.0
"""Who trains: the command line of a run, and everything that decides its result.

All arms of a seed start from the same weights and see the same rows in the same order at the same rates; only the optimizer differs.
Host is zf-host (conformance/host), one process with one thread of matrix products; Torch is
zfplugin.accuracy.pytorch, a fine-tune through the PyTorch binding. Both write the same report.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import zfplugin

from . import examples, probe, synthetic
from .runs import CannotRun, Run, digest, key_of, make_folder
from .tasks import Task, find_file


@dataclasses.dataclass(frozen=True)
class Arm:
    """An optimizer with its configuration, over seeds 1 to n_seeds."""

    name: str  # in file names and JSON
    title: str  # in tables
    n_seeds: int
    is_plugin: bool = False
    sets: tuple[str, ...] = ()  # "section.key=value"
    config: str | None = None  # INI file


def find_host(path: str | None) -> str:
    """zf-host: the path given, else beside zf-conform ($ZF_CONFORM, the PATH), or in host/ there."""
    conform = os.environ.get("ZF_CONFORM") or shutil.which("zf-conform") or ""
    folder = os.path.dirname(os.path.realpath(conform))
    places = [path] if path else [os.path.join(folder, name) for name in ("zf-host", "host/zf-host")]
    for place in places:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    raise CannotRun(f"{path or 'zf-host'}: no program; --host FILE names it (build/release/conformance/host/zf-host), or ZF_CONFORM the "
                    "zf-conform that it lies beside")


def first_lines(pattern: str, key: str) -> list[str]:
    """The first line that begins with key, of each file that the pattern names."""
    found = []
    for path in sorted(glob.glob(pattern)):
        with open(path, encoding="utf-8", errors="replace") as file:
            found += [next((line.strip() for line in file if line.startswith(key)), "")]
    return found


def machine(device: str | None) -> list[str]:
    """The processor's name and what OpenBLAS is told to take it for: sums of products are ordered by it. With a device, which there are."""
    own = [*first_lines("/proc/cpuinfo", "model name"), os.environ.get("OPENBLAS_CORETYPE", "")]
    return own + (first_lines("/proc/driver/nvidia/gpus/*/information", "Model") if device else [])


def data_digests(task: Task, data: str) -> dict[str, str]:
    """Of the task's files, by the names that the result has for them."""
    out = {"train": digest(find_file(task, data, "train.tsv")), "dev": digest(find_file(task, data, task.dev[0]))}
    return {**out, "second_dev": digest(find_file(task, data, task.dev[1]))} if task.dev[1:] else out


@functools.cache
def python_sources() -> str:
    """Of the binding and of the trainers in Python."""
    packages, own = Path(zfplugin.__file__).parent, Path(__file__).parent
    files = [f for folder in (packages, packages / "torch", own / "pytorch") for f in sorted(folder.glob("*.py"))]
    return key_of([digest(str(f)) for f in (*files, own / "tasks.py", own / "ablation" / "language.py")])


def options_of(args, names) -> list[str]:
    """Those that were given, as words of a command line."""
    words = []
    for name in names:
        value = getattr(args, name)
        if value is not None:
            words += ["--" + name.replace("_", "-"), str(value)]
    return words


def plugin_options(arm: Arm) -> list[str]:
    return [word for override in arm.sets for word in ("--set", override)]


class Host:
    """zf-host. args: the campaign's options, with steps, batch and lr settled."""

    name = "c"

    def __init__(self, task: Task, args):
        self.task, self.args = task, args
        # relative: how far a loss may be from AdamW's while the plugin claims AdamW's own semantics. Products in bfloat16 make 2^-9 of
        # the last bit of a weight, in which a clip factor that is rounded otherwise shows: there it is shown and not judged
        self.start_tolerance = 1e-5 if args.products == "fp32" else None
        self.program = find_host(args.host)
        self.encoder = self._encoder_digests()
        self.data = args.data or synthetic.ensure(os.path.join(args.out, "synthetic"))
        vocabulary = os.path.join(args.model, "vocab.txt") if args.model else examples.find_vocabulary(task, self.data)
        self.digests = {**data_digests(task, self.data), "vocabulary": digest(vocabulary)}
        self.examples = self._examples()

    def _examples(self) -> str:
        """The file of what is trained on, named after all that it is made of; written where it is missing."""
        sources = [digest(str(Path(__file__).with_name(f"{name}.py"))) for name in ("encoder", "examples", "tasks", "wordpiece")]
        key = key_of(self.task.name, sorted(self.digests.items()), self.encoder, self.args.max_tokens, sources)
        folder = os.path.join(self.args.out, "examples")
        path = os.path.join(folder, f"{self.task.name}-{key}.safetensors")
        if not os.path.exists(path):
            make_folder(folder)
            examples.make_of_files(path, self.task, self.data, self.args.model, self.args.max_tokens)
        return path

    def _encoder_digests(self) -> list[str]:
        """Of config.json, model.safetensors and, where there is one, tokenizer_config.json."""
        if not self.args.model:
            return []
        paths = [os.path.join(self.args.model, name) for name in ("config.json", "model.safetensors", "tokenizer_config.json")]
        return [digest(path) for path in paths if path != paths[2] or os.path.exists(path)]

    def describe(self, parameters: float) -> str:
        encoder = f"pretrained encoder (sha256 {self.encoder[1][:8]})" if self.encoder else "encoder from scratch"
        return f"reference host: {encoder}, {parameters:.0f} parameters in {self.args.dtype}, products in {self.args.products}"

    def run(self, arm: Arm, seed: int) -> Run:
        a = self.args
        deciding = ["--seed", str(seed), "--steps", str(a.steps), "--batch", str(a.batch), "--lr", a.lr,
                    *options_of(a, ("dtype", "products", "warmup", "dropout", "device")),
                    "--optimizer", "plugin" if arm.is_plugin else arm.name, *plugin_options(arm)]
        places = ["--examples", self.examples]
        programs = [digest(self.program)]
        if arm.is_plugin:
            places += ["--plugin", a.plugin, *(["--config", arm.config] if arm.config else [])]
            programs += [digest(path) for path in (a.plugin, arm.config) if path]
        key = key_of(deciding, digest(self.examples), programs, machine(a.device))
        return Run(f"{self.task.name}-{arm.name}-seed{seed}", f"{arm.title}, seed {seed}",
                   (self.program, *deciding, *places, "--quiet"), key, a.steps, arm.is_plugin)


class Torch:
    """zfplugin.accuracy.pytorch."""

    name = "torch"
    start_tolerance = None  # torch's AdamW rounds otherwise than the plugin: how near the start is, is shown and not judged

    def __init__(self, task: Task, args):
        self.task, self.args = task, args
        try:
            import torch
            import transformers
        except ImportError as error:
            raise CannotRun(f"--trainer torch: {error}; pip install torch transformers") from None
        from .pytorch.model import locate

        if args.deepspeed and not importlib.util.find_spec("deepspeed"):
            raise CannotRun("--deepspeed: it is not installed; pip install deepspeed")
        self.packages = [torch.__version__, transformers.__version__]
        self.data, self.model = args.data, locate(args.model)
        self.digests = data_digests(task, self.data)
        files = [os.path.join(self.model, name) for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer.json")]
        self.encoder = ["", *(digest(path) for path in files if os.path.exists(path))]  # a hub's name stands for itself

    def describe(self, parameters: float) -> str:
        encoder = f"sha256 {self.encoder[1][:8]}" if self.encoder[1:] else self.model
        return f"torch {self.packages[0]}: pretrained encoder ({encoder}), {parameters:.0f} parameters, {self.args.precision}"

    def run(self, arm: Arm, seed: int) -> Run:
        a = self.args
        deciding = ["--task", self.task.name, "--seed", str(seed), "--steps", str(a.steps), "--batch", str(a.batch), "--lr", a.lr,
                    *options_of(a, ("precision", "dropout", "threads")), "--optimizer",
                    arm.name if arm.name.startswith("deepspeed") else "plugin" if arm.is_plugin else "adamw",
                    *plugin_options(arm)]
        places = ["--data", self.data, "--model", self.model]
        if arm.is_plugin:
            places += ["--plugin", a.plugin, *(["--config", arm.config] if arm.config else [])]
        files = [python_sources(), *(digest(path) for path in (a.plugin, arm.config) if path and arm.is_plugin)]
        packages = self.packages + ([importlib.metadata.version("deepspeed")] if arm.name.startswith("deepspeed") else [])
        key = key_of(deciding, sorted(self.digests.items()), self.model, self.encoder, packages, files, machine(None))
        return Run(f"{self.task.name}-torch-{arm.name}-seed{seed}", f"{arm.title}, seed {seed}",
                   (sys.executable, "-m", f"{__package__}.pytorch", *deciding, *places), key, a.steps, arm.is_plugin,
                   (probe.python_path(),))


TRAINERS = {"c": Host, "torch": Torch}
