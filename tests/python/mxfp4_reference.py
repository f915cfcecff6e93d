"""MXFP4 by the numerics contract (docs/numerics.md) in NumPy, and a linear layer by a recipe in
float64: the oracle of the tests of the Python package, written from the contract alone."""

import numpy as np

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def philox(counter, key):
    """Philox4x32-7: counter [n, 4] uint32, key (lo, hi); gives [n, 4] uint32."""
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    low = np.uint64(0xFFFFFFFF)
    for _ in range(7):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k0, p1 & low,
             (p0 >> np.uint64(32)) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack(c, axis=1).astype(np.uint32)


def _halves(seed):
    return seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF


def random16(shape, seed, stream, transposed, row0=0, k0=0, k_global=0):
    """The 16 bits of each element of a copy [rows, k]; k may be padded beyond k_global."""
    rows, k = shape
    k32 = ((k_global or k) + 31) // 32 * 32
    p = (row0 + np.arange(rows, dtype=np.uint64)[:, None]) * np.uint64(k32) + np.uint64(k0) \
        + np.arange(k, dtype=np.uint64)[None, :]
    p = p.reshape(-1)
    call = p >> np.uint64(3)
    counter = np.stack([call & np.uint64(0xFFFFFFFF), call >> np.uint64(32),
                        np.full_like(call, stream), np.full_like(call, 4 * transposed)], axis=1)
    words = philox(counter.astype(np.uint32), _halves(seed))
    part = (p & np.uint64(7)).astype(np.int64)
    word = words[np.arange(len(p)), part // 2]
    return ((word >> (16 * (part % 2)).astype(np.uint32)) & np.uint32(0xFFFF)).reshape(shape)


def per_call_signs(seed, g):
    j = np.arange(g)
    counter = np.zeros((g, 4), dtype=np.uint32)
    counter[:, 0] = j // 128
    counter[:, 2] = 0x7369676E
    words = philox(counter, _halves(seed))
    word = words[j, (j // 32) % 4]
    return (word >> (j % 32).astype(np.uint32)) & 1


def rotate(x, g, flips=None):
    """x [rows, k] float32, k a multiple of g: signs, stages of (a + b, a - b), one
    multiplication."""
    if g == 0:
        return x
    segments = x.reshape(-1, g).astype(np.float32)
    if flips is not None:
        segments = np.where(flips.astype(bool), -segments, segments)
    h = 1
    while h < g:
        pairs = segments.reshape(-1, g // (2 * h), 2, h)
        segments = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]],
                            axis=2).reshape(-1, g)
        h *= 2
    return (segments * np.float32(1 / np.sqrt(np.float64(g)))).astype(np.float32).reshape(x.shape)


def _pair_sums(values):
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]


def scale_bytes(blocks, rule):
    """blocks [n, 32] float32, normal numbers or zero."""
    bits = np.abs(blocks).view(np.uint32).max(axis=1).astype(np.int64)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    if rule in ("floor", "ts34"):
        byte = exponent - 2
    elif rule == "even":
        byte = ((bits + 0x200000) >> 23) - 2
    elif rule == "rceil":
        byte = exponent - 2 + (mantissa > 0x400000)
    elif rule == "ceil":
        byte = exponent - 2 + (mantissa > 0)
    elif rule == "quest":
        mean = (_pair_sums(blocks) * np.float32(2.0**-5)).astype(np.float32)
        deviation = blocks - mean[:, None]
        variance = (_pair_sums(deviation * deviation) * np.float32(2.0**-5)).astype(np.float32)
        t = np.sqrt(variance) * np.float32(2.92247856 / 6)
        byte = t.astype(np.float32).view(np.uint32).astype(np.int64) >> 23
    else:
        raise ValueError(rule)
    return np.where(bits == 0, 0, np.clip(byte, 0, 254))


def encode(a, random=None):
    """Magnitudes of E2M1 (0 to 7) of a >= 0 in units of the scale: to nearest, or by 16 bits."""
    bits = a.astype(np.float32).view(np.uint32).astype(np.int64)
    exponent, mantissa = (bits >> 23) - 127, bits & 0x7FFFFF
    shift = np.clip(-exponent, 0, 25)
    t = np.where(exponent >= 0, ((exponent + 1) << 23) | mantissa, (0x800000 | mantissa) >> shift)
    lost = (exponent < 0) & (((0x800000 | mantissa) & ((1 << shift) - 1)) != 0)
    lost &= a > 0
    if random is not None:
        code = (t + ((random.astype(np.int64) << 6) | 0x20)) >> 22
    else:
        code, low = t >> 22, t & 0x3FFFFF
        up = (low > 0x200000) | ((low == 0x200000) & (lost | (code & 1).astype(bool)))
        code = code + up
    return np.where(exponent > 2, 7, np.minimum(code, 7))


def quantize(x, g=0, rule="rceil", flips=None, random=None, square=False):
    """x [rows, k] float32, padded here: (codes [rows, K] 0..15, bytes [rows, K / 32]). random: 16
    bits for each element of the padded copy."""
    unit = max(32, g)
    k = (x.shape[1] + unit - 1) // unit * unit
    padded = np.zeros((x.shape[0], k), dtype=np.float32)
    padded[:, :x.shape[1]] = x
    rotated = rotate(padded, g, flips)
    blocks = rotated.reshape(-1, 32)
    if square:
        tiles = rotated.reshape(x.shape[0] // 32, 32, k // 32, 32).transpose(0, 2, 1, 3)
        byte = scale_bytes(np.ascontiguousarray(tiles.reshape(-1, 1024)), rule)
        byte = np.repeat(byte.reshape(x.shape[0] // 32, k // 32), 32, axis=0).reshape(-1)
    else:
        byte = scale_bytes(blocks, rule)
    if rule == "ts34":
        blocks = (blocks * np.float32(0.75)).astype(np.float32)
    scaled = np.ldexp(np.abs(blocks).astype(np.float64), (127 - byte)[:, None]).astype(np.float32)
    if random is not None:
        random = random.reshape(-1, 32)
    code = encode(scaled, random) | (np.signbit(blocks).astype(np.int64) << 3)
    if not square:
        code = np.where((byte == 0)[:, None] & (np.abs(blocks).max(axis=1, keepdims=True) == 0), 0,
                        code)
    return code.reshape(x.shape[0], k), byte.reshape(x.shape[0], k // 32)


def pack(codes):
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8)


def values(codes, scale):
    """float64 values, still rotated."""
    magnitude = VALUES[codes & 7].astype(np.float64) * np.where(codes & 8, -1.0, 1.0)
    return magnitude * np.exp2(np.repeat(scale, 32, axis=1).astype(np.float64) - 127)
