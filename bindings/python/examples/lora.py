#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PEFT: LoRA adapters train through the plugin; frozen weights take no state and no memory.

    python3 lora.py [--steps N]
"""
import argparse

import peft
from tiny import model_of, sequences

import zfplugin.torch


def zenflow(model, config=None):
    return zfplugin.torch.ZenFlow(model.named_parameters(), lr=1e-2, model=model, config=config)


def train(steps, make_optimizer=zenflow):
    """(losses, trainable elements, the optimizer)."""
    model = peft.get_peft_model(model_of("llama"), peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    optimizer = make_optimizer(model)
    losses = []
    for step in range(steps):
        tokens = sequences(16, seed=step)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    n_trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return losses, n_trainable, optimizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    losses, n_trainable, optimizer = train(parser.parse_args().steps)
    optimizer.flush()
    nbytes = optimizer.layout["host_nbytes"]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {n_trainable} trainable elements, {nbytes} bytes of host memory")


if __name__ == "__main__":
    main()
