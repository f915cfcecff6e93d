"""Text to train on: a file, a folder, or the sources of Python's own library."""

import hashlib
import pathlib
import sysconfig

import torch

_MOST = 32 << 20


def gather(source):
    """(bytes, a name): of the default, every .py file of the standard library by its path's
    order."""
    if source:
        path = pathlib.Path(source)
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        name = path.name
    else:
        root = pathlib.Path(sysconfig.get_paths()["stdlib"])
        files = sorted(p for p in root.rglob("*.py")
                       if not {"site-packages", "dist-packages"} & set(p.parts))
        name = f"Python {sysconfig.get_python_version()} standard library"
    text = bytearray()
    for file in files:
        text += file.read_bytes()
        if len(text) >= _MOST:
            break
    return bytes(text[:_MOST]), name


class Data:
    """Batches that depend on the seed and step alone. The last twentieth is for validation."""

    def __init__(self, source, shape, device, encode=None):
        """encode: what makes tokens of the bytes (default: each byte is one)."""
        text, self.name = gather(source)
        self.digest = hashlib.sha256(text).hexdigest()
        self.size = len(text)
        whole = encode(text) if encode else torch.frombuffer(bytearray(text), dtype=torch.uint8)
        if len(whole) < 40 * (shape.context + 1):
            raise ValueError(f"{len(whole)} tokens of data: at least {40 * (shape.context + 1)} "
                             "are needed")
        whole = whole.to(device)
        split = len(whole) * 19 // 20
        self.train, self.held_out = whole[:split], whole[split:]
        self.shape, self.device = shape, device

    def _cut(self, part, starts):
        at = starts.to(self.device)[:, None] + torch.arange(self.shape.context + 1,
                                                            device=self.device)
        tokens = part[at].long()
        return tokens[:, :-1], tokens[:, 1:]

    def batch(self, seed, step):
        generator = torch.Generator().manual_seed((seed << 32) + step)
        return self._cut(self.train, torch.randint(
            len(self.train) - self.shape.context - 1, (self.shape.batch,), generator=generator))

    def validation(self):
        """Up to 16 batches, side by side from the start of what was held out."""
        length = self.shape.context + 1
        count = min(len(self.held_out) // length, 16 * self.shape.batch)
        starts = torch.arange(count) * length
        for first in range(0, count, self.shape.batch):
            yield self._cut(self.held_out, starts[first:first + self.shape.batch])
