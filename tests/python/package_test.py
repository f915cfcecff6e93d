"""The Python package against NumPy, on the CPU back end."""

import ctypes
import threading
import unittest

import support

support.needs_numpy()

import numpy as np

import quarterturn
from quarterturn import _abi, _library


def hadamard(x, g):
    h = np.array([[1.0]])
    while h.shape[0] < g:
        h = np.block([[h, h], [h, -h]])
    return (x.reshape(-1, g) @ h / np.sqrt(g)).reshape(x.shape)


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Kernels that are built in: no compiler is started but where a test asks for one.
        cls.context = quarterturn.Context(threads=2, jit="off")
        random = np.random.default_rng(7)
        cls.x = random.normal(size=(37, 128)).astype(np.float32)
        cls.w = random.normal(size=(65, 128)).astype(np.float32)

    @classmethod
    def tearDownClass(cls):
        cls.context.close()

    def test_every_struct_has_the_size_that_the_library_has(self):
        for name in ("problem", "operand", "args", "context_options"):
            struct = _abi.ABI.structs[name]()
            getattr(_library.LIB, f"qturn_{name}_init")(ctypes.byref(struct))
            self.assertEqual(struct.struct_size, ctypes.sizeof(struct), name)

    def test_quantize_keeps_values_within_a_step_of_their_block(self):
        for rotation in (0, 32, 64):
            mx = self.context.quantize(self.x, rotation=rotation)
            values = self.context.dequantize(mx)
            exact = hadamard(self.x.astype(np.float64), rotation) if rotation else self.x
            blocks = np.abs(exact.reshape(37, -1, 32)).max(axis=2, keepdims=True)
            # The largest step of E2M1 is 2 of 6, so half a step is a sixth of the largest value;
            # the scale may be twice what the block needs.
            error = np.abs(values - exact).reshape(37, -1, 32) / blocks
            self.assertLessEqual(error.max(), 1 / 3 + 1e-6)
            self.assertLess(np.linalg.norm(values - exact) / np.linalg.norm(exact), 0.15)

    def test_gemm_multiplies_what_dequantize_shows(self):
        a, b = (self.context.quantize(v, rotation=32) for v in (self.x, self.w))
        d = self.context.gemm(a, b)
        expected = (self.context.dequantize(a).astype(np.float64)
                    @ self.context.dequantize(b).astype(np.float64).T)
        self.assertEqual(d.shape, (37, 65))
        np.testing.assert_allclose(d, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(self.context.hadamard_gemm(self.x, self.w, rotation=32), d)
        half = self.context.gemm(a, b, type="f16", alpha=0.5)
        np.testing.assert_allclose(half, 0.5 * expected, rtol=2e-3, atol=1e-2)

    def test_compiled_kernels_give_the_same_numbers(self):
        with quarterturn.Context(threads=2) as compiled:
            self.assertNotEqual(compiled.prepare(compiled.problem(
                op="quantize", m=37, k=128, a_type="f32", d_type="mxfp4")).match(), "reference")
            mx, other = (context.quantize(self.x, rounding="sr16", seed=2)
                         for context in (compiled, self.context))
            np.testing.assert_array_equal(mx.codes, other.codes)
            b = self.context.quantize(self.w)
            np.testing.assert_allclose(compiled.gemm(other, b), self.context.gemm(other, b),
                                       rtol=1e-6, atol=1e-5)

    def test_strided_views_and_batches_are_read_where_they_lie(self):
        wide = np.full((37, 200), np.float32(np.nan))
        wide[:, 40:168] = self.x
        a, b = self.context.quantize(wide[:, 40:168]), self.context.quantize(self.x)
        np.testing.assert_array_equal(a.codes, b.codes)
        np.testing.assert_array_equal(a.scales, b.scales)
        both = np.stack([self.x, -self.x])
        d = self.context.hadamard_gemm(both, np.stack([self.w, self.w]))
        np.testing.assert_array_equal(d[0], -d[1])
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.context.quantize(self.x.T)

    def test_rows_that_share_memory_are_those_of_their_copy(self):
        whole = np.resize(self.x, 4096)
        strided = np.lib.stride_tricks.as_strided
        inside = np.zeros(4, [("a", "f2"), ("x", "f4", (64,))])["x"]
        inside[:] = self.x[:4, :64]
        for x in (np.broadcast_to(self.x[0], (37, 128)),
                  np.broadcast_to(self.x, (3, 37, 128)),
                  np.broadcast_to(np.stack([self.x[:1]] * 2), (2, 37, 128)),
                  strided(whole, (16, 64), (4, 4)),  # every window of a row
                  strided(whole, (4, 8, 64), (256, 256, 4)),
                  np.stack([self.x] * 3, axis=1).transpose(1, 0, 2),
                  inside[1:]):
            made, wanted = (self.context.quantize(v, rotation=32) for v in (x, x.copy("C")))
            np.testing.assert_array_equal(made.codes, wanted.codes)
            np.testing.assert_array_equal(made.scales, wanted.scales)
        twice = np.broadcast_to(self.x, (2, 37, 128))
        np.testing.assert_array_equal(self.context.hadamard_gemm(twice, twice)[1],
                                      self.context.hadamard_gemm(self.x, self.x))

    def test_arrays_without_rows_give_results_without_rows(self):
        for x in (np.empty((0, 128), np.float32), self.x[:0]):
            mx = self.context.quantize(x)
            self.assertEqual((mx.rows, mx.k, mx.codes.size), (0, 128, 0))
            self.assertEqual(self.context.hadamard_gemm(x, self.w).shape, (0, 65))

    def test_operands_of_one_product_agree_in_k_and_batch(self):
        def mx(*shape):
            return self.context.quantize(np.ones(shape, np.float32))

        for a, b in ((mx(8, 256), mx(8, 64)), (mx(8, 64), mx(8, 256)),
                     (mx(4, 8, 64), mx(8, 64)), (mx(8, 64), mx(4, 8, 64)),
                     (np.ones((4, 256), np.float16), mx(8, 64)),
                     (np.ones((4, 8, 64), np.float16), mx(8, 64))):
            with self.assertRaisesRegex(ValueError, "batch and k must agree"):
                self.context.gemm(a, b)
        self.assertEqual(self.context.gemm(mx(1, 8, 64), mx(5, 64)).shape, (8, 5))

    def test_columns_are_the_rows_of_the_transpose(self):
        x = np.ascontiguousarray(self.x[:32])
        rows, columns = self.context.quantize(x, copies="both")
        again = self.context.quantize(np.ascontiguousarray(x.T))
        np.testing.assert_array_equal(columns.codes, again.codes)
        np.testing.assert_array_equal(rows.codes, self.context.quantize(x).codes)

    def test_noise_belongs_to_the_seed(self):
        codes = [self.context.quantize(self.x, rounding="sr16", seed=s).codes for s in (1, 1, 2)]
        np.testing.assert_array_equal(codes[0], codes[1])
        self.assertTrue((codes[0] != codes[2]).any())
        mean = np.mean([self.context.dequantize(self.context.quantize(
            self.x, rounding="sr16", seed=s)) for s in range(200)], axis=0)
        self.assertLess(np.linalg.norm(mean - self.x) / np.linalg.norm(self.x), 0.03)

    def test_a_part_draws_the_noise_of_the_whole(self):
        x = np.resize(self.x, (96, 128))
        settings = dict(rotation=32, rounding="sr16", seed=3)
        rows = self.context.quantize(x, **settings).codes.reshape(96, 64)
        columns = self.context.quantize(x, copies="columns", **settings).codes.reshape(128, 48)
        part = np.ascontiguousarray(x[32:])
        np.testing.assert_array_equal(
            self.context.quantize(part, row0=32, **settings).codes.reshape(64, 64), rows[32:])
        np.testing.assert_array_equal(
            self.context.quantize(part, copies="columns", k0=32, k_global=96,
                                  **settings).codes.reshape(128, 32), columns[:, 16:])
        with self.assertRaisesRegex(quarterturn.Error, "k_global = 95 is less than k0 . m = 96"):
            self.context.quantize(part, copies="columns", k0=32, k_global=95, **settings)

    def test_dequantize_takes_what_any_rule_and_signs_gave(self):
        for rule in ("floor", "even", "ceil", "quest", "search"):
            mx = self.context.quantize(self.x, rotation=32, signs="per_call", sign_seed=4,
                                       scale_rule=rule)
            self.assertLess(abs(np.linalg.norm(self.context.dequantize(mx))
                                / np.linalg.norm(self.x) - 1), 0.1)

    def test_bf16_is_taken_as_bits(self):
        bits = (self.x.view(np.uint32) >> 16).astype(np.uint16)
        exact = (bits.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(self.context.quantize(bits, type="bf16").codes,
                                      self.context.quantize(exact).codes)
        with self.assertRaisesRegex(TypeError, "uint16"):
            self.context.quantize(bits)

    def test_errors_say_what_was_given_and_what_is_allowed(self):
        with self.assertRaises(quarterturn.Error) as caught:
            self.context.quantize(self.x, rotation=48)
        self.assertEqual(caught.exception.name, "invalid_problem")
        self.assertIn("48", str(caught.exception))
        a = self.context.quantize(self.x, rotation=32)
        b = self.context.quantize(self.w, rotation=64)
        with self.assertRaises(quarterturn.Error) as caught:
            self.context.gemm(a, b)
        self.assertEqual(caught.exception.name, "wrong_operand")
        with self.assertRaisesRegex(ValueError, "one of .*sr16"):
            self.context.quantize(self.x, rounding="up")

    def test_what_is_no_type_operand_or_option_is_named(self):
        mx = self.context.quantize(self.x)
        for call in (lambda kind: self.context.gemm(mx, mx, type=kind),
                     lambda kind: self.context.dequantize(mx, type=kind),
                     lambda kind: self.context.hadamard_gemm(self.x, self.x, type=kind)):
            for kind in ("F32", "float64", np.float64, 1):
                with self.assertRaisesRegex(ValueError, "results are in f32, f16, bf16"):
                    call(kind)
        for call in (lambda: self.context.gemm(mx, self.x),
                     lambda: self.context.dequantize(self.x)):
            with self.assertRaisesRegex(TypeError, "is a ndarray: an MX is taken"):
                call()
        with self.assertRaisesRegex(TypeError, "no option 'thread'; .*threads"):
            quarterturn.Context(thread=2)

    def test_explain_and_stats_answer(self):
        problem = self.context.problem(op="hadamard_gemm", m=(1, 16), n=64, k=128, a_type="f32",
                                       b_type="f32", d_type="f32", rotation=32)
        told = self.context.explain(problem)
        self.assertIsInstance(told, dict)
        self.assertRegex(self.context.snapshot_hash(), "^[0-9a-f]{64}$")
        before = self.context.stats()["runs"]
        self.context.quantize(self.x)
        self.assertEqual(self.context.stats()["runs"], before + 1)
        report = self.context.reload()
        self.assertEqual(report["hash_after"], self.context.snapshot_hash())
        self.assertEqual((report["changed"], report["prepared_held"]), (0, 0))
        self.assertIn(f'hash="{report["hash_after"]}"', self.context.metrics_text(with_device=True))
        self.assertIn(self.context.prepare(problem).match(),
                      ("exact", "bucket", "stale", "borrowed", "heuristic", "reference"))

    def test_threads_share_a_context(self):
        expected = self.context.hadamard_gemm(self.x, self.w)
        wrong = []

        def work():
            for _ in range(20):
                if not np.array_equal(self.context.hadamard_gemm(self.x, self.w), expected):
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
