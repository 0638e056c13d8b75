"""The state of a training session: what a checkpoint holds, by name, for any other partition.

    runs/a/step-00000500/
        rank-0.safetensors      parameters under their own names, `optimizer/<name>/<slot>`,
        rank-1.safetensors      `state/<name>` for the whole batch
        shards.safetensors      parameters that are in shards, joined, and their optimizer arrays
        checkpoint.json         the manifest: checksums of all files, steps, updates, config, plan

Every rank writes what it holds and reads what it needs, whichever rank wrote it. So a run may
resume with other groups, devices, schedules or transports, with bit-identical results (for one
number of micro-batches), or with other shards. Random numbers need nothing: they are keyed by seed
and step. With MPI, ranks share the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runtime.backends.device.arrays import copy, on_host
from runtime.engine.session import Session
from runtime.training.checkpoints.disk import Disk
from runtime.training.checkpoints.manifest import Damaged, Manifest
from runtime.training.checkpoints.tensors import SUFFIX, FileFacts, Image, Reader
from runtime.transports import Transport
from symgraph.core.batch_layout import Split
from symgraph.core.errors import ConfigError
from symgraph.core.types import Array
from symgraph.passes.batching import assemble
from symgraph.passes.shards import join

OPTIMIZER = "optimizer/{}/"  # the variable, then the slot
RANK, PIECES, SHARDS = f"rank-{{}}{SUFFIX}", f"pieces-{{}}{SUFFIX}", f"shards{SUFFIX}"
WRITTEN = "written-{}.json"  # what a rank has written, for the one that publishes


class Snapshot:
    """The state of a session's local ranks at the end of a step, in host memory that is reused."""

    def __init__(self) -> None:
        #: The steps done.
        self.steps = 0
        #: The facts besides arrays.
        self.facts: dict[str, Any] = {}
        self._images: dict[int, dict[str, Image]] = {}  # rank -> file -> its bytes

    def take(self, session: Session, about: Mapping[str, Any]) -> None:
        """Copy the state of a session, with further facts as JSON can hold them."""

        def work(transport: Transport) -> None:
            rank = transport.rank
            with session.workers[rank].device.use():
                tensors, pieces = _tensors(session, rank)
            images = self._images.setdefault(rank, {})
            for name, arrays in ((RANK, tensors), (PIECES, pieces)):
                file = name.format(rank)
                if not arrays:
                    images.pop(file, None)
                    continue
                if file not in images or not images[file].fits(arrays):
                    images[file] = Image(arrays)
                images[file].fill(arrays)

        session.cluster.run(work)
        self.steps = session.steps
        progress = [updater.progress for updater in session.updaters.values()]
        self.facts = {**progress[0], **about}

    def write(self, disk: Disk, folder: Path, proceed: Iterable[object]) -> None:
        """Write the files of the local ranks; `proceed` is asked before each chunk, to stop."""
        for rank, images in self._images.items():
            facts = {
                name: image.write(disk, folder / name, proceed) for name, image in images.items()
            }
            disk.sync(folder)
            disk.write(folder / WRITTEN.format(rank), [json.dumps(facts).encode()])


def collect(session: Session, disk: Disk, folder: Path) -> dict[str, FileFacts]:
    """Complete the files of a folder in which all ranks have written; return those of a manifest.

    Files of shards are replaced by one in which parameters are whole.
    """
    files: dict[str, FileFacts] = {}
    for rank in range(session.cluster.size):
        written = folder / WRITTEN.format(rank)
        facts = json.loads(written.read_text(encoding="utf-8"))
        files |= {name: FileFacts(*values) for name, values in facts.items()}
        disk.remove(written)
    pieces = [name for name in files if name.startswith("pieces-")]
    if pieces:
        image = _joined(session, folder)
        files[SHARDS] = image.write(disk, folder / SHARDS)
        for name in pieces:
            disk.remove(folder / name)
            del files[name]
    return files


def read_about(path: Path) -> dict[str, Any]:
    """Read the facts that were kept with a checkpoint: steps, updates, config ..."""
    try:
        manifest = Manifest.read(path)
    except Damaged as error:
        raise ConfigError(f"{path} is not a checkpoint: {error}") from None
    return {"steps": manifest.steps, "generation": manifest.generation, **manifest.facts}


