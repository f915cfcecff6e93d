"""Runs a gfx950 code object on the CPU, by the text that llvm-objdump-22 prints of it.

A test tool that gates nothing: what the simulated machine cannot see, this can, because it executes
what the compiler made: registers, masks, instruction selectors and wait counts. An instruction that
it does not know ends the run. What a load, or a copy into LDS, brings is poison until a wait that
covers it: loads return in order, so `s_waitcnt vmcnt(n)` completes all but the last n of a wave.
Sums of a matrix instruction are those of the scaled block dot products in binary64, rounded once a
block; how the hardware sums is not known.

    Program(object, entry).launch(memory, grid, block, kernarg, lds_bytes)
"""

import re
import struct
import subprocess

import numpy as np

U32, U64, I32, I64, F32, F64 = np.uint32, np.uint64, np.int32, np.int64, np.float32, np.float64
LANES = 64
np.seterr(all="ignore")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F64)


class Fault(Exception):
    """What no correct kernel does."""


def bits_of(mask):
    return int(np.packbits(mask, bitorder="little").view(U64)[0])


def mask_of(bits):
    return np.unpackbits(np.array([bits & (2**64 - 1)], U64).view(np.uint8), bitorder="little").astype(bool)


def bf16_rne(x):
    u = np.asarray(x, F32).view(U32)
    return np.where(np.isnan(x), U32(0x7FC0), (u + U32(0x7FFF) + ((u >> U32(16)) & U32(1))) >> U32(16)).astype(U32)


def signed(x, width=32):
    return x - (1 << width) if x >> (width - 1) else x


class Memory:
    """Device memory: allocations with gaps between them; any other access is a fault."""

    def __init__(self):
        self.at, self.parts = 1 << 20, []

    def allocate(self, content):
        content = np.ascontiguousarray(content).view(np.uint8).ravel().copy()
        base = self.at
        self.at += (content.size + 4095) // 4096 * 4096 + 4096
        self.parts.append((base, content))
        return base

    def place(self, address, size):
        for base, content in self.parts:
            if base <= address and address + size <= base + content.size:
                return content, address - base
        raise Fault(f"{size} bytes at {address:#x} are outside of every allocation")

    def read(self, address, size):
        content, at = self.place(int(address), size)
        return content[at : at + size]


class Wave:
    def __init__(self, first_thread):
        self.v = np.full((512, LANES), 0xDEADBEEF, U32)  # 256 and on: accumulation registers
        self.s = [0xDEADBEEF] * 112
        self.exec, self.vcc, self.scc, self.m0 = 2**64 - 1, 0, 0, 0xDEADBEEF
        self.pc, self.done, self.count = 0, False, 0
        self.vector_loads, self.lds_loads = [], []  # in flight: (registers, LDS bytes), oldest first
        self.first_thread = first_thread


