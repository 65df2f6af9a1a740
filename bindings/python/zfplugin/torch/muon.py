# SPDX-License-Identifier: Apache-2.0
"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): matrices whose momentum is made orthogonal before it is taken off.

    ZenFlow([{"params": hidden, "rule": "muon", "lr": 0.02}, {"params": rest}])

Model: the plugin keeps masters and momentum in host memory, and everything around an update: norm, clipping, skipped steps, accumulation,
checkpoints. Once per step it calls MatrixUpdates with all matrices that have a gradient (zf.matrix/0). Momentum and weights are updated there, in host
memory; Newton-Schulz iterations run on the parameter's own device. What travels is the update alone, in ns_dtype, up and down, and while one
matrix is iterated on a device's stream the next one's momentum is made on the CPU: two places are in use at once.

Matrices that are cut over processes (fully_shard) are made whole for the iterations alone: in rounds, each process gets one of about as much to compute,
and gives each of them its part of the update. With group=... each matrix has an owner, and the plugin gives it what it needs.

Arguments and defaults are torch.optim.Muon's, and so is the arithmetic with ns_dtype="bfloat16"; momentum and weights are fp32, of 16-bit
parameters too; [host] moments_dtype = bfloat16_stochastic keeps the momentum in 2 bytes. Parameters of three axes whose first counts experts are
matrices each. split_rows=(q, k, v): rows of a fused projection, in turn for as long as there are some, belong to as many matrices; (head,) * n makes
one of each head.
"""
import ctypes as C
import math

import torch
import torch.distributed as dist

from .. import errors
from ..rules import MatrixRule
from . import cut, experts
from .lanes import host_memory

NAME = "muon"
RULE = MatrixRule(NAME, 1)
OPTIONS = {"momentum": 0.95, "nesterov": True, "ns_coefficients": (3.4445, -4.7750, 2.0315), "ns_steps": 5, "adjust_lr_fn": None,
           "ns_dtype": "bfloat16", "split_rows": None}
_SHARED = {"eps": 1e-7, "weight_decay": 0.1}  # with other rules, which have other defaults
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_OF_ABI = {(2, 32): torch.float32, (4, 16): torch.bfloat16, (2, 16): torch.float16}  # by code and bits
_MOST_ELEMS = 1 << 25  # of matrices of one parameter that are iterated together


# ---- groups --------------------------------------------------------------------------------------------------------------


def _not_hidden(model):
    """ids of the weights of embeddings and of the head, which are matrices and no hidden layers'."""
    if model is None:
        return set()
    modules = [m for m in model.modules() if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag))]
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return {id(m.weight) for m in [*modules, *([head] if head is not None else [])] if getattr(m, "weight", None) is not None}


def prepared(groups, default, shared, model, names, log):
    """The groups with the options of Muon where their rule is that. default: the rule of groups that name none. shared: what the optimizer was
    given for all groups, None where nothing. Parameters that are no matrices of hidden layers go into a group of AdamW's behind theirs, where
    its rate is theirs too (adjust_lr_fn="match_rms_adamw"); else they are refused. names: {id(parameter): name}."""
    if not any(isinstance(group, dict) and (group.get("rule") or default) == NAME for group in groups):
        return groups
    fused, others, out = experts.fused_in(model), _not_hidden(model), []

    def is_matrix(p):
        is_expert = p.dim() == 3 and (experts.is_named_so(names.get(id(p), "")) if fused is None else id(p) in fused)
        return (p.dim() == 2 or is_expert) and id(p) not in others

    for group in groups:
        out.append(group)
        if (group.get("rule") or default) != NAME:
            continue
        params = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        given = {name: value for name, value in shared.items() if value is not None}
        group = out[-1] = {**OPTIONS, **_SHARED, **given, **group, "params": params, "rule": NAME}
        rest = [at for at, p in enumerate(params) if not is_matrix(p)]
        if rest:
            out[-1:] = _split(group, rest, names, log)
    return out


def _split(group, rest, names, log):
    """The group without the parameters at these places, and a group of AdamW's with them."""
    said = [names.get(id(group["params"][at]), f"number {at}, of shape {list(group['params'][at].shape)}") for at in rest]
    text = ", ".join(said[:8]) + (f" and {len(said) - 8} more" if len(said) > 8 else "")
    if group["adjust_lr_fn"] != "match_rms_adamw":
        raise errors.ArgumentError(f"rule = {NAME!r} is for the matrices of hidden layers, and these are embeddings, the head, or no matrices: {text}. "
                                   'Give them a group of their own, {"params": ..., "rule": "adamw", "lr": ...}; with '
                                   'adjust_lr_fn="match_rms_adamw", under which one rate serves both rules, it is made for you')
    log.info("rule = %r: AdamW trains what is no matrix of a hidden layer, with the same rate: %s", NAME, text)

    def at_places(places):
        return {name: [group[name][at] for at in places] for name in ("params", "param_names") if name in group}

    kept = [at for at in range(len(group["params"])) if at not in set(rest)]
    own = {name: value for name, value in group.items() if name not in (*OPTIONS, "eps")}
    return [*([{**group, **at_places(kept)}] if kept else []), {**own, **at_places(rest), "rule": "adamw"}]


