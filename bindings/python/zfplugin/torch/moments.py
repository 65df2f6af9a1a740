# SPDX-License-Identifier: Apache-2.0
"""Moments and update counts for others: opt.state as torch's optimizers have it, and a state dict that torch's AdamW reads.

They live in the plugin. What is given out are copies, read from a checkpoint that leaves windows open (adamw.py has its layout): the values
that flush() would leave, without a flush. So they cost a pass over the whole state, when they are asked for.
"""
import collections.abc
import weakref

import torch

from .. import errors, state
from .adamw import MASTER
from .cut import local

_NAMES = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"), "lion": ("exp_avg",),
          "sgd": ("momentum_buffer",), "sgd_nesterov": ("momentum_buffer",), "muon": ("momentum_buffer",), None: ("m", "v")}
_DTYPES = {"n": torch.int32, "selected": torch.uint8, "importance": torch.float64}  # of arrays; else float32
_ADAMW_GROUP = {"amsgrad": False, "maximize": False, "foreach": None, "capturable": False, "differentiable": False, "fused": None}


def names_of(rule):
    """The names that torch's optimizer of this rule has for m and v; None: a callback's."""
    return _NAMES[rule]


def read(instance, rules=None, masters=(), store=None):
    """{parameter's name: {"step": scalar, "exp_avg": float32 tensor, ...}} of all that were ever updated; names as torch's
    optimizers have them. rules: {parameter's name: its rule}; None: m and v. step: the largest count, where channels count apart (mode = mean). masters: names of
    those whose fp32 weights are wanted, too, as "master". store: sharded.Rows, for those of this process."""
    store = store or state.Blobs()
    state.save(instance, store, keep_open=True)
    return entries_of(store, state.read_index(store.blobs), rules, masters)


def array_of(store, index, param, name):
    """An array of a parameter in a saved state, flat, in the state's own memory."""
    (offset, nbytes, _), dtype = param["tensors"][name], _DTYPES.get(name, torch.float32)
    return torch.frombuffer(store.blobs[index["files"][param["file"]]["name"]], dtype=dtype, count=nbytes // dtype.itemsize, offset=offset)


def entries_of(store, index, rules=None, masters=()):
    """The entries that read() gives, of a state that was saved, in its memory but where the store has rows. index: the store's."""
    def values_of(param, array):
        own, values = store.own(param["name"], param["shape"]), array_of(store, index, param, array).reshape(param["shape"])
        return values if own is ... else values[own].clone()

    out = {}
    for param in index["params"]:
        name, n_updates = param["name"], int(array_of(store, index, param, "n").max())
        if n_updates:
            held = [array for array in ("m", "v") if array in param["tensors"]]
            pairs = [*zip(_NAMES[rules.get(name) if rules else None], held), *([(MASTER, "w")] if name in masters else [])]
            out[name] = {"step": torch.tensor(float(n_updates), device="cpu"), **{
                member: values_of(param, array) for member, array in pairs}}
    return out


def add_empty(found, empty, rules):
    """Entries of parts without elements, {name: parameter}, of which the plugin has no count: the largest of the others. Members in the
    order of entries_of(), in which processes gather them."""
    step = max((entry["step"] for entry in found.values()), default=None)
    for name, p in empty.items() if found else ():
        members = [*_NAMES[rules[name]], *([MASTER] if p.element_size() == 2 else [])]
        found[name] = {"step": step.clone(), **{member: torch.empty(local(p).shape, device="cpu") for member in members}}


def adamw_state_dict(groups, entries, rules):
    """The dict that torch.optim.AdamW's (rule adam: Adam's) state_dict() would give. groups: as packed by torch; entries: by number; rules: of
    the groups."""
    return {"state": entries,
            "param_groups": [{**_ADAMW_GROUP, "decoupled_weight_decay": rule == "adamw", **{k: v for k, v in group.items() if k != "rule"}}
                             for group, rule in zip(groups, rules)]}


def muon_state_dict(groups, entries):
    """The dict that torch.optim.Muon's state_dict() would give."""
    kept = ("lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn", "params", "param_names")
    return {"state": {number: {"momentum_buffer": entry["momentum_buffer"]} for number, entry in entries.items()},
            "param_groups": [{name: group[name] for name in kept if name in group} for group in groups]}


def are_adamws(rules):
    return set(rules) <= {"adamw", "adam"}


def check_rules(rules):
    for rule in rules:
        if not are_adamws([rule]):
            raise errors.StateError(f"adamw_state_dict: the rule is {rule or 'a callback'}, whose moments are not AdamW's")


def _is_kept(now, was):
    """Whether a member of an entry is what was given out, or equal to it, as loops that move a state to a device leave it."""
    return isinstance(now, torch.Tensor) and was is not None and not was._version and (now is was or torch.equal(now.to(was), was))


class State(collections.abc.MutableMapping):
    """{parameter: {"step": ..., "exp_avg": ..., ...}}. Read once per step, if it is asked for. What it gives are copies: an
    edit of one, which would do nothing, is an error at the next step. read: a bound method that gives the mapping."""

    def __init__(self, read):
        self._read, self._entries = weakref.WeakMethod(read), None
        self._given, self._empty = {}, {}  # what entries held when they were read; of parameters without one
        self.others = {}  # under keys that are no parameters: the trainer's own

    def _now(self):
        if self._read() is None:
            return {}
        if self._entries is None:
            self._entries = self._read()()
            self._given = {param: dict(entry) for param, entry in self._entries.items()}
        return self._entries

    def __getitem__(self, key):
        """Empty where there is no entry, as torch's."""
        if not isinstance(key, torch.Tensor):
            return self.others.setdefault(key, {})
        now = self._now()
        return now[key] if key in now else self._empty.setdefault(key, {})

    def __contains__(self, key):
        return key in (self._now() if isinstance(key, torch.Tensor) else self.others)

    def get(self, key, default=None):
        return (self._now() if isinstance(key, torch.Tensor) else self.others).get(key, default)

    def __iter__(self):
        return iter([*self._now(), *self.others])

    def __len__(self):
        return len(self._now()) + len(self.others)

    def __setitem__(self, key, value):
        """Takes of a parameter only what stands there already."""
        if not isinstance(key, torch.Tensor):
            self.others[key] = value
            return
        old = self._now().get(key, {})
        if set(old) != set(value) or not all(_is_kept(value[name], old[name]) for name in old):
            self.refuse()

    def __delitem__(self, key):
        if isinstance(key, torch.Tensor):
            self.refuse()
        del self.others[key]

    def clear(self):
        self.refuse()

    def refuse(self):
        raise errors.StateError("opt.state is a copy of what the plugin holds: it cannot be changed here. params_changed(params, "
                                "reset=True) lets moments begin again, load_state_dict() takes a state of AdamW")

    def forget(self, name_of):
        """The state changes now. Raises if a copy was changed; name_of: of a parameter, for that."""
        entries, given = {**self._empty, **(self._entries or {})}, self._given
        self._entries, self._given, self._empty = None, {}, {}
        for param, entry in entries.items():
            was = given.get(param, {})
            for name in {**was, **entry}:
                if not _is_kept(entry.get(name), was.get(name)):
                    raise errors.StateError(f'{name} of "{name_of(param)}" was changed in opt.state, which holds copies: the '
                                            "change would be lost. params_changed(params, reset=True) lets moments begin again; "
                                            "for other values load_state_dict() takes a state of AdamW")
