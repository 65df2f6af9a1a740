# SPDX-License-Identifier: Apache-2.0
"""Taking over what torch.optim.AdamW (or Adam) left: its moments and update counts, written into a compact checkpoint of this
optimizer, which the plugin then loads as any other. So a run that began with torch's optimizer goes on with ZenFlow.

Places and checksums stand in the checkpoint's index (zf.state/1); per element m is exp_avg and v is exp_avg_sq, in fp32; n,
per matrix or per channel, is the number of updates. Weights are the parameters' own.
"""
import ctypes as C
import zlib

import torch

from .. import errors, state
from .cut import local

_MEMBERS = {"step", "exp_avg", "exp_avg_sq"}


def is_one(saved):
    """Whether a state_dict()'s "state", which is not empty, is AdamW's."""
    return all(isinstance(entry, dict) and set(entry) == _MEMBERS for entry in saved.values())


def entries(saved, names):
    """{name: AdamW's entry} of a state dict whose parameters stand in the order of names."""
    order = [number for group in saved["param_groups"] for number in group["params"]]
    return {name: saved["state"][number] for number, name in zip(order, names) if number in saved["state"]}


def blobs_with(instance, found):
    """A compact checkpoint of the instance with these moments in it: state.Blobs."""
    store = state.Blobs()
    state.save(instance, store, compact=True)
    index = state.read_index(store.blobs)
    for param in index["params"]:
        _put(store.blobs, index["files"], param, found.get(param["name"]))
    clocks, n_steps = index["clocks"], max((int(entry["step"]) for entry in found.values()), default=0)
    clocks["steps_before"] = max(clocks["steps_before"], n_steps - clocks["step"])
    clocks["steps_applied"] = max(clocks["steps_applied"], n_steps)
    state.write_index(store.blobs, index)
    return store


def _put(blobs, files, param, entry):
    shape, name = tuple(param["shape"]), param["name"]
    if entry is None:  # it never had a gradient
        entry = {"step": 0, "exp_avg": torch.zeros(shape), "exp_avg_sq": torch.zeros(shape)}
    values = {"n": torch.full((param["tensors"]["n"]["nbytes"] // 4,), int(entry["step"]), dtype=torch.int32)}
    for member, array in (("exp_avg", "m"), ("exp_avg_sq", "v")):
        values[array] = local(entry[member]).detach().to("cpu", torch.float32).contiguous()
        if values[array].shape != shape:
            raise errors.CheckpointError(f'load_state_dict: {member} of "{name}" has the shape {list(values[array].shape)}, the '
                                         f"parameter {list(shape)}")
        if not values[array].isfinite().all():
            raise errors.CheckpointError(f'load_state_dict: {member} of "{name}" has a value that is not finite')
    for array, tensor in values.items():
        place = param["tensors"][array]
        raw = C.string_at(tensor.data_ptr(), place["nbytes"])
        blobs[files[place["file"]]["name"]][place["offset"]:place["offset"] + place["nbytes"]] = raw
        place["crc32"] = zlib.crc32(raw)
