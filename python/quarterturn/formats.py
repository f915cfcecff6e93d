"""MXFP4 tensors in the forms that checkpoints have, exact both ways, and safetensors files as streams.

    codes [rows, K / 2], scales [rows, K / 32]     plain: this library's; low nibble = even element
    compressed-tensors                             the same, as NAME.weight_packed, NAME.weight_scale
    gpt-oss                                        NAME_blocks [..., rows, K / 32, 16], NAME_scales
    GGUF type 39 (MXFP4)                           17 bytes a block: the scale, then byte i holds
                                                   element i (low nibble) and element i + 16

All are uint8 arrays of NumPy; values are E2M1 codes times 2^(scale - 127) in each. Conversions move
bits and never round. Files are read as hostile: every offset and size is checked before it is used.
"""

import json
import math
import os
import pathlib

import numpy as np

GGUF_BLOCK = 17
_MOST_HEADER = 100 << 20


def _operand(codes, scales):
    if codes.dtype != np.uint8 or scales.dtype != np.uint8:
        raise TypeError(f"codes hold {codes.dtype}, scales {scales.dtype}: uint8 is needed")
    if codes.shape[:-1] != scales.shape[:-1] or codes.shape[-1] != 16 * scales.shape[-1]:
        raise ValueError(f"codes are {codes.shape}, scales {scales.shape}: [..., K / 2] and "
                         "[..., K / 32] belong together")


def to_gpt_oss(codes, scales):
    """(blocks [..., K / 32, 16], scales)."""
    _operand(codes, scales)
    return codes.reshape(*codes.shape[:-1], scales.shape[-1], 16), scales


def from_gpt_oss(blocks, scales):
    """(codes, scales) plain."""
    if blocks.shape[-1:] != (16,) or blocks.shape[:-1] != scales.shape:
        raise ValueError(f"blocks are {blocks.shape}, scales {scales.shape}: [..., K / 32, 16] and "
                         "[..., K / 32] belong together")
    codes = blocks.reshape(*blocks.shape[:-2], -1)
    _operand(codes, scales)
    return codes, scales


def to_gguf(codes, scales):
    """uint8 [..., K / 32 * 17]. GGUF has no NaN: a scale byte of 255 is refused."""
    _operand(codes, scales)
    if (scales == 255).any():
        raise ValueError(f"{int((scales == 255).sum())} blocks have scale 255 (NaN), which GGUF's "
                         "MXFP4 cannot hold")
    blocks = codes.reshape(*scales.shape, 16)
    elements = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
    packed = elements[..., :16] | (elements[..., 16:] << 4)
    whole = np.concatenate([scales[..., None], packed], axis=-1)
    return whole.reshape(*scales.shape[:-1], -1)


def from_gguf(data):
    """(codes, scales) plain."""
    if data.dtype != np.uint8 or data.shape[-1] % GGUF_BLOCK:
        raise ValueError(f"{data.shape} of {data.dtype}: rows of uint8 in blocks of {GGUF_BLOCK} are "
                         "needed")
    blocks = data.reshape(*data.shape[:-1], -1, GGUF_BLOCK)
    packed = blocks[..., 1:]
    elements = np.concatenate([packed & 15, packed >> 4], axis=-1)
    codes = elements[..., 0::2] | (elements[..., 1::2] << 4)
    return codes.reshape(*data.shape[:-1], -1), np.ascontiguousarray(blocks[..., 0])


# ---- safetensors ----

_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2,
          "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
_NUMPY = {"U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "F16": np.float16,
          "BF16": np.uint16, "U32": np.uint32, "I32": np.int32, "F32": np.float32,
          "U64": np.uint64, "I64": np.int64, "F64": np.float64, "F8_E8M0": np.uint8,
          "BOOL": np.bool_, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8}


class FormatError(ValueError):
    """A file that is not what it says it is."""


