"""Kernels of runtime/backends/cuda on the CPU: what CuPy's RawModule is, built by g++ on emulate.h.

A launch takes what CuPy takes and no more: a GPU's arrays of the parameter's dtype, and numpy
numbers of its very type, since CuPy passes the bytes of what it is given unchecked.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.fakes.fake_graphs import noted

HERE = Path(__file__).parent
BUILT = HERE.parent.parent / ".pytest_cache" / "emulated"
MISSING = "the kernels' meaning is tested with g++, which is not here"
KERNEL = re.compile(
    r'extern "C" __global__ void (\w+)\((.*?)\) \{(.*?)^\}', re.DOTALL | re.MULTILINE
)
FLAGS = [
    "-O1",
    "-fPIC",
    "-shared",
    "-fno-gnu-unique",  # else all libraries share what is static in templates: blocks' memory
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-Wno-unused",
    f"-I{HERE / 'headers'}",
]
BARRIER = re.compile(r"\b((block|warp)_\w+|row_join|__syncthreads|__shfl\w*)\b")
BUILDING = threading.Lock()  # ranks are threads: else each would build the same
DTYPES = {
    "float": "float32",
    "double": "float64",
    "__half": "float16",
    "__nv_bfloat16": "bfloat16",
    "i32": "int32",
    "i64": "int64",
}
STRIDED = {"move_packs"}  # kernels that know of steps; the dtypes of others are those they say
FAULTS = {
    1: "has a barrier that its own text does not show",
    2: "has threads that do not come to where others of their block or warp wait",
}
Sizes = Sequence[int]


def compiler() -> str | None:
    return shutil.which("g++")


class Parameter(NamedTuple):
    """Of a kernel: a number's dtype, or that of an array's elements."""

    name: str
    dtype: str
    pointer: bool


class Signature(NamedTuple):
    """A kernel as its source declares it."""

    name: str
    types: tuple[str, ...]  # in CUDA
    parameters: tuple[Parameter, ...]
    barriers: bool


def signatures(code: str, options: Sequence[str]) -> list[Signature]:
    given = dict(option[2:].split("=") for option in options if option.startswith("-D"))
    given["calc"] = "double" if given.get("real") == "double" else "float"
    found = []
    for name, text, body in KERNEL.findall(code):
        types, parameters = [], []
        for declared in text.replace("__restrict__ ", "").split(","):
            kind, _, parameter = declared.strip().rpartition(" ")
            plain = kind.removeprefix("const ").removesuffix("*").strip()
            dtype = DTYPES[given.get(plain, plain)]
            types.append(kind)
            parameters.append(Parameter(parameter, dtype, kind.endswith("*")))
        barriers = BARRIER.search(body) is not None
        found.append(Signature(name, tuple(types), tuple(parameters), barriers))
    return found


def trampoline(s: Signature) -> str:
    """A function that any launch of a kernel can be made through: addresses of its arguments."""
    args = ", ".join(f"*({kind}*)args[{i}]" for i, kind in enumerate(s.types))
    barriers = "true" if s.barriers else "false"
    return (
        f"static void call_{s.name}(void** args) {{ {s.name}({args}); }}\n"
        f'extern "C" int launch_{s.name}(const unsigned* grid, const unsigned* block, void** args)'
        f" {{ return emulate::launch(grid, block, {barriers}, call_{s.name}, args); }}"
    )


@cache
def headers() -> str:
    """What all kernels are built on."""
    files = [HERE / "emulate.h", *sorted((HERE / "headers").iterdir())]
    return "".join(file.read_text() for file in files)


@cache
def built(code: str, options: tuple[str, ...]) -> ctypes.CDLL:
    """Built once for all processes, and for runs to come, as long as nothing changes."""
    tail = [trampoline(s) for s in signatures(code, options)]
    text = "\n".join([f'#include "{HERE / "emulate.h"}"', code, *tail])
    key = hashlib.sha256(repr((text, options, FLAGS, headers())).encode()).hexdigest()
    library = BUILT / f"{key}.so"
    if not library.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as made:
            Path(made, "kernels.cpp").write_text(text)
            command = ["g++", *options, *FLAGS, "kernels.cpp", "-o", "kernels.so"]
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            Path(made, "kernels.so").replace(library)
    return ctypes.CDLL(str(library))


def pad(sizes: Sizes) -> Any:
    assert 1 <= len(sizes) <= 2
    assert all(type(n) is int and n > 0 for n in sizes)
    return (ctypes.c_uint * 2)(*sizes, *[1] * (2 - len(sizes)))


class RawKernel:
    """What `RawModule.get_function` gives."""

    def __init__(self, library: ctypes.CDLL, signature: Signature) -> None:
        self._signature = signature
        self._launch = getattr(library, f"launch_{signature.name}")

    def __call__(self, grid: Sizes, block: Sizes, args: tuple[Any, ...]) -> None:
        name, parameters = self._signature.name, self._signature.parameters
        assert len(args) == len(parameters), f"{name} takes {len(parameters)}, not {len(args)}"
        held = [held_argument(name, p, arg) for p, arg in zip(parameters, args, strict=True)]
        assert np.prod(block) <= 1024
        assert len(grid) < 2 or grid[1] <= 65535
        places = (ctypes.c_void_p * len(held))(*(h.ctypes.data for h in held))

        def call() -> list[np.ndarray]:
            fault = self._launch(pad(grid), pad(block), places)
            assert not fault, f"{name} {FAULTS[fault]}"
            return held[:0]  # they must live as long as a graph that has this call

        noted(call, *[a._array for a, p in zip(args, parameters, strict=True) if p.pointer])


def held_argument(name: str, parameter: Parameter, given: Any) -> np.ndarray:
    """Memory with the bytes of an argument."""
    where = f"{parameter.name} of {name}"
    if parameter.pointer:
        at = getattr(given.data, "ptr", None)
        assert at is not None, f"{where} is {type(given)}, not an array of the GPU"
        assert given.flags.c_contiguous or name in STRIDED, f"{where} is not contiguous"
    else:
        assert isinstance(given, np.generic), f"{where} is {type(given)}, not a numpy number"
    assert given.dtype == parameter.dtype or name in STRIDED, (
        f"{where} is {given.dtype}, not {parameter.dtype}"
    )
    return np.array(at if parameter.pointer else given)


class RawModule:
    """Kernels of one source."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        assert type(options) is tuple
        assert compiler() is not None, MISSING
        with BUILDING:
            self._library = built(code, options)
        self._signatures = {s.name: s for s in signatures(code, options)}

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self._library, self._signatures[name])
