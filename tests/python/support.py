"""What tests share: the package's place, skipping with a reason, and a text to learn."""

import os
import sys

sys.path.insert(0, os.environ["QTURN_PYTHON"])


def skip(why):
    """Ends the test; CTest shows it as skipped."""
    print(f"SKIPPED: {why}")
    sys.exit(0)


def needs_numpy():
    try:
        import numpy  # noqa: F401
    except ImportError:
        skip("NumPy is not installed (python3-numpy)")


def has_torch():
    """2.4, which has torch.library.register_autograd, or later."""
    try:
        import torch
    except ImportError:
        return False
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)


def needs_torch():
    needs_numpy()
    if not has_torch():
        skip("PyTorch 2.4 or later is not installed")


def sums_as_text():
    """Bytes that a small model learns something of in a few steps."""
    return b"".join(b"%d and %d make %d\n" % (i, 7 * i, 8 * i) for i in range(4000))
