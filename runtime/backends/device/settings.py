"""Environment variables: the only place that reads or sets them for devices and transports.

They are about a machine, not about a run, so they are no keys of a config. docs/gpus.md lists them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from symgraph.core.errors import ConfigError, nearest

__all__: list[str] = []

SHARE_GPUS = "SYMGRAPH_SHARE_GPUS"
PRODUCTS = "SYMGRAPH_PRODUCTS"
CUDA_GRAPHS = "SYMGRAPH_CUDA_GRAPHS"
NVTX = "SYMGRAPH_NVTX"
CUDA_AWARE_MPI = "SYMGRAPH_CUDA_AWARE_MPI"
# What users of MPICH and of Open MPI set, for libraries that cannot be asked.
MPI_GPU_SUPPORT = (
    "MPICH_GPU_SUPPORT_ENABLED",
    "MPICH_GPU_SUPPORT",
    "OMPI_MCA_opal_cuda_support",
)
PRECISIONS = ("float32", "tf32", "bfloat16")  # that products of float32 can have
# Streams that CUDA keeps apart. Its default is 8: what is queued behind a message that waits for
# its receiver would wait as well.
CONNECTIONS, CONNECTION_COUNT = "CUDA_DEVICE_MAX_CONNECTIONS", "32"
CUPY_TF32 = "CUPY_TF32"


def gpus_are_shared() -> bool:
    """Return whether several contexts may lie on one GPU: SYMGRAPH_SHARE_GPUS=1."""
    return os.environ.get(SHARE_GPUS) == "1"


def product_precision() -> str:
    """Return the precision of float32 products on GPUs, SYMGRAPH_PRODUCTS.

    float32, or with factors cut to tf32 (10 bits of mantissa) or bfloat16 (7), which is faster;
    sums are float32 in any case. ConfigError for another word.
    """
    word = os.environ.get(PRODUCTS, PRECISIONS[0])
    if word not in PRECISIONS:
        raise ConfigError(f"{PRODUCTS}={word}: {nearest(word, PRECISIONS)}")
    return word


def cuda_graphs_are_used() -> bool:
    """Return whether runs are captured as CUDA graphs: unless SYMGRAPH_CUDA_GRAPHS=0."""
    return os.environ.get(CUDA_GRAPHS) != "0"


def nvtx_ranges_are_marked() -> bool:
    """Return whether instructions are named ranges for NVIDIA's profilers: SYMGRAPH_NVTX=1."""
    return os.environ.get(NVTX) == "1"


def cuda_aware_mpi(environ: Mapping[str, str]) -> bool | None:
    """Return whether SYMGRAPH_CUDA_AWARE_MPI says that MPI takes memory of GPUs; None: unset.

    ConfigError unless it is 0 or 1.
    """
    word = environ.get(CUDA_AWARE_MPI)
    if word not in (None, "0", "1"):
        raise ConfigError(
            f"{CUDA_AWARE_MPI}={word!r}: say 1 if MPI takes memory of GPUs, or else 0"
        )
    return None if word is None else word == "1"


def mpi_gpu_support_is_set(environ: Mapping[str, str]) -> bool:
    """Return whether one of MPI's own variables, `MPI_GPU_SUPPORT`, turns its GPU support on."""
    words = (environ.get(name, "").lower() for name in MPI_GPU_SUPPORT)
    return any(word in ("1", "true", "yes") for word in words)


def set_cupy_precision() -> None:
    """Set CUPY_TF32, which CuPy reads at its first product, as `product_precision` says."""
    os.environ[CUPY_TF32] = "0" if product_precision() == "float32" else "1"


def set_cuda_connections() -> None:
    """Let CUDA keep more streams apart, unless CUDA_DEVICE_MAX_CONNECTIONS is set; before CUDA."""
    os.environ.setdefault(CONNECTIONS, CONNECTION_COUNT)
