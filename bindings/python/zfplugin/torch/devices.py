# SPDX-License-Identifier: Apache-2.0
"""The place (places.py) of the parameters that an optimizer trains: the CPU, or one CUDA device.

Model: on CUDA every hook is given the stream that is current on the calling thread, autograd's in backward, and returns once
its work is enqueued: nothing waits on the CPU but control calls (bind, flush, save, load) and a question for weights that
somebody else wrote, which needs the device's answer and is asked in the first steps and where something tells of a write. Gradients stay in torch's allocator: their memory is borrowed until the
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
        """What torch's allocator holds and does not use, for the plugin, which has its own."""
        torch.cuda.synchronize(self.number)
        torch.cuda.empty_cache()

    def keep(self, tensor):
        tensor.record_stream(torch.cuda.current_stream(self.number))


def of(params, names):
    """The place of all of these parameters; raises where there is none. names: {id(parameter): name}."""
    first = next(iter(params), None)
    if first is None or first.device.type in ("cpu", "meta"):
        return HOST_THREAD  # whoever binds them refuses what is not there, by name
    if first.device.type != "cuda" or torch.version.hip:
        kind = "cuda on ROCm" if first.device.type == "cuda" else first.device.type
        raise errors.DeviceError(f'"{names.get(id(first), "param0")}" is on {first.device} ({kind}); the plugin trains parameters '
                                 "on cpu and on NVIDIA GPUs (cuda)", scope="param")
    return Cuda(first.device.index or 0)
