"""Prepared plans for PyTorch's calls, which come often: one for a range of token counts, its
argument blocks kept."""

import ctypes as c
import functools
import threading

from ._abi import ABI
from ._context import Context
from ._library import LIB, Error, check
from ._memory import release, stream, workspace

_LEAST_RANGES = ((0, 16), (17, 64))
_MOST_CALLS = 4096


def token_range(tokens):
    """The range of token counts that one plan serves: up to 16, 17 to 64, then (2^i, 2^(i+1)]."""
    for lo, hi in _LEAST_RANGES:
        if tokens <= hi:
            return lo, hi
    hi = 1 << (tokens - 1).bit_length()
    return hi // 2 + 1, hi


def sign_words(signs):
    """The eight words of "fixed:<hexadecimal mask>", bit j of which flips element j of a rotation
    block; None where `signs` is "none" or "per_call"."""
    kind, _, mask = signs.partition(":")
    if kind != "fixed":
        return None
    value = int(mask, 16)
    if value >> 256:
        raise ValueError(f"signs '{signs}': a mask has at most 256 bits")
    return [(value >> 32 * i) & 0xFFFFFFFF for i in range(8)]


def _words_of(struct, prefix="", base=0):
    """(member, index) of what has eight bytes of a qturn_args to itself."""
    fields = [(name, kind, getattr(struct, name).offset) for name, kind in struct._fields_]
    ends = [offset for _, _, offset in fields[1:]] + [c.sizeof(struct)]
    for (name, kind, offset), end in zip(fields, ends):
        if issubclass(kind, c.Structure):
            yield from _words_of(kind, f"{prefix}{name}.", base + offset)
        elif offset % 8 == 0 and end - offset == 8:
            yield prefix + name, (base + offset) // 8


_ARGS = ABI.structs["args"]
WORD = dict(_words_of(_ARGS))  # {"m": 1, "a.data": ...}: where a block's words have a member
_STREAM, _WORKSPACE = WORD["stream"], WORD["workspace"]


class Prepared:
    """A plan of a context, and what its operands mean in every call."""

    def __init__(self, context, masks=None, **members):
        self.plan = context.prepare(context.problem(**members))
        self.workspace_bytes = self.plan.workspace_bytes
        self._operands = []
        for name in ("a", "b", "d", "d2"):
            try:
                operand = self.plan.operand(name)
            except Error:  # not every plan has all four
                continue
            if masks and name in ("a", "b"):
                operand.sign_mask = (c.c_uint32 * 8)(*masks)
            self._operands.append((name, operand))

    def block(self, members):
        """(words, run): a qturn_args as a sequence of 64-bit words (signed, as addresses fit too),
        indexed by WORD, with `members` set, and qturn_run of it. One call at a time may use it,
        while this Prepared lives."""
        memory = bytearray(c.sizeof(_ARGS))
        args = _ARGS.from_buffer(memory)
        LIB.qturn_args_init(c.byref(args))
        for name, operand in self._operands:
            setattr(args, name, operand)
        for name, value in members.items():
            operand, _, member = name.rpartition(".")
            setattr(getattr(args, operand) if operand else args, member, value)
        args.workspace_bytes = self.workspace_bytes
        return memoryview(memory).cast("q"), functools.partial(
            LIB.qturn_run, self.plan._handle, c.byref(args))


class Call:
    """A prepared plan at one size, with blocks that wait for its next calls: several threads may
    take one each. `outputs`, `copied` and `draws` are the caller's own."""

    __slots__ = ("prepared", "workspace_bytes", "outputs", "copied", "draws", "_members", "_free")

    def __init__(self, prepared, outputs=(), copied=(), draws=False, **members):
        self.prepared, self.workspace_bytes = prepared, prepared.workspace_bytes
        self.outputs, self.copied, self.draws = outputs, copied, draws
        self._members, self._free = members, []

    def take(self):
        try:
            return self._free.pop()
        except IndexError:
            return self.prepared.block(self._members)

    def run(self, block, index, new):
        """Runs on cuda:<index>'s current stream, or on the CPU where index < 0, and takes the block
        back, whatever the status. `new` is that device's allocator, for the workspace."""
        words, run = block
        current = 0
        if index >= 0:
            words[_STREAM] = current = stream(index)
        size = self.workspace_bytes
        if size:
            words[_WORKSPACE], held = workspace(size, current, new)
            try:
                status = run()
            finally:
                release(held)
        else:
            status = run()
        self._free.append(block)
        if status:
            check(status)


class Calls(dict):
    """Calls by what tells them apart. Sizes that keep changing do not fill the memory."""

    def add(self, key, call):
        if len(self) >= _MOST_CALLS:
            self.clear()
        self[key] = call
        return call


class Contexts:
    """One context for each device, made when it is first needed."""

    def __init__(self):
        self._options, self._made, self._lock = {}, {}, threading.Lock()

    def configure(self, backend, **options):
        """Options of qturn_context_options for contexts of that back end that are made later."""
        with self._lock:
            if options == self._options.get(backend, {}):
                return
            if any(key[0] == backend for key in self._made):
                raise RuntimeError(f"a context of {backend} is in use already: configure it before "
                                   "the first operation")
            self._options[backend] = options

    def get(self, backend, index):
        key = backend, index
        found = self._made.get(key)
        if found is None:
            with self._lock:
                found = self._made.get(key)
                if found is None:
                    found = Context(backend, max(index, 0), **self._options.get(backend, {}))
                    self._made[key] = found
        return found

    def hashes(self):
        """{back end: what its first context's answers hash to}, of contexts that are in use."""
        return {backend: context.snapshot_hash()
                for (backend, index), context in sorted(self._made.items(), reverse=True)}

    def reload(self):
        """Contexts in use read their databases again."""
        for context in list(self._made.values()):
            context.reload()
