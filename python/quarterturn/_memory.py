"""New tensors and the current stream by PyTorch's shortest ways, for what every call asks for.
Memory is that of PyTorch's allocators, so CUDA graphs and streams own it as usual."""

import torch


def _slow_cpu(shape, strides, dtype):
    return torch.empty_strided(shape, strides, dtype=dtype)


# What torch.compile's generated code calls: torch.empty_strided without the dispatcher.
_guards = getattr(torch._C._dynamo, "guards", None)
_cpu = getattr(_guards, "_empty_strided_cpu", _slow_cpu)
_cuda = getattr(_guards, "_empty_strided_cuda", None)  # on the current device
_current_device = getattr(torch._C, "_cuda_getDevice", lambda: -1)

stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # of a device's index; an integer


def allocator(index):
    """new(shape, strides, dtype): uninitialised tensors on cuda:<index>, or on the CPU where
    index < 0. It holds for the calling thread until that changes its current device."""
    if index < 0:
        return _cpu
    if _cuda and _current_device() == index:
        return _cuda
    return lambda shape, strides, dtype: torch.empty_strided(
        shape, strides, dtype=dtype, device=f"cuda:{index}")
