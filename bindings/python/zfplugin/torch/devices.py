# SPDX-License-Identifier: Apache-2.0
"""The place (places.py) of the parameters that an optimizer trains: host memory, or by name one CUDA device.

Model: the plugin computes in host memory, and torch carries gradients and values of parameters on other devices (carried.py). With
device="cuda" it computes on the CUDA device itself. There every hook is given the stream that is current on the calling thread, autograd's in backward, and returns once
its work is enqueued: nothing waits on the CPU but control calls (bind, flush, save, load) and the question for weights that
others wrote, of which there is none with [zenflow] on_overwrite = off. Gradients stay in torch's allocator: their memory is borrowed until the
step, in stream order, and record_stream() covers those that another stream allocated.
"""
import torch

from .. import _abi, errors
from ..places import HOST_THREAD


class Cuda:
    """One CUDA device, as torch numbers it (so CUDA_VISIBLE_DEVICES holds for both)."""

    kind, device_type, is_stream = _abi.STREAM_CUDA, _abi.DEVICE_CUDA, True

    def __init__(self, number):
        self.number, self.name = number, f"cuda:{number}"

    def current(self):
        handle = torch.cuda.current_stream(self.number).cuda_stream
        flags = _abi.STREAM_FLAG_CAPTURING if torch.cuda.is_current_stream_capturing() else 0  # the plugin says that it cannot be
        return handle, flags

    def finish(self):
        torch.cuda.current_stream(self.number).synchronize()

    def give_back(self):
        """Gives back what torch's allocator holds and does not use, for the plugin, which has its own."""
        torch.cuda.synchronize(self.number)
        torch.cuda.empty_cache()

    def keep(self, tensor):
        tensor.record_stream(torch.cuda.current_stream(self.number))


def checked(wanted):
    """The constructor's device=."""
    if wanted not in (None, "cuda"):
        raise errors.ArgumentError(f'device = {wanted!r}; allowed: None (torch carries gradients and values of parameters on any device) and "cuda"')
    return wanted


def of(params, names, wanted=None):
    """The place of all of these parameters; raises where there is none. names: {id(parameter): name}. wanted: "cuda", or None."""
    first = next(iter(params), None)
    if wanted is None or first is None or first.device.type in ("cpu", "meta"):
        return HOST_THREAD  # the binding refuses what is not there, by name
    if first.device.type != "cuda" or torch.version.hip:
        kind = "cuda on ROCm" if first.device.type == "cuda" else first.device.type
        raise errors.DeviceError(f'"{names.get(id(first), "param0")}" is on {first.device} ({kind}); device="cuda" trains on NVIDIA GPUs '
                                 "alone: leave it out, and torch carries gradients and values", scope="param")
    return Cuda(first.device.index or 0)


def refuse_windows(config):
    """Raises for what the plugin does on a device itself, where torch carries. config: effective values by key."""
    for key, allowed in (("zenflow.mode", "exact"), ("device.state_mib", "0")):
        if config[key] != allowed:
            raise errors.ConfigError(f'{key} = {config[key]}, but parameters are on a device that the plugin itself does not reach (torch carries '
                                     f'gradients and values): set it to {allowed}, or train on NVIDIA GPUs with ZenFlow(..., device="cuda")')