class Safetensors:
    """A safetensors file, read a tensor at a time (memory-mapped). `tensors`: {name: (dtype, shape)};
    `metadata`: {str: str}. BF16 comes as uint16 bits, 8-bit floats as uint8."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MOST_HEADER):
                raise FormatError(f"{path}: a header of {length} bytes in a file of {size}")
            try:
                header = json.loads(file.read(length))
            except (ValueError, RecursionError) as error:
                raise FormatError(f"{path}: the header is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise FormatError(f"{path}: the header is no object")
        self.metadata = header.pop("__metadata__", {})
        if not (isinstance(self.metadata, dict)
                and all(isinstance(value, str) for value in self.metadata.values())):
            raise FormatError(f"{path}: __metadata__ must be texts by name")
        self._begin, self._room = 8 + length, size - 8 - length
        self._places, self.tensors = {}, {}
        for name, entry in header.items():
            self._add(name, entry)
        ends = sorted(self._places.values())
        if any(first[1] > second[0] for first, second in zip(ends, ends[1:])):
            raise FormatError(f"{path}: tensors overlap")

    def _add(self, name, entry):
        try:
            dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
            numbers = [*shape, first, last]
        except (TypeError, KeyError, ValueError):
            raise FormatError(f"{self.path}: '{name}' is not described by dtype, shape and "
                              "data_offsets") from None
        if type(dtype) is not str or dtype not in _SIZES or any(type(n) is not int or n < 0 for n in numbers):
            raise FormatError(f"{self.path}: '{name}' has dtype {dtype!r}, shape {shape!r}, offsets "
                              f"{first!r}, {last!r}")
        if last > self._room or last - first != _SIZES[dtype] * math.prod(shape):
            raise FormatError(f"{self.path}: '{name}' of shape {shape} in {dtype} lies at {first} to "
                              f"{last} of {self._room} bytes")
        self.tensors[name] = (dtype, tuple(shape))
        self._places[name] = (first, last)

    def read(self, name):
        """The tensor as an array over the mapped file."""
        dtype, shape = self.tensors[name]
        first, last = self._places[name]
        if first == last:
            return np.empty(shape, _NUMPY[dtype])
        data = np.memmap(self.path, np.uint8, "r", self._begin + first, last - first)
        return data.view(_NUMPY[dtype]).reshape(shape)


def write_safetensors(path, tensors, metadata=None):
    """Writes {name: (dtype, shape, make)} where make() gives the array: a tensor at a time is in
    memory. The file appears whole or not at all."""
    path = pathlib.Path(path)
    header, at = {}, 0
    for name, (dtype, shape, _) in tensors.items():
        size = _SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name, (dtype, shape, make) in tensors.items():
                array = np.ascontiguousarray(make())
                if array.shape != tuple(shape) or array.dtype != _NUMPY[dtype]:
                    raise ValueError(f"'{name}' was to be {shape} in {dtype}, it is {array.shape} of "
                                     f"{array.dtype}")
                array.tofile(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


# ---- whole files ----

def convert_file(source, target, to):
    """Between "gpt-oss" and "compressed-tensors": NAME_blocks and NAME_scales to NAME.weight_packed
    and NAME.weight_scale, or back; other tensors as they are. Bits are moved, nothing is rounded."""
    file = Safetensors(source)
    endings = {"compressed-tensors": ("_blocks", "_scales", ".weight_packed", ".weight_scale"),
               "gpt-oss": (".weight_packed", ".weight_scale", "_blocks", "_scales")}
    if to not in endings:
        raise ValueError(f"to = '{to}': {', '.join(endings)} are known")
    codes_end, scales_end, new_codes, new_scales = endings[to]
    move = from_gpt_oss if to == "compressed-tensors" else to_gpt_oss
    out, converted = {}, 0
    for name, (dtype, shape) in file.tensors.items():
        stem = name[:-len(codes_end)] if name.endswith(codes_end) else None
        if stem is not None and stem + scales_end in file.tensors:
            scales_name = stem + scales_end
            codes, scales = move(file.read(name), file.read(scales_name))
            out[stem + new_codes] = ("U8", codes.shape, lambda n=name, s=scales_name: move(
                file.read(n), file.read(s))[0])
            out[stem + new_scales] = ("U8", scales.shape, lambda s=scales_name: file.read(s))
            converted += 1
        elif not (name.endswith(scales_end) and name[:-len(scales_end)] + codes_end in file.tensors):
            out[name] = (dtype, shape, lambda n=name: file.read(n))
    if not converted:
        raise ValueError(f"{source} has no pair NAME{codes_end}, NAME{scales_end}")
    write_safetensors(target, out, file.metadata)
    return converted


def is_quantised(name):
    """Whether quantize_file takes a matrix of this name: not embeddings, norms and heads."""
    return not any(word in name for word in ("embed", "norm", "head"))


_HIGH = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def matrices(file, choose):
    """Names of a file's high-precision matrices NAME.weight that `choose` takes."""
    return [name for name, (dtype, shape) in file.tensors.items()
            if name.endswith(".weight") and len(shape) == 2 and dtype in _HIGH and choose(name)]


