"""The negative control: stochastic rounding whose noise reaches only half of the elements.

A published kernel draws one 32-bit word for four elements and shifts it by 16 for two of them, so
that these two see noise below 2^-16 of a step: they are cut off towards zero. Products stay this
library's; only the codes of those elements are put in their place afterwards."""

import contextlib

import torch

from .. import _linear

_GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def cut_half(x, codes, scales):
    """codes of x [rows, K] (unrotated) with elements 2 and 3 of every four cut off towards zero."""
    rows, half = codes.shape
    padded = torch.zeros((rows, 2 * half), device=x.device)
    padded[:, :x.shape[1]] = x
    unit = torch.exp2(scales.float() - 127).repeat_interleave(32, 1)
    grid = torch.tensor(_GRID, device=x.device)
    cut = torch.searchsorted(grid, (padded.abs() / unit).contiguous(), right=True) - 1
    cut = cut | ((padded < 0).long() << 3)
    both = torch.stack([codes & 15, codes >> 4], dim=2).view(rows, 2 * half).long()
    place = torch.arange(2 * half, device=x.device) % 4
    both = torch.where(place >= 2, cut, both)
    return (both[:, 0::2] | (both[:, 1::2] << 4)).to(torch.uint8)


def _quantize(x, noise, place, *, copies="rows", rounding="rne", **settings):
    if copies == "both":
        return (*_quantize(x, noise, place, copies="rows", rounding=rounding, **settings),
                *_quantize(x, noise, place, copies="columns", rounding=rounding, **settings))
    codes, scales = _linear.quantize(x, noise, place, copies=copies, rounding=rounding, **settings)
    if rounding.startswith("sr"):
        codes = cut_half(x.t().float() if copies == "columns" else x.float(), codes, scales)
    return codes, scales


@contextlib.contextmanager
def half_noise():
    """Layers quantise so while this lasts."""
    before = _linear.quantize_by
    _linear.quantize_by = _quantize
    _linear.refresh_weights()
    try:
        yield
    finally:
        _linear.quantize_by = before
        _linear.refresh_weights()
