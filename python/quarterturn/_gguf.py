"""GGUF files as streams of tensors: read as hostile, written whole or not at all. Tensors alone:
what a program needs besides, such as a model's architecture, is kept where it is there and never
made."""

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
_METADATA = "quarterturn.metadata"
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


class Gguf:
    """A GGUF file, read a tensor at a time (memory-mapped). `tensors`: {name: (dtype, shape)}, of
    MXFP4 the shape in elements, which `read` gives as bytes [..., K / 32 * 17]; `metadata`: what
    the safetensors file had that this one was made of; `entries`: the file's own keys as bytes, and
    how many they are."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self._size = self.path.stat().st_size
        with self.path.open("rb") as self._file:
            if self._take(4) != MAGIC:
                raise FormatError(f"{path} is no GGUF file")
            version, count, entries = self._numbers("<IQQ")
            if version not in (2, 3):
                raise FormatError(f"{path}: GGUF version {version}; 2 and 3 are known")
            if max(count, entries) > _MOST_ENTRIES:
                raise FormatError(f"{path}: {count} tensors and {entries} keys")
            self.entries, self._alignment, self.metadata = (b"", 0), 32, {}
            for _ in range(entries):
                self._read_entry()
            self.tensors, self._places = {}, {}
            for _ in range(count):
                self._read_tensor()
            begin = self._file.tell()
        del self._file
        self._begin = -(-begin // self._alignment) * self._alignment
        self._check_places()

    def _take(self, size):
        if size > self._size - self._file.tell():
            raise FormatError(f"{self.path} ends within its header")
        return self._file.read(size)

    def _numbers(self, form):
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _text(self):
        length, = self._numbers("<Q")
        if length > _MOST_TEXT:
            raise FormatError(f"{self.path}: a text of {length} bytes")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise FormatError(f"{self.path}: a text that is not UTF-8") from None

    def _value(self, kind):
        if kind in _SCALARS:
            return self._numbers("<" + _SCALARS[kind])[0]
        if kind == _TEXT:
            return self._text()
        if kind != _ARRAY:
            raise FormatError(f"{self.path}: a value of type {kind}")
        inner, length = self._numbers("<IQ")
        if inner in _SCALARS:
            self._take(min(length, self._size + 1) * struct.calcsize("<" + _SCALARS[inner]))
            return None
        if inner != _TEXT or length > self._size:
            raise FormatError(f"{self.path}: an array of {length} values of type {inner}")
        for _ in range(length):
            self._text()
        return None

    def _read_entry(self):
        begin = self._file.tell()
        name = self._text()
        value = self._value(self._numbers("<I")[0])
        end = self._file.tell()
        if name == "general.alignment":
            if type(value) is not int or not 8 <= value <= 1 << 20 or value & (value - 1):
                raise FormatError(f"{self.path}: general.alignment = {value!r}")
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
            self._file.seek(begin)
            raw, count = self.entries
            self.entries = raw + self._file.read(end - begin), count + 1

    def _read_tensor(self):
        name = self._text()
        dimensions, = self._numbers("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS or name in self.tensors:
            raise FormatError(f"{self.path}: '{name}' has {dimensions} dimensions, or is there "
                              "twice")
        shape = self._numbers(f"<{dimensions}Q")[::-1]
        kind, offset = self._numbers("<IQ")
        if kind not in _TYPES:
            known = ", ".join(f"{number} ({told[0]})" for number, told in _TYPES.items())
            raise FormatError(f"{self.path}: '{name}' has ggml type {kind}; known are {known}")
        dtype = _TYPES[kind][0]
        if max(shape) > 1 << 48 or (dtype == "MXFP4" and shape[-1] % 32):
            raise FormatError(f"{self.path}: '{name}' of {dtype} has shape {shape}")
        self.tensors[name], self._places[name] = (dtype, shape), offset

    def _check_places(self):
        spans = []
        for name, (dtype, shape) in self.tensors.items():
            first, size = self._places[name], _bytes_of(dtype, shape)
            if first % self._alignment or first + size > self._size - self._begin:
                room = max(0, self._size - self._begin)
                raise FormatError(f"{self.path}: '{name}' of shape {shape} in {dtype} lies at "
                                  f"{first} of {room} bytes")
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
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(path, tensors, metadata=None, entries=(b"", 0)):
    """Writes {name: (dtype, shape, make)} as write_safetensors does, in types that ggml has; of
    MXFP4 the shape counts elements and make() gives bytes. entries: keys of another GGUF file as
    bytes, and how many they are."""
    raw, count = entries
    if metadata:
        raw += _packed_text(_METADATA) + struct.pack("<I", _TEXT) + _packed_text(
            json.dumps(metadata))
        count += 1
    header, at = MAGIC + struct.pack("<IQQ", 3, len(tensors), count) + raw, 0
    for name, (dtype, shape, _) in tensors.items():
        if dtype not in _NUMBERS or not 1 <= len(shape) <= _MOST_DIMENSIONS:
            raise ValueError(f"'{name}' is {shape} in {dtype}: GGUF holds 1 to {_MOST_DIMENSIONS} "
                             f"dimensions of {', '.join(_NUMBERS)}")
        header += _packed_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1],
                                                   _NUMBERS[dtype], at)
        at += -(-_bytes_of(dtype, shape) // 32) * 32
    with written_whole(path) as file:
        file.write(header + bytes(-len(header) % 32))
        for name, (dtype, shape, make) in tensors.items():
            array, size = np.ascontiguousarray(make()), _bytes_of(dtype, shape)
            if array.nbytes != size or array.dtype != _TYPES[_NUMBERS[dtype]][2]:
                raise ValueError(f"'{name}' was to be {shape} in {dtype}, it is {array.shape} of "
                                 f"{array.dtype}")
            array.tofile(file)
            file.write(bytes(-size % 32))
