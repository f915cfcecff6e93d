"""Scalar instructions of gfx950, jumps and waits."""

from gfx950_state import U32, signed


class Scalar:
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
            taken = {"scc0": not w.scc, "scc1": w.scc, "vccz": w.vcc == 0, "vccnz": w.vcc != 0,
                     "execz": w.exec == 0, "execnz": w.exec != 0}[b[10:]]
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
            result = {"s_and": given & old, "s_or": given | old, "s_xor": given ^ old,
                      "s_andn2": given & ~old, "s_orn2": given | ~old}[b[: -len("_saveexec_b64")]]
            w.exec = result & (2**64 - 1)
            self.set_scalar64(w, o[0], old)
            w.scc = int(w.exec != 0)
            return None
        if b.startswith("s_cmp"):
            y = [self.scalar64(w, a) if b.endswith("64") else self.scalar(w, a) for a in o[:2]]
            if b.endswith("i32"):
                y = [signed(a) for a in y]
            name = b.split("_")[2]
            w.scc = int({"gt": y[0] > y[1], "lt": y[0] < y[1], "eq": y[0] == y[1],
                         "lg": y[0] != y[1], "ge": y[0] >= y[1], "le": y[0] <= y[1]}[name])
            return None
        if b.startswith("s_bitcmp"):
            bit = (self.scalar(w, o[0]) >> (self.scalar(w, o[1]) & 31)) & 1
            w.scc = int(bit == int(b[8]))
            return None
        if b in ("s_bitset0_b32", "s_bitset1_b32"):
            bit, old = 1 << (self.scalar(w, o[1]) & 31), self.scalar(w, o[0])
            return put(w, o[0], old | bit if b[8] == "1" else old & ~bit)
        width = 63 if wide else 31
        sized = lambda a: signed(a, width + 1)  # noqa: E731
        results = {
            "and": lambda: x[0] & x[1], "or": lambda: x[0] | x[1], "xor": lambda: x[0] ^ x[1],
            "andn2": lambda: x[0] & ~x[1], "orn2": lambda: x[0] | ~x[1], "not": lambda: ~x[0],
            "nand": lambda: ~(x[0] & x[1]), "nor": lambda: ~(x[0] | x[1]),
            "xnor": lambda: ~(x[0] ^ x[1]),
            "lshl": lambda: x[0] << (self.scalar(w, o[2]) & width),
            "lshr": lambda: x[0] >> (self.scalar(w, o[2]) & width),
            "ashr": lambda: sized(x[0]) >> (self.scalar(w, o[2]) & width),
            "bfe": lambda: self.bit_field(x[0], self.scalar(w, o[2]), b, width),
            "min": lambda: min(sized(x[0]), sized(x[1])) if "_i" in b else min(x),
            "max": lambda: max(sized(x[0]), sized(x[1])) if "_i" in b else max(x),
            "bcnt1": lambda: bin(x[0]).count("1"), "abs": lambda: abs(signed(x[0])),
            "lshl1": lambda: (x[0] << 1) + x[1], "lshl2": lambda: (x[0] << 2) + x[1],
            "lshl3": lambda: (x[0] << 3) + x[1],
            "lshl4": lambda: (x[0] << 4) + x[1], "brev": lambda: int(f"{x[0]:032b}"[::-1], 2),
        }
        name = b.split("_")[1]
        if name in ("ff1", "flbit", "sext", "pack", "wqm", "quadmask",
                    "getpc", "setpc", "swappc"):
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
