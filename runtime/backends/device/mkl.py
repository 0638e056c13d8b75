"""MKL: found where its wheel puts it, loaded once, and set to give the same bits in every call.

By itself MKL takes other kernels for arrays at other addresses, and sums in another order on other
numbers of threads. Its conditional numerical reproducibility in the strict mode does neither.

Source: oneMKL's developer guide, "Obtaining Numerically Reproducible Results".
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

FOLDERS = (Path(sys.prefix, "lib"), Path(sys.base_prefix, "lib"))
LIBRARY = "libmkl_rt.so.*"
AUTO_STRICT = 2 | 0x10000  # MKL_CBWR_AUTO | MKL_CBWR_STRICT
VERSION_BYTES = 198


@cache
def mkl() -> Any:
    """Return the library of the extra `mkl`; None if it is not installed, or cannot be loaded."""
    for path in sorted(file for folder in FOLDERS for file in folder.glob(LIBRARY)):
        try:
            library = ctypes.CDLL(str(path))
            library.cblas_sgemm_64  # noqa: B018  (older ones lack it)
        except (OSError, AttributeError):
            continue
        library.MKL_CBWR_Set(AUTO_STRICT)  # refused if the process has used MKL otherwise: no harm
        return library
    return None


def mkl_version() -> str:
    """Return the version of a loaded MKL, such as 2026.2."""
    text = ctypes.create_string_buffer(VERSION_BYTES)
    mkl().MKL_Get_Version_String(text, VERSION_BYTES)
    _, _, version = text.value.decode("ascii", "replace").partition("Version ")
    return version.partition("-")[0].partition(" ")[0]
