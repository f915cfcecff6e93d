"""The C interface as ctypes types, read from qturn.h itself, so that the two cannot drift apart.

The header is regular C: enumerations, structs of scalars, pointers, arrays and other structs of the
header. Anything else in it is an error here, not a guess.
"""

import ctypes as c
import pathlib
import re

_SCALARS = {
    "uint8_t": c.c_uint8, "int32_t": c.c_int32, "uint32_t": c.c_uint32, "int64_t": c.c_int64,
    "uint64_t": c.c_uint64, "size_t": c.c_size_t, "float": c.c_float, "double": c.c_double,
    "int": c.c_int, "qturn_status": c.c_int32,
}


def find_header():
    """The header that this package carries, or the source tree's."""
    here = pathlib.Path(__file__).resolve().parent
    for path in (here / "qturn.h", here / "include" / "quarterturn" / "qturn.h",
                 here.parent.parent / "runtime" / "include" / "quarterturn" / "qturn.h"):
        if path.exists():
            return path
    raise FileNotFoundError("qturn.h is neither in the package nor in a source tree around it")


def _without_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"^\s*#.*?$", " ", re.sub(r"\\\n", " ", text), flags=re.M)


class Abi:
    """`enums`: every QTURN_ constant. `structs`: name without qturn_ to ctypes.Structure."""

    def __init__(self, text):
        text = _without_comments(text)
        self.enums = {}
        for body in re.findall(r"\benum\s*\{(.*?)\}", text, flags=re.S):
            self._read_enum(body)
        self.structs = {}
        for name, body in re.findall(r"typedef struct (qturn_\w+) \{(.*?)\} \1;", text, flags=re.S):
            fields = [field for line in body.split(";") if line.strip()
                      for field in self._read_member(" ".join(line.split()))]
            self.structs[name[len("qturn_"):]] = type(name, (c.Structure,), {"_fields_": fields})

    def _read_enum(self, body):
        following = 0
        for entry in filter(None, (part.strip() for part in body.split(","))):
            name, _, value = (part.strip() for part in entry.partition("="))
            following = int(value, 0) if value else following
            self.enums[name] = following
            following += 1

    def _read_member(self, text):
        """`const int32_t* x, y[8]` as [(name, type), ...]."""
        match = re.fullmatch(r"(?:const )?(?:struct )?(\w+)((?: const)?[ *].*)", text)
        if not match:
            raise ValueError(f"qturn.h: cannot read the member '{text}'")
        base, rest = match.groups()
        for declarator in rest.split(","):
            declarator = declarator.replace("const", " ").replace(" ", "")
            pointers = len(declarator) - len(declarator.lstrip("*"))
            name, _, length = declarator.lstrip("*").rstrip("]").partition("[")
            if not re.fullmatch(r"\w+", name) or (length and not length.isdigit()):
                raise ValueError(f"qturn.h: cannot read the member '{text}'")
            one = self._type(base, pointers)
            yield name, one * int(length) if length else one

    def _type(self, base, pointers):
        if pointers:
            return c.c_char_p if base == "char" and pointers == 1 else c.c_void_p
        if base in _SCALARS:
            return _SCALARS[base]
        if base.startswith("qturn_") and base[len("qturn_"):] in self.structs:
            return self.structs[base[len("qturn_"):]]
        if base.endswith("_fn"):
            return c.c_void_p
        raise ValueError(f"qturn.h: the type '{base}' is not known")

    def value(self, prefix, name):
        """QTURN_<PREFIX><NAME> by its lower-case name; a number is itself."""
        if isinstance(name, int):
            return name
        key = f"QTURN_{prefix}{name}".upper()
        if key not in self.enums:
            known = sorted(k[len("QTURN_" + prefix):].lower() for k in self.enums
                           if k.startswith(f"QTURN_{prefix}".upper()))
            raise ValueError(f"'{name}' is not known; one of {', '.join(known)}")
        return self.enums[key]


ABI = Abi(find_header().read_text(encoding="utf-8"))
