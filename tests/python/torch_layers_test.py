"""quarterturn.nn's layers in models as people have them: tied, hooked, frozen, without memory."""

import unittest
import warnings

import support

support.needs_torch()

import torch

import torch_test as common
from quarterturn import nn as qnn
from quarterturn import recipes, torch_ops
from torch_test import DEVICE, draw, whole

DRAWN = recipes.Product(rotation=32, signs="per_call", a=common.SR, b=common.SR)
ALL_DRAWN = recipes.Recipe("all_drawn", DRAWN, DRAWN, DRAWN)


class Gradients(unittest.TestCase):
    def test_a_gradient_that_is_one_row_many_times(self):
        for recipe in (recipes.amd_det_h16, common.MIXED, recipes.nvidia_like):
            gradients = []
            for shared in (True, False):
                model, _ = common.model_of(recipe)
                x = draw(40, 64).requires_grad_()
                y = model.up(x)
                dy = draw(128, seed=1).expand(40, 128)
                y.backward(dy if shared else dy.contiguous())
                gradients.append((x.grad, model.up.weight.grad))
            for one, other in zip(*gradients):
                self.assertTrue(torch.equal(one, other), recipe.name)
        model, _ = common.model_of(recipes.amd_det_h16)
        model.up(draw(40, 64)).sum(0).square().sum().backward()
        self.assertTrue(model.up.weight.grad.isfinite().all())

    def test_main_grad_is_missing_or_shares_memory(self):
        layer = qnn.Linear(64, 32, recipe="amd_det_h16", main_grad=True, device=DEVICE)
        with self.assertRaisesRegex(ValueError, r"make it, f32 zeros of \[32, 64\]"):
            layer(draw(4, 64))
        layer.weight.main_grad = torch.zeros(64, device=DEVICE).expand(32, 64)
        with self.assertRaisesRegex(ValueError, "memory of its own"):
            layer(draw(4, 64)).sum().backward()

    def test_a_second_derivative_is_refused(self):
        model, _ = common.model_of(recipes.amd_det_h16)
        for loss in (lambda y: y.square().sum(), lambda y: y.sum()):
            x = draw(40, 64).requires_grad_()
            dx, = torch.autograd.grad(loss(model.up(x)), x, create_graph=True)
            with self.assertRaisesRegex(RuntimeError, "no second derivative"):
                dx.square().sum().backward()
        dw, = torch.autograd.grad(loss(model.up(x)), model.up.weight, create_graph=True)
        self.assertEqual(dw.shape, (128, 64))


class Weights(unittest.TestCase):
    def tied(self, recipe):
        layers = [qnn.Linear(64, 64, recipe=recipe, noise=qnn.Noise(1), layer=number, device=DEVICE)
                  for number in (3, 4)]
        with torch.no_grad():
            layers[1].weight.copy_(layers[0].weight)
        return layers

    def outcome(self, layers, x):
        for layer in layers:
            layer.weight.grad = None
        results = []
        for layer in layers:
            x.grad = None
            y = layer(x)
            y.square().sum().backward()
            results += [y, x.grad.clone()]
        return results

    def test_layers_that_share_a_weight_draw_apart(self):
        layers = self.tied(ALL_DRAWN)
        x = draw(40, 64, seed=5).requires_grad_()
        wanted = self.outcome(layers, x)
        layers[1].weight = layers[0].weight
        for _ in range(2):
            for got, each in zip(self.outcome(layers, x), wanted):
                self.assertTrue(torch.equal(got, each))

    def test_layers_that_share_a_weight_quantise_it_once_a_step(self):
        for recipe, more in ((ALL_DRAWN, 2), (recipes.amd_det_h16, 1)):
            layers = self.tied(recipe)
            layers[1].weight = layers[0].weight
            x = draw(40, 64, seed=5).requires_grad_()
            counts = []
            for _ in range(2):
                before = common.runs()
                self.outcome(layers, x)
                counts.append(common.runs() - before)
            self.assertEqual(counts[0] - counts[1], more)

    def test_a_shard_that_is_set_later_takes_effect(self):
        whole_weight, shard = (qnn.Linear(64, rows, bias=False, recipe=ALL_DRAWN, layer=3,
                                          noise=qnn.Noise(1), device=DEVICE) for rows in (64, 32))
        with torch.no_grad():
            shard.weight.copy_(whole_weight.weight[32:])
        x = draw(40, 64)
        shard(x)
        shard.set_shard(row0=32, rows=64)
        self.assertTrue(torch.equal(shard(x), whole_weight(x)[:, 32:]))

    def test_adding_a_product_to_a_weight_renews_its_copies(self):
        layer = qnn.Linear(64, 32, recipe="amd_det_h16", device=DEVICE)
        x = draw(40, 64)
        layer(x)
        a, b = torch_ops.quantize(draw(32, 64)), torch_ops.quantize(draw(64, 64))
        torch.ops.quarterturn.gemm_add_(layer.weight.detach(), *a, *b)
        other = qnn.Linear(64, 32, recipe="amd_det_h16", device=DEVICE)
        other.load_state_dict(layer.state_dict())
        self.assertTrue(torch.equal(layer(x), other(x)))


