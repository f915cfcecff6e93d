"""Recipes: which products of a linear layer run in MXFP4, and how their operands are rounded.

    recipe = quarterturn.recipes.amd_det_h16
    recipe = quarterturn.recipes.load("mine.json")        # or a preset's name
    mine = dataclasses.replace(recipe, wgrad=dataclasses.replace(recipe.wgrad, rotation=32))

The three products of Y = X W^T, with their operands and the axis that rotation and blocks run
along:

    fprop  Y  = X W^T      a: X [tokens, in]       b: W [out, in]        along in features
    dgrad  dX = dY W       a: dY [tokens, out]     b: W^T [in, out]      along out features
    wgrad  dW = dY^T X     a: dY^T [out, tokens]   b: X^T [in, tokens]   along tokens

A recipe is data: it compares, hashes, prints, and goes to JSON and back. Presets are named after
the systems whose published choices they follow; the docstring of each function below says where it
departs from them and where papers disagree. None of them is a promise about a loss curve: measure
on your own model (`python -m quarterturn.study`).

Where the papers disagree (2502.20586 Amazon, 2605.09825 AMD, 2505.14669 Quartet, 2509.25149
NVIDIA):
- Stochastic rounding of gradients: for (Amazon, NVIDIA, TetraJet), against (AMD: did not converge;
  Quartet's fourth version: nearest is at least as good in the backward pass).
- Random signs: for (Amazon), against (AMD: did not converge), without effect (NVIDIA, small scale).
- Rotation in Fprop and Dgrad: for (Quartet, AMD), against (NVIDIA: degrades; Primus-Turbo, Lumen:
  Wgrad only).
- Rotation size: 16 (AMD, NVIDIA), 32 (Quartet), 64 and more (Amazon).
"""

import dataclasses
import fnmatch
import functools
import json
import pathlib

ROUNDINGS = ("rne", "sr16", "sr22", "sr8", "half_away", "half_to_zero", "sr_cvt_rs",
             "sr_cvt_scalef32")
SCALE_RULES = ("floor", "even", "rceil", "ceil", "ts34", "quest", "quest_qutlass", "search")
CLIPPING = ("floor", "even", "quest", "quest_qutlass", "search")
ROTATIONS = (0, 16, 32, 64, 128, 256)


def _refuse(what, given, allowed):
    raise ValueError(f"{what} = {given!r}: {', '.join(map(str, allowed))} are allowed")


@dataclasses.dataclass(frozen=True)
class Operand:
    """How one operand of a product is rounded. scale_block "32x32" is for weights without rotation:
    W and W^T then share codes."""

    rounding: str = "rne"
    scale_rule: str = "rceil"
    scale_block: str = "1x32"

    def __post_init__(self):
        for what, given, allowed in (("rounding", self.rounding, ROUNDINGS),
                                     ("scale_rule", self.scale_rule, SCALE_RULES),
                                     ("scale_block", self.scale_block, ("1x32", "32x32"))):
            if given not in allowed:
                _refuse(what, given, allowed)

    @property
    def draws(self):
        return self.rounding.startswith("sr")


@dataclasses.dataclass(frozen=True)
class Product:
    """One of the three products. format "bf16" leaves it to PyTorch, in the inputs' type; the other
    fields then mean nothing. signs: "none", "fixed:<hexadecimal mask>" (bit j flips element j of a
    rotation block) or "per_call" (drawn anew for each layer and step). biased allows stochastic
    rounding under a scale rule that clips. contract and spread are those of qturn.h."""

    format: str = "mxfp4"
    rotation: int = 0
    signs: str = "none"
    a: Operand = Operand()
    b: Operand = Operand()
    biased: bool = False
    contract: str = "exact"
    spread: str = "any"

    def __post_init__(self):
        for what, given, allowed in (("format", self.format, ("mxfp4", "bf16")),
                                     ("rotation", self.rotation, ROTATIONS),
                                     ("contract", self.contract, ("exact", "fast")),
                                     ("spread", self.spread, ("any", "narrow"))):
            if given not in allowed:
                _refuse(what, given, allowed)
        kind, _, mask = self.signs.partition(":")
        if kind not in ("none", "fixed", "per_call") or (kind == "fixed") != bool(mask):
            _refuse("signs", self.signs, ("none", "fixed:<hexadecimal mask>", "per_call"))
        if mask:
            int(mask, 16)
        if kind != "none" and not self.rotation:
            raise ValueError(f"signs = {self.signs!r} without a rotation: give one, or no signs")
        if (self.a.scale_rule == "ts34") != (self.b.scale_rule == "ts34"):
            raise ValueError("ts34 scales by 3/4, which the product takes out of both operands: "
                             "use it for both or for neither")
        for operand in (self.a, self.b):
            if operand.scale_block == "32x32" and self.rotation:
                raise ValueError("scale_block = '32x32' with a rotation: a rotated weight and its "
                                 "transpose differ, so they cannot share codes")
            if operand.draws and operand.scale_rule in CLIPPING and not self.biased:
                raise ValueError(f"{operand.rounding} with {operand.scale_rule} is biased, as that "
                                 "rule clips: use rceil, ceil or ts34, or say biased = true")

    @property
    def quantized(self):
        return self.format == "mxfp4"

    @property
    def draws(self):
        """Whether noise or signs are drawn."""
        return self.quantized and (self.a.draws or self.b.draws or self.signs == "per_call")


