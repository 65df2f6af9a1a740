# SPDX-License-Identifier: Apache-2.0
"""One run: an encoder fine-tuned with one optimizer; everything but the optimizer follows from the seed. The report has zf-host's form."""

from __future__ import annotations

import dataclasses
import math
import os
import time

import torch

from .model import Tokens, build
from ..tasks import Task


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run is told."""

    model: str  # a folder, or a hub's name
    optimizer: str = "adamw"  # plugin, deepspeed-offload, deepspeed-zenflow
    lr: float = 1e-4
    weight_decay: float = 0.01
    clip: float = 1.0
    batch: int = 16
    steps: int = 400
    dropout: float | None = None  # probability, of attention too; None: the model's own
    warm_up: float = 0.1  # share of the steps in which the rate rises
    # autocast: weights and gradients in float32, matrix products in bfloat16 (torch.autocast); float32: all in float32;
    # bfloat16: weights and gradients too (the plugin and DeepSpeed keep fp32 master weights, torch's AdamW does not)
    precision: str = "autocast"
    plugin: str | None = None  # libzfplugin.so
    config: str | None = None  # the plugin's INI file
    overrides: tuple[str, ...] = ()


def groups(model, weight_decay: float) -> list[dict]:
    """Decay for matrices, none for biases and norms."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [{"params": [x for x in named if x[1].ndim > 1], "weight_decay": weight_decay},
            {"params": [x for x in named if x[1].ndim <= 1], "weight_decay": 0.0}]


def make_optimizer(model, s: Settings):
    if s.optimizer == "adamw":
        return torch.optim.AdamW(groups(model, s.weight_decay), lr=s.lr, fused=True)
    return make_zenflow(model, s, s.plugin, [*filter(None, [s.config]), *s.overrides], is_known=True)


def make_zenflow(model, s: Settings, plugin: str | None, config: list, is_known: bool = False):
    """plugin: libzfplugin.so; None: the one that zfplugin finds. is_known: the optimizer is told the model."""
    if plugin:
        os.environ["ZFPLUGIN_PATH"] = plugin
    from zfplugin.torch import ZenFlow

    return ZenFlow(groups(model, s.weight_decay), lr=s.lr, config=config, model=model if is_known else None)


def rate(i: int, s: Settings) -> float:
    """Factor on the peak rate at step i, from 0: linear warm-up, linear decay to zero."""
    rise = max(1, round(s.warm_up * s.steps))
    return min((i + 1) / rise, max(0.0, (s.steps - i) / max(1, s.steps - rise)))


def batches(tokens: Tokens, s: Settings, seed: int):
    """Row numbers of every step: epochs of a shuffled order, the same for every arm."""
    generator = torch.Generator().manual_seed(1000 + seed)
    order: list[int] = []
    for _ in range(s.steps):
        if len(order) < s.batch:
            order += torch.randperm(len(tokens), generator=generator).tolist()
        yield order[:s.batch]
        order = order[s.batch:]


def forward(model, batch: dict, s: Settings):
    with torch.autocast("cpu", torch.bfloat16, enabled=s.precision == "autocast"):
        return model(**batch)


@torch.no_grad()
def predictions(model, task: Task, tokens: Tokens, s: Settings) -> list[float]:
    """Of each example its class, or its score."""
    model.eval()
    rows = sorted(range(len(tokens)), key=lambda r: len(tokens.ids[r]))
    predicted = torch.zeros(len(rows))
    for i in range(0, len(rows), 64):
        part = rows[i:i + 64]
        logits = forward(model, {k: v for k, v in tokens.batch(part).items() if k != "labels"}, s).logits.float()
        predicted[torch.as_tensor(part)] = (logits.argmax(-1) if task.labels else logits[:, 0]).float()
    model.train()
    return predicted.tolist()


class Stepper:
    """Clips, steps and moves the rate on: torch's AdamW, or the plugin."""

    def __init__(self, model, optimizer, s: Settings):
        self.model, self.clip, self.optimizer = model, s.clip, optimizer
        self.rates = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda i: rate(i, s))

    def step(self, loss) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.rates.step()
        self.optimizer.zero_grad()

    def finish(self) -> None:
        if hasattr(self.optimizer, "flush"):
            self.optimizer.flush()

    def counters(self) -> dict:
        return counters(self.optimizer.stats()) if hasattr(self.optimizer, "stats") else {}


def counters(stats: dict) -> dict:
    """Of zf.stats/1, as zf-host reports them (plugin_opt.c), but for those per parameter, which report() divides."""
    steps = max(1, stats.get("steps", 0))
    if "steps" not in stats:
        return {}
    stall = stats["stall_replay_ns"] + stats["stall_select_ns"] + stats["stall_pool_ns"]
    return {"down_bytes_per_step": (stats["down_grad_nbytes"] + stats["down_record_nbytes"]) / steps,
            "up_publish_bytes_per_step": stats["up_publish_nbytes"] / steps, "up_enter_bytes_per_step": stats["up_enter_nbytes"] / steps,
            "stall_us_per_step": stall / steps * 1e-3, "window_closes": stats["window_closes"],
            "host_bytes_per_param": stats["host_measured_nbytes"], "host_planned_bytes_per_param": stats["host_planned_nbytes"],
            "device_bytes_per_param": stats["device_measured_nbytes"]}


def make_stepper(model, s: Settings):
    if not s.optimizer.startswith("deepspeed"):
        return Stepper(model, make_optimizer(model, s), s)
    from .deepspeed import Engine

    return Engine(model, s)


def descend(stepper, losses_of_steps) -> tuple[list[float], float]:
    """A step on each of these losses, which are computed one after the other: their values, and the seconds. One that is not finite raises
    FloatingPointError."""
    losses, start = [], time.perf_counter()
    for loss in losses_of_steps:
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"the loss of step {len(losses)} is {losses[-1]}")
        stepper.step(loss)
    return losses, time.perf_counter() - start


def peak_rss_bytes() -> float:
    """The most that this process has had in memory (VmHWM); nan where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next((1024.0 * int(line.split()[1]) for line in file if line.startswith("VmHWM:")), math.nan)
    except OSError:
        return math.nan


def report(model, found: dict, sizes: dict) -> dict:
    """The report in zf-host's form."""
    out = {"rows": sizes, "peak_rss_bytes": peak_rss_bytes(), "model": {"parameters": sum(p.numel() for p in model.parameters())}, **found}
    for name in [n for n in out["counters"] if n.endswith("_per_param")]:
        out["counters"][name] /= out["model"]["parameters"]
    return out


def run(seed: int, task: Task, train: Tokens, dev: list[Tokens], s: Settings, n_skipped: int = 0) -> dict:
    """Trains and predicts."""
    model = build(s.model, task, seed, s.dropout).train()
    if s.optimizer.startswith("deepspeed"):
        s = dataclasses.replace(s, precision="bfloat16")
    if s.precision == "bfloat16":
        model.bfloat16()
    stepper = make_stepper(model, s)
    torch.manual_seed(seed)  # dropout: the same masks by every optimizer
    losses, seconds = descend(stepper, (forward(stepper.model, train.batch(rows), s).loss for rows in batches(train, s, seed)))
    stepper.finish()
    found = {"losses": losses, "seconds": seconds, "counters": stepper.counters(),
             "predictions": [predictions(model, task, tokens, s) for tokens in dev]}
    sizes = {"train": len(train), "dev": len(dev[0]), "second_dev": sum(map(len, dev[1:])), "skipped": n_skipped}
    return report(model, found, sizes)
