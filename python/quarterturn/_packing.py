"""MXFP4 operands in the layouts of other libraries, exact both ways: bits move, nothing is
rounded."""

import numpy as np

GGUF_BLOCK = 17
QUTLASS_ALPHA = 1.0 / 9.0  # of a product of two operands in QuTLASS's abs_max scales


def check_operand(codes, scales):
    """Refuses arrays that are no plain operand."""
    if codes.dtype != np.uint8 or scales.dtype != np.uint8:
        raise TypeError(f"codes hold {codes.dtype}, scales {scales.dtype}: uint8 is needed")
    if codes.shape[:-1] != scales.shape[:-1] or codes.shape[-1] != 16 * scales.shape[-1]:
        raise ValueError(f"codes are {codes.shape}, scales {scales.shape}: [..., K / 2] and "
                         "[..., K / 32] belong together")


def to_gpt_oss(codes, scales):
    """(blocks [..., K / 32, 16], scales)."""
    check_operand(codes, scales)
    return codes.reshape(*codes.shape[:-1], scales.shape[-1], 16), scales


def from_gpt_oss(blocks, scales):
    """(codes, scales) plain."""
    if blocks.shape[-1:] != (16,) or blocks.shape[:-1] != scales.shape:
        raise ValueError(f"blocks are {blocks.shape}, scales {scales.shape}: [..., K / 32, 16] and "
                         "[..., K / 32] belong together")
    codes = blocks.reshape(*blocks.shape[:-2], 16 * blocks.shape[-2])
    check_operand(codes, scales)
    return codes, scales


def to_gguf(codes, scales):
    """uint8 [..., K / 32 * 17]. GGUF has no NaN: a scale byte of 255 is refused."""
    check_operand(codes, scales)
    if (scales == 255).any():
        raise ValueError(f"{int((scales == 255).sum())} blocks have scale 255 (NaN), which GGUF's "
                         "MXFP4 cannot hold")
    blocks = codes.reshape(*scales.shape, 16)
    elements = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
    packed = elements[..., :16] | (elements[..., 16:] << 4)
    whole = np.concatenate([scales[..., None], packed], axis=-1)
    return whole.reshape(*scales.shape[:-1], GGUF_BLOCK * scales.shape[-1])


def from_gguf(data):
    """(codes, scales) plain."""
    if data.dtype != np.uint8 or data.shape[-1] % GGUF_BLOCK:
        raise ValueError(f"{data.shape} of {data.dtype}: rows of uint8 in blocks of {GGUF_BLOCK} "
                         "are needed")
    count = data.shape[-1] // GGUF_BLOCK
    blocks = data.reshape(*data.shape[:-1], count, GGUF_BLOCK)
    packed = blocks[..., 1:]
    elements = np.concatenate([packed & 15, packed >> 4], axis=-1)
    codes = elements[..., 0::2] | (elements[..., 1::2] << 4)
    return codes.reshape(*data.shape[:-1], 16 * count), np.ascontiguousarray(blocks[..., 0])


# ---- scales in tiles ----

def _up(value, unit):
    return (value + unit - 1) // unit * unit


def tiled_bytes(rows, blocks, tile_rows, tile_blocks):
    """Bytes of [rows, blocks] scales in whole tiles."""
    return _up(rows, tile_rows) * _up(blocks, tile_blocks)


def _padded(scales, tile_rows, tile_blocks):
    if scales.dtype != np.uint8 or scales.ndim < 2:
        raise TypeError(f"scales are {scales.shape} of {scales.dtype}: [..., rows, K / 32] of "
                        "uint8 is needed")
    *batch, rows, blocks = scales.shape
    out = np.zeros((*batch, _up(rows, tile_rows), _up(blocks, tile_blocks)), np.uint8)
    out[..., :rows, :blocks] = scales
    return out


def _unpadded(tiles, rows, blocks, tile_rows, tile_blocks):
    """Tiles [..., bytes] of uint8, checked; and the numbers of whole rows and blocks."""
    wanted = tiled_bytes(rows, blocks, tile_rows, tile_blocks)
    if tiles.dtype != np.uint8 or tiles.shape[-1:] != (wanted,):
        raise ValueError(f"tiles are {tiles.shape} of {tiles.dtype}: scales [{rows}, {blocks}] "
                         f"take [..., {wanted}] of uint8 in tiles of {tile_rows} x {tile_blocks}")
    return tiles.shape[:-1], _up(rows, tile_rows), _up(blocks, tile_blocks)


