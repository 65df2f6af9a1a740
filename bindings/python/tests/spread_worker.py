# SPDX-License-Identifier: Apache-2.0
"""A model that is spread over processes, tensor x pipeline x data parallel, beside one process that has all of it.

Model: two pipeline stages, each x + mlp(norm(x)) with the mlp cut over two processes (columns, then rows) and the norm
computed on each one's half of the positions (sequence parallel); the embedding stands in the first stage and is the output
layer of the last. Each process has its parts as ordinary contiguous parameters, as Megatron does. Rank = (data * 2 + stage) * 2 +
tensor. The reference trains on the whole batch."""
import torch
import torch.distributed as dist
from support import config
from torch import nn

import zfplugin.torch

VOCAB, WIDTH, INNER, BATCH, LENGTH, STEPS = 13, 8, 16, 4, 6, 5
HYPER = {"lr": 1e-2, "weight_decay": 0.05}
CLIP = 0.5
SETTINGS = {"zenflow.topk_ratio": 1.0, "zenflow.update_interval": 2}  # what the model shows is plain AdamW
BOUND = 1e-5


class Block(nn.Module):
    """One stage's layers, or the part of them that process t of n has."""

    def __init__(self, seed, t=0, n=1):
        super().__init__()
        make = torch.Generator().manual_seed(seed)
        up, down = torch.randn(INNER, WIDTH, generator=make), torch.randn(WIDTH, INNER, generator=make)
        part = INNER // n
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Parameter(up[t * part:(t + 1) * part].clone() * 0.3)
        self.down = nn.Parameter(down[:, t * part:(t + 1) * part].clone() * 0.3)


def embedding():
    return nn.Parameter(torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(7)) * 0.5)


def tokens(step):
    make = torch.Generator().manual_seed(1000 + step)
    drawn = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=make)
    return drawn[:, :-1], drawn[:, 1:]


def loss_of(logits, wanted):
    return nn.functional.cross_entropy(logits.reshape(-1, VOCAB), wanted.reshape(-1))


# ---- one process -----------------------------------------------------------------------------------------------------

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = embedding(), nn.ModuleList([Block(1), Block(2)])

    def forward(self, x):
        x = self.embedding[x]
        for block in self.blocks:
            x = x + nn.functional.gelu(block.norm(x) @ block.up.T) @ block.down.T
        return x @ self.embedding.T


def train_whole():
    """[(loss, gradient norm)] of every step, and the model."""
    model, seen = Whole(), []
    optimizer = torch.optim.AdamW(model.parameters(), **HYPER)
    for step in range(STEPS):
        x, wanted = tokens(step)
        optimizer.zero_grad()
        loss = loss_of(model(x), wanted)
        loss.backward()
        seen.append((loss.item(), nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()))
        optimizer.step()
    return seen, model


# ---- tensor parallel -------------------------------------------------------------------------------------------------

def _all(values, group):
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, values.contiguous(), group=group)
    return parts


def _own(values, group):
    return values.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)]


class Scatter(torch.autograd.Function):
    """Of what all have, each takes its positions; gradients are put together again."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _own(x, group)

    @staticmethod
    def backward(ctx, grad):
        return torch.cat(_all(grad, ctx.group), dim=1), None


class Gather(torch.autograd.Function):
    """Positions are put together; of their gradients, of which each has a share, each gets the sum of its own."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return torch.cat(_all(x, group), dim=1)

    @staticmethod
    def backward(ctx, grad):
        return _own(sum(_all(grad, ctx.group)), ctx.group), None


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return sum(_all(x, group))

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def spread_forward(block, x, tensor):
    normed = Gather.apply(block.norm(Scatter.apply(x, tensor)), tensor)
    return x + Sum.apply(nn.functional.gelu(normed @ block.up.T) @ block.down.T, tensor)


# ---- eight processes -------------------------------------------------------------------------------------------------

def group_of(members_of):
    """This process's group, of those that a function from (data, stage, tensor) gives one value; made by all in one order."""
    places = [(rank // 4, rank // 2 % 2, rank % 2) for rank in range(8)]
    mine = None
    for value in sorted({members_of(*place) for place in places}):
        ranks = [rank for rank, place in enumerate(places) if members_of(*place) == value]
        group = dist.new_group(ranks)
        mine = group if dist.get_rank() in ranks else mine
    return mine


class Part(nn.Module):
    def __init__(self, stage, t):
        super().__init__()
        self.embedding, self.block = embedding(), Block(1 + stage, t, 2)


def pass_through(part, stage, pipe, tensor, x, wanted):
    """Forward and backward of one process; the loss in the last stage."""
    peer = dist.get_global_rank(pipe, 1 - stage)
    hidden = torch.empty(len(x), LENGTH, WIDTH)
    if stage == 0:
        out = spread_forward(part.block, part.embedding[x], tensor)
        dist.send(out.detach(), peer)
        dist.recv(hidden, peer)
        out.backward(hidden)
        return None
    dist.recv(hidden, peer)
    hidden.requires_grad_()
    loss = loss_of(spread_forward(part.block, hidden, tensor) @ part.embedding.T, wanted)
    loss.backward()
    dist.send(hidden.grad, peer)
    return loss


def train_part(settings):
    """What one of eight processes does; compared with the whole model step by step, and at the end."""
    data_rank, stage, t = dist.get_rank() // 4, dist.get_rank() // 2 % 2, dist.get_rank() % 2
    data, pipe, tensor = (group_of(members) for members in
                          (lambda d, s, t: (s, t), lambda d, s, t: (d, t), lambda d, s, t: (d, s)))
    part, (expected, whole) = Part(stage, t), train_whole()

    def shared_over(name, _):
        return pipe if name == "embedding" else tensor if "norm" in name else None

    optimizer = zfplugin.torch.ZenFlow(
        part.named_parameters(), **HYPER, clip_norm=CLIP, config=config({**SETTINGS, **settings}), group=data,
        norm_group=dist.group.WORLD, shared_over=shared_over,
        counts_in_norm=lambda name, _: name != "embedding" or t == 0)  # each tensor rank has all of its gradient
    for step, (loss_there, norm_there) in enumerate(expected):
        x, wanted = (values.chunk(2)[data_rank] for values in tokens(step))
        optimizer.zero_grad()
        loss = pass_through(part, stage, pipe, tensor, x, wanted)
        optimizer.step()
        if loss is not None:
            both = torch.stack(_all(loss.detach(), data)).mean().item()
            assert abs(both - loss_there) < BOUND, f"step {step}: loss {both}, one process has {loss_there}"
        norm = optimizer.grad_norm
        assert abs(norm - norm_there) < BOUND * norm_there, f"step {step}: norm {norm}, one process has {norm_there}"
    optimizer.flush()
    there = Block(0, t, 2)
    block = whole.blocks[stage]
    inner = slice(t * INNER // 2, (t + 1) * INNER // 2)
    there.load_state_dict({**block.state_dict(), "up": block.up.detach()[inner], "down": block.down.detach()[:, inner]})
    for name, values in [*there.named_parameters(), ("embedding", whole.embedding)]:
        ours = part.embedding if name == "embedding" else part.block.get_parameter(name)
        worst = (ours - values).abs().max().item()
        assert worst < 1e-3 * HYPER["lr"] * STEPS, f"{name} is off by {worst}"
    optimizer.close()


def tensor_pipeline_data():
    for stage in (0, 2):
        train_part({"shard.stage": stage, "shard.bucket_bytes": 512})
