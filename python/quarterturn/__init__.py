"""Hadamard-MXFP4 matrix products, tuned for the machine at hand.

    import numpy, quarterturn
    context = quarterturn.Context()                       # the CPU; Context("cuda") for a GPU
    a = context.quantize(x, rotation=32)                  # x [m, k] -> MXFP4
    w = context.quantize(weight, rotation=32)             # weight [n, k]
    y = context.gemm(a, w)                                # [m, n], float32
    y = context.hadamard_gemm(x, weight, rotation=32)     # the same in one call

Arrays are NumPy's or PyTorch's (a GPU context takes CUDA tensors, on PyTorch's current stream).
bf16 in NumPy is uint16 bits with type="bf16". Names of types, layouts, rules and roundings are
those of qturn.h in lower case. A context may be used by several threads, a plan too.
"""

import ctypes as c
import json
import os
import pathlib

from ._abi import ABI
from . import _arrays

__all__ = ["Context", "Error", "MX", "Plan", "version"]

_PREFIXES = {"a_type": "", "b_type": "", "d_type": "", "c_type": "", "a_layout": "LAYOUT_", "b_layout": "LAYOUT_",
             "d_layout": "LAYOUT_", "a_major": "MAJOR_", "b_major": "MAJOR_", "op": "OP_", "role": "",
             "grouping": "", "copies": "COPIES_", "signs": "SIGNS_", "scale_rule": "SCALE_",
             "scale_block": "SCALE_", "a_rounding": "", "b_rounding": "", "d_rounding": "",
             "biased": "BIASED_", "epilogue": "EPILOGUE_", "bias": "BIAS_", "accumulate": "",
             "pre_activation": "PRE_ACTIVATION_", "bias_gradient": "BIAS_GRADIENT_",
             "prologue": "PROLOGUE_",
             "contract": "", "spread": "SPREAD_", "reproducibility": ""}


class Error(RuntimeError):
    """A status that is not QTURN_OK. `status` is its number, `name` its name."""

    def __init__(self, status, name, message):
        super().__init__(f"{name}: {message}")
        self.status, self.name = status, name


def _find_library():
    """QTURN_LIBRARY, what this package carries, a build folder of the tree, or the loader's."""
    given = os.environ.get("QTURN_LIBRARY")
    if given:
        return given
    here = pathlib.Path(__file__).resolve().parent
    packed = sorted((here / "lib").glob("libquarterturn.so*"))
    if packed:
        return str(packed[0])
    built = sorted(here.parent.parent.glob("build/*/runtime/libquarterturn.so"),
                   key=lambda path: path.stat().st_mtime)
    return str(built[-1]) if built else "libquarterturn.so.0.1"


def _load():
    lib = c.CDLL(_find_library())
    for name in ("qturn_last_error", "qturn_version_string", "qturn_status_name"):
        getattr(lib, name).restype = c.c_char_p
    for name in ("qturn_plan_destroy", "qturn_weight_destroy", "qturn_context_destroy"):
        getattr(lib, name).restype = None
        getattr(lib, name).argtypes = [c.c_void_p]
    return lib


_LIB = _load()


def version():
    """The version of the library that is loaded."""
    return _LIB.qturn_version_string().decode()


def _check(status):
    if status != 0:
        raise Error(status, _LIB.qturn_status_name(status).decode(),
                    _LIB.qturn_last_error().decode())


def _initialised(name):
    out = ABI.structs[name]()
    getattr(_LIB, f"qturn_{name}_init")(c.byref(out))
    if out.struct_size != c.sizeof(out):
        raise ImportError(f"qturn_{name} has {c.sizeof(out)} bytes in qturn.h and "
                          f"{out.struct_size} in the library: they are of different versions")
    return out


def _set(struct, members):
    """Members by name; ranges as (lo, hi), enumerations by their lower-case name."""
    fields = dict(struct._fields_)
    for name, value in members.items():
        if name not in fields:
            raise TypeError(f"{type(struct).__name__} has no member '{name}'")
        if fields[name] is ABI.structs["extent"]:
            lo, hi = value if isinstance(value, tuple) else (value, value)
            value = ABI.structs["extent"](lo, hi)
        elif isinstance(value, str):
            value = ABI.value(_PREFIXES[name], _NONE.get(name, value) if value == "none" else value)
        setattr(struct, name, value)
    return struct