def quantize_file(source, target, rotation=0, scale_rule="rceil", choose=None, context=None,
                  progress=None):
    """Quantises the matrices NAME.weight of a safetensors file that `choose(name)` names (default:
    all but embeddings, norms and heads) into compressed-tensors' form, a tensor at a time; the rest
    is copied. Rotation and scale rule are in the file's metadata. Gives rows {name, error,
    error_unrotated}: the relative error of the values, behind the rotation and without one."""
    from . import Context
    context = context or Context()
    file = Safetensors(source)
    names = set(matrices(file, choose or is_quantised))
    unit = max(32, rotation)
    out, report, made = {}, [], {}

    def quantized(name, g):
        dtype, _ = file.tensors[name]
        return context.quantize(np.array(file.read(name)), rotation=g, scale_rule=scale_rule,
                                type=_HIGH[dtype])

    def error(name, mx):
        dtype, shape = file.tensors[name]
        x = np.array(file.read(name))
        x = (x.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else x.astype(np.float32)
        size = np.linalg.norm(x) or 1.0
        # The rotation keeps lengths, so the error is that of the rotated values.
        values = context.dequantize(mx)
        if mx.rotation:
            values = _rotated(values, mx.rotation)
        return float(np.linalg.norm(values - x) / size)

    def codes_of(name, shape):
        mx = quantized(name, rotation)
        made[name] = mx.scales.reshape(shape[0], shape[1] // 32)
        plain = mx if rotation == 0 else quantized(name, 0)
        report.append({"name": name, "error": error(name, mx), "error_unrotated": error(name, plain)})
        if progress:
            progress(name)
        return mx.codes.reshape(shape[0], shape[1] // 2)

    for name, (dtype, shape) in file.tensors.items():
        if name in names:
            if shape[1] % unit:
                raise ValueError(f"'{name}' is {shape}: its columns are no multiple of {unit}")
            stem = name[:-len(".weight")]
            out[stem + ".weight_packed"] = ("U8", (shape[0], shape[1] // 2),
                                            lambda n=name, s=shape: codes_of(n, s))
            out[stem + ".weight_scale"] = ("U8", (shape[0], shape[1] // 32),
                                           lambda n=name: made.pop(n))
        else:
            out[name] = (dtype, shape, lambda n=name: file.read(n))
    metadata = {**file.metadata, "quarterturn": json.dumps(
        {"format": "mxfp4", "rotation": rotation, "scale_rule": scale_rule})}
    write_safetensors(target, out, metadata)
    return report


def _rotated(x, g):
    """x [rows, k] by the orthonormal Hadamard matrix of g, which is its own inverse."""
    h = np.array([[1.0]])
    while h.shape[0] < g:
        h = np.block([[h, h], [h, -h]])
    return (x.reshape(-1, g) @ (h / math.sqrt(g))).reshape(x.shape)


def scheme_of(file, **wanted):
    """What a file of `quantize_file` says of its numbers; `wanted` (rotation=32, ...) that differs is
    refused: operands that were rotated or scaled otherwise give wrong products."""
    text = file.metadata.get("quarterturn")
    scheme = json.loads(text) if text else {"format": "mxfp4", "rotation": 0}
    for name, value in wanted.items():
        if scheme.get(name) != value:
            raise ValueError(f"{file.path} has {name} = {scheme.get(name)!r}, {value!r} is wanted")
    return scheme
