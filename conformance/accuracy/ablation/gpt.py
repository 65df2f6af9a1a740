# SPDX-License-Identifier: Apache-2.0
"""A GPT-2-like language model trained once (a program; options as zf-host's): python3 -m zfplugin.accuracy.ablation.gpt --help.

Bytes of a text, contexts of 64, 2 layers of width 128 (0.4 million parameters), pre-LayerNorm, tied embeddings (Radford et al. 2019).
Seed: initial weights and the places of the contexts. Writes {"losses": [...], "seconds": s, "model": {"parameters": n}}; a loss that
is not finite ends it with exit status 1.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from ..pytorch.train import Settings, groups, rate

CONTEXT, WIDTH, HEADS, LAYERS = 64, 128, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    """Byte ids [n, length] to the mean cross entropy of each next byte."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.token, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.token(ids[:, :-1]) + self.place.weight[:ids.shape[1] - 1]
        logits = functional.linear(self.norm(self.blocks(x)), self.token.weight)
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def make_optimizer(args, model, s: Settings):
    if args.optimizer == "adamw":
        return torch.optim.AdamW(groups(model, s.weight_decay), lr=s.lr)
    from zfplugin.torch import ZenFlow

    return ZenFlow(groups(model, s.weight_decay), lr=s.lr, library=args.plugin, overrides=tuple(args.set))


def train(args) -> dict:
    with open(args.data, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    s = Settings("", lr=args.lr, batch=args.batch, steps=args.steps)
    model = Model(args.seed)
    optimizer = make_optimizer(args, model, s)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: rate(i, s))
    draw = torch.Generator().manual_seed(1000 + args.seed)
    losses, start = [], time.perf_counter()
    for _ in range(s.steps):
        places = torch.randint(len(text) - CONTEXT, (s.batch, 1), generator=draw)
        loss = model(text[places + torch.arange(CONTEXT + 1)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"the loss of step {len(losses)} is {losses[-1]}")
    if hasattr(optimizer, "flush"):
        optimizer.flush()
    return {"losses": losses, "seconds": time.perf_counter() - start, "model": {"parameters": sum(p.numel() for p in model.parameters())}}


def main(argv=None) -> int:
    p = argparse.ArgumentParser(prog="python3 -m zfplugin.accuracy.ablation.gpt", description=__doc__.split("\n")[0])
    p.add_argument("--data", required=True, help="a text file")
    p.add_argument("--optimizer", choices=("adamw", "plugin"), default="adamw")
    p.add_argument("--plugin", help="libzfplugin.so")
    p.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--out", required=True, help="JSON file")
    args = p.parse_args(argv)
    torch.set_num_threads(1)
    try:
        result = train(args)
    except FloatingPointError as problem:
        print(f"gpt: {problem}", file=sys.stderr)
        return 1
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(result, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
