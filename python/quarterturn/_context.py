"""Contexts, prepared problems and calls on arrays: the C interface as Python objects."""

import ctypes as c
import json

from . import _arrays
from ._abi import ABI
from ._library import LIB, check, initialised, set_members


def _check_agree(a, b):
    """Refuses sizes (batch, rows, k) of operands that have no product."""
    if (a[0], a[2]) != (b[0], b[2]):
        raise ValueError(f"a is {a}, b is {b} as (batch, rows, k): batch and k must agree")


def _check_mx(operand, what):
    if not isinstance(operand, MX):
        raise TypeError(f"{what} is a {type(operand).__name__}: an MX is taken, which "
                        "Context.quantize gives")


class MX:
    """An MXFP4 operand: `codes` and `scales` (arrays of bytes of the library whose array was
    quantised), [batch,] `rows` x `k` elements, and what they mean. Two operands of one product need
    the same rotation and signs."""

    def __init__(self, operand, memory, give, batch, rows, k):
        self._operand, self._memory, self._give = operand, memory, give
        self.codes, self.scales = (give(part, None) for part in memory)
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
        check(LIB.qturn_prepare(context._handle, c.byref(problem), c.byref(self._handle)))
        size = c.c_size_t()
        check(LIB.qturn_plan_workspace(self._handle, c.byref(size)))
        self.workspace_bytes = size.value

    def __del__(self):
        if getattr(self, "_handle", None):
            LIB.qturn_plan_destroy(self._handle)
            self._handle = None

    def operand(self, which):
        """The meaning, layout and sizes in bytes of "a", "b", "d" or "d2" (a qturn_operand)."""
        out = ABI.structs["operand"]()
        out.struct_size = c.sizeof(out)
        check(LIB.qturn_plan_operand(self._handle, ABI.value("OPERAND_", which), c.byref(out)))
        return out

    def match(self):
        """How the stored answer matched: "exact", "bucket", ..., "heuristic", "reference"."""
        out = c.c_int32()
        check(LIB.qturn_plan_match(self._handle, c.byref(out)))
        names = {v: k for k, v in ABI.enums.items() if k.startswith("QTURN_MATCH_")}
        return names[out.value][len("QTURN_MATCH_"):].lower()

    def run(self, args):
        """`args` is a qturn_args; see Context for calls by array."""
        check(LIB.qturn_run(self._handle, c.byref(args)))


