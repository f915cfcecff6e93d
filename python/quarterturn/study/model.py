"""A byte-level transformer: RMSNorm, rotary positions, SwiGLU, an output layer of its own."""

import dataclasses
import importlib
import math
import pathlib

import torch
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    inner: int
    context: int
    batch: int  # sequences a step
    rate: float


SHAPES = {"small": Shape(6, 512, 8, 1408, 512, 64, 1e-3),
          "tiny": Shape(2, 64, 2, 128, 64, 4, 3e-3)}


class Attention(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.qkv = torch.nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = torch.nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x, turns):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, -1))
        q, k = turn(q, turns), turn(k, turns)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def turn(x, turns):
    cosine, sine = (part[:x.shape[2]].to(x.dtype) for part in turns)
    low, high = x.chunk(2, -1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)


class Mlp(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_up = torch.nn.Linear(shape.width, 2 * shape.inner, bias=False)
        self.down = torch.nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * up)


class Block(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.RMSNorm(shape.width) for _ in range(2))
        self.attention, self.mlp = Attention(shape), Mlp(shape)

    def forward(self, x, turns):
        x = x + self.attention(self.norm1(x), turns)
        return x + self.mlp(self.norm2(x))


class Transformer(torch.nn.Module):
    """Bytes [batch, length] to logits [batch, length, 256]."""

    def __init__(self, shape):
        super().__init__()
        self.embed = torch.nn.Embedding(256, shape.width)
        self.blocks = torch.nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = torch.nn.RMSNorm(shape.width)
        self.lm_head = torch.nn.Linear(shape.width, 256, bias=False)
        half = shape.width // shape.heads // 2
        angle = torch.arange(shape.context)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("attention.out.weight", "mlp.down.weight"))
                torch.nn.init.normal_(p, std=0.02 / (math.sqrt(2 * shape.layers) if last else 1))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, (self.cosine, self.sine))
        return self.lm_head(self.norm(x))


def _is_folder(name):
    return name not in SHAPES and pathlib.Path(name).is_dir()


def shape_of(name, batch=None, context=None, rate=None):
    """The Shape of a model, with what is given in place of its own. A Hugging Face folder's starts
    from 8 sequences of 512 tokens and the rate 1e-4; of module:function only batch, context and
    rate mean anything, and are those of "small"."""
    shape = SHAPES.get(name, SHAPES["small"])
    if _is_folder(name):
        from . import hugging_face
        told = hugging_face.config(name)
        width = told.hidden_size
        shape = Shape(told.num_hidden_layers, width, told.num_attention_heads,
                      getattr(told, "intermediate_size", None) or 4 * width,
                      min(512, told.max_position_embeddings), 8, 1e-4)
    given = {"batch": batch, "context": context, "rate": rate}
    return dataclasses.replace(shape, **{key: value for key, value in given.items() if value})


def make(name, shape):
    """"small", "tiny", module:function, which gives a module from tokens to logits, or a Hugging
    Face folder."""
    if name in SHAPES:
        return Transformer(shape)
    if _is_folder(name):
        from . import hugging_face
        return hugging_face.model(name)
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"--model {name}: {', '.join(SHAPES)}, module:function, or a folder that "
                         "is there")
    return getattr(importlib.import_module(module), function)()


def encoder(name):
    """What makes tokens of text, where a model does not take bytes; else None."""
    if not _is_folder(name):
        return None
    from . import hugging_face
    return lambda text: hugging_face.tokens(name, text)


def logits(model, tokens):
    """Of tokens [batch, length]: [batch, length, words]."""
    out = model(tokens)
    return getattr(out, "logits", out)
