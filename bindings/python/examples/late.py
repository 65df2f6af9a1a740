#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The price of late weights for Muon, and for AdamW: loss of the last quarter of a small GPT on bytes of text, in torch alone.

    python3 late.py RUNS.jsonl TEXT...    (files; finished runs are kept in RUNS.jsonl; nine of each arm, three rates by three seeds)

"late d": every gradient is taken at weights that lack the newest d updates. "window S": gradients of S steps are taken at weights that the next window
alone shows, and then replayed in order, parameter by parameter in turn: mode = windows. Muon trains the matrices of the blocks, with
adjust_lr_fn="match_rms_adamw"; AdamW the rest, as late. docs/accuracy.md has the table.
"""
import collections
import json
import sys

import torch
from torch import nn

STEPS, WARM_UP, BATCH, LENGTH, WIDTH, HEADS, LAYERS = 200, 20, 8, 64, 64, 4, 2
RATES, SEEDS = (1e-3, 2e-3, 4e-3), (0, 1, 2)
ARMS = {"on time": (0, 1), "late 1": (1, 1), "late 3": (3, 1), "window 2": (0, 2), "window 4": (0, 4)}
OF_RULES = {"adamw": ("on time", "late 1", "late 3"), "muon": tuple(ARMS)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.behind(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(256, WIDTH), nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH)), nn.LayerNorm(WIDTH)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, x):
        x = self.words(x) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Late:
    """A parameter that shows its master late, or by windows. turn: which of a window's steps closes it."""

    def __init__(self, shown, is_muon, lr, late, window, turn):
        self.shown, self.window, self.turn, self.open = shown, window, turn, []
        self.master = nn.Parameter(shown.detach().clone())
        self.lr, self.past = lr, collections.deque([shown.detach().clone()] * (late + 1), late + 1)
        self.optimizer = torch.optim.Muon([self.master], lr=lr, adjust_lr_fn="match_rms_adamw") if is_muon else torch.optim.AdamW([self.master], lr=lr)

    def step(self, t):
        self.open.append((self.shown.grad, self.lr * min(1, (t + 1) / WARM_UP) * (1 - 0.9 * t / STEPS)))
        if (t + self.turn) % self.window == self.window - 1:
            for self.master.grad, self.optimizer.param_groups[0]["lr"] in self.open:
                self.optimizer.step()
            self.open = []
        self.past.append(self.master.detach().clone())
        self.shown.data.copy_(self.past[0])
        self.shown.grad = None


def train(text, rule, arm, lr, seed):
    torch.manual_seed(seed)
    model, (late, window), losses = GPT(), ARMS[arm], []
    hidden = {id(p) for p in model.blocks.parameters() if p.dim() == 2}
    all_late = [Late(p, rule == "muon" and id(p) in hidden, lr, late, window, turn) for turn, p in enumerate(model.parameters())]
    for t in range(STEPS):
        rows = torch.stack([text[at:at + LENGTH + 1] for at in torch.randint(len(text) - LENGTH, (BATCH,)).tolist()]).long()
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        for p in all_late:
            p.step(t)
    return sum(losses[-STEPS // 4:]) / (STEPS // 4)


def main():
    kept, *files = sys.argv[1:]
    text = torch.frombuffer(bytearray(b"".join(open(name, "rb").read() for name in files)), dtype=torch.uint8)
    torch.set_num_threads(1)
    with open(kept, "a+") as file:
        file.seek(0)
        done = {tuple(run[:4]): run[4] for run in map(json.loads, file)}
        wanted = [(rule, arm, lr, seed) for lr in RATES for seed in SEEDS for rule in OF_RULES for arm in OF_RULES[rule]]
        for run in wanted:
            if run not in done:
                done[run] = train(text, *run)
                print(json.dumps([*run, done[run]]), file=file, flush=True)
    print(f"{len(text)} bytes of text, {sum(p.numel() for p in GPT().parameters())} parameters, {STEPS} steps of {BATCH * LENGTH}; loss, and what it is above on time")
    for rule in OF_RULES:
        for arm in OF_RULES[rule]:
            for lr in RATES:
                mean, exact = (sum(done[rule, of, lr, seed] for seed in SEEDS) / len(SEEDS) for of in (arm, "on time"))
                print(f"{rule:6} {arm:9} lr {lr:g}: {mean:.4f}  {100 * (mean / exact - 1):+.2f} %")


if __name__ == "__main__":
    main()
