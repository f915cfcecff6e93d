"""What NumPy arrays and torch tensors have in common here: memory, shape, strides and a type."""

_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


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


def device_of(array):
    """"cpu", or "cuda:<n>"."""
    return str(array.device) if is_torch(array) and array.device.type != "cpu" else "cpu"


def pointer_of(array):
    return array.data_ptr() if is_torch(array) else array.__array_interface__["data"][0]


def matrix_of(array, what):
    """Rows, columns and the distance between rows, in elements; batch entries first."""
    if array.ndim not in (2, 3):
        raise ValueError(f"{what} has {array.ndim} dimensions; [rows, k] or [batch, rows, k] is taken")
    size = array.element_size() if is_torch(array) else array.itemsize
    strides = tuple(array.stride()) if is_torch(array) else tuple(
        s // size for s in array.strides)
    if array.shape[-1] > 1 and strides[-1] != 1:
        raise ValueError(f"{what}: elements of a row must be neighbours in memory "
                         f"(strides {strides}); make it contiguous")
    batch = array.shape[0] if array.ndim == 3 else 1
    ld = strides[-2] if array.shape[-2] > 1 else array.shape[-1]
    return batch, array.shape[-2], array.shape[-1], ld, (strides[0] if array.ndim == 3 else 0)


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
