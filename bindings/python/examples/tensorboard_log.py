#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Metrics of every step as a dict: into TensorBoard, and into a tqdm bar where tqdm is installed.

    python3 tensorboard_log.py [--steps N] [--out DIR]
"""
import argparse

from tiny import model_of, sequences
from torch.utils.tensorboard import SummaryWriter

import zfplugin.torch

try:
    from tqdm import tqdm
except ImportError:
    def tqdm(steps):
        return steps


def train(steps, out):
    model = model_of("bert")
    optimizer = zfplugin.torch.ZenFlow(model.named_parameters(), lr=2e-3, model=model, clip_norm=1.0)
    bar = tqdm(range(steps))
    with SummaryWriter(out) as writer:
        for step in bar:
            tokens = sequences(16, seed=step)
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            writer.add_scalar("loss", float(loss.detach()), step)
            for name, value in optimizer.metrics().items():
                writer.add_scalar(f"zfplugin/{name}", value, step)
            if hasattr(bar, "set_postfix"):
                bar.set_postfix(loss=f"{float(loss.detach()):.3f}", grad_norm=f"{optimizer.metrics()['grad_norm']:.2f}")
    optimizer.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="runs/zfplugin")
    args = parser.parse_args()
    train(args.steps, args.out)
    print(f"tensorboard --logdir {args.out}")


if __name__ == "__main__":
    main()