def to_128x4(scales):
    """[..., rows, K / 32] in the 128 x 4 tiles that cuBLAS, QuTLASS and FlashInfer read (PyTorch's
    SWIZZLE_32_4_4): bytes [..., n], zeros where a tile is not full."""
    padded = _padded(scales, 128, 4)
    *batch, rows, blocks = padded.shape
    tiles = padded.reshape(*batch, rows // 128, 4, 32, blocks // 4, 4)
    axes = len(batch)
    order = (*range(axes), *(axes + i for i in (0, 3, 2, 1, 4)))
    return np.ascontiguousarray(tiles.transpose(order)).reshape(*batch, rows * blocks)


def from_128x4(tiles, rows, blocks):
    """Scales [..., rows, blocks] of those tiles; what fills tiles is dropped."""
    batch, high, wide = _unpadded(tiles, rows, blocks, 128, 4)
    axes = len(batch)
    order = (*range(axes), *(axes + i for i in (0, 3, 2, 1, 4)))
    plain = tiles.reshape(*batch, high // 128, wide // 4, 32, 4, 4).transpose(order)
    return np.ascontiguousarray(plain.reshape(*batch, high, wide)[..., :rows, :blocks])


def to_aiter(scales):
    """[..., rows, K / 32] in the 32 x 8 tiles of aiter and hipBLASLt on gfx950, rows padded to 256
    as aiter's kernels expect: bytes [..., n], zeros where a tile is not full."""
    padded = _padded(scales, 256, 8)
    *batch, rows, blocks = padded.shape
    tiles = padded.reshape(*batch, rows // 32, 2, 16, blocks // 8, 2, 4)
    axes = len(batch)
    order = (*range(axes), *(axes + i for i in (0, 3, 5, 2, 4, 1)))
    return np.ascontiguousarray(tiles.transpose(order)).reshape(*batch, rows * blocks)


def from_aiter(tiles, rows, blocks):
    """Scales [..., rows, blocks] of those tiles; what fills tiles is dropped."""
    batch, high, wide = _unpadded(tiles, rows, blocks, 256, 8)
    axes = len(batch)
    order = (*range(axes), *(axes + i for i in (0, 5, 3, 1, 4, 2)))
    plain = tiles.reshape(*batch, high // 32, wide // 8, 4, 16, 2, 2).transpose(order)
    return np.ascontiguousarray(plain.reshape(*batch, high, wide)[..., :rows, :blocks])


# ---- aiter's 16 x 16 shuffle of weights ----

def _check_shuffle(codes):
    if codes.dtype != np.uint8 or codes.ndim < 2 or codes.shape[-2] % 16 or codes.shape[-1] % 32:
        raise ValueError(f"codes are {codes.shape} of {codes.dtype}: the 16 x 16 shuffle takes "
                         "[..., n, K / 2] of uint8 with n a multiple of 16 and K of 64")
    *batch, n, half = codes.shape
    return batch, n, half, len(batch)


def to_shuffled(codes):
    """Codes [..., n, K / 2] as aiter's shuffle_weight(16, 16) lays them out for gfx950; same
    shape."""
    batch, n, half, axes = _check_shuffle(codes)
    tiles = codes.reshape(*batch, n // 16, 16, half // 32, 2, 16)
    order = (*range(axes), *(axes + i for i in (0, 2, 3, 1, 4)))
    return np.ascontiguousarray(tiles.transpose(order)).reshape(codes.shape)


def from_shuffled(codes):
    """Plain codes of shuffled ones."""
    batch, n, half, axes = _check_shuffle(codes)
    tiles = codes.reshape(*batch, n // 16, half // 32, 2, 16, 16)
    order = (*range(axes), *(axes + i for i in (0, 3, 1, 2, 4)))
    return np.ascontiguousarray(tiles.transpose(order)).reshape(codes.shape)


# ---- QuTLASS's abs_max ----

def to_abs_max(codes, scales):
    """(codes, scales) as QuTLASS's abs_max stores an operand that was quantised under scale rule
    "ts34": a value is code * 2^(byte - 127) / 3, so products of two are times QUTLASS_ALPHA. Its
    bytes are ts34's plus 2; those above 252 are refused, NaN (255) stays."""
    check_operand(codes, scales)
    finite = scales != 255
    if (finite & (scales > 252)).any():
        raise ValueError(f"{int((finite & (scales > 252)).sum())} blocks have scales above 252, "
                         "which abs_max's, four times as large, cannot hold")
    return codes, np.where(finite, scales + np.uint8(2), scales).astype(np.uint8)


def from_abs_max(codes, scales):
    """(codes, scales) plain, of scale rule "ts34". Blocks of zeros may have any byte."""
    check_operand(codes, scales)
    zero = ~(codes.reshape(*scales.shape, 16) & 0x77).any(axis=-1)
    small = (scales < 2) & ~zero
    if small.any():
        raise ValueError(f"{int(small.sum())} blocks have abs_max scales below 2, whose quarter no "
                         "byte is")
    return codes, np.where(scales == 255, scales, np.maximum(scales, 2) - 2).astype(np.uint8)
