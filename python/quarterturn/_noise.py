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


def _mixed(*words):
    """64 bits that depend on every word (SplitMix64's finaliser over a running sum)."""
    state = 0
    for word in words:
        state = (state + (word & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


@functools.lru_cache(maxsize=4096)
def _word(*words):
    return _mixed(*words) & 0xFFFFFFFF


def noise_stream(layer, step, microbatch, tensor):
    """The 32-bit counter word of one tensor's rounding: one of the layer and tensor plus one of the
    time. A weight is rounded once a step, so its word does not depend on the microbatch."""
    time = _word(step, 0 if tensor == WEIGHT else microbatch)
    return (_word(layer, tensor) + time) & 0xFFFFFFFF


@functools.lru_cache(maxsize=4096)
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


_NOWHERE = (0, 0, 0, 0, 0)  # a place, where none is given


def _refuse(what, tensor, count):
    raise ValueError(f"{what} is {tuple(tensor.shape)} of {tensor.dtype}: ({count},) of int64 is "
                     "taken, as quarterturn.torch_ops describes it")


def _numbers(tensor, count, what):
    numbers = tensor.tolist()
    if type(numbers) is not list or len(numbers) != count or type(numbers[0]) is not int:
        _refuse(what, tensor, count)
    return numbers


def _on_device(noise, index, signs):
    """The address of a noise tensor that kernels on cuda:<index> read."""
    if signs == "per_call":
        raise ValueError("signs = 'per_call' with noise on the GPU: signs are drawn from the call; "
                         "give noise on the CPU")
    if noise.get_device() != index:
        here = "the CPU" if index < 0 else f"cuda:{index}"
        raise ValueError(f"noise is on {noise.device}, what it rounds on {here}: give it there or "
                         "on the CPU")
    if noise.dtype is not torch.int64 or noise.shape != (8,) or not noise.is_contiguous():
        _refuse("noise", noise, 8)
    return noise.data_ptr()


def has_all_rows(noise, place, tensor, m):
    """Whether a call of m rows has all of the whole tensor's, as one that gives both copies must
    where it draws."""
    if tensor == WEIGHT:
        _, row0, _, rows, _ = _NOWHERE if place is None else _numbers(place, 5, "place")
    else:
        row0, rows = (0, 0) if noise.is_cuda else _numbers(noise, 8, "noise")[4:6]
    return row0 == 0 and rows in (0, m)


def draw(words, index, noise, place, tensor, rounding, signs, transposed):
    """Writes what a call draws by into the words of its qturn_args (_calls.WORD). What it rounds is
    on cuda:<index>, or on the CPU where index < 0."""
    if noise is None:
        raise ValueError(f"rounding {rounding}, signs {signs}: give `noise`, a tensor that "
                         "quarterturn.torch_ops.noise(...) makes")
    layer, row0, column0, rows, columns = _NOWHERE if place is None else _numbers(place, 5, "place")
    weight = tensor == WEIGHT
    stream = _word(layer, tensor)
    if noise.is_cuda:
        at = _on_device(noise, index, signs)
        words[_SEED_AT], words[_STREAM_AT] = at, at + (56 if weight else 48)
        words[_SEED], words[_STREAM] = 0, stream
        token0 = tokens = flips = 0
    else:
        if index >= 0 and _is_capturing():
            raise RuntimeError("this noise is on the CPU: every replay of the CUDA graph would "
                               "repeat it. Give noise on the GPU, or run this part eagerly")
        seed, sign, step, _, token0, tokens, time, weight_time = _numbers(noise, 8, "noise")
        words[_SEED_AT] = words[_STREAM_AT] = 0
        words[_SEED] = seed
        words[_STREAM] = (stream + (weight_time if weight else time)) & 0xFFFFFFFF
        flips = signed(sign_seed(sign, layer, step)) if signs == "per_call" else 0
    words[_A_SIGNS] = words[_B_SIGNS] = flips
    # Where each axis begins in the whole tensor, and that one's length: X is [tokens, columns of
    # W], dY [tokens, rows of W].
    if weight:
        token0, tokens = row0, rows
    elif tensor == DY:
        column0, columns = row0, rows
    if transposed:
        words[_ROW0], words[_K0], words[_K_GLOBAL] = column0, token0, tokens
    else:
        words[_ROW0], words[_K0], words[_K_GLOBAL] = token0, column0, columns
