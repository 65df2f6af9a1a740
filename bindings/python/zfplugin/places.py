# SPDX-License-Identifier: Apache-2.0
"""The place where a host computes, which hooks are told as their stream.

Model: a place has the fields of a zf_stream_t that stay (kind, device_type, number) and, where the host only enqueues its
work, the stream that it enqueues on just now. An instance belongs to one place; torch/devices.py has the CUDA ones.
"""
from . import _abi


class HostThread:
    """The host computes on the calling thread: what it has done is done."""

    kind, device_type, number, name = _abi.STREAM_HOST_THREAD, _abi.DEVICE_CPU, 0, "cpu"
    is_stream = False  # True: work is enqueued, and so is what the plugin does with it

    def current(self):
        """(handle, flags) of the stream on which the host enqueues now."""
        return 0, 0

    def finish(self):
        """Returns when what the host has enqueued so far is done."""

    def keep(self, tensor):
        """The host's allocator gives this memory to nobody before what is enqueued on the current stream until it is
        dropped."""


HOST_THREAD = HostThread()


def tell(stream, current):
    """Writes a place's current() into a zf_stream_t."""
    stream.handle, stream.flags = current
