"""torch.ops.quarterturn: MXFP4 quantisation and products as PyTorch operators.

    import quarterturn.torch_ops
    ops = torch.ops.quarterturn
    a, a_scales = ops.quantize(x, rotation=32)            # x [m, k] bf16, f16 or f32
    b, b_scales = ops.quantize(weight, rotation=32)       # weight [n, k]
    y = ops.gemm(a, a_scales, b, b_scales, rotation=32)   # [m, n] bf16
    y = ops.hadamard_gemm(x, weight, rotation=32)         # the same in one call, differentiable
    y = ops.weight_gemm(x, b, b_scales)                   # x as it is: a weight without a rotation

MXFP4 tensors are in the plain layout: codes [rows, K / 2] uint8, low nibble = even element, and
scales [rows, K / 32] uint8 (E8M0), K rounded up to 32 and to the rotation. Plans are prepared for
ranges of token counts (see _calls.token_range), so a new count seldom prepares and never recompiles
a traced graph. Operators run on PyTorch's current stream; outputs and workspace are PyTorch's
memory. On CUDA, prepare before capturing: one call of each shape outside of the graph.

hadamard_gemm and weight_gemm are differentiable; `gemm`, a product of codes, is not, nor in its
bias: add one to the result where it is trained.

What a call costs the host beside the kernel is told by bench/operators.py.

`noise` is a tensor made by `noise(seed=..., step=..., ...)`; `place` is a CPU tensor of int64 of
one layer: its number, then where a shard of its weight begins (row, column) in how many rows and
columns (0: those of this call). They are tensors so that new values do not retrace. A `noise` on
the CPU is read when the operator is called, so a CUDA graph would repeat it at every replay:
drawing in a capture is refused. One on the GPU is read when the kernels run, and may change between
replays; it cannot give signs per call or a token origin, which kernels take from the call.
"""

import torch

from . import _calls
from ._calls import WORD
from ._memory import allocator
from ._noise import (DY, NOISE_FIELDS, WEIGHT, X, draw, has_all_rows, is_random,  # noqa: F401
                     noise, noise_stream, noise_values, sign_seed)
from ._operands import check_device, check_operand, copy_shapes, matrix, name_of, type_of

_CONTEXTS = _calls.Contexts()
configure = _CONTEXTS.configure
plan_hashes = _CONTEXTS.hashes

_PREPARED = {}           # plans, each for a range of token counts
_CALLS = _calls.Calls()  # those plans at the sizes that were called
_RANGES = {}
_KINDS = {"any": "repro_any", "run_to_run": "run_to_run", "batch_invariant": "batch_invariant"}
_REPRODUCIBILITY = ["run_to_run"]  # one of those values

_LIBRARY = torch.library.Library("quarterturn", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)


def forget():
    """Every problem is prepared anew when it is next called."""
    _PREPARED.clear()
    _CALLS.clear()


def use_tokens(lo, hi=None):
    """Prepare for these token counts what was tuned for them: `qturn tune --tokens 4096` answers
    for 4096 alone, while operators ask for ranges otherwise."""
    hi = lo if hi is None else hi
    for tokens in range(lo, hi + 1):
        _RANGES[tokens] = (lo, hi)
    forget()


def use_reproducibility(kind):
    """Of products prepared from now on: "any", "run_to_run" (the default), or "batch_invariant": a
    row's bits do not depend on the others of its range (see use_tokens)."""
    if kind not in _KINDS:
        raise ValueError(f"'{kind}': any, run_to_run or batch_invariant")
    if _KINDS[kind] != _REPRODUCIBILITY[0]:
        _REPRODUCIBILITY[0] = _KINDS[kind]
        forget()


def reload():
    """Later calls go by what the tuning databases say now. Graphs that were captured keep
    theirs."""
    _CONTEXTS.reload()
    forget()


def kernels():
    """What was prepared so far and still is: [{problem, plan, match, device}]."""
    out = []
    for prepared in list(_PREPARED.values()):
        context = prepared.plan._context
        told = context.explain(prepared.plan.problem)
        out.append({**{name: told[name] for name in ("problem", "plan", "match")},
                    "device": context.name})
    return out


def _range(tokens):
    found = _RANGES.get(tokens)
    if found is None:
        found = _RANGES[tokens] = _calls.token_range(tokens)
    return found


# ---- running ----

