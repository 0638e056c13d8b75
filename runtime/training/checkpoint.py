"""Checkpoints: everything a run needs to resume, by name, for any other partition.

    runs/a/step-00000500/
        rank-0.safetensors      parameters under their own names, `optimizer/<name>/<slot>`,
        rank-1.safetensors      `state/<name>` for the whole batch
        shards.safetensors      parameters that are in shards, joined, and their optimizer arrays
        checkpoint.json         steps and updates done, the loss scale, and the config

Every rank writes what it holds and reads what it needs, whichever rank wrote it. So a run may
resume with other groups, devices, schedules or transports, with bit-identical results (for one
number of micro-batches), or with other shards. Random numbers need nothing: they are keyed by seed
and step. A folder gets its name only when all of it is written. With MPI, ranks share the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from runtime.backends.device.arrays import copy, on_host
from runtime.engine.session import Session
from runtime.transports import Transport
from symgraph.core.batch_layout import Split
from symgraph.core.errors import ConfigError, RunError
from symgraph.core.types import Array
from symgraph.passes.batching import assemble
from symgraph.passes.shards import Shard, join

ABOUT = "checkpoint.json"
STEP = "step-{:08d}"
PARTIAL = ".{}.partial"
OPTIMIZER = "optimizer/{}/"  # the variable, then the slot


def latest(folder: Path) -> Path | None:
    """Find the newest complete checkpoint in a folder."""
    return next(reversed(by_age(folder)), None)


def by_age(folder: Path) -> list[Path]:
    """List complete checkpoints in the order in which they were written, whatever their steps."""
    files = folder.glob(f"step-*/{ABOUT}")
    return [a.parent for a in sorted(files, key=lambda a: (a.stat().st_mtime_ns, a.parent.name))]


def save(session: Session, folder: Path, about: Mapping[str, Any], keep: int) -> Path:
    """Write a checkpoint of a training session, and remove all but the newest `keep`.

    Args:
        session: The session.
        folder: The folder of all checkpoints.
        about: Facts to keep with it, as JSON can hold them.
        keep: How many checkpoints remain.

    Returns:
        The checkpoint's own folder.

    Raises:
        RunError: It cannot be written; the older ones are still complete.
    """
    path = folder / STEP.format(session.steps)
    partial = folder / PARTIAL.format(path.name)

    def work(transport: Transport) -> None:
        transport.waiting_for("the writing of a checkpoint")
        if transport.rank == 0:
            for left in folder.glob(PARTIAL.format("*")):  # by runs that were killed
                shutil.rmtree(left, ignore_errors=True)
            partial.mkdir(parents=True)
        transport.exchange("made")
        tensors, pieces = _tensors(session, transport.rank)
        save_file(tensors, partial / f"rank-{transport.rank}.safetensors")
        if pieces:
            save_file(pieces, partial / f"pieces-{transport.rank}.safetensors")
        transport.exchange("written")
        if transport.rank == 0:
            _join_pieces(session, partial)
            facts = {"steps": session.steps, **session.updaters[0].progress, **about}
            publish(partial, path, facts)
            prune(folder, keep)
        transport.exchange("named")

    try:
        session.cluster.run(work)
    except (OSError, SafetensorError) as error:
        if 0 in session.cluster.ranks:
            shutil.rmtree(partial, ignore_errors=True)
        raise RunError(f"cannot write the checkpoint {path}: {error}") from error
    return path


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs' checkpoints until the block ends, or the process.

    Raises ConfigError if another run has the lock. A file system without locks lets all in.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"checkpoint.directory: another run is writing checkpoints into {folder}; wait "
                "until it ends, or use another folder"
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def publish(partial: Path, path: Path, about: Mapping[str, Any]) -> None:
    """Write the facts into a folder that is otherwise complete, then rename it, at once."""
    (partial / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
    shutil.rmtree(path, ignore_errors=True)
    os.replace(partial, path)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for old in by_age(folder)[:-keep]:
        shutil.rmtree(old)


def read_about(path: Path) -> dict[str, Any]:
    """Read the facts that were kept with a checkpoint."""
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a checkpoint: {error}") from error
    for key, default in (("steps", None), ("updates", 0)):
        number = about.get(key, default) if isinstance(about, dict) else None
        if type(number) is not int or number < 0:
            raise ConfigError(f"{path} is not a checkpoint: {ABOUT} lacks its {key}")
    facts: dict[str, Any] = about
    return facts


def restore(session: Session, path: Path) -> None:
    """Set a fresh training session to a checkpoint's parameters, optimizer, states and step.

    Raises ConfigError for a tensor that is missing or has another shape or dtype.
    """
    about = read_about(path)

    def work(transport: Transport) -> None:
        rank, shards = transport.rank, session.plan.shards
        with Reader(path) as reader:
            for name, array in session.arrays[rank].items():
                copy(array, reader.read("{}", name, array, shards.get(name)))
            updater, worker = session.updaters[rank], session.workers[rank]
            updater.resume(about)
            for name in session.plan.grads:
                if name in session.arrays[rank]:
                    weight = session.arrays[rank][name]
                    fresh = updater.optimizer.state(name, updater.piece(name, weight))
                    for slot, array in fresh.items():
                        whole = reader.read(OPTIMIZER + slot, name, weight, shards.get(name))
                        copy(array, updater.piece(name, whole))
                    updater.states[name] = fresh
            worker.start_from(
                {
                    name: list(_split(session, name, reader.read("state/{}", name)))
                    for name in session.plan.states
                    if session.carry_states and session.plan.rank_of(name) == rank
                }
            )

    session.cluster.run(work)
    session.steps = about["steps"]


def _tensors(session: Session, rank: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the tensors that a rank holds, by name: whole ones, and those of shards."""
    tensors: dict[str, Array] = {}
    pieces: dict[str, Array] = {}
    for name, array in session.arrays[rank].items():
        of = pieces if name in session.plan.shards else tensors
        of[name] = on_host(array)
    for name, slots in session.updaters[rank].states.items():
        of = pieces if name in session.plan.shards else tensors
        of |= {(OPTIMIZER + slot).format(name): on_host(array) for slot, array in slots.items()}
    for name, parts in session.workers[rank].states.items():
        whole = assemble(Split(session.plan.feeds[name].axis), [*map(on_host, parts)])
        tensors[f"state/{name}"] = np.ascontiguousarray(whole)
    return tensors, pieces