def check(group, where, number):
    """Raises ArgumentError for options that no step could be made with. number: checks one, as groups.py has it."""
    number(group["momentum"], where + "momentum", "0 <= momentum < 1", lambda x: 0 <= x < 1)
    if not isinstance(group["ns_steps"], int) or not 0 <= group["ns_steps"] < 100:
        raise errors.ArgumentError(f"{where}ns_steps = {group['ns_steps']!r}; allowed: 0 .. 99")
    for name, allowed in (("adjust_lr_fn", (None, "original", "match_rms_adamw")), ("ns_dtype", tuple(_DTYPES))):
        if group[name] not in allowed:
            raise errors.ArgumentError(f"{where}{name} = {group[name]!r}; allowed: {', '.join(map(repr, allowed))}")
    if not isinstance(group["ns_coefficients"], (tuple, list)) or len(group["ns_coefficients"]) != 3:
        raise errors.ArgumentError(f"{where}ns_coefficients = {group['ns_coefficients']!r}; need three numbers")
    for i, value in enumerate(group["ns_coefficients"]):
        number(value, f"{where}ns_coefficients[{i}]", "a finite number", lambda _: True)
    split, rows = group["split_rows"], {p.shape[-2] for p in group["params"] if isinstance(p, torch.Tensor)}  # of a state dict they are numbers
    if split is not None and (not isinstance(split, (tuple, list)) or not split or not all(isinstance(n, int) and n > 0 for n in split) or
                              any(n % sum(split) for n in rows)):
        raise errors.ArgumentError(f"{where}split_rows = {split!r}; need numbers of rows, whose sum divides those of every matrix: {sorted(rows)}")
    for p in group["params"]:
        cuts = _cuts(p)
        if len(cuts) > 1 or any(len(_sizes(p, *one)) < one[0].size() for one in cuts):
            raise errors.ArgumentError(f"{where}rule = {NAME!r} takes matrices that are cut along one axis, so that each process has a part; of shape "
                                       f"{list(p.shape)} one is placed as {p.placements} on {p.device_mesh}: train it with rule=\"adamw\"")


def _cuts(p):
    """[(process group, axis, from the end)] of the axes of processes that cut a parameter's matrices; experts that lie apart are whole."""
    axes = [(group, placement.dim - p.dim()) for _, group, placement in cut.axes_of(p) if not placement.is_replicate()]
    return [(group, axis) for group, axis in axes if axis >= -2]


