#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A loop on several processes, which train as one: no DDP, the plugin adds gradients up and shares the optimizer's state out.

    torchrun --nproc-per-node 4 ranks_loop.py [--steps N] [--stage 0|1]

Each process computes on its slice of every batch. stage 1: each keeps a part of masters, moments and gradient slots.
"""
import argparse

import torch
import torch.distributed as dist
from tiny import model_of, sequences

import zfplugin.torch


def train(steps, stage, batch=16):
    """Mean loss of all processes at each step."""
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    model = model_of("gpt2")  # the same weights everywhere
    torch.manual_seed(rank)   # dropout of its own
    optimizer = zfplugin.torch.ZenFlow(model.named_parameters(), lr=2e-3, model=model, group=dist.group.WORLD, clip_norm=1.0,
                                       config={"shard.stage": stage})
    mine = sequences(steps * batch).view(steps, n_ranks, batch // n_ranks, -1)[:, rank]
    losses = []
    for tokens in mine:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / n_ranks
        dist.all_reduce(mean)
        losses.append(float(mean))
    optimizer.flush()
    if rank == 0:
        print(f"host memory of the optimizer on each of {n_ranks} processes: {optimizer.layout['host_nbytes'] / 2**20:.2f} MiB")
    optimizer.close()
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stage", type=int, default=1)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    losses = train(arguments.steps, arguments.stage)
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last of {len(losses)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
