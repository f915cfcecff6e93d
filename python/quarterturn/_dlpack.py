"""DLPack objects of other libraries as NumPy arrays over the same memory, and back.

NumPy does the exchange and keeps memory alive. It has no bf16, so that type passes as uint16: only
the type code inside the capsule is another, and a capsule belongs to one exchange alone.
"""

import ctypes as c

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType

_UINT, _FLOAT, _BFLOAT = 1, 2, 4  # DLDataTypeCode
_TYPES = {(_FLOAT, 32): "f32", (_FLOAT, 16): "f16", (_BFLOAT, 16): "bf16", (_UINT, 8): None}
_CODES = ("int", "uint", "float", "opaque", "bfloat", "complex", "bool")


class _Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32),
                ("ndim", c.c_int32), ("code", c.c_uint8), ("bits", c.c_uint8),
                ("lanes", c.c_uint16), ("shape", c.c_void_p), ("strides", c.c_void_p),
                ("byte_offset", c.c_uint64)]


class _Versioned(c.Structure):
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("manager", c.c_void_p),
                ("deleter", c.c_void_p), ("flags", c.c_uint64), ("tensor", _Tensor)]


_pointer = c.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
_is_named = c.pythonapi.PyCapsule_IsValid
_is_named.restype, _is_named.argtypes = c.c_int, [c.py_object, c.c_char_p]


def _tensor_of(capsule):
    for name, struct in ((b"dltensor", _Tensor), (b"dltensor_versioned", _Versioned)):
        if _is_named(capsule, name):
            found = struct.from_address(_pointer(capsule, name))
            return found.tensor if struct is _Versioned else found
    raise BufferError("__dlpack__ gave no capsule of a DLPack tensor that nobody has taken yet")


class _Capsule:
    """A capsule that one consumer takes."""

    def __init__(self, capsule, device):
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **ignored):
        return self._capsule

    def __dlpack_device__(self):
        return self._device


def _asked(array, **wanted):
    """array.__dlpack__ with what its version of the protocol knows of the keywords."""
    try:
        return array.__dlpack__(**wanted)
    except TypeError:
        return array.__dlpack__()


def device_of(array, what):
    """"cpu" or "cuda:<n>"."""
    kind, index = array.__dlpack_device__()
    if kind in (CPU, CUDA_HOST):
        return "cpu"
    if kind in (CUDA, CUDA_MANAGED):
        return f"cuda:{index}"
    raise ValueError(f"{what} is on device type {int(kind)} of DLPack: the CPU (1, 3) and CUDA (2, "
                     "13) are taken")


def to_numpy(array, what):
    """(a NumPy array over the memory of an object on the CPU, its type or None for bytes)."""
    import numpy
    device = tuple(array.__dlpack_device__())
    # A read-only tensor can be told in a versioned capsule only.
    newest = tuple(int(part) for part in numpy.__version__.split(".")[:2]) >= (2, 1)
    capsule = _asked(array, max_version=(1, 0)) if newest else array.__dlpack__()
    tensor = _tensor_of(capsule)
    key = tensor.code, tensor.bits
    if key not in _TYPES or tensor.lanes != 1:
        code = _CODES[tensor.code] if tensor.code < len(_CODES) else f"type code {tensor.code}"
        lanes = f" in lanes of {tensor.lanes}" if tensor.lanes != 1 else ""
        raise TypeError(f"{what} holds {code}{tensor.bits}{lanes}: float32, float16 or bfloat16 is "
                        "taken")
    if tensor.code == _BFLOAT:
        tensor.code = _UINT
    return numpy.from_dlpack(_Capsule(capsule, (CPU, device[1]))), _TYPES[key]


class Array:
    """A result for a library that takes DLPack: numpy.from_dlpack, jax.numpy.from_dlpack and others
    read it where it lies. `type` is "f32", "f16", "bf16" or "uint8"."""

    def __init__(self, array, type):
        self._array, self.type, self.shape = array, type or "uint8", array.shape

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if dl_device is not None and tuple(dl_device) != tuple(self.__dlpack_device__()):
            raise BufferError(f"this array is on the CPU, device {tuple(dl_device)} is asked for")
        array = self._array.copy() if copy else self._array
        capsule = _asked(array, max_version=max_version) if max_version else array.__dlpack__()
        if self.type == "bf16":
            _tensor_of(capsule).code = _BFLOAT
        return capsule

    def __repr__(self):
        return f"quarterturn.Array({'x'.join(map(str, self.shape))}, {self.type}, cpu)"


def giver(array):
    """What makes results of a call on `array` things of its library: (NumPy array or CUDA tensor,
    type) to an array of that library, or an Array where the library has no namespace to ask."""
    namespace = getattr(array, "__array_namespace__", None)
    convert = getattr(namespace(), "from_dlpack", None) if namespace else None

    def give(result, type):
        on_cpu = hasattr(result, "__array_interface__")
        exported = Array(result, type) if on_cpu else result
        return convert(exported) if convert else exported

    return give
