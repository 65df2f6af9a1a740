# SPDX-License-Identifier: Apache-2.0
"""Parameters that the host has cut over processes (DTensors of FSDP2's fully_shard): each process trains its own part.

Model: an update is element-wise, so a part is trained like a matrix of its own, and the plugin moves no gradient and no
parameter: FSDP does. Two things are of the whole model: the gradient norm, with what is clipped to it, and whether a step is
skipped. Both come from one number, the joint norm, which processes add up by rank from each one's sum of squares, in double,
and give to the plugin as the host's. Channels are chosen in each part by itself, as they are in each row block of a matrix.

Every place that looks at a parameter's memory or gradient asks local() or grad_of() for this process's part.
"""
import torch

from .. import errors


def is_cut(param):
    return hasattr(param, "placements")


def local(tensor):
    """This process's part of a DTensor; another tensor as it is."""
    return tensor._local_tensor if hasattr(tensor, "placements") else tensor


def grad_of(param):
    """This process's part of a parameter's gradient, or None."""
    grad = param.grad
    if not hasattr(grad, "placements"):
        return grad
    if grad.placements != param.placements:
        raise errors.ShapeError(f"a gradient is placed as {grad.placements}, its parameter as {param.placements}: it is not "
                                "the gradient of this process's part", scope="param")
    return grad._local_tensor


def like(values, whole):
    """values, a part, as a DTensor placed as another one is; or as they are."""
    if not is_cut(whole):
        return values
    return type(whole).from_local(values, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape,
                                  stride=whole.stride())


def check(param, name, when):
    """Raises for a cut that is not one of fully_shard over one axis of processes."""
    if len(param.placements) != 1 or not param.placements[0].is_shard():
        raise errors.ParamError(f'"{name}" {when}is a DTensor placed as {param.placements}; supported: one Shard over a mesh '
                                "of one axis, as fully_shard makes it (neither hybrid sharding nor tensor parallelism)",
                                scope="param")


def mesh_of(params, names):
    """The mesh over which all of them are cut; None where none is. Raises where they differ."""
    first = next((p for p in params if is_cut(p)), None)
    for p, name in zip(params, names):
        if first is not None and (not is_cut(p) or p.device_mesh != first.device_mesh):
            raise errors.ParamError(f'"{name}" is not cut over the processes that others are cut over: the norm would count '
                                    "it more than once. Cut all that is trained: fully_shard(model) of the whole model",
                                    scope="param")
    return first.device_mesh if first is not None else None


def is_on_its_way(mesh):
    """Whether a gradient may still be on its way to this memory when its hook is called: fully_shard with CPU offload only
    enqueues the copy before that. When backward has returned it is there."""
    return mesh is not None and mesh.device_type != "cpu"


class JointNorm:
    """The norm of all processes' parts, as memory that a step reads. device: of the parts."""

    def __init__(self, mesh, device):
        self.group, self._norm = mesh.get_group(), torch.zeros(1, dtype=torch.float64, device=device)
        self.address = self._norm.data_ptr()

    def find(self, params, unscale):
        """A call that all processes make together."""
        own = torch.zeros_like(self._norm)
        for grad in (grad_of(p) for p in params if p.grad is not None):
            own += torch.linalg.vector_norm(grad, dtype=torch.float64) ** 2
        everyones = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size(self.group))]
        torch.distributed.all_gather(everyones, own, group=self.group)
        self._norm.copy_(unscale * sum(everyones).sqrt())


def part_of(mesh):
    """What a saved state says of the process whose part it is."""
    return {"rank": mesh.get_local_rank(), "n_ranks": mesh.size()} if mesh is not None else None
