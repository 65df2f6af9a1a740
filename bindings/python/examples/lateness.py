#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The meter of lateness beside what it estimates: loss(weights the model saw) - loss(weights that were due), per step.

    python3 lateness.py [--steps N] [--lr LR] [--out FILE.json] [section.key=value ...]

A small net from scratch. The weights that were due are opt.export()'s, the same batch goes through both, and the optimizer
measures every weight ([log] lateness = 1). Printed are means over each tenth of the run. The meter is the first-order term of
the difference; where the loss curves upwards the true one is smaller, so the meter says too much rather than too little.
"""
import argparse
import json
import time

import torch
from torch import nn

import zfplugin.torch

WIDTH, BATCH = 64, 32


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))


def batch(step):
    x = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))
    return x, torch.stack([x[:, 3] * x[:, 4], x[:, 8:].sum(1).sin(), x[:, 0] * x[:, 1], x[:, 2].abs()], 1)


def train(steps, lr, settings):
    """Lists over the steps that are known at the end: what the meter says, the true difference, the loss."""
    model, due = net(), net()
    opt = zfplugin.torch.ZenFlow(model.named_parameters(), lr=lr, model=model,
                                 config={"log.lateness": 1, "log.level": "warn", "zenflow.mode": "windows",
                                         "zenflow.full_warm_up_rounds": 5, **settings})
    metered, true, losses = [None] * steps, [], []
    for step in range(steps):
        x, y = batch(step)
        if step:
            due.load_state_dict(opt.export())
        loss = nn.functional.mse_loss(model(x), y)
        with torch.no_grad():
            true.append(loss.item() - nn.functional.mse_loss(due(x), y).item() if step else 0.0)
        losses.append(loss.item())
        loss.backward()
        opt.step()
        opt.zero_grad()
        read(opt, metered, max(0, step - 40), step + 1)
    opt.flush()
    read(opt, metered, max(0, steps - 80), steps)
    return metered, true, losses


def read(opt, metered, first, end):
    for step in range(first, end):
        if metered[step] is None:
            groups = opt.lateness(step + 1)
            if groups and groups[0]["step"]:
                metered[step] = sum(group["loss"] for group in groups)


def table(metered, true, losses):
    rows, size = [], max(1, len(true) // 10)
    for at in range(0, len(true) - size + 1, size):
        parts = [sum(x[at:at + size]) / size for x in (losses, metered, true)]
        rows.append((at + 1, at + size, *parts))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="section.key=value")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--out")
    args = parser.parse_args()
    began = time.monotonic()
    metered, true, losses = train(args.steps, args.lr, dict(s.split("=", 1) for s in args.settings))
    print(f"{'steps':>11} {'loss':>9} {'meter':>10} {'true':>10}")
    for first, last, loss, by_meter, truth in table(metered, true, losses):
        print(f"{first:5d}..{last:<4d} {loss:9.4f} {by_meter:10.6f} {truth:10.6f}")
    print(f"   together {sum(losses) / len(losses):9.4f} {sum(metered) / len(metered):10.6f} {sum(true) / len(true):10.6f}")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump({"losses": losses, "meter": metered, "true": true, "seconds": time.monotonic() - began}, file)


if __name__ == "__main__":
    main()
