"""The command `qturn` of an installed package: commands on checkpoints are Python's, others those of
the program that the wheel carries."""

import os
import pathlib
import sys


def main():
    if sys.argv[1:2] in (["convert"], ["quantize"]):
        from ._files import main as files
        sys.exit(files())
    program = pathlib.Path(__file__).resolve().parent / "bin" / "qturn"
    if not program.exists():
        sys.exit("qturn is not in this package: it was not installed from a wheel. Build it "
                 "(scripts/build) and call build/<preset>/tuner/qturn")
    os.execv(program, [str(program), *sys.argv[1:]])