HIGH = Product(format="bf16")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Three products, and which layers are left alone. keep: patterns (of fnmatch) of module names;
    keep_first and keep_last: how many of the model's other linear layers, from its ends; keep_tail:
    a fraction of them, from the end."""

    name: str
    fprop: Product = HIGH
    dgrad: Product = HIGH
    wgrad: Product = HIGH
    keep: tuple = ("*lm_head*", "*embed*", "*router*", "*gate.weight*")
    keep_first: int = 0
    keep_last: int = 0
    keep_tail: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "keep", tuple(self.keep))
        if not 0.0 <= self.keep_tail <= 1.0:
            _refuse("keep_tail", self.keep_tail, ("0.0 to 1.0",))

    @property
    def draws(self):
        return self.fprop.draws or self.dgrad.draws or self.wgrad.draws

    @property
    def unit(self):
        """What a layer's in and out features must be multiples of: (in, out)."""
        sizes = [max(32, p.rotation) if p.quantized else 1 for p in (self.fprop, self.dgrad)]
        squares = [p.quantized and p.b.scale_block == "32x32" for p in (self.fprop, self.dgrad)]
        least = 32 if any(squares) else 1
        return max(sizes[0], least), max(sizes[1], least)

    def keeps(self, name):
        """Whether one of `keep`'s patterns matches the name."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.keep)

    def layers(self, names):
        """Of linear layers' names in the model's order, those that it quantises."""
        left = [name for name in names if not self.keeps(name)]
        last = max(self.keep_last, round(self.keep_tail * len(left)))
        return left[self.keep_first:len(left) - last]

    def to_json(self, indent=None):
        """Text that `from_json` reads; without an indent, one canonical line."""
        return json.dumps(dataclasses.asdict(self), indent=indent, sort_keys=True)


def _built(cls, given, where):
    if not isinstance(given, dict):
        raise ValueError(f"{where}: an object is needed, {given!r} was given")
    known = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{where} has no '{unknown[0]}'; it has {', '.join(known)}")
    nested = {"a": Operand, "b": Operand, "fprop": Product, "dgrad": Product, "wgrad": Product}
    made = {}
    for name, value in given.items():
        if name in nested:
            made[name] = _built(nested[name], value, f"{where}.{name}")
        else:
            wanted = type(getattr(cls, name, "")) if name != "name" else str
            if wanted is float and type(value) is int:
                value = float(value)
            if wanted is tuple and isinstance(value, list):
                value = tuple(value)
            if type(value) is not wanted:
                raise ValueError(f"{where}.{name} = {value!r}: {wanted.__name__} is needed")
            made[name] = value
    try:
        return cls(**made)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


@functools.lru_cache(maxsize=256)
def from_json(text):
    """A recipe from its text; what is left out has its default, an unknown name is an error."""
    return _built(Recipe, json.loads(text), "recipe")


def load(source):
    """A Recipe itself, a preset's name, or a JSON file's path."""
    if isinstance(source, Recipe):
        return source
    if source in PRESETS:
        return PRESETS[source]
    path = pathlib.Path(source)
    if not path.exists():
        raise ValueError(f"'{source}' is neither a file nor a preset ({', '.join(PRESETS)})")
    return from_json(path.read_text(encoding="utf-8"))


# ---- presets ----

def _amazon_rht_sr():
    """Tseng et al., Training LLMs with MXFP4 (arXiv:2502.20586), the full method: Fprop in bf16; in
    Dgrad and Wgrad both operands are rotated by a random Hadamard transform of 64 and rounded
    stochastically from 3/4 of their values (16/9 comes back in the product).

    Departs: the paper draws signs for every product and call; here they are drawn for every layer
    and step, so that a weight is rounded once a step. rceil would be unbiased without the 3/4."""
    drawn = Operand("sr16", "ts34")
    backward = Product(rotation=64, signs="per_call", a=drawn, b=drawn)
    return Recipe("amazon_rht_sr", dgrad=backward, wgrad=backward)


def _amd_det_h16():
    """Cim et al. (arXiv:2605.09825): all three products in MXFP4 behind one deterministic Hadamard
    transform of 16, rounded to nearest. The paper reports that stochastic rounding and random signs
    did not converge in its setting, which Amazon's and NVIDIA's results contradict.

    Departs: the scale rule of the final recipe is not stated there; rceil here."""
    product = Product(rotation=16)
    return Recipe("amd_det_h16", product, product, product)


def _quartet():
    """Castro et al., Quartet (arXiv:2505.14669, version 4): a Hadamard transform of 32 in all three
    products; forward operands rounded to nearest under the QuEST scale, backward ones to nearest
    under the 3/4 scale.

    Departs: the paper masks gradients of values that QuEST clipped and rotates the backward
    operands with signs; neither is done here. The published code rounds the backward pass
    stochastically by default, the paper's last version to nearest."""
    forward, backward = Operand("rne", "quest"), Operand("rne", "ts34")
    return Recipe("quartet", Product(rotation=32, a=forward, b=forward),
                  Product(rotation=32, a=backward, b=backward),
                  Product(rotation=32, a=backward, b=backward))


