"""What quantisation does to real tensors: python -m quarterturn.study.tensors --out DIR.

Trains a small model in bf16 and, at several steps, takes the inputs, weights and output gradients
of its linear layers as the three products contract them. Of each, under every rotation, sign
source, scale rule and rounding: the relative error of the values, its part that rounding draws
(variance) and its part that stays (bias), by how much values shrink, and how many rows fit the
windows of the int8 and E5M2 families.

Values x (rotated), quantised q in D draws: error = mean |q - x|^2 / |x|^2; variance = mean |q -
mean q|^2 / |x|^2 * D / (D - 1); bias = error - variance; shrink = 1 - <mean q, x> / |x|^2. With RNE
there is one draw and no variance.
"""

import argparse
import dataclasses
import html
import itertools
import json
import math
import os
import pathlib
import sys

KINDS = ("fprop X", "fprop W", "dgrad dY", "dgrad W^T", "wgrad X^T", "wgrad dY^T")
ROTATIONS = ((0, "none"), (16, "none"), (32, "none"), (64, "none"), (128, "none"), (256, "none"),
             (16, "per_call"), (32, "per_call"), (64, "per_call"), (128, "per_call"),
             (256, "per_call"))
RULES = ("floor", "even", "rceil", "ceil", "ts34", "quest", "search")
UNBIASED = ("rceil", "ceil", "ts34")  # rules that stochastic rounding goes with
INT8_BINADES, E5M2_BINADES = 4, 28    # of scales in a row, the largest among them
MEASURES = ("error", "variance", "bias", "shrink")


@dataclasses.dataclass(frozen=True)
class Form:
    rotation: int
    signs: str
    rule: str
    rounding: str

    @property
    def name(self):
        turned = f"H{self.rotation}" if self.rotation else "none"
        random = " random" if self.signs == "per_call" else ""
        return f"{turned}{random} {self.rule} {self.rounding}"


def forms():
    for (rotation, signs), rule in itertools.product(ROTATIONS, RULES):
        yield Form(rotation, signs, rule, "rne")
        if rule in UNBIASED:
            yield Form(rotation, signs, rule, "sr16")


