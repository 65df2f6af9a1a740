# SPDX-License-Identifier: Apache-2.0
"""What the constructor's arguments say of process groups, and what it refuses of them (group=, norm_group=, shared_over=, reduced_over=;
parameters that are cut over processes).

held: (name or None, parameter) pairs of the groups, in order.
"""
import torch

from .. import errors
from . import cut
from .ranks import check_group


def are_several():
    """Whether other processes train with this one, DDP's replicas among them: what is found has to be found by all at the same step."""
    return torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def groups_of(function, held):
    """Every group that a function of (name, parameter) gives, once, in the order of the parameters."""
    found = [function(name, p) for name, p in held] if function is not None else []
    return list({id(group): group for group in found if group is not None}.values())


def norm_group_of(group, norm_group, held):
    """With group=, parameters that are cut are parts of the model as those of Megatron's are: the group of all processes
    that train it, which the parameters' meshes tell."""
    if group is None:
        return norm_group
    check_group(group, "group")
    trained = [(name or f"param{i}", p) for i, (name, p) in enumerate((name, p) for name, p in held if p.requires_grad)]
    for name, p in trained:
        if cut.is_cut(p):
            cut.check(p, name, "")
    spread = cut.spread_of([p for _, p in trained], [name for name, _ in trained])
    if spread is None:
        return norm_group
    if spread.overlap(group):
        raise errors.ArgumentError("group=... is for gradients that nobody has summed; its processes have parts of the same "
                                   "parameters (fully_shard), whose gradients are: leave it out")
    n_all = spread.n_processes * torch.distributed.get_world_size(group)
    if norm_group is None and n_all != torch.distributed.get_world_size():
        raise errors.ArgumentError(f"group=... with parameters that are cut over {spread.n_processes} processes (tensor parallel) "
                                   f"needs norm_group=...: the group of the {n_all} processes that train the model together")
    return norm_group or torch.distributed.group.WORLD