def _sizes(p, group, axis):
    """How much of an axis each process has; none where all is dealt."""
    most = -(-p.shape[axis] // group.size())
    return [min(most, p.shape[axis] - first) for first in range(0, p.shape[axis], most)]


# ---- updates -------------------------------------------------------------------------------------------------------------


def orthogonal(update, coefficients, n_steps, eps, dtype):
    """update [..., rows, columns] with singular values near 1, by Newton-Schulz iterations x := a x + (b A + c A A) x, A = x x'."""
    a, b, c = coefficients
    is_tall = update.shape[-2] > update.shape[-1]
    x = (update.mT if is_tall else update).to(dtype)
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    add_product = torch.baddbmm if x.dim() == 3 else torch.addmm
    for _ in range(n_steps):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def _scale(group, rows, columns):
    """The factor on the rate; of a matrix that is split one for each row."""
    if group["split_rows"] is not None:
        split, whole = group["split_rows"], {**group, "split_rows": None}
        n = rows // sum(split)
        return torch.tensor([_scale(whole, n * part, columns) for part in split for _ in range(part)] * n)[:, None]
    if group["adjust_lr_fn"] == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def _at(address, shape, dtype):
    """A tensor of the plugin's memory."""
    return torch.frombuffer((C.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address), dtype=dtype).view(shape)


class _Run:
    """Some matrices of one parameter, which lie one behind the other: [n, rows, columns], or [rows, columns] where it is one."""

    def __init__(self, first, n, group, param):
        self.first, self.group, self.param, self.device, self.event, self.made = first, group, param, cut.local(param).device, None, None
        self.cut = next(iter(_cuts(param)), None)
        shape = (n, first.rows, first.cols) if n > 1 else (first.rows, first.cols)
        self.w = _at(first.w, shape, torch.float32)
        self.m, self.gradient = (_at(address, shape, _OF_ABI[dtype.code, dtype.bits])
                                 for address, dtype in ((first.m, first.moments_dtype), (first.g, first.grad_dtype)))
        self.s, self.lr, self.decay = first.s, first.lr, first.weight_decay
        rows, columns = param.shape[-2:]
        self.scale, self.cost = _scale(group, rows, columns), n * rows * columns * min(rows, columns)

    def moved(self):
        """The update, once the momentum is."""
        gradient, mu = self.gradient.float(), float(self.group["momentum"])
        gradient = gradient * self.s if self.s != 1 else gradient
        momentum = self.m.float().lerp_(gradient, 1 - mu)
        if momentum is not self.m:
            self.first.store(C.addressof(self.first), 0, 0, momentum.numel(), momentum.data_ptr())
        return gradient.lerp(momentum, mu) if self.group["nesterov"] else momentum

    def orthogonal(self, update):
        split, how = self.group["split_rows"], [self.group[name] for name in ("ns_coefficients", "ns_steps", "eps")] + [_DTYPES[self.group["ns_dtype"]]]
        if split is None:
            return orthogonal(update, *how)
        parts = update.unflatten(-2, (-1, sum(split))).split(split, -2)
        return torch.cat([orthogonal(part.flatten(-3, -2), *how).unflatten(-2, part.shape[-3:-1]) for part in parts], -2).flatten(-3, -2)

    def begin(self, lane, place):
        """Updates the momentum, and makes its update orthogonal: in place, memory of the host, where a lane leads to the device."""
        update = self.moved()
        if lane is None:
            self.update = self.orthogonal(update)
            return
        self.update = place[:update.numel()].view(update.shape).copy_(update)

        def iterate():
            self.made = self.orthogonal(self.update.to(self.device, non_blocking=True))
            self.update.copy_(self.made, non_blocking=True)

        self.event = lane.run(iterate)

    def end(self):
        if self.event is not None:
            self.event.synchronize()
        update, self.update, self.made = self.update, None, None
        self.w.mul_(1 - self.lr * self.decay)
        if self.group["split_rows"] is None:
            self.w.add_(update, alpha=-self.lr * self.scale)
            return
        first = sum(_sizes(self.param, *self.cut)[:dist.get_rank(self.cut[0])]) if self.cut and self.cut[1] == -2 else 0
        self.w.sub_(update * (self.lr * self.scale[first:first + self.w.shape[-2]]))


def _swap(parts, shapes, like, group):
    """Parts for the first processes of a group, one each, and theirs for this one, which have these shapes."""
    def sizes(shapes):
        n = [math.prod(shape) * like.itemsize for shape in shapes]
        return n + [0] * (group.size() - len(n))

    sent = torch.cat([like.new_empty(0), *(part.flatten() for part in parts)])
    came = like.new_empty(sum(map(math.prod, shapes)))
    dist.all_to_all_single(came.view(torch.uint8), sent.view(torch.uint8), sizes(shapes), sizes([part.shape for part in parts]), group=group)
    return [part.view(shape) for part, shape in zip(came.split([*map(math.prod, shapes)]), shapes)]


def _update_round(runs, group):
    """Matrices of about one cost, the i-th made whole on process i of those that they are cut over. A call of all of these."""
    parts = [run.moved().to(run.device, _DTYPES[run.group["ns_dtype"]]) for run in runs]
    mine, at, back = [part.shape for part in parts], dist.get_rank(group), []
    run, shapes = (runs[at], mine[at]) if at < len(runs) else (None, None)
    if run:
        axis, sizes = run.cut[1], _sizes(run.param, *run.cut)
        shapes = [(*shapes[:axis], n, *shapes[len(shapes) + axis + 1:]) for n in sizes]
    came = _swap(parts, shapes or [], parts[0], group)
    if run:
        back = run.orthogonal(torch.cat(came, axis)).split(sizes, axis)
    for run, update in zip(runs, _swap(back, mine, parts[0], group)):
        run.update = update.to("cpu")
        run.end()


class MatrixUpdates:
    """The function of whole matrices that an instance calls in its step."""

    def __init__(self):
        self.table = self.groups = None  # of the binding; it says which
        self._places = {}                # {(device, dtype): two places in host memory}

    def __call__(self, updates):
        """updates: zf_matrix_update_t, by parameter and batch index."""
        runs, before, cut_over = [*self._runs(updates)], None, {}
        for run in sorted(runs, key=lambda run: -run.cost):
            if run.cut:
                cut_over.setdefault((run.cut[0], run.group["ns_dtype"]), []).append(run)
        for (group, _), some in cut_over.items():
            for first in range(0, len(some), group.size()):
                _update_round(some[first:first + group.size()], group)
        for number, run in enumerate(run for run in runs if not run.cut):
            lane = None if run.device.type == "cpu" else self.table.mirrors.lane(run.device)
            run.begin(lane, self._place(run, lane, number % 2))
            if before is not None:
                before.end()
            before = run
        if before is not None:
            before.end()

    def _runs(self, updates):
        at = 0
        while at < len(updates):
            first = updates[at]
            param = self.table.params[first.param]
            most, n = max(1, _MOST_ELEMS // math.prod(param.shape[-2:])), 1
            while n < most and at + n < len(updates) and updates[at + n].param == first.param:
                n += 1
            yield _Run(first, n, self.groups[first.group], param)
            at += n

    def _place(self, run, lane, turn):
        """Memory of the host for a run's update, one of two."""
        if lane is None:
            return None
        dtype, n = _DTYPES[run.group["ns_dtype"]], run.w.numel()
        places = self._places.get((run.device, dtype))
        if places is None or places[0].numel() < n:
            like = torch.empty(n, dtype=dtype, device="meta")
            places = self._places[run.device, dtype] = host_memory([like, like], lane.is_stream)
        return places[turn]
