#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accelerate with gradient accumulation and clipping: prepare() takes the optimizer like any other.

    python3 accelerate_loop.py [--steps N]
"""
import argparse

import accelerate
import torch
from tiny import Language, model_of

import zfplugin.torch


def zenflow(model, config=None):
    return zfplugin.torch.ZenFlow(model.named_parameters(), lr=2e-3, model=model, config=config)


def train(steps, accumulation=2, make_optimizer=zenflow):
    """Losses of every micro-batch."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model = model_of("llama")
    optimizer = make_optimizer(model)
    loader = torch.utils.data.DataLoader(Language(8 * steps * accumulation), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    if make_optimizer is zenflow:
        zfplugin.torch.unwrap(optimizer).flush()
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    losses = train(parser.parse_args().steps)
    print(f"loss {losses[0]:.3f} at the first micro-batch, {losses[-1]:.3f} at the last of {len(losses)}")


if __name__ == "__main__":
    main()
