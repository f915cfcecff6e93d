"""Safetensors files as streams: read as hostile, written whole or not at all."""

import contextlib
import json
import math
import os
import pathlib
import secrets

import numpy as np

_MOST_HEADER = 100 << 20
_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2,
          "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
_NUMPY = {"U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "F16": np.float16,
          "BF16": np.uint16, "U32": np.uint32, "I32": np.int32, "F32": np.float32,
          "U64": np.uint64, "I64": np.int64, "F64": np.float64, "F8_E8M0": np.uint8,
          "BOOL": np.bool_, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8}


class FormatError(ValueError):
    """A file that is not what it says it is."""


class Safetensors:
    """A safetensors file, read a tensor at a time (memory-mapped). `tensors`: {name: (dtype,
    shape)}; `metadata`: {str: str}. BF16 comes as uint16 bits, 8-bit floats as uint8."""

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
        if (type(dtype) is not str or dtype not in _SIZES
                or any(type(n) is not int or n < 0 for n in numbers)):
            raise FormatError(f"{self.path}: '{name}' has dtype {dtype!r}, shape {shape!r}, "
                              f"offsets {first!r}, {last!r}")
        if last > self._room or last - first != _SIZES[dtype] * math.prod(shape):
            raise FormatError(f"{self.path}: '{name}' of shape {shape} in {dtype} lies at {first} "
                              f"to {last} of {self._room} bytes")
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


def check_target(path):
    """Refuses a path that no file can be written at."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for {path.name}; make it")


@contextlib.contextmanager
def written_whole(path):
    """A file to write, which is at `path` when all is written and on the disk; else what was there
    is. It is written beside `path` under a name that no other file has."""
    path = pathlib.Path(path)
    check_target(path)
    part = path.with_name(f"{path.name[:40]}.{secrets.token_hex(8)}.part")
    with part.open("xb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def write_safetensors(path, tensors, metadata=None):
    """Writes {name: (dtype, shape, make)} where make() gives the array: a tensor at a time is in
    memory. The file appears whole or not at all."""
    if "__metadata__" in tensors:
        raise ValueError("a tensor named '__metadata__' cannot be in a safetensors file; rename it")
    header, at = {}, 0
    for name, (dtype, shape, _) in tensors.items():
        if dtype not in _SIZES:
            raise ValueError(f"'{name}' is to be in {dtype}: {', '.join(_SIZES)} are known")
        size = _SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with written_whole(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (dtype, shape, make) in tensors.items():
            array = np.asarray(make(), order="C")
            if array.shape != tuple(shape) or array.dtype != _NUMPY[dtype]:
                raise ValueError(f"'{name}' was to be {shape} in {dtype}, it is {array.shape} of "
                                 f"{array.dtype}")
            array.tofile(file)
