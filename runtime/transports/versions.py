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

from runtime.backends.cpu.choice import chosen
from symgraph import __version__

PACKAGES = ("symgraph", "partitioner", "runtime")
SOURCES = (".py", ".cu", ".cuh")


ROOT = Path(__file__).parents[2]


@cache
def code_digest(root: Path = ROOT) -> str:
    """Return a digest of symgraph's source files that are installed in a folder."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*")):
            if file.suffix in SOURCES:
                digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def versions() -> Mapping[str, str]:
    """Return the versions by what they are of; BLAS: of the back ends in force now."""
    found = {
        "symgraph": f"{__version__} (code {code_digest():.12})",
        "Python": platform.python_version(),
        "numpy": np.__version__,
        "numba": version("numba"),
        "BLAS": str(chosen()),
    }
    return MappingProxyType(found)
