"""torch.ops.quarterturn: MXFP4 quantisation and products as PyTorch operators.

    import quarterturn.torch_ops
    ops = torch.ops.quarterturn
    a, a_scales = ops.quantize(x, rotation=32)            # x [m, k] bf16, f16 or f32
    b, b_scales = ops.quantize(weight, rotation=32)       # weight [n, k]
    y = ops.gemm(a, a_scales, b, b_scales, rotation=32)   # [m, n] bf16
    y = ops.hadamard_gemm(x, weight, rotation=32)         # the same in one call, differentiable

MXFP4 tensors are in the plain layout: codes [rows, K / 2] uint8, low nibble = even element, and
scales [rows, K / 32] uint8 (E8M0), K rounded up to 32 and to the rotation. Plans are prepared for
ranges of token counts (see _calls.token_range), so a new count seldom prepares and never recompiles
a traced graph. Operators run on PyTorch's current stream; outputs and workspace are PyTorch's
memory. On CUDA, prepare before capturing: one call of each shape outside of the graph.

`noise` is a tensor made by `noise(seed=..., step=..., ...)`; `place` is a CPU tensor of int64 of one
layer: its number, then where a shard of its weight begins (row, column) in how many rows and columns
(0: those of this call). They are tensors so that new values do not retrace. A `noise` on the CPU is
read when the operator is called, so a CUDA graph would repeat it at every replay: drawing in a
capture is refused. One on the GPU is read when the kernels run, and may change between replays; it
cannot give signs per call or a token origin, which kernels take from the call.
"""

import torch

from . import _calls

_CONTEXTS = _calls.Contexts()
configure = _CONTEXTS.configure
plan_hashes = _CONTEXTS.hashes

X, WEIGHT, DY = 0, 1, 2  # whose values `quantize` rounds: each draws noise of its own

_TYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_PREPARED = {}
_RANGES = {}
_REPRODUCIBILITY = ["run_to_run"]

_LIBRARY = torch.library.Library("quarterturn", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)


def use_tokens(lo, hi=None):
    """Prepare for these token counts what was tuned for them: `qturn tune --tokens 4096` answers
    for 4096 alone, while operators ask for ranges otherwise."""
    hi = lo if hi is None else hi
    for tokens in range(lo, hi + 1):
        _RANGES[tokens] = (lo, hi)
    _PREPARED.clear()


def use_reproducibility(kind):
    """Of products prepared from now on: "any", "run_to_run" (the default), or "batch_invariant": a
    row's bits do not depend on the others of its range (see use_tokens)."""
    if kind not in ("any", "run_to_run", "batch_invariant"):
        raise ValueError(f"'{kind}': any, run_to_run or batch_invariant")
    if kind != _REPRODUCIBILITY[0]:
        _REPRODUCIBILITY[0] = kind
        _PREPARED.clear()


def kernels():
    """What was prepared so far and still is: [{problem, plan, match}]."""
    out = []
    for prepared in list(_PREPARED.values()):
        told = prepared.plan._context.explain(prepared.plan.problem)
        out.append({name: told[name] for name in ("problem", "plan", "match")})
    return out


def _range(tokens):
    found = _RANGES.get(tokens)
    if found is None:
        found = _RANGES[tokens] = _calls.token_range(tokens)
    return found


# ---- words of counters ----

_MASK = (1 << 64) - 1


