"""What tensors are as operands: types, rows, devices, and the shapes of codes and scales."""

import torch

TYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def type_of(tensor, what):
    return name_of(tensor.dtype, f"{what} holds")


def name_of(dtype, what="dtype is"):
    try:
        return TYPES[dtype]
    except KeyError:
        raise TypeError(f"{what} {dtype}: float32, bfloat16 or float16 is taken") from None


def matrix(x, what):
    """Rows, columns, the distance of rows, and whether the matrix must be copied to be taken: rows
    may lie apart, but neither overlap nor be one row in several places."""
    if x.dim() != 2:
        raise ValueError(f"{what} has {x.dim()} dimensions: a matrix is taken; reshape it")
    rows, columns = x.shape
    if x.is_contiguous():
        return rows, columns, columns, False
    if (x.stride(1) != 1 and columns > 1) or (x.stride(0) < columns and rows > 1):
        return rows, columns, columns, True
    return rows, columns, x.stride(0) if rows > 1 else columns, False


def check_device(index, **tensors):
    for name, tensor in tensors.items():
        if tensor is not None and tensor.get_device() != index:
            here = "the CPU" if index < 0 else f"cuda:{index}"
            raise ValueError(f"{name} is on {tensor.device}, the first tensor on {here}: all "
                             "operands must be on one device")


def padded_to(k, rotation):
    unit = rotation if rotation > 32 else 32
    return (k + unit - 1) // unit * unit


def copy_shapes(rows, k, rotation):
    """Shapes, strides and type of one copy's codes and scales."""
    padded = padded_to(k, rotation)
    return (((rows, padded // 2), (padded // 2, 1), torch.uint8),
            ((rows, padded // 32), (padded // 32, 1), torch.uint8))


def check_operand(codes, scales, what):
    """Rows and K of a plain operand."""
    rows, half = codes.shape
    if half % 16 or scales.shape != (rows, half // 16):
        raise ValueError(f"{what}: codes are {tuple(codes.shape)}, scales {tuple(scales.shape)}: "
                         "[rows, K / 2] and [rows, K / 32] belong together")
    if codes.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise TypeError(f"{what}: codes hold {codes.dtype}, scales {scales.dtype}: uint8 is taken")
    return rows, half * 2
