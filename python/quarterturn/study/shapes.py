"""Tunes what a model calls: python -m quarterturn.study.shapes --recipe R [--model
module:function].

Trains one step under the recipe and notes every problem that was prepared, tunes those that no
stored answer serves (`qturn tune --problem`), then trains a step in a fresh process and says
whether anything was still missed.
"""

import argparse
import json
import subprocess
import sys

from .._command import program
from .._tune import SERVED, tune

def parser():
    out = argparse.ArgumentParser(prog="python -m quarterturn.study.shapes",
                                  description="Tunes what one training step of a model calls.")
    add = out.add_argument
    add("--recipe", required=True, help="a preset or recipe file")
    add("--model", default="small", help="small, tiny, module:function, or a Hugging Face folder")
    add("--batch", type=int, help="sequences a step (default: the model's)")
    add("--context", type=int, help="tokens of a sequence (default: the model's)")
    add("--device", help="cpu or cuda (default: cuda if there is one)")
    add("--db", help="the tuning database (default: where `qturn config` says)")
    add("--candidates", type=int, help="plans of one problem that are tried at most")
    add("--time-limit", type=float, help="seconds for each problem")
    add("--list", action="store_true", help="print the problems as JSON lines, tune nothing")
    return out


def called(given):
    """[{problem, plan, match}] of one training step."""
    import torch
    from .. import nn, recipes, torch_ops
    from . import data, model
    from .train import loss_of
    if given.db:
        torch_ops.configure(given.device, database=given.db)
    shape = model.shape_of(given.model, given.batch, given.context)
    torch.manual_seed(0)
    module = model.make(given.model, shape).to(given.device)
    noise = nn.convert(module, recipes.load(given.recipe))
    nn.prepare(module, shape.batch * shape.context)
    noise.set(step=0)
    text = data.Data(None, shape, given.device, model.encoder(given.model))
    loss_of(module, text.batch(0, 0), given.device).backward()
    return torch_ops.kernels()


def _in_a_fresh_process(argv):
    out = subprocess.run([sys.executable, "-m", "quarterturn.study.shapes", *argv, "--list"],
                         stdout=subprocess.PIPE, text=True, check=False)
    if out.returncode:
        raise ValueError("the step could not be run")
    return [json.loads(line) for line in out.stdout.splitlines()]


def _tune(given, problems):
    """Keys of the problems that got no answer."""
    return tune(problems, device="cuda:0" if given.device == "cuda" else "cpu", database=given.db,
                candidates=given.candidates, problem_time_limit=given.time_limit,
                progress=lambda told: print(told["text"], file=sys.stderr) if "text" in told
                else None).failed


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    given = parser().parse_args(argv)
    import torch
    given.device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if given.list:
            for row in called(given):
                print(json.dumps(row))
            return 0
        program()
        before = _in_a_fresh_process(argv)
        missed = [row["problem"] for row in before if row["match"] not in SERVED]
        print(f"{len(before)} problems in a step, {len(missed)} without a stored answer",
              file=sys.stderr)
        failed = _tune(given, missed) if missed else []
        after = _in_a_fresh_process(argv)
        left = [row["problem"] for row in after if row["match"] not in SERVED]
    except (ValueError, OSError, RuntimeError) as error:
        print(f"shapes: {error}", file=sys.stderr)
        return 1
    for problem in failed:
        print(f"not tuned: {problem}")
    for problem in left:
        print(f"missed: {problem}")
    print(f"a step now calls {len(after)} problems, {len(left)} of them missed")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
