#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a second moment follows gradients that fall: sqrt(v) over fp32's, median [5 %, 95 %], of optimizers with small moments.

3,000 steps of like gradients, then 4,000 after half of them fell tenfold: of those elements. A step is lr / sqrt(v), so where 5.7 stands steps
stay 5.7 times too small. With bitsandbytes or torchao installed theirs, too, on a CPU. docs/memory.md has the table. Arguments: names that are run alone.
"""
import importlib.util
import sys

import torch

import zfplugin.torch

SHAPE, BEFORE, AFTER = (64, 128), 3000, 4000


def optimizers(p):
    """name -> (optimizer over p, function that gives its second moment)"""
    bf16 = torch.nn.Parameter(p.detach().bfloat16())
    yield "torch AdamW, bf16", bf16, torch.optim.AdamW([bf16]), lambda o: o.state[bf16]["exp_avg_sq"]
    if importlib.util.find_spec("bitsandbytes"):
        from bitsandbytes import functional, optim
        yield "bitsandbytes AdamW8bit", p, optim.AdamW8bit([p], min_8bit_size=4096), lambda o: functional.dequantize_blockwise(
            o.state[p]["state2"], absmax=o.state[p]["absmax2"], code=o.state[p]["qmap2"], blocksize=256)
    if importlib.util.find_spec("torchao"):
        from torchao.optim import AdamW8bit
        yield "torchao AdamW8bit", p, AdamW8bit([p]), lambda o: o.state[p]["exp_avg_sq"].dequantize()
    for moments in ("float32", "bfloat16_stochastic", "int8_bfloat16", "int8"):
        yield f"ZenFlow {moments}", p, zfplugin.torch.ZenFlow([("p", p)], config={"host": {"moments_dtype": moments}}), \
            lambda o: o.state[p]["exp_avg_sq"]


def main(*names):
    for name, p, optimizer, read in optimizers(torch.nn.Parameter(torch.zeros(SHAPE))):
        if names and name not in names:
            continue
        generator, want, found = torch.Generator().manual_seed(0), torch.zeros(SHAPE), []
        for step in range(BEFORE + AFTER):
            grad = torch.randn(SHAPE, generator=generator)
            grad[:, ::2] *= 0.1 if step >= BEFORE else 1.0
            p.grad = grad.to(p.dtype)
            want.mul_(0.999).addcmul_(p.grad.float(), p.grad.float(), value=0.001)
            optimizer.step()
            if step + 1 in (BEFORE, BEFORE + AFTER):
                at = torch.quantile((read(optimizer).float().reshape(SHAPE) / want).sqrt()[:, ::2].flatten(), torch.tensor([0.5, 0.05, 0.95]))
                found.append("%.2f [%.2f, %.2f]" % tuple(at.tolist()))
        print(f"{name:27}", *found, sep=" | ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
