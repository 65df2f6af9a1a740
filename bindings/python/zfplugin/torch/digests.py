"""Whether memory still holds what it held: 64-bit digests of many tensors in one foreign call (zf.digest/0).

Writes through .data or numpy move no version counter, so contents are compared. Up to WHOLE_NBYTES a tensor is read whole,
and any change shows. Of a larger one every EVERY-th block of 64 bytes is read, other blocks after each step: what is 512
bytes long shows at once, anything that is written again and again within EVERY steps, and scattered changes (a clamp) with a
chance of 1 - (7/8)^n for n changed blocks. The cost is an eighth of a pass over the memory.
"""
import array
import ctypes as C

from .. import _abi, errors

BLOCK_NBYTES = 64
EVERY = 8
WHOLE_NBYTES = 1 << 12

_TENSOR_WORDS = C.sizeof(_abi.Tensor) // 8
_DATA = (_abi.Tensor.dl.offset + _abi.DlTensor.data.offset) // 8


def flat_address(tensor):
    """Where its contents lie without a gap, in whatever order of the axes, at a multiple of 8; else 0."""
    address = tensor.data_ptr()
    if not tensor.is_contiguous():
        reach = 1
        for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
            if size > 1 and stride != reach:
                return 0
            reach *= size
    return address if address % 8 == 0 else 0


class Digests:
    """Of tensors by number. descriptors: addresses of their zf_tensor_t; nbytes: of their contents."""

    def __init__(self, instance, descriptors, nbytes):
        n = len(descriptors)
        self.instance, self.function, self.handle = instance, instance.digest_function, instance.handle
        self.is_able = self.function is not None  # else everything looks as it was
        self.phase = 0
        self._descriptors, self._record = list(descriptors), errors.new_record()
        self._sampled = (_abi.Tensor * n)()
        self._sampled_words = memoryview(self._sampled).cast("B").cast("Q")
        self._shapes = [(C.c_int64 * 2)(size // (EVERY * BLOCK_NBYTES), BLOCK_NBYTES // 8) for size in nbytes]
        self._strides = (C.c_int64 * 2)(EVERY * BLOCK_NBYTES // 8, 1)
        self.is_sampled = [size > WHOLE_NBYTES for size in nbytes]
        for out, shape, size in zip(self._sampled, self._shapes, nbytes):
            out.struct_size = C.sizeof(_abi.Tensor)
            out.nbytes = max(size - (EVERY - 1) * BLOCK_NBYTES, 0)
            out.dl.device_type, out.dl.ndim = _abi.DEVICE_CPU, 2
            out.dl.dtype.code, out.dl.dtype.bits, out.dl.dtype.lanes = _abi.DTYPE_CODE_INT, 64, 1
            out.dl.shape, out.dl.strides = C.addressof(shape), C.addressof(self._strides)
        size, base = C.sizeof(_abi.Tensor), C.addressof(self._sampled)
        self._sampled_address = [base + i * size for i in range(n)]
        self._pointers, self._out = (C.c_uint64 * max(n, 1))(), (C.c_uint64 * max(n, 1))()
        self._arguments = C.addressof(self._pointers), C.addressof(self._out), C.addressof(self._record)
        self._pointer_words, self._out_words = (memoryview(x).cast("B").cast("Q") for x in (self._pointers, self._out))

    def next_phase(self):
        """Other blocks of large tensors from now on: digests from before tell nothing any more."""
        self.phase = (self.phase + 1) % EVERY

    def of(self, ids, addresses=None):
        """Digests of these numbers in order. addresses: by number, flat_address() of each. Those of 0, and all without
        addresses, are read whole."""
        if not self.is_able:
            return [0] * len(ids)
        if self.instance.is_closed:
            raise errors.StateError("this optimizer was closed")
        descriptors, n = self._descriptors, len(ids)
        if addresses is None:
            self._pointer_words[:n] = array.array("Q", [descriptors[i] for i in ids])
        else:
            words, offset, is_sampled = self._sampled_words, self.phase * BLOCK_NBYTES, self.is_sampled
            pointers = []
            for i in ids:
                if is_sampled[i] and addresses[i]:
                    words[_TENSOR_WORDS * i + _DATA] = addresses[i] + offset
                    pointers.append(self._sampled_address[i])
                else:
                    pointers.append(descriptors[i])
            self._pointer_words[:n] = array.array("Q", pointers)
        status = self.function(self.handle, self._arguments[0], n, *self._arguments[1:])
        if status < 0:
            raise errors.from_record(status, self._record, "digest")
        return self._out_words[:n].tolist()
