"""Linear layers that train in MXFP4 by a recipe.

    import quarterturn.nn as qnn
    noise = qnn.convert(model, "amd_det_h16", seed=1)     # its nn.Linear become qnn.Linear
    for step in range(steps):
        for microbatch, batch in enumerate(batches(step)):
            noise.set(step=step, microbatch=microbatch)
            loss(model, batch).backward()
        optimizer.step(); optimizer.zero_grad()

What is kept for the backward pass is what the recipe needs: where Wgrad is in MXFP4, X's transposed
MXFP4 copy (4.25 bits an element) instead of X. Weights are quantised when they have changed: once
an optimizer step, not once a microbatch.

Noise and signs belong to (seed, layer, step, microbatch) and to an element's place in the whole
tensor. So the same codes come out of another sharding, a recomputation, or a run that goes on from
a checkpoint, provided that `noise` is told where it is:
- data parallel: noise.set(token0=..., tokens=...), the first token of this rank and those of all;
  both multiples of 32 and of the recipe's rotation in Wgrad;
- tensor parallel: linear.set_shard(...) of each layer;
- activation checkpointing: checkpoint(..., use_reentrant=False, context_fn=noise.recompute), where
  another microbatch may run before the recomputation;
- state_dict() of the model carries seed, step and recipe, and loading restores seed and step.

FSDP: convert the model before fully_shard; the copies of a layer's weight are made from the
gathered parameter and renewed after every optimizer step. They are kept whole on each rank (4.25
bits an element for each of Fprop and Dgrad): `cache_weights=False` trades them for quantising at
every use.
"""

import concurrent.futures
import contextlib
import json
import warnings
import zlib

import torch

from . import _linear, recipes, torch_ops, version
from ._linear import refresh_weights

__all__ = ["Linear", "Noise", "convert", "follow", "prepare", "refresh_weights"]

_OPS = torch.ops.quarterturn


class Noise:
    """Seeds and counters that a model's layers draw by, as one small tensor which they share. On
    the CPU by default; on the GPU (device="cuda") a captured CUDA graph draws by what `set` wrote
    last, but signs per call and a token origin are not to be had there."""

    KEY = "quarterturn_noise._extra_state"

    def __init__(self, seed=0, sign_seed=None, recipe=None, device="cpu"):
        self._fields = dict.fromkeys(torch_ops.NOISE_FIELDS, 0)
        self._fields.update(seed=seed, sign_seed=seed if sign_seed is None else sign_seed)
        self.values = torch_ops.noise(device=device, **self._fields)
        self.recipe = recipe
        self.layers, self.left = [], {}

    def set(self, **fields):
        """Any of seed, sign_seed, step, microbatch, token0, tokens."""
        now = {**self._fields, **fields}
        if self.values.is_cuda and (now["token0"] or now["tokens"]):
            raise ValueError("token0 and tokens with noise on the GPU: give noise on the CPU")
        numbers = torch.tensor(torch_ops.noise_values(**now), dtype=torch.int64,
                               device="cpu")
        self._fields = now
        self.values.copy_(numbers)

    def get(self, name):
        return self._fields[name]

    @contextlib.contextmanager
    def at(self, values):
        """Draws as it was at the time of these values (a clone of `values`)."""
        now = self.values.clone()
        self.values.copy_(values)
        try:
            yield
        finally:
            self.values.copy_(now)

    def recompute(self):
        """context_fn of torch.utils.checkpoint.checkpoint: recomputes with the noise of the first
        run."""
        return contextlib.nullcontext(), self.at(self.values.clone())

    def state_dict(self):
        return {"noise": dict(self._fields),
                "recipe": self.recipe.to_json() if self.recipe else None, "version": version(),
                "plans": torch_ops.plan_hashes()}

    def load_state_dict(self, state):
        self.set(**state["noise"])
        mine = self.recipe.to_json() if self.recipe else None
        if state.get("recipe") != mine:
            warnings.warn(f"this state was saved under the recipe {_name(state.get('recipe'))}, "
                          f"the model has {_name(mine)}: codes will differ from here on",
                          stacklevel=2)
        now = torch_ops.plan_hashes()
        for backend, before in state.get("plans", {}).items():
            if now.get(backend, before) != before:
                warnings.warn(f"this state was saved under other tuning answers of {backend} (or "
                              "another lock file): codes are the same from here on, sums of "
                              "products may differ in their last bits", stacklevel=2)
        refresh_weights()

    def attach(self, model):
        """Makes model.state_dict() carry this, and model.load_state_dict() restore it where the
        state has it (one of the model before it was converted has not)."""
        model.register_state_dict_post_hook(_Save(self))
        model.register_load_state_dict_pre_hook(_Load(self))


