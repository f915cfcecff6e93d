"""The C interface from Python, by ctypes alone: what the benchmarks of this folder need of it."""

import ctypes as c
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
from quarterturn._abi import ABI  # noqa: E402  (reads qturn.h alone, loads no library)


def _names(prefix, *names):
    return {name: ABI.value(prefix, name) for name in names}


OPS = _names("OP_", "quantize", "gemm", "hadamard_gemm", "dequantize", "hadamard", "pack")
ROLES = dict(none=0, **_names("", "fprop", "dgrad", "wgrad"))
TYPES = dict(none=0, **_names("", "bf16", "f16", "f32", "mxfp4"))
LAYOUTS = _names("LAYOUT_", "chosen", "plain", "e5m2", "int8_rows", "permuted", "bf16")
BACKENDS = _names("BACKEND_", "auto", "cpu", "cuda")
K_MAJOR, ROWS_MAJOR = ABI.value("MAJOR_", "k"), ABI.value("MAJOR_", "rows")
Extent, Problem, Operand, Args, ContextOptions = (
    ABI.structs[name] for name in ("extent", "problem", "operand", "args", "context_options"))


class Error(RuntimeError):
    """A status that is not QTURN_OK, with the library's message."""


def find_library():
    """QTURN_LIBRARY, a build folder of this tree, or what the loader finds."""
    given = os.environ.get("QTURN_LIBRARY")
    if given:
        return given
    root = pathlib.Path(__file__).resolve().parent.parent
    built = sorted(root.glob("build/*/runtime/libquarterturn.so"), key=lambda p: p.stat().st_mtime)
    return str(built[-1]) if built else "libquarterturn.so.0.1"


class Library:
    """One context on one device. Not thread-safe, unlike what it wraps."""

    def __init__(self, backend="cuda", device=0, path=None):
        self.lib = c.CDLL(path or find_library())
        self.lib.qturn_last_error.restype = c.c_char_p
        for destroy in ("qturn_plan_destroy", "qturn_weight_destroy", "qturn_context_destroy"):
            getattr(self.lib, destroy).restype = None
        options = self._initialised(ContextOptions(), "qturn_context_options_init")
        options.backend = BACKENDS[backend]
        options.device = device
        self.context = c.c_void_p()
        self.check(self.lib.qturn_context_create(c.byref(options), c.byref(self.context)))

    def close(self):
        if self.context:
            self.lib.qturn_context_destroy(self.context)
            self.context = None

    def check(self, status):
        if status != 0:
            raise Error(self.lib.qturn_last_error().decode())

    def _initialised(self, struct, init):
        getattr(self.lib, init)(c.byref(struct))
        if struct.struct_size != c.sizeof(struct):
            raise Error(f"{type(struct).__name__} has {c.sizeof(struct)} bytes here and "
                        f"{struct.struct_size} in the library: another version?")
        return struct

    def problem(self, op, m, k, n=None, role="none", **members):
        """Extents are a number, or (lo, hi). Other members by their name in qturn.h, types and
        layouts by name."""
        p = self._initialised(Problem(), "qturn_problem_init")
        p.op = OPS[op]
        p.role = ROLES[role]
        for name, value in (("m", m), ("n", n), ("k", k)):
            if value is not None:
                lo, hi = value if isinstance(value, tuple) else (value, value)
                setattr(p, name, Extent(lo, hi))
        for name, value in members.items():
            table = TYPES if name.endswith("_type") else LAYOUTS if name.endswith("_layout") else {}
            if isinstance(value, tuple):
                value = Extent(*value)
            setattr(p, name, table.get(value, value) if table else value)
        return p

    def prepare(self, problem):
        return Plan(self, problem)


class Plan:
    """A prepared problem. Pointers are integers (a tensor's data_ptr())."""

    def __init__(self, library, problem):
        self.library, self.problem = library, problem
        self.handle = c.c_void_p()
        library.check(library.lib.qturn_prepare(library.context, c.byref(problem),
                                                c.byref(self.handle)))
        size = c.c_size_t()
        library.check(library.lib.qturn_plan_workspace(self.handle, c.byref(size)))
        self.workspace_bytes = size.value

    def operand(self, which):
        """The meaning, layout and sizes of "a", "b", "d" or "d2"."""
        out = Operand()
        index = ("a", "b", "d", "d2").index(which)
        self.library.check(self.library.lib.qturn_plan_operand(self.handle, index, c.byref(out)))
        return out

    def weight(self, data, type="bf16", stream=0):
        """The plan's B, prepared from high precision; the library owns its memory."""
        source = self.library._initialised(Operand(), "qturn_operand_init")
        source.type, source.data = TYPES[type], data
        out = c.c_void_p()
        self.library.check(self.library.lib.qturn_weight_create(
            self.handle, c.byref(source), None, c.c_size_t(0), c.c_void_p(stream), c.byref(out)))
        return out

    def args(self, m=0, n=0, k=0, a=None, b=None, d=None, weight=None, workspace=None, stream=0,
             **members):
        """A call's arguments, others by their names in qturn.h. An operand is a pointer, or
        (pointer, scales) where it is MXFP4."""
        out = self.library._initialised(Args(), "qturn_args_init")
        out.m, out.n, out.k = m, n, k
        for name, value in (("a", a), ("b", b), ("d", d)):
            if value is None:
                continue
            operand = self.operand(name)
            data, scales = value if isinstance(value, tuple) else (value, None)
            operand.data, operand.scales = data, scales
            setattr(out, name, operand)
        for name, value in members.items():
            setattr(out, name, value)
        out.weight = weight
        out.workspace, out.workspace_bytes = workspace, self.workspace_bytes
        out.stream = stream
        return out

    def run(self, args):
        self.library.check(self.library.lib.qturn_run(self.handle, c.byref(args)))
