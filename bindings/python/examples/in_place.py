#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of having every weight is in place when step() returns, beside fetch=True and torch's AdamW: milliseconds per training step.

    python3 in_place.py [--width N] [--layers N] [--tokens N] [--rounds N] [section.key=value ...]

A GPT-2 with random weights on the CPU. The three take turns, a step each, so that whatever else the machine does meets all of them alike;
printed are the median and the fastest step. Measure on your own machine: it is the host's work that is in place or late.
"""
import argparse
import statistics
import time

import torch
import transformers

import zfplugin.torch


def gpt2(width, layers):
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=512, n_positions=128, n_embd=width, n_layer=layers, n_head=width // 64, bos_token_id=0, eos_token_id=0))


def stepper(model, optimizer, tokens):
    """A function that makes a step: its seconds."""
    def step():
        start = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("width", 384), ("layers", 6), ("tokens", 512), ("rounds", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    tokens, models = torch.randint(0, 512, (args.tokens // 128, 128)), [gpt2(args.width, args.layers) for _ in range(3)]
    ours = [zfplugin.torch.ZenFlow(model.named_parameters(), model=model, fetch=is_fetched, config=["log.level=warn", *args.settings])
            for model, is_fetched in zip(models, (False, True))]
    runs = [stepper(model, optimizer, tokens) for model, optimizer in zip(models, (*ours, torch.optim.AdamW(models[2].parameters())))]
    seconds = list(zip(*([run() for run in runs] for _ in range(args.rounds + 3))))
    for name, its in zip(("in place", "fetch=True", "AdamW"), seconds):
        print(f"{name:10} {1e3 * statistics.median(its[3:]):8.1f} {1e3 * min(its[3:]):8.1f} ms")
    print(f"{sum(p.numel() for p in models[0].parameters()) / 1e6:.1f} M parameters, {tokens.numel()} tokens per step, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
