"""examples/python/serving_plugin.py by a small stand-in for a serving engine, on the CPU."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

os.environ["QTURN_NO_JIT"] = "1"  # kernels that are built in
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))

import support

support.needs_torch()

import numpy as np
import torch

import serving_plugin
from quarterturn import formats


class Layer(torch.nn.Module):
    """What an engine's linear layer does with a quantisation method, on one of `ranks` ranks that
    share the in features (row parallel) or the out features (column parallel)."""

    def __init__(self, config, prefix, in_features, out_features, rank=0, ranks=1, split="rows"):
        super().__init__()
        self.rank, self.ranks, self.split = rank, ranks, split
        self.method = config.get_quant_method(self, prefix)
        inputs = in_features // (ranks if split == "columns" else 1)
        outputs = out_features // (ranks if split == "rows" else 1)
        self.method.create_weights(self, inputs, [outputs], in_features, out_features,
                                   torch.bfloat16, weight_loader=self.load)

    def load(self, parameter, whole):
        axis = parameter.output_dim if self.split == "rows" else parameter.input_dim
        size = parameter.shape[axis]
        parameter.data.copy_(whole.narrow(axis, self.rank * size, size))

    def forward(self, x, bias=None):
        return self.method.apply(self, x, bias)


class ServingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        generator = np.random.default_rng(5)
        cls.weight = generator.normal(size=(96, 256)).astype(np.float32)
        cls.x = torch.from_numpy(generator.normal(size=(2, 5, 256)).astype(np.float32)).bfloat16()

    def checkpoint(self, rotation):
        """A file of `qturn quantize`, read as an engine's loader would."""
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
            formats.write_safetensors(source, {"up.weight": ("F32", self.weight.shape,
                                                             lambda: self.weight)})
            formats.quantize_file(source, target, rotation=rotation)
            file = formats.Safetensors(target)
            scheme = json.loads(file.metadata["quarterturn"])
            return scheme, {name: torch.from_numpy(np.array(file.read(f"up.{name}")))
                            for name in ("weight_packed", "weight_scale")}

    def layers(self, config, tensors, **options):
        config = serving_plugin.QuarterturnConfig.from_config(config)
        out = []
        for rank in range(options.get("ranks", 1)):
            layer = Layer(config, "model.up", 256, 96, rank=rank, **options)
            for name, whole in tensors.items():
                parameter = getattr(layer, name)
                parameter.weight_loader(parameter, whole)
            layer.method.process_weights_after_loading(layer)
            out.append(layer)
        return out

    def config(self, scheme, activations):
        return {"quant_method": "quarterturn", "rotation": scheme["rotation"],
                "scale_rule": scheme["scale_rule"], "activations": activations,
                "ignore": ["lm_head"]}

    def test_a_checkpoint_is_served_near_its_full_precision(self):
        wanted = self.x.float() @ torch.from_numpy(self.weight).t()
        bias = torch.randn(96)
        for rotation, activations, most in ((32, "mxfp4", 0.17), (0, "none", 0.13)):
            scheme, tensors = self.checkpoint(rotation)
            layer, = self.layers(self.config(scheme, activations), tensors)
            y = layer(self.x)
            self.assertEqual((tuple(y.shape), y.dtype), ((2, 5, 96), torch.bfloat16))
            error = ((y.float() - wanted).norm() / wanted.norm()).item()
            self.assertLess(error, most, activations)
            torch.testing.assert_close(layer(self.x, bias).float(), y.float() + bias, rtol=1e-2,
                                       atol=6e-2)

    def test_ranks_share_a_layer(self):
        scheme, tensors = self.checkpoint(32)
        config = self.config(scheme, "mxfp4")
        whole, = self.layers(config, tensors)
        wanted = whole(self.x)
        columns = self.layers(config, tensors, ranks=3, split="rows")
        self.assertTrue(torch.equal(torch.cat([layer(self.x) for layer in columns], -1), wanted))
        rows = self.layers(config, tensors, ranks=2, split="columns")
        parts = [layer(part) for layer, part in zip(rows, self.x.chunk(2, -1))]
        torch.testing.assert_close(sum(part.float() for part in parts), wanted.float(), rtol=2e-2,
                                   atol=2e-1)

    def test_what_cannot_be_served_is_said(self):
        scheme, tensors = self.checkpoint(32)
        with self.assertRaisesRegex(ValueError, "rotation = 32 without an activation scheme"):
            self.layers(self.config(scheme, "none"), tensors)
        with self.assertRaisesRegex(ValueError, "16 in features on each of 16 ranks"):
            self.layers(self.config(scheme, "mxfp4"), tensors, ranks=16, split="columns")
        with self.assertRaisesRegex(ValueError, "'group_size', which is not known"):
            serving_plugin.QuarterturnConfig.from_config({"group_size": 32})
        config = serving_plugin.QuarterturnConfig.from_config(self.config(scheme, "mxfp4"))
        self.assertIsNone(config.get_quant_method(None, "lm_head"))


if __name__ == "__main__":
    unittest.main()
