"""The C interface from Python, by ctypes alone: what the benchmarks of this folder need of it."""

import ctypes as c
import os
import pathlib

OPS = dict(quantize=0, gemm=1, hadamard_gemm=2, dequantize=4, hadamard=5, pack=6)
ROLES = dict(none=0, fprop=1, dgrad=2, wgrad=3)
TYPES = dict(none=0, bf16=1, f16=2, f32=3, mxfp4=4)
LAYOUTS = dict(chosen=0, plain=1, e5m2=4, int8_rows=5, permuted=8, bf16=9)
BACKENDS = dict(auto=0, cpu=1, cuda=2)
K_MAJOR, ROWS_MAJOR = 0, 1


class Extent(c.Structure):
    _fields_ = [("lo", c.c_int64), ("hi", c.c_int64)]


class Problem(c.Structure):
    _fields_ = (
        [("struct_size", c.c_uint32), ("op", c.c_int32), ("role", c.c_int32)]
        + [(name, Extent) for name in ("m", "n", "k", "batch")]
        + [("grouping", c.c_int32), ("groups", Extent)]
        + [(name, c.c_int32) for name in (
            "a_type", "b_type", "d_type", "a_major", "b_major", "a_layout", "b_layout", "d_layout",
            "copies", "rotation", "signs", "scale_rule", "scale_block", "a_rounding", "b_rounding",
            "biased", "epilogue", "bias", "accumulate", "contract", "spread", "reproducibility")])


class Operand(c.Structure):
    _fields_ = (
        [("struct_size", c.c_uint32)]
        + [(name, c.c_int32) for name in (
            "type", "layout", "rotation", "signs", "scale_rule", "scale_block", "rounding")]
        + [("data", c.c_void_p), ("scales", c.c_void_p)]
        + [(name, c.c_int64) for name in (
            "ld", "scale_ld", "batch_stride", "scale_batch_stride")]
        + [("sign_seed", c.c_uint64), ("sign_mask", c.c_uint32 * 8), ("noise_seed", c.c_uint64),
           ("noise_stream", c.c_uint32), ("data_bytes", c.c_size_t), ("scales_bytes", c.c_size_t)])


class Args(c.Structure):
    _fields_ = (
        [("struct_size", c.c_uint32)]
        + [(name, c.c_int64) for name in ("m", "n", "k", "batch")]
        + [("a", Operand), ("b", Operand), ("weight", c.c_void_p), ("d", Operand), ("d2", Operand),
           ("c", c.c_void_p), ("ldc", c.c_int64), ("bias", c.c_void_p), ("alpha", c.c_float),
           ("beta", c.c_float), ("noise_seed", c.c_uint64), ("noise_stream", c.c_uint32),
           ("noise_operand", c.c_uint32)]
        + [(name, c.c_int64) for name in ("row0", "row0_b", "k0", "k_global")]
        + [("workspace", c.c_void_p), ("workspace_bytes", c.c_size_t), ("stream", c.c_void_p)])


class ContextOptions(c.Structure):
    _fields_ = (
        [("struct_size", c.c_uint32)]
        + [(name, c.c_int32) for name in ("backend", "device", "threads", "miss_policy", "jit")]
        + [("database", c.c_char_p), ("code_cache", c.c_char_p), ("snapshots", c.c_void_p),
           ("snapshot_count", c.c_size_t), ("worker", c.c_char_p), ("log", c.c_void_p),
           ("log_user", c.c_void_p), ("log_level", c.c_int32)])


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
            setattr(p, name, table.get(value, value))
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

    def args(self, m=0, n=0, k=0, a=None, b=None, d=None, weight=None, workspace=None, stream=0):
        """A call's arguments. An operand is a pointer, or (pointer, scales) where it is MXFP4."""
        out = self.library._initialised(Args(), "qturn_args_init")
        out.m, out.n, out.k = m, n, k
        for name, value in (("a", a), ("b", b), ("d", d)):
            if value is None:
                continue
            operand = self.operand(name)
            data, scales = value if isinstance(value, tuple) else (value, None)
            operand.data, operand.scales = data, scales
            setattr(out, name, operand)
        out.weight = weight
        out.workspace, out.workspace_bytes = workspace, self.workspace_bytes
        out.stream = stream
        return out

    def run(self, args):
        self.library.check(self.library.lib.qturn_run(self.handle, c.byref(args)))
