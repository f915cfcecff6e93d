"""What only a GPU shows of the PyTorch side: CUDA graphs, streams, host cost, training steps."""

import os
import signal
import unittest

os.environ["QTURN_TEST_DEVICE"] = "cuda"
import support

support.needs_torch()

import torch

if not torch.cuda.is_available():
    support.skip("no CUDA device")

import quarterturn
import torch_test as common
from quarterturn import recipes, torch_ops
from quarterturn import nn as qnn

ops = torch.ops.quarterturn
FIXED = recipes.Recipe("fixed", *[recipes.Product(rotation=32, a=common.SR)] * 3, keep=())


def step_of(model, x):
    """One forward and backward pass into gradients that stay where they are."""
    def step():
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        y = model(x)
        y.float().square().mean().backward()
        return y
    return step


class CudaTest(unittest.TestCase):
    def captured(self, step):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = step()
        return graph, y

    def test_a_captured_step_is_the_step(self):
        model, _ = common.model_of(recipes.amd_det_h16, dtype=torch.bfloat16)
        x = common.draw(256, 64, dtype=torch.bfloat16)
        graph, y = self.captured(step_of(model, x))
        for seed in (1, 2):
            x.copy_(common.draw(256, 64, seed=seed, dtype=torch.bfloat16))
            with torch.no_grad():
                model.up.weight.mul_(1.5)  # a replay quantises what the weights are then
            graph.replay()
            got = [y.clone(), model.up.weight.grad.clone(), model.down.weight.grad.clone()]
            wanted = step_of(model, x)()
            for one, other in zip(got, (wanted, model.up.weight.grad, model.down.weight.grad)):
                self.assertTrue(torch.equal(one, other))

    def test_noise_on_the_gpu_changes_from_replay_to_replay(self):
        model, noise = common.model_of(FIXED, dtype=torch.bfloat16, noise_device="cuda")
        x = common.draw(256, 64, dtype=torch.bfloat16)
        graph, y = self.captured(step_of(model, x))
        seen = []
        for step in (7, 8):
            noise.set(step=step)
            graph.replay()
            seen.append(model.up.weight.grad.clone())
            qnn.refresh_weights()
            step_of(model, x)()
            self.assertTrue(torch.equal(seen[-1], model.up.weight.grad))
        self.assertFalse(torch.equal(*seen))
        # The same draws as with noise on the CPU.
        other, cpu_noise = common.model_of(FIXED, dtype=torch.bfloat16)
        cpu_noise.set(step=8)
        step_of(other, x)()
        self.assertTrue(torch.equal(other.up.weight.grad, seen[1]))

    def test_noise_on_the_cpu_is_refused_in_a_capture(self):
        model, noise = common.model_of(FIXED, dtype=torch.bfloat16)
        x = common.draw(256, 64, dtype=torch.bfloat16)
        step_of(model, x)()
        with self.assertRaisesRegex(RuntimeError, "every replay"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                model(x)
        torch.cuda.synchronize()

    def test_workspaces_are_given_back(self):
        x, w = (common.draw(rows, 64, seed=rows, dtype=torch.bfloat16) for rows in (16, 32))
        with torch.no_grad():
            wanted = ops.hadamard_gemm(x, w)
            before = torch.cuda.memory_allocated()
            for _ in range(20):
                self.assertTrue(torch.equal(ops.hadamard_gemm(x, w), wanted))
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_noise_on_a_gpu_is_for_what_is_there(self):
        x = common.draw(64, 64, dtype=torch.bfloat16)
        noise = torch_ops.noise("cuda", seed=1)
        with self.assertRaisesRegex(ValueError, "noise is on cuda:0, what it rounds on the CPU"):
            ops.quantize(x.cpu(), noise, rounding="sr16")
        with self.assertRaisesRegex(ValueError, r"noise is .* \(8,\) of int64"):
            ops.quantize(x, noise[:6], rounding="sr16")
        with self.assertRaisesRegex(ValueError, "give noise on the CPU"):
            ops.quantize(x, noise, rotation=32, signs="per_call")
        on_cpu = ops.quantize(x, torch_ops.noise(seed=1), rounding="sr16")
        for one, other in zip(ops.quantize(x, noise, rounding="sr16"), on_cpu):
            self.assertTrue(torch.equal(one, other))

    def test_peak_memory_of_a_training_step(self):
        def peak(recipe):
            torch.manual_seed(0)
            model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False, device="cuda",
                                                          dtype=torch.bfloat16) for _ in range(8)))
            if recipe:
                qnn.convert(model, common.whole(recipe))
            x = common.draw(8192, 2048, dtype=torch.bfloat16)
            for _ in range(2):  # gradients, and copies of weights, are there the second time
                torch.cuda.reset_peak_memory_stats()
                model(x).float().square().mean().backward()
            return torch.cuda.max_memory_allocated() / 2**20

        plain, figures = peak(None), {}
        for recipe in (recipes.amd_det_h16, recipes.te_mxfp4):
            figures[recipe.name] = peak(recipe)
            # Eight inputs of 32 MiB become 8.5 MiB each; copies of weights are 4.25 MiB a layer.
            self.assertLess(figures[recipe.name], plain - 8 * (32 - 8.5 - 4.25) + 64, recipe.name)
        print(f"\npeak memory of a step, MiB: bf16 {plain:.0f}, "
              + ", ".join(f"{name} {value:.0f}" for name, value in figures.items()))

    def test_arrays_of_other_libraries_by_dlpack(self):
        x = common.draw(64, 128, dtype=torch.bfloat16)

        class Other:
            __dlpack__, __dlpack_device__ = x.__dlpack__, x.__dlpack_device__

        with quarterturn.Context("cuda") as context:
            got, wanted = context.quantize(Other(), rotation=32), context.quantize(x, rotation=32)
            self.assertTrue(torch.equal(got.codes, wanted.codes) and got.codes.is_cuda)
            self.assertTrue(torch.equal(context.gemm(got, got), context.gemm(wanted, wanted)))
            with self.assertRaisesRegex(ValueError, "is on cpu, the context is of cuda:0"):
                context.quantize(x.cpu())

    def test_a_forked_child_is_told_and_ends(self):
        x = common.draw(64, 128, dtype=torch.bfloat16)
        context = quarterturn.Context("cuda")
        plan = context.prepare(context.problem(op="quantize", m=64, k=128, a_type="bf16",
                                               d_type="mxfp4", d_layout="plain"))
        out = torch.empty(64 * 68, dtype=torch.uint8, device="cuda")
        args = quarterturn._library.initialised("args")
        args.m, args.k, args.a, args.d = 64, 128, plan.operand("a"), plan.operand("d")
        args.a.data, args.d.data = x.data_ptr(), out.data_ptr()
        args.d.scales = out[4096:].data_ptr()
        args.workspace_bytes = plan.workspace_bytes
        plan.run(args)
        torch.cuda.synchronize()
        wanted = out.clone()
        pid = os.fork()
        if pid == 0:  # nothing of PyTorch's may run here
            signal.alarm(20)
            code = 1
            try:
                plan.run(args)
            except quarterturn.Error as error:
                print(f"\nin a forked child: {error}", flush=True)
                del plan
                context.close()
                code = 7
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7)
        out.zero_()
        plan.run(args)
        self.assertTrue(torch.equal(out, wanted))

    def test_operands_on_two_devices_are_refused(self):
        a = ops.quantize(common.draw(16, 64))
        with self.assertRaisesRegex(ValueError, "b is on cpu"):
            ops.gemm(*a, *(part.cpu() for part in a))

    def test_operators_follow_their_operands_device_and_stream(self):
        x = common.draw(64, 128, dtype=torch.bfloat16)
        wanted = ops.quantize(x)
        with torch.cuda.stream(torch.cuda.Stream()):
            got = ops.quantize(x)
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(got[0], wanted[0]))
        if torch.cuda.device_count() > 1:
            other = ops.quantize(x.to("cuda:1"))  # the current device is the first
            self.assertEqual(other[0].device.index, 1)
            self.assertTrue(torch.equal(other[0].cpu(), wanted[0].cpu()))

    def test_a_model_trains_in_bf16(self):
        for recipe in (recipes.bf16, recipes.amd_det_h16, FIXED):
            model, noise = common.model_of(recipe, dtype=torch.bfloat16)
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
            losses = []
            for step in range(30):
                noise.set(step=step)
                x = common.draw(256, 64, seed=step % 4, dtype=torch.bfloat16)
                loss = (model(x) - 0.5 * x.roll(1, 1)).float().square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            print(f"\n{recipe.name}: loss {losses[0]:.4f} to {losses[-1]:.4f}")
            self.assertLess(losses[-1], 0.8 * losses[0])


if __name__ == "__main__":
    unittest.main()