def _mixed(*words):
    """64 bits that depend on every word (SplitMix64's finaliser over a running sum)."""
    state = 0
    for word in words:
        state = (state + (word & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def _word(*words):
    return _mixed(*words) & 0xFFFFFFFF


def noise_stream(layer, step, microbatch, tensor):
    """The 32-bit counter word of one tensor's rounding: one of the layer and tensor plus one of the
    time. A weight is rounded once a step, so its word does not depend on the microbatch."""
    return (_word(layer, tensor) + _word(step, 0 if tensor == WEIGHT else microbatch)) & 0xFFFFFFFF


def sign_seed(seed, layer, step):
    """Of signs drawn per call: one vector for each layer and step, whatever the product."""
    return _mixed(seed, layer, step)


NOISE_FIELDS = ("seed", "sign_seed", "step", "microbatch", "token0", "tokens")


def signed(value):
    """A 64-bit word as int64."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def noise_values(**fields):
    """The numbers of a noise tensor: NOISE_FIELDS, then the words of time, of X and dY and of
    weights, which kernels read."""
    unknown = sorted(set(fields) - set(NOISE_FIELDS))
    if unknown:
        raise TypeError(f"noise has no '{unknown[0]}'; it has {', '.join(NOISE_FIELDS)}")
    step, microbatch = fields.get("step", 0), fields.get("microbatch", 0)
    return [signed(fields.get(name, 0)) for name in NOISE_FIELDS] + [
        _word(step, microbatch), _word(step, 0)]


def noise(device="cpu", **fields):
    """What operators draw by: seed, sign_seed (64 bits each), step, microbatch, token0 and tokens (the
    first token of this call and how many there are in all; 0: those of this call)."""
    return torch.tensor(noise_values(**fields), dtype=torch.int64, device=device)


class Drawn:
    """Where a call's noise and signs come from."""

    __slots__ = ("seed", "stream", "seed_at", "stream_at", "sign_seed", "rows", "columns")

    def __init__(self, noise, place, tensor, signs):
        layer, row0, column0, rows, columns = (
            place.tolist() if place is not None else (0, 0, 0, 0, 0))
        self.seed = self.sign_seed = token0 = tokens = 0
        self.stream = _word(layer, tensor)
        self.seed_at = self.stream_at = None
        if noise.is_cuda:
            if signs == "per_call":
                raise ValueError("signs = 'per_call' with noise on the GPU: signs are drawn from "
                                 "the call; give noise on the CPU")
            self.seed_at = noise.data_ptr()
            self.stream_at = self.seed_at + (56 if tensor == WEIGHT else 48)
        else:
            seed, signs, step, _, token0, tokens, word, weight_word = noise.tolist()
            self.seed = seed & _MASK
            self.stream = (self.stream + (weight_word if tensor == WEIGHT else word)) & 0xFFFFFFFF
            self.sign_seed = sign_seed(signs, layer, step)
        # First element and length of both axes of the whole tensor; X is [tokens, columns of W],
        # dY [tokens, rows of W].
        down = (row0, rows) if tensor == WEIGHT else (token0, tokens)
        along = (row0, rows) if tensor == DY else (column0, columns)
        self.rows = (down[0], *along)     # row0, k0, k_global of a row-wise copy
        self.columns = (along[0], *down)  # of the transposed copy, in its own coordinates

    def has_all_rows(self, m):
        """As a call that gives both copies takes it."""
        return self.columns[1] == 0 and self.columns[2] in (0, m)

    def fill(self, args, transposed):
        args.noise_seed, args.noise_stream = self.seed, self.stream
        args.noise_seed_at, args.noise_stream_at = self.seed_at, self.stream_at
        args.row0, args.k0, args.k_global = self.columns if transposed else self.rows
        args.a.sign_seed = args.b.sign_seed = self.sign_seed


def _is_random(rounding, signs):
    return rounding.startswith("sr") or signs == "per_call"


def _drawn(x, noise, place, tensor, rounding, signs):
    if noise is None:
        raise ValueError(f"rounding {rounding}, signs {signs}: give `noise`, a tensor that "
                         "quarterturn.torch_ops.noise(...) makes")
    if x.is_cuda and not noise.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("this noise is on the CPU: every replay of the CUDA graph would repeat it. "
                           "Give noise on the GPU, or run this part eagerly")
    return Drawn(noise, place, tensor, signs)


# ---- running ----

def _index(x):
    return x.device.index if x.is_cuda else -1


def _start(prepared, index):
    """A block with workspace and stream set; the workspace must live until the run."""
    block = prepared.take()
    workspace = None
    size = prepared.workspace_bytes
    if index >= 0:
        block.args.stream = torch._C._cuda_getCurrentRawStream(index)
        if size:
            workspace = torch.empty(size, dtype=torch.uint8, device=f"cuda:{index}")
            block.args.workspace = workspace.data_ptr()
    elif size:
        workspace = torch.empty(size + 64, dtype=torch.uint8)
        at = workspace.data_ptr()
        block.args.workspace = at + -at % 64
    return block, workspace


def _context(index):
    return _CONTEXTS.get("cuda", index) if index >= 0 else _CONTEXTS.get("cpu", -1)


def _type(tensor, what):
    try:
        return _TYPES[tensor.dtype]
    except KeyError:
        raise TypeError(f"{what} holds {tensor.dtype}: float32, bfloat16 or float16 is taken"
                        ) from None


def _matrix(x, what):
    """x, its rows, columns and the distance of its rows."""
    if x.dim() != 2:
        raise ValueError(f"{what} has {x.dim()} dimensions: a matrix is taken; reshape it")
    rows, columns = x.shape
    if x.is_contiguous():
        return x, rows, columns, columns
    if x.stride(1) != 1 and columns > 1:
        return x.contiguous(), rows, columns, columns
    return x, rows, columns, x.stride(0) if rows > 1 else columns


def _padded(k, rotation):
    unit = rotation if rotation > 32 else 32
    return (k + unit - 1) // unit * unit


# ---- quantize ----

_LIBRARY.define(
    "quantize(Tensor x, Tensor? noise=None, Tensor? place=None, *, int rotation=0, "
    "str rounding='rne', str scale_rule='rceil', str scale_block='1x32', str signs='none', "
    "str copies='rows', bool biased=False, int tensor=0) -> (Tensor, Tensor)", tags=_TAGS)
_LIBRARY.define(
    "quantize_both(Tensor x, Tensor? noise=None, Tensor? place=None, *, int rotation=0, "
    "str rounding='rne', str scale_rule='rceil', str scale_block='1x32', str signs='none', "
    "bool biased=False, int tensor=0) -> (Tensor, Tensor, Tensor, Tensor)", tags=_TAGS)


def _prepare_quantize(key, x, m):
    copies, index, _, k, _, rotation, rounding, scale_rule, scale_block, signs, biased = key
    prepared = _calls.Prepared(
        _context(index), _calls.sign_words(signs), op="quantize", role="wgrad", m=_range(m), k=k,
        a_type=_type(x, "x"), d_type="mxfp4", d_layout="plain", rotation=rotation,
        a_rounding=rounding, scale_rule=scale_rule, scale_block=scale_block,
        signs=signs.partition(":")[0], copies=copies, biased="allowed" if biased else "refused")
    prepared.draws = _is_random(rounding, signs)
    _PREPARED[key] = prepared
    return prepared


def _empty_copy(x, rows, k, rotation):
    padded = _padded(k, rotation)
    return (x.new_empty((rows, padded // 2), dtype=torch.uint8),
            x.new_empty((rows, padded // 32), dtype=torch.uint8))


def _quantize_call(x, noise, place, rotation, rounding, scale_rule, scale_block, signs, copies,
                   biased, tensor):
    x, m, k, ld = _matrix(x, "x")
    index = _index(x)
    key = (copies, index, x.dtype, k, _range(m)[1], rotation, rounding, scale_rule, scale_block,
           signs, biased)
    prepared = _PREPARED.get(key) or _prepare_quantize(key, x, m)
    out = _empty_copy(x, *((k, m) if copies == "columns" else (m, k)), rotation)
    block, workspace = _start(prepared, index)
    args, a, d = block.args, block.a, block.d
    args.m, args.k = m, k
    a.data, a.ld = x.data_ptr(), ld
    d.data, d.scales = out[0].data_ptr(), out[1].data_ptr()
    if copies == "both":
        out += _empty_copy(x, k, m, rotation)
        block.d2.data, block.d2.scales = out[2].data_ptr(), out[3].data_ptr()
    if prepared.draws:
        _drawn(x, noise, place, tensor, rounding, signs).fill(args, copies == "columns")
    prepared.run(block)
    return out


def quantize(x, noise=None, place=None, *, rotation=0, rounding="rne", scale_rule="rceil",
              scale_block="1x32", signs="none", copies="rows", biased=False, tensor=X):
    if copies not in ("rows", "columns"):
        raise ValueError(f"copies = '{copies}': rows or columns; quantize_both gives both")
    return _quantize_call(x, noise, place, rotation, rounding, scale_rule, scale_block, signs,
                          copies, biased, tensor)


def quantize_both(x, noise=None, place=None, *, rotation=0, rounding="rne", scale_rule="rceil",
                   scale_block="1x32", signs="none", biased=False, tensor=X):
    if rounding.startswith("sr") and noise is not None and not Drawn(
            noise, place, tensor, signs).has_all_rows(x.shape[0]):
        return tuple(part for copies in ("rows", "columns") for part in _quantize_call(
            x, noise, place, rotation, rounding, scale_rule, scale_block, signs, copies, biased,
            tensor))
    return _quantize_call(x, noise, place, rotation, rounding, scale_rule, scale_block, signs,
                          "both", biased, tensor)


def _quantize_fake(x, noise=None, place=None, *, rotation=0, rounding="rne", scale_rule="rceil",
                   scale_block="1x32", signs="none", copies="rows", biased=False, tensor=X):
    m, k = x.shape
    return _empty_copy(x, *((m, k) if copies == "rows" else (k, m)), rotation)


def _quantize_both_fake(x, noise=None, place=None, *, rotation=0, rounding="rne",
                        scale_rule="rceil", scale_block="1x32", signs="none", biased=False,
                        tensor=X):
    m, k = x.shape
    return (*_empty_copy(x, m, k, rotation), *_empty_copy(x, k, m, rotation))


# ---- dequantize ----

_LIBRARY.define(
    "dequantize(Tensor codes, Tensor scales, *, int rotation=0, ScalarType? dtype=None) -> Tensor",
    tags=_TAGS)


def dequantize(codes, scales, *, rotation=0, dtype=None):
    rows, k = _check_operand(codes, scales, "codes")
    dtype = dtype or torch.float32
    codes, scales = codes.contiguous(), scales.contiguous()
    lo, hi = _range(rows)
    index = _index(codes)
    key = ("dequantize", index, dtype, k, hi, rotation)
    prepared = _PREPARED.get(key)
    if prepared is None:
        prepared = _PREPARED[key] = _calls.Prepared(
            _context(index), op="dequantize", role="fprop", m=(lo, hi), k=k, a_type="mxfp4",
            d_type=_TYPES[dtype], a_layout="plain", rotation=rotation)
    out = codes.new_empty((rows, k), dtype=dtype)
    block, workspace = _start(prepared, index)
    block.args.m, block.args.k = rows, k
    block.a.data, block.a.scales = codes.data_ptr(), scales.data_ptr()
    block.d.data = out.data_ptr()
    prepared.run(block)
    return out


def _dequantize_fake(codes, scales, *, rotation=0, dtype=None):
    return codes.new_empty((codes.shape[0], codes.shape[1] * 2), dtype=dtype or torch.float32)


# ---- gemm ----

_LIBRARY.define(
    "gemm(Tensor a, Tensor a_scales, Tensor b, Tensor b_scales, Tensor? bias=None, *, "
    "int rotation=0, ScalarType? dtype=None, str role='fprop', str scale_rule='rceil', "
    "str contract='exact', str spread='any', float alpha=1.0) -> Tensor", tags=_TAGS)
_LIBRARY.define(
    "gemm_add_(Tensor(a!) d, Tensor a, Tensor a_scales, Tensor b, Tensor b_scales, *, "
    "int rotation=0, str role='wgrad', str scale_rule='rceil', str contract='exact', "
    "str spread='any', float alpha=1.0, float beta=1.0) -> ()", tags=_TAGS[:1])


def _check_operand(codes, scales, what):
    rows, half = codes.shape
    if half % 16 or scales.shape != (rows, half // 16):
        raise ValueError(f"{what}: codes are {tuple(codes.shape)}, scales {tuple(scales.shape)}: "
                         "[rows, K / 2] and [rows, K / 32] belong together")
    if codes.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise TypeError(f"{what}: codes hold {codes.dtype}, scales {scales.dtype}: uint8 is taken")
    return rows, half * 2


def _prepare_gemm(key, m, k, lo, hi):
    _, index, dtype, _, n, _, rotation, ts34, role, contract, spread, side, adds = key
    more = {} if side is None else dict(bias="per_column", c_type=_TYPES[side])
    if adds:
        more["accumulate"] = "accumulate"
    sizes = dict(k=(lo, hi), m=m) if role == "wgrad" else dict(m=(lo, hi), k=k)
    prepared = _calls.Prepared(
        _context(index), op="gemm", role=role, n=n, **sizes, a_type="mxfp4", b_type="mxfp4",
        d_type=_TYPES[dtype], a_layout="plain", b_layout="plain", rotation=rotation,
        scale_rule="ts34" if ts34 else "rceil", contract=contract, spread=spread,
        reproducibility=_REPRODUCIBILITY[0], **more)
    _PREPARED[key] = prepared
    return prepared


def _gemm_call(d, a, a_scales, b, b_scales, bias, rotation, role, scale_rule, contract, spread,
               alpha, beta):
    m, k = _check_operand(a, a_scales, "a")
    n, b_k = _check_operand(b, b_scales, "b")
    if k != b_k:
        raise ValueError(f"a has K = {k}, b K = {b_k}: the contracted axes must agree")
    if not (a.is_contiguous() and a_scales.is_contiguous() and b.is_contiguous()
            and b_scales.is_contiguous()):
        a, a_scales, b, b_scales = (t.contiguous() for t in (a, a_scales, b, b_scales))
    wgrad = role == "wgrad"
    lo, hi = _range(k if wgrad else m)
    index = _index(a)
    # Of scale rules only ts34 changes a product; the others are what quantising followed.
    key = ("gemm", index, d.dtype, m if wgrad else k, n, hi, rotation, scale_rule == "ts34", role,
           contract, spread, None if bias is None else bias.dtype, beta != 0.0)
    prepared = _PREPARED.get(key) or _prepare_gemm(key, m, k, lo, hi)
    block, workspace = _start(prepared, index)
    args, block_a, block_b = block.args, block.a, block.b
    args.m, args.n, args.k, args.alpha = m, n, k, alpha
    block_a.data, block_a.scales = a.data_ptr(), a_scales.data_ptr()
    block_b.data, block_b.scales = b.data_ptr(), b_scales.data_ptr()
    at = d.data_ptr()
    block.d.data = at
    if beta != 0.0:
        block.d.ld = args.ldc = d.stride(0)
        args.beta, args.c = beta, at
    if bias is not None:
        args.bias = bias.data_ptr()
    prepared.run(block)


def gemm(a, a_scales, b, b_scales, bias=None, *, rotation=0, dtype=None, role="fprop",
          scale_rule="rceil", contract="exact", spread="any", alpha=1.0):
    d = a.new_empty((a.shape[0], b.shape[0]), dtype=dtype or torch.bfloat16)
    if bias is not None:
        if tuple(bias.shape) != (b.shape[0],):
            raise ValueError(f"bias is {tuple(bias.shape)}: [{b.shape[0]}] is needed")
        bias = bias.contiguous()
    _gemm_call(d, a, a_scales, b, b_scales, bias, rotation, role, scale_rule, contract, spread,
               alpha, 0.0)
    return d


def _gemm_fake(a, a_scales, b, b_scales, bias=None, *, rotation=0, dtype=None, role="fprop",
               scale_rule="rceil", contract="exact", spread="any", alpha=1.0):
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype or torch.bfloat16)


def gemm_add_(d, a, a_scales, b, b_scales, *, rotation=0, role="wgrad", scale_rule="rceil",
              contract="exact", spread="any", alpha=1.0, beta=1.0):
    if tuple(d.shape) != (a.shape[0], b.shape[0]) or d.stride(1) != 1:
        raise ValueError(f"d is {tuple(d.shape)} with strides {d.stride()}: rows of "
                         f"[{a.shape[0]}, {b.shape[0]}], each contiguous, are needed")
    _gemm_call(d, a, a_scales, b, b_scales, None, rotation, role, scale_rule, contract, spread,
               alpha, beta)


def _gemm_add_fake(d, a, a_scales, b, b_scales, *, rotation=0, role="wgrad", scale_rule="rceil",
                   contract="exact", spread="any", alpha=1.0, beta=1.0):
    return None


# ---- hadamard_gemm ----

_LIBRARY.define(
    "hadamard_gemm(Tensor a, Tensor b, Tensor? noise=None, *, int rotation=32, "
    "str rounding='rne', str scale_rule='rceil', str signs='none', ScalarType? dtype=None, "
    "str contract='exact', str spread='any', float alpha=1.0) -> Tensor", tags=_TAGS)


def hadamard_gemm(a, b, noise=None, *, rotation=32, rounding="rne", scale_rule="rceil",
                   signs="none", dtype=None, contract="exact", spread="any", alpha=1.0):
    (a, m, k, a_ld), (b, n, b_k, b_ld) = _matrix(a, "a"), _matrix(b, "b")
    if b_k != k:
        raise ValueError(f"a is {tuple(a.shape)}, b {tuple(b.shape)}: their columns must agree")
    lo, hi = _range(m)
    dtype = dtype or a.dtype
    index = _index(a)
    key = ("hadamard_gemm", index, a.dtype, b.dtype, dtype, n, k, hi, rotation, rounding,
           scale_rule, signs, contract, spread)
    prepared = _PREPARED.get(key)
    if prepared is None:
        prepared = _PREPARED[key] = _calls.Prepared(
            _context(index), _calls.sign_words(signs), op="hadamard_gemm", role="fprop", m=(lo, hi),
            n=n, k=k, a_type=_type(a, "a"), b_type=_type(b, "b"), d_type=_TYPES[dtype],
            rotation=rotation, signs=signs.partition(":")[0], scale_rule=scale_rule,
            a_rounding=rounding, b_rounding=rounding, contract=contract, spread=spread)
    d = a.new_empty((m, n), dtype=dtype)
    block, workspace = _start(prepared, index)
    args = block.args
    args.m, args.n, args.k = m, n, k
    block.a.data, block.a.ld = a.data_ptr(), a_ld
    block.b.data, block.b.ld = b.data_ptr(), b_ld
    block.d.data = d.data_ptr()
    args.alpha = alpha
    if _is_random(rounding, signs):
        _drawn(a, noise, None, X, rounding, signs).fill(args, False)
    prepared.run(block)
    return d


def _hadamard_gemm_fake(a, b, noise=None, *, rotation=32, rounding="rne", scale_rule="rceil",
                        signs="none", dtype=None, contract="exact", spread="any", alpha=1.0):
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype or a.dtype)


def _hadamard_gemm_context(ctx, inputs, keyword_only_inputs, output):
    a, b, _ = inputs
    ctx.alpha = keyword_only_inputs["alpha"]
    ctx.save_for_backward(a, b)


def _hadamard_gemm_backward(ctx, dy):
    """Straight through the rounding, in dY's precision: quarterturn.nn has gradients in MXFP4."""
    a, b = ctx.saved_tensors
    da = db = None
    if ctx.needs_input_grad[0]:
        da = (dy @ b.to(dy.dtype) * ctx.alpha).to(a.dtype)
    if ctx.needs_input_grad[1]:
        db = (dy.t() @ a.to(dy.dtype) * ctx.alpha).to(b.dtype)
    return da, db, None


def register(name, kernel, fake, library=_LIBRARY):
    """One body for the CPU and for CUDA, and what tracing sees."""
    for key in ("CPU", "CUDA"):
        library.impl(name, kernel, key)
    torch.library.register_fake(f"quarterturn::{name}", fake, lib=library)


register("quantize", quantize, _quantize_fake)
register("quantize_both", quantize_both, _quantize_both_fake)
register("dequantize", dequantize, _dequantize_fake)
register("gemm", gemm, _gemm_fake)
register("gemm_add_", gemm_add_, _gemm_add_fake)
register("hadamard_gemm", hadamard_gemm, _hadamard_gemm_fake)
torch.library.register_autograd("quarterturn::hadamard_gemm", _hadamard_gemm_backward,
                                setup_context=_hadamard_gemm_context, lib=_LIBRARY)
