"""Evaluates a checkpoint under a recipe, the same bits every time.

    python -m quarterturn.evaluate models/bf16-0.safetensors --data corpus.txt --recipe te_mxfp4
    python -m quarterturn.evaluate CHECKPOINT --data FILE --compare bf16 te_mxfp4

CHECKPOINT is what `quarterturn.study --keep-models` wrote, a safetensors file of the parameters of
`--model module:function`, or a Hugging Face folder (needs the package transformers). Only Fprop of
a recipe takes part. Every window of the data is a sequence of its own; noise and signs, where the
recipe draws them, depend on --seed and on a token's place, so nothing depends on the clock.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import struct
import sys

from . import formats, recipes


@dataclasses.dataclass
class Subject:
    """What is evaluated: `logits(tokens)` [batch, length, words] of a module, and its data."""
    module: object
    tokens: object  # [windows, length + 1]
    unit: str       # what a token is: "byte", or "token"
    shown: dict     # of the data and model, for the report
    logits: object


@dataclasses.dataclass
class Outcome:
    """Mean losses (nats a token) of every window, the errors of each layer, and what ran."""
    recipe: str
    losses: list
    layers: dict
    left: dict
    kernels: list

    @property
    def loss(self):
        return sum(self.losses) / len(self.losses)

    @property
    def digest(self):
        """SHA-256 of the losses' bits: equal where two evaluations agree in every bit."""
        return hashlib.sha256(struct.pack(f"<{len(self.losses)}d", *self.losses)).hexdigest()


# ---- what is evaluated ----

def study_model(path, model, context):
    """The module of a safetensors file, and the context it was trained with."""
    import numpy as np
    import torch
    from .study import model as models
    file = formats.Safetensors(path)
    told = json.loads(file.metadata.get("quarterturn.study", "{}"))
    name = model or told.get("model")
    if not name:
        raise ValueError(f"{path} does not say what model it is of: give --model module:function")
    shape = models.Shape(**told["shape"]) if "shape" in told else models.shape_of(name)
    module = models.make(name, shape)
    kinds = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}
    missing = [key for key, _ in module.named_parameters() if key not in file.tensors]
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} parameters of {name}: {missing[0]}, ...")
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            kind, stored = file.tensors[key]
            if kind not in kinds or stored != tuple(parameter.shape):
                raise ValueError(f"{path}: '{key}' is {kind} {stored}, the model's is "
                                 f"{tuple(parameter.shape)}")
            array = np.array(file.read(key))
            value = torch.from_numpy(array.view(np.int16) if kind == "BF16" else array)
            parameter.copy_(value.view(torch.bfloat16) if kind == "BF16" else value)
    return module, context or shape.context, name


