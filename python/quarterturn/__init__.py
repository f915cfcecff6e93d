"""Hadamard-MXFP4 matrix products, tuned for the machine at hand.

    import numpy, quarterturn
    context = quarterturn.Context()                       # the CPU; Context("cuda") for a GPU
    a = context.quantize(x, rotation=32)                  # x [m, k] -> MXFP4
    w = context.quantize(weight, rotation=32)             # weight [n, k]
    y = context.gemm(a, w)                                # [m, n], float32
    y = context.hadamard_gemm(x, weight, rotation=32)     # the same in one call

Arrays are NumPy's or PyTorch's (a GPU context takes CUDA tensors, on PyTorch's current stream), or
objects of another library that exchanges memory by DLPack, such as JAX or CuPy, which then gets its
own kind back. bf16 in NumPy is uint16 bits with type="bf16". Names of types, layouts, rules and
roundings are those of qturn.h in lower case. A context may be used by several threads, a plan too.
"""

from ._context import MX, Context, Plan
from ._dlpack import Array
from ._library import Error, version
from ._tune import Tuned, tune

__all__ = ["Array", "Context", "Error", "MX", "Plan", "Tuned", "explain", "tune", "version"]


def explain(problem, context=None):
    """How a problem (Context.problem) or a key is served and why, as a dictionary; by a new context
    of the CPU where none is given."""
    if isinstance(problem, str):
        problem = Context.parse(problem)
    if context is not None:
        return context.explain(problem)
    with Context() as context:
        return context.explain(problem)
