# SPDX-License-Identifier: Apache-2.0
"""The meaning of the constructor's arguments of process groups, and what it refuses of them (group=, norm_group=, declare=; parameters that are
cut over processes).

With several processes declare= may say of a parameter
    "reduced_over": a process group over which its gradient is averaged in place of group=, the processes that have this expert;
        norm_group= is group= then unless it is given,
    "shared_over": a process group of instances with other parameters that hold it too, each with a share of its gradient (a LayerNorm under
        sequence parallelism, an embedding tied over pipeline stages): what group= has made of it is summed over that,
    "counts_in_norm": False of a duplicate that another process counts,
    "average": False: gradients are summed over group=, not averaged.

held: (name, parameter) pairs of the groups, in order.
"""
import torch

from .. import errors
from . import cut
from .ranks import check_group

_DECLARED = {"channels": None, "n_batch_axes": None, "reduced_over": None, "shared_over": None, "counts_in_norm": None, "average": True}


def declared(declare, name, param):
    """The answer of declare= of a parameter, with the defaults of what it leaves out."""
    said = declare(name, param) if declare is not None else None
    unknown = [key for key in said or () if key not in _DECLARED]
    if unknown:
        raise errors.ArgumentError(f'declare("{name}") gave {unknown[0]!r}; allowed: {", ".join(_DECLARED)}')
    return {**_DECLARED, **(said or {})}


def groups_of(declare, held):
    """{"reduced_over", "shared_over": every group that declare= gives so, once, in the order of the parameters}."""
    found = [declared(declare, name, p) for name, p in held]
    return {key: list({id(said[key]): said[key] for said in found if said[key] is not None}.values())
            for key in ("reduced_over", "shared_over")}


def norm_group_of(group, norm_group, held):
    """With group=, parameters that are cut are parts of the model as those of Megatron's are: the group of all processes
    that train it, which the parameters' meshes tell."""
    if group is None:
        return norm_group
    check_group(group, "group")
    trained = [(name, p) for name, p in held if p.requires_grad]
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
