"""The command line of the study: python -m quarterturn.study --help."""

import argparse
import pathlib
import sys
import time

from . import arms, report


def parser():
    out = argparse.ArgumentParser(prog="python -m quarterturn.study",
                                  description="Trains a small byte-level transformer, or a model "
                                  "of yours, under several recipes, with paired seeds.")
    add = out.add_argument
    add("--out", type=pathlib.Path, required=True,
        help="folder of the results; resumed if it has any")
    add("--arms", default="all",
        help="all, or names of arms, presets and recipe files, with commas")
    add("--model", default="small",
        help="small (about 20 M parameters), tiny, module:function, or a Hugging Face folder")
    add("--data", help="a file or folder of bytes (default: the sources of Python's library)")
    add("--seeds", default="0,1", help="paired: every arm runs with each (default: 0,1)")
    add("--steps", type=int, default=600)
    add("--batch", type=int, help="sequences a step (default: the model's)")
    add("--context", type=int, help="tokens of a sequence (default: the model's)")
    add("--rate", type=float, help="the highest rate of learning (default: the model's)")
    add("--layers", default="*", help="a pattern: linear layers of other names stay as they are")
    add("--switch", help="STEP:RECIPE, from where on every arm follows that recipe")
    add("--device", help="cpu or cuda (default: cuda if there is one)")
    add("--jit", choices=("on", "off"), default="on", help="off: no compiler is started")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--checkpoint-every", type=int, default=200, help="steps")
    add("--keep-models", action="store_true",
        help="write the parameters of runs that end now to OUT/models, for quarterturn.evaluate")
    add("--time-limit", type=float, help="seconds; the next call goes on from there")
    add("--report", action="store_true", help="make the table and page from what there is, no more")
    return out


class Progress:
    """A line on stderr every few seconds, with the time that is left."""

    def __init__(self, total):
        self.total, self.done, self.spent = total, 0, 0.0
        self.last = time.monotonic()

    def __call__(self, run, step, record):
        self.done += 1
        self.spent += record["ms"] / 1e3
        if time.monotonic() - self.last < 5 and step + 1 < run.options.steps:
            return
        self.last = time.monotonic()
        left = self.spent / self.done * (self.total - self.done)
        print(f"{run.arm} seed {run.seed}: step {step + 1}/{run.options.steps} "
              f"loss {record['loss']:.4f} {record['ms']:.1f} ms, "
              f"about {left / 60:.1f} min left", file=sys.stderr, flush=True)


def distributed(device):
    """rank, world: of torchrun, else 0, 1."""
    import os
    import torch
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return 0, 1
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    return torch.distributed.get_rank(), world


def main(argv=None):
    given = parser().parse_args(argv)
    if given.report:
        return report.write(given.out)
    import os
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    from .. import Error, recipes, torch_ops
    from . import data, model, train
    torch.use_deterministic_algorithms(True, warn_only=True)
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch_ops.configure(device, jit=given.jit)
    shape = model.shape_of(given.model, given.batch, given.context, given.rate)
    rank, world = distributed(device)
    if shape.batch % world:
        raise ValueError(f"a batch of {shape.batch} sequences on {world} ranks: a multiple is "
                         "needed")
    switch = ()
    if given.switch:
        step, _, recipe = given.switch.partition(":")
        switch = int(step), recipes.load(recipe)
    deadline = time.monotonic() + given.time_limit if given.time_limit else float("inf")
    options = train.Options(given.out, given.model, shape, given.steps, device, given.compile,
                            given.checkpoint_every, switch, given.layers, deadline, rank, world,
                            given.keep_models)
    chosen = arms.chosen(given.arms)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    text = data.Data(given.data, shape, device, model.encoder(given.model))
    if given.jit == "on":
        took = train.prepare(chosen, text, options)
        print(f"prepared in {took:.1f} s", file=sys.stderr)
    runs = [train.Run(name, recipe, seed, text, options)
            for seed in seeds for name, recipe in chosen.items()]
    todo = [run for run in runs if not run.finished()]
    progress = Progress(len(todo) * given.steps) if rank == 0 else lambda *ignored: None
    failed = 0
    for run in todo:
        try:
            run.train(progress)
        except train.OutOfTime:
            print("the time limit came; the same command goes on from here", file=sys.stderr)
            break
        except Error as error:  # an arm that this device cannot run does not stop the others
            print(f"{run.arm} seed {run.seed}: {error}", file=sys.stderr)
            failed = 1
    code = report.write(given.out) if rank == 0 else 0
    if world > 1:
        torch.distributed.destroy_process_group()
    return code or failed


if __name__ == "__main__":
    sys.exit(main())