def _join_pieces(session: Session, folder: Path) -> None:
    """Replace the files of all ranks' shards by one in which parameters are whole."""
    files = list(folder.glob("pieces-*.safetensors"))
    if not files:
        return
    shards, slots = session.plan.shards, session.updaters[0].optimizer.slots()
    joined: dict[str, Array] = {}
    with Reader(folder) as reader:
        for key in ("{}", *(OPTIMIZER + slot for slot in slots)):
            here = [name for name in shards if key.format(name) in reader.holder]
            # The parameters come first; the optimizer's arrays have their shapes.
            whole = join(shards, {name: reader.read(key, name) for name in here}, joined)
            joined |= {key.format(name): array for name, array in whole.items()}
    save_file(joined, folder / "shards.safetensors")
    for file in files:
        file.unlink()


def _split(session: Session, name: str, whole: Array) -> Iterator[Array]:
    """Split a state into its micro-batches."""
    plan, axis = session.plan, session.plan.feeds[name].axis
    ends = np.cumsum(plan.sizes)[:-1]
    return (np.ascontiguousarray(part) for part in np.split(whole, ends, axis))


class Reader:
    """Reads the tensors of a checkpoint, whichever rank wrote them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.holder: dict[str, Any] = {}  # tensor -> the open file that has it
        for file in sorted(path.glob("*.safetensors")):
            try:
                opened: Any = safe_open(file, "numpy")
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{file} cannot be read: {error}") from error
            self.holder |= dict.fromkeys(opened.keys(), opened)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.holder = {}

    def read(
        self, key: str, name: str, like: Array | None = None, shard: Shard | None = None
    ) -> Array:
        """Read the tensor of a variable.

        Args:
            key: The tensor's name, with {} for the variable or the parameter it is a shard of.
            name: The variable.
            like: An array of the expected shape and dtype; None: any.
            shard: The rows to read; None: all.

        Raises:
            ConfigError: The tensor is missing, or has another shape or dtype.
        """
        tensor = key.format(shard.parameter if shard else name)
        if tensor not in self.holder:
            raise ConfigError(f"{self.path} has no {tensor!r}: it was written by another network")
        stored = self.holder[tensor].get_slice(tensor)
        shape = tuple(stored.get_shape())
        if like is None:
            whole: Array = self.holder[tensor].get_tensor(tensor)
            return whole
        wanted = (shard.rows, *like.shape[1:]) if shard else like.shape
        rows = slice(shard.start, shard.stop) if shard and shape == wanted else ...
        array: Array = stored[rows]
        if (shape, array.dtype) != (wanted, like.dtype):
            raise ConfigError(
                f"{self.path}: {tensor!r} is {array.dtype}{list(shape)}, but the network has "
                f"{like.dtype}{list(wanted)}"
            )
        return array
