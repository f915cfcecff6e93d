"""Layouts of other libraries against their definitions, byte by byte and by hand, and files in
them."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

os.environ["QTURN_NO_JIT"] = "1"  # kernels that are built in
import support

support.needs_numpy()

import numpy as np

import mxfp4_reference as reference
import quarterturn
from quarterturn import formats
from quarterturn.formats import Safetensors, write_safetensors


def up(value, unit):
    return -(-value // unit) * unit


def place_128x4(r, c, columns):
    """Of cuBLAS's documentation: tiles of 128 x 4 behind each other along K."""
    return ((r // 128) * (columns // 4) + c // 4) * 512 + (r % 32) * 16 + (r // 32 % 4) * 4 + c % 4


def place_aiter(r, c, columns):
    """Of aiter's shuffle_scale for gfx950."""
    return (((r // 32) * (columns // 8) + c // 8) * 256 + (c % 4) * 64 + (r % 16) * 4
            + (c % 8 // 4) * 2 + r % 32 // 16)


def place_shuffled(n, k, half):
    """Of aiter's shuffle_weight(16, 16), on bytes."""
    return (((n // 16) * (half // 32) + k // 32) * 512 + (k % 32 // 16) * 256 + (n % 16) * 16
            + k % 16)


def random_bytes(*shape, seed=0, most=256):
    return np.random.default_rng(seed).integers(0, most, shape, dtype=np.uint8)


class Packing(unittest.TestCase):
    def test_places_by_hand(self):
        scales = np.zeros((128, 4), np.uint8)
        scales[33, 2] = 1
        self.assertEqual(formats.to_128x4(scales).argmax(), 22)  # 1 * 16 + 1 * 4 + 2
        scales = np.zeros((256, 8), np.uint8)
        scales[17, 5] = 1
        self.assertEqual(formats.to_aiter(scales).argmax(), 71)  # 1 * 64 + 1 * 4 + 1 * 2 + 1
        codes = np.zeros((32, 64), np.uint8)
        codes[17, 35] = 1
        # The second 16 rows' second 32 bytes: 3 * 512, row 1 of 16 bytes, byte 3.
        self.assertEqual(formats.to_shuffled(codes).reshape(-1).argmax(), 1555)

    def test_scales_lie_as_their_definitions_say(self):
        for rows, blocks in ((128, 4), (130, 5), (1, 1), (300, 13), (32, 90)):
            scales = random_bytes(rows, blocks, seed=rows)
            for to, back, place, high, wide in (
                    (formats.to_128x4, formats.from_128x4, place_128x4, 128, 4),
                    (formats.to_aiter, formats.from_aiter, place_aiter, 256, 8)):
                columns = up(blocks, wide)
                wanted = np.zeros(up(rows, high) * columns, np.uint8)
                for r in range(rows):
                    for c in range(blocks):
                        wanted[place(r, c, columns)] = scales[r, c]
                got = to(scales)
                np.testing.assert_array_equal(got, wanted)
                np.testing.assert_array_equal(back(got, rows, blocks), scales)
                # What fills the tiles is not looked at.
                poisoned = np.where(to(np.ones_like(scales)) == 0, 255, got).astype(np.uint8)
                np.testing.assert_array_equal(back(poisoned, rows, blocks), scales)

    def test_codes_lie_as_their_definition_says(self):
        for n, half in ((16, 32), (48, 96)):
            codes = random_bytes(n, half)
            wanted = np.empty(n * half, np.uint8)
            for r in range(n):
                for k in range(half):
                    wanted[place_shuffled(r, k, half)] = codes[r, k]
            got = formats.to_shuffled(codes)
            np.testing.assert_array_equal(got.reshape(-1), wanted)
            np.testing.assert_array_equal(formats.from_shuffled(got), codes)

    def test_experts_are_laid_out_one_by_one(self):
        scales, codes = random_bytes(3, 40, 6), random_bytes(3, 32, 64)
        for to, back in ((formats.to_128x4, formats.from_128x4),
                         (formats.to_aiter, formats.from_aiter)):
            np.testing.assert_array_equal(to(scales), np.stack([to(s) for s in scales]))
            np.testing.assert_array_equal(back(to(scales), 40, 6), scales)
        np.testing.assert_array_equal(formats.to_shuffled(codes),
                                      np.stack([formats.to_shuffled(part) for part in codes]))
        np.testing.assert_array_equal(formats.from_shuffled(formats.to_shuffled(codes)), codes)

    def test_abs_max_is_what_qutlass_computes(self):
        x = np.random.default_rng(1).normal(size=(24, 128)).astype(np.float32)
        x[3, 32:64] = 0
        x[5, :32] = [2.0] + [0.3] * 31  # a power of two as the largest
        # QuTLASS: X' = 2^floor(log2 of the largest), codes of 3 x / X' to nearest.
        blocks = x.reshape(-1, 32)
        largest = np.abs(blocks).max(axis=1)
        exponent = np.floor(np.log2(np.where(largest > 0, largest, 1))).astype(int)
        units = np.ldexp(1.0, exponent)
        scaled = (3 * blocks / units[:, None]).astype(np.float32)
        codes = reference.encode(np.abs(scaled)) | (np.signbit(blocks).astype(int) << 3)
        mx = quarterturn.Context(threads=1).quantize(x, scale_rule="ts34")
        got_codes, got = formats.to_abs_max(mx.codes.reshape(24, 64), mx.scales.reshape(24, 4))
        used = largest > 0
        np.testing.assert_array_equal(got.reshape(-1)[used], (exponent + 127)[used])
        np.testing.assert_array_equal(got_codes.reshape(-1, 16)[used],
                                      reference.pack(codes)[used])
        # The product of two is times 1/9: a value is a third.
        values = reference.values(codes, (exponent + 127)[:, None]) / 3
        self.assertLess(np.linalg.norm(values - blocks) / np.linalg.norm(blocks), 0.13)
        self.assertEqual(formats.QUTLASS_ALPHA, 1 / 9)
        back = formats.from_abs_max(got_codes, got)
        np.testing.assert_array_equal(back[1], mx.scales.reshape(24, 4))

    def test_what_abs_max_cannot_hold_is_refused(self):
        codes = random_bytes(2, 64)
        codes[0, :16] = 0x80  # zeros, one of them negative
        scales = np.array([[1, 255, 2, 9], [252, 3, 4, 5]], np.uint8)
        there = formats.to_abs_max(codes, scales)
        np.testing.assert_array_equal(there[1], [[3, 255, 4, 11], [254, 5, 6, 7]])
        np.testing.assert_array_equal(formats.from_abs_max(*there)[1], scales)
        np.testing.assert_array_equal(formats.from_abs_max(
            codes, np.array([[1, 255, 2, 9], [252, 3, 4, 5]], np.uint8))[1],
            [[0, 255, 0, 7], [250, 1, 2, 3]])
        with self.assertRaisesRegex(ValueError, "1 blocks have scales above 252"):
            formats.to_abs_max(codes, np.array([[1, 255, 2, 9], [253, 3, 4, 5]], np.uint8))
        with self.assertRaisesRegex(ValueError, "1 blocks have abs_max scales below 2"):
            formats.from_abs_max(codes, np.array([[1, 1, 2, 9], [252, 3, 4, 5]], np.uint8))

    def test_shapes_that_do_not_fit_are_refused(self):
        with self.assertRaisesRegex(ValueError, "multiple of 16 and K of 64"):
            formats.to_shuffled(np.zeros((8, 32), np.uint8))
        with self.assertRaisesRegex(ValueError, "multiple of 16 and K of 64"):
            formats.from_shuffled(np.zeros((16, 16), np.uint8))
        with self.assertRaisesRegex(ValueError, r"\[40, 6\] take \[..., 1024\]"):
            formats.from_128x4(np.zeros(512, np.uint8), 40, 6)
        with self.assertRaisesRegex(TypeError, "uint8 is needed"):
            formats.to_128x4(np.zeros((8, 4), np.int32))


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, arrays, scheme=None):
        path = self.folder / "in.safetensors"
        write_safetensors(path, {name: ("U8", a.shape, lambda a=a: a)
                                 for name, a in arrays.items()},
                          {"quarterturn": json.dumps(scheme)} if scheme else None)
        return path

    def same(self, first, second):
        first, second = Safetensors(first), Safetensors(second)
        self.assertEqual(first.tensors, second.tensors)
        self.assertEqual(first.metadata, second.metadata)
        for name in first.tensors:
            np.testing.assert_array_equal(first.read(name), second.read(name))

    def test_every_form_is_reached_from_every_other_and_back(self):
        codes, scales = random_bytes(2, 48, 96), random_bytes(2, 48, 6, most=250) + 2
        scheme = {"format": "mxfp4", "rotation": 32, "scale_rule": "ts34"}
        start = self.write({"up.weight_packed": codes, "up.weight_scale": scales,
                            "other": random_bytes(5)}, scheme)
        files = {"compressed-tensors": start}
        for form in formats.FORMS:
            if form != "compressed-tensors":
                files[form] = self.folder / form
                self.assertEqual(formats.convert_file(start, files[form], form), 1)
        for one, path in files.items():
            self.assertIn(f"up{formats.FORMS[one].scales}", Safetensors(path).tensors)
            for other in formats.FORMS:
                if other != one:
                    out = self.folder / "out"
                    self.assertEqual(formats.convert_file(path, out, other), 1, (one, other))
                    self.same(out, files[other])
        tiled = Safetensors(files["cublas"])
        np.testing.assert_array_equal(tiled.read("up.weight_scale_128x4")[1],
                                      formats.to_128x4(scales[1]))
        np.testing.assert_array_equal(Safetensors(files["aiter"]).read("up.weight_shuffled")[0],
                                      formats.to_shuffled(codes[0]))

    def test_abs_max_is_for_values_of_ts34_only(self):
        arrays = {"up.weight_packed": random_bytes(16, 64), "up.weight_scale": random_bytes(
            16, 4, most=200) + 2}
        out = self.folder / "out"
        for scheme in (None, {"format": "mxfp4", "rotation": 0, "scale_rule": "rceil"}):
            with self.assertRaisesRegex(ValueError, "qutlass's scales mean values of ts34"):
                formats.convert_file(self.write(arrays, scheme), out, "qutlass")
        # A file that is in QuTLASS's form already says so by itself.
        tiles = formats.to_128x4(arrays["up.weight_scale"])
        path = self.write({"up.weight_packed": arrays["up.weight_packed"],
                           "up.weight_scale_qutlass": tiles})
        formats.convert_file(path, out, "cublas")
        self.assertEqual(formats.scheme_of(Safetensors(out))["scale_rule"], "ts34")
        np.testing.assert_array_equal(
            formats.from_128x4(Safetensors(out).read("up.weight_scale_128x4"), 16, 4),
            arrays["up.weight_scale"] - 2)

    def test_the_command_names_the_forms(self):
        path = self.write({"up.weight_packed": random_bytes(16, 64),
                           "up.weight_scale": random_bytes(16, 4)})
        out = self.folder / "out"
        run = subprocess.run(
            [sys.executable, "-m", "quarterturn", "convert", path, out, "--to", "aiter"],
            capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.environ["QTURN_PYTHON"]})
        self.assertEqual((run.returncode, run.stdout), (0, "1 tensors in aiter's form\n"))
        bad = self.write({"up.weight_packed": random_bytes(16, 64),
                          "up.weight_scale_128x4": random_bytes(64)})
        with self.assertRaisesRegex(ValueError, r"scale_128x4' is \(64,\) .*\(512,\)"):
            formats.convert_file(bad, self.folder / "none", "gpt-oss")
        self.assertFalse((self.folder / "none").exists())


if __name__ == "__main__":
    unittest.main()
