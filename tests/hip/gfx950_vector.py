"""Vector and matrix instructions of gfx950.

Sums of a matrix instruction are those of the scaled block dot products in binary64, rounded once a
block; how the hardware sums is not known.
"""

import numpy as np

from gfx950_state import U32, U64, I32, I64, F32, F64, LANES, E2M1, bits_of, mask_of, bf16_rne


class Vector:
    SELECTED = {"DWORD": (0, 0xFFFFFFFF), "WORD_0": (0, 0xFFFF), "WORD_1": (16, 0xFFFF),
                "BYTE_0": (0, 0xFF), "BYTE_1": (8, 0xFF), "BYTE_2": (16, 0xFF),
                "BYTE_3": (24, 0xFF)}

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
        r = {"gt": x > y, "lt": x < y, "eq": x == y, "ne": x != y, "ge": x >= y, "le": x <= y,
             "lg": (x < y) | (x > y), "neq": ~(x == y), "nlt": ~(x < y), "ngt": ~(x > y),
             "nle": ~(x <= y), "nge": ~(x >= y),
             "nlg": ~((x < y) | (x > y)),
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
            inside = np.where(low >= 32, 0xFFFFFFFF, (1 << np.clip(low, 0, 32)) - 1)
            part = np.where(low <= 0, 0, inside).astype(U64)
            ones = np.array([bin(int(a)).count("1") for a in u(1).astype(U64) & part], U32)
            return self.set(w, o[0], ones + u(2))
        if b == "v_cndmask_b32":
            chosen = mask_of(self.scalar64(w, o[3]) if len(o) > 3 else w.vcc)
            modified = "|" in o[1] + o[2] or o[1].startswith("-v") or o[2].startswith("-v")
            x, y = (f(1).view(U32), f(2).view(U32)) if modified else (u(1), u(2))
            return self.set(w, o[0], np.where(chosen, y, x))
        if b in ("v_add_co_u32", "v_addc_co_u32", "v_sub_co_u32", "v_subb_co_u32",
                 "v_subrev_co_u32", "v_subbrev_co_u32"):
            x, y = u(2).astype(I64), u(3).astype(I64)
            carry = (mask_of(self.scalar64(w, o[4])).astype(I64) if len(o) > 4
                     else np.zeros(LANES, I64))
            r = x + y + carry if "add" in b else y - x - carry if "rev" in b else x - y - carry
            self.set_scalar64(w, o[1], bits_of((r < 0) | (r >> 32 > 0)) & w.exec)
            return self.set(w, o[0], r.astype(U64).astype(U32))
        simple = {
            "v_mov_b32": lambda: u(1), "v_accvgpr_write_b32": lambda: u(1),
            "v_accvgpr_read_b32": lambda: u(1),
            "v_accvgpr_mov_b32": lambda: u(1), "v_not_b32": lambda: ~u(1),
            "v_add_u32": lambda: u(1) + u(2), "v_add_i32": lambda: u(1) + u(2),
            "v_add3_u32": lambda: u(1) + u(2) + u(3),
            "v_sub_u32": lambda: u(1) - u(2), "v_subrev_u32": lambda: u(2) - u(1),
            "v_sub_i32": lambda: u(1) - u(2),
            "v_and_b32": lambda: u(1) & u(2), "v_or_b32": lambda: u(1) | u(2),
            "v_xor_b32": lambda: u(1) ^ u(2),
            "v_or3_b32": lambda: u(1) | u(2) | u(3), "v_and_or_b32": lambda: (u(1) & u(2)) | u(3),
            "v_xad_u32": lambda: (u(1) ^ u(2)) + u(3),
            "v_bfi_b32": lambda: (u(1) & u(2)) | (~u(1) & u(3)),
            "v_lshlrev_b32": lambda: u(2) << by(1), "v_lshrrev_b32": lambda: u(2) >> by(1),
            "v_ashrrev_i32": lambda: (i(2) >> by(1).astype(I32)).view(U32),
            "v_lshl_or_b32": lambda: (u(1) << by(2)) | u(3),
            "v_lshl_add_u32": lambda: (u(1) << by(2)) + u(3),
            "v_add_lshl_u32": lambda: (u(1) + u(2)) << by(3),
            "v_alignbit_b32": lambda: (((u(1).astype(U64) << U64(32)) | u(2))
                                       >> by(3).astype(U64)).astype(U32),
            "v_bfe_u32": lambda: (u(1) >> by(2)) & ((U32(1) << by(3)) - U32(1)),
            "v_mul_lo_u32": lambda: u(1) * u(2),
            "v_mul_hi_u32": lambda: (u(1).astype(U64) * u(2) >> U64(32)).astype(U32),
            "v_mul_u32_u24": lambda: (u(1) & U32(0xFFFFFF)) * (u(2) & U32(0xFFFFFF)),
            "v_mad_u32_u24": lambda: (u(1) & U32(0xFFFFFF)) * (u(2) & U32(0xFFFFFF)) + u(3),
            "v_mul_i32_i24": lambda: ((i(1) << 8 >> 8).astype(I64)
                                      * (i(2) << 8 >> 8)).astype(U64).astype(U32),
            "v_min_u32": lambda: np.minimum(u(1), u(2)),
            "v_max_u32": lambda: np.maximum(u(1), u(2)),
            "v_min_i32": lambda: np.minimum(i(1), i(2)).view(U32),
            "v_max_i32": lambda: np.maximum(i(1), i(2)).view(U32),
            "v_min3_u32": lambda: np.minimum(np.minimum(u(1), u(2)), u(3)),
            "v_max3_u32": lambda: np.maximum(np.maximum(u(1), u(2)), u(3)),
            "v_add_u16": lambda: (u(1) + u(2)) & U32(0xFFFF),
            "v_lshlrev_b16": lambda: (u(2) << (u(1) & U32(15))) & U32(0xFFFF),
            "v_lshrrev_b16": lambda: (u(2) & U32(0xFFFF)) >> (u(1) & U32(15)),
            "v_cvt_u32_f32": lambda: np.clip(np.nan_to_num(f(1).astype(F64), nan=0.0), 0,
                                             4294967295).astype(U32),
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
        if b in ("v_cvt_scalef32_pk_bf16_fp4", "v_cvt_scalef32_sr_pk_fp4_f32"):
            select = self.list_of(m, "op_sel", [0, 0, 0, 0])
            if (f(len(o) - 1) != 1).any():
                raise NotImplementedError(f"{b} of another scale than 1")
            if "pk_bf16" in b:
                pair = E2M1[(u(1) >> U32(8 * (select[0] + 2 * select[1])))[:, None]
                            >> np.array([0, 4], U32) & U32(15)].astype(F32)
                return self.set(w, o[0], bf16_rne(pair[:, 0]) | bf16_rne(pair[:, 1]) << U32(16))
            if any(select):
                raise NotImplementedError(f"{b} {m}")
            codes = [self.stochastic(self.u(w, o[1], k).view(F32), u(2)) for k in range(2)]
            return self.set(w, o[0], u(0) & U32(0xFFFFFF00) | codes[0] | codes[1] << U32(4))
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
            "v_mov_b64": lambda: wide(1),
            "v_lshlrev_b64": lambda: wide(2) << (u(1).astype(U64) & U64(63)),
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
            "v_add_f32": lambda: f(1) + f(2), "v_sub_f32": lambda: f(1) - f(2),
            "v_subrev_f32": lambda: f(2) - f(1),
            "v_mul_f32": lambda: f(1) * f(2), "v_max_f32": lambda: np.fmax(f(1), f(2)),
            "v_min_f32": lambda: np.fmin(f(1), f(2)),
            "v_fma_f32": lambda: self.fused(f(1), f(2), f(3)),
            "v_fmac_f32": lambda: self.fused(f(1), f(2), f(0)),
            "v_cvt_f32_u32": lambda: u(1).astype(F32), "v_cvt_f32_i32": lambda: i(1).astype(F32),
            "v_cvt_f32_f64": lambda: d(1).astype(F32), "v_rcp_iflag_f32": lambda: F32(1) / f(1),
            "v_rcp_f32": lambda: F32(1) / f(1),
            "v_cvt_f32_ubyte0": lambda: (u(1) & U32(255)).astype(F32),
            "v_cvt_f32_f16": lambda: (u(1) & U32(0xFFFF)).astype(np.uint16).view(
                np.float16).astype(F32),
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
    def stochastic(x, seed):
        """E2M1 codes of x by the seed's top 22 bits, as AMD's host reference has it."""
        y = np.minimum(np.abs(x.astype(F64)), 6)
        step = np.where(y < 2, 0.5, np.where(y < 4, 1.0, 2.0))
        first = np.where(y < 2, 0, np.where(y < 4, 4, 6))
        base = np.where(y < 2, 0.0, np.where(y < 4, 2.0, 4.0))
        noise = (seed >> U32(10)).astype(F64) * 2.0**-22
        code = np.minimum(first + np.floor((y - base) / step + noise), 7).astype(U32)
        return code | np.signbit(x).astype(U32) << U32(3)

    @staticmethod
    def fused(a, b, c):
        # The product is exact in binary64; its sum is rounded to odd, which the second rounding
        # needs.
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
        low = self.list_of(m, "op_sel", [0] * count)
        high = self.list_of(m, "op_sel_hi", [1] * count)
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
            results.append(self.fused(*x) if "fma" in b else x[0] + x[1] if "add" in b
                           else x[0] * x[1])
        for k in range(2):
            self.set(w, o[0], results[k].astype(F32).view(U32), k)

    def wide_matrix(self, w, b, o, m):
        """16 x 16 x 32 of bf16 or f16: all of K summed exactly, then one rounding."""
        if m:
            raise NotImplementedError(f"{b} {m}")

        def operand(k):
            halves = np.stack([self.u(w, o[k], q) for q in range(4)], 1).copy().view(np.uint16)
            values = ((halves.astype(U32) << U32(16)).view(F32) if b.endswith("bf16")
                      else halves.view(np.float16)).astype(F64)
            out = np.empty((16, 32))
            for lane in range(LANES):
                out[lane % 16, lane // 16 * 8:lane // 16 * 8 + 8] = values[lane]
            return out

        products = operand(1) @ operand(2).T
        lanes = np.arange(LANES)
        kind, first, _ = self.register(o[0])
        sums = [(self.u(w, o[3], q).view(F32) if self.register(o[3]) else np.zeros(LANES, F32))
                for q in range(4)]
        for q in range(4):
            number = first + q + (256 if kind == "a" else 0)
            self.check_ready(w, number)
            exact = sums[q].astype(F64) + products[4 * (lanes // 16) + q, lanes % 16]
            w.v[number] = exact.astype(F32).view(U32)

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
        rows = [4 * (lanes // 16) + q if size == 16
                else 8 * (q // 4) + 4 * (lanes // 32) + q % 4 for q in range(count)]
        total = np.zeros((size, size), F32)
        for q in range(count):
            total[rows[q], lanes % size] = (self.u(w, o[3], q).view(F32) if self.register(o[3])
                                            else F32(0))
        for block in range(depth // 32):
            products = a[block] @ c[block].T * np.outer(a_scale[block], c_scale[block])
            total = (total.astype(F64) + products).astype(F32)
        kind, first, _ = self.register(o[0])
        for q in range(count):
            number = first + q + (256 if kind == "a" else 0)
            self.check_ready(w, number)
            w.v[number] = total[rows[q], lanes % size].view(U32)
