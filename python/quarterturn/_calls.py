"""Prepared plans for calls that come often: one for a range of token counts, its argument blocks kept."""

import ctypes as c
import threading

from . import _LIB, Context, Error, _check, _initialised

_LEAST_RANGES = ((0, 16), (17, 64))


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


class Block:
    """One qturn_args and views of its operands; used by one call at a time."""

    __slots__ = ("args", "ref", "a", "b", "d", "d2")

    def __init__(self, plan, words):
        self.args = _initialised("args")
        for name in ("a", "b", "d", "d2"):
            view = getattr(self.args, name)
            setattr(self, name, view)
            try:
                operand = plan.operand(name)
            except Error:  # not every plan has all four
                continue
            if words and name in ("a", "b"):
                operand.sign_mask = (c.c_uint32 * 8)(*words)
            setattr(self.args, name, operand)
        self.args.workspace_bytes = plan.workspace_bytes
        self.ref = c.byref(self.args)


class Prepared:
    """A plan and the blocks that wait for its next calls (several threads may take one each)."""

    def __init__(self, context, words=None, **members):
        self.plan = context.prepare(context.problem(**members))
        self.workspace_bytes = self.plan.workspace_bytes
        self.draws = False
        self._words, self._free = words, []

    def take(self):
        try:
            return self._free.pop()
        except IndexError:
            return Block(self.plan, self._words)

    def run(self, block):
        """Runs and takes the block back, whatever happens."""
        status = _LIB.qturn_run(self.plan._handle, block.ref)
        self._free.append(block)
        if status:
            _check(status)


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
