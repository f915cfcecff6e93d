"""Runs the Python of docs/python.md, block after block in one namespace, as a reader would."""

import os
import pathlib
import re

import support

support.needs_numpy()
has_torch = support.has_torch()

os.environ.setdefault("QTURN_NO_JIT", "1")  # kernels that are built in
page = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"
blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
assert len(blocks) == 3, f"{len(blocks)} blocks in {page}"
namespace = {}
for number, block in enumerate(blocks[:3 if has_torch else 1], 1):
    exec(compile(block, f"{page}, block {number}", "exec"), namespace)
print(f"{len(blocks) if has_torch else 1} of {len(blocks)} examples ran"
      + ("" if has_torch else "; the others need PyTorch 2.4"))
