# SPDX-License-Identifier: Apache-2.0
"""Parameters that the host has cut over processes (DTensors: FSDP2's fully_shard, tensor parallelism, both): each process
trains its own part.

Model: an update is element-wise, so a part is trained like a matrix of its own, and the plugin moves no gradient and no
parameter: the host does. Two things are of the whole model: the gradient norm, with what is clipped to it, and whether a step is
skipped. Both come from one number, the joint norm, which processes add up by rank from each one's sum of squares, in double,
and give to the plugin as the host's. Channels are chosen in each part by itself, as they are in each row block of a matrix.

Where a parameter lies is told by its mesh: along an axis of processes it is cut, or each process has a copy. Other parameters may
lie along fewer axes (fully_shard of what tensor parallelism left whole, a plain tensor beside DTensors): along the others they are
copies, too. An axis may also lie in another one: of the processes over which all else is cut, some have one expert. It is no copy of
another one, where those have none of that name, or where experts are cut over all of them by two axes. A copy counts in the norm once,
on the first process of the axis. Copies must stay equal though each process updates
its own: their gradients are (that is looked at), and windows close alike where everything is a copy along this axis and
no setting lets a process decide by itself. Elsewhere a copy is resident: of what is cut an edit may be in one process's part alone, and
closes windows there.

Every place that looks at a parameter's memory or gradient asks local() or grad_of() for this process's part.
"""
import math
import sys

import torch

from .. import errors

DECIDED_ALONE = ("update_interval", "select_strategy")  # of [zenflow]: auto looks at all that a process has
_NO_GRADIENT = -1.0  # in place of a norm
_LARGEST_DIFFERENCE = {torch.float32: 1e-3}  # of the norms of copies' gradients, relative: sums in another order
_LARGEST_DIFFERENCE_16_BIT = 1e-2


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
    if not is_settled(param):
        raise errors.ShapeError(f"a gradient is placed as {grad.placements} on {grad.device_mesh}, its parameter as "
                                f"{param.placements} on {param.device_mesh}: it is not the gradient of this process's part",
                                scope="param")
    part = grad._local_tensor
    return part.wait() if hasattr(part, "trigger_wait") else part  # of a collective that runs in the background


def is_settled(param):
    """Whether the gradient, if there is one, lies as the parameter does."""
    grad = param.grad
    return not hasattr(grad, "placements") or (grad.placements == param.placements and grad.device_mesh == param.device_mesh)


def settle(params):
    """Gradients that autograd left as shares to be added up (Partial: a norm under sequence parallelism) are, and lie as their
    parameters do then. A call that all processes make together."""
    for p in params:
        if not is_settled(p) and p.grad.device_mesh == p.device_mesh:
            p.grad = p.grad.redistribute(placements=p.placements)


def parameters_in(model):
    """{name: parameter} of the model, of each name. What fully_shard has gathered for a forward that no backward followed lies in
    its parts again, as for torch's own state_dict()."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
    for module in model.modules() if kind else ():
        if isinstance(module, kind):
            module.reshard()
    return dict(model.named_parameters(remove_duplicate=False))


def like(values, whole):
    """values, a part, as a DTensor placed as another one is; or as they are."""
    if not is_cut(whole):
        return values
    return type(whole).from_local(values, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape,
                                  stride=whole.stride())


def check(param, name, when):
    """Raises for a DTensor of which this process has no part of its own."""
    what = None
    if any(placement.is_partial() for placement in param.placements):
        what = "each process has a share of its values, to be added up. Place it as Shard or Replicate: " \
            "parallelize_module and fully_shard do"
    elif param.device_mesh.get_coordinate() is None:
        what = "this process is not in that mesh. Give each process's optimizer the parameters that it has a part of"
    if what is not None:
        raise errors.ParamError(f'"{name}" {when}is a DTensor placed as {param.placements} on {param.device_mesh}: {what}',
                                scope="param")


def axes_of(param):
    """[(processes, group, placement)] of the axes of a DTensor's mesh that have several processes."""
    if not is_cut(param):
        return []
    mesh, get = param.device_mesh, torch.distributed.get_process_group_ranks
    groups = [mesh.get_group(axis) for axis in range(mesh.ndim)]
    return [(tuple(get(group)), group, placement) for group, placement in zip(groups, param.placements) if len(get(group)) > 1]


