"""The operators behind quarterturn.nn.Linear: its three products by a recipe, and the quantised
copies of its weight."""

import functools
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import recipes, torch_ops
from ._operands import padded_to
from .torch_ops import DY, WEIGHT, X

_OPS = torch.ops.quarterturn
_LIBRARY = torch.library.Library("quarterturn", "FRAGMENT")


# ---- quantised weights, kept while the weight stays as it is ----

_WEIGHTS = {}
_EPOCH = 0


def refresh_weights(*ignored):
    """Quantise every weight anew at its next use. Needed only where values change behind PyTorch's
    back (`weight.data.copy_`): optimizers and loading are noticed."""
    global _EPOCH
    _EPOCH += 1


register_optimizer_step_post_hook(refresh_weights)


def _version(weight):
    try:
        return weight._version
    except RuntimeError:  # tensors of inference_mode have none
        return None


def _capturing(weight):
    """A graph quantises at every replay what it multiplies: it neither takes copies nor leaves
    any."""
    return weight.is_cuda and torch.cuda.is_current_stream_capturing()


def _settings(product, operand):
    """What a quantised copy depends on, as arguments of `quantize`."""
    return dict(rotation=product.rotation, rounding=operand.rounding,
                scale_rule=operand.scale_rule, scale_block=operand.scale_block,
                signs=product.signs, biased=product.biased)


def quantize(x, noise, place, *, copies="rows", **settings):
    """A row-wise or a transposed copy (codes, scales), or both from one reading (four tensors)."""
    if copies == "both":
        return torch_ops.quantize_both(x, noise, place, **settings)
    return torch_ops.quantize(x, noise, place, copies=copies, **settings)


quantize_by = quantize  # what layers call: a study may put another in its place


def _both(product, operand, other_product, other):
    """Whether one reading can give the row copy of one product and the column copy of another."""
    return (product.quantized and other_product.quantized
            and _settings(product, operand) == _settings(other_product, other))


class _Rules:
    """What a recipe means for a call, worked out once: arguments of `quantize` and `gemm`, and
    which copies come from one reading."""

    def __init__(self, text):
        self.recipe = recipe = recipes.from_json(text)
        self.fprop, self.dgrad, self.wgrad = (
            product.quantized for product in (recipe.fprop, recipe.dgrad, recipe.wgrad))
        self.draws = recipe.draws
        self.weight_draws = recipe.fprop.draws or recipe.dgrad.draws
        self.settings = {(role, which): _settings(product, getattr(product, which))
                         for role, product in self._products() for which in ("a", "b")}
        self.products = {role: dict(rotation=product.rotation, role=role,
                                    scale_rule=product.a.scale_rule, contract=product.contract,
                                    spread=product.spread)
                         for role, product in self._products()}
        fprop, dgrad, wgrad = recipe.fprop, recipe.dgrad, recipe.wgrad
        self.x_both = _both(fprop, fprop.a, wgrad, wgrad.b)
        self.dy_both = _both(dgrad, dgrad.a, wgrad, wgrad.a)
        self.weight_both = _both(fprop, fprop.b, dgrad, dgrad.b)
        self.weights = ("fprop", "dgrad") if self.fprop and self.dgrad else ("fprop",)

    def _products(self):
        return (("fprop", self.recipe.fprop), ("dgrad", self.recipe.dgrad),
                ("wgrad", self.recipe.wgrad))


_rules = functools.lru_cache(maxsize=256)(_Rules)  # by a recipe's text


def _make_weight_copies(weight, rules, noise, place, names):
    weight = weight.detach()
    if len(names) == 2 and rules.weight_both:
        made = quantize_by(weight, noise, place, copies="both", **rules.settings["fprop", "b"],
                           tensor=WEIGHT)
        return {"fprop": made[:2], "dgrad": made[2:]}
    return {name: quantize_by(weight, noise, place,
                              copies="rows" if name == "fprop" else "columns",
                              **rules.settings[name, "b"], tensor=WEIGHT) for name in names}


def _time(noise):
    """What a weight's draws depend on. Noise on the GPU is not read here: an optimizer step renews
    the copies."""
    return None if noise.is_cuda else tuple(noise[:3].tolist())


def _drawn_at(place):
    """What else they depend on, of layers that share a weight: a layer's number and shard."""
    return None if place is None else tuple(place.tolist())


