# SPDX-License-Identifier: Apache-2.0
"""Whether memory still holds what it held: 64-bit digests of many tensors in one foreign call (zf.digest/0).

Writes through .data or numpy move no version counter, so contents are compared, all of them: one element counts. The cost
is a read of the memory on the calling thread. Dense memory is read in the order in which it lies, whatever its axes.
"""
import array
import ctypes as C

from .. import _abi, errors


def flat_address(tensor):
    """Where its contents lie without a gap, in whatever order of the axes; else 0."""
    if not tensor.is_contiguous():
        reach = 1
        for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
            if size > 1 and stride != reach:
                return 0
            reach *= size
    return tensor.data_ptr()


class Digests:
    """Of tensors by number. descriptors: addresses of their zf_tensor_t; sizes: (number of elements, bytes of one) of each.
    is_able: they lie in memory that this thread can read."""

    def __init__(self, instance, descriptors, sizes, is_able=True):
        n = len(descriptors)
        self.instance, self.function, self.handle = instance, instance.digest_function, instance.handle
        self.is_able = is_able and self.function is not None  # else everything looks as it was
        self._descriptors, self._record = list(descriptors), errors.new_record()
        self._flat = (_abi.Tensor * n)()
        self._data = []  # of each flat descriptor: where its address stands
        self._shapes = (C.c_int64 * n)(*(n_elems for n_elems, _ in sizes))
        for i, (out, (n_elems, elem_nbytes)) in enumerate(zip(self._flat, sizes)):
            out.struct_size, out.nbytes = C.sizeof(_abi.Tensor), n_elems * elem_nbytes
            out.dl.device_type, out.dl.ndim = _abi.DEVICE_CPU, 1
            out.dl.dtype.code, out.dl.dtype.bits, out.dl.dtype.lanes = _abi.DTYPE_CODE_INT, 8 * elem_nbytes, 1
            out.dl.shape = C.addressof(self._shapes) + 8 * i
        size, base = C.sizeof(_abi.Tensor), C.addressof(self._flat)
        self._flat_words = memoryview(self._flat).cast("B").cast("Q")
        data = (_abi.Tensor.dl.offset + _abi.DlTensor.data.offset) // 8
        self._flat_at = [base + i * size for i in range(n)]
        self._data_at = [i * size // 8 + data for i in range(n)]
        self._pointers, self._out = (C.c_uint64 * max(n, 1))(), (C.c_uint64 * max(n, 1))()
        self._arguments = C.addressof(self._pointers), C.addressof(self._out), C.addressof(self._record)
        self._pointer_words, self._out_words = (memoryview(x).cast("B").cast("Q") for x in (self._pointers, self._out))

    def of(self, ids, addresses):
        """Digests of these numbers in order. addresses: by number, flat_address() of each; those of 0 are read through their
        descriptors. Two of the same contents are equal only if both were read the same way."""
        if not self.is_able:
            return [0] * len(ids)
        if self.instance.is_closed:
            raise errors.StateError("this optimizer was closed")
        n, words, data_at, pointers = len(ids), self._flat_words, self._data_at, []
        for i in ids:
            if addresses[i]:
                words[data_at[i]] = addresses[i]
                pointers.append(self._flat_at[i])
            else:
                pointers.append(self._descriptors[i])
        self._pointer_words[:n] = array.array("Q", pointers)
        status = self.function(self.handle, self._arguments[0], n, *self._arguments[1:])
        if status < 0:
            raise errors.from_record(status, self._record, "digest")
        return self._out_words[:n].tolist()