def rotated(x, rotation, signs):
    """What is quantised, in binary64: the contract's rotation behind its signs."""
    import torch
    if rotation == 0:
        return x.double()
    y = x.double()
    if signs == "per_call":
        y = y * _signs(rotation, x.device)[None].repeat(1, x.shape[1] // rotation)
    h = torch.ones(1, 1, dtype=torch.float64, device=x.device)
    while len(h) < rotation:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (y.reshape(-1, rotation) @ (h / math.sqrt(rotation))).reshape(x.shape)


_SIGNS = {}


def _noise(draw=0):
    """Another draw rounds by other noise; its signs are the same."""
    from .. import torch_ops
    return torch_ops.noise(seed=1 + draw, sign_seed=2)


def _signs(rotation, device):
    """The signs that the library draws for `_noise`, read off it: the transform of a unit vector
    e_j is row j of H times sign j, whose first element tells the sign."""
    import torch
    from .. import torch_ops
    if rotation not in _SIGNS:
        unit = torch.eye(rotation, device=device)
        codes, scales = torch_ops.quantize(unit, _noise(), rotation=rotation, signs="per_call")
        _SIGNS[rotation] = torch_ops.dequantize(codes, scales)[:, 0].sign().double()
    return _SIGNS[rotation].to(device)


def measure(x, form, draws):
    """The measures of one form on x [rows, k]; None where the rotation does not divide k."""
    import torch
    k = x.shape[1]
    if k % max(32, form.rotation):
        return None
    wanted = rotated(x, form.rotation, form.signs)
    size = wanted.square().sum().item() or 1.0
    count = draws if form.rounding != "rne" else 1
    total, mean = 0.0, torch.zeros_like(wanted)
    parts = []
    for draw in range(count):
        q, _ = quantised(x, form, draw, k)
        total += (q - wanted).square().sum().item()
        mean += q / count
        parts.append(q)
    variance = 0.0
    if count > 1:
        variance = sum((q - mean).square().sum().item() for q in parts) / (count - 1)
    error = total / count
    return {"error": error / size, "variance": variance / size,
            "bias": max(0.0, error - variance) / size,
            "shrink": 1.0 - (mean * wanted).sum().item() / size}


def quantised(x, form, draw, k):
    """Values and scales of one draw, along the rotated axis, without what TS34 scales by."""
    from .. import torch_ops
    codes, scales = torch_ops.quantize(x, _noise(draw), rotation=form.rotation,
                                       rounding=form.rounding, scale_rule=form.rule,
                                       signs=form.signs)
    # Decoded as it lies: nothing is rotated back.
    q = torch_ops.dequantize(codes, scales)[:, :k].double()
    return (q * (4.0 / 3.0) if form.rule == "ts34" else q), scales


def windows(x, rotation, signs):
    """Shares of rows whose scales (RCEIL) lie inside the int8 and the E5M2 window."""
    k = x.shape[1]
    if k % max(32, rotation):
        return None
    _, scales = quantised(x, Form(rotation, signs, "rceil", "rne"), 0, k)
    scales = scales[:, :k // 32].int()
    used = scales > 0  # blocks of zeros count in no window
    top = scales.max(1).values
    low = scales.masked_fill(~used, 255).min(1).values
    span = (top - low).clamp(min=0)
    return {"int8": (span < INT8_BINADES).double().mean().item(),
            "e5m2": (span < E5M2_BINADES).double().mean().item()}


# ---- where the tensors come from ----

def captured(model, batch, device, rows, most_tokens):
    """(layer, kind, matrix) of every linear layer but the last, of one batch."""
    import torch
    from .train import loss_of
    inputs, gradients, hooks = {}, {}, []
    layers = {name: m for name, m in model.named_modules()
              if isinstance(m, torch.nn.Linear) and "head" not in name}
    for name, layer in layers.items():
        hooks.append(layer.register_forward_pre_hook(
            lambda _, given, name=name: inputs.__setitem__(name, given[0].detach())))
        hooks.append(layer.register_full_backward_hook(
            lambda _, __, given, name=name: gradients.__setitem__(name, given[0].detach())))
    loss_of(model, batch, device).backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad()
    for name, layer in layers.items():
        x = inputs[name].flatten(0, -2).float()
        dy = gradients[name].flatten(0, -2).float()
        # Gradients of a mean over many tokens are small; a power of two changes no code.
        dy = dy * 2.0 ** -math.floor(math.log2(dy.abs().max().item() or 1.0))
        w = layer.weight.detach().float()
        tokens = min(x.shape[0], most_tokens) // 256 * 256
        for kind, matrix in zip(KINDS, (x[:rows], w, dy[:rows], w.t(), x[:tokens].t(),
                                        dy[:tokens].t())):
            yield name, kind, matrix[:rows].contiguous()


def trained(given, shape, text):
    """(step, model) at each of the steps asked for."""
    import torch
    from . import model as models
    from .train import loss_of, rate_at
    torch.manual_seed(given.seed)
    model = models.make(given.model, shape).to(given.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape.rate, betas=(0.9, 0.95),
                                  weight_decay=0.1)
    wanted = sorted(set(given.steps))
    for step in range(wanted[-1] + 1):
        if step in wanted:
            yield step, model
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, wanted[-1] + 1, shape.rate)
        loss_of(model, text.batch(given.seed, step), given.device).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def prepare(model, batch, given):
    """Compiles what all forms need, side by side."""
    import concurrent.futures
    import torch
    shapes = {(x.shape, x.device) for _, _, x in captured(model, batch, given.device, given.rows,
                                                          given.tokens)}

    def one(job):
        (shape, device), form = job
        if shape[1] % max(32, form.rotation) == 0:
            quantised(torch.zeros(shape, device=device), form, 0, shape[1])

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        list(pool.map(one, itertools.product(shapes, forms())))


def study(given, shape, text, say):
    """Rows {step, kind, form or window, mean over layers, worst}."""
    means, fits = {}, {}
    for step, model in trained(given, shape, text):
        if not means and given.jit == "on":
            prepare(model, text.batch(given.seed, 0), given)
        for name, kind, x in captured(model, text.batch(given.seed, 10 ** 6 + step), given.device,
                                      given.rows, given.tokens):
            say(f"step {step}: {name} {kind} {tuple(x.shape)}")
            for form in forms():
                if (got := measure(x, form, given.draws)) is not None:
                    means.setdefault((step, kind, form), []).append(got)
            for rotation, signs in ROTATIONS:
                if (got := windows(x, rotation, signs)) is not None:
                    fits.setdefault((step, kind, rotation, signs), []).append(got)
    errors = [{"step": step, "kind": kind, **dataclasses.asdict(form), "name": form.name,
               **{m: sum(row[m] for row in rows) / len(rows) for m in MEASURES},
               "worst": max(row["error"] for row in rows), "layers": len(rows)}
              for (step, kind, form), rows in means.items()]
    inside = [{"step": step, "kind": kind, "rotation": rotation, "signs": signs,
               **{w: sum(row[w] for row in rows) / len(rows) for w in ("int8", "e5m2")}}
              for (step, kind, rotation, signs), rows in fits.items()]
    return errors, inside


# ---- the report ----

def _turn(rotation, signs):
    return "none" if rotation == 0 else f"H{rotation}" + (" random" if signs == "per_call" else "")


def _of(rows, **wanted):
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _mean(rows, name):
    return sum(row[name] for row in rows) / len(rows) if rows else None


def _cell(value, form):
    return "" if value is None else format(value, form)


def tables(errors, inside):
    """[(title, head, rows)]: means over steps and layers."""
    out = []
    for rounding in ("rne", "sr16"):
        out.append((f"Relative error, RCEIL, {rounding}", ("rotation", *KINDS),
                    [(_turn(g, s), *(_cell(_mean(_of(errors, kind=kind, rotation=g, signs=s,
                                                     rule="rceil", rounding=rounding), "error"),
                                           ".5f") for kind in KINDS)) for g, s in ROTATIONS]))
    for measure_, rounding, title in (("error", "rne", "Relative error"),
                                      ("shrink", "rne", "Shrink"),
                                      ("bias", "sr16", "Bias")):
        for g, s in ((0, "none"), (32, "per_call")):
            rules = RULES if rounding == "rne" else UNBIASED
            out.append((f"{title}, {_turn(g, s)}, {rounding}, by scale rule", ("rule", *KINDS),
                        [(rule, *(_cell(_mean(_of(errors, kind=kind, rotation=g, signs=s, rule=rule,
                                                  rounding=rounding), measure_), ".5f")
                                  for kind in KINDS)) for rule in rules]))
    for window in ("int8", "e5m2"):
        out.append((f"Rows inside the {window} window, RCEIL", ("rotation", *KINDS),
                    [(_turn(g, s), *(_cell(_mean(_of(inside, kind=kind, rotation=g, signs=s),
                                                 window), ".4f") for kind in KINDS))
                     for g, s in ROTATIONS]))
    return out


def _plot(errors, rounding):
    from .report import Plot, _COLORS
    points = {kind: [_mean(_of(errors, kind=kind, rotation=g, signs=s, rule="rceil",
                               rounding=rounding), "error") for g, s in ROTATIONS]
              for kind in KINDS}
    values = [v for line in points.values() for v in line if v is not None]
    plot = Plot(f"Relative error by rotation (1 none, 2-6 H16-H256, 7-11 the same with random "
                f"signs), RCEIL, {rounding}", (0, len(ROTATIONS) + 1), (0, 1.05 * max(values)),
                "rotation", "relative")
    for i, (kind, line) in enumerate(points.items()):
        for place, value in enumerate(line, 1):
            if value is not None:
                plot.dot(place + 0.08 * (i - 2.5), value, _COLORS[i],
                         f"{kind}, {_turn(*ROTATIONS[place - 1])}: {value:.5f}")
    key = "".join(f"<span class=k style='background:{_COLORS[i]}'></span>{html.escape(kind)} "
                  for i, kind in enumerate(KINDS))
    return f"<p>{key}</p>{plot.svg()}"


def page(facts, errors, inside):
    from .report import _STYLE
    body = "".join(
        f"<h2>{html.escape(title)}</h2><table><tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>"
        + "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        + "</table>" for title, head, rows in tables(errors, inside))
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>MXFP4 on real tensors</title>"
            f"<style>{_STYLE}</style><h1>MXFP4 on real tensors</h1><p>{html.escape(facts)}</p>"
            f"{_plot(errors, 'rne')}{_plot(errors, 'sr16')}{body}</html>\n")


def markdown(facts, errors, inside):
    lines = ["# MXFP4 on real tensors", "", facts, ""]
    for title, head, rows in tables(errors, inside):
        lines += [f"## {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    return "\n".join(lines)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m quarterturn.study.tensors")
    add = parser.add_argument
    add("--out", type=pathlib.Path, required=True, help="folder of tensors.json, .md and .html")
    add("--model", default="small", help="small, tiny, or module:function")
    add("--data", help="a file or folder of bytes (default: the sources of Python's library)")
    add("--steps", default="20,100,200", type=lambda text: [int(s) for s in text.split(",")],
        help="of training, at which tensors are taken")
    add("--rows", type=int, default=512, help="rows of each tensor at most")
    add("--tokens", type=int, default=4096, help="that Wgrad's operands contract at most")
    add("--draws", type=int, default=8, help="of stochastic rounding")
    add("--seed", type=int, default=0)
    add("--device", help="cpu or cuda (default: cuda if there is one)")
    add("--jit", choices=("on", "off"), default="on", help="off: no compiler is started")
    given = parser.parse_args(argv)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    from .. import torch_ops, version
    from . import data, model
    from .train import device_name
    given.device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch_ops.configure(given.device, jit=given.jit)
    shape = model.shape_of(given.model)
    text = data.Data(given.data, shape, given.device, model.encoder(given.model))
    errors, inside = study(given, shape, text, lambda line: print(line, file=sys.stderr))
    facts = (f"{given.model} {dataclasses.asdict(shape)}, tensors at steps "
             f"{', '.join(map(str, given.steps))} of bf16 training, up to {given.rows} rows and "
             f"{given.tokens} tokens each, {given.draws} draws; data: {text.name}, {text.size} "
             f"bytes, sha256 {text.digest[:16]}; "
             f"{device_name(given.device)}; quarterturn {version()}, torch {torch.__version__}")
    given.out.mkdir(parents=True, exist_ok=True)
    for name, told in (("tensors.json", json.dumps({"facts": facts, "errors": errors,
                                                    "inside": inside})),
                       ("tensors.md", markdown(facts, errors, inside)),
                       ("tensors.html", page(facts, errors, inside))):
        (given.out / name).write_text(told, encoding="utf-8")
    print(f"{given.out}/tensors.md, tensors.html, tensors.json: {len(errors)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
