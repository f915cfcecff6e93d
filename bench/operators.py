"""What an operator of torch.ops.quarterturn costs the host beside the kernel that it runs.

    python bench/operators.py [--device cuda] [--json]

Each row: a call, the C function with the same argument struct (on a GPU: until the launch returns),
and the difference, which is what Python and PyTorch add. Of that difference, "PyTorch" is what an
operator of the same schema costs, called alike, whose body does nothing but make its results of
uninitialised memory. `torch add` and `torch mm` are PyTorch's own for scale. The best of several
loops, in microseconds of the calling thread, on tiny operands.
"""

import argparse
import itertools
import json
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
import quarterturn.nn as qnn  # noqa: E402
from quarterturn import torch_ops  # noqa: E402

OPS = torch.ops.quarterturn
EMPTY = torch.library.Library("quarterturn_empty", "DEF")


def costs(device, count, *calls):
    """Microseconds of each call in its fastest loop, of this thread's processor time: what
    interrupts a loop only makes it slower. Loops take turns, as a host's speed changes."""
    best = [float("inf")] * len(calls)
    for loop in range(200):
        for i, call in enumerate(calls):
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.thread_time()
            for _ in range(count):
                call()
            best[i] = min(best[i], (time.thread_time() - begin) / count)
    return [1e6 * each for each in best]


def empty_like(name, results):
    """An operator of quarterturn::<name>'s schema that returns new tensors such as `results`."""
    new = torch_ops.allocator(results[0].get_device())
    made = [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in results]

    def several(*args, **kwargs):
        return tuple(itertools.starmap(new, made))

    def one(*args, **kwargs):
        return new(*made[0])

    schema = str(getattr(OPS, name).default._schema).replace("quarterturn::", "", 1)
    EMPTY.define(schema, tags=torch_ops._TAGS)
    for key in ("CPU", "CUDA"):
        EMPTY.impl(name, several if len(made) > 1 else one, key)
    return getattr(torch.ops.quarterturn_empty, name)


def direct(call):
    """What `call` runs last, as the C function with its struct. Its pointers stay valid while the
    returned function lives: outputs are those of that call."""
    taken, outputs = [], []
    before = torch_ops._calls.Call.run, torch_ops.allocator

    def run(self, block, *where):
        before[0](self, block, *where)
        taken.append(self.take())  # the block itself: no other call has it from here on

    def allocator(index):
        def new(*args):
            outputs.append(before[1](index)(*args))
            return outputs[-1]
        return new

    torch_ops._calls.Call.run, torch_ops.allocator = run, allocator
    try:
        call()
    finally:
        torch_ops._calls.Call.run, torch_ops.allocator = before
    _, function = taken[-1]
    return lambda kept=outputs: function()


def measure(device, count):
    draw = torch.Generator().manual_seed(0)

    def tensor(*shape):
        return torch.randn(*shape, generator=draw).to(device, torch.bfloat16)

    x, w = tensor(16, 64), tensor(32, 64)
    a, b = OPS.quantize(x), OPS.quantize(w)
    noise = torch_ops.noise(seed=1)
    dense = OPS.gemm(*a, *b)
    empty = {name: empty_like(name, results) for name, results in (
        ("quantize", a), ("quantize_both", OPS.quantize_both(x)), ("dequantize", (dense,)),
        ("gemm", (dense,)), ("hadamard_gemm", (dense,)))}
    calls = (("quantize", "quantize", (x,), {}),
             ("quantize, rotation 32", "quantize", (x,), {"rotation": 32}),
             ("quantize, sr16", "quantize", (x, noise), {"rounding": "sr16"}),
             ("quantize_both", "quantize_both", (x,), {}),
             ("dequantize", "dequantize", a, {}),
             ("gemm", "gemm", (*a, *b), {}),
             ("hadamard_gemm", "hadamard_gemm", (x, w), {}))
    rows = []
    with torch.no_grad():
        for name, operator, given, settings in calls:
            real, nothing = getattr(OPS, operator), empty[operator]
            call = lambda: real(*given, **settings)  # noqa: E731
            whole, kernel, pytorch = costs(device, count, call, direct(call),
                                           lambda: nothing(*given, **settings))
            rows.append({"call": name, "us": whole, "kernel_us": kernel, "host_us": whole - kernel,
                         "pytorch_us": pytorch})
        layer = qnn.Linear(64, 32, recipe="amd_det_h16", device=device, dtype=torch.bfloat16)
        plain = torch.nn.Linear(64, 32, device=device, dtype=torch.bfloat16)
        for name, call in (("nn.Linear by amd_det_h16", lambda: layer(x)),
                           ("torch.nn.Linear", lambda: plain(x)), ("torch add", lambda: x + x),
                           ("torch mm", lambda: x @ w.t())):
            rows.append({"call": name, "us": costs(device, count, call)[0]})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu",
                        choices=("cpu", "cuda"))
    parser.add_argument("--count", type=int, default=50, help="calls of a loop")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.device == "cpu":
        torch_ops.configure("cpu", threads=1)  # a tiny product is no work for threads
        torch.set_num_threads(1)
    rows = measure(given.device, given.count)
    if given.json:
        print(json.dumps({"device": given.device, "torch": torch.__version__, "rows": rows}))
        return
    print(f"{'us a call':26}  whole  kernel   host  of it PyTorch")
    for row in rows:
        cells = (f"{row[name]:6.2f}" if name in row else "      "
                 for name in ("us", "kernel_us", "host_us", "pytorch_us"))
        print(f"{row['call']:26} " + " ".join(cells).rstrip())


if __name__ == "__main__":
    main()