class _Save:
    """A hook that a copy of the model copies with its noise."""

    def __init__(self, noise):
        self.noise = noise

    def __call__(self, module, state_dict, prefix, metadata):
        state_dict[prefix + Noise.KEY] = self.noise.state_dict()


class _Load(_Save):
    def __call__(self, module, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        state = state_dict.pop(prefix + Noise.KEY, None)
        if state is not None:
            self.noise.load_state_dict(state)
        refresh_weights()


def _name(text):
    if text is None:
        return "none"
    return f"'{json.loads(text)['name']}' ({zlib.crc32(text.encode()):08x})"


class Linear(torch.nn.Linear):
    """nn.Linear whose products follow a recipe. x [..., in] in f32, bf16 or f16 (under autocast:
    its type) gives [..., out] in x's type; the weight may have another, such as f32. Its gradient
    has the weight's type, or goes into weight.main_grad (f32, [out, in], which a caller provides
    and zeroes) when `main_grad` is true.

    In features must be a multiple of 32 and of Fprop's rotation, out features of Dgrad's; the
    number of tokens may be anything."""

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None, *, recipe,
                 noise=None, layer=0, main_grad=False, cache_weights=True):
        super().__init__(in_features, out_features, bias, device, dtype)
        self._adopt(recipes.load(recipe), noise, layer, main_grad, cache_weights)

    @classmethod
    def of(cls, linear, recipe, noise=None, layer=0, main_grad=False, cache_weights=True):
        """The same layer by a recipe: it shares `linear`'s parameters."""
        made = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        made.in_features, made.out_features = linear.in_features, linear.out_features
        made.weight, made.bias = linear.weight, linear.bias
        made.training = linear.training
        made._adopt(recipes.load(recipe), noise, layer, main_grad, cache_weights)
        return made

    def follow(self, recipe, noise):
        """Another recipe from the next call on; the layer's number and shard stay."""
        place = self._place.clone()
        self._adopt(recipes.load(recipe), noise, 0, self.main_grad, self.cache_weights)
        self._place.copy_(place)

    def _adopt(self, recipe, noise, layer, main_grad, cache_weights):
        reason = refusal(self.in_features, self.out_features, recipe)
        if reason:
            raise ValueError(reason)
        if recipe.draws and noise is None:
            raise ValueError(f"recipe '{recipe.name}' draws noise or signs: give a Noise")
        self.recipe, self.recipe_text = recipe, recipe.to_json()
        self.main_grad, self.cache_weights = main_grad, cache_weights
        # Without draws an operator takes neither, so that CUDA graphs may hold it.
        self._place = torch.tensor([layer, 0, 0, 0, 0], dtype=torch.int64, device="cpu")
        self.noise, self.place = (noise.values, self._place) if recipe.draws else (None, None)

    def set_shard(self, row0=0, column0=0, rows=0, columns=0):
        """This weight is the part of a [rows, columns] one that begins at (row0, column0): its
        noise is that of the whole. All are multiples of 32 and of the rotations."""
        self._place[1:] = torch.tensor([row0, column0, rows, columns], device="cpu")

    def forward(self, x):
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x is {tuple(x.shape)}: [..., {self.in_features}] is needed")
        device = x.device.type
        if device != "meta" and torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        flat = x if x.dim() == 2 else x.reshape(-1, self.in_features)
        if torch.is_grad_enabled():
            main_grad = self._given_main_grad() if self.main_grad else None
            y = _OPS.linear(flat, self.weight, self.bias, main_grad, self.noise, self.place,
                            self.recipe_text, True, self.weight.requires_grad,
                            self.cache_weights)[0]
        else:
            y = _OPS.linear_served(flat, self.weight, self.bias, self.noise, self.place,
                                   self.recipe_text, self.cache_weights)
        return y if x.dim() == 2 else y.reshape(*x.shape[:-1], self.out_features)

    def _given_main_grad(self):
        found = getattr(self.weight, "main_grad", None)
        if found is None:
            raise ValueError("main_grad is true and weight.main_grad is missing: make it, f32 zeros"
                             f" of [{self.out_features}, {self.in_features}], before the first "
                             "call")
        return found

    def extra_repr(self):
        return f"{super().extra_repr()}, recipe={self.recipe.name}"


def refusal(in_features, out_features, recipe):
    """Why a layer of this size cannot follow the recipe; empty where it can."""
    unit_in, unit_out = recipe.unit
    if in_features % unit_in:
        return (f"in_features = {in_features} is not a multiple of {unit_in} (the MX block and "
                "Fprop's rotation)")
    if out_features % unit_out:
        return (f"out_features = {out_features} is not a multiple of {unit_out} (the MX block and "
                "Dgrad's rotation)")
    return ""


