"""quarterturn.nn.Linear on the CPU back end: products and gradients, training, state."""

import copy
import io
import tempfile
import unittest
import warnings

import support

support.needs_torch()

import numpy as np
import torch

from quarterturn import nn as qnn
from quarterturn import recipes, torch_ops
from torch_test import (DEVICE, MIXED, Model, draw, expected_copy, expected_product, model_of, runs,
                        train, whole)

class LinearTest(unittest.TestCase):
    def check_against_float64(self, recipe, dtype, tokens):
        noise = qnn.Noise(5, 9, recipe)
        noise.set(step=3, microbatch=1)
        layer = qnn.Linear(128, 64, recipe=recipe, noise=noise, layer=77, device=DEVICE)
        with torch.no_grad():
            layer.weight.copy_(draw(64, 128, seed=1) / 8)
            layer.bias.copy_(draw(64, seed=2))
        x, dy = draw(tokens, 128, seed=3, dtype=dtype), draw(tokens, 64, seed=4, dtype=dtype)
        x.requires_grad_()
        y = layer(x)
        y.backward(dy)
        X, W, DY = torch_ops.X, torch_ops.WEIGHT, torch_ops.DY
        operands = {"fprop": ((x, False, X), (layer.weight, False, W)),
                    "dgrad": ((dy, False, DY), (layer.weight, True, W)),
                    "wgrad": ((dy, True, DY), (x, True, X))}
        got = {"fprop": y.float() - layer.bias, "dgrad": x.grad, "wgrad": layer.weight.grad}
        for name, pair in operands.items():
            product = getattr(recipe, name)
            if product.quantized:
                wanted, size = expected_product(*(
                    expected_copy(matrix, product, operand, transposed, tensor, 77, noise.values)
                    for (matrix, transposed, tensor), operand in zip(pair, (product.a, product.b))),
                    product)
            else:
                a, b = (m.detach().double().cpu().numpy() for m, _, _ in pair)
                a = a.T if name == "wgrad" else a
                b = b if name == "fprop" else b.T
                wanted, size = a @ b.T, np.abs(a) @ np.abs(b).T
            error = np.abs(got[name].detach().double().cpu().numpy() - wanted)
            # Results are rounded once to their type (fprop: with the bias, of up to 4).
            rounding = 2.0**-8 if got[name].dtype != torch.float32 or (
                name == "fprop" and dtype != torch.float32) else 2.0**-22
            if not product.quantized and dtype != torch.float32:
                rounding = 2.0**-7
            sums = 1e-6 if DEVICE == "cpu" else 4e-6  # tensor cores cut sums off
            bound = rounding * (np.abs(wanted) + 4) + sums * size
            self.assertLess((error / bound).max(), 1, f"{recipe.name} {name}")
        torch.testing.assert_close(layer.bias.grad, dy.float().sum(0))

    def test_every_product_is_that_of_the_recipe_in_float64(self):
        for recipe in (*recipes.PRESETS.values(), MIXED):
            self.check_against_float64(recipe, torch.float32, 45)
        self.check_against_float64(recipes.amd_det_h16, torch.bfloat16, 64)
        self.check_against_float64(recipes.amazon_rht_sr, torch.bfloat16, 32)

    def test_what_is_kept_is_a_quarter_of_bf16(self):
        x = draw(512, 256, dtype=torch.bfloat16).requires_grad_()

        def kept(layer):
            seen = {}

            def note(tensor):
                if tensor.data_ptr() not in {p.data_ptr() for p in layer.parameters()}:
                    seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                layer(x)
            return sum(seen.values())

        plain = kept(torch.nn.Linear(256, 256, device=DEVICE, dtype=torch.bfloat16))
        self.assertEqual(plain, 512 * 256 * 2)
        for recipe in (recipes.amd_det_h16, recipes.amazon_rht_sr, recipes.nvidia_like):
            layer = qnn.Linear(256, 256, recipe=recipe, noise=qnn.Noise(1), device=DEVICE,
                               dtype=torch.bfloat16)
            # 4.25 of 16 bits, and a few words of counters.
            self.assertLessEqual(kept(layer), plain * 4.25 / 16 + 128, recipe.name)

    def test_loss_falls_and_runs_repeat_bit_for_bit(self):
        for recipe in (recipes.amazon_rht_sr, recipes.amd_det_h16):
            results = []
            for _ in range(2):
                model, noise = model_of(recipe)
                optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
                losses = train(model, noise, optimizer, 0, 20)
                results.append((losses, model.up.weight.detach().clone()))
            self.assertEqual(results[0][0], results[1][0])
            self.assertTrue(torch.equal(results[0][1], results[1][1]))
            first, last = np.mean(results[0][0][:8]), np.mean(results[0][0][-8:])
            self.assertLess(last, 0.8 * first, recipe.name)

    def test_a_resumed_run_has_the_same_bits(self):
        model, noise = model_of(MIXED)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        train(model, noise, optimizer, 0, 3)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        wanted = train(model, noise, optimizer, 3, 6)

        again, other_noise = model_of(MIXED, seed=9)
        other_noise.set(seed=1234)
        optimizer = torch.optim.AdamW(again.parameters(), lr=3e-3)
        again(draw(4, 64))  # its copies of the weights must not outlive loading
        file.seek(0)
        state = torch.load(file, weights_only=True)
        again.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        self.assertEqual(other_noise.get("seed"), 1)
        self.assertEqual(train(again, other_noise, optimizer, 3, 6), wanted)

    def test_states_load_across_recipes_with_a_word(self):
        plain = Model().to(DEVICE).state_dict()
        model, _ = model_of(recipes.amd_det_h16)
        model.load_state_dict(plain)
        other, _ = model_of(recipes.quartet)
        with self.assertWarnsRegex(UserWarning, "amd_det_h16.*quartet"):
            other.load_state_dict(model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            copy.deepcopy(model).load_state_dict(model.state_dict())
        model(draw(4, 64))
        state = model.state_dict()
        plans = state["quarterturn_noise._extra_state"]["plans"]
        self.assertTrue(plans and all(len(value) == 64 for value in plans.values()))
        plans[next(iter(plans))] = "0" * 64
        with self.assertWarnsRegex(UserWarning, "other tuning answers"):
            model.load_state_dict(state)

    def test_weights_are_quantised_once_a_step(self):
        model, noise = model_of(recipes.amd_det_h16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        counts = []
        for step in range(2):
            for _ in range(3):
                before = runs()
                model(draw(32, 64)).square().mean().backward()
                counts.append(runs() - before)
            optimizer.step()
            optimizer.zero_grad()
        # X and dY once for both copies, and the products: three of the second layer, two of the
        # first, whose input needs no gradient. Each layer's W once a step, for both copies.
        self.assertEqual(counts, [11, 9, 9] * 2)
        model(draw(32, 64))
        with torch.no_grad():
            model.up.weight.mul_(2)
        before = runs()
        model(draw(32, 64)).square().mean().backward()
        self.assertEqual(runs() - before, 10)

    def test_gradients_add_up_in_a_buffer_of_the_caller(self):
        for recipe in (recipes.amd_det_h16, recipes.nvidia_like, recipes.bf16):
            plain, noise = model_of(recipe)
            torch.manual_seed(0)
            model = Model().to(DEVICE)
            other = qnn.convert(model, whole(recipe), seed=1, main_grad=True)
            for p in model.parameters():
                p.main_grad = torch.zeros(p.shape, device=DEVICE)
            for microbatch in range(3):
                for which in (noise, other):
                    which.set(microbatch=microbatch)
                for which in (plain, model):
                    which(draw(40, 64, seed=microbatch)).square().mean().backward()
            if recipe is recipes.bf16:
                continue  # no layer was converted
            self.assertIsNone(model.down.weight.grad)
            torch.testing.assert_close(model.down.weight.main_grad, plain.down.weight.grad,
                                       rtol=1e-5, atol=1e-6)

    def test_checkpointing_recomputes_the_same_codes(self):
        from torch.utils.checkpoint import checkpoint
        gradients = []
        for recomputed in (False, True):
            model, noise = model_of(MIXED)
            noise.set(step=4, microbatch=0)
            x = draw(40, 64).requires_grad_()
            y = checkpoint(model, x, use_reentrant=False,
                           context_fn=noise.recompute) if recomputed else model(x)
            noise.set(microbatch=1)  # as a pipeline does before the backward pass
            y.square().mean().backward()
            self.assertEqual(noise.get("microbatch"), 1)
            gradients.append((x.grad, model.up.weight.grad, model.down.weight.grad))
        for one, other in zip(*gradients):
            self.assertTrue(torch.equal(one, other))

    def test_a_frozen_weight_passes_gradients_on_and_keeps_nothing(self):
        gradients = []
        for frozen in (False, True):
            model, noise = model_of(MIXED)
            model.up.weight.requires_grad_(not frozen)
            x = draw(40, 64).requires_grad_()
            kept = []
            with torch.autograd.graph.saved_tensors_hooks(
                    lambda t: kept.append(t) or t, lambda t: t):
                y = model.up(x)
            y.square().mean().backward()
            gradients.append(x.grad)
            self.assertEqual(model.up.weight.grad is None, frozen)
            copies = sum(t.numel() for t in kept if t.dtype == torch.uint8)
            self.assertEqual(copies == 0, frozen)
        self.assertTrue(torch.equal(*gradients))

    def test_a_compiled_model_is_the_model(self):
        for recipe in (recipes.amd_det_h16, MIXED):
            torch._dynamo.reset()
            model, noise = model_of(recipe)
            counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
            compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
            for step, tokens in enumerate((70, 33, 2, 300)):
                noise.set(step=step)
                x = draw(tokens, 64, seed=step)
                results = []
                for run in (compiled, model):
                    model.zero_grad()
                    y = run(x)
                    y.square().mean().backward()
                    results.append((y, model.up.weight.grad, model.down.weight.grad))
                for one, other in zip(*results):
                    self.assertTrue(torch.equal(one, other))
            self.assertEqual(counter.frame_count, 1, recipe.name)

    def test_autocast_shapes_and_empty_batches(self):
        model, noise = model_of(recipes.amd_det_h16)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            y = model.up(draw(2, 3, 64))
        self.assertEqual((y.dtype, tuple(y.shape)), (torch.bfloat16, (2, 3, 128)))
        y.float().sum().backward()
        self.assertEqual(model.up.weight.grad.dtype, torch.float32)
        model.zero_grad()
        model(draw(0, 64)).sum().backward()
        self.assertFalse(model.up.weight.grad.any())
        with torch.inference_mode():
            self.assertEqual(tuple(model(draw(5, 64)).shape), (5, 64))

    def test_what_does_not_fit_is_left_alone(self):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(64, 64), "b": torch.nn.Linear(72, 64),
                                     "lm_head": torch.nn.Linear(64, 128)})
        noise = qnn.convert(model, "amd_det_h16")
        self.assertEqual(noise.layers, ["a"])
        self.assertIn("72 is not a multiple of 32", noise.left["b"])
        self.assertIn("keeps", noise.left["lm_head"])
        with self.assertRaisesRegex(ValueError, "48 is not a multiple of 32"):
            qnn.Linear(64, 48, recipe="amd_det_h16")
        with self.assertRaisesRegex(ValueError, "give a Noise"):
            qnn.Linear(64, 64, recipe="amazon_rht_sr")

    def test_fully_sharded_parameters(self):
        import torch.distributed as dist
        if not dist.is_available() or DEVICE != "cpu":
            self.skipTest("needs torch.distributed on the CPU")
        from torch.distributed.fsdp import fully_shard
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0,
                                    world_size=1)
            try:
                losses = []
                for sharded in (False, True):
                    model, noise = model_of(MIXED)
                    if sharded:
                        fully_shard(model)
                    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
                    losses.append(train(model, noise, optimizer, 0, 4))
                self.assertEqual(losses[0], losses[1])
            finally:
                dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