def read_parameters(session: Session, path: Path) -> None:
    """Set the parameters and auxiliary states of a session to a checkpoint's.

    Raises ConfigError for a tensor that is missing or has another shape or dtype.
    """

    def work(transport: Transport) -> None:
        with Reader(path) as reader:
            _read_parameters(session, transport.rank, reader)

    session.cluster.run(work)


def _read_parameters(session: Session, rank: int, reader: Reader) -> None:
    shards = session.plan.shards
    for name, array in session.arrays[rank].items():
        copy(array, reader.read("{}", name, array, shards.get(name)))


def restore(session: Session, path: Path) -> None:
    """Set a session to a checkpoint's parameters, optimizer, states and step.

    Its files are taken as they are; `saves.newest_whole` finds one that is as it was written.

    Raises ConfigError for a tensor that is missing or has another shape or dtype.
    """
    about = read_about(path)

    def work(transport: Transport) -> None:
        rank = transport.rank
        with Reader(path) as reader:
            _read_parameters(session, rank, reader)
            if session.trains:
                _restore_optimizer(session, rank, reader, about)
            session.workers[rank].start_from(
                {
                    name: list(_split(session, name, reader.read("state/{}", name)))
                    for name in _carried(session, rank)
                }
            )

    session.cluster.run(work)
    session.steps = about["steps"]


def _restore_optimizer(
    session: Session, rank: int, reader: Reader, about: Mapping[str, Any]
) -> None:
    updater = session.updaters[rank]
    updater.resume(about)
    for name in session.plan.grads:
        if name in session.arrays[rank]:
            weight = session.arrays[rank][name]
            for slot, array in updater.state(name, weight).items():
                shard = session.plan.shards.get(name)
                whole = reader.read(OPTIMIZER + slot, name, weight, shard)
                copy(array, updater.piece(name, whole))


def _tensors(session: Session, rank: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the tensors that a rank holds, by name: whole ones, and those of shards."""
    tensors: dict[str, Array] = {}
    pieces: dict[str, Array] = {}
    updater, states = session.updaters[rank], session.workers[rank].states
    for name, array in session.arrays[rank].items():
        of = pieces if name in session.plan.shards else tensors
        of[name] = on_host(array)
        slots = updater.state(name, array) if name in session.plan.grads else {}
        of |= {(OPTIMIZER + slot).format(name): on_host(own) for slot, own in slots.items()}
    for name in _carried(session, rank):
        type_, axis = session.plan.feeds[name]
        parts = states.get(name) or [np.zeros(*type_)]  # none is carried yet
        whole = assemble(Split(axis), [*map(on_host, parts)])
        tensors[f"state/{name}"] = np.ascontiguousarray(whole)
    return tensors, pieces


def _carried(session: Session, rank: int) -> list[str]:
    """Return the states of a rank that batches hand on."""
    plan = session.plan
    return [name for name in plan.states if session.carry_states and plan.rank_of(name) == rank]


def _joined(session: Session, folder: Path) -> Image:
    """Join the shards of all ranks' files."""
    shards, slots = session.plan.shards, session.updaters[0].optimizer.slots()
    joined: dict[str, Array] = {}
    with Reader(folder) as reader:
        for key in ("{}", *(OPTIMIZER + slot for slot in slots)):
            here = [name for name in shards if key.format(name) in reader.holder]
            # The parameters come first; the optimizer's arrays have their shapes.
            whole = join(shards, {name: reader.read(key, name) for name in here}, joined)
            joined |= {key.format(name): array for name, array in whole.items()}
        image = Image(joined)
        image.fill(joined)
    return image


def _split(session: Session, name: str, whole: Array) -> Iterator[Array]:
    """Split a state into its micro-batches."""
    plan, axis = session.plan, session.plan.feeds[name].axis
    ends = np.cumsum(plan.sizes)[:-1]
    return (np.ascontiguousarray(part) for part in np.split(whole, ends, axis))
