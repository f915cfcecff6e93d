"""Checkpoint forms: bits there and back, against independent decoders; safetensors read as
hostile."""

import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

os.environ["QTURN_NO_JIT"] = "1"  # kernels that are built in
import support

support.needs_numpy()

import numpy as np

import mxfp4_reference as reference
import quarterturn
from quarterturn import _files, formats, recipes
from quarterturn.formats import FormatError, Safetensors, write_safetensors

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


def operand(rows=6, blocks=3, seed=0):
    generator = np.random.default_rng(seed)
    return (generator.integers(0, 256, (rows, 16 * blocks), dtype=np.uint8),
            generator.integers(0, 255, (rows, blocks), dtype=np.uint8))


def plain_values(codes, scales):
    """Decoded by the reference; by ml_dtypes too, where it is."""
    elements = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)
    values = reference.values(elements.astype(np.int64), scales)
    if ml_dtypes is not None:
        number = elements.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        unit = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
        np.testing.assert_array_equal(number * np.repeat(unit, 32, axis=1), values)
    return values


class Packing(unittest.TestCase):
    def test_every_form_gives_the_bits_back(self):
        codes, scales = operand()
        for to, back in ((formats.to_gpt_oss, formats.from_gpt_oss),
                         (lambda *a: (formats.to_gguf(*a),), formats.from_gguf)):
            again = back(*to(codes, scales))
            np.testing.assert_array_equal(again[0], codes)
            np.testing.assert_array_equal(again[1], scales)

    def test_gguf_lies_as_its_definition_says(self):
        # ggml's dequantize_row_mxfp4, element by element: byte j's low nibble is element j, its
        # high one element j + 16.
        codes, scales = operand(rows=2)
        data = formats.to_gguf(codes, scales).reshape(2, -1, 17)
        wanted = plain_values(codes, scales).reshape(2, -1, 32)
        for row in range(2):
            for block in range(data.shape[1]):
                scale = 2.0 ** (int(data[row, block, 0]) - 127)
                for j in range(16):
                    byte = int(data[row, block, 1 + j])
                    for element, code in ((j, byte & 15), (j + 16, byte >> 4)):
                        value = float(reference.VALUES[code & 7]) * (-1 if code & 8 else 1) * scale
                        self.assertEqual(value, wanted[row, block, element])

    def test_gpt_oss_lies_as_its_loader_reads(self):
        codes, scales = operand()
        blocks, same = formats.to_gpt_oss(codes, scales)
        table = np.concatenate([reference.VALUES, -reference.VALUES]).astype(np.float64)
        out = np.empty((*blocks.shape[:-1], 32))
        out[..., 0::2], out[..., 1::2] = table[blocks & 15], table[blocks >> 4]
        out = np.ldexp(out, same.astype(np.int64)[..., None] - 127)
        np.testing.assert_array_equal(out.reshape(codes.shape[0], -1), plain_values(codes, scales))

    def test_low_nibble_is_the_even_element(self):
        mx = quarterturn.Context(threads=1).quantize(
            np.array([[1.0, 2.0] + [0.0] * 30], dtype=np.float32), scale_rule="floor")
        # Largest value 2: scale 2^-1, so 1 is code 4 (2) and 2 is code 6 (4).
        self.assertEqual((int(mx.codes[0]), int(mx.scales[0])), (0x64, 126))

    def test_what_a_form_cannot_hold_is_refused(self):
        codes, scales = operand()
        scales[1, 1] = 255
        with self.assertRaisesRegex(ValueError, "1 blocks have scale 255"):
            formats.to_gguf(codes, scales)
        with self.assertRaisesRegex(ValueError, "belong together"):
            formats.to_gpt_oss(codes, scales[:, :2])
        with self.assertRaisesRegex(ValueError, "blocks of 17"):
            formats.from_gguf(np.zeros((2, 16), np.uint8))


    def test_operands_without_rows_have_every_form(self):
        codes, scales = np.empty((0, 64), np.uint8), np.empty((0, 4), np.uint8)
        for to, back in ((formats.to_gpt_oss, formats.from_gpt_oss),
                         (lambda *a: (formats.to_gguf(*a),), formats.from_gguf)):
            again = back(*to(codes, scales))
            self.assertEqual([part.shape for part in again], [(0, 64), (0, 4)])
        for to in (formats.to_128x4, formats.to_aiter):
            self.assertEqual(to(scales[None][:0]).shape, (0, 0))


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, arrays, metadata=None):
        types = {np.dtype(np.uint8): "U8", np.dtype(np.float32): "F32", np.dtype(np.uint16): "BF16"}
        path = self.folder / name
        write_safetensors(path, {key: (types[a.dtype], a.shape, lambda a=a: a)
                                 for key, a in arrays.items()}, metadata)
        return path

    def test_a_file_is_read_as_it_was_written(self):
        arrays = {"a": np.arange(12, dtype=np.float32).reshape(3, 4),
                  "empty": np.empty((0, 5), np.uint8),
                  "b": np.arange(7, dtype=np.uint8)}
        file = Safetensors(self.write("x.safetensors", arrays, {"k": "v"}))
        self.assertEqual(file.metadata, {"k": "v"})
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.read(name), array)

    def test_gpt_oss_and_compressed_tensors_are_one_another(self):
        codes, scales = operand()
        path = self.write("oss.safetensors", {
            "up_blocks": codes.reshape(2, 3, 3, 16), "up_scales": scales.reshape(2, 3, 3),
            "norm.weight": np.ones(4, np.float32)}, {"m": "1"})
        there, back = self.folder / "ct.safetensors", self.folder / "back.safetensors"
        self.assertEqual(formats.convert_file(path, there, "compressed-tensors"), 1)
        file = Safetensors(there)
        self.assertEqual(file.tensors["up.weight_packed"], ("U8", (2, 3, 48)))
        self.assertEqual(formats.convert_file(there, back, "gpt-oss"), 1)
        first, last = Safetensors(path), Safetensors(back)
        self.assertEqual(first.tensors, last.tensors)
        for name in first.tensors:
            np.testing.assert_array_equal(first.read(name), last.read(name))
        with self.assertRaisesRegex(ValueError, "no pair"):
            formats.convert_file(path, there, "gpt-oss")

    def test_a_model_is_quantised_with_its_scheme_and_errors(self):
        generator = np.random.default_rng(3)
        up = generator.normal(size=(64, 128)).astype(np.float32)
        up[:, 5] *= 30  # one outlier channel: what rotations are for
        down = generator.normal(size=(32, 64)).astype(np.float32)
        down = (down.view(np.uint32) >> 16).astype(np.uint16)
        path = self.write("model.safetensors", {"up.weight": up, "down.weight": down,
                                                "embed.weight": up, "up.bias": up[0]})
        out = self.folder / "q.safetensors"
        context = quarterturn.Context(threads=1)
        report = formats.quantize_file(path, out, rotation=32, context=context)
        self.assertEqual([row["name"] for row in report], ["up.weight", "down.weight"])
        self.assertLess(report[0]["error"], 0.16)
        file = Safetensors(out)
        np.testing.assert_array_equal(file.read("embed.weight"), up)
        mx = context.quantize(up, rotation=32)
        np.testing.assert_array_equal(file.read("up.weight_packed").reshape(-1), mx.codes)
        np.testing.assert_array_equal(file.read("up.weight_scale").reshape(-1), mx.scales)
        codes, scales = file.read("up.weight_packed"), file.read("up.weight_scale")
        error = np.linalg.norm(plain_values(codes, scales) - reference.rotate(up, 32))
        error /= np.linalg.norm(up)
        self.assertAlmostEqual(report[0]["error"], error, places=5)
        self.assertEqual(formats.scheme_of(file)["rotation"], 32)
        with self.assertRaisesRegex(ValueError, "rotation = 32, 0 is wanted"):
            formats.scheme_of(file, rotation=0)
        with self.assertRaisesRegex(ValueError, "no multiple of 128"):
            formats.quantize_file(path, self.folder / "no.safetensors", rotation=128,
                                  context=context)
        self.assertFalse((self.folder / "no.safetensors").exists())

    def command(self, *words):
        out = subprocess.run([sys.executable, "-m", "quarterturn", *map(str, words)],
                             capture_output=True, text=True, check=False,
                             env={**os.environ, "PYTHONPATH": os.environ["QTURN_PYTHON"]})
        return out.returncode, out.stdout, out.stderr

    def test_the_commands_quantise_and_convert_files(self):
        up = np.random.default_rng(3).normal(size=(64, 128)).astype(np.float32)
        path = self.write("model.safetensors", {"up.weight": up, "norm.weight": up})
        out = self.folder / "q.safetensors"
        code, told, error = self.command("quantize", path, out, "--recipe", "amd_det_h16", "--json")
        self.assertEqual((code, json.loads(told)["name"]), (0, "up.weight"), error)
        self.assertIn("1/1 matrices", error)
        self.assertEqual(formats.scheme_of(Safetensors(out)),
                         {"format": "mxfp4", "rotation": 16,
                          "scale_rule": recipes.PRESETS["amd_det_h16"].fprop.b.scale_rule})
        gpt, back = self.folder / "gpt.safetensors", self.folder / "back.safetensors"
        self.assertEqual(self.command("convert", out, gpt, "--to", "gpt-oss")[0], 0)
        self.assertIn("up_blocks", Safetensors(gpt).tensors)
        self.assertEqual(self.command("convert", gpt, back, "--to", "compressed-tensors")[0], 0)
        for name in Safetensors(out).tensors:
            np.testing.assert_array_equal(Safetensors(back).read(name), Safetensors(out).read(name))
        self.assertEqual(Safetensors(back).metadata, Safetensors(out).metadata)

    def test_the_commands_say_what_is_wrong_and_write_nothing(self):
        up = np.ones((64, 128), np.float32)
        path = self.write("model.safetensors", {"up.weight": up})
        there = self.write("there.safetensors", {"a": up})
        kept, out = there.read_bytes(), self.folder / "out.safetensors"
        for words, code, part in (
                (("quantize", self.folder / "none", out), 1, "there is no file"),
                (("quantize", path, there), 1, "--force"),
                (("quantize", path, path, "--force"), 1, "name another file"),
                (("quantize", path, out, "--recipe", "bf16"), 1, "nothing to quantise"),
                (("quantize", path, out, "--recipe", "te_mxfp4", "--rotation", "16"), 1,
                 "--recipe"),
                (("quantize", path, out, "--rotation", "48"), 2, "invalid choice"),
                (("quantize", path, out, "--only", "down*"), 1, "fits down*"),
                (("convert", path, out, "--to", "gpt-oss"), 1, "has no pair"),
                (("convert", path, out), 2, "--to")):
            got, _, error = self.command(*words)
            self.assertEqual(got, code, error)
            self.assertIn(part, error)
            self.assertNotIn("Traceback", error)
        self.assertFalse(out.exists())
        self.assertEqual(there.read_bytes(), kept)

    def test_a_writing_touches_no_file_but_its_own(self):
        codes, scales = operand()
        source = self.write("m.safetensors.part", {"a.weight_packed": codes,
                                                   "a.weight_scale": scales})
        kept, out = source.read_bytes(), self.folder / "m.safetensors"
        self.assertEqual(self.command("convert", source, out, "--to", "gpt-oss")[0], 0)
        self.assertEqual((source.read_bytes(), len(list(self.folder.iterdir()))), (kept, 2))
        self.assertEqual(out.stat().st_mode, source.stat().st_mode)

        def meanwhile():  # another process writes the same file
            write_safetensors(out, {"b": ("U8", (6, 3), lambda: scales)})
            return codes

        write_safetensors(out, {"a": ("U8", codes.shape, meanwhile)})
        np.testing.assert_array_equal(Safetensors(out).read("a"), codes)

        def fail():
            raise OSError("no space")

        with self.assertRaises(OSError):
            write_safetensors(out, {"b": ("U8", (1,), fail)})
        np.testing.assert_array_equal(Safetensors(out).read("a"), codes)
        self.assertEqual(len(list(self.folder.iterdir())), 2)

    def test_a_place_for_no_file_is_refused_before_the_work(self):
        source = self.write("m", {"a.weight": np.ones((32, 64), np.float32)})
        (self.folder / "folder").mkdir()
        for out, part in (("folder", "is a folder"), ("none/x", "there is no folder")):
            def never():
                self.fail("the work began")
            with self.assertRaisesRegex(OSError, part):
                write_safetensors(self.folder / out, {"a": ("U8", (1,), never)})
            code, told, error = self.command("quantize", source, self.folder / out, "--force")
            self.assertEqual((code, told, error.count("\n")), (1, "", 1))
            self.assertIn(part, error)

    def test_a_scalar_comes_through(self):
        codes, scales = operand(rows=32)
        source = self.write("m", {
            "step": np.array(7, np.float32), "a_blocks": codes.reshape(32, 3, 16),
            "a_scales": scales, "b.weight": np.ones((32, 64), np.float32)})
        for number, work in enumerate((
                lambda out: formats.convert_file(source, out, "compressed-tensors"),
                lambda out: formats.quantize_file(source, out))):
            out = self.folder / str(number)
            work(out)
            file = Safetensors(out)
            self.assertEqual((file.tensors["step"], float(file.read("step"))), (("F32", ()), 7.0))
        with self.assertRaisesRegex(ValueError, r"'step' is \(\) in F32: GGUF holds 1 to 4"):
            formats.convert_file(source, self.folder / "none", "gguf")

    def test_the_error_is_that_of_the_values_whatever_the_scale_rule(self):
        up = np.random.default_rng(3).normal(size=(64, 128)).astype(np.float32)
        path = self.write("m", {"up.weight": up})
        for rule in recipes.SCALE_RULES:
            row, = formats.quantize_file(path, self.folder / rule, 32, rule)
            self.assertLess(max(row["error"], row["error_unrotated"]), 0.18, rule)

    def test_matrices_without_elements_are_copied(self):
        arrays = {"a.weight": np.empty((64, 0), np.float32),
                  "b.weight": np.empty((0, 64), np.float32),
                  "c.weight": np.ones((32, 64), np.float32)}
        out = self.folder / "q"
        row, = formats.quantize_file(self.write("m", arrays), out)
        self.assertEqual(row["name"], "c.weight")
        self.assertEqual(Safetensors(out).tensors["a.weight"], ("F32", (64, 0)))

    def test_no_tensor_is_lost_to_another_of_its_name(self):
        codes, scales = operand(rows=32, blocks=4)
        packed = {"a.weight_packed": codes, "a.weight_scale": scales}
        blocks = {"a_blocks": codes.reshape(32, 4, 16), "a_scales": scales}
        plain = {"a.weight": np.ones((32, 128), np.float32)}
        tiles = {"a.weight_scale_128x4": np.zeros(512, np.uint8)}
        out = self.folder / "none"
        for number, (arrays, to) in enumerate((
                ({**packed, **blocks}, "gguf"), ({**blocks, **packed}, "compressed-tensors"),
                ({**packed, **plain}, "gguf"), ({**plain, **packed}, "gguf"),
                ({**packed, **tiles}, "cublas"))):
            with self.assertRaisesRegex(ValueError, "two tensors would be named 'a.weight"):
                formats.convert_file(self.write(str(number), arrays), out, to)
        for name in packed:
            with self.assertRaisesRegex(ValueError, "two tensors would be named 'a.weight_"):
                formats.quantize_file(self.write("m", {**plain, name: packed[name]}), out)
        with self.assertRaisesRegex(ValueError, "'a' is to be in float64: BOOL, U8"):
            write_safetensors(out, {"a": ("float64", codes.shape, lambda: codes)})
        with self.assertRaisesRegex(ValueError, "named '__metadata__'"):
            write_safetensors(out, {"__metadata__": ("U8", codes.shape, lambda: codes)})
        self.assertFalse(out.exists())

    def test_a_file_tells_one_scheme(self):
        path, out = self.folder / "once", self.folder / "twice"
        source = self.write("m", {"a.weight": np.ones((32, 64), np.float32),
                                  "b.weight": np.ones((32, 64), np.float32)})
        formats.quantize_file(source, path, 32, choose=lambda name: name == "a.weight")
        with self.assertRaisesRegex(ValueError, "has rotation = 32, 0 is wanted"):
            formats.quantize_file(path, out)
        self.assertEqual(formats.quantize_file(path, out, 32)[0]["name"], "b.weight")

    def test_hostile_operands_and_metadata_are_one_line(self):
        codes, scales = operand(rows=32)
        good = {"a.weight_packed": codes, "a.weight_scale": scales}
        deep = "[" * 100000
        cases = [({**good, "a.weight_scale": changed}, {}, "gguf", "'a.weight_scale' is")
                 for changed in (scales.astype(np.float32), scales[:, :2], scales[None])]
        cases += [(good, {"quarterturn": text}, "qutlass", "metadata quarterturn = ")
                  for text in ("[]", "5", '"x"', "{", deep)]
        cases += [(good, {"quarterturn.gguf": text}, "gguf", "metadata quarterturn.gguf")
                  for text in ("-1:", "5:", f"{1 << 70}:", "x", "1:?", "0:AAAA")]
        cases += [({**good, "a\nb": codes}, {}, "gguf", "'a b' is"),
                  ({"x_blocks": codes[0, :5], "x_scales": scales}, {}, "gguf", "'x_blocks' is"),
                  ({"x_blocks": codes.reshape(32, 6, 8), "x_scales": scales}, {}, "gguf",
                   "'x_blocks' is")]
        for arrays, metadata, to, part in cases:
            path, out = self.write("m", arrays, metadata), self.folder / "out"
            with self.subTest(part=part, metadata=str(metadata)[:60]):
                with mock.patch("sys.stderr", new=io.StringIO()) as told:
                    self.assertEqual(_files.main(["convert", str(path), str(out), "--to", to]), 1)
                self.assertEqual(told.getvalue().count("\n"), 1)
                self.assertIn(part, told.getvalue())
                self.assertLess(len(told.getvalue()), 400)
                self.assertFalse(out.exists())

    def test_the_commands_end_in_one_line_whatever_happens(self):
        path = self.write("m", {"a.weight": np.ones((32, 64), np.float32)})
        out = self.folder / "out"
        for error, code in ((KeyboardInterrupt(), 130), (TypeError("x"), 1),
                            (quarterturn.Error(1, "busy", "x"), 1)):
            with mock.patch("sys.stderr", new=io.StringIO()) as told, \
                    mock.patch.object(quarterturn.Context, "quantize", side_effect=error):
                self.assertEqual(_files.main(["quantize", str(path), str(out)]), code)
            self.assertRegex(told.getvalue(), "^qturn: .*\n$")
            self.assertEqual(list(self.folder.iterdir()), [path])

    def test_the_report_is_json_where_an_error_is_no_number(self):
        for number, value in enumerate((np.nan, np.inf, 3e38)):
            path = self.write("m", {"a.weight": np.full((32, 64), value, np.float32)})
            code, told, error = self.command("quantize", path, self.folder / str(number), "--json")
            self.assertEqual((code, json.loads(told, parse_constant=self.fail)),
                             (0, {"name": "a.weight", "error": None, "error_unrotated": None}))
            self.assertNotIn("Warning", error)

    def test_a_failed_writing_leaves_nothing(self):
        def fail():
            raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            write_safetensors(self.folder / "x", {"a": ("U8", (1,), fail)})
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_hostile_files_are_refused_and_never_read_beyond(self):
        good = self.write("good", {"a": np.arange(64, dtype=np.uint8), "b": np.ones(8, np.float32)})
        whole = good.read_bytes()
        length = int.from_bytes(whole[:8], "little")
        bad = self.folder / "bad"

        def refused(header=None, raw=None):
            text = json.dumps(header).encode() if raw is None else raw
            bad.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 64)
            with self.assertRaises(FormatError):
                Safetensors(bad)

        entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
        refused(raw=b"{")
        refused([1])
        refused(raw=b"[" * 100000)
        refused({"a": 3})
        refused({"__metadata__": {"a": 1}})
        refused({"a": {**entry, "dtype": "U128"}})
        refused({"a": {**entry, "dtype": ["U8"]}})
        refused({"a": {**entry, "shape": [-4]}})
        refused({"a": {**entry, "shape": [True]}})
        refused({"a": {**entry, "shape": [2**62, 4]}})
        refused({"a": {**entry, "data_offsets": [0, 65]}})
        refused({"a": {**entry, "data_offsets": [62, 66]}})
        refused({"a": {**entry, "data_offsets": [0]}})
        refused({"a": entry, "b": {**entry, "data_offsets": [2, 6]}})
        bad.write_bytes(b"\xff" * 8 + b"{}")
        with self.assertRaises(FormatError):
            Safetensors(bad)
        # Every byte of a good header changed at random: read whole, or refused.
        generator = random.Random(1)
        for _ in range(400):
            changed = bytearray(whole)
            for _ in range(generator.randint(1, 4)):
                changed[generator.randrange(8 + length)] = generator.randrange(256)
            bad.write_bytes(bytes(changed[:generator.choice((len(changed), len(changed) - 9))]))
            try:
                file = Safetensors(bad)
                for name in file.tensors:
                    file.read(name).sum()
            except (FormatError, UnicodeDecodeError):
                pass


if __name__ == "__main__":
    unittest.main()
