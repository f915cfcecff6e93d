"""GGUF files as streams of tensors: read as hostile, written whole or not at all. Tensors alone:
what a program needs besides, such as a model's architecture, is kept where it is there and never
made."""

import io
import json
import math
import pathlib
import struct

import numpy as np

from ._packing import GGUF_BLOCK
from ._safetensors import FormatError, written_whole

MAGIC = b"GGUF"
_MOST_ENTRIES, _MOST_TEXT, _MOST_DIMENSIONS = 1 << 20, 64 << 20, 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}
_TEXT, _ARRAY = 8, 9
_METADATA, _ALIGNMENT = "quarterturn.metadata", "general.alignment"
# Types of tensors: safetensors' names, bytes of an element and NumPy's type; MXFP4 is in blocks.
_TYPES = {0: ("F32", 4, np.float32), 1: ("F16", 2, np.float16), 24: ("I8", 1, np.int8),
          25: ("I16", 2, np.int16), 26: ("I32", 4, np.int32), 27: ("I64", 8, np.int64),
          28: ("F64", 8, np.float64), 30: ("BF16", 2, np.uint16), 39: ("MXFP4", None, np.uint8)}
_NUMBERS = {name: number for number, (name, _, _) in _TYPES.items()}


def _bytes_of(dtype, shape):
    """Bytes of a tensor; an MXFP4 one's shape counts elements."""
    if dtype == "MXFP4":
        return math.prod(shape[:-1]) * (shape[-1] // 32) * GGUF_BLOCK
    return math.prod(shape) * _TYPES[_NUMBERS[dtype]][1]


class _Reader:
    """The values of a GGUF header, one after the other and none beyond the end of `file`, which has
    `size` bytes; `what` is its name in errors."""

    def __init__(self, file, size, what):
        self._file, self._size, self.what = file, size, what

    def left(self):
        return self._size - self._file.tell()

    def take(self, size):
        if size > self.left():
            raise FormatError(f"{self.what} ends within its header")
        return self._file.read(size)

    def numbers(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def text(self):
        length, = self.numbers("<Q")
        if length > _MOST_TEXT:
            raise FormatError(f"{self.what}: a text of {length} bytes")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise FormatError(f"{self.what}: a text that is not UTF-8") from None

    def value(self, kind):
        if kind in _SCALARS:
            return self.numbers("<" + _SCALARS[kind])[0]
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            raise FormatError(f"{self.what}: a value of type {kind}")
        inner, length = self.numbers("<IQ")
        if inner in _SCALARS:
            self.take(min(length, self._size + 1) * struct.calcsize("<" + _SCALARS[inner]))
            return None
        if inner != _TEXT or length > self._size:
            raise FormatError(f"{self.what}: an array of {length} values of type {inner}")
        for _ in range(length):
            self.text()
        return None

    def entry(self):
        """A key's name, its value (None for an array) and its bytes."""
        begin = self._file.tell()
        name = self.text()
        value = self.value(self.numbers("<I")[0])
        end = self._file.tell()
        self._file.seek(begin)
        return name, value, self._file.read(end - begin)


def check_entries(raw, count, what):
    """Refuses bytes that are not `count` keys which write_gguf can write again."""
    if not 0 <= count < _MOST_ENTRIES:
        raise FormatError(f"{what} counts {count} keys; 0 to {_MOST_ENTRIES - 1} are taken")
    reader = _Reader(io.BytesIO(raw), len(raw), what)
    own = {reader.entry()[0] for _ in range(count)} & {_ALIGNMENT, _METADATA}
    if own:
        raise FormatError(f"{what} holds {', '.join(own)}, which is written anew; remove it")
    if reader.left():
        raise FormatError(f"{what} holds {reader.left()} bytes more than its {count} keys")


class Gguf:
    """A GGUF file, read a tensor at a time (memory-mapped). `tensors`: {name: (dtype, shape)}, of
    MXFP4 the shape in elements, which `read` gives as bytes [..., K / 32 * 17]; `metadata`: what
    the safetensors file had that this one was made of; `entries`: the file's own keys as bytes, and
    how many they are."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            reader = _Reader(file, size, self.path)
            if reader.take(4) != MAGIC:
                raise FormatError(f"{path} is no GGUF file")
            version, count, entries = reader.numbers("<IQQ")
            if version not in (2, 3):
                raise FormatError(f"{path}: GGUF version {version}; 2 and 3 are known")
            if max(count, entries) > _MOST_ENTRIES:
                raise FormatError(f"{path}: {count} tensors and {entries} keys")
            self._alignment, self.metadata = 32, {}
            kept = [raw for _ in range(entries) if (raw := self._read_entry(reader))]
            self.entries = b"".join(kept), len(kept)
            self.tensors, self._places = {}, {}
            for _ in range(count):
                self._read_tensor(reader)
            begin = file.tell()
        self._begin = -(-begin // self._alignment) * self._alignment
        self._check_places(size - self._begin)

    def _read_entry(self, reader):
        """The bytes of a key that is the file's own; None where it says how the file lies."""
        name, value, raw = reader.entry()
        if name == _ALIGNMENT:
            if type(value) is not int or not 8 <= value <= 1 << 20 or value & (value - 1):
                raise FormatError(f"{self.path}: {_ALIGNMENT} = {value!r}")
            self._alignment = value
        elif name == _METADATA:
            try:
                self.metadata = json.loads(value)
            except (TypeError, ValueError, RecursionError):
                self.metadata = None
            if not (isinstance(self.metadata, dict)
                    and all(isinstance(text, str) for text in self.metadata.values())):
                raise FormatError(f"{self.path}: {_METADATA} must be texts by name")
        else:
            return raw
        return None

    def _read_tensor(self, reader):
        name = reader.text()
        dimensions, = reader.numbers("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS or name in self.tensors:
            raise FormatError(f"{self.path}: '{name}' has {dimensions} dimensions, or is there "
                              "twice")
        shape = reader.numbers(f"<{dimensions}Q")[::-1]
        kind, offset = reader.numbers("<IQ")
        if kind not in _TYPES:
            known = ", ".join(f"{number} ({told[0]})" for number, told in _TYPES.items())
            raise FormatError(f"{self.path}: '{name}' has ggml type {kind}; known are {known}")
        dtype = _TYPES[kind][0]
        if max(shape) > 1 << 48 or (dtype == "MXFP4" and shape[-1] % 32):
            raise FormatError(f"{self.path}: '{name}' of {dtype} has shape {shape}")
        self.tensors[name], self._places[name] = (dtype, shape), offset

    def _check_places(self, room):
        spans = []
        for name, (dtype, shape) in self.tensors.items():
            first, size = self._places[name], _bytes_of(dtype, shape)
            if first % self._alignment or first + size > room:
                raise FormatError(f"{self.path}: '{name}' of shape {shape} in {dtype} lies at "
                                  f"{first} of {max(0, room)} bytes")
            spans.append((first, first + size))
        spans.sort()
        if any(one[1] > other[0] for one, other in zip(spans, spans[1:])):
            raise FormatError(f"{self.path}: tensors overlap")

    def read(self, name):
        """The tensor as an array over the mapped file."""
        dtype, shape = self.tensors[name]
        if dtype == "MXFP4":
            shape = (*shape[:-1], shape[-1] // 32 * GGUF_BLOCK)
        size, kind = _bytes_of(*self.tensors[name]), _TYPES[_NUMBERS[dtype]][2]
        if size == 0:
            return np.empty(shape, kind)
        data = np.memmap(self.path, np.uint8, "r", self._begin + self._places[name], size)
        return data.view(kind).reshape(shape)


def _packed_text(text):
    raw = text.encode()
    if len(raw) > _MOST_TEXT:
        raise ValueError(f"a text of {len(raw)} bytes; GGUF files here hold {_MOST_TEXT}")
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(path, tensors, metadata=None, entries=(b"", 0)):
    """Writes {name: (dtype, shape, make)} as write_safetensors does, in types that ggml has; of
    MXFP4 the shape counts elements and make() gives bytes. entries: keys of another GGUF file as
    bytes, and how many they are."""
    raw, count = entries
    own = [_packed_text(_METADATA), struct.pack("<I", _TEXT),
           _packed_text(json.dumps(metadata))] if metadata else []
    parts = [MAGIC, struct.pack("<IQQ", 3, len(tensors), count + bool(own)), raw, *own]
    at = 0
    for name, (dtype, shape, _) in tensors.items():
        if dtype not in _NUMBERS or not 1 <= len(shape) <= _MOST_DIMENSIONS:
            raise ValueError(f"'{name}' is {shape} in {dtype}: GGUF holds 1 to {_MOST_DIMENSIONS} "
                             f"dimensions of {', '.join(_NUMBERS)}")
        parts += (_packed_text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1],
                                                  _NUMBERS[dtype], at))
        at += -(-_bytes_of(dtype, shape) // 32) * 32
    header = b"".join(parts)
    with written_whole(path) as file:
        file.write(header + bytes(-len(header) % 32))
        for name, (dtype, shape, make) in tensors.items():
            array, size = np.asarray(make(), order="C"), _bytes_of(dtype, shape)
            if array.nbytes != size or array.dtype != _TYPES[_NUMBERS[dtype]][2]:
                raise ValueError(f"'{name}' was to be {shape} in {dtype}, it is {array.shape} of "
                                 f"{array.dtype}")
            array.tofile(file)
            file.write(bytes(-size % 32))
