"""The work and output of `--predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.backends.cpu.choice import use_blas
from runtime.backends.device.processor import limit_blas
from runtime.profiling.calibration.pricing import CostCache
from runtime.training.data.table import load_data
from runtime.training.job import devices_of, prepare
from runtime.training.npz import require_archive
from runtime.training.predictor import Predictor
from runtime.training.trainer import blas_threads
from runtime.transports import Cluster
from symgraph.app.command_line import require_folder, require_writable
from symgraph.app.config import Config
from symgraph.app.console import Console
from symgraph.core.units import count_text


def predict(config: Config, cluster: Cluster, console: Console, path: str) -> dict[str, Any]:
    """Write what the network puts out for all samples of its data; return the figures of `--json`.

    Every process of an MPI run does the same.

    Args:
        config: The config.
        cluster: Its cluster.
        console: Where it says what it does.
        path: The .npz file to write; its folder is made.

    Raises:
        ConfigError: The file cannot be written, or see Predictor.
    """
    require_archive(path)
    if 0 in cluster.ranks:
        require_folder(str(Path(path).parent), "cannot write outputs into")
        require_writable(path, "cannot write outputs into")
    job = prepare(config, CostCache().on(cluster, devices_of(config)), whole=True)
    with use_blas(config.blas), limit_blas(blas_threads(config, cluster)):
        predictor = Predictor(job, cluster)
        placed = ", ".join(config.devices)
        console.line(f"{config.model} on {placed}: {predictor.weights()}")
        found = predictor.write(load_data(config), path)
    for name, about in found["outputs"].items():
        console.line(f"  {name}  {about['dtype']}{about['shape']}")
    samples, pace = count_text(found["samples"], "sample"), found["samples_per_second"]
    console.line(f"wrote {path}: {samples} in {found['seconds']:.1f} s, {pace:,.0f} a second")
    return found
