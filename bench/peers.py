#!/usr/bin/env python3
"""Times Quarterturn beside what Triton and PyTorch offer, in one process on one NVIDIA GPU.

    python3 bench/peers.py [quantize] [gemm] [grouped] [mlp]      (none: all)

Needs torch and triton, and libquarterturn (QTURN_LIBRARY, or a build folder of this tree). Each
contender of quantize rotates through buffers beyond twice the L2; a product's operands are larger.
Burst is the median of short timings, sustained the mean of the second half of --seconds of unbroken
running. Products say how far they are from PyTorch's in bf16, quantisers how many bytes equal ours.
"""

import argparse
import json
import math
import sys
import time

import torch
import triton
import triton.language as tl

import qturn

DEVICE = torch.device("cuda")
SHAPES = [(8192, 4096, 4096), (8192, 14336, 4096), (8192, 4096, 14336)]
ROTATION = 32


# ---- measuring ----

def measure(call, seconds):
    """Seconds of one call(i): median of short bursts, and sustained."""
    for i in range(3):
        call(i)
    torch.cuda.synchronize()

    def timed(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for i in range(count):
            call(i)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / count

    guess = max(timed(3), 1e-6)
    count = max(3, int(0.02 / guess))
    bursts = []
    for _ in range(5):
        bursts.append(timed(count))
        time.sleep(0.02)
    half = max(3, int(seconds / 2 / guess))
    for i in range(half):
        call(i)
    return sorted(bursts)[2], timed(half)


class Report:
    def __init__(self, options):
        self.options = options

    def show(self, group, name, call, work=0.0, moved=0.0, note=""):
        try:
            burst, sustained = measure(call, self.options.seconds)
        except Exception as error:  # a peer that cannot run here is a line, not the end
            self.missing(group, name, error)
            return None
        row = {"group": group, "contender": name, "us_burst": round(burst * 1e6, 2),
               "us_sustained": round(sustained * 1e6, 2)}
        if work:
            row["tflops_sustained"] = round(work / sustained * 1e-12, 1)
        if moved:
            row["gb_per_s_sustained"] = round(moved / sustained * 1e-9, 1)
        if note:
            row["note"] = note
        self.line(row)
        return sustained

    def missing(self, group, name, error):
        self.line({"group": group, "contender": name, "missing": str(error).splitlines()[0][:300]
                   if str(error) else type(error).__name__})

    def line(self, row):
        if self.options.json:
            print(json.dumps(row), flush=True)
        else:
            print("  ".join(f"{k}={v}" for k, v in row.items()), flush=True)


def relative(got, wanted):
    got, wanted = got.float(), wanted.float()
    return float((got - wanted).norm() / wanted.norm())


def copies_for(bytes_of_call):
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return max(1, min(16, math.ceil(2.2 * l2 / bytes_of_call)))


# ---- Quarterturn ----

class Ours:
    def __init__(self):
        self.library = qturn.Library(backend="cuda")
        self.workspace = torch.empty(1, dtype=torch.uint8, device=DEVICE)

    def plan(self, *args, **members):
        plan = self.library.prepare(self.library.problem(*args, **members))
        if plan.workspace_bytes > self.workspace.numel():
            torch.cuda.synchronize()
            self.workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=DEVICE)
        return plan

    def call(self, plan, **operands):
        args = plan.args(workspace=self.workspace.data_ptr(),
                         stream=torch.cuda.current_stream().cuda_stream, **operands)
        plan.run(args)

    def quantized(self, x, layout):
        """Codes and scales of x [rows, k] in a layout, rotated."""
        rows, k = x.shape
        plan = self.plan("quantize", rows, k, a_type="bf16", d_type="mxfp4", rotation=ROTATION,
                         d_layout=layout)
        d = plan.operand("d")
        codes = torch.empty(max(d.data_bytes, 1), dtype=torch.uint8, device=DEVICE)
        scales = torch.empty(max(d.scales_bytes, 1), dtype=torch.uint8, device=DEVICE)
        self.call(plan, m=rows, k=k, a=x.data_ptr(), d=(codes.data_ptr(), scales.data_ptr()))
        return codes, scales


# ---- rotation and rounding by others ----

def hadamard_matrix(g):
    h = torch.ones(1, 1)
    while h.shape[0] < g:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return (h / math.sqrt(g)).to(DEVICE)


