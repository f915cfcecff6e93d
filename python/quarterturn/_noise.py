"""What PyTorch's operators draw by: noise and place tensors, and the words of Philox counters."""

import functools

import torch

from ._calls import WORD

X, WEIGHT, DY = 0, 1, 2  # whose values `quantize` rounds: each draws noise of its own

NOISE_FIELDS = ("seed", "sign_seed", "step", "microbatch", "token0", "tokens")

_MASK = (1 << 64) - 1
_SEED, _STREAM, _SEED_AT, _STREAM_AT, _ROW0, _K0, _K_GLOBAL, _A_SIGNS, _B_SIGNS = (
    WORD[name] for name in ("noise_seed", "noise_stream", "noise_seed_at", "noise_stream_at",
                            "row0", "k0", "k_global", "a.sign_seed", "b.sign_seed"))
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing",
                        torch.cuda.is_current_stream_capturing)


@functools.lru_cache(maxsize=4096)
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
    time = _word(step, 0 if tensor == WEIGHT else microbatch)
    return (_word(layer, tensor) + time) & 0xFFFFFFFF


def sign_seed(seed, layer, step):
    """Of signs drawn per call: one vector for each layer and step, whatever the product."""
    return _mixed(seed, layer, step)


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
    """What operators draw by: seed, sign_seed (64 bits each), step, microbatch, token0 and tokens
    (the first token of this call and how many there are in all; 0: those of this call)."""
    return torch.tensor(noise_values(**fields), dtype=torch.int64, device=device)


def is_random(rounding, signs):
    """Whether a quantiser of this rounding and these signs draws anything."""
    return rounding.startswith("sr") or signs == "per_call"


class Drawn:
    """Where a call's noise and signs come from."""

    __slots__ = ("seed", "stream", "seed_at", "stream_at", "sign_seed", "rows", "columns")

    def __init__(self, noise, place, tensor, signs):
        layer, row0, column0, rows, columns = (
            place.tolist() if place is not None else (0, 0, 0, 0, 0))
        self.seed = self.sign_seed = token0 = tokens = 0
        self.stream = _word(layer, tensor)
        self.seed_at = self.stream_at = 0
        if noise.is_cuda:
            if signs == "per_call":
                raise ValueError("signs = 'per_call' with noise on the GPU: signs are drawn from "
                                 "the call; give noise on the CPU")
            self.seed_at = noise.data_ptr()
            self.stream_at = self.seed_at + (56 if tensor == WEIGHT else 48)
        else:
            seed, sign, step, _, token0, tokens, word, weight_word = noise.tolist()
            self.seed = seed & _MASK
            self.stream = (self.stream + (weight_word if tensor == WEIGHT else word)) & 0xFFFFFFFF
            if signs == "per_call":
                self.sign_seed = sign_seed(sign, layer, step)
        # First element and length of both axes of the whole tensor; X is [tokens, columns of W],
        # dY [tokens, rows of W].
        down = (row0, rows) if tensor == WEIGHT else (token0, tokens)
        along = (row0, rows) if tensor == DY else (column0, columns)
        self.rows = (down[0], *along)     # row0, k0, k_global of a row-wise copy
        self.columns = (along[0], *down)  # of the transposed copy, in its own coordinates

    def has_all_rows(self, m):
        """As a call that gives both copies takes it."""
        return self.columns[1] == 0 and self.columns[2] in (0, m)

    def fill(self, words, transposed):
        """Into the words of a qturn_args (_calls.WORD)."""
        words[_SEED], words[_STREAM] = self.seed, self.stream
        words[_SEED_AT], words[_STREAM_AT] = self.seed_at, self.stream_at
        row0, k0, k_global = self.columns if transposed else self.rows
        words[_ROW0], words[_K0], words[_K_GLOBAL] = row0 & _MASK, k0 & _MASK, k_global & _MASK
        words[_A_SIGNS] = words[_B_SIGNS] = self.sign_seed


def drawn(x, noise, place, tensor, rounding, signs):
    """The Drawn of a call on x, or why there is none."""
    if noise is None:
        raise ValueError(f"rounding {rounding}, signs {signs}: give `noise`, a tensor that "
                         "quarterturn.torch_ops.noise(...) makes")
    if x.is_cuda and not noise.is_cuda and _is_capturing():
        raise RuntimeError("this noise is on the CPU: every replay of the CUDA graph would repeat "
                           "it. Give noise on the GPU, or run this part eagerly")
    return Drawn(noise, place, tensor, signs)