def _windows(tokens, length, most):
    count = min(len(tokens) // (length + 1), most)
    if count == 0:
        raise ValueError(f"{len(tokens)} tokens of data: at least {length + 1} are needed")
    return tokens[:count * (length + 1)].view(count, length + 1)


def subject(given):
    import torch
    from .study import data, hugging_face
    from .study import model as models
    text, name = data.gather(given.data)
    if given.checkpoint.is_dir():
        module = hugging_face.model(given.checkpoint, torch.bfloat16)
        encode, unit = models.encoder(str(given.checkpoint)), "token"
        context = given.context or min(1024, module.config.max_position_embeddings)
        model = given.checkpoint.name
    else:
        module, context, model = study_model(given.checkpoint, given.model, given.context)
        encode = models.encoder(model)
        unit = "token" if encode else "byte"
    tokens = encode(text) if encode else torch.frombuffer(bytearray(text), dtype=torch.uint8)
    module.to(given.device).eval()
    windows = _windows(tokens, context, given.windows).long().to(given.device)
    shown = {"checkpoint": given.checkpoint.name, "model": model, "data": name,
             "sha256": hashlib.sha256(text).hexdigest(), "windows": len(windows),
             "context": context}
    return Subject(module, windows, unit, shown, lambda tokens: models.logits(module, tokens))


# ---- evaluating ----

class _Sqnr:
    """20 log10 |x| / |x - quantised x| of a weight, or of the inputs that a layer sees in the first
    batch, with the recipe's rotation and without one."""

    def __init__(self, product):
        self.product, self.signal, self.noise = product, 0.0, [0.0, 0.0]

    def add(self, x, operand):
        from . import torch_ops
        size = x.double().square().sum().item()
        self.signal += size
        for i, rotation in enumerate((self.product.rotation, 0)):
            codes, scales = torch_ops.quantize(x, rotation=rotation, scale_rule=operand.scale_rule)
            values = torch_ops.dequantize(codes, scales, rotation=rotation)[:, :x.shape[1]].double()
            if operand.scale_rule == "ts34":
                values = values * (4.0 / 3.0)
            if rotation:
                values = _rotated(values, rotation)
            self.noise[i] += (values - x.double()).square().sum().item()

    def value(self, i):
        if self.noise[i] == 0.0 or self.signal == 0.0:
            return None
        return 10.0 * math.log10(self.signal / self.noise[i])


def _rotated(x, g):
    import torch
    h = torch.ones(1, 1, dtype=x.dtype, device=x.device)
    while len(h) < g:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (x.view(-1, g) @ (h / math.sqrt(g))).view(x.shape)


def _measure(module, product, sums, hooks):
    """Adds to `hooks` what adds to `sums`: of each quantised layer, its weight's and its inputs'
    errors."""
    from . import nn
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        weight, inputs = sums.setdefault(name, (_Sqnr(product), _Sqnr(product)))
        weight.add(layer.weight.detach(), product.b)

        def hook(layer, arguments, inputs=inputs):
            inputs.add(arguments[0].detach().reshape(-1, layer.in_features), product.a)

        hooks.append(layer.register_forward_pre_hook(hook))


def _errors_of_layers(what, product, batch, sums):
    """Fills `sums`; False where a lock file holds what that takes."""
    from . import Error
    hooks = []
    try:
        _measure(what.module, product, sums, hooks)
        what.logits(what.tokens[:batch, :-1])
    except Error as error:
        if error.name != "not_locked":
            raise
        sums.clear()
        return False
    finally:
        for hook in hooks:
            hook.remove()
    return True


@contextlib.contextmanager
def _one_at_a_time(module):
    """Layers in high precision see a sequence a call: a library's product of more rows may add in
    another order."""
    import torch
    changed = [layer for layer in module.modules() if type(layer) is torch.nn.Linear]
    for layer in changed:
        layer.forward = lambda x, layer=layer: torch.cat(
            [torch.nn.functional.linear(part, layer.weight, layer.bias) for part in x.split(1)])
    try:
        yield
    finally:
        for layer in changed:
            del layer.forward


def evaluate(what, recipe, *, batch=8, seed=0, batch_invariant=False, sqnr=True):
    """An Outcome; `what.module` is changed (layers follow the recipe)."""
    import torch
    from . import nn, torch_ops
    recipe = recipes.load(recipe)
    forward = dataclasses.replace(recipe, dgrad=recipes.HIGH, wgrad=recipes.HIGH)
    windows, length = len(what.tokens), what.tokens.shape[1] - 1
    torch_ops.use_reproducibility("batch_invariant" if batch_invariant else "run_to_run")
    torch_ops.use_tokens(1, batch * length)
    noise = nn.convert(what.module, forward, seed=seed)
    device = what.tokens.device.type
    losses, sums = [], {}
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        with _one_at_a_time(what.module) if batch_invariant else contextlib.nullcontext():
            for first in range(0, windows, batch):
                part = what.tokens[first:first + batch]
                noise.set(token0=first * length, tokens=windows * length)
                logits = what.logits(part[:, :-1]).float()
                for row, wanted in zip(logits, part[:, 1:]):
                    losses.append(torch.nn.functional.cross_entropy(row, wanted).item())
        if sqnr and not _errors_of_layers(what, forward.fprop, batch, sums):
            print("evaluate: errors of layers are left out: the lock file does not name the plans "
                  "that measure them", file=sys.stderr)
        ran = torch_ops.kernels()
    layers = {name: {"weight": weight.value(0), "weight_unrotated": weight.value(1),
                     "inputs": inputs.value(0), "inputs_unrotated": inputs.value(1)}
              for name, (weight, inputs) in sums.items()}
    return Outcome(recipe.name, losses, layers, dict(noise.left), ran)


def paired(first, second):
    """Mean difference of the windows' losses, second minus first, and its standard error."""
    differences = [b - a for a, b in zip(first.losses, second.losses)]
    mean = sum(differences) / len(differences)
    if len(differences) < 2:
        return mean, None
    variance = sum((d - mean) ** 2 for d in differences) / (len(differences) - 1)
    return mean, math.sqrt(variance / len(differences))


# ---- the command ----

def parser():
    out = argparse.ArgumentParser(prog="python -m quarterturn.evaluate",
                                  description="Loss, perplexity and errors by layer of a "
                                  "checkpoint under a recipe; two runs agree in every bit.")
    add = out.add_argument
    add("checkpoint", type=pathlib.Path, help="a safetensors file or a Hugging Face folder")
    add("--data", required=True, help="a file or folder: bytes, or text for a tokenizer")
    group = out.add_mutually_exclusive_group(required=True)
    group.add_argument("--recipe", help="a preset or recipe file")
    group.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two of them, paired")
    add("--model", help="module:function, where the file does not say")
    add("--context", type=int, help="tokens of a window (default: the model's)")
    add("--windows", type=int, default=64, help="how many of the data's first (default: 64)")
    add("--batch", type=int, default=8, help="windows a call (default: 8)")
    add("--batch-invariant", action="store_true", help="the same bits whatever --batch is")
    add("--seed", type=int, default=0, help="of noise and signs that the recipe draws")
    add("--device", help="cpu or cuda (default: cuda if there is one)")
    add("--lock", type=pathlib.Path, help="a lock file of `qturn lock`: only its plans run")
    add("--jit", choices=("on", "off"), default="on", help="off: no compiler is started")
    add("--json", action="store_true", help="the report as one JSON object")
    return out


def _told(outcome, unit):
    return {"recipe": outcome.recipe, "loss": outcome.loss, "perplexity": math.exp(outcome.loss),
            f"bits_per_{unit}": outcome.loss / math.log(2.0), "digest": outcome.digest,
            "layers": outcome.layers, "left": outcome.left, "kernels": outcome.kernels}


def _print(outcome, unit):
    print(f"{outcome.recipe}: loss {outcome.loss:.6f} nats a {unit}, perplexity "
          f"{math.exp(outcome.loss):.4f}, bits {outcome.digest[:16]}")
    if outcome.layers:
        width = max(map(len, outcome.layers))
        print(f"{'SQNR in dB':{width}}  weight  unrotated  inputs  unrotated")
        for name, row in outcome.layers.items():
            cells = ("" if value is None else f"{value:.2f}" for value in row.values())
            print("{:{}}  {:>6}  {:>9}  {:>6}  {:>9}".format(name, width, *cells))
    for row in outcome.kernels:
        print(f"ran {row['plan']} ({row['match']}) for {row['problem']}")


def main(argv=None):
    given = parser().parse_args(argv)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    from . import Error, torch_ops
    torch.use_deterministic_algorithms(True, warn_only=True)
    given.device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        options = {"jit": given.jit}
        if given.lock:
            options["lock"] = str(given.lock)
        torch_ops.configure(given.device, **options)
        outcomes = []
        for recipe in given.compare or [given.recipe]:
            what = subject(given)
            outcomes.append(evaluate(what, recipe, batch=given.batch, seed=given.seed,
                                     batch_invariant=given.batch_invariant))
    except (ValueError, OSError, Error) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 1
    report = {**what.shown, "outcomes": [_told(outcome, what.unit) for outcome in outcomes]}
    if given.compare:
        mean, error = paired(*outcomes)
        report["difference"], report["standard_error"] = mean, error
    if given.json:
        print(json.dumps(report))
        return 0
    print(", ".join(f"{name} {value}" for name, value in what.shown.items()))
    for outcome in outcomes:
        _print(outcome, what.unit)
    if given.compare:
        spread = "" if error is None else f" +- {error:.6f}"
        print(f"{given.compare[1]} - {given.compare[0]}: {mean:+.6f}{spread} nats a {what.unit}, "
              f"paired over {len(what.tokens)} windows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
