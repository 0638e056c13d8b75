"""Checkpoints of programs that run once a rank: each rank keeps its own (ChainerMN).

    result/mnist/rank-0/step-00000200/rank-0.safetensors, checkpoint.json
    result/mnist/rank-1/step-00000200/...

Ranks need not share a file system, and may die at any time: a snapshot gets its name when all of it
is written, old ones are removed when all ranks have the new one, and what a run goes on from is the
newest that all ranks have. A snapshot is known by its iteration and by the start of the run that
wrote it, so that ranks never go on from the same iteration of different runs.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import save_file

from runtime.backends.device.arrays import beside, copy, on_host
from runtime.frontends.chainermn.communicator import Communicator
from runtime.training.checkpoint import STEP, Reader, by_age, prune, publish, read_about
from symgraph.core.errors import ConfigError
from symgraph.core.types import Array


class Resumed(NamedTuple):
    """Where a run goes on. about: what was kept with the snapshot."""

    iteration: int
    about: dict[str, Any]


class MultiNodeCheckpointer:
    """Saves and loads one rank's part of a run; all ranks call its methods equally often."""

    def __init__(self, name: str, comm: Communicator, path: str | Path, keep: int) -> None:
        if Path(name).name != name:
            raise ConfigError(f"a checkpointer's name is one of a folder, not {name!r}")
        if keep < 1:
            raise ConfigError(f"a checkpointer keeps at least 1 snapshot, not {keep}")
        self.folder = Path(path) / name / f"rank-{comm.rank}"
        self._comm, self._keep = comm, keep
        self._start = comm.bcast_obj(secrets.token_hex(8))

    def save(
        self, iteration: int, arrays: Mapping[str, Array], about: Mapping[str, Any] | None = None
    ) -> Path:
        """Write this rank's arrays, which may be others than other ranks have.

        about: JSON-able, such as the place in the data. Returns when all ranks have written theirs.
        ConfigError if they cannot be written.
        """
        path = self.folder / STEP.format(iteration)
        partial = self.folder / f".{path.name}.partial"
        try:
            for left in self.folder.glob(".step-*.partial"):  # by a rank that died
                shutil.rmtree(left)
            partial.mkdir(parents=True)
            held = {name: on_host(array) for name, array in arrays.items()}
            save_file(held, partial / f"rank-{self._comm.rank}.safetensors")
            facts = {"steps": iteration, "start": self._start, "about": dict(about or {})}
            publish(partial, path, facts)
            self._comm.allgather_obj(iteration)
            prune(self.folder, self._keep)
        except OSError as error:
            raise ConfigError(f"the checkpoint {path} cannot be written: {error}") from error
        return path

    def maybe_load(self, arrays: Mapping[str, Array]) -> Resumed | None:
        """Overwrite arrays by those of the newest snapshot that all ranks have; None without one.

        ConfigError if it has not all of them, or of other shapes or dtypes.
        """
        own = [(about["steps"], about["start"]) for about in map(read_about, by_age(self.folder))]
        all_ = self._comm.allgather_obj(own)
        common = [which for which in all_[0] if all(which in of_rank for of_rank in all_)]
        if not common:
            return None
        path = self.folder / STEP.format(common[-1][0])
        with Reader(path) as reader:
            found = {name: reader.read("{}", name, array) for name, array in arrays.items()}
        self._comm.allgather_obj(path.name)  # nobody changes anything unless all can
        for name, array in arrays.items():
            with beside(array):
                copy(array, found[name])
        return Resumed(common[-1][0], read_about(path)["about"])


def create_multi_node_checkpointer(
    name: str, comm: Communicator, path: str | Path = "result", keep: int = 5
) -> MultiNodeCheckpointer:
    """A checkpointer of the run `name` (chainermn.create_multi_node_checkpointer).

    path: the folder of all runs. keep: how many snapshots of each rank stay (ChainerMN's
    cp_interval).
    """
    return MultiNodeCheckpointer(name, comm, path, keep)
