"""GGUF files of MXFP4 tensors: against files made here from the format's definition, through other
forms and back, and read as hostile."""

import base64
import pathlib
import random
import struct
import tempfile
import time
import unittest

import support

support.needs_numpy()

import numpy as np

from quarterturn import formats
from quarterturn.formats import FormatError, Gguf, Safetensors, write_gguf, write_safetensors

STRING, ARRAY, UINT32 = 8, 9, 4


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def entry(name, kind, raw):
    return text(name) + struct.pack("<I", kind) + raw


KEYS = [entry("general.architecture", STRING, text("gpt-oss")),
        entry("a.list", ARRAY, struct.pack("<IQ3I", UINT32, 3, 1, 2, 3)),
        entry("tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("bc"))]


def gguf(tensors, keys=KEYS, alignment=32, count=None, version=3):
    """A file as ggml's documentation describes it: [(name, dimensions, type, bytes)], dimensions
    from the innermost."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if count is None else count,
                                len(keys)) + b"".join(keys)
    at, data = 0, b""
    for name, dimensions, kind, raw in tensors:
        out += text(name) + struct.pack("<I", len(dimensions))
        out += struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", kind, at)
        padded = raw + bytes(-len(raw) % alignment)
        data += padded
        at += len(padded)
    return out + bytes(-len(out) % alignment) + data


def operand(rows=4, blocks=3, seed=0):
    generator = np.random.default_rng(seed)
    return (generator.integers(0, 256, (rows, 16 * blocks), dtype=np.uint8),
            generator.integers(0, 255, (rows, blocks), dtype=np.uint8))


def blocks_of(codes, scales):
    """ggml's block_mxfp4, byte by byte."""
    out = b""
    for row, row_scales in zip(codes, scales):
        for block, scale in enumerate(row_scales):
            elements = [int(byte) >> shift & 15 for byte in row[16 * block:16 * block + 16]
                        for shift in (0, 4)]
            out += bytes([int(scale)] + [elements[j] | elements[j + 16] << 4 for j in range(16)])
    return out


class GgufTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, raw, name="x.gguf"):
        path = self.folder / name
        path.write_bytes(raw)
        return path

    def example(self, **options):
        codes, scales = operand()
        norm = np.arange(5, dtype=np.float32)
        return self.file(gguf([("blk.0.up.weight", (96, 4), 39, blocks_of(codes, scales)),
                               ("norm.weight", (5,), 0, norm.tobytes())], **options))

    def test_a_file_is_read_as_it_is_defined(self):
        codes, scales = operand()
        for options in ({}, {"alignment": 64, "keys": [*KEYS, entry(
                "general.alignment", UINT32, struct.pack("<I", 64))]}, {"version": 2}):
            file = Gguf(self.example(**options))
            self.assertEqual(file.tensors, {"blk.0.up.weight": ("MXFP4", (4, 96)),
                                            "norm.weight": ("F32", (5,))})
            got = formats.from_gguf(file.read("blk.0.up.weight"))
            np.testing.assert_array_equal(got[0], codes)
            np.testing.assert_array_equal(got[1], scales)
            np.testing.assert_array_equal(file.read("norm.weight"), np.arange(5, dtype=np.float32))
            self.assertEqual(file.entries, (b"".join(KEYS), 3))

    def test_what_is_written_is_byte_for_byte_the_definition(self):
        codes, scales = operand()
        out = self.folder / "out.gguf"
        write_gguf(out, {
            "blk.0.up.weight": ("MXFP4", (4, 96), lambda: formats.to_gguf(codes, scales)),
            "norm.weight": ("F32", (5,), lambda: np.arange(5, dtype=np.float32))},
            entries=(b"".join(KEYS), 3))
        self.assertEqual(out.read_bytes(), self.example().read_bytes())

    def test_other_forms_are_reached_and_left(self):
        codes, scales = operand(rows=16, blocks=6)
        start = self.folder / "start"
        write_safetensors(start, {
            "up.weight_packed": ("U8", codes.shape, lambda: codes),
            "up.weight_scale": ("U8", scales.shape, lambda: scales),
            "norm.weight": ("BF16", (3,), lambda: np.ones(3, np.uint16))}, {"kept": "yes"})
        there, back = self.folder / "there", self.folder / "back"
        self.assertEqual(formats.convert_file(start, there, "gguf"), 1)
        self.assertEqual(Gguf(there).tensors, {"up.weight": ("MXFP4", (16, 192)),
                                               "norm.weight": ("BF16", (3,))})
        for form in formats.FORMS:
            if form != "qutlass":
                self.assertEqual(formats.convert_file(there, back, form), 1)
                self.assertEqual(Safetensors(back).metadata, {"kept": "yes"})
                again = self.folder / "again"
                self.assertEqual(formats.convert_file(back, again, "gguf"), 1)
                self.assertEqual(again.read_bytes(), there.read_bytes(), form)
        formats.convert_file(there, back, "compressed-tensors")
        np.testing.assert_array_equal(Safetensors(back).read("up.weight_packed"), codes)
        np.testing.assert_array_equal(Safetensors(back).read("up.weight_scale"), scales)

    def test_keys_of_a_model_come_through(self):
        path, between, again = self.example(), self.folder / "between", self.folder / "again"
        formats.convert_file(path, between, "gpt-oss")
        self.assertIn("blk.0.up_blocks", Safetensors(between).tensors)
        formats.convert_file(between, again, "gguf")
        self.assertEqual(again.read_bytes(), path.read_bytes())

    def test_many_keys_are_read_and_written_in_linear_time(self):
        keys = [entry(f"k{i}", STRING, text("x" * 500)) for i in range(20000)]
        path, out = self.file(gguf([], keys=keys)), self.folder / "out"
        begin = time.process_time()
        file = Gguf(path)
        write_gguf(out, file.tensors, entries=file.entries)
        self.assertLess(time.process_time() - begin, 3)
        self.assertEqual(out.read_bytes(), path.read_bytes())

    def test_an_operand_without_rows_comes_through(self):
        there, back = self.folder / "there", self.folder / "back"
        formats.convert_file(self.file(gguf([("a.weight", (64, 0), 39, b"")])), there, "gpt-oss")
        formats.convert_file(there, back, "gguf")
        self.assertEqual(Gguf(back).tensors, {"a.weight": ("MXFP4", (0, 64))})

    def test_carried_keys_say_nothing_of_the_new_file(self):
        codes, scales = operand()
        for key in (entry("general.alignment", UINT32, struct.pack("<I", 64)),
                    entry("quarterturn.metadata", STRING, text("{}"))):
            path = self.folder / "in"
            write_safetensors(path, {"a.weight_packed": ("U8", codes.shape, lambda: codes),
                                     "a.weight_scale": ("U8", scales.shape, lambda: scales)},
                              {"quarterturn.gguf": f"1:{base64.b64encode(key).decode()}"})
            with self.assertRaisesRegex(FormatError, "written anew"):
                formats.convert_file(path, self.folder / "out", "gguf")

    def test_what_gguf_cannot_hold_is_refused(self):
        codes, scales = operand()
        scales[0, 0] = 255
        for extra, part in (("U8", "GGUF holds"), (None, "scale 255")):
            path, out = self.folder / "in", self.folder / "none"
            tensors = {"up.weight_packed": ("U8", codes.shape, lambda: codes),
                       "up.weight_scale": ("U8", scales.shape, lambda: scales)}
            if extra:
                tensors["ids"] = (extra, (2,), lambda: np.zeros(2, np.uint8))
            write_safetensors(path, tensors)
            with self.assertRaisesRegex(ValueError, part):
                formats.convert_file(path, out, "gguf")
            self.assertFalse(out.exists())

    def test_hostile_files_are_refused_and_never_read_beyond(self):
        whole = self.example().read_bytes()
        for raw in (b"GGUF", whole[:20], whole[:-16], b"GGML" + whole[4:],
                    gguf([], count=1 << 40), gguf([], count=1), gguf([], version=4),
                    gguf([("a", (32,), 12, b"")]), gguf([("a", (31, 2), 39, bytes(34))]),
                    gguf([("a", (1 << 62, 1 << 62), 0, b"")]), gguf([("a", (), 0, b"")]),
                    gguf([("a", (2,), 0, bytes(8)), ("a", (2,), 0, bytes(8))]),
                    gguf([("a", (2,) * 5, 0, bytes(128))]),
                    gguf([], keys=[entry("k", 77, b"")]),
                    gguf([], keys=[entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]),
                    gguf([], keys=[entry("k", ARRAY, struct.pack("<IQ", UINT32, 1 << 62))]),
                    gguf([], keys=[entry("k", STRING, struct.pack("<Q", 1 << 60))]),
                    gguf([], keys=[entry("general.alignment", UINT32, struct.pack("<I", 24))]),
                    gguf([], keys=[entry("quarterturn.metadata", STRING, text('{"a": 1}'))])):
            with self.assertRaises(FormatError):
                Gguf(self.file(raw))
        generator = random.Random(1)
        for _ in range(400):
            changed = bytearray(whole)
            for _ in range(generator.randint(1, 4)):
                changed[generator.randrange(300)] = generator.randrange(256)
            try:
                file = Gguf(self.file(bytes(changed[:generator.choice((len(changed), 250))])))
                for name in file.tensors:
                    file.read(name).sum()
            except FormatError:
                pass


if __name__ == "__main__":
    unittest.main()