_A, _A_SCALES, _A_LD = WORD["a.data"], WORD["a.scales"], WORD["a.ld"]
_B, _B_SCALES, _B_LD = WORD["b.data"], WORD["b.scales"], WORD["b.ld"]
_D, _D_SCALES = WORD["d.data"], WORD["d.scales"]
_D2, _D2_SCALES = WORD["d2.data"], WORD["d2.scales"]
_BIAS, _C = WORD["bias"], WORD["c"]


def _prepared(key, index, masks=None, **members):
    found = _PREPARED.get(key)
    if found is None:
        context = _CONTEXTS.get("cuda", index) if index >= 0 else _CONTEXTS.get("cpu", -1)
        found = _PREPARED[key] = _calls.Prepared(context, masks, **members)
    return found


# ---- quantize ----

_LIBRARY.define(
    "quantize(Tensor x, Tensor? noise=None, Tensor? place=None, *, int rotation=0, "
    "str rounding='rne', str scale_rule='rceil', str scale_block='1x32', str signs='none', "
    "str copies='rows', bool biased=False, int tensor=0) -> (Tensor, Tensor)", tags=_TAGS)
_LIBRARY.define(
    "quantize_both(Tensor x, Tensor? noise=None, Tensor? place=None, *, int rotation=0, "
    "str rounding='rne', str scale_rule='rceil', str scale_block='1x32', str signs='none', "
    "bool biased=False, int tensor=0) -> (Tensor, Tensor, Tensor, Tensor)", tags=_TAGS)


_BOTH = ("both",)  # copies of quantize_both, which no string can ask of `quantize`


def _copies(copies):
    if copies is _BOTH:
        return "both"
    if copies not in ("rows", "columns"):
        raise ValueError(f"copies = '{copies}': rows or columns; quantize_both gives both")
    return copies


def _quantize_at(key, x, copies, rotation, rounding, scale_rule, scale_block, signs, biased):
    """The Call of a key that is new."""
    copies = _copies(copies)
    m, k, ld, copied = matrix(x, "x")
    index = x.get_device()
    prepared = _prepared(
        (copies, index, x.dtype, k, _range(m), rotation, rounding, scale_rule, scale_block, signs,
         biased), index, _calls.sign_words(signs), op="quantize", role="wgrad", m=_range(m), k=k,
        a_type=type_of(x, "x"), d_type="mxfp4", d_layout="plain", rotation=rotation,
        a_rounding=rounding, scale_rule=scale_rule, scale_block=scale_block,
        signs=signs.partition(":")[0], copies=copies, biased="allowed" if biased else "refused")
    outputs = copy_shapes(*((k, m) if copies == "columns" else (m, k)), rotation)
    if copies == "both":
        outputs += copy_shapes(k, m, rotation)
    return _CALLS.add(key, _calls.Call(prepared, outputs, copied, is_random(rounding, signs),
                                       **{"m": m, "k": k, "a.ld": ld}))


def quantize(x, noise=None, place=None, *, rotation=0, rounding="rne", scale_rule="rceil",
             scale_block="1x32", signs="none", copies="rows", biased=False, tensor=X):
    index = x.get_device()
    key = (x.shape, x.dtype, index, x.is_contiguous() or x.stride(), copies, rotation, rounding,
           scale_rule, scale_block, signs, biased)
    call = _CALLS.get(key) or _quantize_at(key, x, copies, rotation, rounding, scale_rule,
                                           scale_block, signs, biased)
    if call.copied:
        x = x.contiguous()
    new, outputs = allocator(index), call.outputs
    codes, scales = new(*outputs[0]), new(*outputs[1])
    block = call.take()
    words = block[0]
    words[_A] = x.data_ptr()
    words[_D], words[_D_SCALES] = codes.data_ptr(), scales.data_ptr()
    if call.draws:
        draw(words, index, noise, place, tensor, rounding, signs, copies == "columns")
    if len(outputs) == 2:
        call.run(block, index, new)
        return codes, scales
    more, more_scales = new(*outputs[2]), new(*outputs[3])
    words[_D2], words[_D2_SCALES] = more.data_ptr(), more_scales.data_ptr()
    call.run(block, index, new)
    return codes, scales, more, more_scales


