"""Compiles gfx950 kernels with clang-22 and runs the code objects in gfx950_interpreter.py.

    tests/hip/run_gfx950.py QTURN

QTURN is the built command, whose `emit` gives the texts. Prints a line for each kernel: wave
instructions, and how many codes or outputs differ from what numpy computes. Exit status 1 where any
does, 77 where a tool is missing.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

from gfx950_interpreter import Program
from gfx950_state import E2M1, Fault, Memory, bf16_rne

FLAGS = ("-x hip --offload-arch=gfx950 --cuda-device-only --no-gpu-bundle-output -nogpulib "
         "-nogpuinc -mcode-object-version=5 -std=c++17 -O3 -ffp-contract=off").split()
NOISE_SEED = 7


def tensor(data=0, scales=0, ld=0, scale_ld=0):
    return struct.pack("<QQqqqq", data, scales, ld, scale_ld, 0, 0)


def arguments(m, n, k, a, b, c, d, bias=0, alpha=1.0, beta=0.0, sign_mask=(0,) * 8):
    """qt_args of templates/args.h, and the block counts that the runtime puts behind it."""
    out = struct.pack("<qqqqqQ", m, n, k, 1, 1, 0) + a + b + c + d + tensor() + tensor() + tensor()
    out += struct.pack("<QQf4xQff", bias, 0, 0.0, 0, alpha, beta)
    out += struct.pack("<QQ8IIIQQqqqQq", NOISE_SEED, 9, *sign_mask, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return out


class Object:
    """A compiled kernel: its object's path, entry, descriptor and static facts."""

    def __init__(self, text, entry, folder):
        self.entry, self.path = entry, os.path.join(folder, entry + ".hsaco")
        source = os.path.join(folder, entry + ".hip")
        with open(source, "w", encoding="utf-8") as out:
            out.write(text)
        subprocess.run(["clang-22", *FLAGS, "-o", self.path, source], check=True)
        with open(self.path, "rb") as code:
            self.descriptor = self.find_descriptor(code.read())
        self.program = Program(self.path, entry)

    def find_descriptor(self, elf):
        section_at, = struct.unpack_from("<Q", elf, 40)
        size, count = struct.unpack_from("<HH", elf, 58)
        sections = [struct.unpack_from("<IIQQQQIIQQ", elf, section_at + size * i)
                    for i in range(count)]
        for kind_section in sections:
            if kind_section[1] != 11:  # SHT_DYNSYM
                continue
            names = sections[kind_section[6]]
            for at in range(kind_section[4], kind_section[4] + kind_section[5], 24):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
                first = names[4] + name
                if elf[first : elf.index(b"\0", first)].decode() != self.entry + ".kd":
                    continue
                for s in sections:
                    if s[1] == 1 and s[3] <= value < s[3] + s[5]:
                        return elf[s[4] + value - s[3] :][:64]
        raise Fault(f"{self.entry} has no descriptor")

    def scalars(self, kernarg, place):
        """What the hardware puts into a wave's first scalar registers."""
        properties, preload = struct.unpack_from("<HH", self.descriptor, 56)
        second, = struct.unpack_from("<I", self.descriptor, 52)
        if preload:
            raise NotImplementedError("preloaded kernel arguments")
        values, at = {}, 0
        for bit, words in enumerate((4, 2, 2, 2, 2, 2, 1)):
            if not properties >> bit & 1:
                continue
            if bit == 3:
                values[at], values[at + 1] = kernarg & 0xFFFFFFFF, kernarg >> 32
            at += words
        at = max(at, second >> 1 & 31)
        for axis in range(3):
            if second >> (7 + axis) & 1:
                values[at] = place[axis]
                at += 1
        return values

    def run(self, memory, grid, block, args, lds_bytes):
        hidden = struct.pack("<IIIHHH", *grid, block, 1, 1)
        begin = time.time()
        count = self.program.launch(memory, grid, block, args + hidden, lds_bytes, self.scalars)
        return count, time.time() - begin


def steps_of(qturn, *words):
    """The flat texts of a problem's steps, by their kind."""
    text = subprocess.run([qturn, "emit", "--flat", "--target", "gfx950", *words],
                          capture_output=True, text=True, check=True).stdout
    parts = text.split("// ==== ")[1:]
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1] for part in parts}


def entry_of(text):
    return text.rsplit("QT_KERNEL(", 1)[1].split(") ", 1)[1].split("(", 1)[0]


