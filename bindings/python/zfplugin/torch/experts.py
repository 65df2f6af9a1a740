# SPDX-License-Identifier: Apache-2.0
"""Experts: which parameters keep all of them in one tensor, and those that several groups of processes have under one name.

Transformers keeps the experts of a layer in tensors of three axes, of which the first counts them (MixtralExperts.gate_up_proj).
Taken as one matrix each would have rows as long as two axes together, in one block. They are told by the name of their module, its class,
or a number of experts in it or its config.
"""
import json
import sys

import torch

from .. import errors

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def fused_in(model):
    """{id(parameter): whether its matrices are [in, out]} of parameters of three axes, the first of which counts experts; None without a
    model."""
    if model is None:
        return None
    found = {}
    for path, module in model.named_modules():
        words = f"{path.rpartition('.')[2]} {type(module).__name__}".lower()
        counts = {getattr(of, name, None) for of in (module, getattr(module, "config", None)) for name in _COUNTS}
        for name, p in module.named_parameters(recurse=False):
            if p.dim() == 3 and not hasattr(module, "kernel_size") and ("expert" in words + name.lower() or p.shape[0] in counts):
                found[id(p)] = bool(getattr(module, "is_transposed", False))
    return found


def is_named_so(name):
    """Whether the name of a parameter, without its module, says that it keeps experts."""
    return any("expert" in word for word in name.lower().split(".")[-2:])


def refuse_mixed(ranks, table):
    """Raises where torch.distributed.checkpoint asks and processes have different experts under one name, which it takes for one. A call of
    all processes that train together. ranks: Ranks."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "torch.distributed.checkpoint.state_dict":
        frame = frame.f_back
    if frame is None:
        return
    own = {table.names[i]: torch.distributed.get_process_group_ranks(ranks.groups[table.decls[i].reduce_group])
           for i, _ in table.trainable if table.decls[i].reduce_group}
    known = {}
    for found in map(json.loads, ranks.gather(json.dumps(own))):
        for name, members in found.items():
            if known.setdefault(name, members) != members:
                raise errors.StateError(f'"{name}" is another parameter on processes {known[name]} than on {members} (reduced_over), under one name, '
                                        "which torch.distributed.checkpoint would take for one: give each expert a module with a name of its own, or "
                                        "use save(directory), a directory for each expert")
