#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""smoke.py [--device cuda|cpu] - a few steps in PyTorch: ZenFlow is torch's AdamW, bit for bit or nearly; windows learn, and on
a GPU their steps wait for nothing after the first ones.

Exit status 77: no PyTorch, or none that has the device.
"""
import argparse
import faulthandler
import sys

faulthandler.dump_traceback_later(35, exit=False)
try:
    import torch
except ImportError as e:
    print(f"left out: {e}")
    sys.exit(77)
import zfplugin.torch  # noqa: E402


def train(device, optimizer_of, steps):
    """Weights and losses at the end, and how often one of the last eight steps waited for the device."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).to(device)
    batch, wanted = torch.randn(32, 64, device=device), torch.randn(32, 64, device=device)
    optimizer = optimizer_of(model)
    losses, n_waits = [], []
    for _ in range(steps):
        n_waits.append(optimizer.stats()["host_waits"] if hasattr(optimizer, "stats") else 0)
        loss = (model(batch) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    if hasattr(optimizer, "flush"):
        optimizer.flush()
    return [p.detach().float().cpu() for p in model.parameters()], [loss.item() for loss in losses], n_waits[-1] - n_waits[-8]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=32)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print(f"left out: torch {torch.__version__} sees no GPU")
        return 77
    zenflow = zfplugin.torch.ZenFlow
    theirs, _, _ = train(args.device, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.01), args.steps)
    ours, _, _ = train(args.device, lambda m: zenflow(m.named_parameters(), lr=1e-2, weight_decay=0.01), args.steps)
    _, losses, n_waits = train(args.device, lambda m: zenflow(m.named_parameters(), lr=1e-2, weight_decay=0.01, model=m, fetch=True,
                                                        config={"zenflow.mode": "windows"}), args.steps)
    gap = max((a - b).abs().max().item() for a, b in zip(ours, theirs))
    is_good = gap < 1e-5 and losses[-1] < 0.7 * losses[0] and (n_waits == 0 or args.device != "cuda")
    print(f"torch {torch.__version__} on {args.device}: exact, largest difference to AdamW {gap:.1e}; windows, loss {losses[0]:.3f} to {losses[-1]:.3f}, "
          f"{n_waits / 7:.1f} waits per step")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
