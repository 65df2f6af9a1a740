# SPDX-License-Identifier: Apache-2.0
"""state_dict() of a ZenFlow: plain tensors and text, so that torch.load(weights_only=True) reads it.

    {"state": {number: ...}, "param_groups": [...], "zenflow": {"index": <JSON text>, "blobs": {name: uint8 tensor},
                                                         "n_flushed_steps": <steps that still end with a flush>,
                                                         "part": {"rank", "n_ranks"} of parameters cut over processes,
                                                         "edited": {name: tensor},
                                                         "at_rest": [names]}}

"at_rest" names frozen parameters whose updates have all arrived. "edited" is there where somebody else wrote weights that no step has followed yet: their values. The blobs are the plugin's own safetensors files (zf.state/1): exact, in mid-window too. "zenflow" is missing before the
first step: there is nothing to save but the groups.

"state" says that torch's optimizers cannot read it. Where parameters are cut over processes it has moments and counts as torch's
optimizers do, those that flush() would leave, as DTensors: what torch.distributed.checkpoint takes, which drops "zenflow", and gives
to another number of processes.
"""
import ctypes as C

import torch

from .. import errors, state
from . import adamw, moments
from . import groups as hyper_groups
from .parameters import is_automatic

KEY = "zenflow"


def pack(instance):
    store = state.Blobs()
    state.save(instance, store)
    index = store.blobs.pop(state.INDEX).decode()
    return {"index": index,
            "blobs": {name: torch.frombuffer(blob, dtype=torch.uint8) if blob else torch.empty(0, dtype=torch.uint8, device="cpu")
                      for name, blob in store.blobs.items()}}


def unpack(packed):
    """Blobs of a packed state."""
    kept = []
    try:
        blobs = {state.INDEX: packed["index"].encode()}
        for name, tensor in packed["blobs"].items():
            tensor = tensor.detach().to("cpu", torch.uint8).contiguous()
            kept.append(tensor)
            blobs[name] = memoryview((C.c_ubyte * tensor.numel()).from_address(tensor.data_ptr())) if len(tensor) else b""
    except (KeyError, TypeError, AttributeError) as problem:
        raise errors.CheckpointError(f'load_state_dict: "{KEY}" is not what a ZenFlow optimizer saved '
                                     f"({type(problem).__name__}: {problem})") from None
    store = state.Blobs(blobs)
    store.kept = kept  # their memory is read by the plugin
    return store


def fit_names(blobs, table):
    """Where a state was saved under other names throughout (by another wrapper of the model) or without names, but of the same shapes in
    the same order, it is read by position, as torch does. {saved name: own}, empty where names fit."""
    try:
        index = state.read_index(blobs)
        saved = [(param["name"], list(param["shape"])) for param in index["params"]]
    except (ValueError, KeyError, TypeError, IndexError):
        return {}  # damaged: loading says how
    own = [(table.names[i], list(table.shapes[i])) for i, _ in table.trainable
           if table.tied_to[i] is None and table.shapes[i].numel()]
    known = {name for name, _ in own}
    is_shared = any(name in known and not is_automatic(name) for name, _ in saved)
    if saved == own or is_shared or [shape for _, shape in saved] != [shape for _, shape in own]:
        return {}
    renamed = {param["name"]: name for param, (name, _) in zip(index["params"], own)}
    state.rename(blobs, renamed)
    return renamed


def names(blobs):
    """Of the saved parameters."""
    try:
        return {param["name"] for param in state.read_index(blobs)["params"]}
    except (ValueError, KeyError, TypeError, IndexError):
        return set()  # damaged: loading says how


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


def check(groups, saved, names):
    """Raises where saved, a whole state dict, is neither this optimizer's nor one of torch's with the same moments; before anything
    changes. names: of the moments; None: a callback's."""
    if not isinstance(saved, dict) or "param_groups" not in saved:
        raise errors.CheckpointError("load_state_dict: need what state_dict() gave: a dict with \"param_groups\"")
    if KEY not in saved and any(entry == {KEY: moments.NOT_TORCHS} for entry in saved.get("state", {}).values()):
        raise errors.CheckpointError(f'load_state_dict: the state itself, "{KEY}", is missing: get_state_dict() of torch.distributed.'
                                     "checkpoint keeps \"state\" and \"param_groups\" alone, which is enough where parameters are cut "
                                     "over processes. Else save state_dict() itself, save(directory), or adamw_state_dict()")
    if saved.get("state") and KEY not in saved and not adamw.is_one(saved["state"], names):
        raise errors.CheckpointError("load_state_dict: it holds the state of another optimizer, which cannot be taken over "
                                     "(torch's AdamW and Adam can, with rule adamw or adam); to go on with fresh moments load "
                                     '{**state_dict, "state": {}}')
    _check_shape(groups, saved["param_groups"])
    hyper_groups.check_all(saved["param_groups"])


def groups_with_rules(own, saved, default):
    """The saved groups, each with its own rule, which stays; raises where it was saved with another."""
    for i, (mine, theirs) in enumerate(zip(own, saved)):
        now, then = mine.get("rule") or default, theirs.get("rule")
        if then is not None and then != now:
            raise errors.CheckpointError(f"load_state_dict: parameter group {i} was saved with the rule {then!r}, the optimizer has {now!r}")
    return [{**theirs, **({"rule": mine["rule"]} if "rule" in mine else {})} for mine, theirs in zip(own, saved)]


def _check_shape(own, saved):
    """As torch does."""
    if len(own) != len(saved):
        raise errors.CheckpointError(f"load_state_dict: {len(saved)} parameter groups were saved, the optimizer has "
                                     f"{len(own)}")
    for i, (mine, theirs) in enumerate(zip(own, saved)):
        if len(mine["params"]) != len(theirs["params"]):
            raise errors.CheckpointError(f"load_state_dict: parameter group {i} was saved with "
                                         f"{len(theirs['params'])} parameters, the optimizer has {len(mine['params'])}")
