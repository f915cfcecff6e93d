"""Where a training step's time goes on a GPU: python -m quarterturn.study.shares --out DIR.

Each arm's step is profiled: time of kernels by what they are for (the product of each role,
rounding, everything else), beside bf16's step as it is and under torch.compile. What the rotation
and the noise cost is told by the same step without them. Times are of kernels alone; `ms` is the
step's wall clock.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import sys
import time

PARTS = ("fprop", "dgrad", "wgrad", "quantise", "other")
_PRODUCT = re.compile(r"quarterturn_\w*?(fprop|dgrad|wgrad)")


def part_of(kernel):
    """Of a kernel's name, which tells family and role."""
    if kernel.startswith("quarterturn_quantize") or "quarterturn_pack" in kernel:
        return "quantise"
    found = _PRODUCT.search(kernel)
    if found:
        return found.group(1)
    return "quantise" if kernel.startswith("quarterturn_") else "other"


def _plain(recipe, **members):
    """The recipe with other products: members of those that are in MXFP4."""
    def changed(product):
        if not product.quantized:
            return product
        operands = {name: dataclasses.replace(getattr(product, name), **members.get("operand", {}))
                    for name in ("a", "b")}
        return dataclasses.replace(product, **members.get("product", {}), **operands)
    return dataclasses.replace(recipe, **{role: changed(getattr(recipe, role))
                                          for role in ("fprop", "dgrad", "wgrad")})


def without_rotation(recipe):
    return _plain(recipe, product={"rotation": 0, "signs": "none"})


def without_noise(recipe):
    return _plain(recipe, operand={"rounding": "rne"})


class Step:
    """A model and optimizer under one recipe; called with a batch it trains a step."""

    def __init__(self, given, shape, recipe, compiled):
        import torch
        from .. import nn
        from . import model as models
        torch.manual_seed(0)
        self.model = models.make(given.model, shape).to("cuda")
        self.noise = nn.convert(self.model, recipe)
        nn.prepare(self.model, shape.batch * shape.context)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.run, self.count = torch.compile(self.model) if compiled else self.model, 0

    def __call__(self, batch):
        from .train import loss_of
        self.noise.set(step=self.count)
        self.count += 1
        loss_of(self.run, batch, "cuda").backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def wall_clock(step, batch, steps):
    """Milliseconds a step."""
    import torch
    for _ in range(5):
        step(batch)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step(batch)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / steps


def kernel_times(step, batch, steps):
    """Milliseconds a step by part, and of the wall clock."""
    import torch
    out = dict.fromkeys(PARTS, 0.0)
    out["ms"] = wall_clock(step, batch, steps)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step(batch)
        torch.cuda.synchronize()
    for event in profile.key_averages():
        spent = getattr(event, "self_device_time_total", 0)
        if spent > 0:
            out[part_of(event.key)] += 1e-3 * spent / steps
    return out


def measured(given, shape, batch, say):
    """Rows so far, after each arm."""
    import torch
    from . import arms
    rows = []

    def add(name, recipe, compiled=False):
        say(name)
        rows.append({"arm": name, **kernel_times(Step(given, shape, recipe, compiled), batch,
                                                 given.steps)})

    chosen = arms.chosen(given.arms)
    bf16 = arms.chosen("bf16")["bf16"]
    add("bf16, compiled", bf16, True)
    for name, recipe in chosen.items():
        if name == arms.CONTROL:
            continue
        add(name, recipe)
        if name == "bf16":
            yield rows
            continue
        row = rows[-1]
        if given.compiled:
            torch._dynamo.reset()
            row["compiled"] = wall_clock(Step(given, shape, recipe, True), batch, given.steps)
        products = [getattr(recipe, role) for role in ("fprop", "dgrad", "wgrad")]
        for what, change, wanted in (
                ("rotation", without_rotation, any(p.quantized and p.rotation for p in products)),
                ("noise", without_noise, any(p.quantized and (p.a.draws or p.b.draws)
                                             for p in products))):
            if wanted:
                plain = kernel_times(Step(given, shape, change(recipe), False), batch, given.steps)
                row[what] = row["quantise"] - plain["quantise"]
        yield rows


def markdown(facts, rows):
    base = rows[0]["ms"]
    head = ("arm", "ms a step", "of bf16 compiled", *(f"{part} ms" for part in PARTS), "of "
            "quantise: rotation ms", "noise ms", "ms a step, compiled")
    lines = ["# Where a step's time goes", "", facts, "", "| " + " | ".join(head) + " |",
             "|" + "---|" * len(head)]
    for row in rows:
        cells = [row["arm"], f"{row['ms']:.2f}", f"{row['ms'] / base:.2f}",
                 *(f"{row[part]:.2f}" for part in PARTS),
                 *("" if row.get(name) is None else f"{row[name]:.2f}"
                   for name in ("rotation", "noise", "compiled"))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m quarterturn.study.shares")
    add = parser.add_argument
    add("--out", type=pathlib.Path, required=True, help="folder of shares.json and shares.md")
    add("--arms", default="all", help="as the study takes them")
    add("--model", default="small", help="small, tiny, or module:function")
    add("--data", help="a file or folder of bytes (default: the sources of Python's library)")
    add("--width", type=int, help="of the model, instead of its own; inner grows with it")
    add("--steps", type=int, default=10)
    add("--compiled", action="store_true", help="time compiled steps of every arm, too")
    given = parser.parse_args(argv)
    import torch
    from .. import version
    from . import data, model
    if not torch.cuda.is_available():
        print("shares: kernels are profiled on a GPU, and there is none", file=sys.stderr)
        return 1
    shape = model.shape_of(given.model)
    if given.width:
        inner = shape.inner * given.width // shape.width // 128 * 128
        shape = dataclasses.replace(shape, inner=inner,
                                    heads=given.width // 64, width=given.width)
    text = data.Data(given.data, shape, "cuda", model.encoder(given.model))
    facts = (f"{given.model} {dataclasses.asdict(shape)}, {given.steps} steps each; "
             f"{torch.cuda.get_device_name(0)}; quarterturn {version()}, torch {torch.__version__}")
    given.out.mkdir(parents=True, exist_ok=True)
    for rows in measured(given, shape, text.batch(0, 0),
                         lambda line: print(line, file=sys.stderr)):
        (given.out / "shares.json").write_text(json.dumps({"facts": facts, "rows": rows}))
        (given.out / "shares.md").write_text(markdown(facts, rows))
    print(markdown(facts, rows))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    sys.exit(main())