def follow(model, recipe, noise):
    """All of the model's quantised layers follow another recipe from their next call on."""
    recipe = recipes.load(recipe)
    noise.recipe = recipe
    for module in model.modules():
        if isinstance(module, Linear):
            module.follow(recipe, noise)


def prepare(model, tokens, dtype=torch.bfloat16, threads=16):
    """Prepares, side by side, what the quantised layers will run for this many tokens a call in
    `dtype`, so that the first step compiles nothing. Neither weights nor gradients change."""
    layers = {(m.in_features, m.out_features, m.bias is None, m.weight.dtype, m.recipe_text): m
              for m in model.modules() if isinstance(m, Linear)}

    # Without autograd, whose engine has one thread for a device.
    @torch.no_grad()
    def run(layer):
        weight, device = layer.weight.detach(), layer.weight.device
        bias = None if layer.bias is None else layer.bias.detach()
        x = torch.zeros(tokens, layer.in_features, dtype=dtype, device=device)
        main_grad = (torch.zeros(weight.shape, device=device) if layer.main_grad else None)
        y, xt, xt_scales, _ = _linear.forward(
            x, weight, bias, main_grad, layer.noise, layer.place, layer.recipe_text, True, True,
            False)
        _linear.backward(torch.zeros_like(y), x, xt, xt_scales, weight, main_grad, layer.noise,
                         layer.place, layer.recipe_text, True, True, False)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, layers.values()))


def _names(model):
    """{linear layer: the names it has in the model, whose order they keep}."""
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, torch.nn.Linear) and not isinstance(module, Linear):
            found.setdefault(module, []).append(name)
    return found


def _own(module):
    """Why a layer by a recipe, which takes over its parameters alone, could not do what the module
    does; empty where it can."""
    if type(module) is not torch.nn.Linear:
        return f"it is a {type(module).__name__}, not an nn.Linear as it stands"
    if module._parameters.get("weight") is None:
        return "its weight is not a parameter of its own"
    if "forward" in vars(module):
        return "its forward was replaced"
    if (module._forward_pre_hooks or module._forward_hooks or module._backward_hooks
            or module._backward_pre_hooks):
        return "it has hooks: convert before registering them"
    return ""


def _left(module, names, recipe, chosen):
    """Why a linear layer is not converted; empty where it is."""
    if not (recipe.fprop.quantized or recipe.dgrad.quantized or recipe.wgrad.quantized):
        return "the recipe has no product in MXFP4"
    reason = _own(module)
    if not reason and names[0] not in chosen:
        reason = "the recipe keeps it in high precision"
    return reason or refusal(module.in_features, module.out_features, recipe)


def _shared(model, noise, recipe, seed, device):
    """The Noise of a model's layers: the one it carries, which the one that is given must be."""
    carried = next((hook.noise for hook in model._state_dict_hooks.values()
                    if isinstance(hook, _Save)), None)
    if noise is None:
        noise = carried or Noise(seed, recipe=recipe, device=device)
    if carried is None:
        noise.attach(model)
    elif carried is not noise:
        raise ValueError("this model was converted with another Noise, which its state carries: "
                         "give that one, or none")
    noise.recipe = noise.recipe or recipe
    return noise


def convert(model, recipe, seed=0, *, noise=None, noise_device="cpu", prefix="", main_grad=False,
            cache_weights=True):
    """Replaces the nn.Linear of `model` that the recipe names, in place, and returns the Noise they
    share; model.state_dict() carries it. A model that was converted before keeps its Noise,
    whatever the seed, unless another is given, which is refused.

    noise.layers: names of the layers replaced; noise.left: {name: why not}, such as hooks, which
    would be lost. A layer with several names is replaced at all of them, and goes by the first.
    `prefix` goes before names where the model is a part of a whole (a pipeline's stage): noise
    belongs to whole names."""
    if isinstance(model, torch.nn.Linear):
        raise ValueError("the model is itself a linear layer, which nothing holds that could hold "
                         "another: wrap it (torch.nn.Sequential(layer)), or use Linear.of")
    recipe = recipes.load(recipe)
    noise = _shared(model, noise, recipe, seed, noise_device)
    linears = _names(model)
    chosen = set(recipe.layers([names[0] for module, names in linears.items()
                                if type(module) is torch.nn.Linear
                                and not any(map(recipe.keeps, names))]))
    for module, names in linears.items():
        reason = _left(module, names, recipe, chosen)
        if reason:
            noise.left[names[0]] = reason
            continue
        made = Linear.of(module, recipe, noise, zlib.crc32((prefix + names[0]).encode()), main_grad,
                         cache_weights)
        for name in names:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, made)
        noise.layers.append(names[0])
        noise.left.pop(names[0], None)
    return noise
