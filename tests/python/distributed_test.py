"""Training on two ranks: sharded weights, the batch divided, microbatches, recomputation and
resuming, against one process. Two processes of this file talk by gloo on the CPU."""

import os
import pathlib
import tempfile
import unittest

os.environ["QTURN_NO_JIT"] = "1"  # kernels that are built in
import support

support.needs_torch()

import torch
import torch.distributed as dist

if not dist.is_available() or not dist.is_gloo_available():
    support.skip("this PyTorch has no gloo")
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    support.skip(f"PyTorch {torch.__version__} has no fully_shard; 2.6 has")

from torch.utils.checkpoint import checkpoint

from quarterturn import nn as qnn
from quarterturn.recipes import Operand, Product, Recipe

SR = Operand("sr16", "rceil")
RECIPE = Recipe("mixed", Product(rotation=32, a=Operand("rne", "even"), b=SR),
                Product(rotation=16, signs="per_call", a=SR, b=SR),
                Product(rotation=32, signs="fixed:123456789abcdef0", a=SR,
                        b=Operand("rne", "ceil")),
                keep=())
TOKENS, MICROBATCHES = 128, 2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 128)
        self.down = torch.nn.Linear(128, 64, bias=False)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(Model(), Model())
    return model, qnn.convert(model, RECIPE, seed=3)


def batch(step, microbatch):
    generator = torch.Generator().manual_seed(10 * step + microbatch)
    return torch.randn(TOKENS, 64, generator=generator)


def whole(parameter):
    value = parameter.detach()
    return value.full_tensor() if hasattr(value, "full_tensor") else value.clone()


def train(model, noise, steps, rank=0, world=1, recomputed=False):
    """Outputs of this rank's rows in the first step, that step's whole gradients, and the
    losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    size, seen, gradients, losses = TOKENS // world, [], {}, []
    for step in steps:
        for microbatch in range(MICROBATCHES):
            noise.set(step=step, microbatch=microbatch, token0=rank * size, tokens=TOKENS)
            x = batch(step, microbatch)[rank * size:(rank + 1) * size]
            if recomputed:
                y = checkpoint(model, x, use_reentrant=False, context_fn=noise.recompute)
                # Another microbatch's forward pass comes before this one's backward pass.
                noise.set(microbatch=microbatch + 1)
            else:
                y = model(x)
            # Ranks are averaged: each has the mean of its rows.
            loss = (y - 0.5 * x.roll(1, 1)).square().mean() / MICROBATCHES
            loss.backward()
            losses.append(loss.item())
            if step == steps[0]:
                seen.append(y.detach().clone())
        if step == steps[0]:
            gradients = {name: whole(p.grad) for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    return seen, gradients, losses


def sharded():
    model, noise = made()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, noise


def on_rank(rank, folder):
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank,
                            world_size=2)
    torch.set_num_threads(1)
    results = {}
    model, noise = sharded()
    results["first"] = train(model, noise, range(3), rank, 2)
    state = {name: value.clone() if torch.is_tensor(value) else value
             for name, value in model.state_dict().items()}
    results["last"] = train(model, noise, range(3, 5), rank, 2)[2]
    again, other = sharded()
    other.set(seed=99)
    again.load_state_dict(state)
    results["seed"] = other.get("seed")
    results["resumed"] = train(again, other, range(3, 5), rank, 2)[2]
    model, noise = sharded()
    results["recomputed"] = train(model, noise, range(3), rank, 2, recomputed=True)
    torch.save(results, pathlib.Path(folder, f"rank{rank}"))
    dist.destroy_process_group()


class DistributedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(on_rank, args=(folder,), nprocs=2)
            cls.ranks = [torch.load(pathlib.Path(folder, f"rank{rank}")) for rank in range(2)]

    def test_two_ranks_compute_what_one_process_does(self):
        model, noise = made()
        outputs, gradients, _ = train(model, noise, range(1))
        for microbatch, wanted in enumerate(outputs):
            got = torch.cat([rank["first"][0][microbatch] for rank in self.ranks])
            self.assertTrue(torch.equal(got, wanted))  # the same codes, the same products
        for name, wanted in gradients.items():
            for rank in self.ranks:
                # Sums over tokens are taken rank by rank.
                torch.testing.assert_close(rank["first"][1][name], wanted, rtol=1e-5, atol=1e-7)

    def test_a_recomputed_step_has_the_bits_of_a_kept_one(self):
        for rank in self.ranks:
            for one, other in zip(rank["first"][0], rank["recomputed"][0]):
                self.assertTrue(torch.equal(one, other))
            for name, wanted in rank["first"][1].items():
                self.assertTrue(torch.equal(rank["recomputed"][1][name], wanted), name)
            self.assertEqual(rank["recomputed"][2], rank["first"][2])

    def test_a_sharded_state_resumes_bit_for_bit(self):
        for rank in self.ranks:
            self.assertEqual(rank["seed"], 3)
            self.assertEqual(rank["resumed"], rank["last"])

    def test_shards_of_a_layer_are_the_layer(self):
        # Tensor parallel in one process: out features divided, then in features.
        noise = qnn.Noise(3, recipe=RECIPE)
        noise.set(step=2, microbatch=1)
        whole_layer = qnn.Linear(128, 64, recipe=RECIPE, noise=noise, layer=5)
        x = torch.randn(96, 128, requires_grad=True)
        dy = torch.randn(96, 64)
        y = whole_layer(x)
        y.backward(dy)
        for axis in (0, 1):
            outputs, dx = [], torch.zeros_like(x)
            for part in range(2):
                rows, columns = (32, 128) if axis == 0 else (64, 64)
                shard = qnn.Linear(columns, rows, bias=False, recipe=RECIPE, noise=noise, layer=5)
                row0, column0 = (32 * part, 0) if axis == 0 else (0, 64 * part)
                shard.set_shard(row0, column0, 64, 128)
                with torch.no_grad():
                    shard.weight.copy_(whole_layer.weight[row0:row0 + rows,
                                                          column0:column0 + columns])
                given = x.detach()[:, column0:column0 + columns].clone().requires_grad_()
                outputs.append(shard(given))
                outputs[-1].backward(dy[:, row0:row0 + rows])
                # The same codes: sums over tokens alone are the same bits.
                self.assertTrue(torch.equal(
                    shard.weight.grad,
                    whole_layer.weight.grad[row0:row0 + rows, column0:column0 + columns]))
                dx[:, column0:column0 + columns] += given.grad
            bare = y.detach() - whole_layer.bias.detach()
            got = torch.cat(outputs, 1) if axis == 0 else sum(outputs)
            torch.testing.assert_close(got.detach(), bare, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(dx, x.grad, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