class Spread:
    """How parameters lie over processes. groups: one of each axis of all their meshes, in the order of the parameters, the same
    on every process."""

    def __init__(self, params, names):
        found, first = {}, {}  # {processes: group}; {processes: a parameter's name and place there}
        self._meshes, self._cut = [], []  # of each parameter the processes of its axes; of those that cut it
        self._places = [f"placed as {p.placements} on {p.device_mesh}" if is_cut(p) else "no DTensor" for p in params]
        self._names = names
        for p, name, place in zip(params, names, self._places):
            along = axes_of(p)
            self._meshes.append([ranks for ranks, _, _ in along])
            self._cut.append([ranks for ranks, _, placement in along if not placement.is_replicate()])
            for ranks, group, _ in along:
                found.setdefault(ranks, group)
                first.setdefault(ranks, (name, place))
        self._axes = {ranks: group for ranks, group in found.items() if not any({*ranks} < {*other} for other in found)}
        for i, axes in enumerate(self._meshes):
            for ranks in axes:
                other = next((other for other in self._axes if len({*ranks} & {*other}) > 1 and not {*ranks} <= {*other}), None)
                if other is not None or ranks not in self._axes and ranks not in self._cut[i]:
                    raise self._apart(i, ranks, other or next(other for other in self._axes if {*ranks} < {*other}), first)
        self._rank = torch.distributed.get_rank()
        self.device_type = next(p.device_mesh.device_type for p in params if is_cut(p))
        self.groups = list(self._axes.values())
        self._is_one_of_many = [False] * len(params)  # an expert, of which other processes have others
        some = {i: ranks for i, axes in enumerate(self._meshes) for ranks in axes
                if ranks not in self._axes and not any(self._covers(i, other) for other in self._axes if {*ranks} < {*other})}
        alone = [i for i, p in enumerate(params) if is_cut(p) and not self._meshes[i]]
        if len(self._axes) < len(found) or alone:
            self._compare(some, alone, first)
        copied = [self._copied(i) for i in range(len(params))]
        self._of_copies = [ranks for ranks in self._axes if all(ranks in axes for axes in copied)]  # along these nothing is cut

    def _compare(self, some, alone, first):
        """Experts lie along some processes of an axis, or in one alone. Where the others have none of that name they have others. A
        call that all processes make together."""
        table = [{self._names[i] for i in [*some, *alone]}]
        for group in self.groups:
            everyones = [None] * torch.distributed.get_world_size(group)
            torch.distributed.all_gather_object(everyones, table, group)
            table = sum(everyones, [])
        for i in [*some, *alone]:
            n_holders = sum(self._names[i] in held for held in table)
            self._is_one_of_many[i] = n_holders == math.prod(map(len, self._meshes[i]))
            if i in some and not self._is_one_of_many[i]:
                raise self._apart(i, some[i], next(other for other in self._axes if {*some[i]} < {*other}), first)

    def _apart(self, i, ranks, other, first):
        return errors.ParamError(
            f'"{self._names[i]}" is {self._places[i]}, along the processes {list(ranks)}; "{first[other][0]}" is {first[other][1]}, '
            f"along {list(other)}: these are no axes of one mesh. Take both from one: mesh = init_device_mesh(..., (n, m), "
            'mesh_dim_names=("dp", "tp")), parallelize_module(model, mesh["tp"], ...), fully_shard(model, mesh=mesh["dp"]). Experts: cut '
            "each over both axes, or over one, under a name of its own", scope="param")

    def _covers(self, i, ranks):
        """Whether parameter i is cut over all of these processes, along one axis or several."""
        return math.prod(len(some) for some in self._cut[i] if {*some} <= {*ranks}) == len(ranks)

    @property
    def n_processes(self):
        return math.prod(map(len, self._axes))

    def overlap(self, group):
        """Whether some of a group's processes lie along these axes."""
        return any(len({*ranks} & {*torch.distributed.get_process_group_ranks(group)}) > 1 for ranks in self._axes)

    def _copied(self, i):
        """Along which axes parameter i is a copy."""
        return [ranks for ranks in self._axes if not self._covers(i, ranks) and (ranks in self._meshes[i] or not self._is_one_of_many[i])]

    def counts(self, i):
        """Whether this process counts what it has of parameter i in the norm."""
        return all(ranks[0] == self._rank for ranks in self._copied(i))

    def diverges(self, i, is_decided_alone):
        """Whether windows of parameter i, a copy, may close at other steps on other processes that have it."""
        copied = self._copied(i)
        return bool(copied) and (is_decided_alone or any(ranks not in self._of_copies for ranks in copied))

    def part(self):
        """The words of a saved state of the process whose part it is."""
        rank, sizes = 0, [len(ranks) for ranks in self._axes]
        for ranks in self._axes:
            rank = rank * len(ranks) + ranks.index(self._rank)
        return {"rank": rank, "n_ranks": self.n_processes, **({"sizes": sizes} if len(sizes) > 1 else {})}

    def check_copies(self, params, device):
        """Raises where the gradients of copies differ. A call that all processes make together, with the same parameters."""
        mine = [i for i in range(len(params)) if self._copied(i)]
        if not mine:
            return
        grads = [grad_of(params[i]) for i in mine]
        norms = torch.stack([torch.linalg.vector_norm(grad, dtype=torch.float64) if grad is not None else
                             torch.full((), _NO_GRADIENT, dtype=torch.float64, device=device) for grad in grads])
        for group in self.groups:  # axis 0 is that of the last group
            norms = torch.stack(_all(norms, group))
        norms = norms.cpu().nan_to_num(nan=math.inf)
        for axis, ranks in enumerate(reversed(self._axes)):
            least, most = norms.amin(axis), norms.amax(axis)
            for column, i in enumerate(mine):
                low, high = least[..., column].flatten(), most[..., column].flatten()
                bound = _LARGEST_DIFFERENCE.get(params[i].dtype, _LARGEST_DIFFERENCE_16_BIT)
                differs = (low != high) & ~(high - low <= bound * high)
                if ranks in self._copied(i) and differs.any():
                    at = int(differs.nonzero()[0])
                    raise self._differing(i, ranks, float(low[at]), float(high[at]))

    def _differing(self, i, ranks, low, high):
        low = "none" if low == _NO_GRADIENT else f"one of norm {low:.6g}"
        return errors.ParamError(
            f'"{self._names[i]}" is not cut over the processes {list(ranks)} (it is {self._places[i]}), where each has a copy, and '
            f"their gradients differ: {low}, one of norm {high:.6g}. The copies would become different weights. Cut it too "
            "(fully_shard of the whole model), or give it a gradient that is the same on all of them (parallelize_module with "
            "SequenceParallel; an all-reduce before step())", scope="param")


