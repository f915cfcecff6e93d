"""The command `qturn` of an installed package: commands on checkpoints are Python's, others those
of the program that the wheel carries."""

import os
import pathlib
import shutil
import sys

_HERE = pathlib.Path(__file__).resolve().parent


def _candidates():
    yield _HERE / "bin" / "qturn"
    from ._library import LIB
    library = pathlib.Path(LIB._name).resolve()
    for folder in library.parents[:4]:  # an installation's, or a build folder's
        yield folder / "bin" / "qturn"
        yield folder / "tuner" / "qturn"


def program():
    """Path of the program qturn: QTURN_PROGRAM, the wheel's, what lies beside the library, or what
    PATH finds."""
    given = os.environ.get("QTURN_PROGRAM")
    if given:
        return given
    for path in _candidates():
        if path.is_file():
            return str(path)
    found = shutil.which("qturn")
    if not found:
        raise FileNotFoundError("the program qturn is not found: install a wheel, put it on PATH, "
                                "or name it by QTURN_PROGRAM")
    return found


def main():
    if sys.argv[1:2] in (["convert"], ["quantize"]):
        from ._files import main as files
        sys.exit(files())
    carried = _HERE / "bin" / "qturn"
    if not carried.exists():
        sys.exit("qturn is not in this package: it was not installed from a wheel. Build it "
                 "(scripts/build) and call build/<preset>/tuner/qturn")
    os.execv(carried, [str(carried), *sys.argv[1:]])