# Where the constant of "none" carries a prefix that the member's other constants lack.
_NONE = {"a_type": "type_none", "b_type": "type_none", "d_type": "type_none", "c_type": "type_none",
         "role": "role_none", "grouping": "grouping_none"}


class MX:
    """An MXFP4 operand: `codes` and `scales` (arrays of bytes), [batch,] `rows` x `k` elements, and
    what they mean. Two operands of one product need the same rotation and signs."""

    def __init__(self, operand, codes, scales, batch, rows, k):
        self._operand, self.codes, self.scales = operand, codes, scales
        self.batch, self.rows, self.k = batch, rows, k

    @property
    def rotation(self):
        return self._operand.rotation

    def __repr__(self):
        return f"MX({self.rows} x {self.k}, rotation {self.rotation})"


class Plan:
    """One prepared problem: immutable, and may be run by many threads at once."""

    def __init__(self, context, problem):
        self._context, self.problem = context, problem
        self._handle = c.c_void_p()
        _check(_LIB.qturn_prepare(context._handle, c.byref(problem), c.byref(self._handle)))
        size = c.c_size_t()
        _check(_LIB.qturn_plan_workspace(self._handle, c.byref(size)))
        self.workspace_bytes = size.value

    def __del__(self):
        if getattr(self, "_handle", None):
            _LIB.qturn_plan_destroy(self._handle)
            self._handle = None

    def operand(self, which):
        """The meaning, layout and sizes in bytes of "a", "b", "d" or "d2" (a qturn_operand)."""
        out = ABI.structs["operand"]()
        out.struct_size = c.sizeof(out)
        _check(_LIB.qturn_plan_operand(self._handle, ABI.value("OPERAND_", which), c.byref(out)))
        return out

    def match(self):
        """How the stored answer matched: "exact", "bucket", ..., "heuristic", "reference"."""
        out = c.c_int32()
        _check(_LIB.qturn_plan_match(self._handle, c.byref(out)))
        names = {v: k for k, v in ABI.enums.items() if k.startswith("QTURN_MATCH_")}
        return names[out.value][len("QTURN_MATCH_"):].lower()

    def run(self, args):
        """`args` is a qturn_args; see Context for calls by array."""
        _check(_LIB.qturn_run(self._handle, c.byref(args)))