class Shapes(unittest.TestCase):
    def test_another_width_is_refused(self):
        layer = qnn.Linear(64, 32, recipe="amd_det_h16", device=DEVICE)
        for shape in ((4, 48), (4, 96), (2, 32), (2, 3, 128)):
            with self.assertRaisesRegex(ValueError, r"\[\.\.\., 64\] is needed"):
                layer(draw(*shape))
        self.assertEqual(tuple(layer(draw(64)).shape), (32,))

    def test_a_model_without_memory_has_shapes(self):
        with torch.device("meta"):
            model = common.Model()
            noise = qnn.convert(model, whole(ALL_DRAWN))
            noise.set(step=3)
            model.up.set_shard(rows=256)
            x = torch.empty(3, 40, 64, requires_grad=True)
            y = model(x)
            layer = qnn.Linear(64, 32, recipe=ALL_DRAWN, noise=qnn.Noise(1), layer=7)
        self.assertEqual((y.device.type, y.shape), ("meta", x.shape))
        y.sum().backward()
        self.assertEqual(x.grad.shape, x.shape)
        self.assertEqual(noise.values[2], 3)
        self.assertEqual(model.up.place[3], 256)
        self.assertEqual(layer.place[0], 7)


def linear(out=64):
    return torch.nn.Linear(64, out, device=DEVICE)


class Convert(unittest.TestCase):
    def test_a_lone_layer_is_refused(self):
        with self.assertRaisesRegex(ValueError, "wrap it"):
            qnn.convert(linear(), "amd_det_h16")
        model = torch.nn.Sequential(linear())
        self.assertEqual(qnn.convert(model, "amd_det_h16").layers, ["0"])

    def test_what_a_layer_would_lose_leaves_it_alone(self):
        model = torch.nn.ModuleDict({name: linear() for name in (
            "plain", "after", "before", "behind", "replaced", "norm", "old_norm", "pruned")})
        model["after"].register_forward_hook(lambda *args: None)
        model["before"].register_forward_pre_hook(lambda *args: None)
        model["behind"].register_full_backward_hook(lambda *args: None)
        model["replaced"].forward = lambda x: x
        torch.nn.utils.parametrizations.weight_norm(model["norm"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.nn.utils.weight_norm(model["old_norm"])
        import torch.nn.utils.prune as prune
        prune.l1_unstructured(model["pruned"], "weight", 0.5)
        before = dict(model)
        noise = qnn.convert(model, "amd_det_h16")
        self.assertEqual(noise.layers, ["plain"])
        for name, reason in (
                ("after", "has hooks"), ("before", "has hooks"), ("behind", "has hooks"),
                ("replaced", "forward was"), ("norm", "ParametrizedLinear"),
                ("old_norm", "parameter of its own"), ("pruned", "parameter of its own")):
            self.assertIn(reason, noise.left[name])
            self.assertIs(model[name], before[name])

    def test_a_layer_with_two_names_is_one_layer_at_both(self):
        model = torch.nn.ModuleDict({"a": torch.nn.Sequential(linear()), "b": linear()})
        model["again"], model["c"] = model["a"], model["a"][0]
        noise = qnn.convert(model, "amd_det_h16")
        self.assertEqual(noise.layers, ["a.0", "b"])
        self.assertIsInstance(model["c"], qnn.Linear)
        self.assertIs(model["c"], model["a"][0])
        self.assertIs(model["again"], model["a"])
        model = torch.nn.ModuleDict({"a": linear()})
        model["lm_head"] = model["a"]
        self.assertIn("keeps", qnn.convert(model, "amd_det_h16").left["a"])

    def test_noise_goes_with_the_model(self):
        model, noise = torch.nn.Sequential(linear()), qnn.Noise(5)
        self.assertIs(qnn.convert(model, "amd_det_h16", noise=noise), noise)
        self.assertIs(noise.recipe, recipes.amd_det_h16)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.load_state_dict(model.state_dict())
        model.append(linear())
        self.assertIs(qnn.convert(model, ALL_DRAWN), noise)
        self.assertEqual(noise.layers, ["0", "1"])
        self.assertIs(model[1].noise, noise.values)
        with self.assertRaisesRegex(ValueError, "another Noise"):
            qnn.convert(model, ALL_DRAWN, noise=qnn.Noise(5))


if __name__ == "__main__":
    unittest.main()
