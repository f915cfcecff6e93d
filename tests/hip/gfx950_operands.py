"""Operands of gfx950 instructions as llvm-objdump-22 prints them: registers, constants, modifiers.

A register whose load has not been waited for is poison.
"""

import re
import struct

import numpy as np

from gfx950_state import U32, U64, F32, F64, LANES, Fault, mask_of


class Operands:
    """Reads and writes operands `o` of a wave `w`."""


    @staticmethod
    def register(o):
        match = re.match(r"^([vas])(?:(\d+)|\[(\d+):(\d+)\])$", o)
        if not match:
            return None
        first = int(match.group(2) or match.group(3))
        return match.group(1), first, int(match.group(4) or first) - first + 1

    INLINE = {"0.15915494": 0x3E22F983, "0.15915494309189532": 0x3E22F983}

    def constant(self, o, k=0):
        if o in self.INLINE:
            return self.INLINE[o]
        if re.match(r"^-?\d+\.\d+(e[+-]?\d+)?$", o):
            return struct.unpack("<I", struct.pack("<f", float(o)))[0] if k == 0 else 0
        return (int(o, 0) >> (32 * k)) & 0xFFFFFFFF

    def scalar(self, w, o):
        special = {"m0": w.m0, "vcc_lo": w.vcc & 0xFFFFFFFF, "vcc_hi": w.vcc >> 32,
                   "exec_lo": w.exec & 0xFFFFFFFF, "exec_hi": w.exec >> 32, "scc": w.scc}
        if o in special:
            return special[o]
        found = self.register(o)
        return w.s[found[1]] if found else self.constant(o)

    def scalar64(self, w, o):
        if o in ("vcc", "exec"):
            return getattr(w, o)
        found = self.register(o)
        if found:
            return w.s[found[1]] | w.s[found[1] + 1] << 32
        if re.match(r"^-?\d+\.\d+", o):
            return struct.unpack("<Q", struct.pack("<d", float(o)))[0]
        return int(o, 0) & (2**64 - 1)

    def set_scalar(self, w, o, x):
        x &= 0xFFFFFFFF
        if o == "m0":
            w.m0 = x
        elif o == "vcc_lo":
            w.vcc = (w.vcc >> 32) << 32 | x
        elif o == "vcc_hi":
            w.vcc = x << 32 | (w.vcc & 0xFFFFFFFF)
        else:
            w.s[self.register(o)[1]] = x

    def set_scalar64(self, w, o, x):
        x &= 2**64 - 1
        if o in ("vcc", "exec"):
            setattr(w, o, x)
        else:
            first = self.register(o)[1]
            w.s[first], w.s[first + 1] = x & 0xFFFFFFFF, x >> 32

    def check_ready(self, w, number):
        for registers, _ in w.vector_loads:
            if number in registers:
                raise Fault(f"register {number} is used before the load of it was waited for")
        for registers in w.lds_loads:
            if number in registers:
                raise Fault(f"register {number} is used before the LDS read of it was waited for")

    def u(self, w, o, k=0):
        """An operand's word k in every lane."""
        if o.startswith("@"):
            return self.temporary[o].copy()
        if o in ("vcc", "exec"):
            return np.full(LANES, (getattr(w, o) >> (32 * k)) & 0xFFFFFFFF, U32)
        found = self.register(o)
        if found:
            kind, first, _ = found
            if kind == "s":
                return np.full(LANES, w.s[first + k], U32)
            number = first + k + (256 if kind == "a" else 0)
            self.check_ready(w, number)
            return w.v[number].copy()
        if o in ("m0", "vcc_lo", "vcc_hi", "exec_lo", "exec_hi"):
            return np.full(LANES, self.scalar(w, o), U32)
        if k == 1 and not re.match(r"^-?\d+\.\d+", o) and int(o, 0) < 0:
            return np.full(LANES, 0xFFFFFFFF, U32)
        value = self.constant(o, k if "." not in o else 0) if k == 0 or "." in o else 0
        return np.full(LANES, value, U32)

    def u64(self, w, o):
        if re.match(r"^-?\d+\.\d+", o):
            return np.full(LANES, self.scalar64(w, o), U64)
        return self.u(w, o, 0).astype(U64) | self.u(w, o, 1).astype(U64) << U64(32)

    def f(self, w, o, wide=False):
        negative = o.startswith("-") and not re.match(r"^-\d", o)
        o = o[1:] if negative else o
        absolute = o.startswith("|")
        o = o[1:-1] if absolute else o
        x = self.u64(w, o).view(F64) if wide else self.u(w, o).view(F32)
        x = np.abs(x) if absolute else x
        return -x if negative else x

    def set(self, w, o, x, k=0):
        if o.startswith("@"):
            self.temporary[o] = np.broadcast_to(np.asarray(x).astype(U32), (LANES,)).copy()
            return
        kind, first, _ = self.register(o)
        number = first + k + (256 if kind == "a" else 0)
        self.check_ready(w, number)
        active = mask_of(w.exec)
        w.v[number][active] = np.asarray(x).astype(U32)[active] if np.ndim(x) else U32(x)

    def set64(self, w, o, x):
        x = np.asarray(x).view(U64)
        self.set(w, o, (x & U64(0xFFFFFFFF)).astype(U32), 0)
        self.set(w, o, (x >> U64(32)).astype(U32), 1)

    def set_float(self, w, o, x):
        self.set(w, o, np.asarray(x, F32).view(U32))

    def list_of(self, m, name, default):
        return [int(x) for x in m[name][1:-1].split(",")] if name in m else default
