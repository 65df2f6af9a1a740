# SPDX-License-Identifier: Apache-2.0
"""state_dict() of a ZenFlow: plain tensors and text, so that torch.load(weights_only=True) reads it.

    {"state": {number: {"step", "exp_avg", "exp_avg_sq"}}, "param_groups": [...],
     "zenflow": {"index": <JSON text>, "blobs": {name: uint8 tensor}, "arrays": {number: {"w", "n", ...}},
                 "n_flushed_steps": <steps that still end with a flush>, "part": {"rank", "n_ranks"} of parameters cut over processes,
                 "edited": {name: tensor}, "at_rest": [names]}}

"state" is what torch's optimizers have: moments and counts that flush() would leave, with the fp32 master of 16-bit weights. An edit of
it acts. torch.optim.AdamW and torch.distributed.checkpoint take it, which drop "zenflow".

"zenflow" is the rest: "blobs" are the heads of the plugin's own files (zf.state/1), and "arrays" have the weights, counts and selection, by the
numbers in "state". "at_rest" names frozen parameters whose updates have all arrived. "edited" is there where others wrote weights
that no step has followed yet: their values. "zenflow" is missing before the first step: there is nothing to save but the groups.
"""
import ctypes as C
import zlib

import torch

from .. import errors, state
from . import adamw, moments, muon
from . import groups as hyper_groups
from .cut import local
from .parameters import is_automatic

KEY = "zenflow"
_DAMAGED = (ValueError, KeyError, TypeError, IndexError, AttributeError)


def hooked(hooks, optimizer, state_dict):
    """The result of the optimizer's hooks of a state dict, as in torch."""
    for hook in hooks.values():
        given = hook(optimizer, state_dict)
        state_dict = state_dict if given is None else given
    return state_dict


def pack(instance, rules, masters, keep_open):
    """(what "zenflow" has of the state, {name: entry}). rules, masters: as moments.read() has them; keep_open: as state.save() has it."""
    store = state.Blobs()
    state.save(instance, store, keep_open)
    index = state.read_index(store.blobs)
    found = moments.entries_of(store, index, rules, masters)
    def kept_of(param):  # what no entry has
        names = moments.names_of(rules.get(param["name"]))
        given = {*"mv"[:len(names)], *("w" if adamw.MASTER in found.get(param["name"], ()) else "")}
        return [array for array in param["tensors"] if array not in given]

    return {"index": store.blobs[state.INDEX].decode(),
            "blobs": {file["name"]: _bytes_in(store.blobs[file["name"]][:file["header_nbytes"]]) for file in index["files"]},
            "arrays": {param["id"]: {array: moments.array_of(store, index, param, array) for array in kept_of(param)}
                       for param in index["params"]}}, found


def _bytes_in(blob):
    return torch.frombuffer(blob, dtype=torch.uint8) if blob else torch.empty(0, dtype=torch.uint8, device="cpu")


def unpack(packed):
    """Blobs of a packed state, which have the heads of files."""
    kept = []
    try:
        blobs = {state.INDEX: packed["index"].encode()}
        for name, tensor in packed["blobs"].items():
            tensor = tensor.detach().to("cpu", torch.uint8).contiguous()
            kept.append(tensor)
            blobs[name] = memoryview((C.c_ubyte * tensor.numel()).from_address(tensor.data_ptr())) if len(tensor) else b""
        store = state.Blobs(blobs)
        names(store), [[*param["shape"]] for param in state.read_index(blobs)["params"]]  # as they are read below
    except _DAMAGED as problem:
        raise _damaged(problem) from None
    store.kept = kept  # their memory is read by the plugin
    return store


def _damaged(problem):
    return errors.CheckpointError(f'load_state_dict: "{KEY}" is not what a ZenFlow optimizer saved ({type(problem).__name__}: {problem})')


def fill(store, packed, entries, table, rules):
    """Puts entries, {number: entry}, and the other arrays of a state into unpack()'s. rules: of the table's parameters by name."""
    index = state.read_index(store.blobs)
    try:
        found = adamw.entries(entries, table, {param["id"]: param["name"] for param in index["params"]})
        for param in index["params"]:
            held = packed["arrays"][param["id"]]
            for array, tensor in held.items():
                (offset, nbytes, _), tensor = param["tensors"][array], tensor.detach().to("cpu").contiguous()
                if tensor.nbytes != nbytes:
                    raise ValueError(f"{array} of {param['name']} has {tensor.nbytes} bytes, {nbytes} were saved")
                store.put(index["files"][param["file"]]["name"], offset, tensor.data_ptr(), tensor.nbytes, tensor)
            adamw.put(store, index, param, found.get(param["name"]), moments.names_of(rules.get(param["name"])), held["n"])
    except _DAMAGED as problem:
        if isinstance(problem, errors.ZfError):
            raise
        raise _damaged(problem) from None
    state.write_index(store.blobs, index)