def quantize_both(x, noise=None, place=None, *, rotation=0, rounding="rne", scale_rule="rceil",
                  scale_block="1x32", signs="none", biased=False, tensor=X):
    if rounding.startswith("sr") and noise is not None and not has_all_rows(
            noise, place, tensor, x.shape[0]):
        settings = dict(rotation=rotation, rounding=rounding, scale_rule=scale_rule,
                        scale_block=scale_block, signs=signs, biased=biased, tensor=tensor)
        return (*quantize(x, noise, place, **settings),
                *quantize(x, noise, place, copies="columns", **settings))
    return quantize(x, noise, place, rotation=rotation, rounding=rounding, scale_rule=scale_rule,
                    scale_block=scale_block, signs=signs, copies=_BOTH, biased=biased,
                    tensor=tensor)


def _empty_copy(x, rows, k, rotation):
    return tuple(x.new_empty(shape, dtype=dtype)
                 for shape, _, dtype in copy_shapes(rows, k, rotation))


def _quantize_fake(x, noise=None, place=None, *, rotation=0, rounding="rne", scale_rule="rceil",
                   scale_block="1x32", signs="none", copies="rows", biased=False, tensor=X):
    m, k = x.shape
    return _empty_copy(x, *((m, k) if _copies(copies) == "rows" else (k, m)), rotation)


def _quantize_both_fake(x, noise=None, place=None, *, rotation=0, rounding="rne",
                        scale_rule="rceil", scale_block="1x32", signs="none", biased=False,
                        tensor=X):
    m, k = x.shape
    return (*_empty_copy(x, m, k, rotation), *_empty_copy(x, k, m, rotation))


# ---- dequantize ----

_LIBRARY.define(
    "dequantize(Tensor codes, Tensor scales, *, int rotation=0, ScalarType? dtype=None) -> Tensor",
    tags=_TAGS)


def _dequantize_at(key, codes, scales, rotation, dtype):
    rows, k = check_operand(codes, scales, "codes")
    index = codes.get_device()
    check_device(index, scales=scales)
    prepared = _prepared(
        ("dequantize", index, dtype, k, _range(rows), rotation), index, op="dequantize",
        role="fprop", m=_range(rows), k=k, a_type="mxfp4", d_type=name_of(dtype), a_layout="plain",
        rotation=rotation)
    return _CALLS.add(key, _calls.Call(prepared, ((rows, k), (k, 1), dtype), m=rows, k=k))


def dequantize(codes, scales, *, rotation=0, dtype=None):
    index = codes.get_device()
    dtype = dtype or torch.float32
    key = ("dequantize", codes.shape, codes.dtype, index, scales.shape, scales.dtype,
           scales.get_device(), rotation, dtype)
    call = _CALLS.get(key) or _dequantize_at(key, codes, scales, rotation, dtype)
    codes, scales = codes.contiguous(), scales.contiguous()
    new = allocator(index)
    out = new(*call.outputs)
    block = call.take()
    words = block[0]
    words[_A], words[_A_SCALES] = codes.data_ptr(), scales.data_ptr()
    words[_D] = out.data_ptr()
    call.run(block, index, new)
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


def _gemm_at(key, a, a_scales, b, b_scales, bias, d, dtype, rotation, role, scale_rule, contract,
             spread, alpha, beta):
    """The Call of a key that is new. `d` is what is added to; None: a new result."""
    m, k = check_operand(a, a_scales, "a")
    n, b_k = check_operand(b, b_scales, "b")
    if k != b_k:
        raise ValueError(f"a has K = {k}, b K = {b_k}: the contracted axes must agree")
    index = a.get_device()
    check_device(index, a_scales=a_scales, b=b, b_scales=b_scales, bias=bias, d=d)
    more, members = {}, {"m": m, "n": n, "k": k, "alpha": alpha}
    if bias is not None:
        if tuple(bias.shape) != (n,):
            raise ValueError(f"bias is {tuple(bias.shape)}: [{n}] is needed")
        more = dict(bias="per_column", c_type=type_of(bias, "bias"))
    if d is not None:
        type_of(d, "d")
        if tuple(d.shape) != (m, n) or (d.stride(1) != 1 and n > 1) or (d.stride(0) < n and m > 1):
            raise ValueError(f"d is {tuple(d.shape)} with strides {d.stride()}: rows of [{m}, {n}],"
                             " each contiguous and in memory of its own, are needed")
        members["d.ld"] = d.stride(0) if m > 1 else n
        if beta != 0.0:
            more["accumulate"] = "accumulate"
            members.update(ldc=members["d.ld"], beta=beta)
    tokens = _range(k if role == "wgrad" else m)
    sizes = dict(m=m, k=tokens) if role == "wgrad" else dict(m=tokens, k=k)
    ts34 = scale_rule == "ts34"
    # Of scale rules only ts34 changes a product; the others are what quantising followed.
    prepared = _prepared(
        ("gemm", index, dtype, n, *sizes.values(), rotation, ts34, role, contract, spread,
         None if bias is None else bias.dtype, "accumulate" in more), index, op="gemm", role=role,
        n=n, **sizes, a_type="mxfp4", b_type="mxfp4", d_type=name_of(dtype),
        a_layout="plain", b_layout="plain", rotation=rotation,
        scale_rule="ts34" if ts34 else "rceil", contract=contract, spread=spread,
        reproducibility=_REPRODUCIBILITY[0], **more)
    return _CALLS.add(key, _calls.Call(prepared, ((m, n), (n, 1), dtype), **members))


