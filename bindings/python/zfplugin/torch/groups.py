# SPDX-License-Identifier: Apache-2.0
"""param_groups: the source of truth, read at every step. What is refused is said with the group's number."""
import copy
import gc
import math
import numbers
import operator
import weakref

import torch

from .. import errors
from ..rules import RULES
from . import muon

LEAST_EPS = 1e-30  # for 0, which the plugin refuses: with it an element that has never had a gradient stays, where torch makes it NaN
_alive = weakref.WeakSet()  # optimizers
_UNSUPPORTED = ("amsgrad", "differentiable")
_WHY_NOT = {
    "fused": "it chooses among torch's implementations, and the plugin is its own: leave it out",
    "foreach": "it chooses among torch's implementations, and the plugin is its own: leave it out",
    "capturable": "the step cannot be captured in a CUDA graph: leave it out",
    "differentiable": "the updates run outside of autograd",
    "amsgrad": "the plugin keeps two moments, AMSGrad needs a third",
}


def _number(value, what, allowed, is_allowed):
    is_number = isinstance(value, numbers.Real) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    if not is_number or isinstance(value, bool) or not math.isfinite(value) or not is_allowed(float(value)):
        raise errors.ArgumentError(f"{what} = {value!r}; allowed: {allowed}")


def refuse(options, library):
    """Options of torch's optimizers that ask for nothing (None, False) are taken; the others, keys of the configuration and
    unknown ones are refused. library: a zfplugin.Library."""
    sections = {key["key"]: key["section"] for key in library.config_keys()} if options else {}
    for name, value in options.items():
        if name in _WHY_NOT and not value:
            continue
        if name in _WHY_NOT:
            raise errors.ArgumentError(f"{name}={value!r} is not supported: {_WHY_NOT[name]}")
        if name in sections:
            raise errors.ArgumentError(f"{name} is a key of the configuration: "
                                       f'config={{"{sections[name]}.{name}": {value!r}}}')
        raise TypeError(f"ZenFlow() got an unexpected keyword argument '{name}': help(zfplugin.torch.ZenFlow) says which there are")


def check(group, number):
    """Raises ArgumentError for what no step could be made with."""
    where = f"parameter group {number}: "
    for option in _UNSUPPORTED:
        if group.get(option):
            raise errors.ArgumentError(f"{where}{option}=True is not supported")
    for name in ("lr", "betas", "eps", "weight_decay"):
        if name not in group:
            raise errors.ArgumentError(f"{where}{name} is missing; groups are added with add_param_group")
    betas = group["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise errors.ArgumentError(f"{where}betas = {betas!r}; need two numbers")
    if isinstance(betas[0], torch.Tensor) != isinstance(betas[1], torch.Tensor):
        raise errors.ArgumentError(f"{where}betas = {betas!r}; need two numbers or two tensors")
    is_muon = group.get("rule") == muon.NAME
    if is_muon:
        muon.check(group, where, _number)
    elif group.get("momentum", betas[0]) != betas[0]:
        raise errors.ArgumentError(f"{where}momentum = {group['momentum']!r} has no effect here: it is betas[0], {betas[0]!r}")
    if not is_muon and group.get("rule") is not None and group["rule"] not in tuple(RULES):
        raise errors.ArgumentError(f"{where}rule = {group['rule']!r}; allowed: {', '.join(RULES)}, {muon.NAME}")
    _number(group["lr"], where + "lr", "0 or more, finite", lambda x: x >= 0)
    for i, beta in enumerate(betas):
        _number(beta, f"{where}betas[{i}]", "0 <= beta < 1", lambda x: 0 <= x < 1)
    _number(group["eps"], where + "eps", "0 or more, finite", lambda x: x >= 0)
    _number(group["weight_decay"], where + "weight_decay", "0 or more, finite", lambda x: x >= 0)


def check_all(groups):
    for number, group in enumerate(groups):
        check(group, number)


def packed(groups):
    """As they stand in a state dict: with numbers for parameters."""
    order = {number: at for at, number in enumerate(ids(groups))}
    return [{**{key: value for key, value in group.items() if key != "params"}, "params": [order[id(p)] for p in group["params"]]}
            for group in groups]


def take(groups, saved):
    """Makes them what a state dict says, in place. Parameters stay; names of theirs where it has none."""
    for group, new in zip(groups, copy.deepcopy(saved)):
        kept = {key: group[key] for key in ("param_names", "params") if key == "params" or key in group and key not in new}
        group.clear()
        group.update({**new, **kept})


def rules(groups, default):
    """The rule of each; default: of a group that names none."""
    return [group.get("rule") or default for group in groups]


def check_rules(groups, default, bound):
    """Raises where a group's rule is no longer the one that it was bound with."""
    for number, (now, before) in enumerate(zip(rules(groups, default), bound)):
        if now != before:
            raise errors.ArgumentError(f"parameter group {number}: rule = {now!r}, but it was bound with {before!r}, whose moments it has: a "
                                       "group keeps its rule; a group that is added may have another")


def write(groups, words, n_words):
    """Hyper-parameters of every group into an array of zf_group_hyper_t, seen as words of 64-bit floats."""
    at = 0
    try:
        for group in groups:
            words[at + 1] = group["lr"]
            words[at + 2], words[at + 3] = group["betas"]
            words[at + 4] = group["eps"] or LEAST_EPS
            words[at + 5] = group["weight_decay"]
            if group.get("amsgrad"):
                break
            at += n_words
        else:
            return
    except (TypeError, ValueError, KeyError):
        check_all(groups)
        raise
    check_all(groups)


def members(groups):
    """The parameters of each group, as they are now."""
    return [list(group["params"]) for group in groups]


def ids(groups):
    """id() of every parameter in the groups, in order."""
    return dict.fromkeys(id(p) for group in groups for p in group["params"])


def refuse_turns(optimizer, names):
    """Raises where another optimizer of this process trains some of these parameters, and each has some of its own: the plugin lets one
    train a weight, and they would end each other at every turn. names: {id(parameter): name}."""
    def trained(of):
        return {id(p) for group in of.param_groups for p in group["params"] if p.requires_grad}

    def shared_with(other):
        own, theirs = trained(optimizer), trained(other)
        return own & theirs if other is not optimizer and other.is_open() and own - theirs and theirs - own else set()

    if any(map(shared_with, _alive)):
        gc.collect()  # one that was dropped may stand in a circle
    for shared in filter(None, map(shared_with, list(_alive))):
        name = next((names[number] for number in shared if number in names), "a parameter")
        raise errors.ArgumentError(f'"{name}" ({len(shared)} in all) is trained by another ZenFlow optimizer, and each of the two has parameters of its '
                                   "own: taking turns on weights that both train cannot be. Make one optimizer of all parameters, with a group "
                                   "for each part; or close() the other one first")
    _alive.add(optimizer)


def hold(groups, before):
    """Whether the groups hold what members() gave before: the same parameters in the same places."""
    return len(groups) == len(before) and all(
        len(group["params"]) == len(params) and all(map(operator.is_, group["params"], params))
        for group, params in zip(groups, before))
