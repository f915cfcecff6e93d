"""The shared library: finding it, calling it, and its structs by the names of qturn.h."""

import ctypes as c
import os
import pathlib

from ._abi import ABI

_PREFIXES = {"a_type": "", "b_type": "", "d_type": "", "c_type": "", "a_layout": "LAYOUT_",
             "b_layout": "LAYOUT_", "d_layout": "LAYOUT_", "a_major": "MAJOR_",
             "b_major": "MAJOR_", "op": "OP_", "role": "",
             "grouping": "", "copies": "COPIES_", "signs": "SIGNS_", "scale_rule": "SCALE_",
             "scale_block": "SCALE_", "a_rounding": "", "b_rounding": "", "d_rounding": "",
             "biased": "BIASED_", "epilogue": "EPILOGUE_", "bias": "BIAS_", "accumulate": "",
             "pre_activation": "PRE_ACTIVATION_", "bias_gradient": "BIAS_GRADIENT_",
             "prologue": "PROLOGUE_",
             "contract": "", "spread": "SPREAD_", "reproducibility": ""}

# Where the constant of "none" carries a prefix that the member's other constants lack.
_NONE = {"a_type": "type_none", "b_type": "type_none", "d_type": "type_none", "c_type": "type_none",
         "role": "role_none", "grouping": "grouping_none"}


class Error(RuntimeError):
    """A status that is not QTURN_OK. `status` is its number, `name` its name."""

    def __init__(self, status, name, message):
        super().__init__(f"{name}: {message}")
        self.status, self.name = status, name


def _find_library():
    """QTURN_LIBRARY, what this package carries, a build folder of the tree, or the loader's."""
    given = os.environ.get("QTURN_LIBRARY")
    if given:
        return given
    here = pathlib.Path(__file__).resolve().parent
    packed = sorted((here / "lib").glob("libquarterturn.so*"))
    if packed:
        return str(packed[0])
    built = sorted(here.parent.parent.glob("build/*/runtime/libquarterturn.so"),
                   key=lambda path: path.stat().st_mtime)
    return str(built[-1]) if built else "libquarterturn.so.0.1"


def _load():
    lib = c.CDLL(_find_library())
    for name in ("qturn_last_error", "qturn_version_string", "qturn_status_name"):
        getattr(lib, name).restype = c.c_char_p
    for name in ("qturn_plan_destroy", "qturn_weight_destroy", "qturn_context_destroy"):
        getattr(lib, name).restype = None
        getattr(lib, name).argtypes = [c.c_void_p]
    return lib


LIB = _load()


def version():
    """The version of the library that is loaded."""
    return LIB.qturn_version_string().decode()


def check(status):
    if status != 0:
        raise Error(status, LIB.qturn_status_name(status).decode(),
                    LIB.qturn_last_error().decode())


def initialised(name):
    out = ABI.structs[name]()
    getattr(LIB, f"qturn_{name}_init")(c.byref(out))
    if out.struct_size != c.sizeof(out):
        raise ImportError(f"qturn_{name} has {c.sizeof(out)} bytes in qturn.h and "
                          f"{out.struct_size} in the library: they are of different versions")
    return out


def set_members(struct, members):
    """Members by name; ranges as (lo, hi), enumerations by their lower-case name."""
    fields = dict(struct._fields_)
    for name, value in members.items():
        if name not in fields:
            raise TypeError(f"{type(struct).__name__} has no member '{name}'")
        if fields[name] is ABI.structs["extent"]:
            lo, hi = value if isinstance(value, tuple) else (value, value)
            value = ABI.structs["extent"](lo, hi)
        elif isinstance(value, str):
            value = ABI.value(_PREFIXES[name], _NONE.get(name, value) if value == "none" else value)
        setattr(struct, name, value)
    return struct
