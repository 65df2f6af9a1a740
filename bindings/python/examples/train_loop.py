#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain training loop, converted by three lines (marked 1, 2, 3).

    python3 train_loop.py [--family gpt2|bert|llama] [--steps N] [--adamw]

--adamw trains with torch.optim.AdamW instead.
"""
import argparse

import torch
from tiny import model_of, sequences

import zfplugin.torch  # 1: import


def train(family, steps, use_adamw=False, seed=0, config=None):
    """Losses of every step."""
    model = model_of(family, seed)
    if use_adamw:
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    else:
        optimizer = zfplugin.torch.ZenFlow(model.named_parameters(), lr=2e-3, model=model, config=config)  # 2: construct
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for step in range(steps):
        tokens = sequences(16, seed=10_000 * (seed + 1) + step)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    if not use_adamw:
        optimizer.flush()  # 3: the last windows, before the weights are saved
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("gpt2", "bert", "llama"), default="gpt2")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--adamw", action="store_true")
    args = parser.parse_args()
    losses = train(args.family, args.steps, args.adamw)
    print(f"{args.family}: loss {losses[0]:.3f} at step 1, {losses[-1]:.3f} at step {args.steps}")


if __name__ == "__main__":
    main()
