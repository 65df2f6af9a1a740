# SPDX-License-Identifier: Apache-2.0
"""What the number formats of a run, of any optimizer, silently leave undone.

    for line in zfplugin.torch.precision(model, optimizer):
        print(line)

Model: a 16-bit weight without an fp32 master beside it moves only where a step is at least half a unit in its last place, and a number that
is rounded to nearest at every step stands where it should decay by less than that. So what is asked of each parameter is what its next
step would leave as it is. Nothing is changed; the device computes, and a read of weights and moments is what it costs.
"""
import torch

from .cut import local
from .parameters import listed
from .wrappers import find

_UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half a unit in the last place of 1
_EIGHT_BITS = ("OptimState8bit", "OptimState4bit", "OptimStateFp8")  # torchao's
MOST_STILL = 0.5  # of a parameter's weights


def precision(model, optimizer):
    """Lines, each with the parameters it is about; none where nothing is wrong. optimizer: any of torch's kind, before or after steps."""
    ours, found = find(optimizer), {}
    names = {id(p): name for name, p in model.named_parameters()}
    of_norms = {id(p) for name, module in model.named_modules() if "norm" in (type(module).__name__ + name.rpartition(".")[2]).lower()
                for p in module.parameters(recurse=False)}
    for group in (ours or optimizer).param_groups:
        for i, p in enumerate(p for p in group["params"] if p.requires_grad and p.numel()):
            state = {} if ours else {name: value for name, value in optimizer.state.get(p, {}).items() if isinstance(value, torch.Tensor)}
            with torch.no_grad():
                for line in () if ours else _lines(p, state, group, id(p) in of_norms):
                    found.setdefault(line, []).append(names.get(id(p), f"param{i}"))
    return [f"{listed(them)}: {line}" for line, them in found.items()]


def _lines(p, state, group, is_norm):
    """What is to be said of one parameter. state: the optimizer's tensors for it."""
    p, grad = local(p).detach(), None if p.grad is None else local(p.grad).float()
    unit = _UNIT.get(p.dtype)
    if unit is not None and not _has_master(p, state):
        step = _step(p, grad, state, group)
        is_moving = step != 0
        still = is_moving & ((p.float() + step).to(p.dtype) == p)
        is_stuck = bool(is_moving.any()) and still.sum() > MOST_STILL * is_moving.sum()
        if is_stuck and is_norm and _n_steps(state) and ((p == 1) | (p == 0)).float().mean() > MOST_STILL:
            yield f"a norm that still stands at its first values after {_n_steps(state)} steps: its steps are less than {p.dtype} can tell, and it has no fp32 master"
        elif is_stuck:
            yield f"most weights cannot move: a step is less than half a unit in the last place of {p.dtype}, and there is no fp32 master"
        decay = group.get("lr", 0.0) * group.get("weight_decay", 0.0)
        if 0 < decay < unit and (p != 0).any():
            yield f"weight_decay does nothing: lr x weight_decay = {float(decay):.1g} of a weight is less than {p.dtype} can tell, and there is no fp32 master"
    for name, value in state.items():
        if name == "step" and value.dtype in _UNIT:
            yield f"the count of steps is {value.dtype}: it stops at {round(1 / _UNIT[value.dtype])}, and bias correction with it"
        elif name in ("exp_avg_sq", "state2", "square_avg") and (value.dtype == torch.uint8 or type(value).__name__ in _EIGHT_BITS):
            yield "the second moment is kept in few bits, rounded to nearest: where gradients become smaller it stays, and steps are too small for good"
        elif name in ("exp_avg_sq", "square_avg") and value.dtype in _UNIT and 1 - _beta2(group) < _UNIT[value.dtype]:
            yield f"the second moment is {value.dtype}, rounded to nearest: it cannot decay at beta2 = {_beta2(group):g}, and steps become too small for good"
    for beta in group.get("betas", ()):
        if isinstance(beta, torch.Tensor) and beta.dtype in _UNIT and beta >= 1:
            yield f"a beta is {beta.dtype}, which cannot hold it: it is {float(beta):g}"


def _has_master(p, state):
    """Whether the optimizer keeps the same weight with more bits."""
    return any(value.dtype == torch.float32 and value.shape == p.shape and torch.equal(value.to(p.dtype), p) for value in map(local, state.values()))


def _n_steps(state):
    return int(state["step"]) if "step" in state else 0


def _beta2(group):
    return float(group["betas"][1]) if "betas" in group else float(group.get("alpha", 0.99))


def _step(p, grad, state, group):
    """About what the next step will add, in fp32: AdamW's from its moments, or lr for what has a gradient and no moments yet, else SGD's."""
    lr = float(group["lr"])
    if "exp_avg" in state and "exp_avg_sq" in state:
        n, (beta1, beta2) = max(_n_steps(state), 1), (float(beta) for beta in group.get("betas", (0.9, 0.999)))
        m, v = local(state["exp_avg"]).float() / max(1 - beta1**n, 1e-6), local(state["exp_avg_sq"]).float() / max(1 - beta2**n, 1e-6)
        return -lr * m / (v.sqrt() + group.get("eps", 1e-8))
    if grad is None:
        return torch.zeros_like(p, dtype=torch.float32)
    if "betas" in group:
        return -lr * grad.sign()
    buffer = state.get("momentum_buffer")
    return -lr * (grad if buffer is None else local(buffer).float())