def config_of(text, name):
    return int(text.rsplit(f" {name} = ", 1)[1].split(";", 1)[0])


def operand(random, rows, k):
    """Codes and scales in rows of whole stages, so that they come by copies; the last stage may
    not."""
    width = -(-k // 128) * 128
    codes = random.integers(0, 256, (rows, width // 2), dtype=np.uint8)
    return codes, random.integers(122, 130, (rows, width // 32), dtype=np.uint8)


def values_of(codes, scales, k):
    out = np.empty((codes.shape[0], codes.shape[1] * 2))
    out[:, 0::2], out[:, 1::2] = E2M1[codes & 15], E2M1[codes >> 4]
    return (out * np.repeat(np.ldexp(1.0, scales.astype(int) - 127), 32, 1))[:, :k]


def run_product(qturn, folder, random, m, n, k):
    text = steps_of(qturn, "--shape", f"{m}x{n}x{k}")["gemm"]
    kernel = Object(text, entry_of(text), folder)
    (a, a_scales), (b, b_scales) = operand(random, m, k), operand(random, n, k)
    memory = Memory()
    result = np.full((m, n), 0xFFFF, np.uint16)
    place = [memory.allocate(x) for x in (a, a_scales, b, b_scales, result)]
    tile_m, tile_n, stages = (config_of(text, x) for x in ("tile_m", "tile_n", "stages"))
    scales_bytes = sum((rows + 63) // 64 * 256 for rows in (tile_m, tile_n))
    lds = stages * ((tile_m + tile_n) * 64 + scales_bytes)
    width = a.shape[1] * 2
    args = arguments(m, n, k, tensor(place[0], place[1], width, width // 32),
                     tensor(place[2], place[3], width, width // 32), tensor(),
                     tensor(place[4], 0, n, 0))
    grid = (-(-m // tile_m) * -(-n // tile_n), 1, 1)
    count, seconds = kernel.run(memory, grid, 256, args, lds)
    want = bf16_rne((values_of(a, a_scales, k) @ values_of(b, b_scales, k).T).astype(np.float32))
    got = memory.read(place[4], m * n * 2).view(np.uint16).reshape(m, n)
    return kernel, count, seconds, int((got != want).sum()), m * n


def run_weight_only(qturn, folder, random, m, n, k):
    text = steps_of(qturn, "--problem",
                    f"op=gemm role=fprop m=1..{m} n={n} k={k} a_type=bf16 b_type=mxfp4 d_type=bf16")
    text = text[next(iter(text))]
    kernel = Object(text, entry_of(text), folder)
    b, b_scales = operand(random, n, k)
    width = b.shape[1] * 2
    a = random.integers(-16, 17, (m, width)).astype(np.float32) / 8
    memory = Memory()
    place = [memory.allocate(x) for x in (bf16_rne(a).astype(np.uint16), b, b_scales,
                                          np.full((m, n), 0xFFFF, np.uint16))]
    tile_m, tile_n, stages = (config_of(text, x) for x in ("tile_m", "tile_n", "stages"))
    lds = stages * (tile_m * 256 + tile_n * 64 + (tile_n + 63) // 64 * 256)
    args = arguments(m, n, k, tensor(place[0], 0, width, 0),
                     tensor(place[1], place[2], width, width // 32), tensor(),
                     tensor(place[3], 0, n, 0))
    grid = (-(-m // tile_m) * -(-n // tile_n), 1, 1)
    count, seconds = kernel.run(memory, grid, 256, args, lds)
    want = bf16_rne((a[:, :k] @ values_of(b, b_scales, k).T).astype(np.float32))
    got = memory.read(place[3], m * n * 2).view(np.uint16).reshape(m, n)
    return kernel, count, seconds, int((got != want).sum()), m * n


def hadamard(x, g):
    """Stages h = 1, 2, ... in binary32, then one product, as the contract says."""
    y, h = x.reshape(-1, g).astype(np.float32), 1
    while h < g:
        z = y.reshape(y.shape[0], -1, 2, h)
        y = np.stack([z[:, :, 0] + z[:, :, 1], z[:, :, 0] - z[:, :, 1]], 2).reshape(-1, g)
        h *= 2
    return (y * np.float32(1 / np.sqrt(np.float64(g)))).reshape(x.shape)


def philox4x32_7(calls):
    """Words [calls, 4] of NOISE_SEED and of stream and operand 0."""
    c = [calls.astype(np.uint64), *(np.zeros(calls.shape, np.uint64) for _ in range(3))]
    low, key = np.uint64(0xFFFFFFFF), [NOISE_SEED, 0]
    for _ in range(7):
        p = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [p[1] >> np.uint64(32) ^ c[1] ^ np.uint64(key[0]), p[1] & low,
             p[0] >> np.uint64(32) ^ c[3] ^ np.uint64(key[1]), p[0] & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1)


def codes_of(magnitude, rounding):
    """Of magnitudes [m, k] on the grid of codes, without signs."""
    code = np.zeros(magnitude.shape, np.uint8)
    if rounding == "rne":
        for i, tie in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
            code += ((magnitude > tie) | ((magnitude == tie) & (i % 2 == 1))).astype(np.uint8)
        return code
    # sr_cvt_scalef32: a word for two neighbours, whose top 22 bits are added.
    words = philox4x32_7(np.arange(magnitude.size // 8)).reshape(-1)
    noise = np.repeat(words >> np.uint64(10), 2).reshape(magnitude.shape) * 2.0**-22
    for i, (below, above) in enumerate(zip(E2M1[:7], E2M1[1:8])):
        code[magnitude >= below] = i
        code += ((magnitude >= below) & (magnitude < above)
                 & ((magnitude - below) / (above - below) + noise >= 1)).astype(np.uint8)
    return np.where(magnitude >= 6, 7, code).astype(np.uint8)


def run_quantize(qturn, folder, random, m, k, g, rounding="rne"):
    text = steps_of(qturn, "--op", "quantize", "--shape", f"{m}x{k}", "--rotation", str(g),
                    "--rounding", rounding)
    text = text[next(iter(text))]
    kernel = Object(text, entry_of(text), folder)
    x = (random.standard_normal((m, k)) * random.choice([1e-3, 1, 50], (m, 1))).astype(np.float32)
    x16 = bf16_rne(x).astype(np.uint16)
    x = (x16.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(m, k)
    memory = Memory()
    place = [memory.allocate(y) for y in (x16, np.full((m, k // 2), 255, np.uint8),
                                          np.full((m, k // 32), 255, np.uint8))]
    args = arguments(m, 0, k, tensor(place[0], 0, k, 0), tensor(), tensor(),
                     tensor(place[1], place[2], k, k // 32))
    threads = config_of(text, "threads")
    blocks = -(-(256 * k // 32) // (2 * threads))
    count, seconds = kernel.run(memory, (-(-m // 256) * blocks, 1, 1), threads, args, 0)
    y = hadamard(x, g).reshape(m, k // 32, 32)
    largest = np.abs(y).max(2)
    # RCEIL: the least power of two with largest / 2^e <= 6.
    exponent = np.ceil(np.log2(largest.astype(np.float64) / 6)).astype(int)
    magnitude = np.abs(y.astype(np.float64)) / np.ldexp(1.0, exponent)[:, :, None]
    code = codes_of(magnitude.reshape(m, k), rounding)
    code |= np.signbit(y).reshape(m, k).astype(np.uint8) << 3
    codes = memory.read(place[1], m * k // 2).reshape(m, k // 2)
    scales = memory.read(place[2], m * k // 32).reshape(m, k // 32)
    wrong = int((codes != (code[:, 0::2] | code[:, 1::2] << 4)).sum())
    wrong += int((scales != exponent + 127).sum())
    return kernel, count, seconds, wrong, codes.size + scales.size


def main():
    for tool in ("clang-22", "llvm-objdump-22"):
        if not shutil.which(tool):
            print(f"SKIPPED: {tool} is not installed")
            return 77
    qturn, random, failed = sys.argv[1], np.random.default_rng(1), False
    with tempfile.TemporaryDirectory() as folder:
        for run, shape in ((run_quantize, (5, 320, 32)), (run_quantize, (3, 256, 128)),
                           (run_quantize, (5, 320, 32, "sr_cvt_scalef32")),
                           (run_product, (70, 96, 416)), (run_product, (16, 130, 672)),
                           (run_product, (200, 150, 128)), (run_weight_only, (7, 130, 416)),
                           (run_weight_only, (70, 96, 672))):
            kernel, count, seconds, wrong, of = run(qturn, folder, random, *shape)
            print(f"{kernel.entry} {'x'.join(map(str, shape))}: {count} wave instructions in "
                  f"{seconds:.1f} s, {wrong} of {of} differ")
            failed = failed or wrong > 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
