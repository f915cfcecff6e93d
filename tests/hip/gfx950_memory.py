"""Instructions of gfx950 on LDS and device memory.

What a load, or a copy into LDS, brings is poison until a wait that covers it: loads return in
order, so `s_waitcnt vmcnt(n)` completes all but the last n of a wave.
"""

import re

import numpy as np

from gfx950_state import U32, I64, LANES, Fault, mask_of


class MemoryAccess:

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
        single = re.match(
            r"ds_(read|write)_(?:([ui])(8|16)|b(8|16|32|64|96|128))(_d16|_d16_hi)?$", b)
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
                        raise Fault(f"LDS byte {at.start} is read before the copy of it was "
                                    "waited for")
                    raw[lane, :size] = self.lds[at]
                values = raw.view(U32)
                if single and single.group(2) == "i":
                    raise NotImplementedError(b)
                for word in range(words):
                    self.set(w, o[0], values[:, word], k * words + word)
            else:
                data = o[1 + k]
                raw = np.stack([self.u(w, data, word) for word in range(words)], 1)
                raw = raw.copy().view(np.uint8)
                for lane in self.lanes_of(w):
                    at = self.lds_at((address[lane] + offset) & 0xFFFFFFFF, size)
                    self.lds[at] = raw[lane, :size]
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
        sizes = {"ubyte": 1, "byte": 1, "ushort": 2, "short": 2, "dword": 4, "dwordx2": 8,
                 "dwordx3": 12, "dwordx4": 16}
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
            raw = np.stack([self.u(w, o[1], k) for k in range(max(1, size // 4))], 1)
            raw = raw.copy().view(np.uint8)
            for lane in self.lanes_of(w):
                self.memory.read(places[lane], size)[:] = raw[lane, :size]
            w.vector_loads.append((set(), None))
            return
        raise NotImplementedError(f"{b} {o} {m}")
