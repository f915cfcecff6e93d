"""The arms of the study: recipes by name, and the published claims that pairs of them speak to."""

import dataclasses
import pathlib

from .. import recipes
from ..recipes import HIGH, Operand, Product, Recipe

_KEEP = recipes.bf16.keep


def _rne(rule, **members):
    return Product(a=Operand("rne", rule), b=Operand("rne", rule), **members)


_SR_DY = Product(a=Operand("sr16", "rceil"), b=Operand("rne", "rceil"))
_SR_BOTH = Operand("sr16", "ts34")
_EVEN, _FLOOR, _RCEIL = _rne("even"), _rne("floor"), _rne("rceil")
_H16, _H32 = _rne("rceil", rotation=16), _rne("rceil", rotation=32)
_RHT32 = _rne("rceil", rotation=32, signs="per_call")
_RHT64_SR = dataclasses.replace(recipes.amazon_rht_sr.wgrad)
_RHT64_RNE = _rne("ts34", rotation=64, signs="per_call")
_SR = Product(a=_SR_BOTH, b=_SR_BOTH)

_EVEN_H32 = _rne("even", rotation=32)
_EVEN_RHT64 = _rne("even", rotation=64, signs="per_call")
_SR_RHT64 = dataclasses.replace(_SR_DY, rotation=64, signs="per_call")

CONTROL = "control_half_noise"


def _arm(name, fprop=HIGH, dgrad=HIGH, wgrad=HIGH):
    return Recipe(name, fprop, dgrad, wgrad, keep=_KEEP)


ARMS = {arm.name: arm for arm in (
    _arm("bf16"),
    _arm("f_even", _EVEN),
    _arm("fd_even", _EVEN, _EVEN),
    _arm("fdw_even", _EVEN, _EVEN, _EVEN),
    _arm("fdw_floor", _FLOOR, _FLOOR, _FLOOR),
    _arm("fdw_rceil", _RCEIL, _RCEIL, _RCEIL),
    _arm("fdw_rceil_sr_grad", _RCEIL, _SR_DY, _SR_DY),
    _arm("fdw_det_h16", _H16, _H16, _H16),
    _arm("fdw_det_h32", _H32, _H32, _H32),
    _arm("fdw_rht32_rne", _RHT32, _RHT32, _RHT32),
    _arm("fdw_rht32_sr", _RHT32,
         dataclasses.replace(_SR_DY, rotation=32, signs="per_call"),
         dataclasses.replace(_SR_DY, rotation=32, signs="per_call")),
    _arm("dw_floor", HIGH, _FLOOR, _FLOOR),
    _arm("dw_sr", HIGH, _SR, _SR),
    _arm("dw_rht64_rne", HIGH, _RHT64_RNE, _RHT64_RNE),
    _arm("dw_rht64_sr", HIGH, _RHT64_SR, _RHT64_SR),
    _arm("w_h16_sr", HIGH, HIGH, dataclasses.replace(_SR_DY, rotation=16)),
    # What the errors of real tensors suggest (docs/evidence/tensors-h200.md).
    _arm("fdw_even_h32", _EVEN_H32, _EVEN_H32, _EVEN_H32),
    _arm("fd_even_w_rht64", _EVEN, _EVEN, _EVEN_RHT64),
    _arm("fd_even_h32_w_rht64", _EVEN_H32, _EVEN_H32, _EVEN_RHT64),
    _arm("fd_even_h32_w_rht64_sr", _EVEN_H32, _EVEN_H32, _SR_RHT64),
    # Half of the elements get no noise (see control.py), as in a published kernel: a study that
    # cannot tell it from `fdw_rceil_sr_grad` cannot tell good noise from bad.
    _arm(CONTROL, _RCEIL, _SR_DY, _SR_DY),
)}


@dataclasses.dataclass(frozen=True)
class Claim:
    """That the loss of `worse` exceeds that of `better`, and who says so."""

    text: str
    worse: str
    better: str


CLAIMS = (
    Claim("MXFP4 in Fprop, Dgrad and Wgrad without a rotation trains worse than bf16 (AMD, "
          "2605.09825)", "fdw_even", "bf16"),
    Claim("of the three products, Wgrad costs most: F+D+W is worse than F+D (AMD)", "fdw_even",
          "fd_even"),
    Claim("a deterministic Hadamard transform of 16 on all products helps (AMD)", "fdw_even",
          "fdw_det_h16"),
    Claim("random signs do harm where the deterministic transform does not (AMD)", "fdw_rht32_rne",
          "fdw_det_h32"),
    Claim("stochastic rounding does harm where nearest does not (AMD)", "fdw_rht32_sr",
          "fdw_rht32_rne"),
    Claim("stochastic rounding of gradients helps without a rotation (NVIDIA 2509.25149, TetraJet)",
          "fdw_rceil", "fdw_rceil_sr_grad"),
    Claim("backward only: nearest rounding under the floor rule is worse than the random transform "
          "with stochastic rounding (Amazon, 2502.20586)", "dw_floor", "dw_rht64_sr"),
    Claim("backward only: the random transform helps stochastic rounding (Amazon)", "dw_sr",
          "dw_rht64_sr"),
    Claim("backward only: stochastic rounding helps behind the random transform (Amazon)",
          "dw_rht64_rne", "dw_rht64_sr"),
    Claim("backward only, with transform and stochastic rounding, is still worse than bf16 "
          "(against Amazon, who find no loss)", "dw_rht64_sr", "bf16"),
    Claim("the floor rule, which clips, is worse than even (torchao 2035, aiter 3212)", "fdw_floor",
          "fdw_even"),
    Claim("rounding with noise on half of the elements is worse than with noise on all (the "
          "control of this study)", CONTROL, "fdw_rceil_sr_grad"),
)


def chosen(text):
    """{name: recipe} of a comma-separated list of arms, presets and recipe files; "all": every
    arm above."""
    if text == "all":
        return dict(ARMS)
    out = {}
    for name in text.split(","):
        recipe = ARMS.get(name) or recipes.load(name)
        key = recipe.name if name not in ARMS and pathlib.Path(name).exists() else name
        if key in out and out[key] != recipe:
            raise ValueError(f"two arms are called '{key}'")
        out[key] = recipe
    return out
