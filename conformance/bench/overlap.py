#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""overlap.py [STEPS]: how much of the update is done by the time that step() is called, with overlap=True in PyTorch on this CPU.

Prints for each way of training: the share of chunks whose replay was over or had begun (`early_taken`), the share replayed in vain, waits and
their time per step, and the time of a step beside the same with overlap=False, in turn with it. Needs torch; transformers and accelerate for
the Trainer's rows. The share is the machine's, too: workers need a core beside the trainer.
"""
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "bindings/python")]
import zfplugin.torch  # noqa: E402

WIDTH, DEPTH, BATCH, SETTLE = 384, 12, 2048, 4  # the steps that are left out: the first one travels at step()
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(DEPTH)])

    def forward(self, x, labels=None):
        return {"loss": self.layers(x).square().mean()}


class Watch:
    """Counters of one run from SETTLE steps on."""

    def __init__(self, opt):
        self.opt, self.times, self._at = opt, [], None
        opt.register_step_pre_hook(lambda *_: self._begin())
        opt.register_step_post_hook(lambda *_: self._end())
        self.n_steps, self.before = 0, None

    def _begin(self):
        self._at = time.perf_counter()

    def _end(self):
        self.n_steps += 1
        if self.n_steps == SETTLE:
            self.before = self.opt.stats()
        elif self.n_steps > SETTLE:
            self.times.append(time.perf_counter() - self._at)

    def figures(self):
        now = self.opt.stats()
        n = self.n_steps - SETTLE
        taken, lost, waits, waited = ((now[name] - self.before[name]) / n for name in ("early_taken", "early_lost", "host_waits", "host_wait_ns"))
        return {"taken": taken / n_chunks(), "lost": lost / n_chunks(), "waits": waits, "wait_ms": waited * 1e-6,
                "step_ms": 1e3 * statistics.median(self.times)}


def made(model, overlap, **config):
    return zfplugin.torch.ZenFlow(model.named_parameters(), model=model, overlap=overlap, config={"log.level": "error", **config})


@functools.cache
def n_chunks():
    """Of the model: a trace of a step has a replay of each."""
    with tempfile.TemporaryDirectory() as folder:
        model, path = Model(), os.path.join(folder, "trace.json")
        opt = made(model, True, **{"trace.file": path})
        model(torch.randn(2, WIDTH))["loss"].backward()
        opt.step()
        opt.close()
        with open(path, encoding="utf-8") as file:
            return len({event["args"]["chunk"] for event in json.load(file)["traceEvents"] if event["name"] == "replay"})


def loop(n_steps, overlap, n_backwards=1, clipped=0.0, shard=None):
    """clipped: the share of steps that are."""
    model = Model() if shard is None else shard(Model())
    opt = made(model, overlap)
    watch, x = Watch(opt), torch.randn(BATCH, WIDTH)
    for step in range(n_steps + SETTLE):
        opt.clip_norm = 1e-6 if int((step + 1) * clipped) > int(step * clipped) else 1e6 if clipped else 0.0
        for _ in range(n_backwards):
            model(x)["loss"].backward()
        opt.step()
        opt.zero_grad()
    found = watch.figures()
    opt.close()
    return found


def trainer(n_steps, overlap):
    import transformers

    from zfplugin.torch.trainer import ZenFlowCallback
    transformers.utils.logging.set_verbosity_error()
    model = Model()
    opt = made(model, overlap)
    watch = Watch(opt)
    data = [{"x": torch.randn(WIDTH), "labels": 0} for _ in range(BATCH)]
    with tempfile.TemporaryDirectory() as out:
        arguments = transformers.TrainingArguments(out, max_steps=n_steps + SETTLE, per_device_train_batch_size=BATCH, use_cpu=True, report_to=[],
                                                   disable_tqdm=True, save_strategy="no", logging_strategy="no")
        transformers.Trainer(model, arguments, train_dataset=data, optimizers=(opt, None), callbacks=[ZenFlowCallback()]).train()
    found = watch.figures()
    opt.close()
    return found


def sharded(model):
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    if not torch.distributed.is_initialized():
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"})
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    return fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))


WAYS = {"plain loop": loop, "two backwards a step": lambda n, overlap: loop(n, overlap, n_backwards=2),
        "1 step of 10 clipped": lambda n, overlap: loop(n, overlap, clipped=0.1), "1 of 2 clipped": lambda n, overlap: loop(n, overlap, clipped=0.5),
        "all clipped": lambda n, overlap: loop(n, overlap, clipped=1.0), "Trainer, max_grad_norm 1": trainer,
        "FSDP2, CPU offload, 1 process": lambda n, overlap: loop(n, overlap, shard=sharded)}


def main():
    n_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f"{'':31} {'taken':>7} {'in vain':>8} {'waits':>6} {'waited':>10} {'step()':>10} {'without':>10}")
    for name, way in WAYS.items():
        found, without = way(n_steps, True), way(n_steps, False)
        print(f"{name:31} {found['taken']:7.0%} {found['lost']:8.0%} {found['waits']:6.1f} {found['wait_ms']:7.1f} ms {found['step_ms']:7.1f} ms "
              f"{without['step_ms']:7.1f} ms", flush=True)


if __name__ == "__main__":
    main()