def _gemm_call(d, dtype, a, a_scales, b, b_scales, bias, rotation, role, scale_rule, contract,
               spread, alpha, beta):
    index = a.get_device()
    key = ("gemm", a.shape, a_scales.shape, b.shape, b_scales.shape, a.dtype, a_scales.dtype,
           b.dtype, b_scales.dtype, index, a_scales.get_device(), b.get_device(),
           b_scales.get_device(), dtype, rotation, role, scale_rule, contract, spread, alpha, beta,
           None if bias is None else (bias.shape, bias.dtype, bias.get_device()),
           None if d is None else (d.shape, d.stride(), d.get_device()))
    call = _CALLS.get(key) or _gemm_at(key, a, a_scales, b, b_scales, bias, d, dtype, rotation,
                                       role, scale_rule, contract, spread, alpha, beta)
    if not (a.is_contiguous() and a_scales.is_contiguous() and b.is_contiguous()
            and b_scales.is_contiguous()):
        a, a_scales, b, b_scales = (t.contiguous() for t in (a, a_scales, b, b_scales))
    new = allocator(index)
    if d is None:
        d = new(*call.outputs)
    block = call.take()
    words = block[0]
    words[_A], words[_A_SCALES] = a.data_ptr(), a_scales.data_ptr()
    words[_B], words[_B_SCALES] = b.data_ptr(), b_scales.data_ptr()
    words[_D] = at = d.data_ptr()
    if beta != 0.0:
        words[_C] = at
    if bias is not None:
        bias = bias.contiguous()
        words[_BIAS] = bias.data_ptr()
    call.run(block, index, new)
    return d


def gemm(a, a_scales, b, b_scales, bias=None, *, rotation=0, dtype=None, role="fprop",
         scale_rule="rceil", contract="exact", spread="any", alpha=1.0):
    return _gemm_call(None, dtype or torch.bfloat16, a, a_scales, b, b_scales, bias, rotation,
                      role, scale_rule, contract, spread, alpha, 0.0)


def _gemm_fake(a, a_scales, b, b_scales, bias=None, *, rotation=0, dtype=None, role="fprop",
               scale_rule="rceil", contract="exact", spread="any", alpha=1.0):
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype or torch.bfloat16)


def gemm_add_(d, a, a_scales, b, b_scales, *, rotation=0, role="wgrad", scale_rule="rceil",
              contract="exact", spread="any", alpha=1.0, beta=1.0):
    _gemm_call(d, d.dtype, a, a_scales, b, b_scales, None, rotation, role, scale_rule, contract,
               spread, alpha, beta)


def _gemm_add_noted(d, *args, **settings):
    """The operator: autograd, and who keeps something made of d's values, see that they change."""
    gemm_add_(d, *args, **settings)
    if not d.is_inference():
        torch.autograd.graph.increment_version(d)


def _gemm_add_fake(d, a, a_scales, b, b_scales, *, rotation=0, role="wgrad", scale_rule="rceil",
                   contract="exact", spread="any", alpha=1.0, beta=1.0):
    return None


# ---- weight_gemm ----

_LIBRARY.define(
    "weight_gemm(Tensor x, Tensor b, Tensor b_scales, Tensor? bias=None, *, "
    "ScalarType? dtype=None, float alpha=1.0) -> Tensor", tags=_TAGS)


