"""Runs a gfx950 code object on the CPU, by the text that llvm-objdump-22 prints of it.

A test tool that gates nothing: what the simulated machine cannot see, this can, because it executes
what the compiler made: registers, masks, instruction selectors and wait counts. An instruction that
it does not know ends the run.

    Program(object, entry).launch(memory, grid, block, kernarg, lds_bytes)
"""

import re
import subprocess

import numpy as np

from gfx950_memory import MemoryAccess
from gfx950_operands import Operands
from gfx950_scalar import Scalar
from gfx950_state import U32, LANES, Fault, Wave
from gfx950_vector import Vector


class Program(Operands, Scalar, Vector, MemoryAccess):
    def __init__(self, path, entry):
        text = subprocess.run(
            ["llvm-objdump-22", "-d", "--mcpu=gfx950", path], capture_output=True, text=True,
            check=True).stdout
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
            self.code.append((address, address + 4 * len(words), int(words[0], 16) & 0xFFFF,
                              *self.parse(body.strip())))
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
            r"\b(op_sel|op_sel_hi|neg_lo|neg_hi|offset|cbsz|blgp|bitop3|offset0|offset1|dst_sel|"
            r"src0_sel|src1_sel|dst_unused|quad_perm|row_mask|bank_mask|vmcnt|lgkmcnt|expcnt|mul|"
            r"div|row_shl|row_shr|row_ror|row_bcast|"
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
        if b.startswith("v_mfma_f32_16x16x32_"):
            return self.wide_matrix(w, b, o, m)
        if b.startswith("v_"):
            return self.execute_vector(w, b, o, m)
        if b.startswith("ds_"):
            return self.execute_lds(w, b, o, m)
        if b.startswith("global_"):
            return self.execute_global(w, b, o, m)
        raise NotImplementedError(f"{b} {o} {m}")

    # ---- launches

    def launch(self, memory, grid, block, kernarg, lds_bytes, scalars):
        """Runs all blocks, one after another. `scalars` gives the wave's first scalar registers,
        from the kernel argument's address and the block's place."""
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