def torch_quantize(x, h):
    """RCEIL scales and RNE codes of blocks of 32, after the rotation: [rows, k/2], [rows, k/32]."""
    blocks = (x.float().view(-1, ROTATION) @ h).view(-1, 32)
    bits = (blocks.abs().amax(1) * (1.0 / 6.0)).view(torch.int32)
    exponent = torch.clamp((bits >> 23) + ((bits & 0x7FFFFF) != 0).int(), 0, 254)
    scaled = blocks * torch.exp2(127.0 - exponent.float())[:, None]
    size = scaled.abs()
    code = ((size > 0.25).int() + (size >= 0.75).int() + (size > 1.25).int() + (size >= 1.75).int()
            + (size > 2.5).int() + (size >= 3.5).int() + (size > 5.0).int())
    code = (code | ((scaled < 0).int() << 3)).view(-1, 16, 2)
    packed = (code[..., 0] | (code[..., 1] << 4)).to(torch.uint8)
    return packed.view(x.shape[0], -1), exponent.to(torch.uint8).view(x.shape[0], -1)


@triton.jit
def triton_quantize_kernel(x, h, codes, scales, blocks: tl.constexpr, total):
    first = tl.program_id(0) * blocks
    at = first + tl.arange(0, blocks)
    inside = at[:, None] < total
    column = tl.arange(0, 32)
    values = tl.load(x + at[:, None].to(tl.int64) * 32 + column[None, :], mask=inside, other=0.0)
    matrix = tl.load(h + column[:, None] * 32 + column[None, :])
    rotated = tl.dot(values, matrix) * 0.17677669529663687
    bits = (tl.max(tl.abs(rotated), 1) * (1.0 / 6.0)).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    exponent = tl.minimum(exponent, 253)
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    scaled = rotated * scale[:, None]
    size = tl.abs(scaled)
    code = ((size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
            + (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
            + (size > 5.0).to(tl.int32))
    code = code | ((scaled < 0).to(tl.int32) << 3)
    low, high = tl.split(tl.reshape(code, (blocks, 16, 2)))
    byte = tl.arange(0, 16)
    tl.store(codes + at[:, None].to(tl.int64) * 16 + byte[None, :],
             (low | (high << 4)).to(tl.uint8), mask=inside)
    tl.store(scales + at, exponent.to(tl.uint8), mask=at < total)


def triton_quantize(x, h, codes, scales):
    total = x.numel() // 32
    blocks = 128
    triton_quantize_kernel[(triton.cdiv(total, blocks),)](x, h, codes, scales, blocks, total)


def bench_quantize(report, ours):
    m, k = 16384, 8192
    group = f"quantize {m}x{k} bf16, rotation {ROTATION}, RCEIL, RNE"
    count = copies_for(m * k * 2)
    xs = [torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16) for _ in range(count)]
    moved = m * k * (2 + 0.5 + 1 / 32)
    h = hadamard_matrix(ROTATION)
    signs = (h * math.sqrt(ROTATION)).to(torch.bfloat16)
    codes = torch.empty(m, k // 2, dtype=torch.uint8, device=DEVICE)
    scales = torch.empty(m, k // 32, dtype=torch.uint8, device=DEVICE)
    half = torch.empty(int(moved) // 4, dtype=torch.int16, device=DEVICE)
    to = torch.empty_like(half)
    report.show(group, "copy of the same bytes", lambda i: to.copy_(half), moved=moved)

    wanted = ours.quantized(xs[0], "plain")
    plan = ours.plan("quantize", m, k, a_type="bf16", d_type="mxfp4", rotation=ROTATION,
                     d_layout="plain")
    calls = [plan.args(m=m, k=k, a=x.data_ptr(), d=(codes.data_ptr(), scales.data_ptr()),
                       workspace=ours.workspace.data_ptr(),
                       stream=torch.cuda.current_stream().cuda_stream) for x in xs]
    report.show(group, "quarterturn", lambda i: plan.run(calls[i % count]), moved=moved)

    def agree(got_codes, got_scales):
        same = (got_codes.flatten() == wanted[0][:got_codes.numel()]).float().mean()
        same_scales = (got_scales.flatten() == wanted[1][:got_scales.numel()]).float().mean()
        return f"bytes equal to ours: codes {float(same):.4f}, scales {float(same_scales):.4f}"

    try:
        triton_quantize(xs[0], signs, codes, scales)
        note = agree(codes, scales)
        report.show(group, "triton, rotation by tl.dot",
                    lambda i: triton_quantize(xs[i % count], signs, codes, scales), moved=moved,
                    note=note)
    except Exception as error:
        report.missing(group, "triton, rotation by tl.dot", error)
    try:
        compiled = torch.compile(torch_quantize)
        note = agree(*compiled(xs[0], h))
        report.show(group, "torch.compile", lambda i: compiled(xs[i % count], h), moved=moved,
                    note=note)
    except Exception as error:
        report.missing(group, "torch.compile", error)


# ---- products ----

@triton.jit
def dot_scaled_kernel(a, a_scale, b, b_scale, d, m, n, k: tl.constexpr, tile_m: tl.constexpr,
                      tile_n: tl.constexpr, tile_k: tl.constexpr, group_m: tl.constexpr):
    tiles_m, tiles_n = tl.cdiv(m, tile_m), tl.cdiv(n, tile_n)
    program = tl.program_id(0)
    band = program // (group_m * tiles_n)
    rows = tl.minimum(tiles_m - band * group_m, group_m)
    tile_row = band * group_m + (program % (group_m * tiles_n)) % rows
    tile_column = (program % (group_m * tiles_n)) // rows
    i = tile_row * tile_m + tl.arange(0, tile_m)
    j = tile_column * tile_n + tl.arange(0, tile_n)
    half = tl.arange(0, tile_k // 2)
    block = tl.arange(0, tile_k // 32)
    total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for first in range(0, k, tile_k):
        a_codes = tl.load(a + i[:, None].to(tl.int64) * (k // 2) + (first // 2 + half)[None, :])
        b_codes = tl.load(b + j[None, :].to(tl.int64) * (k // 2) + (first // 2 + half)[:, None])
        a_scales = tl.load(a_scale + i[:, None] * (k // 32) + (first // 32 + block)[None, :])
        b_scales = tl.load(b_scale + j[:, None] * (k // 32) + (first // 32 + block)[None, :])
        total = tl.dot_scaled(a_codes, a_scales, "e2m1", b_codes, b_scales, "e2m1", total)
    tl.store(d + i[:, None].to(tl.int64) * n + j[None, :], total.to(tl.bfloat16))


def dot_scaled(a, a_scale, b, b_scale, d, tiles):
    m, n, k = a.shape[0], b.shape[0], a.shape[1] * 2
    tile_m, tile_n, tile_k, warps, stages = tiles
    grid = (triton.cdiv(m, tile_m) * triton.cdiv(n, tile_n),)
    dot_scaled_kernel[grid](a, a_scale, b, b_scale, d, m, n, k, tile_m, tile_n, tile_k, 8,
                            num_warps=warps, num_stages=stages)


DOT_SCALED_TILES = [(128, 128, 128, 8, 3), (128, 256, 64, 8, 3), (128, 128, 64, 4, 3)]


def bench_gemm(report, ours):
    for m, n, k in SHAPES:
        work = 2.0 * m * n * k
        group = f"gemm {m}x{n}x{k}"
        a = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
        b = torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16) * 0.02
        d = torch.empty(m, n, device=DEVICE, dtype=torch.bfloat16)
        # Exact, as the rotation is orthogonal: what quantisation costs in accuracy shows beside it.
        wanted = a @ b.t()
        report.show(group, "torch.matmul bf16", lambda i: torch.matmul(a, b.t(), out=d), work)

        a8, b8 = a.to(torch.float8_e4m3fn), b.mul(16).to(torch.float8_e4m3fn)
        one = torch.ones((), device=DEVICE)
        for fast in (True, False):
            report.show(group, f"torch._scaled_mm e4m3, fast_accum={fast}",
                        lambda i: torch._scaled_mm(a8, b8.t(), scale_a=one, scale_b=one,
                                                   out_dtype=torch.bfloat16, use_fast_accum=fast),
                        work)
        del a8, b8

        for name, members in (("quarterturn int8, exact sums", dict(spread=1)),
                              ("quarterturn e5m2, fast", dict(contract=1))):
            try:
                plan = ours.plan("gemm", m, k, n, role="fprop", a_type="mxfp4", b_type="mxfp4",
                                 d_type="bf16", rotation=ROTATION, **members)
                names = {value: key for key, value in qturn.LAYOUTS.items()}
                qa = ours.quantized(a, names[plan.operand("a").layout])
                qb = ours.quantized(b, names[plan.operand("b").layout])
                args = plan.args(m=m, n=n, k=k, a=tuple(t.data_ptr() for t in qa),
                                 b=tuple(t.data_ptr() for t in qb), d=d.data_ptr(),
                                 workspace=ours.workspace.data_ptr(),
                                 stream=torch.cuda.current_stream().cuda_stream)
                plan.run(args)
                report.show(group, name, lambda i: plan.run(args), work,
                            note=f"relative to bf16 {relative(d, wanted):.3f}")
            except (qturn.Error, KeyError) as error:
                report.missing(group, name, error)
            try:
                whole = ours.plan("hadamard_gemm", m, k, n, role="fprop", a_type="bf16",
                                  b_type="bf16", d_type="bf16", rotation=ROTATION, **members)
                args = whole.args(m=m, n=n, k=k, a=a.data_ptr(), b=b.data_ptr(), d=d.data_ptr(),
                                  workspace=ours.workspace.data_ptr(),
                                  stream=torch.cuda.current_stream().cuda_stream)
                whole.run(args)
                report.show(group, name + ", both operands rotated and rounded on the way",
                            lambda i: whole.run(args), work,
                            note=f"relative to bf16 {relative(d, wanted):.3f}")
            except qturn.Error as error:
                report.missing(group, name + " from bf16", error)

        qa, qb = ours.quantized(a, "plain"), ours.quantized(b, "plain")
        a4, a_scale = qa[0][:m * k // 2].view(m, k // 2), qa[1][:m * k // 32].view(m, k // 32)
        b4, b_scale = qb[0][:n * k // 2].view(n, k // 2), qb[1][:n * k // 32].view(n, k // 32)
        best = None
        for tiles in DOT_SCALED_TILES:
            try:
                dot_scaled(a4, a_scale, b4, b_scale, d, tiles)
                torch.cuda.synchronize()
                burst, _ = measure(lambda i: dot_scaled(a4, a_scale, b4, b_scale, d, tiles), 0.02)
                if best is None or burst < best[0]:
                    best = (burst, tiles, relative(d, wanted))
            except Exception as error:
                report.missing(group, f"triton tl.dot_scaled {tiles}", error)
        if best:
            report.show(group, f"triton tl.dot_scaled {best[1]}",
                        lambda i: dot_scaled(a4, a_scale, b4, b_scale, d, best[1]), work,
                        note=f"relative to bf16 {best[2]:.3f}")


def bench_grouped(report, ours):
    experts, tokens, n, k = 16, 16384, 4096, 4096
    group = f"grouped {experts} experts, {tokens} tokens, {n}x{k}"
    a = torch.randn(tokens, k, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(experts, n, k, device=DEVICE, dtype=torch.bfloat16) * 0.02
    # Equal shares, and shares as a router gives them: one group empty, one with half of the tokens.
    skewed = [0, tokens // 2] + [tokens // 2 // (experts - 2)] * (experts - 3)
    skewed.append(tokens - sum(skewed))
    shares = {"equal groups": [tokens // experts] * experts, "skewed groups": skewed}
    d = torch.empty(tokens, n, device=DEVICE, dtype=torch.bfloat16)
    work = 2.0 * tokens * n * k
    for name, members in (("quarterturn int8, exact sums", dict(spread=1)),
                          ("quarterturn e5m2, fast", dict(contract=1))):
        for share, counts in shares.items():
            ends = torch.tensor(counts, device=DEVICE).cumsum(0).int()
            wanted = torch._grouped_mm(a, b.transpose(1, 2), offs=ends)
            if members == dict(spread=1):
                report.show(group, f"torch._grouped_mm bf16, {share}",
                            lambda i: torch._grouped_mm(a, b.transpose(1, 2), offs=ends), work)
            for op, types in (("gemm", "mxfp4"), ("hadamard_gemm", "bf16")):
                note = "" if op == "gemm" else ", operands rotated and rounded on the way"
                try:
                    plan = ours.plan(op, tokens, k, n, role="fprop", a_type=types, b_type=types,
                                     d_type="bf16", rotation=ROTATION, grouping=1,
                                     groups=(experts, experts), **members)
                    operands = (a.data_ptr(), b.data_ptr())
                    if op == "gemm":  # rows of groups are quantised like any others
                        names = {value: key for key, value in qturn.LAYOUTS.items()}
                        held = [ours.quantized(x, names[plan.operand(which).layout])
                                for x, which in ((a, "a"), (b.view(experts * n, k), "b"))]
                        operands = [tuple(t.data_ptr() for t in one) for one in held]
                    args = plan.args(m=tokens, n=n, k=k, groups=experts, a=operands[0],
                                     b=operands[1], d=d.data_ptr(), group_ends=ends.data_ptr(),
                                     workspace=ours.workspace.data_ptr(),
                                     stream=torch.cuda.current_stream().cuda_stream)
                    plan.run(args)
                    report.show(group, f"{name}{note}, {share}", lambda i: plan.run(args), work,
                                note=f"relative to bf16 {relative(d, wanted):.3f}")
                except (qturn.Error, KeyError) as error:
                    report.missing(group, f"{name}{note}, {share}", error)


# ---- a SwiGLU MLP, forward and backward ----

class Linear:
    """Y = X W^T with its two gradients, each a plan of its own; gradients take FP8 sums."""

    def __init__(self, ours, tokens, n, k):
        self.ours, self.tokens, self.n, self.k = ours, tokens, n, k
        common = dict(a_type="bf16", b_type="bf16", d_type="bf16", rotation=ROTATION, contract=1)
        self.fprop = ours.plan("hadamard_gemm", tokens, k, n, role="fprop", spread=1, **common)
        self.dgrad = ours.plan("hadamard_gemm", tokens, n, k, role="dgrad",
                               b_major=qturn.ROWS_MAJOR, **common)
        self.wgrad = ours.plan("hadamard_gemm", n, tokens, k, role="wgrad",
                               a_major=qturn.ROWS_MAJOR, b_major=qturn.ROWS_MAJOR, **common)

    def function(self):
        linear = self

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(context, x, w):
                context.save_for_backward(x, w)
                y = torch.empty(linear.tokens, linear.n, device=DEVICE, dtype=torch.bfloat16)
                linear.ours.call(linear.fprop, m=linear.tokens, n=linear.n, k=linear.k,
                                 a=x.data_ptr(), b=w.data_ptr(), d=y.data_ptr())
                return y

            @staticmethod
            def backward(context, dy):
                x, w = context.saved_tensors
                dy = dy.contiguous()
                dx, dw = torch.empty_like(x), torch.empty_like(w)
                linear.ours.call(linear.dgrad, m=linear.tokens, n=linear.k, k=linear.n,
                                 a=dy.data_ptr(), b=w.data_ptr(), d=dx.data_ptr())
                linear.ours.call(linear.wgrad, m=linear.n, n=linear.k, k=linear.tokens,
                                 a=dy.data_ptr(), b=x.data_ptr(), d=dw.data_ptr())
                return dx, dw

        return Product.apply


def bench_mlp(report, ours):
    tokens, hidden, inner = 8192, 4096, 14336
    work = 3 * 3 * 2.0 * tokens * hidden * inner
    group = f"SwiGLU MLP {hidden}/{inner}, {tokens} tokens, forward + backward"
    x = torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    gate_up = (torch.randn(2 * inner, hidden, device=DEVICE) * 0.02).bfloat16().requires_grad_()
    down = (torch.randn(hidden, inner, device=DEVICE) * 0.02).bfloat16().requires_grad_()
    dy = torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16)

    def swiglu(h):
        gate, up = h.chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up

    def plain(x, gate_up, down):
        return torch.nn.functional.linear(swiglu(torch.nn.functional.linear(x, gate_up)), down)

    def step(forward):
        for tensor in (x, gate_up, down):
            tensor.grad = None
        y = forward(x, gate_up, down)
        y.backward(dy)
        return [y.detach()] + [t.grad.detach().clone() for t in (x, gate_up, down)]

    compiled = torch.compile(plain)
    wanted = step(compiled)
    report.show(group, "torch.compile bf16", lambda i: step(compiled), work)
    try:
        first = Linear(ours, tokens, 2 * inner, hidden).function()
        second = Linear(ours, tokens, hidden, inner).function()
        activation = torch.compile(swiglu)

        def quantized(x, gate_up, down):
            return second(activation(first(x, gate_up)), down)

        got = step(quantized)
        note = "relative to bf16: " + ", ".join(
            f"{name} {relative(g, w):.3f}"
            for name, g, w in zip(("y", "dx", "d gate_up", "d down"), got, wanted))
        report.show(group, "quarterturn, six quantised products", lambda i: step(quantized), work,
                    note=note)
    except qturn.Error as error:
        report.missing(group, "quarterturn", error)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sections = {"quantize": bench_quantize, "gemm": bench_gemm, "grouped": bench_grouped,
                "mlp": bench_mlp}
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(sections)}; none: all")
    parser.add_argument("--seconds", type=float, default=0.4, help="of sustained running")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in sections]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(sections)}")
    report = Report(options)
    report.line({"device": torch.cuda.get_device_name(0), "torch": torch.__version__,
                 "triton": triton.__version__, "cuda": torch.version.cuda})
    ours = Ours()
    for name in options.sections or sections:
        try:
            sections[name](report, ours)
        except Exception as error:
            report.missing(name, "section", error)
        torch.cuda.empty_cache()
    ours.library.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
