#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The price of late weights for Muon, and for AdamW: loss of the last quarter of a GPT on bytes of text, in torch alone; and of the plugin's.

    python3 late.py [--large] RUNS.jsonl TEXT...    (files; without one the table of the runs so far)

RUNS.jsonl keeps a line of each finished run, so the command goes on where it was ended. Each arm has nine: three rates by three seeds.
"late d": every gradient is taken at weights that lack the newest d updates. "window S": gradients of S steps are taken at weights that the next window
alone shows, and then replayed in order, parameter by parameter in turn: mode = windows. Muon trains the matrices of the blocks, with
adjust_lr_fn="match_rms_adamw"; AdamW the rest, as late. "plugin": zfplugin trains both, on time. docs/accuracy.md has the tables.
"""
import argparse
import collections
import json

import torch
from torch import nn

Size = collections.namedtuple("Size", "width heads layers batch steps")
SMALL, LARGE = Size(64, 4, 2, 8, 200), Size(256, 8, 12, 4, 60)
LENGTH, RATES, SEEDS = 64, (1e-3, 2e-3, 4e-3), (0, 1, 2)
ARMS = {"on time": (0, 1), "window 2": (0, 2), "window 4": (0, 4), "late 1": (1, 1), "late 3": (3, 1)}
OF_RULES = {"muon": (*ARMS, "plugin"), "adamw": ("on time", "late 1", "late 3")}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = (part.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.behind(x))))


class GPT(nn.Module):
    def __init__(self, size):
        super().__init__()
        width = size.width
        self.words, self.places, self.norm = nn.Embedding(256, width), nn.Parameter(0.02 * torch.randn(LENGTH, width)), nn.LayerNorm(width)
        self.blocks, self.head = nn.ModuleList(Block(width, size.heads) for _ in range(size.layers)), nn.Linear(width, 256, bias=False)

    def forward(self, x):
        x = self.words(x) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Late:
    """A parameter that shows its master late, or by windows. turn: which of a window's steps closes it."""

    def __init__(self, shown, is_muon, rates, late, window, turn):
        self.shown, self.window, self.turn, self.open = shown, window, turn, []
        self.master = nn.Parameter(shown.detach().clone())
        self.rates, self.past = rates, collections.deque([shown.detach().clone()] * (late + 1), late + 1)
        self.optimizer = torch.optim.Muon([self.master], adjust_lr_fn="match_rms_adamw") if is_muon else torch.optim.AdamW([self.master])

    def step(self, t):
        self.open.append((self.shown.grad, self.rates[t]))
        if (t + self.turn) % self.window == self.window - 1:
            for self.master.grad, self.optimizer.param_groups[0]["lr"] in self.open:
                self.optimizer.step()
            self.open = []
        self.past.append(self.master.detach().clone())
        self.shown.data.copy_(self.past[0])
        self.shown.grad = None


class Plugin:
    """All parameters, trained by zfplugin."""

    def __init__(self, model, hidden, rates):
        import zfplugin.torch

        groups = [[(name, p) for name, p in model.named_parameters() if (id(p) in hidden) is is_hidden] for is_hidden in (True, False)]
        self.rates = rates
        self.optimizer = zfplugin.torch.ZenFlow([{"params": groups[0], "rule": "muon", "adjust_lr_fn": "match_rms_adamw"}, {"params": groups[1]}])

    def step(self, t):
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[t]
        self.optimizer.step()
        self.optimizer.zero_grad()


def train(size, text, rule, arm, lr, seed):
    torch.manual_seed(seed)
    model, (late, window), losses = GPT(size), ARMS.get(arm, (0, 1)), []
    rates = [lr * min(1, (t + 1) / (size.steps // 10)) * (1 - 0.9 * t / size.steps) for t in range(size.steps)]
    hidden = {id(p) for p in model.blocks.parameters() if p.dim() == 2}
    optimizers = [Plugin(model, hidden, rates)] if arm == "plugin" else [
        Late(p, rule == "muon" and id(p) in hidden, rates, late, window, turn) for turn, p in enumerate(model.parameters())]
    for t in range(size.steps):
        rows = torch.stack([text[at:at + LENGTH + 1] for at in torch.randint(len(text) - LENGTH, (size.batch,)).tolist()]).long()
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step(t)
    return sum(losses[-size.steps // 4:]) / (size.steps // 4)


def wanted():
    """Runs, those of Muon on time and by windows first."""
    runs = [(rule, arm, lr, seed) for seed in SEEDS for rule in OF_RULES for arm in OF_RULES[rule] for lr in RATES]
    return sorted(runs, key=lambda run: run[0] == "adamw" or run[1] not in ("on time", "window 2", "window 4"))


def print_table(done):
    """By arm and rate, over the seeds that are done: loss, and how much it is above on time."""
    for rule, arm, lr in dict.fromkeys(run[:3] for run in wanted()):
        seeds = [seed for seed in SEEDS if {(rule, arm, lr, seed), (rule, "on time", lr, seed)} <= set(done)]
        if seeds:
            mean, exact = (sum(done[rule, of, lr, seed] for seed in seeds) / len(seeds) for of in (arm, "on time"))
            print(f"{rule:6} {arm:9} lr {lr:g}: {mean:.4f}  {100 * (mean / exact - 1):+.2f} %  ({len(seeds)} of {len(SEEDS)} seeds)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="9.6 M parameters, not 0.14 M")
    parser.add_argument("runs")
    parser.add_argument("text", nargs="*")
    args = parser.parse_args()
    size, data = LARGE if args.large else SMALL, b"".join(open(name, "rb").read() for name in args.text)
    torch.set_num_threads(1)
    with open(args.runs, "a+") as file:
        file.seek(0)
        done = {tuple(run[:4]): run[4] for run in map(json.loads, file)}
        for run in wanted() if data else ():
            if run not in done:
                done[run] = train(size, torch.frombuffer(bytearray(data), dtype=torch.uint8), *run)
                print(json.dumps([*run, done[run]]), file=file, flush=True)
    print(f"{len(data)} bytes of text, {sum(p.numel() for p in GPT(size).parameters())} parameters, {size.steps} steps of {size.batch * LENGTH}")
    print_table(done)


if __name__ == "__main__":
    main()
