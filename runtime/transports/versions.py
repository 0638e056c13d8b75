"""The versions that decide the bits of a run: of symgraph's own code, and of what computes."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import numpy as np
from threadpoolctl import threadpool_info

from symgraph import __version__

PACKAGES = ("symgraph", "partitioner", "runtime")
SOURCES = (".py", ".cu", ".cuh")


ROOT = Path(__file__).parents[2]


def code_digest(root: Path = ROOT) -> str:
    """Return a digest of symgraph's source files that are installed in a folder."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*")):
            if file.suffix in SOURCES:
                digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def blas_kernel() -> str:
    """Return the library and the kernel of matrix products, such as "openblas 0.3.31 SkylakeX"."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    numpys = [library for library in libraries if "numpy" in library["filepath"]]
    found = {
        " ".join(str(library.get(key) or "") for key in ("internal_api", "version", "architecture"))
        for library in numpys or libraries  # others come with SciPy, once something imports it
    }
    return ", ".join(sorted(found)) or "unknown"


@cache
def versions() -> Mapping[str, str]:
    """Return the versions by what they are of."""
    found = {
        "symgraph": f"{__version__} (code {code_digest():.12})",
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "numba": version("numba"),
        "BLAS": blas_kernel(),
    }
    return MappingProxyType(found)
