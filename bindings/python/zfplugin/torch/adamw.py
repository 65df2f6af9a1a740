# SPDX-License-Identifier: Apache-2.0
"""Taking over what torch.optim.AdamW (or Adam) left: its moments and update counts, put into a checkpoint of this
optimizer, which the plugin then loads as any other. So a run that began with torch's optimizer goes on with ZenFlow, and one that comes
through torch.distributed.checkpoint, on another number of processes too: state_dict() has entries of this form.

Places and checksums stand in the checkpoint's index (zf.state/1); per element m is exp_avg and v is exp_avg_sq, in fp32; n,
per block or per channel, is the number of updates. Weights are the parameters' own, but for 16-bit ones whose entry has a master.
"""
import ctypes as C
import zlib

import torch

from .. import errors, state
from .cut import is_cut, local

MASTER = "master"


def is_one(entries, names):
    """Whether these have a count and the moments of their rule. names: of the moments by number; those of a callback may be fewer."""
    def has(entry, names):
        members = set(entry) - {MASTER} if isinstance(entry, dict) else ()
        return members == {"step", *names} if names else "step" in members and members <= {"step", "m", "v"}

    return all(has(entry, names[number]) for number, entry in entries.items())


def numbers_in(saved):
    """The numbers of a state dict's parameters, in order."""
    return [number for group in saved["param_groups"] for number in group["params"]]


def entries(saved, table, names, store=None):
    """{name: AdamW's entry} of saved, {number: entry}. names: the parameters' by number; of what is cut this process's part, and of all
    with a store, sharded.Rows."""
    params = dict(zip(table.names, table.params))
    return {name: {member: value if member == "step" else store.part(value, name) if store else _part(value, params[name], f"{member} of \"{name}\"")
                   for member, value in saved[number].items()}
            for number, name in names.items() if number in saved and name in params}


def warn_of_decay(groups, rules, log):
    """Says where the groups of the saved state decayed weights as the other rule does: torch's Adam and AdamW look alike."""
    for number, (group, rule) in enumerate(zip(groups, rules)):
        is_decoupled = group.get("decoupled_weight_decay", rule == "adamw")
        if group["weight_decay"] and is_decoupled != (rule == "adamw"):
            theirs, ours = ("AdamW", 'rule="adamw"') if is_decoupled else ("Adam", 'rule="adam"')
            log.warning("parameter group %d of the state is of torch's %s, and its weight_decay = %g does another thing here: the "
                        "optimizer was made with rule=\"%s\". To go on as before make it with %s", number, theirs,
                        group["weight_decay"], rule, ours)


def _part(value, param, what):
    """The values of a tensor that lies as the parameter does."""
    if is_cut(value) != is_cut(param) or is_cut(param) and (value.placements != param.placements
                                                            or value.device_mesh != param.device_mesh):
        lies, wanted = (f"placed as {t.placements} on {t.device_mesh}" if is_cut(t) else "whole" for t in (value, param))
        raise errors.CheckpointError(f"load_state_dict: {what} is {lies}, the parameter is {wanted}: torch.distributed.checkpoint "
                                     "places it, with get_state_dict(model, optimizer) before and set_state_dict(...) after its load()")
    return local(value)


def blobs_with(instance, found, names, is_all=True, store=None):
    """A checkpoint of the instance, which stays as it is, with these moments in it: state.Blobs, or the store. names: what a parameter's are called, by
    name. is_all: what has none begins afresh, and the count of steps is theirs; else the rest is as it is."""
    store = store or state.Blobs()
    state.save(instance, store, keep_open=True)
    index = state.read_index(store.blobs)
    for param in index["params"]:
        if not is_all and param["name"] not in found:
            continue
        put(store, index, param, found.get(param["name"]), names(param["name"]))
    n_steps = 0 if not is_all else max((int(entry["step"]) for entry in found.values()), default=0)
    index["submitted"] = max(index["submitted"], n_steps)
    index["applied"] = max(index["applied"], n_steps)
    state.write_index(store.blobs, index)
    return store


def put(store, index, param, entry, names, n_before=None):
    """Puts an entry in the place of what a saved state has of a parameter; without one it begins afresh. n_before: the counts, where
    they stay if the entry's count is the largest of them."""
    name = param["name"]
    own = store.own(name, param["shape"])
    shape = torch.empty(param["shape"], device="meta")[own].shape
    if entry is None:  # it never had a gradient
        entry = {"step": 0, **{member: torch.zeros(shape, device="cpu") for member in names}}
    is_counted = n_before is not None and int(entry["step"]) == int(n_before.max())
    values = {} if is_counted else {"n": torch.full((param["tensors"]["n"][state.NBYTES] // 4,), int(entry["step"]), dtype=torch.int32, device="cpu")}
    held = [(member, array) for member, array in zip(names, "mv") if array in param["tensors"]]
    for member, array in [*held, *([(MASTER, "w")] if MASTER in entry else [])]:
        values[array] = entry[member].detach().to("cpu", torch.float32).contiguous()
        if values[array].shape != shape:
            raise errors.CheckpointError(f'load_state_dict: {member} of "{name}" has the shape {list(values[array].shape)}, the '
                                         f"parameter {list(shape)}")
        if own is ... and not values[array].isfinite().all():  # of some rows: all processes find it in the load
            raise errors.CheckpointError(f'load_state_dict: {member} of "{name}" has a value that is not finite')
    for array, tensor in values.items():
        place = param["tensors"][array]
        is_whole = own is ... or array == "n"
        at = place[state.OFFSET] + (0 if is_whole else own.start * (place[state.NBYTES] // param["shape"][0]))
        store.put(index["files"][param["file"]]["name"], at, tensor.data_ptr(), tensor.nbytes, tensor)
        place[state.CRC32] = zlib.crc32((C.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())) if is_whole else None  # nobody has all of it
