"""Whole checkpoints: from one form of MXFP4 to another, and from high precision to MXFP4, a tensor
at a time."""

import base64
import dataclasses
import json
import math
from typing import Callable

import numpy as np

from . import _gguf, _packing
from ._safetensors import FormatError, Safetensors, write_safetensors


@dataclasses.dataclass(frozen=True)
class Form:
    """How a checkpoint names the two tensors of an operand, and how they lie. read(codes, scales)
    and write(codes, scales) give and take plain ones; sizes(codes' shape) are the shapes of plain
    codes [..., rows, K / 2] in this form."""

    codes: str
    scales: str
    write: Callable
    read: Callable
    sizes: Callable
    rules: tuple = ()  # scale rules whose values the form can mean; (): any


def _plain(codes, scales):
    _packing.check_operand(codes, scales)
    return codes, scales


def _plain_sizes(shape):
    return shape, (*shape[:-1], shape[-1] // 16)


def _tiled_sizes(tile_rows, tile_blocks):
    def sizes(shape):
        return shape, (*shape[:-2], _packing.tiled_bytes(shape[-2], shape[-1] // 16, tile_rows,
                                                         tile_blocks))
    return sizes


FORMS = {
    "compressed-tensors": Form(".weight_packed", ".weight_scale", _plain, _plain, _plain_sizes),
    "gpt-oss": Form(
        "_blocks", "_scales", _packing.to_gpt_oss, _packing.from_gpt_oss,
        lambda shape: ((*shape[:-1], shape[-1] // 16, 16), _plain_sizes(shape)[1])),
    "cublas": Form(
        ".weight_packed", ".weight_scale_128x4",
        lambda codes, scales: (codes, _packing.to_128x4(scales)),
        lambda codes, tiles: (codes, _packing.from_128x4(
            tiles, *_plain_sizes(codes.shape)[1][-2:])),
        _tiled_sizes(128, 4)),
    "aiter": Form(
        ".weight_shuffled", ".weight_scale_aiter",
        lambda codes, scales: (_packing.to_shuffled(codes), _packing.to_aiter(scales)),
        lambda codes, tiles: (_packing.from_shuffled(codes), _packing.from_aiter(
            tiles, *_plain_sizes(codes.shape)[1][-2:])),
        _tiled_sizes(256, 8)),
    "qutlass": Form(
        ".weight_packed", ".weight_scale_qutlass",
        lambda codes, scales: (codes, _packing.to_128x4(_packing.to_abs_max(codes, scales)[1])),
        lambda codes, tiles: _packing.from_abs_max(codes, _packing.from_128x4(
            tiles, *_plain_sizes(codes.shape)[1][-2:])),
        _tiled_sizes(128, 4), rules=("ts34",)),
}


GGUF = "gguf"
TARGETS = (*FORMS, GGUF)  # what `convert_file` writes
_KEYS = "quarterturn.gguf"  # in safetensors' metadata: how many keys GGUF had, and their bytes


@dataclasses.dataclass
class _Operand:
    """An MXFP4 operand of a file: its name, form and tensors, the shape of its plain codes, and
    read(), which gives plain codes and scales."""

    stem: str
    form: str
    names: tuple
    shape: tuple
    read: Callable


def _pair(file, name):
    """The operand whose codes a tensor of a safetensors file is; None where it is none."""
    for form_name, form in FORMS.items():
        stem = name[:-len(form.codes)]
        if not (name.endswith(form.codes) and stem + form.scales in file.tensors):
            continue
        names = name, stem + form.scales
        dtype, shape = file.tensors[name]
        plain = shape
        if form_name == "gpt-oss" and len(shape) > 1:
            plain = (*shape[:-2], 16 * shape[-2])
        if dtype != "U8" or len(plain) < 2 or plain[-1] % 16 or form.sizes(plain)[0] != shape:
            raise ValueError(f"'{name}' is {shape} in {dtype}: U8 of [..., rows, K / 2] is needed, "
                             "of gpt-oss [..., rows, K / 32, 16]")
        dtype, shape = file.tensors[names[1]]
        wanted = form.sizes(plain)[1]
        if dtype not in ("U8", "F8_E8M0") or shape != wanted:
            raise ValueError(f"'{names[1]}' is {shape} in {dtype}: {wanted} in U8 or F8_E8M0 "
                             f"belongs to '{name}'")
        return _Operand(stem, form_name, names, plain, lambda: form.read(
            *(np.array(file.read(part)) for part in names)))
    return None


def _block_tensor(file, name):
    """The operand that a tensor of a GGUF file is; None where it is none."""
    dtype, shape = file.tensors[name]
    if dtype != "MXFP4":
        return None
    if len(shape) < 2:
        raise ValueError(f"'{name}' is {shape} in MXFP4: [..., rows, K] is needed")
    return _Operand(name.removesuffix(".weight"), GGUF, (name,), (*shape[:-1], shape[-1] // 2),
                    lambda: _packing.from_gguf(np.array(file.read(name))))


def _open(path):
    with open(path, "rb") as file:
        is_gguf = file.read(4) == _gguf.MAGIC
    return _gguf.Gguf(path) if is_gguf else Safetensors(path)


def _metadata(file, found, to):
    """The metadata of the result, where all of its forms mean what the file says of scale rules."""
    strict = [name for name in (to, *found) if name in FORMS and FORMS[name].rules]
    if not strict:
        return file.metadata
    rule, = FORMS[strict[0]].rules
    scheme = scheme_of(file)
    given = scheme.get("scale_rule")
    if given != rule and (given is not None or not set(found) <= set(strict)):
        raise ValueError(f"{file.path} has scale_rule = {given!r}: {strict[0]}'s scales mean "
                         f"values of {rule}; quantise by `qturn quantize --scale-rule {rule}`")
    return {**file.metadata, "quarterturn": json.dumps({**scheme, "scale_rule": rule})}


def _add(out, name, *tensor):
    """Adds a tensor (dtype, shape, make) under a name that no other has."""
    if name in out:
        raise ValueError(f"two tensors would be named '{name}' in the result; rename or remove one "
                         "of those that it comes from")
    out[name] = tensor


def _put(out, operand, to):
    """Adds an operand's tensors in the form `to`."""
    if to == GGUF:
        _add(out, operand.stem + ".weight", "MXFP4", (*operand.shape[:-1], 2 * operand.shape[-1]),
             lambda: _packing.to_gguf(*operand.read()))
        return
    form, made = FORMS[to], []

    def codes():
        first, second = form.write(*operand.read())
        made.append(second)
        return first

    codes_shape, scales_shape = form.sizes(operand.shape)
    _add(out, operand.stem + form.codes, "U8", codes_shape, codes)
    _add(out, operand.stem + form.scales, "U8", scales_shape, made.pop)


def _entries_of(file):
    """The keys of the GGUF file that a file is, or that it was made of, checked: as bytes, and how
    many they are."""
    if isinstance(file, _gguf.Gguf):
        return file.entries
    told, what = file.metadata.get(_KEYS, "0:"), f"{file.path}'s metadata {_KEYS}"
    count, _, text = told.partition(":")
    try:
        entries = base64.b64decode(text, validate=True), int(count)
    except ValueError:
        raise FormatError(f"{what} is {told[:60]!r}: COUNT:BASE64 is needed, the keys of a GGUF "
                          "file") from None
    _gguf.check_entries(*entries, what)
    return entries


def _write(path, out, file, metadata, to):
    """Keys of a GGUF file travel through safetensors' metadata."""
    if to == GGUF:
        _gguf.write_gguf(path, out, {name: value for name, value in metadata.items()
                                     if name != _KEYS}, _entries_of(file))
        return
    if isinstance(file, _gguf.Gguf) and file.entries[1]:
        raw, count = file.entries
        metadata = {**metadata, _KEYS: f"{count}:{base64.b64encode(raw).decode()}"}
    write_safetensors(path, out, metadata)


def convert_file(source, target, to):
    """Rewrites every MXFP4 operand of a safetensors or GGUF file in the form `to` (TARGETS) and
    copies other tensors; gives how many were rewritten. Bits are moved, nothing is rounded."""
    if to not in TARGETS:
        raise ValueError(f"to = '{to}': {', '.join(TARGETS)} are known")
    file = _open(source)
    find = _block_tensor if isinstance(file, _gguf.Gguf) else _pair
    operands = {name: found for name in file.tensors if (found := find(file, name))}
    changed = {found.form for found in operands.values()} - {to}
    if not changed:
        raise ValueError(f"{source} has no pair of MXFP4 tensors in another form than {to}'s: "
                         + ", ".join(f"NAME{f.codes} with NAME{f.scales}" for f in FORMS.values())
                         + ", or GGUF's, are known")
    metadata = _metadata(file, changed, to)
    inside = {part for found in operands.values() for part in found.names}
    out = {}
    for name, (dtype, shape) in file.tensors.items():
        if name in operands:
            _put(out, operands[name], to)
        elif name not in inside:
            _add(out, name, dtype, shape, lambda n=name: file.read(n))
    _write(target, out, file, metadata, to)
    return sum(found.form != to for found in operands.values())


def is_quantised(name):
    """Whether quantize_file takes a matrix of this name: not embeddings, norms and heads."""
    return not any(word in name for word in ("embed", "norm", "head"))


_HIGH = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def matrices(file, choose):
    """Names of a file's high-precision matrices NAME.weight that `choose` takes."""
    # What has no elements stays as it is: K = 0 is no problem of the library's.
    return [name for name, (dtype, shape) in file.tensors.items()
            if name.endswith(".weight") and len(shape) == 2 and 0 not in shape
            and dtype in _HIGH and choose(name)]


def quantize_file(source, target, rotation=0, scale_rule="rceil", choose=None, context=None,
                  progress=None):
    """Quantises the matrices NAME.weight of a safetensors file that `choose(name)` names (default:
    all but embeddings, norms and heads) into compressed-tensors' form, a tensor at a time; the rest
    is copied. Rotation and scale rule are in the file's metadata. Gives rows {name, error,
    error_unrotated}: the relative error of the values, behind the rotation and without one."""
    from . import Context
    context = context or Context()
    file = Safetensors(source)
    if "quarterturn" in file.metadata:  # one scheme is all that a file can tell
        scheme_of(file, rotation=rotation, scale_rule=scale_rule)
    names = set(matrices(file, choose or is_quantised))
    unit = max(32, rotation)
    out, report, made = {}, [], {}

    def quantized(name, g):
        dtype, _ = file.tensors[name]
        return context.quantize(np.array(file.read(name)), rotation=g, scale_rule=scale_rule,
                                type=_HIGH[dtype])

    @np.errstate(all="ignore")  # of what has infinities or NaN it is no number
    def error(name, mx):
        dtype, shape = file.tensors[name]
        x = np.array(file.read(name))
        x = ((x.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16"
             else x.astype(np.float32))
        size = np.linalg.norm(x) or 1.0
        # The rotation keeps lengths, so the error is that of the rotated values; ts34's are 3/4 of
        # what they stand for.
        values = context.dequantize(mx) * np.float32(4 / 3 if scale_rule == "ts34" else 1)
        if mx.rotation:
            values = _rotated(values, mx.rotation)
        return float(np.linalg.norm(values - x) / size)

    def codes_of(name, shape):
        mx = quantized(name, rotation)
        made[name] = mx.scales.reshape(shape[0], shape[1] // 32)
        plain = mx if rotation == 0 else quantized(name, 0)
        report.append({"name": name, "error": error(name, mx),
                       "error_unrotated": error(name, plain)})
        if progress:
            progress(name)
        return mx.codes.reshape(shape[0], shape[1] // 2)

    for name, (dtype, shape) in file.tensors.items():
        if name in names:
            if shape[1] % unit:
                raise ValueError(f"'{name}' is {shape}: its columns are no multiple of {unit}")
            stem = name[:-len(".weight")]
            _add(out, stem + ".weight_packed", "U8", (shape[0], shape[1] // 2),
                 lambda n=name, s=shape: codes_of(n, s))
            _add(out, stem + ".weight_scale", "U8", (shape[0], shape[1] // 32),
                 lambda n=name: made.pop(n))
        else:
            _add(out, name, dtype, shape, lambda n=name: file.read(n))
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
    """What a file of `quantize_file` says of its numbers; `wanted` (rotation=32, ...) that differs
    is refused: operands that were rotated or scaled otherwise give wrong products."""
    text = file.metadata.get("quarterturn")
    try:
        scheme = json.loads(text) if text else {"format": "mxfp4", "rotation": 0}
    except (ValueError, RecursionError):
        scheme = None
    if not isinstance(scheme, dict):
        raise FormatError(f"{file.path} has metadata quarterturn = {text[:60]!r}: a JSON object "
                          "such as {\"rotation\": 32} is needed")
    for name, value in wanted.items():
        if scheme.get(name) != value:
            raise ValueError(f"{file.path} has {name} = {scheme.get(name)!r}, {value!r} is wanted")
    return scheme