class Program:
    def __init__(self, path, entry):
        text = subprocess.run(
            ["llvm-objdump-22", "-d", "--mcpu=gfx950", path], capture_output=True, text=True, check=True
        ).stdout
        self.code, self.index, inside = [], {}, False
        for line in text.splitlines():
            label = re.match(r"^[0-9a-f]+ <(.+)>:", line)
            if label:
                if not re.match(r"^(label_|L|\.L)", label.group(1)):
                    inside = label.group(1) == entry
                continue
            if not inside or not line.startswith("\t"):
                continue
            body, _, comment = line.partition("//")
            address, _, words = comment.strip().partition(":")
            words = re.match(r"((?:\s*[0-9A-F]{8})+)", words).group(1).split()
            address = int(address, 16)
            self.index[address] = len(self.code)
            self.code.append((address, address + 4 * len(words), int(words[0], 16) & 0xFFFF, *self.parse(body.strip())))
        if not self.code:
            raise Fault(f"{path} has no kernel {entry}")
        self.seen = {}

    @staticmethod
    def parse(body):
        op, _, rest = body.partition(" ")
        modifiers = {}

        def take(match):
            modifiers[match.group(1)] = match.group(2)
            return ""

        rest = re.sub(
            r"\b(op_sel|op_sel_hi|neg_lo|neg_hi|offset|cbsz|blgp|bitop3|offset0|offset1|dst_sel|src0_sel|src1_sel|"
            r"dst_unused|quad_perm|row_mask|bank_mask|vmcnt|lgkmcnt|expcnt|mul|div|row_shl|row_shr|row_ror|row_bcast|"
            r"row_newbcast):(\[[\d,]+\]|0x[0-9a-f]+|-?\w+)",
            take,
            rest,
        )
        rest = re.sub(r"\b(vmcnt|lgkmcnt|expcnt)\((\d+)\)", take, rest)
        for flag in ("offen", "sc0", "sc1", "nt", "clamp", "off", "bound_ctrl"):
            if flag != "off" and re.search(rf"\b{flag}\b", rest):
                modifiers[flag] = "1"
                rest = re.sub(rf"\b{flag}(:\w+)?\b", "", rest)
        return op, [x.strip() for x in rest.split(",") if x.strip()], modifiers

    # ---- operands

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
        special = {"m0": w.m0, "vcc_lo": w.vcc & 0xFFFFFFFF, "vcc_hi": w.vcc >> 32, "exec_lo": w.exec & 0xFFFFFFFF,
                   "exec_hi": w.exec >> 32, "scc": w.scc}
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
        return np.full(LANES, self.constant(o, k if "." not in o else 0) if k == 0 or "." in o else 0, U32)

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

    # ---- execution

    def step(self, w):
        address, behind, immediate, op, o, m = self.code[w.pc]
        w.pc += 1
        w.count += 1
        base = re.sub(r"_(e32|e64|sdwa|dpp)$", "", op)
        self.seen[base] = self.seen.get(base, 0) + 1
        try:
            return self.execute(w, base, o, m, behind, immediate, op)
        except Fault as fault:
            raise Fault(f"{address:#x} {op} {', '.join(o)}: {fault}") from None

    def execute(self, w, b, o, m, behind, immediate, op):
        if b.startswith("s_"):
            return self.execute_scalar(w, b, o, m, behind, immediate)
        if op.endswith("_sdwa"):
            return self.sub_dword(w, b, o, m)
        if op.endswith("_dpp"):
            raise NotImplementedError(op)
        if b.startswith("v_mfma_scale_f32_"):
            return self.matrix(w, b, o, m)
        if b.startswith("v_"):
            return self.execute_vector(w, b, o, m)
        if b.startswith("ds_"):
            return self.execute_lds(w, b, o, m)
        if b.startswith("global_"):
            return self.execute_global(w, b, o, m)
        raise NotImplementedError(f"{b} {o} {m}")

    def execute_scalar(self, w, b, o, m, behind, immediate):
        def jump():
            w.pc = self.index[behind + 4 * ((immediate + 32768) % 65536 - 32768)]

        if b in ("s_nop", "s_setprio", "s_sleep"):
            return None
        if b == "s_waitcnt":
            vector, lds = int(m.get("vmcnt", 63)), int(m.get("lgkmcnt", 15))
            if not m and o:
                raise NotImplementedError(f"s_waitcnt {o}")
            while len(w.vector_loads) > vector:
                _, land = w.vector_loads.pop(0)
                if land:
                    land()
            while len(w.lds_loads) > lds:
                w.lds_loads.pop(0)
            return None
        if b == "s_barrier":
            return "barrier"
        if b == "s_endpgm":
            w.done = True
            return "end"
        if b == "s_branch":
            return jump()
        if b.startswith("s_cbranch_"):
            taken = {"scc0": not w.scc, "scc1": w.scc, "vccz": w.vcc == 0, "vccnz": w.vcc != 0, "execz": w.exec == 0,
                     "execnz": w.exec != 0}[b[10:]]
            return jump() if taken else None
        if b.startswith("s_load_dword"):
            count = int(b[12:].lstrip("x") or 1)
            offset = self.scalar(w, o[2]) if self.register(o[2]) else int(o[2], 0)
            words = self.memory.read(self.scalar64(w, o[1]) + offset, 4 * count).view(U32)
            first = self.register(o[0])[1] if self.register(o[0]) else None
            if first is None:
                self.set_scalar64(w, o[0], int(words[0]) | int(words[1]) << 32)
            else:
                w.s[first : first + count] = [int(x) for x in words]
            return None
        x = [self.scalar64(w, a) if "64" in b else self.scalar(w, a) for a in o[1:]]
        wide = b.endswith(("b64", "u64", "i64"))
        put = self.set_scalar64 if wide else self.set_scalar
        limit = 2**64 if wide else 2**32
        if b in ("s_mov_b32", "s_mov_b64"):
            return put(w, o[0], x[0])
        if b == "s_movk_i32":
            return put(w, o[0], signed(int(o[1], 0) & 0xFFFF, 16))
        if b == "s_cselect_b32" or b == "s_cselect_b64":
            return put(w, o[0], x[0] if w.scc else x[1])
        if b in ("s_addk_i32", "s_mulk_i32"):
            k, old = signed(int(o[1], 0) & 0xFFFF, 16), signed(self.scalar(w, o[0]))
            return put(w, o[0], old + k if b == "s_addk_i32" else old * k)
        carry = {"s_add_u32": lambda: x[0] + x[1], "s_addc_u32": lambda: x[0] + x[1] + w.scc,
                 "s_sub_u32": lambda: x[0] - x[1], "s_subb_u32": lambda: x[0] - x[1] - w.scc}
        if b in carry:
            r = carry[b]()
            put(w, o[0], r)
            w.scc = int(r < 0 or r >= limit)
            return None
        if b in ("s_add_i32", "s_sub_i32"):
            r = signed(x[0]) + signed(x[1]) * (1 if b == "s_add_i32" else -1)
            put(w, o[0], r)
            w.scc = int(not -(2**31) <= r < 2**31)
            return None
        if b in ("s_mul_i32", "s_mul_hi_u32", "s_mul_hi_i32", "s_bfm_b32"):
            r = {"s_mul_i32": lambda: x[0] * x[1], "s_mul_hi_u32": lambda: x[0] * x[1] >> 32,
                 "s_mul_hi_i32": lambda: signed(x[0]) * signed(x[1]) >> 32,
                 "s_bfm_b32": lambda: ((1 << (x[0] & 31)) - 1) << (x[1] & 31)}[b]()
            return put(w, o[0], r)
        if b.endswith("_saveexec_b64"):
            old, given = w.exec, self.scalar64(w, o[1])
            w.exec = {"s_and": given & old, "s_or": given | old, "s_xor": given ^ old, "s_andn2": given & ~old,
                      "s_orn2": (given | ~old) & (2**64 - 1)}[b[: -len("_saveexec_b64")]] & (2**64 - 1)
            self.set_scalar64(w, o[0], old)
            w.scc = int(w.exec != 0)
            return None
        if b.startswith("s_cmp"):
            y = [self.scalar64(w, a) if b.endswith("64") else self.scalar(w, a) for a in o[:2]]
            if b.endswith("i32"):
                y = [signed(a) for a in y]
            name = b.split("_")[2]
            w.scc = int({"gt": y[0] > y[1], "lt": y[0] < y[1], "eq": y[0] == y[1], "lg": y[0] != y[1],
                         "ge": y[0] >= y[1], "le": y[0] <= y[1]}[name])
            return None
        if b.startswith("s_bitcmp"):
            bit = (self.scalar(w, o[0]) >> (self.scalar(w, o[1]) & 31)) & 1
            w.scc = int(bit == int(b[8]))
            return None
        width = 63 if wide else 31
        sized = lambda a: signed(a, width + 1)  # noqa: E731
        results = {
            "and": lambda: x[0] & x[1], "or": lambda: x[0] | x[1], "xor": lambda: x[0] ^ x[1],
            "andn2": lambda: x[0] & ~x[1], "orn2": lambda: x[0] | ~x[1], "not": lambda: ~x[0],
            "nand": lambda: ~(x[0] & x[1]), "nor": lambda: ~(x[0] | x[1]), "xnor": lambda: ~(x[0] ^ x[1]),
            "lshl": lambda: x[0] << (self.scalar(w, o[2]) & width), "lshr": lambda: x[0] >> (self.scalar(w, o[2]) & width),
            "ashr": lambda: sized(x[0]) >> (self.scalar(w, o[2]) & width),
            "bfe": lambda: self.bit_field(x[0], self.scalar(w, o[2]), b, width),
            "min": lambda: min(sized(x[0]), sized(x[1])) if "_i" in b else min(x),
            "max": lambda: max(sized(x[0]), sized(x[1])) if "_i" in b else max(x),
            "bcnt1": lambda: bin(x[0]).count("1"), "abs": lambda: abs(signed(x[0])),
            "lshl1": lambda: (x[0] << 1) + x[1], "lshl2": lambda: (x[0] << 2) + x[1], "lshl3": lambda: (x[0] << 3) + x[1],
            "lshl4": lambda: (x[0] << 4) + x[1], "brev": lambda: int(f"{x[0]:032b}"[::-1], 2),
        }
        name = b.split("_")[1]
        if name in ("ff1", "flbit", "sext", "bitset1", "bitset0", "pack", "wqm", "quadmask", "getpc", "setpc", "swappc"):
            raise NotImplementedError(f"{b} {o}")
        if name not in results or b.startswith("s_bcnt1_i32_b64") and False:
            raise NotImplementedError(f"{b} {o}")
        r = results[name]()
        if name == "bcnt1":
            self.set_scalar(w, o[0], r)
        else:
            put(w, o[0], r)
        if name not in ("min", "max"):
            w.scc = int(r % limit != 0)
        else:
            w.scc = int(r == (sized(x[0]) if "_i" in b else x[0]))
        return None

    @staticmethod
    def bit_field(x, control, b, width):
        offset, size = control & width, control >> 16 & 0x7F
        field = x >> offset & ((1 << size) - 1)
        return signed(field, size) if "_i" in b and size > 0 else field

    SELECTED = {"DWORD": (0, 0xFFFFFFFF), "WORD_0": (0, 0xFFFF), "WORD_1": (16, 0xFFFF), "BYTE_0": (0, 0xFF),
                "BYTE_1": (8, 0xFF), "BYTE_2": (16, 0xFF), "BYTE_3": (24, 0xFF)}

    def sub_dword(self, w, b, o, m):
        """An instruction on bytes or halves of its operands."""
        self.temporary = {}
        compares = b.startswith("v_cmp_")
        given = list(o)
        for k in range(1, min(3, len(o))):
            shift, mask = self.SELECTED[m.get(f"src{k - 1}_sel", "DWORD")]
            if (shift, mask) != (0, 0xFFFFFFFF):
                self.temporary[f"@{k}"] = self.u(w, o[k]) >> U32(shift) & U32(mask)
                given[k] = f"@{k}"
        rest = {k: v for k, v in m.items() if not k.endswith("_sel") and k != "dst_unused"}
        if compares:
            return self.execute_vector(w, b, given, rest)
        given[0] = "@0"
        self.execute_vector(w, b, given, rest)
        shift, mask = self.SELECTED[m.get("dst_sel", "DWORD")]
        result = (self.temporary["@0"] & U32(mask)) << U32(shift)
        if m.get("dst_unused") == "UNUSED_PRESERVE":
            result |= self.u(w, o[0]) & U32(0xFFFFFFFF ^ mask << shift)
        elif m.get("dst_unused", "UNUSED_PAD") != "UNUSED_PAD":
            raise NotImplementedError(f"{b} {m}")
        self.set(w, o[0], result)

    def compare(self, w, b, o):
        _, _, name, kind = b.split("_")
        if kind in ("f32", "f64"):
            x, y = self.f(w, o[1], kind == "f64"), self.f(w, o[2], kind == "f64")
        elif kind.endswith("64"):
            x, y = self.u64(w, o[1]), self.u64(w, o[2])
            if kind == "i64":
                x, y = x.view(I64), y.view(I64)
        else:
            x, y = self.u(w, o[1]), self.u(w, o[2])
            if kind == "i32":
                x, y = x.view(I32), y.view(I32)
            if kind == "u16":
                x, y = x & U32(0xFFFF), y & U32(0xFFFF)
            if kind not in ("i32", "u32", "u16"):
                raise NotImplementedError(b)
        unordered = (x != x) | (y != y)
        r = {"gt": x > y, "lt": x < y, "eq": x == y, "ne": x != y, "ge": x >= y, "le": x <= y, "lg": (x < y) | (x > y),
             "neq": ~(x == y), "nlt": ~(x < y), "ngt": ~(x > y), "nle": ~(x <= y), "nge": ~(x >= y), "nlg": ~((x < y) | (x > y)),
             "u": unordered, "o": ~unordered}[name]
        self.set_scalar64(w, o[0], bits_of(r) & w.exec)

    def execute_vector(self, w, b, o, m):
        u = lambda k: self.u(w, o[k])  # noqa: E731
        i = lambda k: self.u(w, o[k]).view(I32)  # noqa: E731
        f = lambda k: self.f(w, o[k])  # noqa: E731
        d = lambda k: self.f(w, o[k], True)  # noqa: E731
        by = lambda k: u(k) & U32(31)  # noqa: E731
        wide = lambda k: self.u64(w, o[k])  # noqa: E731
        if b == "v_nop":
            return
        if b.startswith("v_cmp_"):
            if b.startswith("v_cmp_class"):
                raise NotImplementedError(b)
            return self.compare(w, b, o)
        if b == "v_readfirstlane_b32":
            lane = int(np.argmax(mask_of(w.exec))) if w.exec else 0
            return self.set_scalar(w, o[0], int(u(1)[lane]))
        if b == "v_readlane_b32":
            return self.set_scalar(w, o[0], int(u(1)[self.scalar(w, o[2]) & 63]))
        if b == "v_writelane_b32":
            number = self.register(o[0])[1]
            w.v[number][self.scalar(w, o[2]) & 63] = self.scalar(w, o[1])
            return
        if b in ("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32"):
            lanes = np.arange(LANES)
            low = lanes if "lo" in b else lanes - 32
            part = np.where(low <= 0, 0, np.where(low >= 32, 0xFFFFFFFF, (1 << np.clip(low, 0, 32)) - 1)).astype(U64)
            ones = np.array([bin(int(a)).count("1") for a in u(1).astype(U64) & part], U32)
            return self.set(w, o[0], ones + u(2))
        if b == "v_cndmask_b32":
            chosen = mask_of(self.scalar64(w, o[3]) if len(o) > 3 else w.vcc)
            x, y = (f(1).view(U32), f(2).view(U32)) if "|" in o[1] + o[2] or o[1].startswith("-v") or o[2].startswith("-v") else (u(1), u(2))
            return self.set(w, o[0], np.where(chosen, y, x))
        if b in ("v_add_co_u32", "v_addc_co_u32", "v_sub_co_u32", "v_subb_co_u32", "v_subrev_co_u32"):
            x, y = u(2).astype(I64), u(3).astype(I64)
            carry = mask_of(self.scalar64(w, o[4])).astype(I64) if len(o) > 4 else np.zeros(LANES, I64)
            r = x + y + carry if "add" in b else y - x if "rev" in b else x - y - carry
            self.set_scalar64(w, o[1], bits_of((r < 0) | (r >> 32 > 0)) & w.exec)
            return self.set(w, o[0], r.astype(U64).astype(U32))
        simple = {
            "v_mov_b32": lambda: u(1), "v_accvgpr_write_b32": lambda: u(1), "v_accvgpr_read_b32": lambda: u(1),
            "v_accvgpr_mov_b32": lambda: u(1), "v_not_b32": lambda: ~u(1),
            "v_add_u32": lambda: u(1) + u(2), "v_add_i32": lambda: u(1) + u(2), "v_add3_u32": lambda: u(1) + u(2) + u(3),
            "v_sub_u32": lambda: u(1) - u(2), "v_subrev_u32": lambda: u(2) - u(1), "v_sub_i32": lambda: u(1) - u(2),
            "v_and_b32": lambda: u(1) & u(2), "v_or_b32": lambda: u(1) | u(2), "v_xor_b32": lambda: u(1) ^ u(2),
            "v_or3_b32": lambda: u(1) | u(2) | u(3), "v_and_or_b32": lambda: (u(1) & u(2)) | u(3),
            "v_xad_u32": lambda: (u(1) ^ u(2)) + u(3), "v_bfi_b32": lambda: (u(1) & u(2)) | (~u(1) & u(3)),
            "v_lshlrev_b32": lambda: u(2) << by(1), "v_lshrrev_b32": lambda: u(2) >> by(1),
            "v_ashrrev_i32": lambda: (i(2) >> by(1).astype(I32)).view(U32),
            "v_lshl_or_b32": lambda: (u(1) << by(2)) | u(3), "v_lshl_add_u32": lambda: (u(1) << by(2)) + u(3),
            "v_add_lshl_u32": lambda: (u(1) + u(2)) << by(3),
            "v_alignbit_b32": lambda: (((u(1).astype(U64) << U64(32)) | u(2)) >> by(3).astype(U64)).astype(U32),
            "v_bfe_u32": lambda: (u(1) >> by(2)) & ((U32(1) << by(3)) - U32(1)),
            "v_mul_lo_u32": lambda: u(1) * u(2), "v_mul_hi_u32": lambda: (u(1).astype(U64) * u(2) >> U64(32)).astype(U32),
            "v_mul_u32_u24": lambda: (u(1) & U32(0xFFFFFF)) * (u(2) & U32(0xFFFFFF)),
            "v_mad_u32_u24": lambda: (u(1) & U32(0xFFFFFF)) * (u(2) & U32(0xFFFFFF)) + u(3),
            "v_mul_i32_i24": lambda: ((i(1) << 8 >> 8).astype(I64) * (i(2) << 8 >> 8)).astype(U64).astype(U32),
            "v_min_u32": lambda: np.minimum(u(1), u(2)), "v_max_u32": lambda: np.maximum(u(1), u(2)),
            "v_min_i32": lambda: np.minimum(i(1), i(2)).view(U32), "v_max_i32": lambda: np.maximum(i(1), i(2)).view(U32),
            "v_min3_u32": lambda: np.minimum(np.minimum(u(1), u(2)), u(3)),
            "v_max3_u32": lambda: np.maximum(np.maximum(u(1), u(2)), u(3)),
            "v_add_u16": lambda: (u(1) + u(2)) & U32(0xFFFF), "v_lshlrev_b16": lambda: (u(2) << (u(1) & U32(15))) & U32(0xFFFF),
            "v_lshrrev_b16": lambda: (u(2) & U32(0xFFFF)) >> (u(1) & U32(15)),
            "v_cvt_u32_f32": lambda: np.clip(np.nan_to_num(f(1).astype(F64), nan=0.0), 0, 4294967295).astype(U32),
            "v_cvt_pk_bf16_f32": lambda: bf16_rne(f(1)) | bf16_rne(f(2)) << U32(16),
            "v_cvt_f16_f32": lambda: f(1).astype(np.float16).view(np.uint16).astype(U32),
            "v_pack_b32_f16": lambda: (u(1) & U32(0xFFFF)) | u(2) << U32(16),
            "v_bfrev_b32": lambda: np.array([int(f"{int(a):032b}"[::-1], 2) for a in u(1)], U32),
            "v_bcnt_u32_b32": lambda: np.array([bin(int(a)).count("1") for a in u(1)], U32) + u(2),
        }
        if b in simple:
            if "op_sel" in m:
                raise NotImplementedError(f"{b} {m}")
            return self.set(w, o[0], simple[b]())
        if b == "v_perm_b32":
            both = u(1).astype(U64) << U64(32) | u(2)
            out = np.zeros(LANES, U32)
            for k in range(4):
                select = (u(3) >> U32(8 * k)) & U32(255)
                if (select >= 8).any() and not (select[select >= 8] == 12).all():
                    raise NotImplementedError("v_perm_b32 of signs")
                byte = (both >> (U64(8) * (select & U32(7)).astype(U64))).astype(U32) & U32(255)
                out |= np.where(select == 12, U32(0), byte) << U32(8 * k)
            return self.set(w, o[0], out)
        if b == "v_bitop3_b32":
            table, x, y, z, r = int(m["bitop3"], 0), u(1), u(2), u(3), np.zeros(LANES, U32)
            for k in range(8):
                if table >> k & 1:
                    r |= (x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z)
            return self.set(w, o[0], r)
        wides = {
            "v_mov_b64": lambda: wide(1), "v_lshlrev_b64": lambda: wide(2) << (u(1).astype(U64) & U64(63)),
            "v_lshrrev_b64": lambda: wide(2) >> (u(1).astype(U64) & U64(63)),
            "v_ashrrev_i64": lambda: wide(2).view(I64) >> (u(1).astype(I64) & I64(63)),
            "v_lshl_add_u64": lambda: (wide(1) << (u(2).astype(U64) & U64(7))) + wide(3),
            "v_mad_u64_u32": lambda: u(2).astype(U64) * u(3) + wide(4),
            "v_mad_i64_i32": lambda: i(2).astype(I64) * i(3).astype(I64) + wide(4).view(I64),
            "v_add_f64": lambda: d(1) + d(2), "v_mul_f64": lambda: d(1) * d(2),
            "v_cvt_f64_f32": lambda: f(1).astype(F64), "v_cvt_f64_u32": lambda: u(1).astype(F64),
            "v_ldexp_f64": lambda: np.ldexp(d(1), i(2)),
        }
        if b in wides:
            return self.set64(w, o[0], wides[b]())
        floats = {
            "v_add_f32": lambda: f(1) + f(2), "v_sub_f32": lambda: f(1) - f(2), "v_subrev_f32": lambda: f(2) - f(1),
            "v_mul_f32": lambda: f(1) * f(2), "v_max_f32": lambda: np.fmax(f(1), f(2)), "v_min_f32": lambda: np.fmin(f(1), f(2)),
            "v_fma_f32": lambda: self.fused(f(1), f(2), f(3)), "v_fmac_f32": lambda: self.fused(f(1), f(2), f(0)),
            "v_cvt_f32_u32": lambda: u(1).astype(F32), "v_cvt_f32_i32": lambda: i(1).astype(F32),
            "v_cvt_f32_f64": lambda: d(1).astype(F32), "v_rcp_iflag_f32": lambda: F32(1) / f(1), "v_rcp_f32": lambda: F32(1) / f(1),
            "v_cvt_f32_ubyte0": lambda: (u(1) & U32(255)).astype(F32),
            "v_cvt_f32_f16": lambda: (u(1) & U32(0xFFFF)).astype(np.uint16).view(np.float16).astype(F32),
            "v_ldexp_f32": lambda: np.ldexp(f(1), i(2)), "v_trunc_f32": lambda: np.trunc(f(1)),
            "v_max3_f32": lambda: np.fmax(np.fmax(f(1), f(2)), f(3)),
        }
        if b in floats:
            if m.get("clamp") or "mul" in m:
                raise NotImplementedError(f"{b} {m}")
            return self.set_float(w, o[0], floats[b]())
        if b in ("v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32", "v_pk_mov_b32"):
            return self.packed(w, b, o, m)
        raise NotImplementedError(f"{b} {o} {m}")

    @staticmethod
    def fused(a, b, c):
        # The product is exact in binary64; its sum is rounded to odd, which the second rounding needs.
        p, c = a.astype(F64) * b.astype(F64), c.astype(F64)
        s = p + c
        back = s - p
        rest = (p - (s - back)) + (c - back)
        bits = s.view(I64).copy()
        odd = (rest != 0) & np.isfinite(s) & (bits & 1 == 0)
        bits[odd] += np.where((rest[odd] > 0) == (s[odd] > 0), 1, -1)
        return bits.view(F64).astype(F32)

    def packed(self, w, b, o, m):
        count = len(o) - 1
        low, high = self.list_of(m, "op_sel", [0] * count), self.list_of(m, "op_sel_hi", [1] * count)
        if b == "v_pk_mov_b32":
            x, y = self.u(w, o[1], low[0]), self.u(w, o[2], low[1] if "op_sel" in m else 0)
            if "op_sel_hi" in m:
                y = self.u(w, o[2], high[1])
            self.set(w, o[0], x, 0)
            self.set(w, o[0], y, 1)
            return
        signs = self.list_of(m, "neg_lo", [0] * count), self.list_of(m, "neg_hi", [0] * count)
        results = []
        for select, sign in zip((low, high), signs):
            x = []
            for k in range(count):
                wide_register = self.register(o[1 + k])
                value = self.u(w, o[1 + k], select[k] if wide_register else 0).view(F32)
                x.append(-value if sign[k] else value)
            results.append(self.fused(*x) if "fma" in b else x[0] + x[1] if "add" in b else x[0] * x[1])
        for k in range(2):
            self.set(w, o[0], results[k].astype(F32).view(U32), k)

    def matrix(self, w, b, o, m):
        size, depth = (16, 128) if "16x16x128" in b else (32, 64)
        if m["cbsz"] != "4" or m["blgp"] != "4":
            raise NotImplementedError(f"{b} {m}")
        low, high = self.list_of(m, "op_sel", [0, 0, 0]), self.list_of(m, "op_sel_hi", [1, 1, 1])

        def operand(k):
            raw = np.stack([self.u(w, o[k], q) for q in range(4)], 1).copy().view(np.uint8)
            codes = np.empty((LANES, 32), F64)
            codes[:, 0::2], codes[:, 1::2] = E2M1[raw & 15], E2M1[raw >> 4]
            return codes.reshape(LANES // size, size, 32)

        def scale(k, which):
            byte = (self.u(w, o[k]) >> U32(8 * (low[which] + 2 * high[which]))) & U32(255)
            value = np.where(byte == 255, np.nan, np.ldexp(1.0, byte.astype(int) - 127))
            return value.reshape(LANES // size, size)

        a, c, a_scale, c_scale = operand(1), operand(2), scale(4, 0), scale(5, 1)
        count = size * size // LANES
        lanes = np.arange(LANES)
        rows = [4 * (lanes // 16) + q if size == 16 else 8 * (q // 4) + 4 * (lanes // 32) + q % 4 for q in range(count)]
        total = np.zeros((size, size), F32)
        for q in range(count):
            total[rows[q], lanes % size] = self.u(w, o[3], q).view(F32) if self.register(o[3]) else F32(0)
        for block in range(depth // 32):
            products = a[block] @ c[block].T * np.outer(a_scale[block], c_scale[block])
            total = (total.astype(F64) + products).astype(F32)
        kind, first, _ = self.register(o[0])
        for q in range(count):
            number = first + q + (256 if kind == "a" else 0)
            self.check_ready(w, number)
            w.v[number] = total[rows[q], lanes % size].view(U32)

    # ---- memory

    def lanes_of(self, w):
        return np.nonzero(mask_of(w.exec))[0]

    def lds_at(self, at, size):
        if at < 0 or at + size > self.lds.size:
            raise Fault(f"{size} bytes of LDS at {at}: a block has {self.lds.size}")
        return slice(int(at), int(at) + size)

    def execute_lds(self, w, b, o, m):
        if b in ("ds_bpermute_b32",):
            source = (self.u(w, o[1]) + U32(int(m.get("offset", "0"), 0))) >> U32(2) & U32(63)
            active = mask_of(w.exec)
            values = self.u(w, o[2])
            if not active[source[active]].all():
                raise Fault("ds_bpermute_b32 reads a lane that is not active")
            self.set(w, o[0], values[source])
            w.lds_loads.append(self.numbers(o[0], 1))
            return
        pair = re.match(r"ds_(read|write)2(st64)?_b(32|64)$", b)
        single = re.match(r"ds_(read|write)_(?:([ui])(8|16)|b(8|16|32|64|96|128))(_d16|_d16_hi)?$", b)
        if pair:
            reading, size = pair.group(1) == "read", int(pair.group(3)) // 8
            step = size * (64 if pair.group(2) else 1)
            offsets = [int(m.get(f"offset{k}", "0"), 0) * step for k in range(2)]
        elif single and not single.group(5):
            reading, size = single.group(1) == "read", int(single.group(3) or single.group(4)) // 8
            offsets = [int(m.get("offset", "0"), 0)]
        else:
            raise NotImplementedError(f"{b} {o} {m}")
        address = self.u(w, o[1] if reading else o[0]).astype(I64)
        words = max(1, size // 4)
        for k, offset in enumerate(offsets):
            if reading:
                raw = np.zeros((LANES, max(4, size)), np.uint8)
                for lane in self.lanes_of(w):
                    at = self.lds_at((address[lane] + offset) & 0xFFFFFFFF, size)
                    if self.lds_poison[at].any():
                        raise Fault(f"LDS byte {at.start} is read before the copy of it was waited for")
                    raw[lane, :size] = self.lds[at]
                values = raw.view(U32)
                if single and single.group(2) == "i":
                    raise NotImplementedError(b)
                for word in range(words):
                    self.set(w, o[0], values[:, word], k * words + word)
            else:
                data = o[1 + k]
                raw = np.stack([self.u(w, data, word) for word in range(words)], 1).copy().view(np.uint8)
                for lane in self.lanes_of(w):
                    self.lds[self.lds_at((address[lane] + offset) & 0xFFFFFFFF, size)] = raw[lane, :size]
        if reading:
            w.lds_loads.append(self.numbers(o[0], words * len(offsets)))
        else:
            w.lds_loads.append(set())

    def numbers(self, o, count):
        kind, first, _ = self.register(o)
        return {first + k + (256 if kind == "a" else 0) for k in range(count)}

    def execute_global(self, w, b, o, m):
        offset = int(m.get("offset", "0"), 0)

        def address(vector, base):
            if base == "off":
                return self.u64(w, vector).astype(I64) + offset
            return self.scalar64(w, base) + self.u(w, vector).astype(I64) + offset

        if b.startswith("global_load_lds_"):
            size = {"dword": 4, "dwordx4": 16}[b[16:]]
            places = address(o[0], o[1])
            landed = []
            for lane in self.lanes_of(w):
                at = self.lds_at(w.m0 + offset + lane * size, size)
                landed.append((at, self.memory.read(places[lane], size)))
                self.lds_poison[at] += 1

            def land():
                for at, content in landed:
                    self.lds[at] = content
                    self.lds_poison[at] -= 1

            w.vector_loads.append((set(), land))
            return
        sizes = {"ubyte": 1, "byte": 1, "ushort": 2, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
        if b.startswith("global_load_") and b[12:] in sizes and b[12:] not in ("byte", "short"):
            size = sizes[b[12:]]
            places = address(o[1], o[2])
            raw = np.zeros((LANES, max(4, size)), np.uint8)
            for lane in self.lanes_of(w):
                raw[lane, :size] = self.memory.read(places[lane], size)
            for word in range(max(1, size // 4)):
                self.set(w, o[0], raw.view(U32)[:, word], word)
            w.vector_loads.append((self.numbers(o[0], max(1, size // 4)), None))
            return
        if b.startswith("global_store_") and b[13:] in sizes:
            size = sizes[b[13:]]
            places = address(o[0], o[2])
            raw = np.stack([self.u(w, o[1], k) for k in range(max(1, size // 4))], 1).copy().view(np.uint8)
            for lane in self.lanes_of(w):
                self.memory.read(places[lane], size)[:] = raw[lane, :size]
            w.vector_loads.append((set(), None))
            return
        raise NotImplementedError(f"{b} {o} {m}")

    # ---- launches

    def launch(self, memory, grid, block, kernarg, lds_bytes, scalars):
        """Runs all blocks, one after another. `scalars` gives the wave's first scalar registers, from
        the kernel argument's address and the block's place."""
        self.memory = memory
        arguments = memory.allocate(np.frombuffer(kernarg, np.uint8))
        count = 0
        for z in range(grid[2]):
            for y in range(grid[1]):
                for x in range(grid[0]):
                    self.lds = np.full(lds_bytes, 0xFF, np.uint8)
                    self.lds_poison = np.zeros(lds_bytes, np.int32)
                    count += self.run_block((x, y, z), block, arguments, scalars)
        return count

    def run_block(self, place, threads, arguments, scalars):
        waves = []
        for first in range(0, threads, LANES):
            w = Wave(first)
            for number, value in scalars(arguments, place).items():
                w.s[number] = value & 0xFFFFFFFF
            w.v[0] = np.arange(first, first + LANES, dtype=U32)
            waves.append(w)
        while not all(w.done for w in waves):
            stops = set()
            for w in waves:
                while not w.done:
                    stop = self.step(w)
                    if stop:
                        stops.add(stop)
                        break
            if stops == {"barrier", "end"}:
                raise Fault("some waves wait at a barrier, others have ended")
        return sum(w.count for w in waves)
