"""What NumPy arrays, torch tensors and objects with __dlpack__ have in common here: memory, shape,
strides and a type."""

from . import _dlpack

_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class Given:
    """An operand that a caller gave: `array` (NumPy's or PyTorch's, over the caller's memory), its
    `type` ("f32", "f16", "bf16"), and `give(result, type)`, which makes results of its library."""

    __slots__ = ("array", "type", "give")

    def __init__(self, array, what, type=None):
        self.give = _as_it_is
        if not is_torch(array) and not _is_numpy(array):
            array, self.give, found = _foreign(array, what)
            if found == "bf16" and type in (None, "bf16"):
                self.array, self.type = array, found
                return
            if found != "bf16" and array.dtype == "uint8":
                raise TypeError(f"{what} holds uint8: float32, float16 or bfloat16 is taken")
        self.array, self.type = array, type_of(array, type)


def _as_it_is(result, type):
    return result


def _foreign(array, what):
    """A DLPack object as (array, give, type or None)."""
    if not (hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")):
        raise TypeError(f"{what} is a {type(array).__name__}: a NumPy array, a torch tensor or an "
                        "object with __dlpack__ and __dlpack_device__ is taken")
    if _dlpack.device_of(array, what) == "cpu":
        found, kind = _dlpack.to_numpy(array, what)
        return found, _dlpack.giver(array), kind
    try:
        import torch
    except ImportError:
        raise TypeError(f"{what} is on a GPU and of {type(array).__module__}: results and "
                        "workspace there come from PyTorch's allocator; install torch") from None
    return torch.from_dlpack(array), _dlpack.giver(array), None


def _is_numpy(array):
    import numpy
    return isinstance(array, numpy.ndarray)


def is_torch(array):
    return type(array).__module__.partition(".")[0] == "torch"


def type_of(array, given=None):
    """"f32", "f16" or "bf16". NumPy has no bf16: give uint16 bits and type="bf16"."""
    name = str(array.dtype).rpartition(".")[2]
    if given is not None:
        if given == "bf16" and name in ("uint16", "bfloat16"):
            return given
        if _TYPES.get(name) != given:
            raise TypeError(f"an array of {name} does not hold {given}")
        return given
    if name not in _TYPES:
        raise TypeError(f"arrays of float32, float16 or bfloat16 are taken, this holds {name}"
                        " (bits of bf16: uint16, with type='bf16')")
    return _TYPES[name]


def check_result(type):
    """Refuses what is no type of results."""
    if type not in _NAMES:
        raise ValueError(f"type = {type!r}: results are in {', '.join(_NAMES)}; name one of them")


def device_of(array):
    """"cpu", or "cuda:<n>"."""
    return str(array.device) if is_torch(array) and array.device.type != "cpu" else "cpu"


def pointer_of(array):
    return array.data_ptr() if is_torch(array) else array.__array_interface__["data"][0]


def matrix_of(given, what):
    """Batch entries, rows, columns, and the distances between rows and between entries, in
    elements, of an operand that is only read: where its rows or entries share memory, as those of
    a broadcast array do, it is copied first."""
    array = given.array
    if array.ndim not in (2, 3):
        raise ValueError(f"{what} has {array.ndim} dimensions; [rows, k] or [batch, rows, k] is "
                         "taken")
    batch, rows, columns = (1, *array.shape)[-3:]
    if 0 in array.shape:  # strides mean nothing
        return batch, rows, columns, columns, rows * columns
    strides = _strides_of(array)
    if columns > 1 and strides[-1] != 1:
        raise ValueError(f"{what}: elements of a row must be neighbours in memory "
                         f"(strides {strides}); make it contiguous")
    if any(length > 1 and stride < 0 for length, stride in zip(array.shape, strides)):
        raise ValueError(f"{what}: its rows go backwards in memory (strides {strides}); make it "
                         "contiguous")
    ld = strides[-2] if rows > 1 else columns
    stride = strides[0] if batch > 1 else rows * ld
    if ld < columns or stride < (rows - 1) * ld + columns:
        given.array, ld, stride = _packed(array), columns, rows * columns
    return batch, rows, columns, ld, stride


def _strides_of(array):
    """In elements; 0, as where memory is shared, for what is no whole number of them."""
    if is_torch(array):
        return tuple(array.stride())
    size = array.itemsize
    return tuple(0 if stride % size else stride // size for stride in array.strides)


def _packed(array):
    return array.contiguous() if is_torch(array) else array.copy(order="C")


def empty_like_kind(example, shape, type=None):
    """Uninitialised memory where `example` lives: of a high-precision type, or bytes."""
    if is_torch(example):
        import torch
        dtype = torch.uint8 if type is None else getattr(torch, _NAMES[type])
        return torch.empty(shape, dtype=dtype, device=example.device)
    import numpy
    name = "uint8" if type is None else "uint16" if type == "bf16" else _NAMES[type]
    return numpy.empty(shape, dtype=name)


def stream_of(array):
    """The CUDA stream that PyTorch uses now; 0 on the CPU."""
    if device_of(array) == "cpu":
        return 0
    import torch
    return torch.cuda.current_stream(array.device).cuda_stream