class Context:
    """A device, its tuning databases and its compiled code. `options` are members of
    qturn_context_options: threads=4, database="/path", jit="off" ..."""

    def __init__(self, backend="cpu", device=0, **options):
        given = _initialised("context_options")
        given.backend = ABI.value("BACKEND_", backend)
        given.device = device
        for name, value in options.items():
            if name in ("jit", "miss_policy"):
                value = ABI.value({"jit": "JIT_", "miss_policy": "MISS_"}[name], value)
            setattr(given, name, value.encode() if isinstance(value, str) else value)
        self.backend = backend
        self._handle = c.c_void_p()
        self._plans = {}
        _check(_LIB.qturn_context_create(c.byref(given), c.byref(self._handle)))

    def __del__(self):
        self.close()

    def close(self):
        """Plans that are still held keep the device's resources until they are gone."""
        if getattr(self, "_handle", None):
            self._plans.clear()
            _LIB.qturn_context_destroy(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()

    # ---- problems and plans

    @staticmethod
    def problem(**members):
        """A qturn_problem: problem(op="gemm", m=(1, 16), n=4096, k=4096, a_type="mxfp4", ...)."""
        return _set(_initialised("problem"), members)

    def prepare(self, problem):
        """May compile and read databases. The same problem gives the same plan."""
        key = bytes(problem)
        found = self._plans.get(key)
        if found is None:  # threads that want different plans compile side by side
            found = self._plans.setdefault(key, Plan(self, problem))
        return found

    def explain(self, problem):
        """How the problem is served and why, as a dictionary."""
        needed = c.c_size_t()
        _check(_LIB.qturn_explain(self._handle, c.byref(problem), None, c.c_size_t(0),
                                  c.byref(needed)))
        text = c.create_string_buffer(needed.value)
        _check(_LIB.qturn_explain(self._handle, c.byref(problem), text, needed, None))
        return json.loads(text.value)

    def stats(self):
        """Counters of this context, as a dictionary."""
        out = ABI.structs["stats"]()
        out.struct_size = c.sizeof(out)
        _check(_LIB.qturn_get_stats(self._handle, c.byref(out)))
        return {name: list(value) if hasattr(value := getattr(out, name), "__len__") else value
                for name, _ in out._fields_ if name != "struct_size"}

    def snapshot_hash(self):
        """SHA-256 (hexadecimal) of what prepare goes by, the stored answers or the lock file: equal on
        ranks that prepare the same plans."""
        out = (c.c_ubyte * 32)()
        _check(_LIB.qturn_snapshot_hash(self._handle, out))
        return bytes(out).hex()

    # ---- operations on arrays

    def quantize(self, x, rotation=0, *, type=None, rounding="rne", scale_rule="rceil",
                 signs="none", sign_seed=0, copies="rows", layout="plain", seed=0, stream_word=0,
                 operand=0, row0=0, k0=0, k_global=0):
        """X [[batch,] m, k] to MXFP4: blocks and rotation along k (copies "rows"), along m of the
        transpose ("columns"), or both, which gives a pair. X as a part of a whole draws that one's
        noise: row0 and k0 are where it begins, k_global is the whole's K, as the copy lies."""
        batch, m, k, ld, stride = _arrays.matrix_of(x, "x")
        plan = self.prepare(self.problem(
            op="quantize", m=m, k=k, batch=batch, a_type=_arrays.type_of(x, type), d_type="mxfp4",
            rotation=rotation, a_rounding=rounding, scale_rule=scale_rule, signs=signs,
            copies=copies, d_layout=layout))
        args = self._args(plan, x, m=m, k=k, batch=batch)
        self._dense(args.a, x, ld, stride, type)
        args.a.sign_seed = sign_seed
        args.noise_seed, args.noise_stream, args.noise_operand = seed, stream_word, operand
        args.row0, args.k0, args.k_global = row0, k0, k_global
        out = []
        for which in ("d", "d2") if copies == "both" else ("d",):
            transposed = copies == "columns" or which == "d2"
            made = self._new_mx(plan.operand(which), x, batch, k if transposed else m,
                                m if transposed else k)
            made._operand.sign_seed = sign_seed
            setattr(args, which, made._operand)
            out.append(made)
        plan.run(args)
        return tuple(out) if len(out) == 2 else out[0]

    def dequantize(self, mx, type="f32"):
        """The elements' values, still rotated: codes times 2^(scale - 127)."""
        plan = self.prepare(self.problem(
            op="dequantize", m=mx.rows, k=mx.k, batch=mx.batch, a_type="mxfp4", d_type=type,
            a_layout=mx._operand.layout, rotation=mx.rotation, signs=mx._operand.signs,
            scale_rule=mx._operand.scale_rule, scale_block=mx._operand.scale_block))
        args = self._args(plan, mx.codes, m=mx.rows, k=mx.k, batch=mx.batch)
        args.a = mx._operand
        out = self._new_dense(args.d, mx.codes, (mx.batch, mx.rows, mx.k), type)
        plan.run(args)
        return out

    def gemm(self, a, b, *, type="f32", contract="exact", spread="any", alpha=1.0, a_type=None):
        """alpha A B^T, [[batch,] m, n]: A an MX, or an array in bf16 or f16 as it is (weight-only);
        B an MX."""
        weight_only = not isinstance(a, MX)
        if weight_only:
            batch, m, k, ld, stride = _arrays.matrix_of(a, "a")
        else:
            batch, m, k = a.batch, a.rows, a.k
        members = dict(op="gemm", m=m, n=b.rows, k=k, batch=batch, d_type=type, b_type="mxfp4",
                       b_layout=b._operand.layout, rotation=b.rotation, signs=b._operand.signs,
                       scale_rule=b._operand.scale_rule, contract=contract, spread=spread)
        if weight_only:
            members["a_type"] = _arrays.type_of(a, a_type)
        else:
            members.update(a_type="mxfp4", a_layout=a._operand.layout,
                           a_rounding=a._operand.rounding, b_rounding=b._operand.rounding)
        plan = self.prepare(self.problem(**members))
        example = a if weight_only else a.codes
        args = self._args(plan, example, m=m, n=b.rows, k=k, batch=batch)
        if weight_only:
            self._dense(args.a, a, ld, stride, a_type)
        else:
            args.a = a._operand
        args.b, args.alpha = b._operand, alpha
        out = self._new_dense(args.d, example, (batch, m, b.rows), type)
        plan.run(args)
        return out

    def hadamard_gemm(self, a, b, rotation=32, *, type="f32", in_type=None, contract="exact",
                      spread="any", rounding="rne", scale_rule="rceil", signs="none", sign_seed=0,
                      seed=0, stream_word=0, alpha=1.0):
        """alpha A B^T of arrays [[batch,] m, k] and [[batch,] n, k], both rotated and rounded to
        MXFP4 on the way."""
        batch, m, k, a_ld, a_stride = _arrays.matrix_of(a, "a")
        b_batch, n, b_k, b_ld, b_stride = _arrays.matrix_of(b, "b")
        if (batch, k) != (b_batch, b_k):
            raise ValueError(f"a is {tuple(a.shape)}, b is {tuple(b.shape)}: batch and k must agree")
        plan = self.prepare(self.problem(
            op="hadamard_gemm", m=m, n=n, k=k, batch=batch, a_type=_arrays.type_of(a, in_type),
            b_type=_arrays.type_of(b, in_type), d_type=type, rotation=rotation, signs=signs,
            scale_rule=scale_rule, a_rounding=rounding, b_rounding=rounding, contract=contract,
            spread=spread))
        args = self._args(plan, a, m=m, n=n, k=k, batch=batch)
        self._dense(args.a, a, a_ld, a_stride, in_type)
        self._dense(args.b, b, b_ld, b_stride, in_type)
        for operand in (args.a, args.b):
            operand.signs, operand.sign_seed = ABI.value("SIGNS_", signs), sign_seed
        args.noise_seed, args.noise_stream, args.alpha = seed, stream_word, alpha
        out = self._new_dense(args.d, a, (batch, m, n), type)
        plan.run(args)
        return out

    # ---- arguments

    def _args(self, plan, example, **sizes):
        expected = "cpu" if self.backend == "cpu" else "cuda"
        if not _arrays.device_of(example).startswith(expected):
            raise ValueError(f"the array is on {_arrays.device_of(example)}, the context is of "
                             f"{self.backend}")
        args = _initialised("args")
        for name, value in sizes.items():
            setattr(args, name, value)
        # At a multiple of 64 bytes inside its memory; it lives as long as the arguments.
        args.keep = _arrays.empty_like_kind(example, (plan.workspace_bytes + 256,))
        at = _arrays.pointer_of(args.keep)
        args.workspace = at + -at % 256
        args.workspace_bytes = plan.workspace_bytes
        args.stream = _arrays.stream_of(example)
        return args

    @staticmethod
    def _dense(operand, array, ld, stride, type):
        operand.type = ABI.value("", _arrays.type_of(array, type))
        operand.data, operand.ld, operand.batch_stride = _arrays.pointer_of(array), ld, stride

    @staticmethod
    def _new_dense(operand, example, shape, type):
        out = _arrays.empty_like_kind(example, shape if shape[0] != 1 else shape[1:], type)
        operand.type, operand.data = ABI.value("", type), _arrays.pointer_of(out)
        return out

    @staticmethod
    def _new_mx(operand, example, batch, rows, k):
        codes = _arrays.empty_like_kind(example, (operand.data_bytes,))
        scales = _arrays.empty_like_kind(example, (max(operand.scales_bytes, 1),))
        operand.data, operand.scales = _arrays.pointer_of(codes), _arrays.pointer_of(scales)
        return MX(operand, codes, scales, batch, rows, k)