def fit_names(store, table):
    """Renames where a state was saved under other names throughout (by another wrapper of the model) or without names, but of the same shapes in
    the same order, it is read by position, as torch does. {saved name: own}, empty where names fit."""
    saved = [(param["name"], list(param["shape"])) for param in state.read_index(store.blobs)["params"]]
    own = [(table.names[i], list(table.shapes[i])) for i, _ in table.trainable
           if table.tied_to[i] is None and table.shapes[i].numel()]
    known = {name for name, _ in own}
    is_shared = any(name in known and not is_automatic(name) for name, _ in saved)
    if saved == own or is_shared or [shape for _, shape in saved] != [shape for _, shape in own]:
        return {}
    renamed = {name: mine for (name, _), (mine, _) in zip(saved, own)}
    state.rename(store.blobs, renamed)
    return renamed


def names(store):
    """The names of the saved parameters."""
    return {param["name"] for param in state.read_index(store.blobs)["params"]}


def edited_in(packed, renamed, table):
    """{id: values} that were written before the save and that no step had followed; renamed: as fit_names() gave it."""
    numbers, out = {table.names[i]: i for i, _ in table.trainable}, {}
    for name, values in packed.get("edited", {}).items():
        i = numbers.get(renamed.get(name, name))
        if i is None or values.shape != table.shapes[i]:
            raise errors.CheckpointError(f'load_state_dict: the values of "{name}" (shape {list(values.shape)}) fit no parameter '
                                         "of this optimizer")
        out[i] = values
    return out


def _process(part):
    sizes = " x ".join(map(str, part.get("sizes", ())))
    return f"process {part['rank']} of {part['n_ranks']}{sizes and f' ({sizes})'}"


def check_part(packed, spread):
    """Raises for the part of another process, whose shapes may be the same. spread: how parameters are cut, or None."""
    saved, own = packed.get("part"), spread.part() if spread is not None else None
    if saved != own:
        name = "all of the model" if saved is None else f"the part of {_process(saved)}"
        mine = "all of it" if own is None else _process(own)
        raise errors.CheckpointError(f"load_state_dict: it holds {name}, this is {mine}: each process saves its own "
                                     "state_dict() in a file of its own, and loads that, with as many processes. With others go on by "
                                     "torch.distributed.checkpoint, with get_state_dict(model, optimizer) and set_state_dict()")


def check(groups, saved, default):
    """(the entries of parameters in saved, a whole state dict, by number; its groups, with own rules). Raises where it is neither this
    optimizer's nor one of torch's with the same moments; before anything changes. default: the rule of groups that name none."""
    if "param_groups" not in saved:
        raise errors.CheckpointError("load_state_dict: need what state_dict() gave: a dict with \"param_groups\"")
    _check_shape(groups, saved["param_groups"])
    loaded, rules = groups_with_rules(groups, saved["param_groups"], default), hyper_groups.rules(groups, default)
    names = {number: moments.names_of(rule) if rule else None for group, rule in zip(saved["param_groups"], rules) for number in group["params"]}
    entries = {number: entry for number, entry in saved.get("state", {}).items() if number in names}
    muons = {number for group, rule in zip(saved["param_groups"], rules) if rule == muon.NAME for number in group["params"]}
    # torch's Muon counts no updates, and needs none
    entries = {number: {"step": torch.tensor(1.0, device="cpu"), **entry} if number in muons and isinstance(entry, dict) else entry
               for number, entry in entries.items()}
    if not adamw.is_one(entries, names):
        raise errors.CheckpointError("load_state_dict: it holds the state of another optimizer, which cannot be taken over "
                                     "(torch's AdamW and Adam can, with rule adamw or adam); to go on with fresh moments load "
                                     '{**state_dict, "state": {}}')
    hyper_groups.check_all(loaded)
    return entries, loaded


def groups_with_rules(own, saved, default):
    """The saved groups, each with its own rule, which stays; raises where it was saved with another."""
    for i, (mine, theirs) in enumerate(zip(own, saved)):
        now, then = mine.get("rule") or default, theirs.get("rule")
        if then is not None and then != now:
            raise errors.CheckpointError(f"load_state_dict: parameter group {i} was saved with the rule {then!r}, the optimizer has {now!r}")
    def joined(mine, theirs):  # torch's Muon has fewer options
        kept = {name: value for name, value in mine.items() if name not in ("params", "param_names")} if mine.get("rule") == muon.NAME else {}
        return {**kept, **theirs, **({"rule": mine["rule"]} if "rule" in mine else {})}

    return [joined(mine, theirs) for mine, theirs in zip(own, saved)]


def _check_shape(own, saved):
    """As torch does."""
    if len(own) != len(saved):
        raise errors.CheckpointError(f"load_state_dict: {len(saved)} parameter groups were saved, the optimizer has "
                                     f"{len(own)}")
    for i, (mine, theirs) in enumerate(zip(own, saved)):
        if len(mine["params"]) != len(theirs["params"]):
            raise errors.CheckpointError(f"load_state_dict: parameter group {i} was saved with "
                                         f"{len(theirs['params'])} parameters, the optimizer has {len(mine['params'])}")
