#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain training loop, converted by three lines (marked 1, 2, 3).

    python3 train_loop.py [--family gpt2|bert|llama] [--steps N] [--adamw] [--plot FILE.svg]

--adamw trains with torch.optim.AdamW instead; --plot trains every family with both and draws the loss curves.
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


def plot(path, steps):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "zfplugin"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), sharey=True, layout="constrained")
    for axis, family in zip(axes, ("gpt2", "bert", "llama")):
        for name, use_adamw, style in (("torch AdamW", True, "k-"), ("plugin, ZenFlow, S = 4", False, "C1--")):
            losses = train(family, steps, use_adamw)
            width = max(1, steps // 50)
            means = [sum(losses[max(0, i - width + 1):i + 1]) / min(width, i + 1) for i in range(steps)]
            axis.plot(range(1, steps + 1), means, style, label=name)
            print(f"{family:6} {name:24} loss of the last quarter {sum(losses[-(steps // 4):]) / (steps // 4):.4f}", flush=True)
        axis.set(title=f"{family}, random weights", xlabel="step")
    axes[0].set_ylabel(f"training loss (running mean of {max(1, steps // 50)})")
    axes[0].legend()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("gpt2", "bert", "llama"), default="gpt2")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--adamw", action="store_true")
    parser.add_argument("--plot", metavar="FILE.svg")
    args = parser.parse_args()
    if args.plot:
        plot(args.plot, args.steps)
        return
    losses = train(args.family, args.steps, args.adamw)
    print(f"{args.family}: loss {losses[0]:.3f} at step 1, {losses[-1]:.3f} at step {args.steps}")


if __name__ == "__main__":
    main()