def is_decided_alone(config):
    """Whether, with this configuration, each process decides by itself when windows close."""
    return any(config[f"zenflow.{key}"] == "auto" for key in DECIDED_ALONE)


def spread_of(params, names):
    """How these parameters lie over processes; None where none of them is a DTensor."""
    return Spread(params, names) if any(map(is_cut, params)) else None


def is_on_its_way(spread):
    """Whether a gradient may still be on its way to this memory when its hook is called: fully_shard with CPU offload only
    enqueues the copy before that. When backward has returned it is there."""
    return spread is not None and spread.device_type != "cpu"


def _all(values, group):
    everyones = [torch.empty_like(values) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(everyones, values.contiguous(), group=group)
    return everyones


class JointNorm:
    """The norm of all processes' parts, as memory that a step reads. params: those that spread is of; counts: of each, whether it
    counts on this process. device: where the step reads it; the parts may lie on another one."""

    def __init__(self, spread, params, counts, device):
        self.spread, self._norm = spread, torch.zeros(1, dtype=torch.float64, device=device)
        self._device = local(params[0]).device
        self._params, self._counted = params, [p for p, does in zip(params, counts) if does]
        self._n_found = 0
        self.address = self._norm.data_ptr()

    def check(self):
        """Raises where copies have different gradients; looked for at steps 1, 2, 4, 8 ... A call that all processes make
        together."""
        self._n_found += 1
        if self._n_found & (self._n_found - 1) == 0:
            self.spread.check_copies(self._params, self._device)

    def find(self):
        """A call that all processes make together."""
        total = torch.zeros(1, dtype=torch.float64, device=self._device)
        for grad in (grad_of(p) for p in self._counted if p.grad is not None):
            total += torch.linalg.vector_norm(grad, dtype=torch.float64) ** 2
        for group in self.spread.groups:  # all have the same bits after each
            total = sum(_all(total, group))
        self._norm.copy_(total.sqrt())