class Context:
    """A device, its tuning databases and its compiled code. `options` are members of
    qturn_context_options: threads=4, database="/path", jit="off" ..."""

    def __init__(self, backend="cpu", device=0, **options):
        given = initialised("context_options")
        given.backend = ABI.value("BACKEND_", backend)
        given.device = device
        known = {name for name, _ in given._fields_} - {"struct_size"}
        for name, value in options.items():
            if name not in known:
                raise TypeError(f"a context has no option '{name}'; {', '.join(sorted(known))} are "
                                "taken")
            if name in ("jit", "miss_policy"):
                value = ABI.value({"jit": "JIT_", "miss_policy": "MISS_"}[name], value)
            setattr(given, name, value.encode() if isinstance(value, str) else value)
        self.backend, self.device = backend, device
        self._handle = c.c_void_p()
        self._plans = {}
        check(LIB.qturn_context_create(c.byref(given), c.byref(self._handle)))

    def __del__(self):
        self.close()

    def close(self):
        """Plans that are still held keep the device's resources until they are gone."""
        if getattr(self, "_handle", None):
            self._plans.clear()
            LIB.qturn_context_destroy(self._handle)
            self._handle = None

    @property
    def name(self):
        """The device, as arrays and the command qturn name it: "cpu", "cuda:0"."""
        return "cpu" if self.backend == "cpu" else f"cuda:{self.device}"

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()

    # ---- problems and plans

    @staticmethod
    def problem(**members):
        """A qturn_problem: problem(op="gemm", m=(1, 16), n=4096, k=4096, a_type="mxfp4", ...)."""
        return set_members(initialised("problem"), members)

    @staticmethod
    def parse(key):
        """The problem of a key, the text by which databases and `qturn tune --problem` know it."""
        out = initialised("problem")
        check(LIB.qturn_problem_parse(key.encode(), c.byref(out)))
        return out

    @staticmethod
    def key(problem):
        """The key of a problem: what `parse` reads."""
        needed = c.c_size_t()
        check(LIB.qturn_problem_key(c.byref(problem), None, c.c_size_t(0), c.byref(needed)))
        text = c.create_string_buffer(needed.value)
        check(LIB.qturn_problem_key(c.byref(problem), text, needed, None))
        return text.value.decode()

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
        check(LIB.qturn_explain(self._handle, c.byref(problem), None, c.c_size_t(0),
                                  c.byref(needed)))
        text = c.create_string_buffer(needed.value)
        check(LIB.qturn_explain(self._handle, c.byref(problem), text, needed, None))
        return json.loads(text.value)

    def reload(self, keep=False):
        """Reads the tuning databases again: what is prepared from now on goes by what they say, but
        for problems that were prepared, where `keep`. Gives qturn_reload's report as a dictionary,
        hashes in hexadecimal; an Error, and all stays, where something cannot be read."""
        out = ABI.structs["reload_report"]()
        out.struct_size = c.sizeof(out)
        mode = ABI.value("RELOAD_", "keep" if keep else "replace")
        check(LIB.qturn_reload(self._handle, c.c_int32(mode), c.byref(out)))
        if not keep:
            self._plans.clear()
        report = {name: getattr(out, name) for name, _ in out._fields_ if name != "struct_size"}
        return {name: bytes(value).hex() if hasattr(value, "__len__") else value
                for name, value in report.items()}

    def metrics_text(self, with_device=False):
        """Counters as Prometheus text; `with_device` waits for the GPU, to read its own, too."""
        one, needed = (c.c_void_p * 1)(self._handle), c.c_size_t(4096)
        text = b""
        while len(text) < needed.value:
            text = c.create_string_buffer(needed.value)
            check(LIB.qturn_metrics_text(one, c.c_size_t(1), c.c_int32(int(with_device)), text,
                                         c.c_size_t(len(text)), c.byref(needed)))
        return text.value.decode()

    def stats(self):
        """Counters of this context, as a dictionary."""
        out = ABI.structs["stats"]()
        out.struct_size = c.sizeof(out)
        check(LIB.qturn_get_stats(self._handle, c.byref(out)))
        return {name: list(value) if hasattr(value := getattr(out, name), "__len__") else value
                for name, _ in out._fields_ if name != "struct_size"}

    def snapshot_hash(self):
        """SHA-256 (hexadecimal) of what prepare goes by, the stored answers or the lock file: equal
        on ranks that prepare the same plans."""
        out = (c.c_ubyte * 32)()
        check(LIB.qturn_snapshot_hash(self._handle, out))
        return bytes(out).hex()

    # ---- operations on arrays

    def quantize(self, x, rotation=0, *, type=None, rounding="rne", scale_rule="rceil",
                 signs="none", sign_seed=0, copies="rows", layout="plain", seed=0, stream_word=0,
                 operand=0, row0=0, k0=0, k_global=0):
        """X [[batch,] m, k] to MXFP4: blocks and rotation along k (copies "rows"), along m of the
        transpose ("columns"), or both, which gives a pair. X as a part of a whole draws that one's
        noise: row0 and k0 are where it begins, k_global is the whole's K, as the copy lies."""
        x = _arrays.Given(x, "x", type)
        batch, m, k, ld, stride = _arrays.matrix_of(x, "x")
        plan = self.prepare(self.problem(
            op="quantize", m=m, k=k, batch=batch, a_type=x.type, d_type="mxfp4",
            rotation=rotation, a_rounding=rounding, scale_rule=scale_rule, signs=signs,
            copies=copies, d_layout=layout))
        args = self._args(plan, x.array, m=m, k=k, batch=batch)
        self._dense(args.a, x, ld, stride)
        args.a.sign_seed = sign_seed
        args.noise_seed, args.noise_stream, args.noise_operand = seed, stream_word, operand
        args.row0, args.k0, args.k_global = row0, k0, k_global
        made = []
        for which in ("d", "d2") if copies == "both" else ("d",):
            operand, memory = self._new_mx(plan.operand(which), x.array)
            operand.sign_seed = sign_seed
            setattr(args, which, operand)
            made.append((operand, memory, *((k, m) if copies == "columns" or which == "d2"
                                            else (m, k))))
        plan.run(args)
        out = tuple(MX(operand, memory, x.give, batch, *sizes)
                    for operand, memory, *sizes in made)
        return out if len(out) == 2 else out[0]

    def dequantize(self, mx, type="f32"):
        """The elements' values, still rotated: codes times 2^(scale - 127)."""
        _check_mx(mx, "mx")
        _arrays.check_result(type)
        plan = self.prepare(self.problem(
            op="dequantize", m=mx.rows, k=mx.k, batch=mx.batch, a_type="mxfp4", d_type=type,
            a_layout=mx._operand.layout, rotation=mx.rotation, signs=mx._operand.signs,
            scale_rule=mx._operand.scale_rule, scale_block=mx._operand.scale_block))
        args = self._args(plan, mx._memory[0], m=mx.rows, k=mx.k, batch=mx.batch)
        args.a = mx._operand
        out = self._new_dense(args.d, mx._memory[0], (mx.batch, mx.rows, mx.k), type)
        plan.run(args)
        return mx._give(out, type)

    def gemm(self, a, b, *, type="f32", contract="exact", spread="any", alpha=1.0, a_type=None):
        """alpha A B^T, [[batch,] m, n]: A an MX, or an array in bf16 or f16 as it is (weight-only);
        B an MX."""
        _check_mx(b, "b")
        _arrays.check_result(type)
        weight_only = not isinstance(a, MX)
        if weight_only:
            a = _arrays.Given(a, "a", a_type)
            batch, m, k, ld, stride = _arrays.matrix_of(a, "a")
        else:
            batch, m, k = a.batch, a.rows, a.k
        _check_agree((batch, m, k), (b.batch, b.rows, b.k))
        members = dict(op="gemm", m=m, n=b.rows, k=k, batch=batch, d_type=type, b_type="mxfp4",
                       b_layout=b._operand.layout, rotation=b.rotation, signs=b._operand.signs,
                       scale_rule=b._operand.scale_rule, contract=contract, spread=spread)
        if weight_only:
            members["a_type"] = a.type
        else:
            members.update(a_type="mxfp4", a_layout=a._operand.layout,
                           a_rounding=a._operand.rounding, b_rounding=b._operand.rounding)
        plan = self.prepare(self.problem(**members))
        example = a.array if weight_only else a._memory[0]
        args = self._args(plan, example, m=m, n=b.rows, k=k, batch=batch)
        if weight_only:
            self._dense(args.a, a, ld, stride)
        else:
            args.a = a._operand
        self._on_device(b._memory[0])
        args.b, args.alpha = b._operand, alpha
        out = self._new_dense(args.d, example, (batch, m, b.rows), type)
        plan.run(args)
        return (a.give if weight_only else a._give)(out, type)

    def hadamard_gemm(self, a, b, rotation=32, *, type="f32", in_type=None, contract="exact",
                      spread="any", rounding="rne", scale_rule="rceil", signs="none", sign_seed=0,
                      seed=0, stream_word=0, alpha=1.0):
        """alpha A B^T of arrays [[batch,] m, k] and [[batch,] n, k], both rotated and rounded to
        MXFP4 on the way."""
        _arrays.check_result(type)
        a, b = _arrays.Given(a, "a", in_type), _arrays.Given(b, "b", in_type)
        batch, m, k, a_ld, a_stride = _arrays.matrix_of(a, "a")
        b_batch, n, b_k, b_ld, b_stride = _arrays.matrix_of(b, "b")
        _check_agree((batch, m, k), (b_batch, n, b_k))
        plan = self.prepare(self.problem(
            op="hadamard_gemm", m=m, n=n, k=k, batch=batch, a_type=a.type, b_type=b.type,
            d_type=type, rotation=rotation, signs=signs,
            scale_rule=scale_rule, a_rounding=rounding, b_rounding=rounding, contract=contract,
            spread=spread))
        args = self._args(plan, a.array, m=m, n=n, k=k, batch=batch)
        self._on_device(b.array)
        self._dense(args.a, a, a_ld, a_stride)
        self._dense(args.b, b, b_ld, b_stride)
        for operand in (args.a, args.b):
            operand.signs, operand.sign_seed = ABI.value("SIGNS_", signs), sign_seed
        args.noise_seed, args.noise_stream, args.alpha = seed, stream_word, alpha
        out = self._new_dense(args.d, a.array, (batch, m, n), type)
        plan.run(args)
        return a.give(out, type)

    # ---- arguments

    def _on_device(self, array):
        if _arrays.device_of(array) != self.name:
            raise ValueError(f"the array is on {_arrays.device_of(array)}, the context is of "
                             f"{self.name}")

    def _args(self, plan, example, **sizes):
        self._on_device(example)
        args = initialised("args")
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
    def _dense(operand, given, ld, stride):
        operand.type = ABI.value("", given.type)
        operand.data, operand.ld = _arrays.pointer_of(given.array), ld
        operand.batch_stride = stride

    @staticmethod
    def _new_dense(operand, example, shape, type):
        out = _arrays.empty_like_kind(example, shape if shape[0] != 1 else shape[1:], type)
        operand.type, operand.data = ABI.value("", type), _arrays.pointer_of(out)
        return out

    @staticmethod
    def _new_mx(operand, example):
        """The operand over new memory, and that memory: codes and scales."""
        codes = _arrays.empty_like_kind(example, (operand.data_bytes,))
        scales = _arrays.empty_like_kind(example, (max(operand.scales_bytes, 1),))
        operand.data, operand.scales = _arrays.pointer_of(codes), _arrays.pointer_of(scales)
        return operand, (codes, scales)
