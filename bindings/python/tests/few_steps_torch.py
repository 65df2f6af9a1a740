# SPDX-License-Identifier: Apache-2.0
"""few_steps_torch.py [DEVICE] - trains a small torch model with the installed package and compares its weights with torch's AdamW."""
import sys

import torch

import zfplugin
import zfplugin.torch

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
if device.startswith("vulkan"):
    import torchvulkan  # noqa: F401
assert "site" in zfplugin.load().file, f"not the installed library: {zfplugin.load().file}"


def train(optimizer_of):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = optimizer_of(model)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.ones(4, 8, device=device)).square().mean().backward()
        optimizer.step()
    if hasattr(optimizer, "flush"):
        optimizer.flush()
    return model.weight.detach()


ours = train(lambda model: zfplugin.torch.ZenFlow(model.named_parameters(), lr=1e-2))
theirs = train(lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2))
difference = (ours - theirs).abs().max().item()
assert difference < 1e-6, difference
print(f"trained 20 steps of torch on {device}: largest difference to AdamW {difference:.1e}")
