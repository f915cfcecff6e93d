"""torch.ops.quarterturn on the CPU back end, against NumPy in float64; and the models and expected
copies that other tests of PyTorch share."""

import dataclasses
import os
import pathlib
import tempfile
import threading
import unittest
from unittest import mock

import support

support.needs_torch()

import numpy as np
import torch
import torch._dynamo.testing
from torch.library import opcheck

import mxfp4_reference as reference
import quarterturn
from quarterturn import recipes, torch_ops
from quarterturn import nn as qnn
from quarterturn.recipes import Operand, Product, Recipe

ops = torch.ops.quarterturn
DEVICE = os.environ.get("QTURN_TEST_DEVICE", "cpu")
if DEVICE == "cpu":
    # Kernels that are built in: no compiler is started.
    torch_ops.configure("cpu", jit="off", threads=2)

SR = Operand("sr16", "rceil")
MIXED = Recipe("mixed", Product(rotation=32, a=Operand("rne", "even"), b=Operand("rne", "rceil")),
               Product(rotation=16, signs="per_call", a=SR, b=SR),
               Product(rotation=64, signs="fixed:123456789abcdef0", a=SR, b=Operand("rne", "ceil")))


def whole(recipe):
    """The recipe for models of two layers: no layer is left out."""
    return dataclasses.replace(recipe, keep=(), keep_tail=0.0)


