"""The commands on checkpoints: qturn convert IN OUT --to FORM, and qturn quantize IN OUT."""

import argparse
import json
import math
import pathlib
import sys
import time

from . import formats, recipes
from ._library import Error
from ._safetensors import check_target


class Progress:
    """A line on stderr that is written over; only its last state where nobody watches."""

    def __init__(self, total, unit):
        self.total, self.unit, self.done, self.begin = total, unit, 0, time.monotonic()
        self.live = sys.stderr.isatty()

    def __call__(self, name):
        self.done += 1
        took = time.monotonic() - self.begin
        left = took / self.done * (self.total - self.done)
        line = (f"{self.done}/{self.total} {self.unit}, {took:.0f} s, about {left:.0f} s left: "
                f"{name}")
        if self.live:
            print(f"\r\033[K{line}", end="" if self.done < self.total else "\n", file=sys.stderr,
                  flush=True)
        elif self.done == self.total:
            print(line, file=sys.stderr)


def weight_scheme(recipe):
    """(rotation, scale rule) that a recipe's forward product gives its weight."""
    product = recipes.load(recipe).fprop
    if not product.quantized:
        raise ValueError(f"recipe '{recipe}' leaves Fprop in high precision: there is nothing to "
                         "quantise")
    if product.signs != "none":
        raise ValueError(f"recipe '{recipe}' has signs = {product.signs!r} in Fprop: a file's "
                         "reader could not know them; use one without signs")
    if product.b.rounding != "rne" or product.b.scale_block != "1x32":
        raise ValueError(f"recipe '{recipe}' rounds weights by {product.b.rounding} in blocks of "
                         f"{product.b.scale_block}: files hold rne in 1x32")
    return product.rotation, product.b.scale_rule


def parser():
    out = argparse.ArgumentParser(prog="qturn", description="Checkpoints in MXFP4.")
    commands = out.add_subparsers(dest="command", required=True)
    convert = commands.add_parser(
        "convert",
        help="from one form of MXFP4 checkpoint to another; bits are moved, none changes",
        description="Rewrites the MXFP4 tensors of a safetensors or GGUF file; others are copied. "
        "A tensor at a time is in memory; OUT appears whole or not at all.")
    convert.add_argument("source", metavar="IN", type=pathlib.Path)
    convert.add_argument("target", metavar="OUT", type=pathlib.Path)
    convert.add_argument("--to", required=True, choices=formats.TARGETS)
    quantize = commands.add_parser(
        "quantize", help="the matrices of a safetensors file to MXFP4",
        description="Quantises each matrix NAME.weight but embeddings, norms and heads into "
        "NAME.weight_packed and NAME.weight_scale (compressed-tensors' form), and tells the "
        "relative error of each with the rotation and without. Rotation and scale rule are in "
        "OUT's metadata.")
    quantize.add_argument("source", metavar="IN", type=pathlib.Path)
    quantize.add_argument("target", metavar="OUT", type=pathlib.Path)
    quantize.add_argument("--recipe", help="a preset or recipe file: its Fprop's weight decides "
                          f"({', '.join(recipes.PRESETS)})")
    quantize.add_argument("--rotation", type=int, choices=recipes.ROTATIONS,
                          help="Hadamard block (default 0: none; readers must rotate alike)")
    quantize.add_argument("--scale-rule", choices=recipes.SCALE_RULES, help="default: rceil")
    quantize.add_argument("--only", help="a pattern of names, such as *.mlp.*: others are copied")
    for command in (convert, quantize):
        command.add_argument("--force", action="store_true", help="write over OUT")
        command.add_argument("--json", action="store_true", help="the report as JSON lines")
    return out


def _quantize(given):
    import fnmatch
    if given.recipe and (given.rotation is not None or given.scale_rule):
        raise ValueError("--recipe says rotation and scale rule: give it, or those")
    rotation, rule = (weight_scheme(given.recipe) if given.recipe
                      else (given.rotation or 0, given.scale_rule or "rceil"))
    choose = formats.is_quantised
    if given.only:
        choose = lambda name: fnmatch.fnmatchcase(name, given.only)  # noqa: E731
    names = formats.matrices(formats.Safetensors(given.source), choose)
    if not names:
        raise ValueError(f"{given.source} has no matrix NAME.weight to quantise"
                         + (f" that fits {given.only}" if given.only else ""))
    report = formats.quantize_file(given.source, given.target, rotation, rule, choose,
                                   progress=Progress(len(names), "matrices"))
    if given.json:
        for row in report:
            print(json.dumps({name: _finite(value) for name, value in row.items()}))
        return
    width = max(len(row["name"]) for row in report)
    print(f"{'matrix':{width}}  error   without rotation")
    for row in report:
        print(f"{row['name']:{width}}  {row['error']:.4f}  {row['error_unrotated']:.4f}")


def _finite(value):
    """None for the numbers that JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(argv=None):
    """0, or 1 with one line of what is wrong; 2 where the command line makes no sense, 130 where
    the user ended it."""
    given = parser().parse_args(argv)
    try:
        if not given.source.is_file():
            raise ValueError(f"there is no file {given.source}")
        check_target(given.target)
        if given.target.exists() and not given.force:
            raise ValueError(f"{given.target} is there already; --force writes over it")
        if given.target.exists() and given.target.samefile(given.source):
            raise ValueError(f"{given.target} is what is read; name another file")
        if given.command == "quantize":
            _quantize(given)
        else:
            count = formats.convert_file(given.source, given.target, given.to)
            print(json.dumps({"tensors": count}) if given.json else
                  f"{count} tensors in {given.to}'s form")
    except (ValueError, TypeError, OSError, Error) as error:
        print("qturn:", *str(error).split(), file=sys.stderr)  # names may hold line feeds
        return 1
    except KeyboardInterrupt:
        print("qturn: interrupted", file=sys.stderr)
        return 130
    return 0
