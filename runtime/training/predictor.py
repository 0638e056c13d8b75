"""The predictor: a config's network run forward over its data, with the weights of a checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from runtime.engine.prediction import as_output, predicted
from runtime.engine.session import Session
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.checkpoints.saves import newest_whole
from runtime.training.checkpoints.state import read_about, read_parameters
from runtime.training.data.base import Dataset, Inputs
from runtime.training.data.held_out import alike
from runtime.training.job import Job
from runtime.training.loss import labels_of
from runtime.training.npz import NpzWriter
from runtime.training.trainer import initial_arrays
from runtime.transports import Cluster
from runtime.transports.agreement import agree_on_data
from symgraph.core.errors import ConfigError


class Predictor:
    """Runs a job forward over all samples of its data, in order, once.

    Every process of an MPI run does the same; rank 0 writes.
    """

    def __init__(self, job: Job, cluster: Cluster) -> None:
        """Create the session, and load the weights.

        Raises:
            ConfigError: The folder of checkpoints has none, or one of another network; or the
                config has buckets.
        """
        if job.model is None:
            raise ConfigError("data.buckets: a text in buckets has no samples in an order")
        self.job, self.model = job, job.model
        arrays, seed = initial_arrays(job, cluster), job.config.train.seed
        self.session = Session(job.evaluation, cluster, arrays, seed=seed, keep_outputs=True)
        #: The checkpoint that the weights are of; None: they are the initial ones.
        self.checkpoint = self._load()

    def _load(self) -> Path | None:
        saving = self.job.config.checkpoint
        if saving is None:
            return None
        folder = CheckpointFolder(Path(saving.directory))
        path = newest_whole(self.session.cluster, folder, fallback=saving.fallback)
        if path is None:
            raise ConfigError(
                f"checkpoint.directory: {saving.directory} has no checkpoint to predict with; "
                "train first, or leave out `checkpoint` to predict with the network's first weights"
            )
        read_parameters(self.session, path)
        return path

    def weights(self) -> str:
        """Say in a few words which weights are used."""
        if self.checkpoint is not None:
            return (
                f"weights of {self.checkpoint}, after step {read_about(self.checkpoint)['steps']}"
            )
        if self.model.params:
            return f"weights of {self.job.config.model}"
        return "initial weights, as the config names no checkpoint.directory: nothing was trained"

    def write(self, data: Dataset, path: str) -> dict[str, Any]:
        """Write the outputs for all samples as .npz; return the figures of `--json`.

        Args:
            data: The data.
            path: The file, in a folder that is there.
        """
        cluster, plan = self.session.cluster, self.session.plan
        cluster.run(lambda transport: agree_on_data(transport, data.digest))
        batches = alike(cluster, data.in_order(Inputs.of(self.model, labels_of(self.model))))
        begun, layouts = time.perf_counter(), predicted(plan)
        found: dict[str, np.ndarray[Any, Any]] = {}
        samples = 0
        with NpzWriter(Path(path)) as writer:
            for outputs in self.session.predictions(batches):
                writer.add(outputs)
                samples += len(next(iter(outputs.values()), ()))
            seconds = time.perf_counter() - begun
            if samples:
                found = writer.finish(lambda name, rows: as_output(rows, layouts[name]))
        return {
            "written": path,
            "samples": samples,
            "seconds": seconds,
            "samples_per_second": samples / seconds,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "outputs": {
                name: {"shape": list(array.shape), "dtype": array.dtype.name}
                for name, array in found.items()
            },
            "micro_batches": len(plan.sizes),
            "devices": list(self.job.config.devices),
        }