def draw(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def noise_tensor(seed=5, signs=9, step=3, microbatch=1, token0=0, tokens=0):
    return torch_ops.noise(seed=seed, sign_seed=signs, step=step, microbatch=microbatch,
                           token0=token0, tokens=tokens)


def flips_of(product, layer, noise):
    kind, _, mask = product.signs.partition(":")
    if kind == "none":
        return None
    if kind == "fixed":
        return np.array([(int(mask, 16) >> j) & 1 for j in range(product.rotation)])
    _, signs, step = noise[:3].tolist()
    return reference.per_call_signs(torch_ops.sign_seed(signs, layer, step), product.rotation)


def expected_copy(matrix, product, operand, transposed, tensor, layer, noise):
    """codes and bytes of one operand of one product, by the reference."""
    x = matrix.detach().float().cpu().numpy()
    x = np.ascontiguousarray(x.T) if transposed else x
    seed, _, step, microbatch = noise[:4].tolist()
    random = None
    if operand.draws:
        stream = torch_ops.noise_stream(layer, step, microbatch, tensor)
        unit = max(32, product.rotation)
        padded = x.shape[0], (x.shape[1] + unit - 1) // unit * unit
        random = reference.random16(padded, seed, stream, transposed, k_global=x.shape[1])
    return reference.quantize(x, product.rotation, operand.scale_rule,
                              flips_of(product, layer, noise), random,
                              operand.scale_block == "32x32")


def expected_product(a, b, product):
    """The float64 product of two copies, and what its rounding errors are measured by."""
    a, b = reference.values(*a), reference.values(*b)
    factor = 16 / 9 if product.a.scale_rule == "ts34" else 1.0
    return factor * (a @ b.T), factor * (np.abs(a) @ np.abs(b).T)


class Ops(unittest.TestCase):
    def test_codes_are_those_of_the_contract(self):
        x = draw(40, 128, seed=1)
        noise = noise_tensor()
        cases = [(Product(rotation=g, signs=s), Operand(r, rule), copies)
                 for g, s, r, rule, copies in (
                     (0, "none", "rne", "floor", False), (16, "none", "rne", "rceil", False),
                     (32, "per_call", "rne", "even", True), (64, "fixed:f00d", "rne", "ceil", True),
                     (128, "per_call", "sr16", "ts34", False), (32, "none", "rne", "quest", False),
                     (32, "none", "sr16", "rceil", True), (0, "none", "sr16", "rceil", False))]
        for product, operand, transposed in cases:
            for tensor in (torch_ops.X, torch_ops.WEIGHT, torch_ops.DY):
                got = ops.quantize(x, noise, None, rotation=product.rotation, signs=product.signs,
                                   rounding=operand.rounding, scale_rule=operand.scale_rule,
                                   copies="columns" if transposed else "rows", tensor=tensor)
                codes, scale = expected_copy(x, product, operand, transposed, tensor, 0, noise)
                np.testing.assert_array_equal(got[1].cpu(), scale, f"{product} {operand}")
                np.testing.assert_array_equal(got[0].cpu(), reference.pack(codes),
                                              f"{product} {operand}")
                shown = ops.dequantize(*got, rotation=product.rotation)
                np.testing.assert_array_equal(shown.cpu(), reference.values(codes, scale))

    def test_counters_are_pinned(self):
        # Another value here would change the codes of every run that goes on from a checkpoint.
        self.assertEqual(torch_ops.noise_stream(7, 11, 13, torch_ops.X), 184095735)
        self.assertEqual(torch_ops.sign_seed(5, 7, 11), 7121042975348580160)
        self.assertEqual(torch_ops.noise_stream(7, 11, 13, torch_ops.WEIGHT),
                         torch_ops.noise_stream(7, 11, 14, torch_ops.WEIGHT))

    def test_a_shard_draws_what_the_whole_draws(self):
        x = draw(96, 128, seed=2)
        settings = dict(rotation=32, rounding="sr16")
        whole_rows = ops.quantize(x, noise_tensor(), **settings)
        whole_columns = ops.quantize(x, noise_tensor(), copies="columns", **settings)
        for first, last in ((0, 32), (32, 96)):
            rows, scale, columns, column_scale = ops.quantize_both(
                x[first:last], noise_tensor(token0=first, tokens=96), **settings)
            self.assertTrue(torch.equal(rows, whole_rows[0][first:last]))
            self.assertTrue(torch.equal(scale, whole_rows[1][first:last]))
            self.assertTrue(torch.equal(columns, whole_columns[0][:, first // 2:last // 2]))
            self.assertTrue(torch.equal(column_scale,
                                        whole_columns[1][:, first // 32:last // 32]))
        # A shard of a weight: rows 32 to 96 and columns 64 to 128 of [96, 128].
        place = torch.tensor([0, 32, 64, 96, 128])
        settings["tensor"] = torch_ops.WEIGHT
        rows, _, columns, _ = ops.quantize_both(x[32:, 64:], noise_tensor(), place, **settings)
        whole_rows = ops.quantize(x, noise_tensor(), **settings)
        whole_columns = ops.quantize(x, noise_tensor(), copies="columns", **settings)
        self.assertTrue(torch.equal(rows, whole_rows[0][32:, 32:]))
        self.assertTrue(torch.equal(columns, whole_columns[0][64:, 16:]))

    def test_opcheck(self):
        x, w = draw(33, 64, dtype=torch.bfloat16), draw(96, 64, seed=3, dtype=torch.bfloat16)
        noise, bias = noise_tensor(), draw(96)
        a, b = ops.quantize(x, rotation=32), ops.quantize(w, rotation=32)
        layer = qnn.Linear(64, 96, recipe=MIXED, noise=qnn.Noise(1), device=DEVICE)
        needs = [t.clone().requires_grad_() for t in (x, w)]
        for op, args, options in (
                (ops.quantize, (x, noise), dict(rotation=32, rounding="sr16", copies="columns")),
                (ops.quantize_both, (x, noise), dict(rotation=16, signs="per_call")),
                (ops.dequantize, a, dict(rotation=32)),
                (ops.gemm, (*a, *b, bias), dict(rotation=32, dtype=torch.float32)),
                (ops.weight_gemm, (x, *ops.quantize(w), bias), {}),
                (ops.gemm_add_, (draw(33, 96), *a, *b), dict(rotation=32)),
                (ops.hadamard_gemm, needs, {}),
                (ops.linear, (needs[0].float().detach().requires_grad_(), layer.weight, layer.bias,
                              None, layer.noise, layer.place, layer.recipe_text, True, True), {}),
                (ops.linear_served, (x.float(), layer.weight.detach(), layer.bias.detach(),
                                     layer.noise, layer.place, layer.recipe_text), {})):
            opcheck(op.default, tuple(args), options)

    def test_tracing_takes_any_token_count_without_another_graph(self):
        def step(x, w):
            codes, scales = ops.quantize(x, rotation=32)
            packed, packed_scales = ops.quantize(w, rotation=32)
            return ops.gemm(codes, scales, packed, packed_scales, rotation=32).float().relu()

        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
        w = draw(64, 128)
        for tokens in (70, 3, 129, 2, 1000):
            x = draw(tokens, 128, seed=tokens)
            self.assertTrue(torch.equal(compiled(x, w), step(x, w)))
        self.assertEqual(counter.frame_count, 1)

    def test_hadamard_gemm_is_differentiable(self):
        x, w = draw(40, 64).requires_grad_(), draw(32, 64, seed=1).requires_grad_()
        y = ops.hadamard_gemm(x, w, rotation=32, alpha=0.5)
        y.sum().backward()
        torch.testing.assert_close(x.grad, 0.5 * w.detach().sum(0).expand(40, 64))
        torch.testing.assert_close(w.grad, 0.5 * x.detach().sum(0).expand(32, 64))

    def test_threads_and_changing_sizes_share_the_operators(self):
        w = ops.quantize(draw(32, 64, seed=1))
        sizes = [1, 5, 16, 17, 40, 64, 70]
        inputs = {m: draw(m, 64, seed=m) for m in sizes}
        wanted = {m: ops.gemm(*ops.quantize(x), *w) for m, x in inputs.items()}
        wrong = []

        def work(first):
            for i in range(60):
                m = sizes[(first + i) % len(sizes)]
                if not torch.equal(ops.gemm(*ops.quantize(inputs[m]), *w), wanted[m]):
                    wrong.append(m)

        # Few are kept at a time, so that some are made anew while others run.
        torch_ops.forget()
        with mock.patch("quarterturn._calls._MOST_CALLS", 5):
            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertLessEqual(len(torch_ops._CALLS), 5 + len(threads))
        self.assertEqual(wrong, [])

    def test_what_lies_apart_in_memory_is_what_is_read(self):
        wide = draw(40, 200)
        x, t = wide[:, 40:104], draw(64, 40).t()
        for given in (x, t, x[:1], x[:0], wide[::3, :64]):
            for one, other in zip(ops.quantize(given), ops.quantize(given.contiguous())):
                self.assertTrue(torch.equal(one, other))
            self.assertTrue(torch.equal(ops.hadamard_gemm(given, t),
                                        ops.hadamard_gemm(given.contiguous(), t.contiguous())))

    def test_rows_that_share_memory_are_copied_first(self):
        line = draw(200)
        w = ops.quantize(draw(32, 64, seed=1))
        for given in (line[:64].expand(40, 64), line.unfold(0, 64, 4), line[:1].expand(40, 64),
                      line[:40, None].expand(40, 64), line[:1].expand(40, 1)):
            plain = given.contiguous()
            for one, other in zip(ops.quantize_both(given), ops.quantize_both(plain)):
                self.assertTrue(torch.equal(one, other))
            if given.shape[1] == 64:
                self.assertTrue(torch.equal(ops.hadamard_gemm(given, given),
                                            ops.hadamard_gemm(plain, plain)))
                self.assertTrue(torch.equal(ops.weight_gemm(given.bfloat16(), *w),
                                            ops.weight_gemm(plain.bfloat16(), *w)))

    def test_what_is_added_to_has_memory_of_its_own(self):
        a, b = ops.quantize(draw(40, 64)), ops.quantize(draw(32, 64, seed=1))
        wanted = ops.gemm(*a, *b, dtype=torch.float32)
        wide = torch.zeros(40, 50, device=DEVICE)
        ops.gemm_add_(wide[:, 3:35], *a, *b)
        torch.testing.assert_close(wide[:, 3:35], wanted)
        self.assertFalse(wide[:, :3].any() or wide[:, 35:].any())
        for d in (torch.zeros(32, device=DEVICE).expand(40, 32),
                  torch.zeros(39 * 8 + 32, device=DEVICE).as_strided((40, 32), (8, 1))):
            with self.assertRaisesRegex(ValueError, "memory of its own"):
                ops.gemm_add_(d, *a, *b)

    def test_what_is_added_to_has_another_version(self):
        a, b = ops.quantize(draw(40, 64)), ops.quantize(draw(32, 64, seed=1))
        d, x = draw(40, 32), draw(40, 32, seed=2).requires_grad_()
        y, before = (x * d).sum(), d._version
        ops.gemm_add_(d, *a, *b)
        self.assertEqual(d._version, before + 1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.backward()
        with torch.inference_mode():
            inferred = torch.zeros(40, 32, device=DEVICE)
            ops.gemm_add_(inferred, *a, *b)
        ops.gemm_add_(inferred, *a, *b, beta=0.0)
        compiled = torch.compile(lambda d: ops.gemm_add_(d, *a, *b, beta=0.0), fullgraph=True,
                                 backend="aot_eager")
        compiled(d)
        self.assertTrue(torch.equal(d, inferred))
        self.assertGreater(d._version, before + 1)

    def test_a_product_with_a_weight_s_codes_is_differentiable(self):
        w = ops.quantize(draw(32, 64, seed=1))
        values = ops.dequantize(*w)
        for dtype in (torch.bfloat16, torch.float16):
            x = draw(40, 64, dtype=dtype).requires_grad_()
            bias = draw(32).requires_grad_()
            y = ops.weight_gemm(x, *w, bias, dtype=torch.float32, alpha=0.5)
            dy = draw(40, 32, seed=3)
            y.backward(dy)
            torch.testing.assert_close(x.grad, (0.5 * dy @ values).to(dtype), rtol=1e-2, atol=1e-2)
            torch.testing.assert_close(bias.grad, dy.sum(0))
            whole, x.grad, bias.grad = x.grad, None, None
            ops.weight_gemm(x, *w, dtype=torch.float32, alpha=0.5).backward(dy)
            self.assertTrue(torch.equal(x.grad, whole))
        opcheck(ops.weight_gemm.default, (x, *w, bias))

    def test_a_weight_by_ts34_takes_four_thirds(self):
        x, w = draw(40, 64, dtype=torch.bfloat16), draw(32, 64, seed=1)
        y = ops.weight_gemm(x, *ops.quantize(w, scale_rule="ts34"), alpha=4 / 3).float()
        wanted = x.float() @ w.t()
        self.assertLess(((y - wanted).norm() / wanted.norm()).item(), 0.15)

    def test_one_reproducibility_is_asked_of_every_product(self):
        x, w = draw(4, 64, dtype=torch.bfloat16), draw(32, 64, seed=1, dtype=torch.bfloat16)
        b = ops.quantize(w)
        try:
            for kind, key in (("batch_invariant", "repro=batch_invariant"), ("any", "repro=any")):
                torch_ops.use_reproducibility(kind)
                ops.hadamard_gemm(x, w)
                ops.weight_gemm(x, *b)
                ops.gemm(*ops.quantize(x), *b)
                products = [row["problem"] for row in torch_ops.kernels()
                            if "op=quantize" not in row["problem"]]
                self.assertEqual(len(products), 3)
                self.assertTrue(all(key in problem for problem in products), products)
        finally:
            torch_ops.use_reproducibility("run_to_run")

    def test_a_weight_alone_is_multiplied_by_what_x_is(self):
        w = ops.quantize(draw(96, 64, seed=3))
        values = reference.values(*(np.asarray(v) for v in (
            np.stack([w[0].cpu() & 15, w[0].cpu() >> 4], -1).reshape(96, 64), w[1].cpu())))
        for dtype in (torch.bfloat16, torch.float16):
            wide = draw(33, 200, dtype=dtype)
            bias = draw(96)
            for x in (wide[:, :64], wide[:, 64:128], wide[:, :64].contiguous()):
                wanted = x.double().cpu().numpy() @ values.T
                got = ops.weight_gemm(x, *w, bias, dtype=torch.float32, alpha=0.5)
                np.testing.assert_allclose(got.cpu(), 0.5 * wanted + bias.cpu().numpy(), rtol=1e-5,
                                           atol=1e-4)
        with self.assertRaisesRegex(TypeError, "float32"):
            ops.weight_gemm(draw(4, 64), *w)

    def test_a_model_call_is_tuned(self):
        model, _ = model_of(recipes.amd_det_h16)
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "qturn")
            program.write_text(f"""#!/bin/sh
printf '%s\\n' "$@" > {folder}/words
echo '{{"problem":"p","layers":"problem 1","answer":"tuned"}}'""")
            program.chmod(0o755)
            with mock.patch.dict(os.environ, QTURN_PROGRAM=str(program)):
                rows = quarterturn.tune(model, draw(48, 64), candidates=3)
            words = pathlib.Path(folder, "words").read_text().splitlines()
        name = "cpu" if DEVICE == "cpu" else "cuda:0"
        self.assertEqual(words[:6], ["tune", "--json", "--device", name, "--candidates", "3"])
        keys = [words[i + 1] for i, word in enumerate(words) if word == "--problem"]
        # X's and each weight's copies, and each layer's product.
        self.assertEqual(rows[0]["key"], keys[0])
        self.assertEqual(sum("a_type=mxfp4" in key for key in keys), 2)
        self.assertTrue(all("k=64" in key or "k=128" in key for key in keys))

    def test_errors_say_what_was_given(self):
        x = draw(16, 64)
        codes, scales = ops.quantize(x)
        with self.assertRaisesRegex(ValueError, "K = 64, b K = 128"):
            ops.gemm(codes, scales, *ops.quantize(draw(16, 128)))
        with self.assertRaisesRegex(ValueError, r"\[rows, K / 32\]"):
            ops.gemm(codes, scales[:, :1], codes, scales)
        with self.assertRaisesRegex(ValueError, "give `noise`"):
            ops.quantize(x, rounding="sr16")
        rounded = dict(rounding="sr16")
        for noise in (noise_tensor().float(), noise_tensor()[:5], noise_tensor()[None],
                      torch.tensor(3)):
            with self.assertRaisesRegex(ValueError, r"noise is .* \(8,\) of int64"):
                ops.quantize(x, noise, **rounded)
            with self.assertRaisesRegex(ValueError, r"noise is .* \(8,\) of int64"):
                ops.quantize_both(x, noise, **rounded)
        with self.assertRaisesRegex(ValueError, r"place is \(2,\) .* \(5,\) of int64"):
            ops.quantize(x, noise_tensor(), torch.tensor([1, 2]), **rounded)
        with self.assertRaisesRegex(TypeError, "float64"):
            ops.quantize(x.double())
        with self.assertRaisesRegex(ValueError, "quantize_both gives both"):
            ops.quantize(x, copies="both")
        operands, d = (codes, scales, codes, scales), torch.zeros(16, 16, device=DEVICE).double()
        for call in (lambda: ops.gemm(*operands, dtype=d.dtype),
                     lambda: ops.gemm_add_(d, *operands),
                     lambda: ops.hadamard_gemm(x, x, dtype=d.dtype),
                     lambda: ops.weight_gemm(x.bfloat16(), codes, scales, dtype=d.dtype),
                     lambda: ops.dequantize(codes, scales, dtype=d.dtype)):
            with self.assertRaisesRegex(TypeError, "float64: float32, bfloat16 or float16"):
                call()


class Model(torch.nn.Module):
    def __init__(self, width=64, inner=128):
        super().__init__()
        self.up = torch.nn.Linear(width, inner)
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


def model_of(recipe, seed=0, dtype=torch.float32, **options):
    torch.manual_seed(seed)
    model = Model().to(DEVICE, dtype)
    noise = qnn.convert(model, whole(recipe), seed=1, **options)
    return model, noise


def runs():
    """How often the device's context has run a plan so far."""
    backend, index = ("cpu", -1) if DEVICE == "cpu" else ("cuda", 0)
    return torch_ops._CONTEXTS.get(backend, index).stats()["runs"]


def train(model, noise, optimizer, first, last):
    losses = []
    for step in range(first, last):
        for microbatch in range(2):
            noise.set(step=step, microbatch=microbatch)
            x = draw(48, 64, seed=2 * (step % 4) + microbatch)
            loss = (model(x) - 0.5 * x.roll(1, 1)).square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


if __name__ == "__main__":
    unittest.main()