def _weight_copies(weight, rules, noise, place, names, cached):
    """{"fprop": (codes, scales) of W, "dgrad": of W^T} for at least the names asked for."""
    version = _version(weight)
    if not cached or version is None or _capturing(weight):
        return _make_weight_copies(weight, rules, noise, place, names)
    # Not by its address alone: sharded weights of several layers are gathered in the same memory.
    draws = rules.weight_draws and noise is not None
    stamp = (version, _EPOCH, weight.data_ptr(), weight.shape, weight.dtype, rules.recipe,
             _time(noise) if draws else None)
    key = id(weight)
    entry = _WEIGHTS.get(key)
    if entry is None or entry[0]() is not weight or entry[1] != stamp:
        entry = (weakref.ref(weight, lambda _: _WEIGHTS.pop(key, None)), stamp, {})
        _WEIGHTS[key] = entry
    copies = entry[2].setdefault(_drawn_at(place) if draws else None, {})
    missing = [name for name in names if name not in copies]
    if missing:
        copies.update(_make_weight_copies(weight, rules, noise, place, missing))
    return copies


# ---- the operators ----

_LIBRARY.define(
    "linear(Tensor x, Tensor weight, Tensor? bias, Tensor? main_grad, Tensor? noise, "
    "Tensor? place, str recipe, bool training, bool keep, bool cached=True) -> "
    "(Tensor, Tensor, Tensor, Tensor)", tags=torch_ops._TAGS)
_LIBRARY.define(
    "linear_served(Tensor x, Tensor weight, Tensor? bias, Tensor? noise, Tensor? place, "
    "str recipe, bool cached=True) -> Tensor", tags=torch_ops._TAGS)
_LIBRARY.define(
    "linear_backward(Tensor dy, Tensor? x, Tensor xt, Tensor xt_scales, Tensor weight, "
    "Tensor(a!)? main_grad, Tensor? noise, Tensor? place, str recipe, bool need_dx, "
    "bool need_dw, bool cached=True) -> (Tensor, Tensor)", tags=torch_ops._TAGS[:1])


def _kept(x, rules, keep):
    """Elements of X^T's copy; none where Wgrad does not want it."""
    tokens, features = x.shape
    if not (keep and rules.wgrad):
        return 0
    return features * padded_to(tokens, rules.recipe.wgrad.rotation)


def _noise_kept(x, noise, rules, training):
    """The noise of this call, as the backward pass will need it; none where it draws nothing."""
    if training and noise is not None and rules.draws:
        return noise.clone()
    return x.new_empty(0, dtype=torch.int64)


def _product(x, x_copy, weight, bias, noise, place, rules, names, cached):
    """Y, from X's copy where Fprop is in MXFP4."""
    if not rules.fprop:
        return torch.nn.functional.linear(x, weight.to(x.dtype),
                                          None if bias is None else bias.to(x.dtype))
    w = _weight_copies(weight, rules, noise, place, names, cached)["fprop"]
    return torch_ops.gemm(*x_copy, *w, bias, dtype=x.dtype, **rules.products["fprop"])


def forward(x, weight, bias, main_grad, noise, place, recipe, training, keep, cached=True):
    rules = _rules(recipe)
    keep = keep and rules.wgrad
    x_copy = xt = None
    if keep and rules.x_both:
        made = quantize_by(x, noise, place, copies="both", **rules.settings["fprop", "a"], tensor=X)
        x_copy, xt = made[:2], made[2:]
    else:
        if rules.fprop:
            x_copy = quantize_by(x, noise, place, **rules.settings["fprop", "a"], tensor=X)
        if keep:
            xt = quantize_by(x, noise, place, copies="columns", **rules.settings["wgrad", "b"],
                             tensor=X)
    both = training and cached and not _capturing(weight)
    y = _product(x, x_copy, weight, bias, noise, place, rules,
                 rules.weights if both else ("fprop",), cached)
    if xt is None:
        xt = (x.new_empty(0, dtype=torch.uint8), x.new_empty(0, dtype=torch.uint8))
    # Flat: an axis of tokens / 32 would have tracing ask whether it is 1, and trace again for that.
    return y, *(part.view(-1) for part in xt), _noise_kept(x, noise, rules, training)


