"""Checkpoints of programs that run once per rank: each rank keeps its own (ChainerMN).

    result/mnist/rank-0/step-00000200/rank-0.safetensors, checkpoint.json
    result/mnist/rank-1/step-00000200/...

Ranks need not share a file system, and may die at any time: a snapshot gets its name once it is
completely written, old ones are removed once all ranks have the new one, and a run resumes from the
newest snapshot that all ranks have whole, as its checksums tell. A snapshot is identified by its
iteration and by the start of the run that wrote it, so ranks never resume from the same iteration
of different runs.
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runtime.backends.device.arrays import beside, copy, is_on_gpu
from runtime.frontends.chainermn.communicator import Communicator
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.checkpoints.manifest import STEP, Manifest
from runtime.training.checkpoints.state import RANK
from runtime.training.checkpoints.tensors import Image, Reader
from symgraph.core.errors import ConfigError
from symgraph.core.number_checks import whole_number
from symgraph.core.types import Array


class Resumed(NamedTuple):
    """The snapshot that a run resumes from."""

    #: The iteration of the snapshot.
    iteration: int
    #: The facts that were saved with it.
    about: dict[str, Any]


class MultiNodeCheckpointer:
    """Saves and loads the part of a run on one rank; all ranks call its methods equally often."""

    def __init__(self, name: str, comm: Communicator, path: str | Path, keep: int) -> None:
        if Path(name).name != name or name in ("", ".."):
            raise ConfigError(f"a checkpointer's name must be the name of a folder, not {name!r}")
        keep = whole_number(keep, "the number of snapshots that a checkpointer keeps", ConfigError)
        if keep < 1:
            raise ConfigError(f"a checkpointer must keep at least 1 snapshot, not {keep}")
        self.folder = Path(path) / name / f"rank-{comm.rank}"
        self._comm, self._keep = comm, keep
        self._start = comm.bcast_obj(secrets.token_hex(8))

    def save(
        self, iteration: int, arrays: Mapping[str, Array], about: Mapping[str, Any] | None = None
    ) -> Path:
        """Write this rank's arrays; return the folder once all ranks have written theirs.

        Args:
            iteration: the number of the iteration, 0 or more.
            arrays: the arrays by name; ranks may have different ones.
            about: facts to keep with them, as JSON can hold them, such as the position in the data.

        Raises:
            ConfigError: the arrays cannot be written, the iteration is no such number, or JSON
                cannot hold the facts.
        """
        iteration = whole_number(iteration, "the iteration of a checkpoint", ConfigError)
        if iteration < 0:
            raise ConfigError(f"the iteration of a checkpoint must be 0 or more, not {iteration}")
        _require_arrays(arrays)
        try:
            json.dumps(about)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the facts about a checkpoint: {error}; JSON holds numbers of Python (int(x), not "
                "numpy's), text, lists, and dicts with names"
            ) from None
        folder = CheckpointFolder(self.folder)
        path, partial = self.folder / STEP.format(iteration), folder.partial(iteration)
        try:
            folder.clean()  # what a rank that died has left
            folder.disk.make(partial)
            image, file = Image(arrays), RANK.format(self._comm.rank)
            image.fill(arrays)
            files = {file: image.write(folder.disk, partial / file)}
            facts = {"start": self._start, "about": dict(about or {})}
            folder.publish(iteration, files, facts)
            self._comm.allgather_obj(iteration)
            folder.prune(self._keep)
        except OSError as error:
            folder.discard(iteration)  # a full disk has no room for a part
            raise ConfigError(f"the checkpoint {path} cannot be written: {error}") from error
        return path

    def maybe_load(self, arrays: Mapping[str, Array]) -> Resumed | None:
        """Overwrite arrays with those of the newest snapshot that all ranks have whole.

        Returns:
            The snapshot; None if there is none.

        Raises:
            ConfigError: the snapshot lacks an array, or has it with another shape or dtype.
        """
        _require_arrays(arrays)
        entries = CheckpointFolder(self.folder).entries()
        here = {(m.steps, m.facts["start"]): e.path for e in entries if (m := e.manifest)}
        by_rank = self._comm.allgather_obj(list(here))
        for key in map(tuple, by_rank[0]):
            if not all([*key] in map(list, keys) for keys in by_rank):
                continue
            path = here[key]
            manifest = Manifest.read(path)
            damage = manifest.damage(path)
            if damage is not None:
                warnings.warn(f"{path} is damaged: {damage}; an older one is taken", stacklevel=2)
            if not any(self._comm.allgather_obj(damage)):
                return self._load(path, manifest, arrays)
        return None

    def _load(self, path: Path, manifest: Manifest, arrays: Mapping[str, Array]) -> Resumed:
        with Reader(path) as reader:
            saved = {name: reader.read("{}", name, array) for name, array in arrays.items()}
        self._comm.allgather_obj(path.name)  # no rank changes an array unless all ranks can
        for name, array in arrays.items():
            with beside(array):
                copy(array, saved[name])
        return Resumed(manifest.steps, manifest.facts["about"])


def _require_arrays(arrays: Mapping[str, Any]) -> None:
    """Raise ConfigError for a number: it has no memory to load into."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) and not is_on_gpu(array):
            raise ConfigError(
                f"{name!r} is of type {type(array).__name__} but must be an array; `about` holds "
                "numbers"
            )


def create_multi_node_checkpointer(
    name: str, comm: Communicator, path: str | Path = "result", keep: int = 5
) -> MultiNodeCheckpointer:
    """Create a checkpointer (chainermn.create_multi_node_checkpointer).

    Args:
        name: the name of the run, which is the name of its folder.
        comm: the communicator.
        path: the folder of all runs.
        keep: the number of snapshots that each rank keeps (ChainerMN's cp_interval).
    """
    return MultiNodeCheckpointer(name, comm, path, keep)