def _weight_gemm_at(key, x, b, b_scales, bias, dtype, alpha):
    m, k, ld, copied = matrix(x, "x")
    n, b_k = check_operand(b, b_scales, "b")
    if k != b_k:
        raise ValueError(f"x has {k} columns, b K = {b_k}: the contracted axes must agree")
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(f"x holds {x.dtype}: bfloat16 or float16 is multiplied as it is")
    index = x.get_device()
    check_device(index, b=b, b_scales=b_scales, bias=bias)
    more = {}
    if bias is not None:
        if tuple(bias.shape) != (n,):
            raise ValueError(f"bias is {tuple(bias.shape)}: [{n}] is needed")
        more = dict(bias="per_column", c_type=type_of(bias, "bias"))
    prepared = _prepared(
        ("weight_gemm", index, x.dtype, dtype, n, k, _range(m), bias is None or bias.dtype), index,
        op="gemm", role="fprop", m=_range(m), n=n, k=k, a_type=type_of(x, "x"), b_type="mxfp4",
        d_type=name_of(dtype), b_layout="plain", reproducibility=_REPRODUCIBILITY[0], **more)
    return _CALLS.add(key, _calls.Call(prepared, ((m, n), (n, 1), dtype), copied,
                                       **{"m": m, "n": n, "k": k, "a.ld": ld, "alpha": alpha}))


def weight_gemm(x, b, b_scales, bias=None, *, dtype=None, alpha=1.0):
    """alpha x W^T (+ bias) of x [m, k] in bf16 or f16 and W's codes; differentiable in x and bias.
    Codes that were quantised by the rule ts34 hold 3/4 of W: give alpha = 4/3."""
    index = x.get_device()
    dtype = dtype or x.dtype
    key = ("weight_gemm", x.shape, x.dtype, index, x.is_contiguous() or x.stride(), b.shape,
           b_scales.shape, b.dtype, b_scales.dtype, b.get_device(), b_scales.get_device(), dtype,
           alpha, None if bias is None else (bias.shape, bias.dtype, bias.get_device()))
    call = _CALLS.get(key) or _weight_gemm_at(key, x, b, b_scales, bias, dtype, alpha)
    if call.copied:
        x = x.contiguous()
    b, b_scales = b.contiguous(), b_scales.contiguous()
    new = allocator(index)
    d = new(*call.outputs)
    block = call.take()
    words = block[0]
    words[_A], words[_D] = x.data_ptr(), d.data_ptr()
    words[_B], words[_B_SCALES] = b.data_ptr(), b_scales.data_ptr()
    if bias is not None:
        bias = bias.contiguous()
        words[_BIAS] = bias.data_ptr()
    call.run(block, index, new)
    return d


def _weight_gemm_fake(x, b, b_scales, bias=None, *, dtype=None, alpha=1.0):
    return x.new_empty((x.shape[0], b.shape[0]), dtype=dtype or x.dtype)


def _weight_gemm_context(ctx, inputs, keyword_only_inputs, output):
    x, b, b_scales, bias = inputs
    ctx.alpha, ctx.x = keyword_only_inputs["alpha"], x.dtype
    ctx.bias = None if bias is None else bias.dtype
    ctx.save_for_backward(b, b_scales)


def _weight_gemm_backward(ctx, dy):
    """dX by the weight's values in dY's precision."""
    dx = db = None
    if ctx.needs_input_grad[0]:
        w = torch.ops.quarterturn.dequantize(*ctx.saved_tensors, dtype=dy.dtype)
        dx = (dy @ w * ctx.alpha).to(ctx.x)
    if ctx.bias is not None and ctx.needs_input_grad[3]:
        db = dy.sum(0, dtype=torch.float32).to(ctx.bias)
    return dx, None, None, db


# ---- hadamard_gemm ----

_LIBRARY.define(
    "hadamard_gemm(Tensor a, Tensor b, Tensor? noise=None, *, int rotation=32, "
    "str rounding='rne', str scale_rule='rceil', str signs='none', ScalarType? dtype=None, "
    "str contract='exact', str spread='any', float alpha=1.0) -> Tensor", tags=_TAGS)