def _nvidia_like():
    """The recipe of NVIDIA's NVFP4 pre-training (arXiv:2509.25149) with MXFP4 in NVFP4's place:
    square scale blocks for weights, stochastic rounding of gradients only, a Hadamard transform of
    16 with one fixed sign vector in Wgrad only, and the last 15 % of the linear layers in bf16.

    Departs: NVFP4 has blocks of 16 with E4M3 scales and a second scale for the tensor; weights have
    blocks of 16 x 16 there, 32 x 32 here."""
    weight = Operand("rne", "rceil", "32x32")
    gradient = Operand("sr16", "rceil")
    return Recipe("nvidia_like", Product(b=weight), Product(a=gradient, b=weight),
                  Product(rotation=16, signs="fixed:d7e8", a=gradient, b=Operand()),
                  keep_tail=0.15)


def _te_mxfp4():
    """Transformer Engine's MXFP4 on ROCm with its Hadamard option: all three products behind a
    deterministic transform of 16, to nearest, under the "even" scale rule.

    Departs: its software rounding breaks ties away from zero where the hardware rounds them to
    even; to even here. Its option of stochastic rounding is left off, as by default there."""
    operand = Operand("rne", "even")
    product = Product(rotation=16, a=operand, b=operand)
    return Recipe("te_mxfp4", product, product, product)


def _quarterturn():
    """What this library's own measurements speak for (docs/evidence/tensors-h200.md): all three
    products behind a deterministic transform of 32, to nearest, under the "even" scale rule, which
    had the least error of all rules but the search, and came out as bf16 did within the noise of
    four seeds. One small model and 400 steps: a start, not a law. Where activations share a large
    mean over tokens, random signs in Wgrad (rotation=64, signs="per_call") have less error."""
    operand = Operand("rne", "even")
    product = Product(rotation=32, a=operand, b=operand)
    return Recipe("quarterturn", product, product, product)


def _bf16():
    """No product in MXFP4: the arm that others are compared with."""
    return Recipe("bf16")


amazon_rht_sr, amd_det_h16, quartet = _amazon_rht_sr(), _amd_det_h16(), _quartet()
nvidia_like, te_mxfp4, bf16 = _nvidia_like(), _te_mxfp4(), _bf16()
quarterturn = _quarterturn()
PRESETS = {recipe.name: recipe
           for recipe in (amazon_rht_sr, amd_det_h16, quartet, nvidia_like, te_mxfp4, quarterturn,
                           bf16)}
DESCRIPTIONS = {name: maker.__doc__ for name, maker in (
    ("amazon_rht_sr", _amazon_rht_sr), ("amd_det_h16", _amd_det_h16), ("quartet", _quartet),
    ("nvidia_like", _nvidia_like), ("te_mxfp4", _te_mxfp4), ("quarterturn", _quarterturn),
    ("bf16", _bf16))}
