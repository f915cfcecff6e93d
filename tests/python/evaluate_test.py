"""Evaluation of checkpoints: the same bits in every run and however the data is split."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support

support.needs_torch()

from quarterturn import evaluate, formats
from quarterturn.study import __main__ as study


class EvaluateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.data = cls.folder / "text"
        cls.data.write_bytes(support.sums_as_text())
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            study.main(["--out", str(cls.folder), "--model", "tiny", "--data", str(cls.data),
                        "--arms", "bf16", "--seeds", "0", "--steps", "20", "--device", "cpu",
                        "--jit", "off", "--keep-models"])
        cls.checkpoint = cls.folder / "models" / "bf16-0.safetensors"

    def run_command(self, *words):
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = evaluate.main([str(self.checkpoint), "--data", str(self.data), "--device", "cpu",
                                  "--jit", "off", "--windows", "10", *words])
        return code, out.getvalue(), error.getvalue()

    def evaluated(self, *words):
        code, out, error = self.run_command("--json", *words)
        self.assertEqual(code, 0, error)
        return json.loads(out)

    def test_the_same_bits_again_also_where_noise_is_drawn(self):
        for recipe in ("te_mxfp4", "quartet"):
            first, again = (self.evaluated("--recipe", recipe)["outcomes"][0] for _ in range(2))
            self.assertEqual(first["digest"], again["digest"])
            self.assertAlmostEqual(first["loss"], 3.4, delta=0.8)

    def test_batch_invariant_bits_do_not_depend_on_the_split(self):
        digests = {self.evaluated("--recipe", "te_mxfp4", "--batch-invariant", "--batch", batch)
                   ["outcomes"][0]["digest"] for batch in ("1", "3", "10")}
        self.assertEqual(len(digests), 1)

    @unittest.skipUnless(os.environ.get("QTURN_PROGRAM"), "needs the program qturn")
    def test_a_lock_file_pins_what_runs(self):
        free = self.evaluated("--recipe", "te_mxfp4")["outcomes"][0]
        lock = str(self.folder / "plans.lock")
        problems = [word for row in free["kernels"] for word in ("--problem", row["problem"])]
        subprocess.run([os.environ["QTURN_PROGRAM"], "lock", "write", "-o", lock, "--device", "cpu",
                        *problems], check=True, stdout=subprocess.DEVNULL)
        words = [sys.executable, "-m", "quarterturn.evaluate", str(self.checkpoint), "--data",
                 str(self.data), "--device", "cpu", "--windows", "10", "--lock", lock, "--json"]
        environment = {**os.environ, "PYTHONPATH": os.environ["QTURN_PYTHON"]}
        pinned = subprocess.run([*words, "--recipe", "te_mxfp4"], check=False, env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(pinned.returncode, 0, pinned.stderr)
        pinned = json.loads(pinned.stdout)["outcomes"][0]
        self.assertEqual(pinned["digest"], free["digest"])
        self.assertEqual({row["problem"] for row in pinned["kernels"]},
                         {row["problem"] for row in free["kernels"]})
        # Without the plans that measure layers' errors, those are left out.
        few = [word for row in free["kernels"] if "op=dequantize" not in row["problem"]
               for word in ("--problem", row["problem"])]
        subprocess.run([os.environ["QTURN_PROGRAM"], "lock", "write", "-o", lock, "--device", "cpu",
                        *few], check=True, stdout=subprocess.DEVNULL)
        pinned = subprocess.run([*words, "--recipe", "te_mxfp4"], check=True, env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn("left out", pinned.stderr)
        pinned = json.loads(pinned.stdout)["outcomes"][0]
        self.assertEqual((pinned["digest"], pinned["layers"]), (free["digest"], {}))
        # What the file does not name is refused.
        other = subprocess.run([*words, "--recipe", "quartet"], check=False, env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(other.returncode, 1)
        self.assertIn("lock", other.stderr)

    def test_two_recipes_are_compared_window_by_window(self):
        told = self.evaluated("--compare", "bf16", "te_mxfp4")
        base, mx = told["outcomes"]
        self.assertAlmostEqual(told["difference"], mx["loss"] - base["loss"], places=9)
        self.assertGreater(told["standard_error"], 0)
        self.assertEqual(base["layers"], {})
        self.assertEqual(base["kernels"], [])
        layer = mx["layers"]["blocks.1.mlp.down"]
        for value in layer.values():
            self.assertGreater(value, 14)  # four bits are worth 17 to 20 dB
            self.assertLess(value, 24)
        self.assertTrue(any("op=quantize" in row["problem"] for row in mx["kernels"]))
        self.assertTrue(all(row["plan"] for row in mx["kernels"]))
        self.assertIn("lm_head", mx["left"])

    def test_what_is_wrong_is_said_in_a_line(self):
        short = self.folder / "short"
        short.write_bytes(b"x" * 20)
        part = self.folder / "part.safetensors"
        file = formats.Safetensors(self.checkpoint)
        name = "embed.weight"
        formats.write_safetensors(part, {name: (*file.tensors[name], lambda: file.read(name))},
                                  file.metadata)
        nameless = self.folder / "nameless.safetensors"
        formats.write_safetensors(nameless, {name: (*file.tensors[name], lambda: file.read(name))})
        for words, message in ((("--recipe", "none_such"), "neither a file nor a preset"),
                               (("--recipe", "bf16", "--data", str(short)), "20 tokens of data")):
            code, _, error = self.run_command(*words)
            self.assertEqual(code, 1)
            self.assertIn(message, error)
        for path, message in ((part, "lacks"), (nameless, "--model module:function")):
            with self.assertRaisesRegex(ValueError, message):
                evaluate.study_model(path, None, None)
        from unittest import mock
        with mock.patch.dict(sys.modules, {"transformers": None}):
            self.checkpoint, file = self.folder, self.checkpoint
            code, _, error = self.run_command("--recipe", "bf16")
            self.checkpoint = file
        self.assertEqual(code, 1)
        self.assertIn("needs the Python package transformers", error)


if __name__ == "__main__":
    unittest.main()
