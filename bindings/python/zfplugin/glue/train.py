# SPDX-License-Identifier: Apache-2.0
"""One run: an encoder fine-tuned with one optimizer; everything but the optimizer follows from the seed."""

from __future__ import annotations

import dataclasses
import time

import torch

from .metrics import score
from .model import Tokens, build
from .tasks import Task

ARMS = ("adamw", "sync", "zenflow")

# ZeRO-Offload's semantics: every step closes every window and is published at once.
SYNC_OVERRIDES = ("zenflow.update_interval=1", "zenflow.overlap_step=false")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the arms of a comparison share."""

    model: str
    lr: float = 1e-4
    weight_decay: float = 0.01
    clip: float = 1.0
    batch: int = 16
    steps: int = 400
    warm_up: float = 0.1  # share of the steps in which the rate rises
    group_by_length: bool = False  # batches of texts of about the same length: less padding
    # autocast: weights and gradients in float32, matrix products in bfloat16 (torch.autocast); float32: all in float32;
    # bfloat16: weights and gradients too (the plugin and DeepSpeed keep fp32 master weights, torch's AdamW does not)
    precision: str = "autocast"
    config: str | None = None  # INI file of the ZenFlow arm
    overrides: tuple[str, ...] = ()


def groups(model, weight_decay: float) -> list[dict]:
    """Decay for matrices, none for biases and norms."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [{"params": [x for x in named if x[1].ndim > 1], "weight_decay": weight_decay},
            {"params": [x for x in named if x[1].ndim <= 1], "weight_decay": 0.0}]


def make_optimizer(arm: str, model, s: Settings):
    if arm == "adamw":
        return torch.optim.AdamW(groups(model, s.weight_decay), lr=s.lr, fused=True)
    from zfplugin.torch import ZenFlow

    overrides = SYNC_OVERRIDES if arm == "sync" else s.overrides
    return ZenFlow(groups(model, s.weight_decay), lr=s.lr, model=model, config=s.config if arm == "zenflow" else None,
                   overrides=overrides)


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
            epoch = torch.randperm(len(tokens), generator=generator).tolist()
            order += grouped(epoch, tokens, s.batch, generator) if s.group_by_length else epoch
        yield order[:s.batch]
        order = order[s.batch:]


def grouped(order: list[int], tokens: Tokens, batch: int, generator) -> list[int]:
    """The same rows: 50 batches at a time sorted by length, the batches then shuffled. Rows that fill no batch stay last."""
    batches = []
    for i in range(0, len(order), 50 * batch):
        part = sorted(order[i:i + 50 * batch], key=lambda row: len(tokens.ids[row]))
        batches += [part[j:j + batch] for j in range(0, len(part), batch)]
    short = [b for b in batches if len(b) < batch]
    batches = [b for b in batches if len(b) == batch]
    shuffled = [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
    return [row for b in shuffled + short for row in b]


def forward(model, batch: dict, s: Settings):
    with torch.autocast("cpu", torch.bfloat16, enabled=s.precision == "autocast"):
        return model(**batch)


@torch.no_grad()
def evaluate(model, task: Task, tokens: Tokens, s: Settings) -> dict:
    model.eval()
    rows = sorted(range(len(tokens)), key=lambda r: len(tokens.ids[r]))
    predicted = torch.zeros(len(rows))
    for i in range(0, len(rows), 64):
        part = rows[i:i + 64]
        logits = forward(model, {k: v for k, v in tokens.batch(part).items() if k != "labels"}, s).logits.float()
        predicted[torch.as_tensor(part)] = (logits.argmax(-1) if task.labels else logits[:, 0]).float()
    model.train()
    return {m: score(m, predicted.tolist(), tokens.labels.tolist()) for m in task.metrics}


def run(arm: str, seed: int, task: Task, train: Tokens, dev: list[Tokens], s: Settings, progress=None) -> dict:
    """Trains and scores one arm. Returns a plain dict: losses per step, metrics per dev set, seconds."""
    model = build(s.model, task, seed).train()
    if s.precision == "bfloat16":
        model.bfloat16()
    optimizer = make_optimizer(arm, model, s)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: rate(i, s))
    torch.manual_seed(seed)  # dropout: the same masks in every arm
    losses, start = [], time.perf_counter()
    for rows in batches(train, s, seed):
        loss = forward(model, train.batch(rows), s).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if progress:
            progress(len(losses))
    seconds = time.perf_counter() - start
    if hasattr(optimizer, "flush"):
        optimizer.flush()
    scores = [evaluate(model, task, tokens, s) for tokens in dev]
    return {"arm": arm, "seed": seed, "losses": losses, "scores": scores, "seconds": seconds}
