"""What a run of gfx950 code works on: device memory and the registers of a wave."""

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
    raw = np.array([bits & (2**64 - 1)], U64).view(np.uint8)
    return np.unpackbits(raw, bitorder="little").astype(bool)


def bf16_rne(x):
    u = np.asarray(x, F32).view(U32)
    rounded = (u + U32(0x7FFF) + ((u >> U32(16)) & U32(1))) >> U32(16)
    return np.where(np.isnan(x), U32(0x7FC0), rounded).astype(U32)


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
        # In flight: (registers, LDS bytes), oldest first.
        self.vector_loads, self.lds_loads = [], []
        self.first_thread = first_thread
