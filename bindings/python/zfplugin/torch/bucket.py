# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way to the plugin: one foreign call for a bucket of them.

Cost: all descriptors live in two ctypes arrays that are written through memoryviews as 64-bit words; adding a gradient makes no
ctypes object.
"""
import ctypes as C

import torch

from .. import _abi, errors, places

BUCKET_PARAMS = 64          # the plugin's own batch
BUCKET_NBYTES = 1 << 20

_TENSOR_WORDS = C.sizeof(_abi.Tensor) // 8
_DATA = (_abi.Tensor.dl.offset + _abi.DlTensor.data.offset) // 8
_STRIDES = (_abi.Tensor.dl.offset + _abi.DlTensor.strides.offset) // 8
_NBYTES = _abi.Tensor.nbytes.offset // 8
_ITEM_WORDS = C.sizeof(_abi.GradItem) // 8
assert (_abi.GradItem.id.offset, _abi.GradItem.flags.offset, _abi.GradItem.tensor.offset) == (4, 8, 16)


def _words(array):
    return memoryview(array).cast("B").cast("Q")


class Bucket:
    """A bucket of the gradients of a ParameterTable. has_fence: ship() leaves in fence what tells that the memory was read."""

    def __init__(self, instance, table, has_fence):
        self.instance, self.table, self.has_fence = instance, table, has_fence
        n = len(table.params)
        self._tensors = (_abi.Tensor * n)()
        self._shapes = [(C.c_int64 * max(1, len(shape)))(*shape) for shape in table.shapes]
        self._strides = [(C.c_int64 * max(1, len(shape)))() for shape in table.shapes]
        self._items = (_abi.GradItem * (n + BUCKET_PARAMS))()
        self._tensor_words, self._item_words = _words(self._tensors), _words(self._items)
        self.nbytes = [p.numel() * p.element_size() for p in table.aliases]
        size, base = C.sizeof(_abi.Tensor), C.addressof(self._tensors)
        self._addresses = [base + i * size for i in range(n)]  # of descriptors
        for i, declared in enumerate(table.decls):
            self._fill_descriptor(self._tensors[i], i, declared)
        self._record = errors.new_record()
        self.fence = _abi.Fence(struct_size=C.sizeof(_abi.Fence), kind=_abi.FENCE_NONE)
        self._arguments = (C.addressof(self._items), C.sizeof(_abi.GradItem), C.addressof(instance.stream),
                           C.addressof(self.fence) if has_fence else None, C.addressof(self._record))
        self._digest = instance.digest_function if not instance.place.is_stream else None
        self.clear()

    def _fill_descriptor(self, out, i, declared):
        place = self.instance.place
        out.struct_size, out.nbytes = C.sizeof(_abi.Tensor), self.nbytes[i]
        out.dl.device_type, out.dl.device_id = place.device_type, place.number
        out.dl.ndim = len(self.table.shapes[i])
        is_bf16 = self.table.dtypes[i] is torch.bfloat16
        out.dl.dtype.code = _abi.DTYPE_CODE_BFLOAT if is_bf16 else _abi.DTYPE_CODE_FLOAT
        out.dl.dtype.bits, out.dl.dtype.lanes = 8 * declared.tensor.element_size(), 1
        out.dl.shape = C.addressof(self._shapes[i]) if self.table.shapes[i] else None

    def clear(self):
        """Forgets what was added: what was not shipped is none of the plugin's."""
        self.ids, self.pending_nbytes, self._current = [], 0, None

    def is_full(self):
        return len(self.ids) >= BUCKET_PARAMS or self.pending_nbytes >= BUCKET_NBYTES

    def is_open_on_another(self, current):
        """Whether it has to be shipped before a gradient of this stream is added: a bucket is of one stream."""
        return bool(self.ids) and current != self._current

    def add(self, i, grad, flags, current):
        """grad: a tensor, or where it lies contiguous. current: what place.current() gives; None on the calling thread."""
        self._current = current
        self._describe(i, grad)
        at, words = _ITEM_WORDS * len(self.ids), self._item_words
        words[at] = C.sizeof(_abi.GradItem) | i << 32
        words[at + 1] = flags
        words[at + 2] = self._addresses[i]
        self.ids.append(i)
        self.pending_nbytes += self.nbytes[i]

    def check(self, i, grad):
        """Raises for what is no gradient of parameter i."""
        if grad.layout is not torch.strided:
            raise errors.ShapeError(f'the gradient of "{self.table.names[i]}" is sparse ({grad.layout}): use '
                                    "nn.Embedding(sparse=False)", scope="param")
        if grad.dtype is not self.table.dtypes[i]:
            raise errors.DtypeError(f'the gradient of "{self.table.names[i]}" is {grad.dtype}, the parameter was bound '
                                    f"as {self.table.dtypes[i]}", scope="param")
        if grad.shape != self.table.shapes[i]:
            raise errors.ShapeError(f'the gradient of "{self.table.names[i]}" has the shape {list(grad.shape)}, the '
                                    f"parameter was bound as {list(self.table.shapes[i])}", scope="param")

    def _describe(self, i, grad):
        """Points descriptor i to this gradient."""
        at, words = _TENSOR_WORDS * i, self._tensor_words
        is_address = isinstance(grad, int)
        words[at + _DATA] = grad if is_address else grad.data_ptr()
        if is_address or grad.is_contiguous():
            words[at + _STRIDES] = 0
            words[at + _NBYTES] = self.nbytes[i]
        else:
            self._strides[i][:] = grad.stride()
            words[at + _STRIDES] = C.addressof(self._strides[i])
            reach = 1 + sum((n - 1) * s for n, s in zip(grad.shape, grad.stride()))
            words[at + _NBYTES] = reach * grad.element_size() if grad.numel() else 0

    def ship(self):
        """One foreign call for what was added, which is taken whole or not at all. The caller clears."""
        instance, (items, item_nbytes, stream, fence, record) = self.instance, self._arguments
        if instance.is_closed:
            raise errors.StateError("grads_ready: this optimizer was closed")
        if instance.place.is_stream:
            places.tell(instance.stream, self._current)
        status = instance.table.grads_ready(instance.handle, items, len(self.ids), item_nbytes, stream, fence, record)
        if status < 0:
            raise errors.from_record(status, self._record, "grads_ready")

    def has_digests(self):
        return self._digest is not None

    def digests(self, ids):
        """64-bit digests of the contents of these, as they were described last, in one foreign call: one element counts. The cost is a read
        of the memory on this thread; on a stream, where that would wait, everything looks as it was."""
        if not ids or not self._digest:
            return [0] * len(ids)
        if self.instance.is_closed:
            raise errors.StateError("this optimizer was closed")
        addresses, out = (C.c_uint64 * len(ids))(*(self._addresses[i] for i in ids)), (C.c_uint64 * len(ids))()
        self.instance.lib.check(self._digest(self.instance.handle, addresses, len(ids), out, C.byref(self._record)), self._record, "digest")
        return list(out)
