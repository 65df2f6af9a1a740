# SPDX-License-Identifier: Apache-2.0
"""Trains for arms.py: a decoder in plain torch, by ZenFlow and by others, and what that takes."""
import copy
import os
import tempfile
import time

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

import zfplugin.torch

VOCABULARY, FEW_WORDS = 4096, 128
HYPER = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
CLIP = 1.0


class Machine:
    """A device of torch's: its name, its dtype, and what it has of streams and counters."""

    def __init__(self, device, is_small):
        self.device = torch.device(device)
        self.is_small = is_small
        self.n_words = FEW_WORDS if is_small else VOCABULARY
        self.dtype = torch.bfloat16 if self.device.type in ("cuda", "cpu") else torch.float32
        self.module = getattr(torch, self.device.type, None) if self.device.type == "cuda" else None

    def name(self):
        return self.module.get_device_name() if self.module else self.device.type

    def synchronize(self):
        if self.module:
            self.module.synchronize()

    def empty_cache(self):
        if self.module:
            self.module.empty_cache()

    def on_a_side_stream(self, act):
        if not self.module:
            return act()
        stream = self.module.Stream()
        stream.wait_stream(self.module.current_stream())
        with self.module.stream(stream):
            out = act()
        self.module.current_stream().wait_stream(stream)
        return out

    def device_gib(self):
        return self.module.max_memory_allocated() / 2**30 if self.module else 0.0