def _forward_fake(x, weight, bias, main_grad, noise, place, recipe, training, keep, cached=True):
    rules = _rules(recipe)
    elements = _kept(x, rules, keep)
    return (x.new_empty((x.shape[0], weight.shape[0])),
            x.new_empty(elements // 2, dtype=torch.uint8),
            x.new_empty(elements // 32, dtype=torch.uint8),
            _noise_kept(x, noise, rules, training))


def _served(x, weight, bias, noise, place, recipe, cached=True):
    """Y alone, where nothing is differentiated."""
    rules = _rules(recipe)
    x_copy = (quantize_by(x, noise, place, **rules.settings["fprop", "a"], tensor=X)
              if rules.fprop else None)
    return _product(x, x_copy, weight, bias, noise, place, rules, ("fprop",), cached)


def _served_fake(x, weight, bias, noise, place, recipe, cached=True):
    return x.new_empty((x.shape[0], weight.shape[0]))


def _dy_copies(dy, rules, noise, place, need_dx, need_dw):
    rows, columns = need_dx and rules.dgrad, need_dw and rules.wgrad
    if rows and columns and rules.dy_both:
        made = quantize_by(dy, noise, place, copies="both", **rules.settings["dgrad", "a"],
                           tensor=DY)
        return made[:2], made[2:]
    return (quantize_by(dy, noise, place, **rules.settings["dgrad", "a"], tensor=DY)
            if rows else None,
            quantize_by(dy, noise, place, copies="columns", **rules.settings["wgrad", "a"],
                        tensor=DY) if columns else None)


def backward(dy, x, xt, xt_scales, weight, main_grad, noise, place, recipe, need_dx, need_dw,
             cached=True):
    rules = _rules(recipe)
    if dy.stride(1) != 1 or dy.stride(0) < dy.shape[1]:
        dy = dy.contiguous()
    rows, columns = _dy_copies(dy, rules, noise, place, need_dx, need_dw)
    dx = dw = dy.new_empty((0, 0))
    if need_dx and rows is None:
        dx = dy @ weight.to(dy.dtype)
    elif need_dx:
        w = _weight_copies(weight, rules, noise, place, ("dgrad",), cached)["dgrad"]
        dx = torch_ops.gemm(*rows, *w, dtype=dy.dtype, **rules.products["dgrad"])
    if need_dw and columns is None:
        dw = dy.t() @ x
        if main_grad is None:
            dw = dw.to(weight.dtype)
        else:
            main_grad.add_(dw)
    elif need_dw:
        features = weight.shape[1]
        operands = (*columns, *(part.view(features, part.numel() // features)
                                for part in (xt, xt_scales)))
        if main_grad is not None:
            torch_ops.gemm_add_(main_grad, *operands, **rules.products["wgrad"])
        else:
            dw = torch_ops.gemm(*operands, dtype=weight.dtype, **rules.products["wgrad"])
    if main_grad is not None or not need_dw:
        dw = dy.new_empty((0, 0), dtype=weight.dtype)
    return dx, dw.clone() if dw is dx else dw


def _backward_fake(dy, x, xt, xt_scales, weight, main_grad, noise, place, recipe, need_dx, need_dw,
                   cached=True):
    dx = dy.new_empty((dy.shape[0], weight.shape[1]) if need_dx else (0, 0))
    whole = need_dw and main_grad is None
    return dx, dy.new_empty(weight.shape if whole else (0, 0), dtype=weight.dtype)


class _Once(torch.autograd.Function):
    """linear_backward where its results may be differentiated again, which they cannot be."""

    @staticmethod
    def forward(ctx, *args):
        return _OPS.linear_backward(*args)

    @staticmethod
    def backward(ctx, *ignored):
        raise RuntimeError("quarterturn::linear has no second derivative: its gradients were "
                           "rounded to MXFP4. Use torch.nn.Linear where they are differentiated")


def _keep_for_backward(ctx, inputs, output):
    x, weight, bias, main_grad, noise, place, recipe, _, _, cached = inputs
    _, xt, xt_scales, noise_then = output
    ctx.recipe, ctx.cached = recipe, cached
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.noise = noise is not None and _rules(recipe).draws
    quantized = _rules(recipe).wgrad
    ctx.save_for_backward(None if quantized else x, xt, xt_scales, weight, main_grad, noise_then,
                          place)


def _differentiate(ctx, dy, *ignored):
    x, xt, xt_scales, weight, main_grad, noise, place = ctx.saved_tensors
    need_dx, need_dw, need_db = ctx.needs_input_grad[:3]
    dx = dw = db = None
    if need_dx or need_dw:
        run = _Once.apply if torch.is_grad_enabled() else _OPS.linear_backward
        dx, dw = run(
            dy, x, xt, xt_scales, weight, main_grad, noise if ctx.noise else None, place,
            ctx.recipe, need_dx, need_dw, ctx.cached)
    if need_db:
        db = dy.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    return (dx if need_dx else None, dw if need_dw and main_grad is None else None, db,
            None, None, None, None, None, None, None)


torch_ops.register("linear", forward, _forward_fake, _LIBRARY)
torch_ops.register("linear_served", _served, _served_fake, _LIBRARY)
torch_ops.register("linear_backward", backward, _backward_fake, _LIBRARY)
torch.library.register_autograd("quarterturn::linear", _differentiate,
                                setup_context=_keep_for_backward, lib=_LIBRARY)
