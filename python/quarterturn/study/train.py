"""One run of one arm: training that logs a line a step and goes on where it was stopped."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import time

import torch
from torch.nn import functional

from .. import formats, nn, recipes, version
from . import arms, model as models
from .control import half_noise

_ROLES = ("fprop", "dgrad", "wgrad")


@dataclasses.dataclass
class Options:
    out: pathlib.Path
    model: str
    shape: models.Shape
    steps: int
    device: str
    compile: bool
    checkpoint_every: int
    switch: tuple  # () or (step, recipe)
    layers: str    # a pattern of names that are quantised at all
    deadline: float
    rank: int = 0
    world: int = 1
    keep_models: bool = False


class OutOfTime(Exception):
    """The time limit came; what is done is on disk."""


def rate_at(step, steps, peak):
    """A tenth of warm-up, then a cosine down to a tenth."""
    warm = max(1, steps // 10)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def loss_of(model, batch, device):
    tokens, targets = batch
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = models.logits(model, tokens)
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Run:
    def __init__(self, arm, recipe, seed, data, options):
        self.arm, self.recipe, self.seed = arm, recipe, seed
        self.data, self.options = data, options
        self.path = options.out / "runs" / f"{arm}-{seed}.jsonl"
        self.checkpoint = options.out / "checkpoints" / f"{arm}-{seed}.pt"

    # ---- what is on disk ----

    def finished(self):
        if not self.path.exists():
            return False
        last = self.path.read_text(encoding="utf-8").splitlines()[-1:]
        return bool(last) and "validation" in last[0]

    def _header(self):
        return {"arm": self.arm, "seed": self.seed, "recipe": json.loads(self.recipe.to_json()),
                "model": self.options.model, "shape": dataclasses.asdict(self.options.shape),
                "steps": self.options.steps, "data": self.data.name, "bytes": self.data.size,
                "sha256": self.data.digest, "device": device_name(self.options.device),
                "quarterturn": version(), "torch": torch.__version__,
                "switch": list(map(str, self.options.switch)),
                "compiled": self.options.compile, "ranks": self.options.world}

    def _save(self, step, model, optimizer):
        if self.options.rank:
            return
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        part = self.checkpoint.with_suffix(".part")
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
                   part)
        os.replace(part, self.checkpoint)

    def _resume(self, model, optimizer):
        """The step to go on from; the log is cut back to it."""
        header = json.dumps(self._header())
        step, lines = 0, []
        if self.checkpoint.exists() and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            if lines and lines[0] != header:
                raise ValueError(f"{self.path} is of another run (model, data, recipe or options "
                                 "differ); choose another --out")
            state = torch.load(self.checkpoint, map_location=self.options.device,
                               weights_only=True)
            step = state["step"]
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        if self.options.rank == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("\n".join([header, *lines[1:step + 1]]) + "\n", encoding="utf-8")
        return step

    def _log(self, record):
        if self.options.rank == 0:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def _keep(self, model):
        """The trained parameters, as `quarterturn.evaluate` reads them."""
        path = self.options.out / "models" / f"{self.arm}-{self.seed}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"model": self.options.model, "shape": dataclasses.asdict(self.options.shape),
                "arm": self.arm, "seed": self.seed, "steps": self.options.steps}
        formats.write_safetensors(
            path, {name: ("F32", tuple(p.shape), lambda p=p: p.detach().float().cpu().numpy())
                   for name, p in model.named_parameters()},
            {"quarterturn.study": json.dumps(told)})

    # ---- training ----

    def _convert(self, model, recipe, noise=None):
        names = None
        if self.options.layers != "*":
            import fnmatch
            names = [name for name, module in model.named_modules()
                     if isinstance(module, torch.nn.Linear)
                     and not fnmatch.fnmatchcase(name, self.options.layers)]
            recipe = dataclasses.replace(recipe, keep=(*recipe.keep, *names))
        return nn.convert(model, recipe, seed=self.seed + 1, noise=noise)

    def _apply_switch(self, model, noise):
        recipe = self.options.switch[1]
        if noise.layers:
            nn.follow(model, recipe, noise)
        else:
            noise.recipe = recipe
            self._convert(model, recipe, noise)

    def _local(self, batch):
        rank, world = self.options.rank, self.options.world
        if world == 1:
            return batch
        size = self.options.shape.batch // world
        return tuple(part[rank * size:(rank + 1) * size] for part in batch)

    def train(self, progress):
        options, shape = self.options, self.options.shape
        torch.manual_seed(self.seed)
        model = models.make(options.model, shape).to(options.device)
        noise = self._convert(model, self.recipe)
        optimizer = torch.optim.AdamW(model.parameters(), lr=shape.rate, betas=(0.9, 0.95),
                                      weight_decay=0.1)
        switched = False
        if options.switch and self._past_switch():
            self._apply_switch(model, noise)
            switched = True
        first = self._resume(model, optimizer)
        run = self._wrapped(model)
        if options.world > 1:
            share = shape.batch * shape.context // options.world
            noise.set(token0=options.rank * share, tokens=options.world * share)
        with half_noise() if self.arm == arms.CONTROL else contextlib.nullcontext():
            for step in range(first, options.steps):
                if options.switch and step >= options.switch[0] and not switched:
                    self._apply_switch(model, noise)
                    switched = True
                    run = self._wrapped(model)
                record = self._step(step, run, model, optimizer, noise)
                self._log(record)
                progress(self, step, record)
                done = step + 1
                if done % options.checkpoint_every == 0 and done < options.steps:
                    self._save(done, model, optimizer)
                if time.monotonic() > options.deadline and done < options.steps:
                    self._save(done, model, optimizer)
                    raise OutOfTime
            noise.set(token0=0, tokens=0)  # each rank has the whole batch from here on
            self._log({"validation": self._validate(model), "probe": self._probe(model, noise)})
        if options.keep_models and options.rank == 0:
            self._keep(model)
        self.checkpoint.unlink(missing_ok=True)

    def _past_switch(self):
        if not self.checkpoint.exists():
            return False
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        return state["step"] > self.options.switch[0]

    def _wrapped(self, model):
        run = torch.compile(model, fullgraph=True) if self.options.compile else model
        if self.options.world > 1:
            devices = None if self.options.device == "cpu" else [torch.cuda.current_device()]
            run = torch.nn.parallel.DistributedDataParallel(run, devices)
        return run

    def _step(self, step, run, model, optimizer, noise):
        options = self.options
        begin = time.perf_counter()
        noise.set(step=step)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, options.steps, options.shape.rate)
        loss = loss_of(run, self._local(self.data.batch(self.seed, step)), options.device)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if options.world > 1:
            torch.distributed.all_reduce(loss)
            loss = loss / options.world
        value = loss.item()
        return {"step": step, "loss": value, "norm": norm.item(),
                "ms": round(1e3 * (time.perf_counter() - begin), 3)}

    @torch.no_grad()
    def _validate(self, model):
        losses = [loss_of(model, batch, self.options.device).item()
                  for batch in self.data.validation()]
        return sum(losses) / len(losses)

    def _gradients(self, model, batch):
        model.zero_grad()
        loss_of(model, batch, self.options.device).backward()
        out = [module.weight.grad.detach().clone() for module in model.modules()
               if isinstance(module, nn.Linear)]
        model.zero_grad()
        return out

    def _probe(self, model, noise):
        """Relative error of the quantised layers' weight gradients on one batch, with all of the
        recipe's products in MXFP4 and with each of them alone."""
        if not any(isinstance(module, nn.Linear) for module in model.modules()):
            return {}
        batch = self.data.batch(self.seed, self.options.steps)
        recipe = noise.recipe
        high = dataclasses.replace(recipe, fprop=recipes.HIGH, dgrad=recipes.HIGH,
                                   wgrad=recipes.HIGH)
        nn.follow(model, high, noise)
        wanted = self._gradients(model, batch)
        size = math.sqrt(sum(g.double().square().sum().item() for g in wanted))
        out = {}
        for name in ("all", *_ROLES):
            if name != "all" and not getattr(recipe, name).quantized:
                continue
            nn.follow(model, recipe if name == "all" else dataclasses.replace(
                high, **{name: getattr(recipe, name)}), noise)
            got = self._gradients(model, batch)
            error = sum((g - w).double().square().sum().item() for g, w in zip(got, wanted))
            out[name] = math.sqrt(error) / size
        nn.follow(model, recipe, noise)
        return out


def device_name(device):
    return torch.cuda.get_device_name(0) if device == "cuda" else "CPU"


def prepare(chosen, data, options):
    """Compiles what all arms will run, side by side."""
    import concurrent.futures
    begin = time.perf_counter()
    tokens = options.shape.batch * options.shape.context // options.world

    def one(recipe):
        torch.manual_seed(0)
        model = models.make(options.model, options.shape).to(options.device)
        nn.convert(model, recipe)
        nn.prepare(model, tokens, threads=4)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, chosen.values()))
    return time.perf_counter() - begin
