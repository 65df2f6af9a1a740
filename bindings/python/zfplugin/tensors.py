# SPDX-License-Identifier: Apache-2.0
"""Descriptors of dense tensors (zf_tensor_t) for anything that a Python trainer may hold.

Model: torch tensors are described from their own attributes; everything else (numpy) through the DLPack protocol
(__dlpack__), whose capsule is kept as long as the descriptor and released with it. Memory is borrowed: the code that makes a
TensorView keeps it alive as long as the ABI says that the plugin may read or write.
"""
import ctypes as C
import math

from . import _abi, errors

FLOAT32 = (_abi.DTYPE_CODE_FLOAT, 32)
BFLOAT16 = (_abi.DTYPE_CODE_BFLOAT, 16)
FLOAT16 = (_abi.DTYPE_CODE_FLOAT, 16)

_TORCH = {"torch.float32": FLOAT32, "torch.bfloat16": BFLOAT16, "torch.float16": FLOAT16,
          "torch.float64": (_abi.DTYPE_CODE_FLOAT, 64), "torch.int64": (_abi.DTYPE_CODE_INT, 64),
          "torch.int32": (_abi.DTYPE_CODE_INT, 32)}
_DEVICES = {"cpu": _abi.DEVICE_CPU, "cuda": _abi.DEVICE_CUDA}


class _DlManaged(C.Structure):
    """DLManagedTensor, the unversioned form that every producer still exports."""


_DlManaged._fields_ = [("dl", _abi.DlTensor), ("manager_ctx", C.c_void_p),
                       ("deleter", C.CFUNCTYPE(None, C.POINTER(_DlManaged)))]

_capsule_pointer = C.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = C.c_void_p, [C.py_object, C.c_char_p]


class TensorView:
    """A zf_tensor_t with the arrays it points to; .address is what goes into the ABI. owner: what keeps the memory."""

    def __init__(self, data, dtype, shape, strides, owner, device=(_abi.DEVICE_CPU, 0)):
        n = len(shape)
        if n > _abi.MAX_NDIM:
            raise errors.ShapeError(f"a tensor has {n} axes; at most {_abi.MAX_NDIM}")
        self.owner = owner
        self.shape = tuple(shape)
        self._shape = (C.c_int64 * n)(*shape)
        self._strides = (C.c_int64 * n)(*strides) if strides is not None else None
        self.struct = _abi.Tensor(struct_size=C.sizeof(_abi.Tensor))
        dl = self.struct.dl
        dl.data, dl.device_type, dl.device_id, dl.ndim = data, device[0], device[1], n
        dl.dtype.code, dl.dtype.bits, dl.dtype.lanes = dtype[0], dtype[1], 1
        dl.shape = C.addressof(self._shape) if n else None
        dl.strides = C.addressof(self._strides) if strides is not None and n else None
        self.struct.nbytes = extent_elems(shape, strides) * dtype[1] // 8
        self.address = C.addressof(self.struct)


def extent_elems(shape, strides):
    """Elements from the first to the last that shape and strides touch; strides None = row-major contiguous."""
    if 0 in shape:
        return 0
    if strides is None:
        return math.prod(shape)
    return 1 + sum((axis - 1) * stride for axis, stride in zip(shape, strides))


def torch_dtype(tensor, name):
    """(code, bits) of a torch tensor."""
    try:
        return _TORCH[str(tensor.dtype)]
    except KeyError:
        raise errors.DtypeError(f'"{name}" is {tensor.dtype}; supported: float32, bfloat16, float16') from None


def torch_device(tensor):
    """(device type, number) of a torch tensor; None on a device that the plugin does not know."""
    kind = _DEVICES.get(tensor.device.type)
    return (kind, tensor.device.index or 0) if kind is not None else None


def of_torch(tensor, name="tensor"):
    """Describes a dense torch tensor on the CPU or on a CUDA device."""
    device = torch_device(tensor)
    if device is None:
        raise errors.DeviceError(f'"{name}" is on {tensor.device}; supported: cpu, cuda')
    if str(tensor.layout) != "torch.strided":
        raise errors.ShapeError(f'"{name}" is sparse ({tensor.layout}); only dense tensors are supported, e.g. '
                                "nn.Embedding(sparse=False)")
    strides = None if tensor.is_contiguous() else tensor.stride()
    return TensorView(tensor.data_ptr(), torch_dtype(tensor, name), tensor.shape, strides, tensor, device)


class _Capsule:
    """Owns a DLPack capsule that was not consumed: dropping it lets the producer release the memory."""

    def __init__(self, array, capsule):
        self.array, self.capsule = array, capsule


def _of_dlpack(array, name):
    capsule = array.__dlpack__()
    try:
        managed = _DlManaged.from_address(_capsule_pointer(capsule, b"dltensor"))
    except ValueError:
        raise errors.ArgumentError(f'"{name}": its __dlpack__ gave no capsule named "dltensor"') from None
    dl = managed.dl
    shape = [C.c_int64.from_address(dl.shape + 8 * i).value for i in range(dl.ndim)]
    strides = [C.c_int64.from_address(dl.strides + 8 * i).value for i in range(dl.ndim)] if dl.strides else None
    if strides == [math.prod(shape[axis + 1:]) for axis in range(dl.ndim)]:
        strides = None  # row-major
    return TensorView((dl.data or 0) + dl.byte_offset, (dl.dtype.code, dl.dtype.bits), shape, strides,
                      _Capsule(array, capsule), (dl.device_type, dl.device_id))


def _of_buffer(array, name):
    buffer = memoryview(array)
    if buffer.format not in ("f", "d", "i", "q", "l") or not buffer.c_contiguous:
        raise errors.DtypeError(f'"{name}" is a buffer of format {buffer.format!r}; supported: contiguous "f" (float32)')
    code = _abi.DTYPE_CODE_FLOAT if buffer.format in "fd" else _abi.DTYPE_CODE_INT
    data = 0
    if buffer.nbytes and not buffer.readonly:
        data = C.addressof(C.c_char.from_buffer(buffer))
    elif buffer.nbytes:
        raise errors.ArgumentError(f'"{name}" is read-only memory')
    return TensorView(data, (code, 8 * buffer.itemsize), buffer.shape, None, buffer)


def view(array, name="tensor"):
    """A TensorView of a torch tensor, anything with __dlpack__ (a numpy array), or a float buffer (array.array)."""
    if isinstance(array, TensorView):
        return array
    module = type(array).__module__.partition(".")[0]
    if module == "torch" or hasattr(array, "data_ptr"):
        return of_torch(array, name)
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array, name)
    try:
        memoryview(array)
    except TypeError:
        pass
    else:
        return _of_buffer(array, name)
    raise errors.ArgumentError(f'"{name}" is a {type(array).__name__}: need a torch tensor, a numpy array or an object '
                               "with __dlpack__")
