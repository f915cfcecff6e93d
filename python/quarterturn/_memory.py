"""New tensors, workspaces and the current stream by PyTorch's shortest ways, for what every call
asks for. Memory is that of PyTorch's allocators, so CUDA graphs and streams own it as usual."""

import torch


def _slow_cpu(shape, strides, dtype):
    return torch.empty_strided(shape, strides, dtype=dtype)


# What torch.compile's generated code calls: torch.empty_strided without the dispatcher.
_guards = getattr(torch._C._dynamo, "guards", None)
_cpu = getattr(_guards, "_empty_strided_cpu", _slow_cpu)
_cuda = getattr(_guards, "_empty_strided_cuda", None)  # on the current device
_current_device = getattr(torch._C, "_cuda_getDevice", lambda: -1)

stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # of a device's index; an integer

# Bytes without a tensor around them, on the current device: (bytes, stream) gives an address.
_take = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
_give = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)
_bare = _cuda if _take and _give else None


def allocator(index):
    """new(shape, strides, dtype): uninitialised tensors on cuda:<index>, or on the CPU where
    index < 0. It holds for the calling thread until that changes its current device."""
    if index < 0:
        return _cpu
    if _cuda and _current_device() == index:
        return _cuda
    return lambda shape, strides, dtype: torch.empty_strided(
        shape, strides, dtype=dtype, device=f"cuda:{index}")


def workspace(size, stream, new):
    """(address, held): so many bytes at a multiple of 64, ours until `release(held)`, and then free
    for what follows on that stream (an integer). `new` is the allocator of the stream's device."""
    if new is _bare:
        at = _take(size, stream)
        return at, at
    held = new((size + 64,), (1,), torch.uint8)
    at = held.data_ptr()
    return at + -at % 64, held


def release(held):
    """Gives a workspace back; a tensor goes with its last name."""
    if type(held) is int:
        _give(held)