def _hadamard_gemm_at(key, a, b, rotation, rounding, scale_rule, signs, dtype, contract, spread,
                      alpha):
    (m, k, a_ld, a_copied), (n, b_k, b_ld, b_copied) = matrix(a, "a"), matrix(b, "b")
    if b_k != k:
        raise ValueError(f"a is {tuple(a.shape)}, b {tuple(b.shape)}: their columns must agree")
    index = a.get_device()
    check_device(index, b=b)
    prepared = _prepared(
        ("hadamard_gemm", index, a.dtype, b.dtype, dtype, n, k, _range(m), rotation, rounding,
         scale_rule, signs, contract, spread), index, _calls.sign_words(signs),
        op="hadamard_gemm", role="fprop", m=_range(m), n=n, k=k, a_type=type_of(a, "a"),
        b_type=type_of(b, "b"), d_type=name_of(dtype), rotation=rotation,
        signs=signs.partition(":")[0], scale_rule=scale_rule, a_rounding=rounding,
        b_rounding=rounding, contract=contract, spread=spread,
        reproducibility=_REPRODUCIBILITY[0])
    return _CALLS.add(key, _calls.Call(
        prepared, ((m, n), (n, 1), dtype), (a_copied, b_copied) if a_copied or b_copied else (),
        is_random(rounding, signs),
        **{"m": m, "n": n, "k": k, "a.ld": a_ld, "b.ld": b_ld, "alpha": alpha}))


def hadamard_gemm(a, b, noise=None, *, rotation=32, rounding="rne", scale_rule="rceil",
                  signs="none", dtype=None, contract="exact", spread="any", alpha=1.0):
    index = a.get_device()
    dtype = dtype or a.dtype
    key = ("hadamard_gemm", a.shape, b.shape, a.dtype, b.dtype, index, b.get_device(),
           a.is_contiguous() or a.stride(), b.is_contiguous() or b.stride(), rotation, rounding,
           scale_rule, signs, dtype, contract, spread, alpha)
    call = _CALLS.get(key) or _hadamard_gemm_at(key, a, b, rotation, rounding, scale_rule, signs,
                                                dtype, contract, spread, alpha)
    if call.copied:
        a, b = (t.contiguous() if copied else t for t, copied in zip((a, b), call.copied))
    new = allocator(index)
    d = new(*call.outputs)
    block = call.take()
    words = block[0]
    words[_A], words[_B], words[_D] = a.data_ptr(), b.data_ptr(), d.data_ptr()
    if call.draws:
        draw(words, index, noise, None, X, rounding, signs, False)
    call.run(block, index, new)
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


class _Shortcut:
    """A library to register an operator's autograd in: a call that needs none, and that the
    dispatcher would hand to a device's kernel next, goes there at once."""

    _KEYS = {getattr(torch._C.DispatchKey, name) for name in ("CPU", "CUDA")}

    def __init__(self, kernel):
        self._kernel = kernel

    def impl(self, name, general, key, **options):
        kernel, c = self._kernel, torch._C
        known = all(hasattr(c, part) for part in (
            "is_grad_enabled", "_any_requires_grad", "_after_autograd_keyset")) and hasattr(
                c.DispatchKeySet, "raw_repr")
        direct = {}  # by a key set's bits: finding its first key takes longer than a whole operator

        def differentiable(keyset, *args, **kwargs):
            if not (c.is_grad_enabled() and c._any_requires_grad(*args)):
                bits = keyset.raw_repr()
                if bits not in direct:
                    after = keyset & c._after_autograd_keyset
                    direct[bits] = after.highestPriorityTypeId() in self._KEYS
                if direct[bits]:
                    return kernel(*args, **kwargs)
            return general(keyset, *args, **kwargs)

        _LIBRARY.impl(name, differentiable if known else general, key, **options)


register("quantize", quantize, _quantize_fake)
register("quantize_both", quantize_both, _quantize_both_fake)
register("dequantize", dequantize, _dequantize_fake)
register("gemm", gemm, _gemm_fake)
register("gemm_add_", _gemm_add_noted, _gemm_add_fake)
for _name in ("quantize", "quantize_both", "dequantize", "gemm_add_"):
    # Bytes have no gradients: autograd need not look at these.
    _LIBRARY.impl(_name, torch.library.fallthrough_kernel, "Autograd")
register("weight_gemm", weight_gemm, _weight_gemm_fake)
register("hadamard_gemm", hadamard_gemm, _hadamard_gemm_fake)
for _name, _kernel, _backward, _context in (
        ("weight_gemm", weight_gemm, _weight_gemm_backward, _weight_gemm_context),
        ("hadamard_gemm", hadamard_gemm, _hadamard_gemm_backward, _hadamard_gemm_context)):
    torch.library.register_autograd(f"quarterturn::{_name}", _backward, setup_context=_context,
                                    lib=_Shortcut(_kernel))