def host_gib():
    """The most that this process ever had in memory."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 2**20


# ---- the model -------------------------------------------------------------------------------------------------------------------------

class Norm(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Layer(torch.nn.Module):
    """Attention by heads, then SwiGLU, each behind its norm."""

    def __init__(self, n, n_heads, n_inner):
        super().__init__()
        self.n_heads = n_heads
        self.before_attention, self.before_mlp = Norm(n), Norm(n)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(n, n, bias=False) for _ in range(4))
        self.gate, self.up, self.down = torch.nn.Linear(n, n_inner, bias=False), torch.nn.Linear(n, n_inner, bias=False), \
            torch.nn.Linear(n_inner, n, bias=False)

    def forward(self, x):
        batch, length, n = x.shape
        y = self.before_attention(x)
        q, k, v = (f(y).view(batch, length, self.n_heads, n // self.n_heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, n))
        y = self.before_mlp(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Decoder(torch.nn.Module):
    def __init__(self, n_words, n_layers, n, n_heads, n_positions, has_checkpoints=False):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(n_words, n), torch.nn.Embedding(n_positions, n)
        self.layers = torch.nn.ModuleList(Layer(n, n_heads, 8 * n // 3 // 64 * 64 or 64) for _ in range(n_layers))
        self.norm, self.head = Norm(n), torch.nn.Linear(n, n_words, bias=False)
        self.has_checkpoints = has_checkpoints

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.has_checkpoints and self.training else layer(x)
        return self.head(self.norm(x))

    def loss(self, ids):
        return cross_entropy(self(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())

    @torch.no_grad()
    def generate(self, ids, n):
        for _ in range(n):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids


class Masters:
    """torch's AdamW on fp32 copies of a model's weights, clipped by their norm."""

    def __init__(self, model, **options):
        self.params = list(model.parameters())
        self.copies = [p.detach().float().clone() for p in self.params]
        self.inner = torch.optim.AdamW(self.copies, **HYPER, **options)

    def step(self):
        for copied, p in zip(self.copies, self.params):
            copied.grad = p.grad.float()
            p.grad = None
        torch.nn.utils.clip_grad_norm_(self.copies, CLIP)
        self.inner.step()
        self.inner.zero_grad()
        for copied, p in zip(self.copies, self.params):
            p.data.copy_(copied)

    def zero_grad(self):
        pass


# ---- the decoder beside its reference --------------------------------------------------------------------------------------------------

def bits(model):
    """Every weight as a whole number whose neighbours are the neighbouring values."""
    values = torch.cat([p.detach().cpu().flatten() for p in model.parameters()])
    whole = values.view(torch.int16 if values.dtype == torch.bfloat16 else torch.int32).long()
    lowest = torch.iinfo(torch.int16 if values.dtype == torch.bfloat16 else torch.int32).min
    return torch.where(whole < 0, lowest - whole, whole)


def decoder(machine):
    """How far weights are from the reference's, after one step and after twelve."""
    torch.manual_seed(0)
    n, length, n_batch = (64, 17, 2) if machine.is_small else (1024, 129, 4)
    model = Decoder(machine.n_words, 4, n, 4 if machine.is_small else 16, length).to(machine.dtype).to(machine.device)
    start = [p.detach().float().cpu() for p in model.parameters()]
    twin = copy.deepcopy(model)
    ours = zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, model=model, clip_norm=CLIP)
    theirs = Masters(twin)
    data = torch.utils.data.DataLoader(torch.randint(machine.n_words, (12 * n_batch, length)), batch_size=n_batch, pin_memory=machine.module is not None)
    row = {"elements": sum(p.numel() for p in model.parameters())}
    for step, batch in enumerate(data, 1):
        ids = batch.to(machine.device, non_blocking=True)[:, :length // 2 if step == 5 else length]
        if step == 7:
            model.eval()
            model.generate(ids[:, :8], 8)
            model.train()
        if step == 8:
            machine.empty_cache()
        for m, optimizer in ((model, ours), (twin, theirs)):
            run = lambda m=m: m.loss(ids).backward()  # noqa: E731
            machine.on_a_side_stream(run) if step == 9 else run()
            optimizer.step()
            optimizer.zero_grad()
        if step == 1:
            row["first_ulps"], row["first_differing"] = differences(model, twin)
    ours.flush()
    row["ulps"], row["differing"] = differences(model, twin)
    ended = list(zip(start, (p.detach().float().cpu() for p in model.parameters()), (p.detach().float().cpu() for p in twin.parameters())))
    apart = sum((a - b).square().sum().item() for _, a, b in ended)
    way = sum((b - s).square().sum().item() for s, _, b in ended)
    return {**row, "steps": len(data), "apart": (apart / way)**0.5}


def differences(a, b):
    """The largest difference of two models' weights in units of the last place, and how many differ."""
    gaps = (bits(a) - bits(b)).abs()
    return gaps.max().item(), int(gaps.count_nonzero())


# ---- the Llama shape -------------------------------------------------------------------------------------------------------------------

def llama(machine, arm):
    """A row for each number of tokens; None where the arm has no such device."""
    if arm == "fsdp2" and machine.device.type not in ("cuda", "cpu"):
        yield None
        return
    for tokens in (32,) if machine.is_small else (8192, 32768):
        yield train(machine, arm, tokens)


def train(machine, arm, tokens):
    torch.manual_seed(0)
    if machine.module:
        machine.module.reset_peak_memory_stats()
    length = tokens // 4
    layers, n, heads, n_steps = (2, 64, 4, 4) if machine.is_small else (22, 2048, 16, 8)
    with torch.device(machine.device):
        model = Decoder(machine.n_words, layers, n, heads, length, has_checkpoints=True)
    model.to(machine.dtype)
    if arm == "fsdp2":
        model.float()  # it keeps the masters itself, of the same weights
    optimizer, step = OPTIMIZERS[arm](machine, model)
    ids = torch.randint(machine.n_words, (4, length + 1)).to(machine.device)
    losses, times = [], []
    for _ in range(n_steps):
        begin = time.perf_counter()
        loss = model.loss(ids)
        loss.backward()
        step()
        optimizer.zero_grad()
        losses.append(loss.item())
        machine.synchronize()
        times.append(time.perf_counter() - begin)
    if hasattr(optimizer, "close"):
        optimizer.close()
    half = sorted(times[n_steps // 2:])
    return {"tokens": tokens, "parameters": sum(p.numel() for p in model.parameters()), "losses": losses, "step_s": half[len(half) // 2],
            "tokens_per_s": tokens / half[len(half) // 2], "device_gib": machine.device_gib(), "host_gib": host_gib()}


def adamw(machine, model):
    optimizer = Masters(model, **({"fused": True} if machine.device.type in ("cuda", "cpu") else {}))
    return optimizer, optimizer.step


def zenflow(config=None):
    def make(machine, model):
        optimizer = zfplugin.torch.ZenFlow(model.named_parameters(), **HYPER, model=model, clip_norm=CLIP, overlap=True, config=config)
        return optimizer, optimizer.step
    return make


def fsdp2(machine, model):
    """Weights, gradients and state in host memory; torch's fused AdamW updates them there."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if machine.device.type == "cuda" else "gloo", rank=0, world_size=1,
                                             init_method="file://" + os.path.join(tempfile.mkdtemp(), "store"))
    mesh = torch.distributed.init_device_mesh(machine.device.type, (1,))
    how = {"mesh": mesh, "offload_policy": CPUOffloadPolicy(pin_memory=machine.device.type == "cuda"),
           "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)}
    for layer in model.layers:
        fully_shard(layer, **how)
    fully_shard(model, **how)
    inner = torch.optim.AdamW(model.parameters(), fused=True, **HYPER)

    def step():
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        inner.step()
    return inner, step


OPTIMIZERS = {"adamw": adamw, "exact": zenflow(), "small": zenflow({"host.moments_dtype": "bfloat16_stochastic"}), "fsdp2": fsdp2}
