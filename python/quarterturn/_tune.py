"""Tuning from Python: the program qturn in a child process, its results as they come."""

import collections
import json
import queue
import signal
import subprocess
import sys
import threading

from ._command import program
from ._context import Context

SERVED = ("exact", "bucket")  # matches that say a problem was tuned here

_COLUMNS = ("problem", "answer", "speedup", "us", "tried", "failed", "seconds")


class Tuned(list):
    """Rows of `qturn tune --json`, one dictionary a problem; `key` is the problem's. str() shows
    them as a table."""

    def __str__(self):
        rows = [_COLUMNS] + [tuple(str(row.get(name, "")) for name in _COLUMNS) for row in self]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                         for row in rows)

    @property
    def failed(self):
        """Keys of the problems that have no answer."""
        return [row["key"] for row in self if row["answer"] == "failed"]


def _keys(problems):
    if isinstance(problems, str) or not hasattr(problems, "__iter__"):
        problems = [problems]
    return [problem if isinstance(problem, str) else Context.key(problem) for problem in problems]


def called(model, *args, **kwargs):
    """What a call of PyTorch code prepares, [{problem, plan, match, device}]: the model is called
    once with these arguments."""
    from . import torch_ops
    torch_ops.forget()
    model(*args, **kwargs)
    return torch_ops.kernels()


class _Lines:
    """Lines of a child's stdout and stderr as they come: (whether of stdout, line)."""

    def __init__(self, child):
        self._found = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._read, args=(pipe, pipe is child.stdout),
                                          daemon=True) for pipe in (child.stdout, child.stderr)]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe, is_result):
        with pipe:
            for line in pipe:
                self._found.put((is_result, line.rstrip()))
        self._found.put(None)

    def __iter__(self):
        for _ in self._threads:
            yield from iter(self._found.get, None)

    def join(self):
        for thread in self._threads:
            thread.join(timeout=5)


def _row(line, keys):
    """A result with its problem's key; None for what is said of a whole site."""
    row = json.loads(line)
    if "answer" not in row:
        return None
    number = row["layers"].rpartition(" ")[2]
    return {**row, "key": keys[int(number) - 1]}


def _run(command, keys, progress):
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said, rows = collections.deque(maxlen=20), Tuned()
    lines = _Lines(child)
    try:
        for is_result, line in lines:
            if not is_result:
                said.append(line.removeprefix("qturn: "))
                told = {"text": said[-1]}
            elif row := _row(line, keys):
                rows.append(row)
                told = {"done": len(rows), "problems": len(keys), **row}
            else:
                continue
            if progress:
                progress(told)
        code = child.wait()
    except BaseException:  # what was measured is kept: the program stops at the next trial
        child.send_signal(signal.SIGINT)
        child.wait()
        raise
    finally:
        lines.join()
    if code == 130:
        raise KeyboardInterrupt
    if code not in (0, 1) or (code == 1 and not rows):
        raise RuntimeError(f"qturn tune ended with {code}: {'; '.join(said)}")
    return rows


def tune(what, *args, device="cpu", database=None, candidates=None, time_limit=None,
         problem_time_limit=None, threads=None, again=False, progress=None, **kwargs):
    """Tunes problems by `qturn tune` in a child process, so that nothing of this one is disturbed,
    and gives a Tuned: rows as the command's JSON has them.

    `what`: a problem (Context.problem), its key, or several; or a callable, such as a model, which
    is called once with `args` and `kwargs`: what its quarterturn operators prepared and no tuning
    answer serves is tuned on the devices that it ran on.

    device: "cpu" or "cuda:<n>", of problems. database: a path (default: where `qturn config` says).
    candidates: plans of one problem at most. time_limit, problem_time_limit: seconds. threads: of
    the CPU. again: also what is decided. progress: called with a dictionary for each row (done,
    problems, and the row's) and for each line of text (text).

    Answers are used by contexts made later; operators of torch.ops.quarterturn use them from their
    next call on, other contexts after Context.reload(). Ctrl-C keeps what was measured."""
    if callable(what):
        missed = [row for row in called(what, *args, **kwargs) if row["match"] not in SERVED]
        wanted = {name: [row["problem"] for row in missed if row["device"] == name]
                  for name in sorted({row["device"] for row in missed})}
    elif args or kwargs:
        raise TypeError("arguments belong to a callable; problems come as one problem or a list")
    else:
        wanted = {device: _keys(what)}
    options = [word for name, value in (
        ("--db", database), ("--candidates", candidates), ("--time-limit", time_limit),
        ("--problem-time-limit", problem_time_limit), ("--threads", threads))
        if value is not None for word in (name, str(value))] + ["--again"] * bool(again)
    out = Tuned()
    for name, keys in wanted.items():
        command = [program(), "tune", "--json", "--device", name, *options]
        out += _run([*command, *(word for key in keys for word in ("--problem", key))], keys,
                    progress)
    operators = sys.modules.get(f"{__package__}.torch_ops")
    if operators:
        operators.reload()
    return out
